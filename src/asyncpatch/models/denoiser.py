"""A network as a denoiser: what it predicts becomes x-hat."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from asyncpatch.models.uncertainty import UncertaintyHead
from asyncpatch.models.unet import UNet, beside
from asyncpatch.parameterization import Prediction, structureless, to_x
from asyncpatch.process import Process
from asyncpatch.protocols import Cond, Denoised, concat, rows


@dataclass(frozen=True)
class NetworkDenoiser:
    """Asks ``net``, which was trained to predict ``prediction`` under ``process``. It computes in its own precision.

    With a ``head`` it also says how sure it is; x-hat is the same.
    """

    net: UNet
    process: Process
    prediction: Prediction = "v"
    head: UncertaintyHead | None = None

    def __call__(self, z: Tensor, t: Tensor, cond: Cond | None = None, /) -> Denoised:
        cond = cond or Cond()
        if (cond.picture is None) != (cond.hole is None):
            raise ValueError("cond must have a picture and its hole, or neither: one says nothing without the other")
        given = None if cond.picture is None or cond.hole is None else beside(cond.picture, cond.hole)
        if self.head is None:
            return Denoised(to_x(self.process, self.prediction, self.net(z, t, cond.label, given), z, t))
        trunk = self.net.trunk(z, t, cond.label, given)
        x = to_x(self.process, self.prediction, self.net.said(trunk, z.dtype), z, t)
        return Denoised(x, self.head(trunk) + structureless(self.process, t.float()))


@dataclass(frozen=True)
class Compiled:
    """The same denoiser, compiled, for much work on a GPU: the first question takes a minute or two. As every number of
    pictures would be compiled anew, fewer than ``batch`` are filled up to that many, and more go in turns."""

    denoiser: NetworkDenoiser
    batch: int

    @cached_property
    def _answer(self) -> Any:
        return torch.compile(self.denoiser.__call__, fullgraph=True, dynamic=False)

    def __call__(self, z: Tensor, t: Tensor, cond: Cond | None = None, /) -> Denoised:
        t, cond = t.expand(len(z), 1, *z.shape[2:]), (cond or Cond())._replace(wanted=None)
        found = []
        for first in range(0, len(z), self.batch):
            index = torch.arange(first, first + self.batch, device=z.device).clamp_max(len(z) - 1)
            some = Cond._make(None if each is None else each[index] for each in cond)
            out = self._answer(z[index], t[index], some)
            found.append(rows(out, slice(len(z) - first)))
        whole = found[0]
        for out in found[1:]:
            whole = concat(whole, out)
        return whole
