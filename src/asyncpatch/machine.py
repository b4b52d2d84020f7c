"""What this process may use of its machine, and where it keeps things there."""

from __future__ import annotations

import os
from pathlib import Path


def cores() -> int:
    """CPU cores that this process may use: in a container often fewer than the machine has."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max": no limit
        return count


def cache_folder() -> Path:
    """Where decoded pictures and downloads are kept: $ASYNCPATCH_CACHE, or the user's cache folder."""
    if own := os.environ.get("ASYNCPATCH_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "asyncpatch"


def is_out_of_memory(error: RuntimeError) -> bool:
    """CUDA has an error of its own for it; CPU and MPS only say so (oneDNN, by what it could not do without)."""
    import torch  # not needed to say what the options are

    return isinstance(error, torch.OutOfMemoryError) or any(
        said in str(error)
        for said in ("can't allocate memory", "not enough memory", "out of memory", "could not create a primitive")
    )
