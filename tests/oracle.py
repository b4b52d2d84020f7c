"""What the tests measure with: laws that are known exactly, and the exact law of what a sampler returns.

With a Gaussian denoiser every sampler is affine in its randomness: the noise it starts from and the noise of each
step. Pushing zero and a basis of that randomness through it gives the mean and covariance of its result exactly,
for any schedule, step and eta, with no Monte Carlo.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from asyncpatch.oracle import GaussianMixture, gaussian
from asyncpatch.process import Process
from asyncpatch.protocols import Schedule, Step
from asyncpatch.sampling import sample


class Law(NamedTuple):
    mean: Tensor
    """[D]."""
    covariance: Tensor
    """[D, D]."""


def random_gaussian(process: Process, shape: tuple[int, int, int], seed: int = 0) -> GaussianMixture:
    """A Gaussian over [C, H, W] whose every number is correlated with every other, none nearly determined."""
    generator = torch.Generator().manual_seed(seed)
    size = shape[0] * shape[1] * shape[2]
    factor = torch.randn(size, size, generator=generator, dtype=torch.float64)
    spread = 0.5 + torch.rand(size, generator=generator, dtype=torch.float64)
    covariance = factor @ factor.T / size + 0.2 * torch.eye(size, dtype=torch.float64)
    root = covariance.diagonal().rsqrt() * spread
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    return gaussian(process, mean, root[:, None] * covariance * root)


def law_of(denoiser: GaussianMixture) -> Law:
    return Law(denoiser.means[0].flatten(), denoiser.covariances[0])


def conditional(law: Law, known: Tensor, x: Tensor) -> Law:
    """The law of all numbers given that those with ``known`` [D] true have the values of ``x`` [D]."""
    c = law.covariance
    gain = torch.linalg.solve(c[known][:, known], c[known]).T
    mean = law.mean + gain @ (x - law.mean)[known]
    return Law(mean, c - gain @ c[known])


def law_of_sampler(denoiser: GaussianMixture, schedule: Schedule, step: Step, x: Tensor, *, steps: int) -> Law:
    """The exact law of ``sample`` started from ``x`` [1, C, H, W] diffused to ``schedule.start``."""
    size = x.numel()
    rows = 1 + size * (steps + 1)  # nothing, the starting noise, the noise of each step
    basis = torch.eye(size, dtype=torch.float64)
    start_noise = torch.zeros(rows, size, dtype=torch.float64)
    start_noise[1 : 1 + size] = basis
    visit = 0

    def scripted(denoise, now, s, noise, last):
        nonlocal visit
        visit += 1
        script = torch.zeros(rows, size, dtype=torch.float64)
        script[1 + visit * size : 1 + (visit + 1) * size] = basis
        return step(denoise, now, s, lambda: script.view_as(now.z), last)

    canvas = x.double().expand(rows, -1, -1, -1)
    z = denoiser.process.diffuse(canvas, schedule.start(canvas), start_noise.view_as(canvas))
    out = sample(denoiser, schedule, z, step=scripted).flatten(1)
    assert visit == steps
    response = (out[1:] - out[0]).T
    return Law(out[0], response @ response.T)


def error(found: Law, wanted: Law) -> tuple[float, float]:
    """Relative errors of mean and covariance, in Euclidean and Frobenius norm."""
    mean = (found.mean - wanted.mean).norm() / wanted.mean.norm()
    covariance = (found.covariance - wanted.covariance).norm() / wanted.covariance.norm()
    return float(mean), float(covariance)
