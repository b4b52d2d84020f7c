"""The random environment: walk, fluid limit, density and weights, each against the others."""

import math

import numpy as np
import pytest
import torch

from asyncpatch.environment import fluid, log_density, log_weights, transition_probabilities, walk
from asyncpatch.process import CosineVP, RectifiedFlow

LOW, HIGH = 0.05, 0.9


def laguerre(count):
    """Nodes and weights for integrals against exp(-a) on [0, inf)."""
    nodes, weights = np.polynomial.laguerre.laggauss(count)
    return torch.from_numpy(nodes), torch.from_numpy(weights)


def half_line(count):
    """Nodes and weights for integrals on (0, inf), by s = v / (1 - v) twice over: algebraic tails at both ends."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    v, dv = torch.from_numpy(nodes) / 2 + 0.5, torch.from_numpy(weights) / 2
    v, dv = v * v * (3 - 2 * v), dv * 6 * v * (1 - v)  # finer towards both ends
    return v / (1 - v), dv / (1 - v) ** 2


def test_a_walk_ends_where_it_should_one_token_at_a_time():
    alpha = torch.tensor([0.3, 1.0, 2.5])
    path = walk(alpha, 20, LOW, HIGH, generator=torch.Generator().manual_seed(0))
    assert path.shape == (61, 3)
    assert torch.equal(path[0], torch.full((3,), LOW, dtype=torch.float64))
    assert torch.allclose(path[-1], torch.full((3,), HIGH, dtype=torch.float64))
    steps = path.diff(dim=0)
    assert ((steps > 0).sum(1) == 1).all()
    assert steps.max() == pytest.approx((HIGH - LOW) / 20)


def test_a_walk_approaches_the_fluid_limit():
    """The largest distance falls like 1 / sqrt(K)."""
    alpha = torch.tensor([0.4, 1.0, 1.7, 3.0], dtype=torch.float64)
    off = []
    for resolution in (50, 800):
        runs = []
        for seed in range(6):
            path = walk(alpha, resolution, LOW, HIGH, generator=torch.Generator().manual_seed(seed))
            wanted = (path - LOW).sum(1) / (HIGH - LOW)  # physical time: sum over tokens of how far they have come
            low, high = torch.zeros_like(wanted), torch.full_like(wanted, 1e4)
            for _ in range(80):  # auxiliary time by bisection
                middle = (low + high) / 2
                less = (1 - torch.exp(-alpha * middle[:, None])).sum(1) < wanted
                low, high = torch.where(less, middle, low), torch.where(less, high, middle)
            runs.append(float((path - fluid(alpha, low[:, None], LOW, HIGH)).abs().max()))
        off.append(sum(runs) / len(runs))
    assert off[1] < 0.04
    assert 2.5 < off[0] / off[1] < 6.5  # 4 = sqrt(16)


def test_along_the_fluid_limit_the_next_token_does_not_depend_on_the_environment():
    alpha = torch.tensor([0.4, 1.0, 3.0], dtype=torch.float64)
    for sigma in (0.01, 1.0, 5.0):
        y = fluid(alpha, torch.tensor(sigma), LOW, HIGH)
        own = alpha * (HIGH - y)
        assert torch.allclose(transition_probabilities(y, LOW, HIGH), own / own.sum())


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_density_integrates_to_the_number_of_tokens(count):
    """In h = -log of what is left, where its tail is algebraic."""
    nodes, weights = half_line(80)
    grids = torch.meshgrid(*[nodes] * count, indexing="ij")
    h = torch.stack([grid.flatten() for grid in grids], -1)
    measure = torch.stack([grid.flatten() for grid in torch.meshgrid(*[weights] * count, indexing="ij")], -1).prod(-1)
    keep = (h < 30).all(-1)  # beyond that t is 1 in float64: the density is taken from its own formula there
    y = HIGH - (HIGH - LOW) * torch.exp(-h)
    inside = (log_density(y[keep], LOW, HIGH) + ((HIGH - LOW) * torch.exp(-h[keep])).log().sum(-1)).exp()
    outside = math.factorial(count - 1) * (torch.exp(-h[~keep]) * h[~keep]).sum(-1) / h[~keep].sum(-1) ** count
    total = (inside * measure[keep]).sum() + (outside * measure[~keep]).sum()
    assert float(total) == pytest.approx(count, rel=2e-3)


@pytest.mark.parametrize("count", [2, 3])
def test_the_weights_are_the_average_over_paths(count):
    """sum_i int lambda_i g_i dy against E over environments of the line integral of sum_i w g_i dy_i."""
    process = RectifiedFlow()

    def weight(t):
        return (1 - t) / t**3  # 1/2 |dSNR/dt|

    def g(y):
        return torch.stack(
            [torch.exp(-(2 + k) * y[..., k]) * (1 + y.sum(-1)) * y[..., k] ** 3 for k in range(count)], -1
        )

    nodes, weights = half_line(60)
    h = torch.stack([grid.flatten() for grid in torch.meshgrid(*[nodes] * count, indexing="ij")], -1)
    measure = torch.stack([grid.flatten() for grid in torch.meshgrid(*[weights] * count, indexing="ij")], -1).prod(-1)
    keep = (h < 30).all(-1)
    y = HIGH - (HIGH - LOW) * torch.exp(-h)
    jacobian = ((HIGH - LOW) * torch.exp(-h[keep])).log().sum(-1)
    inside = ((log_weights(process, y[keep], LOW, HIGH) + jacobian[:, None]).exp() * g(y[keep])).sum(-1)
    left = (HIGH - LOW) * torch.exp(-h[~keep]) * h[~keep]  # where y rounds to its end: the formula written out
    outside = (weight(y[~keep]) * g(y[~keep]) * left).sum(-1) * math.factorial(count - 1) / h[~keep].sum(-1) ** count
    closed = float((inside * measure[keep]).sum() + (outside * measure[~keep]).sum())

    alphas, chance = laguerre(32)
    alpha = torch.stack([grid.flatten() for grid in torch.meshgrid(*[alphas] * count, indexing="ij")], -1)
    odds = torch.stack([grid.flatten() for grid in torch.meshgrid(*[chance] * count, indexing="ij")], -1).prod(-1)
    paths = 0.0
    for sigma, d in zip(*half_line(100), strict=True):
        y = fluid(alpha, sigma, LOW, HIGH)
        rate = alpha * (HIGH - y)  # dy / dsigma
        paths += float(d) * float(((weight(y) * g(y) * rate).sum(-1) * odds).sum())
    assert closed == pytest.approx(paths, rel=5e-3)


@pytest.mark.parametrize("process", [RectifiedFlow(), CosineVP()])
def test_weights_are_density_times_probability_times_the_weight_of_one(process):
    y = torch.rand(5, 4, dtype=torch.float64) * 0.8 + 0.07
    step = 1e-6
    slope = (process.logsnr(y + step).exp() - process.logsnr(y - step).exp()).abs() / (2 * step)
    wanted = (HIGH - LOW) * log_density(y, LOW, HIGH).exp()[:, None] * transition_probabilities(y, LOW, HIGH)
    assert torch.allclose(log_weights(process, y, LOW, HIGH).exp(), wanted * 0.5 * slope, rtol=1e-4)


def test_everything_is_finite_for_many_tokens():
    alpha = torch.distributions.Exponential(1.0).sample((16_384,)).double()
    for sigma in (0.0, 1e-6, 0.1, 1.0, 20.0, 1e4):
        y = fluid(alpha, torch.tensor(sigma, dtype=torch.float64), 1e-4, 1 - 1e-4)
        for value in (
            log_density(y, 1e-4, 1 - 1e-4),
            log_weights(RectifiedFlow(), y, 1e-4, 1 - 1e-4),
            transition_probabilities(y, 1e-4, 1 - 1e-4),
        ):
            assert value.isfinite().all()
