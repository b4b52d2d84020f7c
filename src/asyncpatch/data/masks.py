"""Holes to evaluate inpainting with: the kinds of which figures are published, each from its seed.

``square`` is one square of half the picture's side, anywhere in it; ``extrema`` is everything but such a square.
``thin``, ``medium`` and ``wide`` are LaMa's brush strokes (its "thick" is called wide here, as in the paper): broken
lines with round ends and, for medium and wide, now and then boxes instead.

Everything is stated in pixels of a picture whose shorter side is 256, and drawn to the scale of the picture at hand.
The dice do not depend on that scale: one seed gives the same drawing at every size, only finer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw
from torch import Tensor

from asyncpatch import checks

KINDS = ("extrema", "square", "thin", "medium", "wide")

UNIT = 256
"""The shorter side, in pixels, at which lengths are stated."""


@dataclass(frozen=True, kw_only=True)
class Boxes:
    """Upright boxes: how many, their sides, how far they stay from the rim (pairs: least and most, both included)."""

    chance: float
    times: tuple[int, int]
    side: tuple[int, int]
    margin: int


@dataclass(frozen=True, kw_only=True)
class Strokes:
    """Strokes of one to five segments: how many, how wide a segment, how long; and with which chance boxes instead."""

    times: tuple[int, int]
    width: tuple[int, int]
    length: tuple[int, int]
    boxes: Boxes | None = None


STROKES = {  # LaMa weighs boxes 0.3 against 1 for strokes; its rejection of holes above half the picture is left out
    "thin": Strokes(times=(4, 50), width=(5, 14), length=(10, 49)),
    "medium": Strokes(
        times=(4, 5),
        width=(5, 54),
        length=(10, 109),
        boxes=Boxes(chance=0.3 / 1.3, times=(1, 5), side=(10, 50), margin=0),
    ),
    "wide": Strokes(
        times=(1, 5),
        width=(5, 104),
        length=(10, 209),
        boxes=Boxes(chance=0.3 / 1.3, times=(1, 3), side=(30, 150), margin=10),
    ),
}


def holes(kind: str, seeds: Sequence[int], height: int, width: int) -> Tensor:
    """Holes [B, 1, H, W] of exactly 0 and 1 (1: to be generated), float32 on the CPU, one for each of ``seeds``.

    ``kind`` is one of ``KINDS``. A hole depends on its own seed alone, whatever else is in the batch, and is the same
    on every machine. The same seed gives ``extrema`` the window that is the hole of ``square``.
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}; got {kind!r}")
    if isinstance(seeds, str) or not isinstance(seeds, Sequence):
        raise ValueError(f"seeds must be a sequence of integers, one for each hole; got {checks.shape_of(seeds)}")
    for seed in seeds:
        checks.at_least("each of seeds", seed, 0)  # Random takes -1 and 1 for the same seed
    checks.at_least("height", height, 2)  # the square of half a single pixel would be nothing
    checks.at_least("width", width, 2)
    drawn = np.zeros((len(seeds), 1, height, width), np.float32)
    for number, seed in enumerate(seeds):
        dice = Random(int(seed))
        if kind in STROKES:
            drawn[number, 0] = _strokes_or_boxes(STROKES[kind], dice, height, width)
        else:
            drawn[number, 0] = _square(dice, height, width)
            if kind == "extrema":
                drawn[number, 0] = 1.0 - drawn[number, 0]
    return torch.from_numpy(drawn)


def _below(dice: Random, count: int) -> int:
    """One of 0, ..., count - 1. (Of Random's methods only ``random`` is promised to stay the same.)"""
    return int(dice.random() * count)


def _between(dice: Random, ends: tuple[int, int]) -> int:
    return ends[0] + _below(dice, ends[1] - ends[0] + 1)


def _square(dice: Random, height: int, width: int) -> NDArray[np.uint8]:
    side = min(height, width) // 2
    top, left = _below(dice, height - side + 1), _below(dice, width - side + 1)
    hole = np.zeros((height, width), np.uint8)
    hole[top : top + side, left : left + side] = 1
    return hole


def _strokes_or_boxes(kind: Strokes, dice: Random, height: int, width: int) -> NDArray[np.uint8]:
    if kind.boxes is not None and dice.random() < kind.boxes.chance:
        return _boxes(kind.boxes, dice, height, width)
    return _strokes(kind, dice, height, width)


def _boxes(kind: Boxes, dice: Random, height: int, width: int) -> NDArray[np.uint8]:
    scale = min(height, width) / UNIT
    margin = round(kind.margin * scale)
    hole = np.zeros((height, width), np.uint8)
    for _ in range(_between(dice, kind.times)):
        across, down = (max(1, round(_between(dice, kind.side) * scale)) for _ in range(2))
        left = margin + _below(dice, width - 2 * margin - across + 1)
        top = margin + _below(dice, height - 2 * margin - down + 1)
        hole[top : top + down, left : left + across] = 1
    return hole


def _strokes(kind: Strokes, dice: Random, height: int, width: int) -> NDArray[np.uint8]:
    scale = min(height, width) / UNIT
    image = Image.new("L", (width, height))
    draw = ImageDraw.Draw(image)
    for stroke in range(_between(dice, kind.times)):
        sense = 1 if stroke % 2 else -1  # LaMa's 2 pi - angle: strokes lean to the left and to the right in turn
        x, y = dice.random() * width, dice.random() * height
        for _ in range(_between(dice, (1, 5))):
            angle = 0.01 + _below(dice, 4)
            length = _between(dice, kind.length) * scale
            brush = max(1, round(_between(dice, kind.width) * scale))
            # a stroke that would leave the picture goes on along its rim, as LaMa's do
            end_x = min(max(x + sense * length * math.sin(angle), 0.0), width)
            end_y = min(max(y + length * math.cos(angle), 0.0), height)
            _segment(draw, (int(x), int(y)), (int(end_x), int(end_y)), brush)
            x, y = end_x, end_y
    return np.asarray(image)


def _segment(draw: ImageDraw.ImageDraw, start: tuple[int, int], end: tuple[int, int], brush: int) -> None:
    """A line ``brush`` pixels wide with round ends. (Pillow's own lines end square, and leave gaps at the bends.)"""
    draw.line([start, end], fill=1, width=brush)
    for x, y in (start, end):
        left, top = x - (brush - 1) // 2, y - (brush - 1) // 2
        draw.ellipse((left, top, left + brush - 1, top + brush - 1), fill=1)
