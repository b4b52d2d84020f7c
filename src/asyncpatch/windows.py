"""A denoiser of small pictures on a canvas of any size: asked in overlapping windows, whose answers are blended.

    (1)  x-hat_i = sum_w c_w b_w(i) x-hat_w(i) / sum_w c_w b_w(i)        over the windows w that hold token i
    (2)  c_w     = the mean of 1 - t over the window

The bump b falls towards the rim of a window, where its answer knows least; c is larger for windows that know more. (On
exact Gaussian denoisers c cuts the error against the answer of the whole canvas by half where a hole is larger than a
window, and changes little elsewhere.) All windows are asked at every visit, so that they are denoised together and
agree, but for those in which nothing is ever to be generated, or nothing wanted now (``Cond.wanted``): there the canvas
itself is the answer. So the cost is that of the hole, not of the canvas, and what is finished, or has not begun, costs
nothing. No answer that is wanted changes by that: every window that holds its token is asked.

Windows are asked a number at a time; where memory does not hold that many, half as many from then on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from asyncpatch import checks
from asyncpatch.machine import is_out_of_memory
from asyncpatch.protocols import Cond, Denoised, Denoiser, check_answer

_LEAST_TRUST = 1e-3  # in equation (2), where a window is all noise


def starts(length: int, size: int, stride: int, *, wrap: bool = False) -> list[int]:
    """Where windows of ``size`` begin along a side: at most ``stride`` apart, evenly, up to both ends.

    With ``wrap`` they go round, and the last meets the first.
    """
    if size >= length and not wrap:
        return [0]
    span = length if wrap else length - size
    count = max(-(-span // stride), 2 if wrap else 1)  # going round, a window must see across the seam
    return [k * span // count for k in range(count if wrap else count + 1)]


def bump(size: int, device: torch.device | str = "cpu") -> Tensor:
    """Weights along a side of a window: largest in its middle, falling evenly, never 0."""
    k = torch.arange(size, device=device)
    return torch.minimum(k + 1, size - k).float()


@dataclass(frozen=True)
class Windows:
    """``denoiser`` on windows of ``size`` pixels, at most ``stride`` apart (half a window by default), equation (1).

    ``hole`` [1 or B, 1, H, W] is above 0 where anything will be generated; without it every window is asked. ``wrap``
    joins opposite edges, for pictures that can be tiled. ``batch`` is how many windows are asked at a time, at most.
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
    def _known(self) -> dict[tuple[object, ...], list[Place]]:
        return {}

    def places(self, height: int, width: int, device: torch.device | str = "cpu") -> list[Place]:
        """Every window that is asked for any picture. Looked up once, not at every visit."""
        key = (height, width, str(device))
        if key not in self._known:
            hole = None if self.hole is None else (self.hole[:, 0] > 0).cpu()
            if hole is not None and hole.shape[1:] != (height, width):
                raise ValueError(f"hole must have the canvas's size, {height}x{width}, got {list(hole.shape[1:])}")
            found = []
            for rows in self._spans(height):
                strip = None if hole is None else hole.index_select(1, rows).any(1)
                for columns in self._spans(width):
                    whom = (True,) if strip is None else tuple(strip.index_select(1, columns).any(1).tolist())
                    if any(whom):
                        found.append(Place(rows.to(device), columns.to(device), whom))
            self._known[key] = found
        return self._known[key]

    def asked(self, wanted: Tensor | None = None) -> int:
        """How many windows the denoiser is asked about where answers are wanted, [B, 1, H, W]; without that, wherever
        there is a hole."""
        like = self.hole if wanted is None else wanted
        if like is None:
            raise ValueError("without a hole, how many windows are asked depends on what is wanted")
        height, width = like.shape[2:]
        places = _wanted(self.places(height, width, like.device), wanted)
        return sum(place.whom.count(True) for place in places)

    def _spans(self, length: int) -> list[Tensor]:
        size = min(self.size, length)
        stride = self.stride or -(-self.size // 2)
        return [(torch.arange(size) + k) % length for k in starts(length, size, stride, wrap=self.wrap)]

    def __call__(self, z: Tensor, t: Tensor, cond: Cond | None = None, /) -> Denoised:
        height, width = z.shape[2:]
        places = self.places(height, width, z.device)
        if not places:
            return Denoised(z)
        t = t.expand(len(z), 1, height, width)
        weight = bump(len(places[0].rows), z.device)[:, None] * bump(len(places[0].columns), z.device)
        above, below = torch.zeros_like(z), torch.zeros_like(t)
        spread: Tensor | None = None
        wanted = None if cond is None else cond.wanted
        if wanted is not None:
            checks.field("cond.wanted", wanted, z)
            wanted = wanted.expand_as(t)
        now = _wanted(places, wanted)
        todo = [Piece(place, *run) for place in now for run in place.runs(len(z))]
        while todo:
            some, rest = _first(todo, self.batch)
            cut_z = torch.cat([piece.of(z) for piece in some])
            cut_t = torch.cat([piece.of(t) for piece in some])
            try:
                out: Denoised | None = self.denoiser(cut_z, cut_t, _cut_cond(cond, some))
            except RuntimeError as error:
                if len(cut_z) == 1 or not is_out_of_memory(error):
                    raise
                out = None  # once this block is left, what it held is free
            if out is None:
                object.__setattr__(self, "batch", len(cut_z) // 2)
                if z.device.type == "cuda":
                    torch.cuda.empty_cache()
                continue
            out, todo = check_answer(out, cut_z), rest
            sizes = [piece.last - piece.first for piece in some]
            trust = weight * ((1.0 - cut_t).mean((2, 3), keepdim=True) + _LEAST_TRUST)
            if len(places) == 1:
                trust = torch.ones_like(trust)  # nothing to blend: the answer as it is, to the last bit
            trusted = torch.split(trust, sizes)
            for piece, trust, x in zip(some, trusted, torch.split(out.x.to(z.dtype), sizes), strict=True):
                piece.add(above, trust * x)
                piece.add(below, trust)
            if out.logvar is not None:
                spread = torch.zeros_like(t) if spread is None else spread
                for piece, trust, logvar in zip(some, trusted, torch.split(out.logvar.to(t.dtype), sizes), strict=True):
                    piece.add(spread, trust * logvar)
        seen = below > 0
        x = torch.where(seen, above / torch.where(seen, below, 1.0), z)
        return Denoised(x, None if spread is None else spread / torch.where(seen, below, 1.0))


def _wanted(places: list[Place], wanted: Tensor | None) -> list[Place]:
    """The places in which something is wanted [B, 1, H, W], and by whom. Waits for the device, once."""
    if wanted is None or not places:
        return places
    height, width = len(places[0].rows), len(places[0].columns)
    # how much is wanted above and to the left of each corner; what lies across an edge that is joined comes again
    sums = functional.pad(wanted[:, 0].int(), (0, width, 0, height), mode="circular").cumsum(1).cumsum(2)
    sums = functional.pad(sums, (1, 0, 1, 0))
    top, left = (
        torch.stack([each[0] for each in edges]) for edges in zip(*(place[:2] for place in places), strict=True)
    )
    inside = sums[:, top + height, left + width] - sums[:, top, left + width]
    inside = inside - sums[:, top + height, left] + sums[:, top, left]
    found = []
    for place, now in zip(places, (inside > 0).T.tolist(), strict=True):
        whom = tuple(a and b for a, b in zip(place.all(len(now)), now, strict=True))
        if any(whom):
            found.append(place._replace(whom=whom))
    return found


class Place(NamedTuple):
    """Where a window lies, and whom it concerns."""

    rows: Tensor
    columns: Tensor
    whom: tuple[bool, ...]
    """Which pictures have a hole there."""

    def of(self, field: Tensor) -> Tensor:
        return field.index_select(2, self.rows).index_select(3, self.columns)

    def all(self, batch: int) -> tuple[bool, ...]:
        """For each picture of a batch, whether it is concerned. Guidance repeats the pictures."""
        return self.whom * (batch // len(self.whom))

    def runs(self, batch: int) -> list[tuple[int, int]]:
        """The pictures of a batch that it concerns, as runs of neighbours."""
        whom = self.all(batch)
        edges = [k for k in range(batch + 1) if (k > 0 and whom[k - 1]) != (k < batch and whom[k])]
        return list(zip(edges[::2], edges[1::2], strict=True))


class Piece(NamedTuple):
    """Some pictures of a batch, cut to a window."""

    place: Place
    first: int
    last: int

    def of(self, field: Tensor) -> Tensor:
        return self.place.of(field[self.first : self.last])

    def add(self, field: Tensor, value: Tensor) -> None:
        field[self.first : self.last, :, self.place.rows[:, None], self.place.columns] += value


def _first(todo: list[Piece], most: int) -> tuple[list[Piece], list[Piece]]:
    """As many pieces as hold no more than ``most`` pictures, the last of them parted if need be, and the rest."""
    some, left = [], most
    for k, piece in enumerate(todo):
        if piece.last - piece.first > left:
            middle = piece.first + left
            if left:
                some.append(piece._replace(last=middle))
            return some, [piece._replace(first=middle), *todo[k + 1 :]]
        some.append(piece)
        left -= piece.last - piece.first
    return some, []


def _cut_cond(cond: Cond | None, pieces: list[Piece]) -> Cond | None:
    """What the question says besides, for every piece: fields are cut like the canvas, labels go with their picture."""
    if cond is None:
        return None
    cond = cond._replace(wanted=None)
    return Cond._make(
        None if each is None
        else torch.cat([piece.of(each) if each.dim() == 4 else each[piece.first : piece.last] for piece in pieces])
        for each in cond
    )  # fmt: skip
