"""What the sampler draws: laws that must be those of the oracle, for every schedule, step and process."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpatch import fields
from asyncpatch.oracle import GaussianMixture
from asyncpatch.process import CosineVP, RectifiedFlow
from asyncpatch.sampling import sample
from asyncpatch.schedules import autoregressive, from_map, inpainting, synchronous
from asyncpatch.steps import churned_ddim, ddim, heun, multistep
from oracle import conditional, error, law_of, law_of_sampler, random_gaussian

SHAPE = (1, 3, 3)
COLOUR = (2, 2, 3)


def four_groups(order):
    return order * 4 // order.numel()


def maps(seed, height, width):
    """A start of 1, and a random begin and end for each token."""
    generator = torch.Generator().manual_seed(seed)
    begin = 0.6 * torch.rand(1, 1, height, width, generator=generator)
    end = begin + (1 - begin) * (0.4 + 0.6 * torch.rand(1, 1, height, width, generator=generator))
    return torch.ones(1, 1, height, width), begin, end


SCHEDULES = {
    "synchronous": lambda steps: synchronous(steps),
    "raster": lambda steps: autoregressive(four_groups(fields.raster_order(3, 3)), steps // 4),
    "spiral": lambda steps: autoregressive(four_groups(fields.spiral_order(3, 3)), steps // 4),
    "random": lambda steps: autoregressive(
        four_groups(fields.random_order(3, 3, generator=torch.Generator().manual_seed(3))), steps // 4
    ),
    "map": lambda steps: from_map(*maps(5, 3, 3), steps),
}
# relative error of the covariance allowed at 256 steps, for DDIM with eta 0; chance costs up to twice as much
ALLOWED = {"synchronous": 0.012, "raster": 0.042, "spiral": 0.042, "random": 0.042, "map": 0.025}


def law_error(denoiser, schedule, step, steps, shape=SHAPE):
    return error(law_of_sampler(denoiser, schedule, step, torch.zeros(1, *shape), steps=steps), law_of(denoiser))


@pytest.mark.parametrize("name", SCHEDULES)
def test_ddim_samples_the_right_law_and_its_error_falls_like_one_over_steps(process, name):
    denoiser = random_gaussian(process, SHAPE, seed=1)
    errors = []
    for steps in (64, 128, 256):
        mean, covariance = law_error(denoiser, SCHEDULES[name](steps), ddim(process), steps)
        assert mean < 1e-5
        errors.append(covariance)
    assert errors[-1] < ALLOWED[name]
    assert 1.75 < errors[0] / errors[1] < 2.25
    assert 1.85 < errors[1] / errors[2] < 2.15


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("kind", ["ancestral", "churned"])
def test_random_steps_sample_the_right_law_too(process, name, kind):
    step = ddim(process, eta=1.0) if kind == "ancestral" else churned_ddim(process)
    denoiser = random_gaussian(process, SHAPE, seed=1)
    coarse, fine = (law_error(denoiser, SCHEDULES[name](steps), step, steps)[1] for steps in (64, 128))
    assert fine < 4 * ALLOWED[name]
    assert 1.6 < coarse / fine < 2.2


@pytest.mark.parametrize("name", SCHEDULES)
def test_heun_is_of_second_order_under_every_schedule(process, name):
    denoiser = random_gaussian(process, SHAPE, seed=1)
    coarse, fine = (law_error(denoiser, SCHEDULES[name](steps), heun(process), steps)[1] for steps in (32, 64))
    assert fine < 0.003
    assert coarse / fine > 3.2


@pytest.mark.parametrize("name", SCHEDULES)
def test_multistep_is_of_second_order_under_every_schedule(process, name):
    """At the cost of DDIM, with at most a tenth of its error at 128 steps."""
    denoiser = random_gaussian(process, SHAPE, seed=1)
    coarse, fine = (law_error(denoiser, SCHEDULES[name](steps), multistep(process), steps)[1] for steps in (64, 128))
    assert fine < 0.1 * law_error(denoiser, SCHEDULES[name](128), ddim(process), 128)[1]
    assert coarse / fine > 2.7


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.sampled_from([RectifiedFlow(), CosineVP()]), st.sampled_from([0.0, 0.5, 1.0]))
def test_any_pace_per_token_samples_the_right_law(seed, process, eta):
    """Random laws over two correlated channels, random maps: the error is small, and halves from 64 to 128 steps."""
    denoiser = random_gaussian(process, COLOUR, seed)
    step = ddim(process, eta=eta)
    coarse, fine = (
        law_error(denoiser, from_map(*maps(seed, 2, 3), steps), step, steps, COLOUR)[1] for steps in (64, 128)
    )
    assert fine < 0.15
    assert fine < 0.62 * coarse


@pytest.mark.parametrize(
    "step",
    [ddim, heun, multistep, lambda process: ddim(process, eta=1.0)],
    ids=["ddim", "heun", "multistep", "eta 1"],
)
@pytest.mark.parametrize("order", ["together", "one by one"])
def test_inpainting_samples_the_conditional_law(process, step, order, generator):
    denoiser = random_gaussian(process, SHAPE, seed=2)
    x = denoiser.draw(1, generator=generator).double()
    hole = torch.tensor([[1, 0, 1], [0, 0, 1], [1, 0, 0]]).view(1, 1, 3, 3)
    steps = 256
    if order == "together":
        schedule = inpainting(hole, steps)
    else:
        schedule = autoregressive(fields.raster_order(3, 3), steps // 4, hole=hole)
    found = law_of_sampler(denoiser, schedule, step(process), x, steps=steps)
    wanted = conditional(law_of(denoiser), hole.flatten() == 0, x.flatten())
    known = hole.flatten() == 0
    assert torch.equal(found.mean[known], x.flatten()[known])
    assert (found.covariance[known] == 0).all()
    mean, covariance = error(found, wanted)
    allowed = 0.02 if order == "together" else 0.06  # four times fewer steps for each token
    assert mean < allowed
    assert covariance < allowed * (2 if step not in (ddim, heun, multistep) else 1)


def test_inpainting_with_real_noise_in_100_000_samples(generator):
    """The same without any algebra: draw, and look at mean and covariance."""
    process = RectifiedFlow()
    denoiser = random_gaussian(process, (1, 2, 3), seed=4)
    x = denoiser.draw(1, generator=generator).expand(100_000, -1, -1, -1)
    hole = torch.tensor([[1, 0, 1], [0, 1, 0]]).view(1, 1, 2, 3)
    schedule = inpainting(hole, 256)
    z = process.diffuse(x, schedule.start(x), torch.randn(x.shape, generator=generator))
    out = sample(denoiser, schedule, z, step=ddim(process, eta=0.5), generator=generator)
    known = (hole == 0).expand_as(out)
    assert torch.equal(out[known], x[known])
    flat = out.flatten(1).double()
    wanted = conditional(law_of(denoiser), hole.flatten() == 0, x[0].flatten().double())
    mean, covariance = error(type(wanted)(flat.mean(0), flat.T.cov()), wanted)
    assert mean < 0.02
    assert covariance < 0.02


def test_a_grey_hole_resamples_from_its_starting_time(process, generator):
    """Noise x to the hole's times, then draw from p(x | z), which ancestral steps do: a law that is known.

    (The deterministic sampler maps each z to one x instead: right only on average over x.)
    """
    denoiser = random_gaussian(process, SHAPE, seed=6)
    x = denoiser.draw(1, generator=generator).double()
    hole = torch.tensor([[0.0, 0.3, 0.6], [0.0, 1.0, 0.6], [0.3, 0.0, 0.6]]).view(1, 1, 3, 3)
    law = law_of(denoiser)
    alpha, sigma = process.alpha(hole).flatten().double(), process.sigma(hole).flatten().double()
    spread = alpha[:, None] * law.covariance * alpha + torch.diag(sigma**2)
    gain = torch.linalg.solve(spread, alpha[:, None] * law.covariance).T
    mean = law.mean + gain @ (alpha * (x.flatten() - law.mean))
    covariance = law.covariance - gain @ (alpha[:, None] * law.covariance) + gain * sigma**2 @ gain.T
    found = law_of_sampler(denoiser, inpainting(hole, 256), ddim(process, eta=1.0), x, steps=256)
    mean_error, covariance_error = error(found, type(found)(mean, covariance))
    assert mean_error < 0.005
    assert covariance_error < 0.02


@pytest.mark.parametrize("name", ["synchronous", "one by one"])
def test_a_mixture_keeps_its_proportions_and_its_shape(process, name, generator):
    """Two clusters of two pixels each: what a linear sampler could not get right."""
    law = GaussianMixture(
        process,
        torch.tensor([0.25, 0.75]),
        torch.tensor([[-0.9, 0.7], [0.6, -0.3]]).view(2, 1, 1, 2),
        torch.tensor([[[0.03, 0.02], [0.02, 0.04]], [[0.02, -0.01], [-0.01, 0.03]]]),
    )
    schedule = synchronous(64) if name == "synchronous" else autoregressive(torch.tensor([[1, 0]]), 32)
    z = torch.randn(20_000, 1, 1, 2, generator=generator)
    x = sample(law, schedule, z, step=heun(process)).flatten(1).double()
    first = x[:, 0] < -0.15
    assert first.double().mean().item() == pytest.approx(0.25, abs=0.02)
    for cluster, member in enumerate((first, ~first)):
        assert torch.allclose(x[member].mean(0), law.means[cluster].flatten().double(), atol=0.02)
        assert torch.allclose(x[member].T.cov(), law.covariances[cluster].double(), atol=0.005)


class Jumps:
    """Down in ten steps, but after the fifth back up to where it was two steps before, unasked; as RePaint does."""

    path = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)

    def __init__(self, finer):
        self.times = [
            a + (b - a) * j / finer
            for a, b in zip(self.path, self.path[1:], strict=False)
            for j in range(finer if b < a else 1)
        ] + [0.0]

    def start(self, z):
        return torch.ones(z.shape[0], 1, *z.shape[2:])

    def ask(self, k, t):
        return None if k == len(self.times) - 1 else self.times[k + 1] < self.times[k]

    def next(self, k, t, out):
        return torch.full_like(t, self.times[k + 1])


def test_a_schedule_may_go_back_up_without_asking(process):
    denoiser = random_gaussian(process, SHAPE, seed=1)
    schedule = Jumps(finer=16)
    asked = 0

    class Counting:
        process = denoiser.process

        def __call__(self, z, t, cond=None):
            nonlocal asked
            asked += 1
            return denoiser(z, t)

    steps = len(schedule.times) - 1
    found = law_of_sampler(Counting(), schedule, ddim(process), torch.zeros(1, *SHAPE), steps=steps)
    assert asked == steps - 1  # one move goes up
    assert error(found, law_of(denoiser))[1] < 0.03
