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
from collections.abc import Iterator
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
        remove(final)
        temporary.rename(final)
        _flush(final.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove(folder: Path) -> None:
    """Delete a folder such that no half of it is ever found under its name."""
    if folder.exists():
        doomed = folder.with_name(f".deleting-{folder.name}")
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
        shutil.rmtree(doomed, ignore_errors=True)


def all_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir())


def step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step-"))


def save(folder: Path, step: int, tensors: dict[str, Tensor], facts: dict[str, Any], keep: int) -> Path:
    """Write the checkpoint of a step and delete all but the newest ``keep``."""
    final = folder / f"step-{step:08d}"
    with whole_or_nothing(final) as temporary:
        save_file({name: value.contiguous() for name, value in tensors.items()}, temporary / "state.safetensors")
        (temporary / "facts.json").write_text(json.dumps({"step": step, **facts}, indent=1))
    for old in all_in(folder)[:-keep]:
        remove(old)
    return final


def load(checkpoint: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors (on the CPU) and facts of a checkpoint."""
    facts = json.loads((checkpoint / "facts.json").read_text())
    with safe_open(checkpoint / "state.safetensors", "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118


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
