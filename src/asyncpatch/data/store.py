"""A set of pictures, decoded once: uint8 squares in one memory map, with their labels.

Decoding is some hundred times slower than reading back, so it is done once per data set and size and kept in a cache
folder. The folder appears under its final name only when it is whole: a store that is there can be used.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from asyncpatch.data.decoders import Decoders
from asyncpatch.data.sources import DataError, Joined, open_sources
from asyncpatch.machine import cache_folder

FORMAT = 1
MOST_BROKEN = 0.01
"""A data set of which more than this share cannot be read is refused."""


@dataclass(frozen=True)
class Store:
    """Pictures [N, side, side, 3], their labels [N] (-1 for none), the names of the classes, and what was skipped."""

    pictures: NDArray[np.uint8]
    labels: NDArray[np.int64]
    names: tuple[str, ...]
    broken: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.pictures)


def check_broken(broken: list[str], seen: int) -> None:
    """Refuses data of which more than one per cent cannot be read."""
    if len(broken) > MOST_BROKEN * seen:
        some = "\n".join(f"  {line}" for line in broken[:10])
        more = f"\n  and {len(broken) - 10} more" if len(broken) > 10 else ""
        raise DataError(
            f"{len(broken)} of {seen} pictures cannot be read, more than {MOST_BROKEN:.0%}; "
            f"mend or remove them and start again:\n{some}{more}"
        )


def open_store(
    source: Joined,
    side: int,
    *,
    crops: float = 0.0,
    cache: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, of: None,
) -> Store:
    """The source's pictures at ``side`` pixels: from the cache, or decoded into it now (``progress`` is told).

    Files that cannot be read are named in ``Store.broken``; if they are more than one per cent, a DataError says so.
    """
    key = f"{FORMAT}|{source.fingerprint()}|{source.names}|{side}|{crops}"
    folder = (cache or cache_folder()) / f"{side}px-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if not folder.exists():
        _build(source, side, crops, folder, progress)
    about = json.loads((folder / "about.json").read_text())
    labels = np.load(folder / "labels.npy")
    if not len(labels):
        raise DataError("the data hold no picture that can be read")
    pictures = np.memmap(folder / "pictures.u8", np.uint8, "r", shape=(len(labels), side, side, 3))
    return Store(pictures, labels, source.names, tuple(about["broken"]))


def open_split(data: Sequence[str], split: str, side: int, cache: Path | None = None) -> Store | None:
    """The pictures of a split (train, validation) at ``side`` pixels; None if there are none."""
    source = open_sources(list(data), split)
    if source is not None and not isinstance(source, Joined):
        raise DataError(f"{', '.join(data)}: shards cannot be used here; unpack them")
    return None if source is None else open_store(source, side, cache=cache)


def _build(source: Joined, side: int, crops: float, folder: Path, progress: Callable[[int, int], None]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    for stale in folder.parent.glob(f".writing-{folder.name}-*"):
        if time.time() - stale.stat().st_mtime > 24 * 3600:  # of a process that was killed
            shutil.rmtree(stale, ignore_errors=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".writing-{folder.name}-", dir=folder.parent))
    temporary.chmod(0o755)
    try:
        labels: list[int] = []
        broken: list[str] = []
        seen = 0
        decoders = Decoders(side, crops, None if len(source) >= 500 else 0)
        try:
            with open(temporary / "pictures.u8", "wb") as file:
                for item, result in decoders.map(source):
                    seen += 1
                    if isinstance(result, str):
                        broken.append(result)
                    else:
                        file.writelines(each.data for each in result)
                        labels += [item.label] * len(result)
                    if seen % 500 == 0:
                        progress(seen, len(source))
        finally:
            decoders.close()
        progress(seen, len(source))
        check_broken(broken, seen)  # and keep nothing of such data: they may be mended without a trace
        np.save(temporary / "labels.npy", np.array(labels, dtype=np.int64))
        (temporary / "about.json").write_text(json.dumps({"broken": broken}))
        try:
            temporary.rename(folder)
        except OSError:  # another run built the same meanwhile
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
