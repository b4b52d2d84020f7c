"""A network as a denoiser: what it predicts becomes x-hat."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from asyncpatch.machine import is_out_of_memory
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


class Compiled:
    """The same denoiser, compiled, for much work on a GPU: the first question takes a minute or two. As every number of
    pictures would be compiled anew, fewer than ``batch`` are filled up to that many, and more go in turns. Where memory
    does not hold that many, half as many from then on."""

    def __init__(self, denoiser: NetworkDenoiser, batch: int) -> None:
        self.denoiser, self.batch = denoiser, batch
        # all denoisers share their code, of which there is a version for every network, size and number
        torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 64)
        self._answer = torch.compile(denoiser.__call__, fullgraph=True, dynamic=False)

    def __call__(self, z: Tensor, t: Tensor, cond: Cond | None = None, /) -> Denoised:
        if not len(z):
            return self.denoiser(z, t, cond)
        t, cond = t.expand(len(z), 1, *z.shape[2:]), (cond or Cond())._replace(wanted=None)
        whole: Denoised | None = None
        first = 0
        while first < len(z):
            index = torch.arange(first, first + self.batch, device=z.device).clamp_max(len(z) - 1)
            some = Cond._make(None if each is None else each[index] for each in cond)
            try:
                out = self._answer(z[index], t[index], some)
            except RuntimeError as error:
                if self.batch == 1 or not is_out_of_memory(error):
                    raise
                out = None  # once this block is left, what it held is free
            if out is None:
                self.batch //= 2
                if z.device.type == "cuda":
                    torch.cuda.empty_cache()
                continue
            out = rows(out, slice(len(z) - first))
            whole = out if whole is None else concat(whole, out)
            first += self.batch
        assert whole is not None
        return whole
