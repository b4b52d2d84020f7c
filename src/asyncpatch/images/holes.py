"""Holes that grow, shrink and fade."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from asyncpatch.images.picture import (
    hole_array,
    require,
)


def grow(hole: Tensor, pixels: int) -> Tensor:
    """The hole [..., H, W] with a margin of so many pixels around it: each value is the largest within that distance.

    With fewer than 0 pixels it shrinks: each value is the smallest within that distance. The picture's rim is no
    edge: a hole that reaches it does not shrink away from it. Distance is measured from centre to centre.
    """
    hole_array("hole", hole, any_batch=True)
    require("pixels", pixels, -(10**9))
    rows, columns = _around(hole, max(pixels, 1))
    inner = hole[..., rows, columns]
    if pixels == 0 or inner.numel() == 0:
        return hole.clone()
    grown = hole.clone()
    grown[..., rows, columns] = _largest_within(inner, pixels) if pixels > 0 else -_largest_within(-inner, -pixels)
    return grown


def feather(hole: Tensor, pixels: int) -> Tensor:
    """The hole [..., H, W] faded inwards: from 0 just outside it evenly up to 1 at ``pixels`` + 1 from its edge.

    At distance d from the nearest pixel that is kept no value is more than d / (pixels + 1). What was 0 stays exactly
    0, no value rises, and 0 pixels change nothing. The picture's rim is no edge.
    """
    hole_array("hole", hole, any_batch=True)
    require("pixels", pixels, 0)
    rows, columns = _around(hole, 1)  # the nearest pixel that is kept is never further than the frame
    inner = hole[..., rows, columns]
    if pixels == 0 or inner.numel() == 0:
        return hole.clone()
    faded = hole.clone()
    ramp = _distance_to_kept(inner, pixels + 1) / (pixels + 1)
    faded[..., rows, columns] = torch.minimum(inner, ramp.to(inner.dtype))
    return faded


def _around(hole: Tensor, margin: int) -> tuple[slice, slice]:
    """The rows and columns of all that is not 0, with a margin: the rest of a large photo need not be looked at."""
    painted = (hole != 0).flatten(0, -3).any(0) if hole.dim() > 2 else hole != 0
    slices = []
    for other, size in ((1, painted.shape[0]), (0, painted.shape[1])):
        where = painted.any(other).nonzero()
        low, high = (int(where[0]), int(where[-1])) if len(where) else (0, -margin - 1)
        slices.append(slice(max(low - margin, 0), max(min(high + margin + 1, size), 0)))
    return slices[0], slices[1]


def _largest_within(values: Tensor, radius: int) -> Tensor:
    """The largest value in the disc around each pixel: rows of the disc from its poles to its equator, ever wider."""
    height, width = values.shape[-2:]
    radius = min(radius, height + width)  # more than all of it is no more
    wide, reach, found = values.clone(), 0, values.clone()
    for dy in range(radius, -1, -1):
        half = math.isqrt(radius * radius - dy * dy)
        for dx in range(reach + 1, min(half, width - 1) + 1):
            torch.maximum(wide[..., dx:], values[..., :-dx], out=wide[..., dx:])
            torch.maximum(wide[..., :-dx], values[..., dx:], out=wide[..., :-dx])
        reach = max(reach, half)
        if dy == 0:
            torch.maximum(found, wide, out=found)
        elif dy < height:
            torch.maximum(found[..., dy:, :], wide[..., :-dy, :], out=found[..., dy:, :])
            torch.maximum(found[..., :-dy, :], wide[..., dy:, :], out=found[..., :-dy, :])
    return found


def _distance_to_kept(hole: Tensor, most: int) -> Tensor:
    """To the nearest pixel that is exactly 0, from centre to centre; beyond ``most`` it is only said to be no less."""
    height, width = hole.shape[-2:]
    far, place = float(most), torch.arange(width, dtype=torch.float32, device=hole.device)
    kept = hole == 0
    before = torch.where(kept, place, -far - width).cummax(-1).values  # the last kept pixel of the row so far
    after = torch.where(kept, place, far + 2 * width).flip(-1).cummin(-1).values.flip(-1)
    squared = torch.minimum(place - before, after - place).clamp_(max=far).square_()
    nearest, further = squared.clone(), torch.empty_like(squared)
    for dy in range(1, min(most, height - 1) + 1):
        torch.add(squared, dy * dy, out=further)
        torch.minimum(nearest[..., dy:, :], further[..., :-dy, :], out=nearest[..., dy:, :])
        torch.minimum(nearest[..., :-dy, :], further[..., dy:, :], out=nearest[..., :-dy, :])
    return nearest.sqrt_()
