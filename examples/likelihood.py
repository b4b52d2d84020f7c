"""Draws docs/images/likelihood.png: what the bound says of an exact denoiser, and of a wrong one.

    python examples/likelihood.py [FILE]

Pictures are 8x8 draws from a Gaussian field, whose log likelihood is known. The wrong denoiser is exact for a field
that is correlated half as far; the second wrong one is exact where all pixels share a time, but takes a field of times
for smoother than it is.
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from torch import Tensor

import asyncpatch as ap
from asyncpatch.likelihood import ElboTerms, elbo, random_path, schedule_path, synchronous_path

PROCESS, SIDE, COUNT = ap.RectifiedFlow(), 8, 64
WIDE = (14.0, -9.0)
PATHS = {
    "synchronous": synchronous_path(),
    "patches of 4": random_path(4),
    "patches of 2": random_path(2),
    "pixels": random_path(1),
    "raster": schedule_path(ap.autoregressive(ap.fields.raster_order(SIDE, SIDE, 2), 1)),
}


def bound(denoiser: ap.Denoiser, x: Tensor, path: object, calls: int, span: tuple[float, float] = WIDE) -> ElboTerms:
    return elbo(
        denoiser, x, process=PROCESS, path=path, calls=calls, bits=None, span=span,
        generator=ap.generators(range(len(x))),
    )  # fmt: skip


def main() -> None:
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "out/likelihood.png")
    file.parent.mkdir(parents=True, exist_ok=True)
    exact = ap.oracle.gaussian_field(PROCESS, SIDE, SIDE, length=2.0)
    short = ap.oracle.gaussian_field(PROCESS, SIDE, SIDE, length=1.0)

    def blurred(z: Tensor, t: Tensor, cond: ap.Cond | None = None) -> ap.Denoised:
        return ap.Denoised(exact(z, t**0.9 * t.mean((2, 3), keepdim=True) ** 0.1).x)

    denoisers = {"exact": exact, "correlated too short": short, "blurred times": blurred}
    x = exact.draw(COUNT, generator=torch.Generator().manual_seed(0)).double()
    law = torch.distributions.MultivariateNormal(torch.zeros(SIDE * SIDE).double(), exact.covariances[0])
    true = law.log_prob(x.flatten(1)).mean() / x[0].numel()
    numbers = x[0].numel()

    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    for offset, (name, denoiser) in enumerate(denoisers.items()):
        terms = [bound(denoiser, x, path, 128) for path in PATHS.values()]
        means = [float(each.total.mean()) / numbers for each in terms]
        errors = [2 * float(each.error.square().mean().sqrt()) / COUNT**0.5 / numbers for each in terms]
        places = [k + 0.2 * (offset - 1) for k in range(len(PATHS))]
        left.errorbar(places, means, errors, fmt="o", markersize=4, label=name)
    left.axhline(float(true), color="black", linewidth=0.8, linestyle="--", label="true")
    left.set_xticks(range(len(PATHS)), list(PATHS), rotation=20)
    left.set_ylabel("bound on log p, nats per pixel")
    left.set_ylim(-0.6, 0.8)
    left.set_title("bound by path (two standard errors)")
    left.legend(fontsize=8)

    edges = torch.linspace(WIDE[1], WIDE[0], 24).tolist()
    for name, denoiser in list(denoisers.items())[:2]:  # here the third is exact
        parts = [
            -float(bound(denoiser, x, synchronous_path(), 8, (high, low)).diffusion.mean()) / numbers / (high - low)
            for low, high in pairwise(edges)
        ]
        middle.stairs(parts, edges, label=name)
    middle.set_xlabel("log-SNR")
    middle.set_ylabel("nats per pixel and unit of log-SNR")
    middle.set_title("what each noise level costs")
    middle.legend(fontsize=8)

    calls = [2, 4, 8, 16, 32, 64, 128]
    for name in ("synchronous", "pixels", "raster"):
        spread = [float(bound(exact, x, PATHS[name], each).error.square().mean().sqrt()) / numbers for each in calls]
        right.loglog(calls, spread, "o-", markersize=3, label=name)
    right.set_xlabel("network calls")
    right.set_ylabel("standard error of one picture, nats per pixel")
    right.set_title("precision")
    right.legend(fontsize=8)
    figure.savefig(file, dpi=110)
    print(f"wrote {file}; true log p is {float(true):.4f} nats per pixel")


if __name__ == "__main__":
    main()
