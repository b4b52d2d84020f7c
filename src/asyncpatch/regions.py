"""Where holes are, how far from what is known, and how much of the picture around them is needed.

(1)  a hole is looked at in a picture that is halved until nothing of it is further than a quarter of a window from
     what is known, or the window sees all of it (``halvings``), as far as its box is large enough (``scales``);
(2)  its box has a context in proportion, so that the rest of a photo costs nothing (``boxes``);
(3)  or it is cut to rings around what is known, half a window wide (``rings``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

UNKNOWN = 0.95
"""The time from which nothing is left of a pixel that others could go by."""

SMALLEST = 7 / 8
"""Of a window: what is filled from noise, unless the picture itself is smaller."""


def reduced_hole(hole: Tensor, factor: int) -> Tensor:
    """At 1/factor, rounded up: a pixel is as much a hole as the most of its parts."""
    return hole if factor == 1 else functional.max_pool2d(hole, factor, ceil_mode=True)


def reduced(x: Tensor, hole: Tensor, factor: int) -> Tensor:
    """The picture at 1/factor, rounded up: means over what is known."""
    if factor == 1:
        return x
    known = (hole < UNKNOWN).to(x.dtype)
    padding = (0, -x.shape[3] % factor, 0, -x.shape[2] % factor)
    share = functional.avg_pool2d(functional.pad(known, padding), factor)
    total = functional.avg_pool2d(functional.pad(x * known, padding), factor)
    return total / torch.where(share > 0, share, 1.0)


def halvings(hole: Tensor, side: int, window: int, wait: Tensor | None = None, wrap: bool = False) -> int:
    """How often a picture with this hole is halved at first: until ``side`` is no longer than a window, or nothing of
    the hole is further than a quarter of a window from what is known. (What waits is not known.)"""
    unknown = hole if wait is None else hole + wait
    scales = 0
    if side > window and bool((hole >= UNKNOWN).any()):
        while side > window * 2**scales:
            close = near(reduced_hole(unknown, 2**scales) < UNKNOWN, window // 4, wrap)
            if bool((close | (reduced_hole(hole, 2**scales) < UNKNOWN)).all()):
                break
            scales += 1
    return scales


def scales(hole: Tensor, window: int, wait: Tensor | None = None, wrap: bool = False) -> int:
    """How often a box with this hole is halved at first: as often as ``halvings`` says, but to no less than SMALLEST of
    a window across and down. A network that has only seen windows makes nothing sensible of much smaller canvases; of
    larger ones several windows together do."""
    height, width = hole.shape[2:]
    found = halvings(hole, max(height, width), window, wait, wrap)
    while found and min(height, width) < SMALLEST * window * 2**found:
        found -= 1
    return found


def near(where: Tensor, distance: int, wrap: bool = False) -> Tensor:
    """True within so many pixels, across and down, of where a mask [B, 1, H, W] is."""
    grown = where.float()
    for dim in (2, 3):
        reach = min(distance, grown.shape[dim])
        down, across = (reach, 0) if dim == 2 else (0, reach)
        grown = functional.pad(grown, (across, across, down, down), mode="circular" if wrap else "constant")
        grown = functional.max_pool2d(grown, (2 * down + 1, 2 * across + 1), stride=1)
    return grown > 0


def rings(hole: Tensor, width: int, wrap: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Rings around what is known, from the inside out: where the ring is, and what comes after it.

    They are equally wide, about ``width``, so that no thin one is left for the end.
    """
    later, known = hole > 0, hole < UNKNOWN
    cell = max(width // 4, 1)
    cells, reached = 0, known
    while bool((later & ~reached).any()):
        wider = near(reached, cell, wrap)
        if bool((wider == reached).all()):  # nothing is known from which it could grow: all at once
            yield later, torch.zeros_like(later)
            return
        cells, reached = cells + 1, wider
    count = max(round(cells * cell / width), 1)
    edges = [round(k * cells / count) for k in range(count + 1)]
    for before, after in itertools.pairwise(edges):
        known = near(known, (after - before) * cell, wrap)
        ring = later & known
        later = later & ~ring
        yield ring, later


class Box(NamedTuple):
    """A part of a picture."""

    top: int
    left: int
    bottom: int
    right: int

    def of(self, field: Tensor) -> Tensor:
        """That part of a field [..., H, W], a view."""
        return field[..., self.top : self.bottom, self.left : self.right]


def boxes(hole: Tensor, window: int) -> list[Box]:
    """Boxes around the holes of a field [H, W]. Holes whose boxes would meet share one.

    Where the hole is first filled at 1/f, a box has a context of f eighths of a window on each side, and is no smaller
    than f windows where the picture is not.
    """
    if max(hole.shape) <= window:
        return [Box(0, 0, *hole.shape)] if bool((hole > 0).any()) else []
    found = [_around(hole, part, window) for part in _parts(hole > 0, max(8, window // 4))]
    merged: list[Box] = []
    while found:
        box = found.pop()
        meets = [other for other in found + merged if _meet(box, other)]
        if meets:
            found = [other for other in found if other not in meets]
            merged = [other for other in merged if other not in meets]
            tops, lefts, bottoms, rights = zip(box, *meets, strict=True)
            found.append(Box(min(tops), min(lefts), max(bottoms), max(rights)))
        else:
            merged.append(box)
    return sorted(merged)


def _meet(a: Box, b: Box) -> bool:
    return a.top < b.bottom and b.top < a.bottom and a.left < b.right and b.left < a.right


def _around(hole: Tensor, part: Box, window: int) -> Box:
    """A part of the hole with its context."""
    height, width = hole.shape
    top, bottom = max(part.top - window, 0), min(part.bottom + window, height)
    left, right = max(part.left - window, 0), min(part.right + window, width)
    side = max(part.bottom - part.top, part.right - part.left) * 4 // 3  # an eighth of the window on each side
    factor = 2 ** halvings(Box(top, left, bottom, right).of(hole)[None, None], side, window)
    top, bottom = _widened(part.top, part.bottom, window * factor, height)
    left, right = _widened(part.left, part.right, window * factor, width)
    return Box(top, left, bottom, right)


def _widened(first: int, last: int, window: int, length: int) -> tuple[int, int]:
    """A span with context on both sides, at least a window long, moved inwards where it would leave the picture."""
    span = min(max(last - first + 2 * (window // 8), window), length)
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
