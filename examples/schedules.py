"""The paper's figure 1: what can be had from one model by choosing the schedule, each as a strip of its time fields.

python examples/schedules.py [OUT.png]
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import asyncpatch as ap
from asyncpatch import drawing, fields

SIDE = 64


def main(path: Path) -> None:
    y, x = torch.meshgrid(torch.linspace(-1, 1, SIDE), torch.linspace(-1, 1, SIDE), indexing="ij")
    hole = (((x - 0.2) ** 2 + (y + 0.1) ** 2).sqrt() < 0.55).float()[None, None]
    soft = (1.2 - (x**2 + y**2).sqrt()).clamp(0, 1)[None, None]
    heart = (x**2 + (1.1 * -y - 0.9 * x.abs().sqrt() + 0.15) ** 2).sqrt()
    ramp = ((x + 1) / 2)[None, None]
    schedules = {
        "synchronous": ap.synchronous(32),
        "inpainting": ap.inpainting(hole, 32),
        "grey hole": ap.inpainting(soft, 32),
        "outpainting": ap.inpainting((x.abs() > 0.5).float()[None, None], 32),
        "raster order": ap.autoregressive(fields.raster_order(SIDE, SIDE, 8), 16),
        "spiral order": ap.autoregressive(fields.spiral_order(SIDE, SIDE, 8), 16),
        "random order": ap.autoregressive(
            fields.random_order(SIDE, SIDE, 8, generator=torch.Generator().manual_seed(0)), 16
        ),
        "painted order": ap.autoregressive(fields.painted_order(heart, 12), 16),
        "left to right,\noverlapping": ap.from_map(torch.ones(1, 1, 1, 1), 0.6 * ramp, 0.6 * ramp + 0.4, 32),
    }
    strips = [[drawing.strip(schedule, SIDE, SIDE)] for schedule in schedules.values()]
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.sheet(strips, names=list(schedules), gap=0).save(path)
    print(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("out") / "schedules.png")
