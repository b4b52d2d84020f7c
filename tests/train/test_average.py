"""Averages: against sums written out, and snapshots against averages that were really kept."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from asyncpatch.train.average import Average, combination, exponential, gamma_of, power, rebuild, snapshot_name


def run(beta, weights):
    average = Average([("w", torch.zeros(()))], beta)
    for n, w in enumerate(weights, 1):
        average.update([torch.tensor(float(w))], n)
    return float(average.weights["w"])


def test_the_exponential_average_is_the_sum_it_stands_for():
    weights = np.random.default_rng(0).normal(size=300)
    betas = [min(0.9, (1 + n) / (10 + n)) for n in range(1, 301)]
    factors = [(1 - betas[n]) * np.prod(betas[n + 1 :]) for n in range(300)]
    assert run(exponential(0.9), weights) == pytest.approx(np.dot(factors, weights), abs=1e-5)


@pytest.mark.parametrize("sigma", [0.05, 0.1, 0.2])
def test_the_power_average_weighs_steps_by_a_power_and_has_its_width(sigma):
    gamma, steps = gamma_of(sigma), 2000
    n = np.arange(1, steps + 1)
    weighs = n**gamma / (n**gamma).sum()
    for probe in (n / steps, (n / steps) ** 2):
        assert run(power(sigma), probe) == pytest.approx(np.dot(weighs, probe), abs=2e-3)
    mean = np.dot(weighs, n / steps)
    assert np.sqrt(np.dot(weighs, (n / steps - mean) ** 2)) == pytest.approx(sigma, rel=0.02)


def test_published_gammas():
    assert gamma_of(0.05) == pytest.approx(16.97, abs=0.01)
    assert gamma_of(0.10) == pytest.approx(6.94, abs=0.01)
    with pytest.raises(ValueError, match="sigma"):
        gamma_of(0.5)


def test_the_first_weights_do_not_hold_an_average_back():
    assert run(power(0.1), [5.0]) == 5.0
    assert run(exponential(0.9999), [1.0] * 50) == pytest.approx(1.0, abs=0.01)


def test_a_snapshot_rebuilds_itself():
    factors = combination([100, 200, 200], [0.05, 0.05, 0.1], 200, 0.1)
    assert factors == pytest.approx([0.0, 0.0, 1.0], abs=1e-6)


@pytest.mark.parametrize("sigma", [0.03, 0.07, 0.15])
def test_any_width_is_rebuilt_from_snapshots(tmp_path, sigma):
    """Weights on a random walk that settles, as in training; the wanted average is kept beside for comparison."""
    steps, size = 800, 200
    generator = torch.Generator().manual_seed(0)
    weights = torch.zeros(size)
    kept = {each: Average([("w", weights)], power(each)) for each in (0.05, 0.1, sigma)}
    for n in range(1, steps + 1):
        weights = weights + torch.randn(size, generator=generator) * n**-0.5
        for average in kept.values():
            average.update([weights], n)
        if n % 50 == 0:
            for each in (0.05, 0.1):
                save_file({"w": kept[each].weights["w"].half()}, tmp_path / snapshot_name(n, each))
    found, wanted = rebuild(tmp_path, sigma)["w"], kept[sigma].weights["w"]
    nearest = min((kept[0.05], kept[0.1]), key=lambda each: (each.weights["w"] - wanted).norm()).weights["w"]
    error = (found - wanted).norm() / wanted.norm()
    assert error < 0.02
    assert (found - wanted).norm() < 0.35 * (nearest - wanted).norm()  # more than picking a snapshot
    with pytest.raises(FileNotFoundError, match="snapshot-every"):
        rebuild(tmp_path / "none", sigma)


def test_an_earlier_step_is_rebuilt_from_what_was_there(tmp_path):
    weights, kept = torch.zeros(50), None
    averages = {each: Average([("w", weights)], power(each)) for each in (0.05, 0.1, 0.07)}
    generator = torch.Generator().manual_seed(0)
    for n in range(1, 401):
        weights = weights + torch.randn(50, generator=generator)
        for average in averages.values():
            average.update([weights], n)
        if n == 200:
            kept = averages[0.07].weights["w"].clone()
        if n % 25 == 0:
            for each in (0.05, 0.1):
                save_file({"w": averages[each].weights["w"].clone()}, tmp_path / snapshot_name(n, each))
    assert (rebuild(tmp_path, 0.07, 200)["w"] - kept).norm() < 0.02 * kept.norm()
    with pytest.raises(ValueError, match="first snapshot, 25; got 24"):
        rebuild(tmp_path, 0.07, 24)
