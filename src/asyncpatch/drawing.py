"""Pictures of pictures, of time fields and of schedules, as PIL images."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from asyncpatch import checks
from asyncpatch.schedules import OpenLoop

_PAPER = "#d8d8d8"
_HEAT = ((0, 0, 4), (60, 15, 110), (140, 41, 129), (222, 73, 104), (254, 159, 109), (252, 253, 191))


def picture(x: Tensor, scale: int = 1) -> Image.Image:
    """A clean picture [C, H, W] in [-1, 1], one or three channels, enlarged ``scale`` times without smoothing."""
    if x.dim() != 3 or x.shape[0] not in (1, 3):
        raise ValueError(f"x must be one picture [C, H, W] with one or three channels, got {checks.shape_of(x)}")
    levels = ((x.detach().float().cpu().clamp(-1, 1) + 1) * 127.5).round().byte()
    array = levels.permute(1, 2, 0).squeeze(-1).contiguous().numpy()
    return Image.fromarray(array).resize((x.shape[2] * scale, x.shape[1] * scale), Image.Resampling.NEAREST)


def time_field(t: Tensor, scale: int = 1) -> Image.Image:
    """A time field [H, W]: black is noise (t = 1), white is clean (t = 0), as in the paper's figure 1."""
    if t.dim() != 2:
        raise ValueError(f"t must be one time field [H, W], got {checks.shape_of(t)}")
    return picture(1.0 - 2.0 * t[None], scale)


def heat(values: Tensor, low: float, high: float, scale: int = 1) -> Image.Image:
    """A field of numbers [H, W] in colours from dark (``low``) to bright (``high``)."""
    if values.dim() != 2:
        raise ValueError(f"values must be one field [H, W], got {checks.shape_of(values)}")
    place = ((values.float().cpu() - low) / max(high - low, 1e-12)).clamp(0.0, 1.0) * (len(_HEAT) - 1)
    colours = torch.tensor(_HEAT).float() / 127.5 - 1.0
    before = place.floor().long().clamp(max=len(_HEAT) - 2)
    mixed = torch.lerp(colours[before], colours[before + 1], (place - before)[..., None])
    return picture(mixed.permute(2, 0, 1), scale)


def _label(text: str, width: int, height: int) -> Image.Image:
    """Black text on the colour of a sheet."""
    image = Image.new("RGB", (width, height), _PAPER)
    ImageDraw.Draw(image).multiline_text((4, height // 2), text, "black", ImageFont.load_default(13), anchor="lm")
    return image


def sheet(rows: Sequence[Sequence[Image.Image]], *, names: Sequence[str] = (), gap: int = 4) -> Image.Image:
    """Images in rows on one sheet, each at the left top of its cell; ``names``, one per row, stand before them."""
    if names:
        heights = [max(image.height for image in row) for row in rows]
        rows = [[_label(name, 112, height), *row] for name, height, row in zip(names, heights, rows, strict=True)]
    widths = [max(image.width for image in column) for column in zip(*rows, strict=True)]
    heights = [max(image.height for image in row) for row in rows]
    page = Image.new("RGB", (sum(widths) + gap * (len(widths) + 1), sum(heights) + gap * (len(heights) + 1)), _PAPER)
    y = gap
    for row, height in zip(rows, heights, strict=True):
        x = gap
        for image, width in zip(row, widths, strict=True):
            page.paste(image, (x, y))
            x += width + gap
        y += height + gap
    return page


def strip(schedule: OpenLoop, height: int = 64, width: int = 64, *, frames: int = 9, scale: int = 1) -> Image.Image:
    """A schedule as a strip of its time fields, from u = 0 to u = 1 (the paper's figure 1)."""
    checks.at_least("frames", frames, 2)
    canvas = torch.empty(1, 1, height, width)
    schedule = schedule.to("cpu")
    return sheet([[time_field(schedule.at(k / (frames - 1), canvas)[0, 0], scale) for k in range(frames)]])
