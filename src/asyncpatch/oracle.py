"""Exact denoisers: for a Gaussian, and for a mixture of Gaussians, the answer to every question is known.

For x ~ N(m, C) and z = D x + S^(1/2) eps with D = diag(alpha(t)), S = diag(sigma(t)^2), whatever the time field t:

    (1)  z ~ N(D m, M),                          M = D C D + S
    (2)  E[x | z]   = m + C D M^-1 (z - D m)
    (3)  Cov[x | z] = C - C D M^-1 D C

and for a mixture the same per component, weighted by the probability of the component given z. With these in the
place of a network nothing is left to training: whatever a schedule, a step, a guidance or a bound gets wrong, it
gets wrong itself. The tests rest on them, and one can learn the method on them before there is a network.

Pictures are flattened to D = C*H*W numbers, channel by channel; matrices are dense, so keep to a few thousand numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from asyncpatch import checks
from asyncpatch.process import Process
from asyncpatch.protocols import Cond, Denoised


class _Posterior(NamedTuple):
    log_prob: Tensor
    """log N(z; D m, M), [B]."""
    mean: Tensor
    """Equation (2), [B, D]."""
    variance: Tensor
    """The diagonal of equation (3), [B, D]."""


@dataclass(frozen=True)
class GaussianMixture:
    """The exact denoiser of pictures drawn from a mixture of Gaussians. Computes in float64.

    With ``cond.label`` it is told which component the picture came from (``NULL_LABEL``: it is not told).
    """

    process: Process
    weights: Tensor
    """Probability of each component, [K]."""
    means: Tensor
    """[K, C, H, W]."""
    covariances: Tensor
    """[K, C*H*W, C*H*W], positive definite."""

    def __post_init__(self) -> None:
        if self.means.dim() != 4:
            raise ValueError(f"means must be [K, C, H, W], got {checks.shape_of(self.means)}")
        count, size = len(self.means), self.means[0].numel()
        if self.weights.shape != (count,) or bool((self.weights < 0).any()) or float(self.weights.sum()) <= 0:
            raise ValueError(f"weights must be {count} numbers, none negative, with a positive sum; got {self.weights}")
        if self.covariances.shape != (count, size, size):
            got = checks.shape_of(self.covariances)
            raise ValueError(
                f"covariances must be [{count}, {size}, {size}] for means {list(self.means.shape)}, got {got}"
            )

    def __call__(self, z: Tensor, t: Tensor, cond: Cond | None = None, /) -> Denoised:
        posteriors, share = self._posteriors(z, t, None if cond is None else cond.label)
        means = torch.stack([each.mean for each in posteriors])  # [K, B, D]
        second = torch.stack([each.variance + each.mean.square() for each in posteriors])
        x = (share[..., None] * means).sum(0)
        variance = ((share[..., None] * second).sum(0) - x.square()).view(z.shape).mean(1, keepdim=True)
        logvar = variance.clamp_min(torch.finfo(torch.float64).tiny).log()
        return Denoised(x.view(z.shape).to(z.dtype), logvar.to(z.dtype))

    def log_prob(self, z: Tensor, t: Tensor | None = None) -> Tensor:
        """log p(z_t), [B], of canvases at the time field t (by default 0: of clean pictures)."""
        posteriors, _ = self._posteriors(z, torch.zeros((), device=z.device) if t is None else t, None)
        parts = torch.stack([each.log_prob for each in posteriors])
        return (parts + self._log_weights(z)).logsumexp(0)

    def draw(self, count: int, *, generator: torch.Generator | None = None) -> Tensor:
        """Clean pictures, [count, C, H, W] float32."""
        weights = self.weights.double()
        component = torch.multinomial(weights, count, replacement=True, generator=generator)
        white = torch.randn(
            count, self.means[0].numel(), 1, generator=generator, dtype=torch.float64, device=weights.device
        )
        root = torch.linalg.cholesky(self.covariances.double())
        drawn = self.means.double()[component].flatten(1) + torch.stack(
            [root[k] @ each for k, each in zip(component.tolist(), white, strict=True)]
        ).squeeze(-1)
        return drawn.view(count, *self.means.shape[1:]).float()

    def _log_weights(self, z: Tensor) -> Tensor:
        return (self.weights / self.weights.sum()).double().log().to(z.device)[:, None]

    def _posteriors(self, z: Tensor, t: Tensor, label: Tensor | None) -> tuple[list[_Posterior], Tensor]:
        """For each component what it says of z, and the probability of each component given z, [K, B]."""
        checks.canvas("z", z)
        checks.times("t", t, z)
        if z.shape[1:] != self.means.shape[1:]:
            raise ValueError(f"z must be pictures {list(self.means.shape[1:])}, got {checks.shape_of(z)}")
        times = t.double().expand(len(z), 1, *z.shape[2:]).expand_as(z).flatten(1)
        if bool((times == times[:1]).all()):  # one time field for all, as most schedules have it
            distinct, which = times[:1], torch.zeros(len(z), dtype=torch.long, device=z.device)
        else:
            distinct, which = torch.unique(times, dim=0, return_inverse=True)
        posteriors = []
        for mean, covariance in zip(self.means, self.covariances, strict=True):
            whole = _Posterior(*(torch.empty_like(times) if k else torch.empty_like(times[:, 0]) for k in range(3)))
            for i, row in enumerate(distinct):
                members = which == i
                for all_rows, some in zip(whole, self._gaussian(mean, covariance, z[members], row), strict=True):
                    all_rows[members] = some
            posteriors.append(whole)
        logits = torch.stack([each.log_prob for each in posteriors]) + self._log_weights(z)
        share = logits.softmax(0)
        if label is not None:
            if label.shape != (len(z),) or int(label.max()) >= len(self.means):
                raise ValueError(f"label must be {len(z)} numbers below {len(self.means)}, got {label.tolist()}")
            told = torch.arange(len(self.means), device=z.device)[:, None] == label
            share = torch.where(label >= 0, told.double(), share)
        return posteriors, share

    def _gaussian(self, mean: Tensor, covariance: Tensor, z: Tensor, t: Tensor) -> _Posterior:
        """Equations (1) to (3) for canvases z that share one time field t, [D]."""
        m, c = mean.double().flatten(), covariance.double()
        alpha, sigma = self.process.alpha(t), self.process.sigma(t)
        root = torch.linalg.cholesky(alpha[:, None] * c * alpha + torch.diag(sigma.square()))
        white = torch.linalg.solve_triangular(root, (z.double().flatten(1) - alpha * m).T, upper=False)  # [D, B]
        gain = torch.linalg.solve_triangular(root, alpha[:, None] * c, upper=False)  # L^-1 D C
        log_prob = -0.5 * (white.square().sum(0) + len(m) * math.log(2 * math.pi)) - root.diagonal().log().sum()
        variance = (c.diagonal() - gain.square().sum(0)).clamp_min(0.0)
        return _Posterior(log_prob, m + (gain.T @ white).T, variance.expand(len(z), -1))


def gaussian(process: Process, mean: Tensor, covariance: Tensor) -> GaussianMixture:
    """One Gaussian: ``mean`` [C, H, W], ``covariance`` [C*H*W, C*H*W]."""
    return GaussianMixture(process, torch.ones(1), mean[None], covariance[None])


def gaussian_field(process: Process, height: int, width: int, *, length: float, rough: float = 0.02) -> GaussianMixture:
    """Smooth grey pictures [1, height, width]: a Gaussian field of standard deviation 1/2.

    ``length`` is how far it is correlated, in pixels; ``rough`` is the share of
    the variance that is independent from pixel to pixel.
    """
    for name, value in (("height", height), ("width", width)):
        checks.at_least(name, value)
    checks.fraction("rough", rough)
    if not length > 0:
        raise ValueError(f"length must be positive, got {length!r}")
    y, x = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
    place = torch.stack([y.flatten(), x.flatten()], 1)
    smooth = torch.exp(-0.5 * (torch.cdist(place, place) / length).square())
    covariance = 0.25 * ((1.0 - rough) * smooth + rough * torch.eye(height * width, dtype=torch.float64))
    return gaussian(process, torch.zeros(1, height, width), covariance)
