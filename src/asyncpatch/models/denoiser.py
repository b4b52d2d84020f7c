"""A network as a denoiser: what it predicts becomes x-hat."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from asyncpatch.models.unet import UNet, beside
from asyncpatch.parameterization import Prediction, to_x
from asyncpatch.process import Process
from asyncpatch.protocols import Cond, Denoised


@dataclass(frozen=True)
class NetworkDenoiser:
    """Asks ``net``, which was trained to predict ``prediction`` under ``process``. It computes in its own precision."""

    net: UNet
    process: Process
    prediction: Prediction = "v"

    def __call__(self, z: Tensor, t: Tensor, cond: Cond | None = None, /) -> Denoised:
        cond = cond or Cond()
        if (cond.picture is None) != (cond.hole is None):
            raise ValueError("cond must have a picture and its hole, or neither: one says nothing without the other")
        given = None if cond.picture is None or cond.hole is None else beside(cond.picture, cond.hole)
        value = self.net(z, t, cond.label, given)
        return Denoised(to_x(self.process, self.prediction, value, z, t))
