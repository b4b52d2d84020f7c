"""Where a network runs, and in which precision: what the machine is best at."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from asyncpatch.machine import cores

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
    if not found or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
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
    if device.type == "cpu" and _speed_of_bf16() > 1.25:
        return torch.bfloat16
    return torch.float32


def place(net: Any, device: torch.device, dtype: torch.dtype) -> None:
    """A network there, ready to be asked."""
    if device.type == "cpu" and torch.get_num_threads() > cores():  # threads that share a core wait for each other
        torch.set_num_threads(cores())
    net.eval().requires_grad_(False)
    # not ModelMixin's own: of a network without parts that must stay in float32 it warns that there are none
    nn.Module.to(net, device=device, dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]


def _speed_of_bf16() -> float:
    """How much quicker a core of this CPU is at a convolution such as the network is made of, in bf16 than in fp32. (By
    one: where others work too, several wait for each other, and the times say more about that.)"""
    best = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            for _ in range(6):  # taking turns, so that a slow spell hits both; the first round prepares
                for dtype in best:
                    x = torch.ones(2, 128, 32, 32, dtype=dtype).to(memory_format=torch.channels_last)
                    weight = torch.ones(128, 128, 3, 3, dtype=dtype).to(memory_format=torch.channels_last)
                    start = time.perf_counter()
                    functional.silu(functional.conv2d(x, weight, padding=1))
                    best[dtype] = min(best[dtype], time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return best[torch.float32] / best[torch.bfloat16]
