"""Geometry of fields over a picture: patch partitions, Perlin masks, and the orders of ordered generation.

A partition cuts a picture into square patches from the top left corner; where the side does not divide the
picture, the last row and column of patches are cut short. An *order* is an [H, W] map of integers: tokens
with a smaller number are generated earlier, tokens with the same number together.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from asyncpatch import checks


def powers_of_two(height: int, width: int) -> tuple[int, ...]:
    """Patch sides from one pixel to the whole picture: 1, 2, 4, ..., and the longer side itself."""
    longer = max(height, width)
    return (*(2**k for k in range((longer - 1).bit_length())), longer)


def patch_grid(height: int, width: int, size: int) -> tuple[int, int]:
    """How many patches of side ``size`` stand below and beside each other."""
    return math.ceil(height / size), math.ceil(width / size)


def spread(values: Tensor, size: int, height: int, width: int) -> Tensor:
    """Give every pixel of [..., height, width] the value of its patch, from values [..., rows, columns]."""
    *lead, rows, columns = values.shape
    wide = values[..., None].expand(*lead, rows, columns, size).reshape(*lead, rows, columns * size)[..., :width]
    tall = wide[..., None, :].expand(*lead, rows, size, width)  # whole rows are copied: faster than both at once
    return tall.reshape(*lead, rows * size, width)[..., :height, :]


def perlin(batch: int, height: int, width: int, cell: Tensor, *, generator: torch.Generator | None = None) -> Tensor:
    """One octave of Perlin noise per picture, [B, H, W], with ``cell`` [B] pixels between lattice nodes (>= 1).

    Each lattice node holds a random unit gradient. A pixel sums the four ramps of the nodes around it,
    weighted by the fade 6 f^5 - 15 f^4 + 10 f^3 of its distance. The lattice is shifted at random, so that no pixel is
    special (unshifted, the corner pixel would sit on a node, where the noise is always 0).
    """
    device = cell.device
    nodes_y, nodes_x = height + 2, width + 2  # cell >= 1, plus the shift and the far neighbour
    angle = torch.rand(batch, nodes_y * nodes_x, generator=generator, device=device).mul_(2 * math.pi)
    slope_y, slope_x = angle.sin(), angle.cos()
    shift = torch.rand(2, batch, generator=generator, device=device)

    def axis(length: int, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        position = torch.arange(length, device=device) / cell[:, None] + shift[:, None]
        node = position.floor()
        offset = position - node
        fade = offset**3 * (offset * (6.0 * offset - 15.0) + 10.0)
        return node.long(), offset, fade

    node_y, offset_y, fade_y = axis(height, shift[0])
    node_x, offset_x, fade_x = axis(width, shift[1])

    def ramp(dy: int, dx: int) -> Tensor:
        index = ((node_y + dy)[:, :, None] * nodes_x + (node_x + dx)[:, None, :]).flatten(1)
        up, across = (slope.gather(1, index).view(batch, height, width) for slope in (slope_y, slope_x))
        return up * (offset_y - dy)[:, :, None] + across * (offset_x - dx)[:, None, :]

    left = torch.lerp(ramp(0, 0), ramp(1, 0), fade_y[:, :, None])
    right = torch.lerp(ramp(0, 1), ramp(1, 1), fade_y[:, :, None])
    return torch.lerp(left, right, fade_x[:, None, :])


def raster_order(height: int, width: int, patch: int = 1) -> Tensor:
    """Patches left to right, top to bottom: [H, W] integers."""
    rows, columns = _grid(height, width, patch)
    return spread(torch.arange(rows * columns).view(rows, columns), patch, height, width)


def spiral_order(height: int, width: int, patch: int = 1, *, inward: bool = False) -> Tensor:
    """Patches in a spiral from the middle outwards, or from the rim inwards: [H, W] integers."""
    rows, columns = _grid(height, width, patch)
    remaining = torch.arange(rows * columns).view(rows, columns)
    walk = []
    while remaining.numel():  # peel the top row, then turn what is left by a quarter
        walk.append(remaining[0])
        remaining = remaining[1:].T.flip(0)
    path = torch.cat(walk)
    order = torch.empty(rows * columns, dtype=torch.long)
    order[path if inward else path.flip(0)] = torch.arange(rows * columns)
    return spread(order.view(rows, columns), patch, height, width)


def random_order(height: int, width: int, patch: int = 1, *, generator: torch.Generator | None = None) -> Tensor:
    """Patches in a random order: [H, W] integers."""
    rows, columns = _grid(height, width, patch)
    order = torch.randperm(rows * columns, generator=generator).view(rows, columns)
    return spread(order, patch, height, width)


def painted_order(picture: Tensor, groups: int) -> Tensor:
    """An order from a painted map [H, W]: dark first, in ``groups`` groups of about equal size.

    Pixels of the same value always fall in the same group, so a map with few values gives fewer groups.
    """
    checks.at_least("groups", groups)
    if not isinstance(picture, Tensor) or picture.dim() != 2:
        raise ValueError(
            f"picture must be a tensor [H, W], got {checks.shape_of(picture)}; "
            "of an image: torch.from_numpy(numpy.array(image.convert('L')))"
        )
    if picture.is_floating_point() and not bool(picture.isfinite().all()):
        raise ValueError("picture must be finite, got NaN or infinity")
    inverse: Tensor
    counts: Tensor
    _, inverse, counts = torch.unique(picture, return_inverse=True, return_counts=True)
    middle_rank = counts.cumsum(0) - counts / 2  # of the pixels that share the value
    group = (middle_rank * groups / picture.numel()).long().clamp(0, groups - 1)
    return group.index_select(0, inverse.flatten()).view(picture.shape)


def _grid(height: int, width: int, patch: int) -> tuple[int, int]:
    checks.at_least("height", height)
    checks.at_least("width", width)
    checks.at_least("patch", patch)
    return patch_grid(height, width, patch)
