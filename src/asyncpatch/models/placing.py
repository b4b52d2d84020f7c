"""Where a network runs, and in which precision: what the machine is best at."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch.nn import functional

from asyncpatch.models.unet import UNet

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def choose_device(name: str = "auto") -> torch.device:
    """A GPU if there is one, or the one that was asked for."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, found in there.items() if found))
    try:
        device = torch.device(name)
        found = there[device.type]
    except (RuntimeError, KeyError):
        raise ValueError(f"device must be auto, cuda, mps or cpu, got {name!r}") from None
    if not found:
        raise ValueError(f"device {name} was asked for, but there is none here; use cpu, or auto")
    return device


def choose_precision(device: torch.device, name: str = "auto") -> torch.dtype:
    """bf16 where it is quicker, else fp32; or the one that was asked for."""
    if name != "auto":
        if name not in PRECISIONS:
            raise ValueError(f"precision must be auto, {', '.join(PRECISIONS)}; got {name!r}")
        return PRECISIONS[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float32
    if device.type == "cpu":
        full, half = (_seconds(dtype) for dtype in (torch.float32, torch.bfloat16))
        return torch.bfloat16 if half < 0.8 * full else torch.float32
    return torch.float32


def place(net: UNet, device: torch.device, dtype: torch.dtype) -> UNet:
    """The network there, ready to be asked."""
    if device.type == "cpu" and torch.get_num_threads() > cores():  # threads that share a core wait for each other
        torch.set_num_threads(cores())
    return net.eval().requires_grad_(False).to(device=device, dtype=dtype, memory_format=torch.channels_last)


def cores() -> int:
    """CPU cores that this process may use: in a container often fewer than the machine has."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(count, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max": no limit
        return count


def _seconds(dtype: torch.dtype) -> float:
    """The quickest of a few convolutions such as the network is made of."""
    x = torch.ones(4, 128, 32, 32, dtype=dtype).to(memory_format=torch.channels_last)
    weight = torch.ones(128, 128, 3, 3, dtype=dtype).to(memory_format=torch.channels_last)
    best = float("inf")
    with torch.inference_mode():
        for _ in range(4):  # the first one prepares
            start = time.perf_counter()
            functional.silu(functional.conv2d(x, weight, padding=1))
            best = min(best, time.perf_counter() - start)
    return best
