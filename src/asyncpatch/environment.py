"""The paper's random environment: how theorem 1 averages over all monotone paths of times.

Token i goes from t_lo to t_hi (the paper's eps and 1 - eps) at its own pace alpha_i > 0:

    (1)  walk       at each of its N K steps, one token moves up by (t_hi - t_lo) / K; it is token i with probability
                    p_i = alpha_i (t_hi - t_i) / sum_j alpha_j (t_hi - t_j)
    (2)  fluid      y_i(sigma) = t_hi - (t_hi - t_lo) exp(-alpha_i sigma)      the walk as K grows; sigma in [0, inf)
    (3)  h_i        = alpha_i sigma = log((t_hi - t_lo) / (t_hi - y_i)),   R = sum_j h_j,   P = prod_j (t_hi - y_j)
    (4)  universal  p_i = (t_hi - y_i) h_i / L,   L = sum_j (t_hi - y_j) h_j       which knows nothing of alpha
    (5)  density    q(y) = (N-1)! L / ((t_hi - t_lo) P R^N)       for alpha_i ~ Exp(1): how long all paths together are
                    near y, in steps of one token from t_lo to t_hi; its integral is N
    (6)  weights    lambda_i(y) = (N-1)! w(y_i) (t_hi - y_i) h_i / (P R^N),   w = 1/2 |dSNR/dt|

so that the diffusion term of the bound is the integral of sum_i lambda_i(y) ||x_i - xhat_i||^2 over all y. Densities
are stated by their logarithms, of float64 times: at N = 16,384 nothing else is finite. To *estimate* the bound, sample
paths (``likelihood.random_path``): the weights (6) vary over hundreds of orders of magnitude.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from asyncpatch import checks
from asyncpatch.process import Process


def fluid(alpha: Tensor, sigma: Tensor, low: float, high: float) -> Tensor:
    """Equation (2)."""
    return high - (high - low) * torch.exp(-alpha * sigma)


def walk(
    alpha: Tensor, resolution: int, low: float, high: float, *, generator: torch.Generator | None = None
) -> Tensor:
    """Equation (1): the times of N tokens at all steps of one walk, [N * resolution + 1, N]."""
    checks.at_least("resolution", resolution)
    count = len(alpha)
    alpha = alpha.cpu()
    left = torch.full((count,), resolution, dtype=torch.long)  # steps that each token has still to go
    path = torch.empty(count * resolution + 1, count, dtype=torch.float64)
    path[0] = low
    for step in range(count * resolution):
        chosen = torch.multinomial(alpha.double() * left, 1, generator=generator)
        left[chosen] -= 1
        path[step + 1] = high - (high - low) * left / resolution
    return path


def transition_probabilities(y: Tensor, low: float, high: float) -> Tensor:
    """Equation (4): which token moves next, [..., N], at y [..., N]."""
    return torch.softmax(_log_left(y, high) + _h(y, low, high).log(), -1)


def log_density(y: Tensor, low: float, high: float) -> Tensor:
    """The logarithm of equation (5) at y [..., N]."""
    h = _h(y, low, high)
    capacity = (_log_left(y, high) + h.log()).logsumexp(-1)
    return _log_common(y, h, high) + capacity - math.log(high - low)


def log_weights(process: Process, y: Tensor, low: float, high: float) -> Tensor:
    """The logarithms of equation (6) at y [..., N]: one for each token."""
    h = _h(y, low, high)
    y = y.detach().requires_grad_()
    with torch.enable_grad():
        slope = torch.autograd.grad(process.logsnr(y).exp().sum(), y)[0]
    one = (0.5 * slope.abs()).log()
    return (_log_common(y, h, high)[..., None] + one + _log_left(y, high) + h.log()).detach()


def _log_left(y: Tensor, high: float) -> Tensor:
    """log(t_hi - y); a token that rounding has brought to the end is still a little short of it."""
    return (high - y).clamp_min(torch.finfo(y.dtype).tiny).log()


def _h(y: Tensor, low: float, high: float) -> Tensor:
    return (math.log(high - low) - _log_left(y, high)).clamp_min(torch.finfo(y.dtype).tiny)


def _log_common(y: Tensor, h: Tensor, high: float) -> Tensor:
    """log (N-1)! / (P R^N)."""
    count = y.shape[-1]
    return math.lgamma(count) - _log_left(y, high).sum(-1) - count * h.sum(-1).log()
