"""A network as a denoiser: what it predicts becomes x-hat."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from asyncpatch.models.uncertainty import UncertaintyHead
from asyncpatch.models.unet import UNet, beside
from asyncpatch.parameterization import Prediction, structureless, to_x
from asyncpatch.process import Process
from asyncpatch.protocols import Cond, Denoised


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
