import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncpatch.parameterization import PREDICTIONS, from_x, to_x
from asyncpatch.process import CosineVP, RectifiedFlow


def case(process, generator):
    x, eps = (torch.randn(2, 3, 4, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    t = 0.02 + 0.96 * torch.rand(2, 1, 4, 4, generator=generator, dtype=torch.float64)
    return x, eps, t, process.diffuse(x, t, eps)


def test_each_is_what_its_definition_says(process, generator):
    x, eps, t, z = case(process, generator)
    alpha, sigma = process.alpha(t), process.sigma(t)
    v = eps - x if isinstance(process, RectifiedFlow) else alpha * eps - sigma * x
    wanted = {"x": x, "eps": eps, "v": v, "score": -(z - alpha * x) / sigma**2}
    for prediction in PREDICTIONS:
        assert torch.allclose(from_x(process, prediction, x, z, t), wanted[prediction]), prediction
        assert torch.allclose(to_x(process, prediction, wanted[prediction], z, t), x), prediction


def test_v_is_the_velocity_of_the_canvas(process, generator):
    """dz/dt at fixed x and eps, by finite differences, up to the process's constant."""
    x, eps, t, z = case(process, generator)
    h = 1e-6
    slope = (process.diffuse(x, t + h, eps) - process.diffuse(x, t - h, eps)) / (2 * h)
    assert torch.allclose(process.speed * from_x(process, "v", x, z, t), slope, atol=1e-6)


@given(
    st.sampled_from([RectifiedFlow(), CosineVP()]),
    st.sampled_from(PREDICTIONS),
    st.sampled_from([0.0, 1e-7, 0.5, 1 - 2**-24, 1.0]),
)
def test_everything_is_finite_at_the_ends_of_time(process, prediction, time):
    t = torch.full((1, 1, 1, 1), time)
    x = torch.full((1, 1, 1, 1), 0.3, requires_grad=True)
    z = process.diffuse(x, t, torch.full((1, 1, 1, 1), -0.8))
    value = from_x(process, prediction, x, z, t)
    back = to_x(process, prediction, value, z, t)
    (value + back).sum().backward()
    assert value.isfinite().all()
    assert back.isfinite().all()
    assert x.grad.isfinite().all()


def test_what_is_not_determined_is_zero(process):
    z, x = torch.full((1, 1, 1, 1), 0.4), torch.full((1, 1, 1, 1), 0.4)
    clean, noise = torch.zeros(1, 1, 1, 1), torch.ones(1, 1, 1, 1)
    for prediction in ("eps", "v", "score"):
        assert from_x(process, prediction, x, z, clean).item() == 0.0
    for prediction in ("eps", "score"):
        assert to_x(process, prediction, z, z, noise).item() == 0.0


def test_v_determines_x_at_pure_noise_and_leaves_a_clean_canvas_alone(process):
    x, eps = torch.full((1, 1, 1, 1), 0.3), torch.full((1, 1, 1, 1), -1.25)
    noise = torch.ones(1, 1, 1, 1)
    v = from_x(process, "v", x, eps, noise)
    assert to_x(process, "v", v, eps, noise).item() == pytest.approx(0.3, abs=1e-6)
    assert torch.equal(to_x(process, "v", v, x, torch.zeros(1, 1, 1, 1)), x)


@pytest.mark.parametrize("convert", [to_x, from_x])
def test_an_unknown_prediction_is_named(convert):
    z = torch.zeros(1, 1, 1, 1)
    with pytest.raises(ValueError, match=r"prediction must be one of x, eps, v, score; got 'flow'"):
        convert(RectifiedFlow(), "flow", z, z, z)


def test_times_near_the_ends_are_determined_still():
    flow, x, t = RectifiedFlow(), torch.zeros(1, 1, 1, 1), torch.full((1, 1, 1, 1), 1e-7)
    assert from_x(flow, "eps", x, flow.diffuse(x, t, x - 0.8), t).item() == pytest.approx(-0.8)
