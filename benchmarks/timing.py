"""Timing of several calls against each other, on a machine that others may be using too."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch


def medians(calls: Mapping[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, float]:
    """Median seconds of each call. They take turns, so that a slow spell hits all of them; two rounds warm up."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 2):
        for name, call in calls.items():
            if device.type == "cuda":
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                begin.record()
                call()
                end.record()
                torch.cuda.synchronize()
                taken[name].append(begin.elapsed_time(end) / 1000)
            else:
                began = time.perf_counter()
                call()
                taken[name].append(time.perf_counter() - began)
    return {name: sorted(values[2:])[rounds // 2] for name, values in taken.items()}
