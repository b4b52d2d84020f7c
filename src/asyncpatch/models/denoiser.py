"""A network as a denoiser: what it predicts becomes x-hat."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from asyncpatch.models.unet import UNet
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
        value = self.net(z, t, None if cond is None else cond.label)
        return Denoised(to_x(self.process, self.prediction, value, z, t))
