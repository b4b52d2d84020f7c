"""Filling holes in pictures of any size with a denoiser of small ones.

A picture is cut to a box around each hole (``boxes``), with as much context as the hole is large, so that the rest of
a large photo costs nothing. A box that does not fit into the denoiser's window is filled from coarse to fine:

    (1)  reduced by 2^L, where it fits, the hole is filled from pure noise: there the window sees all of it;
    (2)  at each finer scale that filling, enlarged, is noised to an intermediate time and denoised again, in
         overlapping windows that are denoised together.

(2) is what a time per pixel is made for: known pixels stand at 0, the hole starts at ``refine``, and what is asked of
the network is only the detail that the coarser scale could not show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from asyncpatch import checks
from asyncpatch.process import Process
from asyncpatch.protocols import Cond, Denoiser, Step, Visit
from asyncpatch.sampling import draw_noise, generators, sample
from asyncpatch.schedules import inpainting
from asyncpatch.windows import Windows

Prepare = Callable[[Denoiser, Tensor], Denoiser]
"""What is put around the denoiser for a canvas and its hole [B, 1, H, W], such as guidance."""


class Box(NamedTuple):
    """A part of a picture."""

    top: int
    left: int
    bottom: int
    right: int

    def of(self, field: Tensor) -> Tensor:
        """That part of a field [..., H, W], a view."""
        return field[..., self.top : self.bottom, self.left : self.right]


@dataclass(frozen=True, kw_only=True)
class Completion:
    """How holes are filled.

    ``window`` is the side that the denoiser was trained at, ``steps`` how often it is asked where it starts from
    noise, ``refine`` the time that enlarged fillings start from (0: leave them as they are), ``batch`` how many
    windows are asked at a time.
    """

    denoiser: Denoiser
    process: Process
    step: Step
    window: int = 64
    steps: int = 32
    refine: float = 0.5
    batch: int = 64
    prepare: Prepare | None = None
    callback: Callable[[Visit], object] | None = None

    def __post_init__(self) -> None:
        checks.at_least("window", self.window, 8)
        checks.at_least("steps", self.steps)
        checks.fraction("refine", self.refine)

    @torch.no_grad()
    def __call__(self, x: Tensor, hole: Tensor, seeds: list[int], label: int | None = None) -> Tensor:
        """Fillings [B, C, H, W] of the picture x [1, C, H, W], one per seed; pixels outside the hole are exactly x.

        ``hole`` [1, 1, H, W] is 1 where something is to be generated; between 0 and 1 it is the time that the pixel
        starts from, as it is.
        """
        checks.canvas("x", x)
        checks.times("hole", hole, x, wait=True)
        if len(x) != 1:
            raise ValueError(f"x must be one picture [1, C, H, W], got {checks.shape_of(x)}")
        hole = hole.float().expand(1, 1, *x.shape[2:])
        out = x.repeat(len(seeds), 1, 1, 1)
        for box in boxes(hole[0, 0], self.window):
            part = self._fill(box.of(x), box.of(hole), seeds, label)
            box.of(out).copy_(torch.where(box.of(hole) > 0, part, box.of(out)))
        return out

    def _fill(self, x: Tensor, hole: Tensor, seeds: list[int], label: int | None) -> Tensor:
        height, width = x.shape[2:]
        scales = 0
        while max(height, width) > self.window * 2**scales and bool((hole >= 1).any()):
            scales += 1
        unit = 2**scales
        padding = (0, -width % unit, 0, -height % unit)
        x, hole = (functional.pad(each, padding, mode="replicate") for each in (x, hole))
        cond = None if label is None else Cond(label=torch.full((len(seeds),), label, device=x.device))
        random = generators(seeds)
        filled: Tensor | None = None
        for scale in reversed(range(scales + 1)):
            now, now_hole = reduced(x, hole, 2**scale)
            start = now_hole
            if filled is not None:
                larger = functional.interpolate(filled, scale_factor=2, mode="bicubic", align_corners=False)
                now = torch.where(now_hole > self.refine, larger.clamp(-1, 1), now)
                start = now_hole.clamp(max=self.refine)
            now = now.expand(len(seeds), -1, -1, -1)
            filled = now if self.refine == 0 and filled is not None else self._denoise(now, start, random, cond)
        assert filled is not None
        return filled[..., :height, :width]

    def _denoise(self, x: Tensor, start: Tensor, random: list[torch.Generator], cond: Cond | None) -> Tensor:
        """x with its pixels at ``start`` noised to that time and brought back."""
        schedule = inpainting(start, max(1, round(self.steps * float(start.max()))))
        denoiser: Denoiser = self.denoiser
        if max(x.shape[2:]) > self.window:
            denoiser = Windows(denoiser, self.window, hole=start, batch=self.batch)
        if self.prepare is not None:
            denoiser = self.prepare(denoiser, start.expand(len(x), -1, -1, -1))
        z = self.process.diffuse(x, schedule.start(x), draw_noise(x, random))
        return sample(denoiser, schedule, z, step=self.step, cond=cond, generator=random, callback=self.callback)


def reduced(x: Tensor, hole: Tensor, factor: int) -> tuple[Tensor, Tensor]:
    """Picture and hole at 1/factor: means over what is known; a pixel is as much a hole as the most of its parts."""
    if factor == 1:
        return x, hole
    known = (hole < 1).float()
    share = functional.avg_pool2d(known, factor)
    mean = functional.avg_pool2d(x * known, factor) / torch.where(share > 0, share, 1.0)
    return mean, functional.max_pool2d(hole, factor)


def boxes(hole: Tensor, window: int) -> list[Box]:
    """Boxes around the holes of a field [H, W]: with as much context on each side as half the hole is wide, and no
    smaller than a window where the picture is not. Holes whose boxes would meet share one."""
    height, width = hole.shape
    found = [_around(box, window, height, width) for box in _parts(hole > 0, max(8, window // 4))]
    merged: list[Box] = []
    while found:
        box = found.pop()
        meets = [other for other in found + merged if _meet(box, other)]
        if meets:
            found = [other for other in found if other not in meets]
            merged = [other for other in merged if other not in meets]
            joined = [box, *meets]
            found.append(
                Box(
                    min(b.top for b in joined),
                    min(b.left for b in joined),
                    max(b.bottom for b in joined),
                    max(b.right for b in joined),
                )
            )
        else:
            merged.append(box)
    return sorted(merged)


def _meet(a: Box, b: Box) -> bool:
    return a.top < b.bottom and b.top < a.bottom and a.left < b.right and b.left < a.right


def _around(box: Box, window: int, height: int, width: int) -> Box:
    rows = _widened(box.top, box.bottom, window, height)
    columns = _widened(box.left, box.right, window, width)
    return Box(rows[0], columns[0], rows[1], columns[1])


def _widened(first: int, last: int, window: int, length: int) -> tuple[int, int]:
    """A span with context on both sides, at least a window long, moved inwards where it would leave the picture."""
    context = max(window // 4, (last - first) // 2)
    span = min(max(last - first + 2 * context, window), length)
    start = min(max((first + last - span) // 2, 0), length - span)
    return start, start + span


def _parts(where: Tensor, cell: int) -> list[Box]:
    """Bounding boxes of the parts of a hole that are more than about a ``cell`` apart."""
    height, width = where.shape
    coarse = functional.max_pool2d(where.float()[None, None], cell, ceil_mode=True)[0, 0] > 0
    todo = {(int(i), int(j)) for i, j in coarse.nonzero()}
    found = []
    while todo:
        group, edge = set(), [todo.pop()]
        while edge:
            i, j = edge.pop()
            group.add((i, j))
            near = {(i + di, j + dj) for di in (-1, 0, 1) for dj in (-1, 0, 1)} & todo
            todo -= near
            edge += near
        top, left = min(i for i, _ in group) * cell, min(j for _, j in group) * cell
        bottom, right = (max(i for i, _ in group) + 1) * cell, (max(j for _, j in group) + 1) * cell
        part = where[top : min(bottom, height), left : min(right, width)]
        rows, columns = part.any(1).nonzero().flatten(), part.any(0).nonzero().flatten()
        found.append(
            Box(top + int(rows[0]), left + int(columns[0]), top + int(rows[-1]) + 1, left + int(columns[-1]) + 1)
        )
    return found
