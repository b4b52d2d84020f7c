"""Watching what code does with tensors, without a GPU."""

from __future__ import annotations

import gc
import warnings

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# what makes the host wait for a device: reading a value, or a result whose shape depends on values
_WAITS = {
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten._unique2.default,
    torch.ops.aten.unique_dim.default,
}


class CountWaits(TorchDispatchMode):
    """Counts the operations inside the block for which a GPU would have to be waited for."""

    waits = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.waits += func in _WAITS
        return func(*args, **(kwargs or {}))


def live_bytes() -> int:
    """How many bytes all living tensors hold together."""
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        storages = {
            tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
            for tensor in gc.get_objects()
            if type(tensor) is torch.Tensor  # not the fake ones of a compilation
        }
    return sum(storages.values())
