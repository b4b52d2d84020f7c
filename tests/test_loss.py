import math

import pytest
import torch

from asyncpatch.loss import diffusion_loss, elbo_weight, sigmoid_weight
from asyncpatch.parameterization import PREDICTIONS, from_x
from asyncpatch.process import RectifiedFlow
from oracle import random_gaussian


def times(count=99):
    return torch.linspace(0.01, 0.99, count, dtype=torch.float64).view(1, 1, 1, count)


@pytest.mark.parametrize("bias", [0.0, 2.0, -1.5])
def test_the_weight_is_that_of_sid2(process, bias):
    """Equation (1), with the slope of the log-SNR by finite differences."""
    t, h = times(), 1e-6
    slope = (process.logsnr(t + h) - process.logsnr(t - h)) / (2 * h)
    wanted = 0.5 * slope.abs() * math.exp(bias) * torch.sigmoid(process.logsnr(t) - bias)
    assert torch.allclose(sigmoid_weight(process, "x", t, bias=bias), wanted, rtol=1e-6)


@pytest.mark.parametrize("bias", [0.0, 2.0, -1.5])
def test_the_weight_on_v_is_greatest_where_the_log_snr_is_the_bias(process, bias):
    t = times(9999)
    peak = t.flatten()[sigmoid_weight(process, "v", t, bias=bias).argmax()]
    assert process.logsnr(peak).item() == pytest.approx(bias, abs=2e-3)


def test_the_weight_on_v_by_hand():
    """Rectified flow: e^b t (1-t) / (e^b t^2 + (1-t)^2)."""
    t, e = times(), math.exp(2.0)
    wanted = e * t * (1 - t) / (e * t**2 + (1 - t) ** 2)
    assert torch.allclose(sigmoid_weight(RectifiedFlow(), "v", t), wanted)


def test_every_prediction_of_the_same_picture_has_the_same_loss(process, generator):
    x, noise, wrong = (torch.randn(2, 3, 4, 5, generator=generator, dtype=torch.float64) for _ in range(3))
    t = 0.05 + 0.9 * torch.rand(2, 1, 4, 5, generator=generator, dtype=torch.float64)
    z = process.diffuse(x, t, noise)
    losses = [diffusion_loss(process, kind, from_x(process, kind, wrong, z, t), x, noise, t) for kind in PREDICTIONS]
    assert losses[0].shape == t.shape
    by_hand = sigmoid_weight(process, "x", t) * (x - wrong).square().mean(1, keepdim=True)
    for loss in losses:
        assert torch.allclose(loss, by_hand, rtol=1e-4)


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_the_ends_of_time_teach_nothing_and_break_nothing(process, prediction):
    t = torch.tensor([0.0, 1.0]).view(1, 1, 1, 2)
    value = torch.full((1, 1, 1, 2), 3.0, requires_grad=True)
    loss = diffusion_loss(process, prediction, value, torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 1, 2), t)
    loss.sum().backward()
    assert (loss == 0).all()
    assert (value.grad == 0).all()


def test_half_precision_is_no_reason_for_a_rough_loss(process, generator):
    x, noise = (torch.randn(2, 3, 4, 4, generator=generator).bfloat16() for _ in range(2))
    value, t = torch.zeros(2, 3, 4, 4).bfloat16(), torch.full((1, 1, 1, 1), 0.25).bfloat16()
    exact = diffusion_loss(process, "v", value.double(), x.double(), noise.double(), t.double())
    assert torch.allclose(diffusion_loss(process, "v", value, x, noise, t).double(), exact, rtol=1e-5)


def test_the_exact_denoiser_has_the_least_loss(process, generator):
    """Lemma 1 by trial: under fields that differ at every token, moving its answer either way costs."""
    law = random_gaussian(process, (2, 2, 2))
    x = law.draw(4000, generator=generator).double()
    t = torch.rand(1, 1, 2, 2, generator=generator).expand(4000, 1, 2, 2)
    noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
    z = process.diffuse(x, t, noise)
    best = law(z, t).x
    direction = torch.randn(1, 2, 2, 2, generator=generator) + 0.3 * (best - best.mean(0))

    def mean_loss(step):
        value = from_x(process, "v", best + step * direction, z, t)
        return diffusion_loss(process, "v", value, x, noise, t).mean().item()

    assert mean_loss(0.0) < min(mean_loss(0.1), mean_loss(-0.1))


def test_bad_arguments_are_named():
    x = torch.zeros(2, 3, 4, 4)
    with pytest.raises(ValueError, match=r"t must be a tensor that broadcasts .*use t.view\(-1, 1, 1, 1\)"):
        diffusion_loss(RectifiedFlow(), "v", x, x, x, torch.zeros(2))
    with pytest.raises(ValueError, match=r"value must have the shape of x"):
        diffusion_loss(RectifiedFlow(), "v", x[:1], x, x, torch.zeros(()))
    for use in (
        lambda: sigmoid_weight(RectifiedFlow(), "flow", torch.zeros(())),
        lambda: diffusion_loss(RectifiedFlow(), "flow", x, x, x, torch.zeros(())),
    ):
        with pytest.raises(ValueError, match=r"prediction must be one of x, eps, v, score; got 'flow'"):
            use()


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_the_bounds_weight_is_half_the_snr_on_x_whatever_is_predicted(process, prediction):
    x, noise, wrong = (torch.randn(2, 3, 4, 4, dtype=torch.float64) for _ in range(3))
    t = torch.rand(2, 1, 4, 4, dtype=torch.float64) * 0.9 + 0.05
    z = process.diffuse(x, t, noise)
    value = from_x(process, prediction, wrong, z, t)
    loss = diffusion_loss(process, prediction, value, x, noise, t, weighting="elbo")
    wanted = 0.5 * process.logsnr(t).exp() * (x - wrong).square().mean(1, keepdim=True)
    assert torch.allclose(loss, wanted)


def test_unknown_predictions_have_no_weight_in_the_bound():
    with pytest.raises(ValueError, match="flow"):
        elbo_weight(RectifiedFlow(), "flow", torch.zeros(()))
