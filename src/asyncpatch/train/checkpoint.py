"""Checkpoints that are whole or not there.

A checkpoint is a folder ``step-N`` with ``state.safetensors`` (all tensors) and ``facts.json`` (all else). It is
written under another name, flushed to the disk, and renamed; older ones go only afterwards, and are renamed before
they are deleted. So whatever moment a process dies at, the newest folder that has its name is good.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from asyncpatch.train.errors import TrainingError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@contextmanager
def whole_or_nothing(final: Path) -> Iterator[Path]:
    """A folder to write into, which takes the place of ``final`` when all went well and vanishes otherwise."""
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = final.with_name(f".writing-{final.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        yield temporary
        for file in (*temporary.rglob("*"), temporary):
            _flush(file)
        doomed = set_aside(final)
        temporary.rename(final)
        _flush(final.parent)
        if doomed is not None:
            shutil.rmtree(doomed, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def set_aside(folder: Path) -> Path | None:
    """Give a folder another name, so that no half of it is ever found under its own."""
    if not folder.exists():
        return None
    aside = folder.with_name(f".aside-{folder.name}")
    shutil.rmtree(aside, ignore_errors=True)
    return folder.rename(aside)


def all_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def save(folder: Path, step: int, tensors: dict[str, Tensor], facts: dict[str, Any], keep: int) -> Path:
    """Write the checkpoint of a step and delete all but the newest ``keep``."""
    final = folder / f"step-{step:08d}"
    with whole_or_nothing(final) as temporary:
        save_file({name: value.contiguous() for name, value in tensors.items()}, temporary / "state.safetensors")
        (temporary / "facts.json").write_text(json.dumps({"step": step, **facts}, indent=1))
    for old in all_in(folder)[:-keep]:
        doomed = set_aside(old)
        if doomed is not None:
            shutil.rmtree(doomed, ignore_errors=True)
    return final


def load(checkpoint: Path) -> tuple[Callable[[str], Tensor], dict[str, Any]]:
    """A checkpoint: a function that reads one tensor (onto the CPU), and the facts. An error says what is wrong."""
    facts = json.loads((checkpoint / "facts.json").read_text())
    return safe_open(checkpoint / "state.safetensors", "pt").get_tensor, facts


def newest(folder: Path, say: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that can be read. Later ones that cannot are set aside; if none can, that is an error."""
    found = all_in(folder)
    for path in reversed(found):
        try:
            load(path)
        except (OSError, ValueError, SafetensorError) as error:
            say(f"{path} cannot be read ({error}); trying the one before")
            continue
        for later in found[found.index(path) + 1 :]:
            set_aside(later)
        return path
    if found:
        raise TrainingError(f"none of the checkpoints in {folder} can be read; the newest is {found[-1]}")
    return None


@contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Turns a full disk into a message that says what is safe and what to do."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        full = isinstance(error, OSError) and error.errno in FULL
        full = full or any(f"os error {number}" in str(error) for number in FULL)
        if not full:
            raise
        kept = all_in(folder / "checkpoints")
        last = f"the last good checkpoint is {kept[-1]}" if kept else "there was no checkpoint yet"
        free = shutil.disk_usage(folder).free / 2**30
        raise TrainingError(
            f"cannot write into {folder}: the disk or quota is full ({free:.2f} GiB free). Nothing is lost: {last}. "
            "Make room (or lower --keep), then go on with --resume"
        ) from error
