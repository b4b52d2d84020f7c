"""Averages of the weights over training.

    (1)  a <- beta_n a + (1 - beta_n) w_n                            after step n = 1, 2, ...
    (2)  beta_n = min(decay, (1 + n) / (10 + n))                     exponential, not held back by the first weights
    (3)  beta_n = (1 - 1/n)^(gamma + 1)                              power function (Karras et al. 2024)

Under (3) the average after step T weighs step n in proportion to n^gamma: it stretches with the run. Its relative
width sigma determines gamma:

    (4)  sigma^2 = (gamma + 1) / ((gamma + 2)^2 (gamma + 3))

Snapshots of two such averages, taken now and then, span nearly all others: (5) any width is found afterwards as the
combination of snapshots whose weighing of the steps is nearest, in the least squares sense.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from asyncpatch.train.sharded import local

SIGMAS = (0.05, 0.10)
"""Widths of the averages that snapshots hold."""

Weights = dict[str, Tensor]
Numbers = NDArray[np.float64]


def exponential(decay: float) -> Callable[[int], float]:
    """Equation (2)."""
    return lambda n: min(decay, (1 + n) / (10 + n))


def power(sigma: float) -> Callable[[int], float]:
    """Equation (3) for a width."""
    exponent = gamma_of(sigma) + 1.0
    return lambda n: float((1.0 - 1.0 / n) ** exponent)


def gamma_of(sigma: float) -> float:
    """Equation (4), solved for gamma: its largest root."""
    if not 0.0 < sigma < 0.28:
        raise ValueError(f"sigma must lie between 0 and 0.28, got {sigma}")
    t = sigma**-2
    return float(np.roots([1.0, 7.0, 16.0 - t, 12.0 - t]).real.max())


class Average:
    """A running average of named weights."""

    def __init__(self, weights: Iterable[tuple[str, Tensor]], beta: Callable[[int], float]) -> None:
        self.beta = beta
        self.weights = {name: value.detach().clone() for name, value in weights}

    @torch.no_grad()
    def update(self, weights: Iterable[Tensor], n: int) -> None:
        """Equation (1)."""
        mine = [local(value) for value in self.weights.values()]
        torch._foreach_lerp_(mine, [local(value.detach()) for value in weights], 1.0 - self.beta(n))


def _inner(steps: Numbers, gammas: Numbers, step: Numbers, gamma: Numbers) -> Numbers:
    """Inner products of weighings: each is (gamma + 1) n^gamma / T^(gamma + 1) for n up to T."""
    t1, g1 = steps[:, None], gammas[:, None]
    t2, g2 = step[None, :], gamma[None, :]
    low = np.minimum(t1, t2)
    logarithm = (g1 + g2 + 1) * np.log(low) - (g1 + 1) * np.log(t1) - (g2 + 1) * np.log(t2)
    product: Numbers = (g1 + 1) * (g2 + 1) / (g1 + g2 + 1) * np.exp(logarithm)
    return product


def combination(steps: Sequence[int], sigmas: Sequence[float], step: int, sigma: float) -> Numbers:
    """(5): the factors of snapshots (taken at ``steps``, of widths ``sigmas``) whose sum is nearest to the average of
    width ``sigma`` at ``step``."""
    taken, gammas = np.array(steps, float), np.array([gamma_of(each) for each in sigmas])
    wanted, gamma = np.array([float(step)]), np.array([gamma_of(sigma)])
    gram = _inner(taken, gammas, taken, gammas)
    right = _inner(taken, gammas, wanted, gamma)
    return np.asarray(np.linalg.lstsq(gram, right, rcond=1e-12)[0][:, 0], np.float64)


def kind_of(sigma: float) -> str:
    """What an average of that width is called in checkpoints and snapshots."""
    return f"sigma-{sigma:.3f}"


def snapshot_name(step: int, sigma: float) -> str:
    return f"step-{step:08d}-{kind_of(sigma)}.safetensors"


def rebuild(folder: Path, sigma: float, step: int | None = None) -> Weights:
    """The average of any width, from the snapshots in a folder; at the last step unless another is said."""
    files = sorted(folder.glob("step-*-sigma-*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no snapshots; train with --snapshot-every")
    marks = [(int(file.name.split("-")[1]), float(file.stem.split("-")[3])) for file in files]
    step = max(taken for taken, _ in marks) if step is None else step
    used = [(file, mark) for file, mark in zip(files, marks, strict=True) if mark[0] <= step]
    if not used:
        raise ValueError(f"step must be at least that of the first snapshot, {min(marks)[0]}; got {step}")
    factors = combination([mark[0] for _, mark in used], [mark[1] for _, mark in used], step, sigma)
    total: Weights = {}
    for (file, _), factor in zip(used, factors, strict=True):
        with safe_open(file, "pt") as stored:
            for name in stored.keys():  # noqa: SIM118
                value = stored.get_tensor(name).float() * float(factor)
                total[name] = total[name] + value if name in total else value
    return total
