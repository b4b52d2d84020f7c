import importlib.util
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from asyncpatch.models import film


def by_hand(h, t, weight, label):
    """Equations (1) to (4), number by number, for one channel vector h [C] at time t."""
    u = t**0.25 / (t**0.25 + (1 - t) ** 0.25)
    phi = [math.cos(math.pi * k * t) for k in range(8)] + [math.cos(math.pi * k * u) for k in range(1, 9)]
    rms = math.sqrt(sum(value**2 for value in h) / len(h) + film.EPS)
    out = []
    for c, value in enumerate(h):
        scale, shift = (label[n][c] + sum(p * weight[n][k][c] for k, p in enumerate(phi)) for n in range(2))
        a = value / rms * (1 + scale) + shift
        out.append(a / (1 + math.exp(-a)))
    return out


def case(generator, channels=5):
    h = torch.randn(2, channels, 3, 2, generator=generator)
    t = torch.rand(2, 1, 3, 2, generator=generator)
    weight = 0.3 * torch.randn(2, film.TIME_FEATURES, channels, generator=generator)
    label = 0.3 * torch.randn(2, 2, channels, generator=generator)
    return h, t, weight, label


def test_film_is_its_equations(generator):
    h, t, weight, label = case(generator)
    t[0, 0, 0, 0], t[0, 0, 0, 1] = 0.0, 1.0
    y = film.modulate_by_field(h, film.time_features(t), weight, label)
    for b, i, j in ((0, 0, 0), (0, 0, 1), (0, 2, 1), (1, 1, 0)):
        wanted = by_hand(h[b, :, i, j].tolist(), t[b, 0, i, j].item(), weight.tolist(), label[b].tolist())
        assert y[b, :, i, j].tolist() == pytest.approx(wanted, abs=1e-5)


def test_one_time_per_picture_is_a_constant_field(generator):
    h, t, _, _ = case(generator)
    layer = film.FiLM(5, 7)
    torch.nn.init.normal_(layer.weight)
    label, one = torch.randn(2, 7, generator=generator), t[:, :, :1, :1]
    scalar = layer(h, film.time_features(one), label)
    field = layer(h, film.time_features(one.expand_as(t)), label)
    assert torch.allclose(scalar, field, atol=1e-6)


def test_features_of_time_resolve_both_ends():
    times = torch.tensor([0.0, 1e-3, 0.5, 1 - 1e-3, 1.0]).view(-1, 1, 1, 1)
    phi = film.time_features(times)[:, :, 0, 0]
    assert phi.isfinite().all()
    assert torch.equal(phi[0], torch.ones(film.TIME_FEATURES))
    assert (phi[1] - phi[0]).norm() > 1  # a thousandth off the end is far away, as in log-SNR
    assert (phi[4] - phi[3]).norm() > 1


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is only to be had on Linux")
def test_the_fused_kernel_computes_the_same_forwards_and_backwards():
    """The CUDA kernel, run by triton's interpreter on the CPU, against plain torch and autograd."""
    script = Path(__file__).parent / "interpret_film.py"
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    errors = [float(line) for line in done.stdout.split()]
    assert len(errors) == 12
    assert max(errors) < 1e-5
