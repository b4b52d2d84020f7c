import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncpatch.process import CosineVP, RectifiedFlow, divide

times = st.floats(0.0, 1.0, width=32)
processes = st.sampled_from([RectifiedFlow(), CosineVP()])


def full(value):
    return torch.full((1, 1, 1, 1), value)


def test_the_ends_of_time_are_exact(process):
    ends = torch.tensor([0.0, 1.0])
    assert process.alpha(ends).tolist() == [1.0, 0.0]
    assert process.sigma(ends).tolist() == [0.0, 1.0]
    assert process.logsnr(ends).tolist() == [math.inf, -math.inf]


def test_values_by_hand():
    t = torch.tensor([0.25, 0.5], dtype=torch.float64)
    flow, cosine = RectifiedFlow(), CosineVP()
    assert torch.allclose(flow.logsnr(t), torch.tensor([2 * math.log(3.0), 0.0], dtype=torch.float64))
    assert torch.allclose(cosine.alpha(t), torch.tensor([math.cos(math.pi / 8), math.sqrt(0.5)], dtype=torch.float64))
    assert torch.allclose(cosine.sigma(t), torch.tensor([math.sin(math.pi / 8), math.sqrt(0.5)], dtype=torch.float64))


def test_diffuse_leaves_clean_tokens_and_pure_noise_bit_exact(process, generator):
    x, noise = (torch.randn(2, 3, 4, 4, generator=generator) for _ in range(2))
    t = torch.tensor([0.0, 1.0, 0.0, 1.0]).view(1, 1, 1, 4)
    z = process.diffuse(x, t, noise)
    assert torch.equal(z[..., ::2], x[..., ::2])
    assert torch.equal(z[..., 1::2], noise[..., 1::2])


def test_diffuse_takes_any_field_that_broadcasts(process, generator):
    x, noise = (torch.randn(2, 3, 4, 5, generator=generator) for _ in range(2))
    whole = process.diffuse(x, torch.full((2, 1, 4, 5), 0.3), noise)
    for shape in [(), (1, 1, 1, 1), (2, 1, 1, 1), (1, 1, 4, 5), (1, 1, 4, 1)]:
        assert torch.equal(process.diffuse(x, torch.full(shape, 0.3), noise), whole)


@given(processes, times, times)
def test_diffusing_on_has_the_law_of_diffusing_at_once(process, a, b):
    """q(z_s | x) = integral of q(z_s | z_t) q(z_t | x): the response to x, and the variance of the noise."""
    t, s = full(min(a, b)).double(), full(max(a, b)).double()
    one, zero = full(1.0).double(), full(0.0).double()

    def push(x, first, second):
        return process.transition(process.diffuse(x, t, first), t, s, second).item()

    assert push(one, zero, zero) == pytest.approx(process.alpha(s).item(), abs=1e-9)
    variance = push(zero, one, zero) ** 2 + push(zero, zero, one) ** 2
    assert variance == pytest.approx(process.sigma(s).item() ** 2, abs=1e-9)


@given(processes, times, times)
def test_transition_never_denoises(process, a, b):
    t, s = full(max(a, b)), full(min(a, b))
    z, noise = full(0.7), full(-1.3)
    assert torch.equal(process.transition(z, t, s, noise), z)


def test_the_cosine_process_is_rectified_flow_rescaled(generator):
    cosine, flow = CosineVP(), RectifiedFlow()
    x, noise = (torch.randn(1, 1, 4, 4, generator=generator) for _ in range(2))
    t = torch.rand(1, 1, 4, 4, generator=generator)
    scale = cosine.alpha(t) + cosine.sigma(t)
    rescaled = cosine.diffuse(x, t, noise) / scale
    assert torch.allclose(rescaled, flow.diffuse(x, cosine.sigma(t) / scale, noise), atol=1e-6)


def test_divide_is_zero_where_it_is_not_determined_and_so_is_its_gradient():
    denominator = torch.tensor([0.0, 2.0], requires_grad=True)
    quotient = divide(torch.tensor([3.0, 3.0]), denominator)
    quotient.sum().backward()
    assert quotient.tolist() == [0.0, 1.5]
    assert denominator.grad.tolist() == [0.0, -0.75]


@pytest.mark.parametrize(
    ("t", "words"),
    [
        (torch.rand(2), ["t must", "[B, 1, H, W]", "[2]", "t.view(-1, 1, 1, 1)"]),
        (torch.rand(2, 3, 4, 4), ["t must", "one value per token", "[2, 3, 4, 4]"]),
        (torch.rand(2, 1, 4, 5), ["t must broadcast to [2, 1, 4, 4]", "[2, 1, 4, 5]"]),
        (torch.full((1, 1, 1, 1), 1.5), ["t must lie in [0, 1]", "1.5"]),
        (torch.full((1, 1, 1, 1), -0.5), ["t must lie in [0, 1]", "-0.5"]),
        (torch.full((1, 1, 1, 1), math.nan), ["t must lie in [0, 1]", "nan"]),
        (0.5, ["t must be a tensor", "float 0.5"]),
    ],
)
def test_a_bad_time_is_named(t, words):
    x = torch.zeros(2, 3, 4, 4)
    with pytest.raises(ValueError, match=".*".join(map(re.escape, words))):
        RectifiedFlow().diffuse(x, t, x)


@pytest.mark.parametrize(
    ("x", "noise", "words"),
    [
        (torch.zeros(3, 4, 4), torch.zeros(3, 4, 4), ["x must be", "[B, C, H, W]", "[3, 4, 4]"]),
        (torch.zeros(1, 3, 4, 4, dtype=torch.uint8), torch.zeros(1, 3, 4, 4), ["x must be", "floating", "uint8"]),
        (torch.zeros(1, 3, 4, 4), torch.zeros(1, 1, 4, 4), ["noise must", "[1, 3, 4, 4]", "[1, 1, 4, 4]"]),
    ],
)
def test_a_bad_picture_is_named(x, noise, words):
    with pytest.raises(ValueError, match=".*".join(map(re.escape, words))):
        RectifiedFlow().diffuse(x, torch.zeros(1, 1, 1, 1), noise)


def test_an_empty_batch_is_no_error(process):
    empty = torch.zeros(0, 3, 4, 4)
    assert process.diffuse(empty, torch.zeros(0, 1, 4, 4), empty).shape == empty.shape
