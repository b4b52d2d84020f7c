"""``film``'s equations (1) to (3) on a CPU, for answers without gradients.

Between a convolution's output and what the next one gets there are several passes, each of which plain torch makes over
the whole tensor, in float32: more than a cache holds. Here all passes go over some pixels, then over the next. The
arithmetic is that of plain torch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

AT_ONCE = 1 << 17
"""Numbers that a thread is given at a time: half a megabyte in float32, which stays in its cache."""


def apt(h: Tensor) -> bool:
    """Whether this is quicker for h: there is enough of it, and nothing to differentiate or to compile."""
    asked = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return h.device.type == "cpu" and asked and h.numel() > _budget()


def _budget() -> int:
    """Numbers that are changed at a time."""
    return AT_ONCE * torch.get_num_threads()


def norm_in_parts(h: Tensor, gain: Tensor, eps: float, *, activate: bool) -> Tensor:
    """Equation (1), times a gain; and a SiLU of it."""
    gain = gain.float()

    def change(normed: Tensor, part: tuple[slice, slice]) -> Tensor:
        normed.mul_(gain)
        return functional.silu(normed, inplace=True) if activate else normed

    return _in_parts(h, eps, change)


def film_in_parts(h: Tensor, phi: Tensor, weight: Tensor, label: Tensor, eps: float) -> Tensor:
    """Equations (1) to (3) with phi [B, K, H, W], weight [2, K, C] and label [B, 2, C]: scale first, then shift. For
    weights and labels in h's precision."""
    features = phi.permute(0, 2, 3, 1).flatten(1, 2)
    table = weight.float().transpose(0, 1).flatten(1)  # [K, 2 C]
    scale, shift = label.float()[:, :, None].unbind(1)
    base = torch.cat([1.0 + scale, shift], 2)  # what multiplies is 1 + scale

    def change(normed: Tensor, part: tuple[slice, slice]) -> Tensor:
        scale, shift = (features[part].float() @ table).add_(base[part[0]]).chunk(2, 2)
        return functional.silu(torch.addcmul(shift, normed, scale, out=normed), inplace=True)

    return _in_parts(h, eps, change)


def _in_parts(h: Tensor, eps: float, change: Callable[[Tensor, tuple[slice, slice]], Tensor]) -> Tensor:
    """What ``change`` makes of normed pixels [b, n, C], float32, which it may overwrite; it is told which they are of
    [B, H W]."""
    rows = h.permute(0, 2, 3, 1).flatten(1, 2)
    batch, pixels, channels = rows.shape
    out = torch.empty_like(rows, memory_format=torch.contiguous_format)
    small = torch.tensor(eps)
    parts = -(-pixels * channels // _budget())  # of a picture, about alike
    many, step = max(1, _budget() // (pixels * channels)), -(-pixels // parts)
    with torch.autocast("cpu", enabled=False):
        for first in range(0, batch, many):
            for start in range(0, pixels, step):
                part = slice(first, first + many), slice(start, start + step)
                some = rows[part].to(torch.float32, copy=True)
                length = torch.linalg.vector_norm(some, dim=2, keepdim=True)
                some.mul_(torch.addcmul(small, length, length, value=1.0 / channels).rsqrt_())
                out[part] = change(some, part)
    return out.unflatten(1, h.shape[2:]).permute(0, 3, 1, 2)
