"""Checks at the boundary: an error names the argument, says what came and what was expected.

Shapes are checked always, since that costs nothing. Values (range, NaN) can only be checked by reading
them, and on an accelerator reading waits for the device: there ``times`` looks at shapes alone unless told
that this is a place where waiting is fine (``wait=True``: when a schedule is built).
"""

from __future__ import annotations

from numbers import Integral

import torch
from torch import Tensor


def shape_of(value: object) -> str:
    """What came, in a few words."""
    if isinstance(value, Tensor):
        return f"shape {list(value.shape)}"
    if hasattr(value, "shape"):
        return f"a {type(value).__name__} of shape {list(value.shape)} (not a tensor)"
    said = repr(value)
    return f"{type(value).__name__} {said if len(said) <= 60 else said[:60] + '...'}"


def canvas(name: str, z: Tensor) -> None:
    """A picture batch: floating point, [B, C, H, W]."""
    if not isinstance(z, Tensor) or z.dim() != 4 or not z.is_floating_point():
        got = f"{shape_of(z)} of {z.dtype}" if isinstance(z, Tensor) else shape_of(z)
        raise ValueError(f"{name} must be a floating-point tensor [B, C, H, W], got {got}")


def same_shape(name: str, value: Tensor, other: str, reference: Tensor) -> None:
    if not isinstance(value, Tensor) or value.shape != reference.shape:
        raise ValueError(f"{name} must have the shape of {other}, {list(reference.shape)}, got {shape_of(value)}")


def field(name: str, t: Tensor, z: Tensor | None = None) -> None:
    """A field with one value per token: [B, 1, H, W] or broadcastable to it (against ``z`` where given)."""
    if not isinstance(t, Tensor) or t.dim() not in (0, 4):
        hint = ""
        if isinstance(t, Tensor) and t.dim() in (1, 2, 3):
            use = (f"{name}.view(-1, 1, 1, 1)", f"{name}[None, None]", f"{name}[:, None]")[t.dim() - 1]
            meant = ("one value per picture", "one map [H, W]", "maps [B, H, W]")[t.dim() - 1]
            hint = f"; for {meant} use {use}"
        raise ValueError(f"{name} must be a tensor that broadcasts to [B, 1, H, W], got {shape_of(t)}{hint}")
    if t.dim() == 0:
        return
    if t.shape[1] != 1:
        raise ValueError(f"{name} must be one value per token, [B, 1, H, W], shared by the channels; got {shape_of(t)}")
    if z is not None:
        want = (z.shape[0], 1, *z.shape[2:])
        if any(have not in (1, need) for have, need in zip(t.shape, want, strict=True)):
            raise ValueError(f"{name} must broadcast to {list(want)}, got {shape_of(t)}")


def unit_values(name: str, t: Tensor, *, wait: bool = False) -> None:
    """All values of ``t`` lie in [0, 1] and none is NaN."""
    if t.numel() == 0 or t.is_meta or torch.compiler.is_compiling() or (t.device.type != "cpu" and not wait):
        return
    low, high = (float(value) for value in torch.aminmax(t.detach()))
    if not (low >= 0.0 and high <= 1.0):  # also false for NaN
        hint = "; divide by 255?" if 1.0 < high <= 255.0 and low >= 0.0 else ""
        raise ValueError(f"{name} must lie in [0, 1] (0 clean, 1 noise), got values from {low:g} to {high:g}{hint}")


def times(name: str, t: Tensor, z: Tensor | None = None, *, wait: bool = False) -> None:
    """A time field: right shape, values in [0, 1]."""
    field(name, t, z)
    unit_values(name, t, wait=wait)


def at_least(name: str, value: int, least: int = 1) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")


def fraction(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name} must lie in [0, 1], got {value!r}")
