"""Tensors that may be spread over the processes (FSDP2), treated like those that are not."""

from __future__ import annotations

import torch
from torch import Tensor


def local(tensor: Tensor) -> Tensor:
    """What this process holds."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def whole(tensor: Tensor, *, keep: bool = True) -> Tensor | None:
    """The full tensor, on the CPU, in a process that keeps it. All processes must ask for it together."""
    full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach().cpu() if keep else None


@torch.no_grad()
def fill(tensor: Tensor, value: Tensor) -> None:
    """Overwrite a tensor with a full one."""
    if hasattr(tensor, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements)
    tensor.copy_(value)
