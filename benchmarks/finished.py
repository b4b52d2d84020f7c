"""What is saved where finished work, and work that has not begun, is not paid for.

    python benchmarks/finished.py [--model FOLDER] [--device cuda] [--quick]

Canvases larger than the network's window, and batches: each is run twice, by a schedule that says which answers it
needs and by the same one that does not. Pictures are the same (the largest difference is shown); windows and seconds
are not.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

from asyncpatch import fields
from asyncpatch.adaptive import schedule_from
from asyncpatch.evaluation import Counted
from asyncpatch.models.uncertainty import UncertaintyHead
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.process import Process
from asyncpatch.protocols import Schedule
from asyncpatch.sampling import generators, sample
from asyncpatch.schedules import autoregressive, inpainting
from asyncpatch.shipped import shipped_model
from asyncpatch.steps import ddim
from asyncpatch.windows import Windows


class Silent:
    """A schedule that does not say what it needs."""

    falls = True

    def __init__(self, schedule: Schedule) -> None:
        self.start, self.ask, self.next = schedule.start, schedule.ask, schedule.next


def squares(side: int, count: int) -> Tensor:
    """Holes of growing size in a batch of pictures, [count, 1, side, side]."""
    hole = torch.zeros(count, 1, side, side)
    for k in range(count):
        wide = side * (k + 1) // (2 * count)
        hole[k, :, 8 : 8 + wide, 8 : 8 + wide] = 1.0
    return hole


def runs(window: int, process: Process, quick: bool, device: torch.device) -> dict[str, tuple[Tensor, Schedule]]:
    """Canvas and schedule, by name."""
    side, steps = (2 * window, 1) if quick else (3 * window, 4)
    whole = torch.ones(1, 1, side, side, device=device)
    hole, batch = torch.zeros_like(whole), squares(2 * window, 4).to(device)
    hole[..., 8 : 8 + window // 2, 8 : 8 + window // 2] = 1.0
    order = fields.raster_order(side, side, window).to(device)
    patches = int(order.max()) + 1

    def closed(name: str, start: Tensor, calls: int) -> Schedule:
        make = schedule_from(name)
        assert make is not None
        return make(process, start, calls)

    return {
        f"raster, {side}x{side}, {patches} patches of {steps} steps": (whole, autoregressive(order, steps)),
        f"surest patch next, {side}x{side}, {8 * steps} calls": (whole, closed("sequential", whole, 8 * steps)),
        f"surest patches first (dual), {side}x{side}, {8 * steps} calls": (whole, closed("dual", whole, 8 * steps)),
        f"sure patches first (paced:3), {side}x{side}, {8 * steps} calls": (whole, closed("paced:3", whole, 8 * steps)),
        f"hole of {window // 2}x{window // 2} in {side}x{side}, {4 * steps} calls": (hole, inpainting(hole, 4 * steps)),
        f"4 holes of growing size in {2 * window}x{2 * window}, surest patch next, {8 * steps} calls": (
            batch, closed("sequential", batch, 8 * steps)
        ),
    }  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument(
        "--model", type=Path, help="default: the shipped one; without a head, an untrained one is used"
    )
    options.add_argument("--device", default="auto")
    options.add_argument("--quick", action="store_true")
    given = options.parse_args()
    pipeline = AsyncPatchPipeline.from_pretrained(given.model or shipped_model())
    if pipeline.uncertainty is None:
        pipeline.register_modules(uncertainty=UncertaintyHead.beside(pipeline.unet))
    model, device = pipeline.prepare(given.device).model, pipeline.unet.device
    print(f"{pipeline.where()}, torch {torch.__version__}, {torch.get_num_threads()} threads\n")
    print(
        "| run | windows asked | of all | seconds | of all | largest difference |\n|---|---|---|---|---|---|",
        flush=True,
    )
    for name, (start, schedule) in runs(model.resolution, model.process, given.quick, device).items():
        made, windows, seconds = [], [], []
        for how in (schedule, Silent(schedule)):
            counted = Counted(model.doubting)
            z = torch.randn(len(start), 3, *start.shape[2:], generator=torch.Generator().manual_seed(0)).to(device)
            began = time.perf_counter()
            filled = sample(Windows(counted, model.resolution), how, z, step=ddim(model.process),
                            generator=generators(range(len(z))))  # fmt: skip
            made.append(filled.cpu())
            seconds.append(time.perf_counter() - began)
            windows.append(counted.asked)
        apart = float((made[0] - made[1]).abs().max())
        print(f"| {name} | {windows[0]:,} | {windows[0] / windows[1]:.2f} | {seconds[0]:.1f} | "
              f"{seconds[0] / seconds[1]:.2f} | {apart:.3f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
