"""Speed of the data path: decoding once, and handing out batches afterwards.

    python benchmarks/data.py

Pictures are drawn here and saved as 64x64 JPEGs (quality 90): in a folder, and in four tar shards. Decoding goes
through ``open_store`` (all cores), then batches of 512 come from the memory map and from the shards, on the CPU. "Of
a copy" compares the memory map with copying as many bytes from one array to another.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from asyncpatch.data.feed import StoredFeed, StreamedFeed
from asyncpatch.data.sources import Shapes, open_sources
from asyncpatch.data.store import open_store

COUNT, SIDE, BATCH = 8000, 64, 512


def seconds(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def write(folder: Path) -> None:
    """The same pictures in a folder and in shards."""
    (folder / "files").mkdir()
    (folder / "shards").mkdir()
    drawn = [item.read() for item in Shapes(500)]
    for shard in range(4):
        with tarfile.open(folder / f"shards/{shard}.tar", "w") as tar:
            for k in range(shard * COUNT // 4, (shard + 1) * COUNT // 4):
                file = io.BytesIO()
                Image.open(io.BytesIO(drawn[k % 500])).rotate(k // 500).save(file, "JPEG", quality=90)
                (folder / f"files/{k}.jpg").write_bytes(file.getvalue())
                info = tarfile.TarInfo(f"{k}.jpg")
                info.size = file.tell()
                file.seek(0)
                tar.addfile(info, file)


def main() -> None:
    device = torch.device("cpu")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder)
        source = open_sources([str(folder / "files")])
        decoding = seconds(lambda: open_store(source, SIDE, cache=folder / "cache"))
        store = open_store(source, SIDE, cache=folder / "cache")
        feed = StoredFeed(store, BATCH, 0, device)
        feed.batch(0)
        mapped = min(seconds(lambda k=k: [feed.batch(k + n) for n in range(50)]) for k in (1, 51, 101)) / 50
        feed.close()
        one, other = (np.zeros((BATCH, SIDE, SIDE, 3), np.uint8) for _ in range(2))
        copying = min(seconds(lambda: [np.copyto(one, other) for _ in range(50)]) for _ in range(3)) / 50
        stream = StreamedFeed(open_sources([str(folder / "shards")]), SIDE, BATCH, 0, device)
        for k in range(4):
            stream.batch(k)
        streaming = seconds(lambda: [stream.batch(4 + k) for k in range(12)]) / 12
        stream.close()
    print("| what | pictures a second |")
    print("|---|---|")
    print(f"| decoding JPEG files into the memory map | {COUNT / decoding:,.0f} |")
    print(f"| batches of {BATCH} from the memory map ({copying / mapped:.2f} of a copy) | {BATCH / mapped:,.0f} |")
    print(f"| batches of {BATCH} from tar shards, decoded as they come | {BATCH / streaming:,.0f} |")


if __name__ == "__main__":
    main()
