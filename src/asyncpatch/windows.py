"""A denoiser of small pictures on a canvas of any size: asked in overlapping windows, whose answers are blended.

    (1)  x-hat_i = sum_w b_w(i) x-hat_w(i) / sum_w b_w(i)        over the windows w that hold token i

The bump b falls towards the rim of a window, where its answer knows least. All windows are asked at every visit, so
that they are denoised together and agree; those in which nothing is ever to be generated are left out, and there the
canvas itself is the answer. So the cost is that of the hole, not of the canvas.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from asyncpatch import checks
from asyncpatch.protocols import Cond, Denoised, Denoiser, check_answer


def starts(length: int, size: int, stride: int, *, wrap: bool = False) -> list[int]:
    """Where windows of ``size`` begin along a side: at most ``stride`` apart, evenly, up to both ends.

    With ``wrap`` they go round, and the last meets the first.
    """
    if size >= length and not wrap:
        return [0]
    span = length if wrap else length - size
    count = -(-span // stride)
    return [k * span // count for k in range(count if wrap else count + 1)]


def bump(size: int, device: torch.device | str = "cpu") -> Tensor:
    """Weights along a side of a window: largest in its middle, falling evenly, never 0."""
    k = torch.arange(size, device=device)
    return torch.minimum(k + 1, size - k).float()


@dataclass(frozen=True)
class Windows:
    """``denoiser`` on windows of ``size`` pixels, at most ``stride`` apart (half a window by default), equation (1).

    ``hole`` [1 or B, 1, H, W] is above 0 where anything will be generated; without it every window is asked. ``wrap``
    joins opposite edges, for pictures that can be tiled. ``batch`` is how many windows are asked at a time.
    """

    denoiser: Denoiser
    size: int = 64
    stride: int | None = None
    hole: Tensor | None = None
    wrap: bool = False
    batch: int = 64

    def __post_init__(self) -> None:
        checks.at_least("size", self.size, 2)
        checks.at_least("batch", self.batch)
        if self.stride is not None:
            checks.at_least("stride", self.stride)
            if self.stride > self.size:
                raise ValueError(f"stride must be at most size, {self.size}, or gaps remain; got {self.stride}")
        if self.hole is not None:
            checks.field("hole", self.hole)

    @cached_property
    def _active(self) -> Tensor | None:
        """Where any picture has a hole, [H, W] on the CPU: looked at once, not at every visit."""
        return None if self.hole is None else (self.hole > 0).any(0)[0].cpu()

    def places(self, height: int, width: int) -> list[tuple[Tensor, Tensor]]:
        """Rows and columns of every window that is asked."""
        rows, columns = (self._spans(length) for length in (height, width))
        active = self._active
        if active is not None and active.shape != (height, width):
            raise ValueError(f"hole must have the canvas's size, {height}x{width}, got {list(active.shape)}")
        return [(r, c) for r in rows for c in columns if active is None or bool(active[r][:, c].any())]

    def _spans(self, length: int) -> list[Tensor]:
        size = min(self.size, length)
        stride = self.stride or -(-self.size // 2)
        return [(torch.arange(size) + k) % length for k in starts(length, size, stride, wrap=self.wrap)]

    def __call__(self, z: Tensor, t: Tensor, cond: Cond | None = None, /) -> Denoised:
        height, width = z.shape[2:]
        places = [(r.to(z.device), c.to(z.device)) for r, c in self.places(height, width)]
        if not places:
            return Denoised(z)
        t = t.expand(len(z), 1, height, width)
        weight = bump(len(places[0][0]), z.device)[:, None] * bump(len(places[0][1]), z.device)
        above, below = torch.zeros_like(z), torch.zeros_like(t)
        spread: Tensor | None = None
        at_once = max(1, self.batch // len(z))
        for k in range(0, len(places), at_once):
            some = places[k : k + at_once]
            cut_z = torch.cat([_cut(z, place) for place in some])
            cut_t = torch.cat([_cut(t, place) for place in some])
            out = check_answer(self.denoiser(cut_z, cut_t, _cut_cond(cond, some)), cut_z)
            for place, x in zip(some, torch.split(out.x.to(z.dtype), len(z)), strict=True):
                _add(above, place, weight * x)
                _add(below, place, weight)
            if out.logvar is not None:
                spread = torch.zeros_like(t) if spread is None else spread
                for place, logvar in zip(some, torch.split(out.logvar.to(t.dtype), len(z)), strict=True):
                    _add(spread, place, weight * logvar)
        seen = below > 0
        x = torch.where(seen, above / torch.where(seen, below, 1.0), z)
        return Denoised(x, None if spread is None else spread / torch.where(seen, below, 1.0))


def _cut(field: Tensor, place: tuple[Tensor, Tensor]) -> Tensor:
    rows, columns = place
    return field.index_select(2, rows).index_select(3, columns)


def _add(field: Tensor, place: tuple[Tensor, Tensor], value: Tensor) -> None:
    rows, columns = place
    field[:, :, rows[:, None], columns] += value


def _cut_cond(cond: Cond | None, places: list[tuple[Tensor, Tensor]]) -> Cond | None:
    """What the question says besides, for every window: fields are cut like the canvas, a label is the same for all."""
    if cond is None:
        return None
    return Cond._make(
        None if each is None
        else torch.cat([_cut(each, place) for place in places]) if each.dim() == 4
        else torch.cat([each] * len(places))
        for each in cond
    )  # fmt: skip
