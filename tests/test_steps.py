import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncpatch.process import CosineVP, RectifiedFlow
from asyncpatch.protocols import Denoised, Visit
from asyncpatch.steps import churned_ddim, ddim, heun, multistep
from oracle import random_gaussian

STEPS = {
    "ddim": ddim,
    "ddim eta 1": lambda process: ddim(process, eta=1.0),
    "churned": churned_ddim,
    "heun": heun,
    "multistep": multistep,
}
times = st.floats(0.0, 1.0, width=32)


def full(value):
    return torch.full((1, 1, 1, 1), value, dtype=torch.float64)


def move(step, z, t, s, x, noise):
    """One step with the answer x everywhere, z, t, s, x and noise being numbers or tensors."""
    z, t, s, x, noise = (value if isinstance(value, torch.Tensor) else full(value) for value in (z, t, s, x, noise))
    return step(lambda *_: Denoised(x), Visit(z, t, Denoised(x)), s, lambda: noise, None)


@pytest.mark.parametrize("name", STEPS)
def test_every_token_goes_its_own_way(process, name, generator):
    """Held tokens come back bit for bit, at both ends of time too; the others go down or up; all is finite."""
    t = torch.tensor([0.0, 0.3, 1.0, 0.0, 0.4, 0.3, 1.0, 1.0, 0.9]).view(1, 1, 3, 3)
    s = torch.tensor([0.0, 0.3, 1.0, 0.7, 1.0, 0.6, 0.0, 0.5, 0.2]).view(1, 1, 3, 3)
    z, noise = (torch.randn(4, 2, 3, 3, generator=generator) for _ in range(2))
    denoiser = random_gaussian(process, (2, 3, 3))
    step = STEPS[name](process)
    found = step(denoiser, Visit(z, t.expand(4, 1, 3, 3), denoiser(z, t)), s.expand(4, 1, 3, 3), lambda: noise, None)
    held = (s == t).expand_as(found)
    assert torch.equal(found[held], z[held])
    assert found.isfinite().all()
    assert (found != z)[~held].all()
    up = (s > t).expand_as(found)
    assert torch.equal(found[up], process.transition(z, t, s, noise)[up])


@given(st.sampled_from([RectifiedFlow(), CosineVP()]), times, times, st.floats(-2, 2), st.floats(-2, 2))
def test_ancestral_ddim_is_the_posterior_of_the_forward_process(process, a, b, x, eps):
    """With the true x, eta = 1 must draw from q(z_s | z_t, x), here by conditioning the Gaussian (z_s, z_t) given x."""
    t, s = max(a, b), min(a, b)
    if t - s < 1e-3 or s > 0.999:
        return
    alpha_t, sigma_t, alpha_s, sigma_s = (f(full(v)).item() for v in (t, s) for f in (process.alpha, process.sigma))
    z = alpha_t * x + sigma_t * eps
    covariance = alpha_t / alpha_s * sigma_s**2  # of z_s and z_t given x
    mean = alpha_s * x + covariance / sigma_t**2 * (z - alpha_t * x)
    variance = sigma_s**2 - covariance**2 / sigma_t**2
    step = ddim(process, eta=1.0)
    centre = move(step, z, t, s, x, 0.0).item()
    assert centre == pytest.approx(mean, abs=1e-6)
    assert (move(step, z, t, s, x, 1.0).item() - centre) ** 2 == pytest.approx(variance, abs=1e-6)


@given(st.sampled_from([RectifiedFlow(), CosineVP()]), times, times, st.floats(0, 1), st.sampled_from(["eta", "churn"]))
def test_every_coefficient_keeps_the_marginal(process, a, b, coefficient, kind):
    """With the true x, z_s has mean alpha_s x and variance sigma_s^2, however much of it is drawn anew."""
    t, s = full(max(a, b)), full(min(a, b))
    step = ddim(process, eta=coefficient) if kind == "eta" else churned_ddim(process, churn=coefficient)

    def push(x, eps, noise):
        return move(step, process.diffuse(full(x), t, full(eps)), t, s, x, noise).item()

    assert push(1.0, 0.0, 0.0) == pytest.approx(process.alpha(s).item(), abs=1e-6)
    variance = push(0.0, 1.0, 0.0) ** 2 + push(0.0, 0.0, 1.0) ** 2
    assert variance == pytest.approx(process.sigma(s).item() ** 2, abs=1e-6)


def test_noise_of_both_coefficients_by_hand():
    """Rectified flow from 0.8 to 0.5: r = 0.2 * 0.5 / (0.5 * 0.8) = 0.25."""
    flow = RectifiedFlow()
    for eta in (0.0, 0.5, 1.0):
        found = move(ddim(flow, eta=eta), 0.0, 0.8, 0.5, 0.0, 1.0).item()
        assert found == pytest.approx(eta * 0.5 * (1 - 0.25**2) ** 0.5)
    for churn in (0.0, 0.25, 1.0):
        kept = churn * 0.25 + 1 - churn
        found = move(churned_ddim(flow, churn=churn), 0.0, 0.8, 0.5, 0.0, 1.0).item()
        assert found == pytest.approx(0.5 * (1 - kept**2) ** 0.5)


def test_the_papers_coefficient_is_not_eta_but_near_eta_one_half_at_small_steps():
    flow = RectifiedFlow()
    churned = move(churned_ddim(flow, churn=0.25), 0.0, 0.5, 0.499, 0.0, 1.0).item()
    assert churned == pytest.approx(move(ddim(flow, eta=0.5), 0.0, 0.5, 0.499, 0.0, 1.0).item(), rel=2e-3)
    assert churned > 1.9 * move(ddim(flow, eta=0.25), 0.0, 0.5, 0.499, 0.0, 1.0).item()


@pytest.mark.parametrize("name", ["ddim", "ddim eta 1", "churned", "multistep"])
@pytest.mark.parametrize("t", [0.3, 1.0])
def test_ddim_to_time_zero_is_the_answer_itself(process, name, t):
    assert move(STEPS[name](process), 0.9, t, 0.0, 0.123, 5.0).item() == 0.123


@pytest.mark.parametrize("name", ["ddim", "heun", "multistep"])
def test_the_cosine_process_steps_like_rectified_flow_rescaled(name, generator):
    """The same denoiser, asked in either process's terms, must lead to the same picture."""
    cosine, flow = CosineVP(), RectifiedFlow()
    t, s = (torch.full((1, 1, 1, 1), value, dtype=torch.float64) for value in (0.7, 0.4))

    def scale(time):
        return cosine.alpha(time) + cosine.sigma(time)

    def to_flow(time):
        return cosine.sigma(time) / scale(time)

    def to_cosine(time):  # inverse of to_flow: tan(pi t / 2) = h / (1 - h)
        return torch.atan2(time, 1 - time) * 2 / torch.pi

    law = random_gaussian(flow, (1, 2, 2))
    z = torch.randn(1, 1, 2, 2, generator=generator, dtype=torch.float64)
    noise = torch.zeros_like(z)

    def in_cosine(z, t):
        return law(z / scale(t), to_flow(t))

    found = STEPS[name](cosine)(in_cosine, Visit(z * scale(t), t, in_cosine(z * scale(t), t)), s, lambda: noise, None)
    h_t, h_s = to_flow(t), to_flow(s)
    assert torch.allclose(to_cosine(h_t), t)
    wanted = STEPS[name](flow)(law, Visit(z, h_t, law(z, h_t)), h_s, lambda: noise, None)
    assert torch.allclose(found / scale(s), wanted, atol=1e-9)


@pytest.mark.parametrize("s", [0.5, 0.0])
def test_heun_asks_once_more_and_where_it_is_determined(process, s):
    asked = []

    def denoise(z, t):
        asked.append(t.item())
        return Denoised(0.5 * z)

    z, t = full(1.0), full(0.8)
    heun(process)(denoise, Visit(z, t, Denoised(0.5 * z)), full(s), lambda: z, None)
    assert asked == [pytest.approx(s or 0.4)]


@pytest.mark.parametrize("name", STEPS)
def test_without_an_answer_a_step_noises_and_holds_but_never_denoises(process, name, generator):
    t = torch.tensor([0.3, 0.3, 0.3]).view(1, 1, 1, 3)
    s = torch.tensor([0.3, 0.6, 0.1]).view(1, 1, 1, 3)
    z, noise = (torch.randn(1, 1, 1, 3, generator=generator) for _ in range(2))
    found = STEPS[name](process)(None, Visit(z, t, None), s, lambda: noise, None)
    assert torch.equal(found[..., 0], z[..., 0])
    assert torch.equal(found[..., 1], process.transition(z, t, s, noise)[..., 1])
    assert found[..., 2].isnan().all()


@pytest.mark.parametrize("build", [ddim, churned_ddim, heun, multistep])
def test_a_process_that_was_not_made_is_named(build):
    with pytest.raises(TypeError, match=r"process must be a process such as RectifiedFlow\(\), got <class"):
        build(RectifiedFlow)


@pytest.mark.parametrize(("build", "name"), [(ddim, "eta"), (churned_ddim, "churn")])
@pytest.mark.parametrize("value", [-0.1, 1.5, float("nan")])
def test_a_bad_coefficient_is_named(build, name, value):
    with pytest.raises(ValueError, match=rf"{name} must lie in \[0, 1\], got {value}"):
        build(RectifiedFlow(), **{name: value})


def test_defaults():
    flow = RectifiedFlow()
    for default, said in ((ddim(flow), ddim(flow, eta=0.0)), (churned_ddim(flow), churned_ddim(flow, churn=0.25))):
        assert torch.equal(move(default, 0.3, 0.8, 0.5, 0.1, 1.0), move(said, 0.3, 0.8, 0.5, 0.1, 1.0))


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("asked", [True, False])
def test_every_step_draws_one_canvas_of_noise(process, name, asked):
    drawn = []
    z, t = full(0.0), full(0.5)
    visit = Visit(z, t, Denoised(z) if asked else None)
    STEPS[name](process)(lambda z, t: Denoised(z), visit, full(0.3) if asked else t, lambda: drawn.append(z) or z, None)
    assert len(drawn) == 1


def test_heun_asks_about_noised_tokens_where_they_will_be(process, generator):
    """The second question must show each token as it is at its own s, also those that go up."""
    t, s = (torch.tensor(values).view(1, 1, 1, 2) for values in ([0.3, 0.6], [0.8, 0.4]))
    z = torch.randn(1, 1, 1, 2, generator=generator)
    asked = []

    def denoise(z, t):
        asked.append((z, t))
        return Denoised(0.5 * z)

    out = heun(process)(denoise, Visit(z, t, Denoised(0.5 * z)), s, lambda: torch.ones_like(z), None)
    assert torch.equal(asked[0][0][..., 0], out[..., 0])
    assert torch.equal(asked[0][1], s)


def test_multistep_is_exact_for_answers_in_a_straight_line():
    """dy/dh = (y - x(h)) / h with x(h) = 3 + 2 h, by its solution y = C h + 3 - 2 h log h; from a step as long."""
    flow, calls = RectifiedFlow(), []

    def solution(h, constant=0.7):
        return constant * h + 3 - 2 * h * math.log(h)

    def go(before, t, s):
        last = None if before is None else Visit(full(0.0), full(before), Denoised(full(3 + 2 * before)))
        now = Visit(full(solution(t)), full(t), Denoised(full(3 + 2 * t)))
        return multistep(flow)(lambda *_: calls.append(0), now, full(s), lambda: full(0.0), last).item()

    assert go(0.8, 0.6, 0.4) == pytest.approx(solution(0.4), abs=1e-6)
    assert go(0.8, 0.6, 0.3) == pytest.approx(solution(0.3), abs=1e-6)
    first = move(ddim(flow), solution(0.6), 0.6, 0.4, 3 + 2 * 0.6, 0.0).item()
    for stood in (None, 0.6, 0.5):  # nothing before, or it did not come from above
        assert go(stood, 0.6, 0.4) == pytest.approx(first, abs=1e-9)
    assert abs(first - solution(0.4)) > 0.01
    assert go(0.8, 0.6, 0.0) == pytest.approx(3 + 2 * 0.6)  # its last step
    straight = move(ddim(flow), solution(0.6), 0.6, 0.3, 3 + 2 * 0.6, 0.0).item()
    assert abs(go(0.601, 0.6, 0.3) - straight) < 0.01 * abs(
        go(0.8, 0.6, 0.3) - straight
    )  # no line from next to nothing
    assert not calls


def test_multistep_continues_each_token_by_itself(process, generator):
    """One that waited goes as by DDIM, beside one that did not."""
    z, x, old, noise = (torch.randn(1, 1, 1, 2, generator=generator, dtype=torch.float64) for _ in range(4))
    t, s = torch.tensor([0.7, 0.7]).view(1, 1, 1, 2), torch.tensor([0.5, 0.5]).view(1, 1, 1, 2)
    last = Visit(z, torch.tensor([0.9, 0.7]).view(1, 1, 1, 2), Denoised(old))
    found = multistep(process)(None, Visit(z, t, Denoised(x)), s, lambda: noise, last)
    first = ddim(process)(None, Visit(z, t, Denoised(x)), s, lambda: noise, None)
    assert found[..., 1] == pytest.approx(first[..., 1], abs=1e-6)
    assert abs(found[..., 0] - first[..., 0]) > 1e-3
