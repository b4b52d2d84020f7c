"""The forward process, per token.

    (1)  z_t = alpha(t) x + sigma(t) eps,                     eps ~ N(0, I)              q(z_t | x)
    (2)  z_s = r z_t + sqrt(sigma(s)^2 - r^2 sigma(t)^2) n,   r = alpha(s) / alpha(t)    q(z_s | z_t), s >= t
    (3)  logsnr(t) = 2 log(alpha(t) / sigma(t)),              +inf at t = 0, -inf at t = 1
    (4)  v = a(t) x + b(t) eps   with   alpha b - sigma a = 1,   so that
         x = b z - sigma v   and   eps = alpha v - a z       whatever the process

Every function is elementwise in t: give it one number per picture, per patch or per pixel. Both processes
hit their ends exactly (alpha(0) = 1, sigma(0) = 0, alpha(1) = 0, sigma(1) = 1), so that a token at t = 0 *is*
the picture and one at t = 1 *is* the noise, bit for bit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from asyncpatch import checks


def divide(numerator: Tensor, denominator: Tensor) -> Tensor:
    """numerator / denominator, and 0 where the denominator is 0 (with finite gradients there too)."""
    known = denominator > 0
    return torch.where(known, numerator / torch.where(known, denominator, 1.0), 0.0)


def check_process(process: object) -> None:
    if not isinstance(process, Process):
        raise TypeError(f"process must be a process such as RectifiedFlow(), got {process!r}")


class Process(ABC):
    """What the two processes share: everything follows from alpha, sigma and the velocity's coefficients."""

    speed: ClassVar[float]
    """The constant c in dz/dt = c v."""

    @abstractmethod
    def alpha(self, t: Tensor) -> Tensor:
        """How much of the picture is left at time t: 1 at t = 0, 0 at t = 1."""

    @abstractmethod
    def sigma(self, t: Tensor) -> Tensor:
        """Standard deviation of the noise at time t: 0 at t = 0, 1 at t = 1."""

    @abstractmethod
    def velocity(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """The coefficients a, b of v = a x + b eps, equation (4)."""

    def logsnr(self, t: Tensor) -> Tensor:
        """Equation (3)."""
        return 2.0 * (self.alpha(t).log() - self.sigma(t).log())

    @abstractmethod
    def time_of(self, logsnr: Tensor) -> Tensor:
        """The time at which the log-SNR has this value: the inverse of equation (3)."""

    def diffuse(self, x: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        """Equation (1): noise the clean picture ``x`` to the time field ``t``. Tokens at t = 0 are x exactly."""
        checks.canvas("x", x)
        checks.same_shape("noise", noise, "x", x)
        checks.times("t", t, x)
        return self.alpha(t) * x + self.sigma(t) * noise

    def transition(self, z: Tensor, t: Tensor, s: Tensor, noise: Tensor) -> Tensor:
        """Equation (2): noise ``z`` further, from the times ``t`` to ``s``, where s > t.

        Tokens with s <= t come back bit for bit. Diffusing to t and on to s has the law of diffusing to s.
        """
        ratio = divide(self.alpha(s), self.alpha(t))
        std = (self.sigma(s).square() - (ratio * self.sigma(t)).square()).clamp_min(0.0).sqrt()
        return torch.where(s > t, ratio * z + std * noise, z)


@dataclass(frozen=True)
class RectifiedFlow(Process):
    """alpha = 1 - t, sigma = t, v = eps - x: the process of the paper's experiments."""

    speed = 1.0

    def alpha(self, t: Tensor) -> Tensor:
        return 1.0 - t

    def sigma(self, t: Tensor) -> Tensor:
        return t

    def velocity(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return -torch.ones_like(t), torch.ones_like(t)

    def time_of(self, logsnr: Tensor) -> Tensor:
        return torch.sigmoid(-0.5 * logsnr)


@dataclass(frozen=True)
class CosineVP(Process):
    """alpha = cos(pi t / 2), sigma = sin(pi t / 2), v = alpha eps - sigma x: variance preserving."""

    speed = math.pi / 2

    def alpha(self, t: Tensor) -> Tensor:
        return torch.sin((0.5 * math.pi) * (1.0 - t))  # the cosine, but exactly 0 at t = 1

    def sigma(self, t: Tensor) -> Tensor:
        return torch.sin((0.5 * math.pi) * t)

    def velocity(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return -self.sigma(t), self.alpha(t)

    def time_of(self, logsnr: Tensor) -> Tensor:
        return (2.0 / math.pi) * torch.atan(torch.exp(-0.5 * logsnr))


PROCESSES: dict[str, type[RectifiedFlow] | type[CosineVP]] = {"rectified_flow": RectifiedFlow, "cosine": CosineVP}
"""By the names that recipes and saved models use."""
