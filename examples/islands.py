"""One denoiser, many schedules: islands drawn, completed and grown by the exact denoiser of a Gaussian field.

    python examples/islands.py [OUT.png]

The field's height is coloured like a map. Every row is the same denoiser in the same sampling loop; only the schedule
differs.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from PIL import Image

import asyncpatch as ap
from asyncpatch import drawing, fields, oracle

SIDE, SCALE, STEPS, STEPS_PER_GROUP = 24, 5, 32, 16
COLOURS = {
    -1.3: "#123a66",
    -0.3: "#2f7fb5",
    -0.06: "#8cc6d8",
    0.0: "#e9dba6",
    0.12: "#7fae58",
    0.6: "#3f7340",
    1.3: "#f4f4f0",
}


def colour(height: torch.Tensor) -> torch.Tensor:
    """Heights [1, H, W] to a map-like picture [3, H, W] in [-1, 1]."""
    stops = torch.tensor(list(COLOURS))
    table = torch.tensor([[int(code[i : i + 2], 16) for i in (1, 3, 5)] for code in COLOURS.values()]) / 127.5 - 1
    h = height[0].clamp(stops[0], stops[-1])
    upper = torch.searchsorted(stops, h).clamp(1, len(stops) - 1)
    share = (h - stops[upper - 1]) / (stops[upper] - stops[upper - 1])
    return torch.lerp(table[upper - 1], table[upper], share[..., None]).permute(2, 0, 1)


def main(path: Path) -> None:
    began = time.monotonic()
    process = ap.RectifiedFlow()
    denoiser = oracle.gaussian_field(process, SIDE, SIDE, length=3.0)  # a trained network would stand here
    step = ap.heun(process)
    calls = 0

    def counted(z: torch.Tensor, t: torch.Tensor, cond: ap.Cond | None = None) -> ap.Denoised:
        nonlocal calls
        calls += 1
        return denoiser(z, t, cond)

    def show(schedule: ap.Schedule, x: torch.Tensor) -> list[Image.Image]:
        """Four seeds: start from the picture x, noised as the schedule wants it, and draw what comes out."""
        generators = ap.generators(range(4))
        x = x.expand(4, -1, -1, -1)
        z = process.diffuse(x, schedule.start(x), ap.draw_noise(x, generators))
        return [drawing.picture(colour(out), SCALE) for out in ap.sample(counted, schedule, z, step=step)]

    def times(schedule: ap.schedules.OpenLoop, u: float) -> Image.Image:
        return drawing.time_field(schedule.at(u, blank)[0, 0], SCALE)

    blank = torch.zeros(1, 1, SIDE, SIDE)
    rows = {}
    for name, schedule in {
        "synchronous": ap.synchronous(STEPS),
        "raster order": ap.autoregressive(fields.raster_order(SIDE, SIDE, 8), STEPS_PER_GROUP),
        "spiral order": ap.autoregressive(fields.spiral_order(SIDE, SIDE, 8), STEPS_PER_GROUP),
    }.items():
        rows[f"generate\n{name}"] = [times(schedule, 0.0), times(schedule, 0.5), *show(schedule, blank)]

    known = denoiser.draw(1, generator=torch.Generator().manual_seed(3))
    middle, right = torch.zeros_like(blank), torch.zeros_like(blank)
    middle[..., 6:18, 6:18] = 1
    right[..., 9:] = 1
    for name, hole in {"inpaint": middle, "outpaint": right, "vary\n(grey hole)": 0.5 * middle}.items():
        schedule = ap.inpainting(hole, STEPS)
        given = torch.where(hole[0] == 1, torch.tensor(0.75), colour(known[0]))
        rows[name] = [times(schedule, 0.0), drawing.picture(given, SCALE), *show(schedule, known)]

    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.sheet(list(rows.values()), names=list(rows)).save(path)
    print(f"{path}: 24 pictures in {calls} calls of an exact denoiser, {time.monotonic() - began:.1f} s")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("out") / "islands.png")
