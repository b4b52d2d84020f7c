"""The training loss, per token: weighed as in SiD2, which the paper trains with, or as in the bound on the likelihood.

    (1)  loss_i = 1/2 |dlogsnr/dt| e^b sigmoid(logsnr - b) ||x_i - xhat_i||^2         at the token's own t_i
    (2)         = w ||v_i - vhat_i||^2,   w(t) = c e^b alpha sigma / (alpha^2 + e^b sigma^2)

with c = ``process.speed``. Form (2) is finite everywhere and 0 at both ends of time, where a token has nothing to
teach. For other predictions the same loss is the squared error of that prediction times

    (3)  w / sigma^2 (x),   w / alpha^2 (eps),   w sigma^2 / alpha^2 (score)

where what is not determined counts as 0. For models that are judged by likelihood the weight is that of the bound,

    (4)  1/2 SNR ||x_i - xhat_i||^2  per unit of log-SNR,   that is w = alpha^2 / 2 on v

and times are to be spread evenly in log-SNR, not in t (``likelihood``).

Which prediction a network makes changes how it learns, not what it is asked for.

How sure a denoiser is (``Denoised.logvar``) is trained with the likelihood of its errors e as Gaussians,

    (5)  1/2 (logvar_i + e_i^2 exp(-logvar_i))         least, on average, where exp(logvar) = E[e^2]
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from asyncpatch import checks
from asyncpatch.parameterization import Prediction, unknown
from asyncpatch.process import Process, divide

Weighting = Literal["sigmoid", "elbo"]


def elbo_weight(process: Process, prediction: Prediction, t: Tensor) -> Tensor:
    """The weight of the squared error of a prediction at the times t in the bound, equation (4)."""
    alpha, sigma = process.alpha(t), process.sigma(t)
    match prediction:
        case "v":
            return 0.5 * alpha.square()
        case "x":
            return 0.5 * divide(alpha.square(), sigma.square())
        case "eps":
            return 0.5 * torch.ones_like(t)
        case "score":
            return 0.5 * sigma.square()
        case _:
            raise unknown(prediction)


def sigmoid_weight(process: Process, prediction: Prediction, t: Tensor, *, bias: float = 2.0) -> Tensor:
    """The weight of the squared error of a prediction at the times t: w of equation (2), or equation (3)."""
    alpha, sigma, top = process.alpha(t), process.sigma(t), process.speed * math.exp(bias)
    below = alpha.square() + math.exp(bias) * sigma.square()
    match prediction:
        case "v":
            return top * alpha * sigma / below
        case "x":
            return divide(top * alpha, sigma * below)
        case "eps":
            return divide(top * sigma, alpha * below)
        case "score":
            return divide(top * sigma**3, alpha * below)
        case _:
            raise unknown(prediction)


def target(process: Process, prediction: Prediction, x: Tensor, noise: Tensor, t: Tensor) -> Tensor:
    """What a network should have predicted for x diffused to t with this noise."""
    match prediction:
        case "x":
            return x
        case "eps":
            return noise
        case "v":
            a, b = process.velocity(t)
            return a * x + b * noise
        case "score":
            return divide(-noise, process.sigma(t))
        case _:
            raise unknown(prediction)


def diffusion_loss(
    process: Process, prediction: Prediction, value: Tensor, x: Tensor, noise: Tensor, t: Tensor, *, bias: float = 2.0,
    weighting: Weighting = "sigmoid",
) -> Tensor:  # fmt: skip
    """Equation (2), or (4), for each token, [B, 1, H, W], averaged over channels; its ``.mean()`` is what is minimised.

    ``value`` is what the network predicted for ``process.diffuse(x, t, noise)``. The weight on v is
    greatest where logsnr = ``bias``: a higher one leans towards clean, a lower one towards noisy times.
    """
    checks.same_shape("value", value, "x", x)
    checks.same_shape("noise", noise, "x", x)
    checks.field("t", t, x)
    kind = torch.promote_types(value.dtype, torch.float32)
    value, x, noise, t = (each.to(kind) for each in (value, x, noise, t))
    error = value - target(process, prediction, x, noise, t)
    if weighting == "elbo":
        weight = elbo_weight(process, prediction, t)
    else:
        weight = sigmoid_weight(process, prediction, t, bias=bias)
    return weight * error.square().mean(1, keepdim=True)


def uncertainty_loss(logvar: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """Equation (5) for each token, [B, 1, H, W]: of what was said about the answer ``out`` where ``x`` is the truth."""
    checks.same_shape("out", out, "x", x)
    checks.field("logvar", logvar, x)
    error = (x.float() - out.float()).square().mean(1, keepdim=True).detach()
    return 0.5 * (logvar.float() + error * (-logvar.float()).exp())
