"""From what a network predicts to x-hat, and back. Every conversion passes through x-hat.

With z = alpha x + sigma eps and v = a x + b eps (``process.velocity``):

    (1)  eps   = (z - alpha x) / sigma                     x = (z - sigma eps) / alpha
    (2)  v     = a x + b eps                               x = b z - sigma v
    (3)  score = grad_z log p(z_t) = -eps / sigma          x = (z + sigma^2 score) / alpha

Some of these are not determined at the ends of time, where they would read 0/0. There the answer is
*defined* as 0, so that everything is finite:
- at t = 0 (sigma = 0) the canvas holds no noise: eps, v and score are 0;
- at t = 1 (alpha = 0) the canvas holds no picture: x from eps or from a score is 0.
x from v is determined everywhere, which is one reason to predict v.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from asyncpatch.process import Process, divide

Prediction = Literal["x", "eps", "v", "score"]
PREDICTIONS: tuple[Prediction, ...] = get_args(Prediction)


def unknown(prediction: object) -> ValueError:
    """The error for what is no prediction."""
    return ValueError(f"prediction must be one of {', '.join(PREDICTIONS)}; got {prediction!r}")


def to_x(process: Process, prediction: Prediction, value: Tensor, z: Tensor, t: Tensor) -> Tensor:
    """x-hat from a network's ``value``, which is a ``prediction`` of that name, at canvas z and times t."""
    sigma = process.sigma(t)
    match prediction:
        case "x":
            return value
        case "eps":
            return divide(z - sigma * value, process.alpha(t))
        case "v":
            return process.velocity(t)[1] * z - sigma * value
        case "score":
            return divide(z + sigma.square() * value, process.alpha(t))
        case _:
            raise unknown(prediction)


def from_x(process: Process, prediction: Prediction, x: Tensor, z: Tensor, t: Tensor) -> Tensor:
    """The inverse of ``to_x``: x-hat expressed as eps, v or score."""
    if prediction == "x":
        return x
    sigma = process.sigma(t)
    eps = divide(z - process.alpha(t) * x, sigma)
    match prediction:
        case "eps":
            return eps
        case "v":
            a, b = process.velocity(t)
            return torch.where(sigma > 0, a * x + b * eps, 0.0)
        case "score":
            return divide(-eps, sigma)
        case _:
            raise unknown(prediction)


def structureless(process: Process, t: Tensor) -> Tensor:
    """log(v sigma^2 / (v alpha^2 + sigma^2)), v = 1/4: of pictures of independent pixels, how far off an exact answer
    is. What a denoiser says of its doubt is compared with this, since all are surer at lower times."""
    alpha, sigma = process.alpha(t), process.sigma(t).clamp_min(1e-3)  # at time 0 there is nothing to be wrong about
    return (0.25 * sigma.square() / (0.25 * alpha.square() + sigma.square())).log()
