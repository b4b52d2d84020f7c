import importlib.util
import itertools
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from asyncpatch.models import film, film_cpu


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


@pytest.fixture(params=[10, 29, 30])
def in_parts(request, monkeypatch):
    """Where nothing is to be differentiated, two of the six pixels of a picture of ``case`` are changed at a time, or
    three, or all."""
    monkeypatch.setattr(film_cpu, "AT_ONCE", request.param)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


def test_parts_of_the_pixels_are_the_same_equations(generator, in_parts):
    h, t, weight, label = case(generator)
    h[1, :, 2, 1] *= 1e-3  # about where eps is half of what is under the root
    given = h.clone()
    assert film_cpu.apt(h) is False
    with torch.no_grad():
        assert film_cpu.apt(h)
        for like in (h, h.to(memory_format=torch.channels_last)):
            y = film.modulate_by_field(like, film.time_features(t), weight, label)
            for b, i, j in itertools.product(range(2), range(3), range(2)):
                wanted = by_hand(h[b, :, i, j].tolist(), t[b, 0, i, j].item(), weight.tolist(), label[b].tolist())
                assert y[b, :, i, j].tolist() == pytest.approx(wanted, abs=1e-5)
    assert torch.equal(h, given)  # what is asked about is not written to


@pytest.mark.parametrize("activate", [False, True])
def test_a_norm_with_a_gain_in_parts(generator, in_parts, activate):
    h, gain = case(generator)[0], torch.rand(5, generator=generator)
    h[1, :, 2, 1] *= 1e-3
    with torch.no_grad():
        y = film.normalise(h, gain, activate=activate)
    for b, i, j in itertools.product(range(2), range(3), range(2)):
        rms = math.sqrt(sum(value**2 for value in h[b, :, i, j].tolist()) / 5 + film.EPS)
        wanted = [value / rms * float(g) for value, g in zip(h[b, :, i, j].tolist(), gain, strict=True)]
        wanted = [a / (1 + math.exp(-a)) if activate else a for a in wanted]
        assert y[b, :, i, j].tolist() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_parts_are_rounded_as_the_whole_is(generator, monkeypatch, dtype):
    """Of 7 x 9 pixels, so that none of the parts is like the others; also under autocast."""
    h, t = torch.randn(5, 16, 7, 9, generator=generator).to(dtype), torch.rand(5, 1, 7, 9, generator=generator)
    weight, label = (
        torch.randn(2, film.TIME_FEATURES, 16, generator=generator),
        torch.randn(5, 2, 16, generator=generator),
    )
    phi, found = film.time_features(t), []
    for at_once in (1 << 20, 300, 5000):
        monkeypatch.setattr(film_cpu, "AT_ONCE", at_once)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            assert film_cpu.apt(h) is (at_once * torch.get_num_threads() < h.numel())
            found += [
                torch.cat(
                    [film.modulate_by_field(h, phi, weight, label), film.normalise(h, h[0, :, 0, 0], activate=True)]
                )
            ]
    tolerance = 1e-5 if dtype == torch.float32 else 2**-7
    assert all(each.dtype == dtype for each in found)
    assert torch.allclose(found[0], found[1], tolerance, tolerance)
    assert torch.allclose(found[0], found[2], tolerance, tolerance)


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
