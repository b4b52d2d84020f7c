import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpatch import fields
from asyncpatch.oracle import GaussianMixture
from asyncpatch.process import CosineVP, RectifiedFlow
from asyncpatch.protocols import Cond, Denoised
from asyncpatch.sampling import draw_noise, generators, sample
from asyncpatch.schedules import autoregressive, from_map, inpainting, synchronous
from asyncpatch.steps import churned_ddim, ddim, heun
from oracle import conditional, error, law_of, law_of_sampler, random_gaussian
from watch import CountWaits, live_bytes

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


@pytest.mark.parametrize("step", [ddim, heun, lambda process: ddim(process, eta=1.0)], ids=["ddim", "heun", "eta 1"])
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
    assert covariance < allowed * (2 if step not in (ddim, heun) else 1)


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


# --- special cases are exactly the simpler thing ---


@pytest.mark.parametrize("make", [ddim, heun, churned_ddim])
def test_whole_holes_single_groups_and_constant_maps_are_the_synchronous_schedule_exactly(process, make, generator):
    denoiser = random_gaussian(process, COLOUR)
    z = torch.randn(3, *COLOUR, generator=generator)
    same = [
        synchronous(12),
        inpainting(torch.ones(3, 1, 2, 3), 12),
        autoregressive(torch.full((2, 3), 7), 12),
        from_map(torch.ones(1, 1, 2, 3), torch.zeros(1, 1, 2, 3), 1.0, 12),
    ]
    results = [sample(denoiser, schedule, z, step=make(process), generator=generators([1, 2, 3])) for schedule in same]
    assert all(torch.equal(results[0], other) for other in results[1:])


def test_an_empty_hole_returns_the_picture_bit_for_bit(process, generator):
    x = torch.randn(2, *COLOUR, generator=generator)
    schedule = inpainting(torch.zeros(1, 1, 2, 3), 5)
    z = process.diffuse(x, schedule.start(x), torch.randn(x.shape, generator=generator))
    assert torch.equal(sample(random_gaussian(process, COLOUR), schedule, z, step=heun(process)), x)


# --- randomness ---


def test_a_sample_depends_on_its_seed_and_not_on_its_batch(process):
    denoiser = random_gaussian(process, COLOUR)
    step = ddim(process, eta=1.0)

    def run(seeds):
        source = generators(seeds)
        z = draw_noise(torch.empty(len(seeds), *COLOUR), source)
        return sample(denoiser, synchronous(8), z, step=step, generator=source)

    batch = run([11, 12, 13])
    assert torch.allclose(run([12])[0], batch[1], atol=1e-5)
    assert torch.allclose(run([13, 11])[0], batch[2], atol=1e-5)
    assert not torch.allclose(run([14])[0], batch[1], atol=0.1)


def test_noise_is_standard_normal_fresh_at_each_call_and_follows_its_generator():
    like = torch.empty(4, 3, 32, 32)
    source = generators(range(4))
    first, second = draw_noise(like, source), draw_noise(like, source)
    assert first.mean().abs() < 0.03
    assert first.std().item() == pytest.approx(1.0, abs=0.03)
    assert (first != second).float().mean() > 0.99
    assert torch.equal(first, draw_noise(like, generators(range(4))))
    one, again = (draw_noise(like, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(one, again)
    assert draw_noise(like.double(), source).dtype == torch.float64


def test_a_wrong_number_of_generators_is_named():
    with pytest.raises(ValueError, match=r"generator must be one, or one per sample \(3\), got 2"):
        draw_noise(torch.empty(3, 1, 2, 2), generators([1, 2]))


# --- the loop itself ---


def shrink(z, t, cond=None):
    return Denoised(0.5 * z)


def test_the_callback_sees_each_visit_and_can_stop(process):
    denoiser = random_gaussian(process, SHAPE)
    z = torch.randn(1, *SHAPE)
    visits = []
    sample(denoiser, synchronous(6), z, step=ddim(process), callback=visits.append)
    assert [round(visit.t[0, 0, 0, 0].item(), 5) for visit in visits] == [round(1 - k / 6, 5) for k in range(6)]
    assert torch.equal(visits[0].z, z)
    assert all(visit.t.shape == (1, 1, 3, 3) for visit in visits)
    for visit in visits:
        assert torch.equal(visit.out.x, denoiser(visit.z, visit.t).x)

    seen = []

    def third(visit):
        seen.append(visit)
        return len(seen) == 3

    stopped = sample(denoiser, synchronous(6), z, step=ddim(process), callback=third)
    assert torch.equal(stopped, visits[2].z)
    with pytest.raises(TypeError, match="a callback must return True to stop, else None or False; got Tensor"):
        sample(denoiser, synchronous(6), z, step=ddim(process), callback=lambda visit: visit.t.max() < 0.5)


def test_the_condition_reaches_the_denoiser():
    labels = []

    def denoiser(z, t, cond=None):
        labels.append(cond.label.tolist())
        return Denoised(z)

    cond = Cond(label=torch.tensor([4, 5]))
    sample(denoiser, synchronous(2), torch.zeros(2, 1, 1, 1), step=heun(RectifiedFlow()), cond=cond)
    assert labels == [[4, 5]] * 4  # two steps, two calls each


@pytest.mark.parametrize("make", [ddim, heun])
def test_the_loop_never_waits_for_the_device(process, make):
    """Operations that would wait must not grow with the steps: there are only those of the last look at the result."""
    counts = []
    for steps in (4, 24):
        hole = torch.ones(2, 1, 4, 4)
        schedule = inpainting(hole, steps)
        with CountWaits() as count:
            sample(shrink, schedule, torch.randn(2, 3, 4, 4), step=make(process), generator=generators([1, 2]))
        counts.append(count.waits)
    assert counts[0] == counts[1] <= 2


def test_memory_does_not_grow_with_the_steps():
    held = []

    def look(visit):
        held.append(live_bytes())

    sample(shrink, synchronous(12), torch.randn(2, 3, 32, 32), step=ddim(RectifiedFlow(), eta=1.0), callback=look)
    assert max(held[2:]) == min(held[2:])


def test_the_canvas_stays_float32_whatever_the_network_computes_in():
    seen = set()

    def half(z, t, cond=None):
        seen.update({z.dtype, t.dtype})
        return Denoised((0.5 * z).bfloat16())

    out = sample(half, synchronous(4), torch.randn(1, 1, 4, 4).half(), step=heun(RectifiedFlow()))
    assert seen == {torch.float32}
    assert out.dtype == torch.float32


def test_sampling_builds_no_graph():
    weight = torch.ones((), requires_grad=True)
    out = sample(
        lambda z, t, cond: Denoised(weight * z), synchronous(2), torch.zeros(1, 1, 2, 2), step=ddim(RectifiedFlow())
    )
    assert not out.requires_grad


def test_a_breakdown_is_reported_with_its_sample():
    def broken(z, t, cond=None):
        x = z.clone()
        x[1] = math.nan
        return Denoised(x)

    with pytest.raises(FloatingPointError, match=r"NaN or infinity in sample\(s\) \[1\] of 3"):
        sample(broken, synchronous(3), torch.zeros(3, 1, 2, 2), step=ddim(RectifiedFlow()))


@pytest.mark.parametrize(
    ("denoiser", "z", "kind", "words"),
    [
        (shrink, torch.zeros(3, 4, 4), ValueError, r"z must be a floating-point tensor \[B, C, H, W\], got shape"),
        (lambda z, t, cond: z, torch.zeros(1, 3, 4, 4), TypeError, r"must return Denoised\(x\), got Tensor"),
        (
            lambda z, t, cond: Denoised(z[:, :1]),
            torch.zeros(1, 3, 4, 4),
            ValueError,
            r"the denoiser's answer x must have the shape of the canvas, \[1, 3, 4, 4\], got shape \[1, 1, 4, 4\]",
        ),
    ],
)
def test_bad_arguments_are_named(denoiser, z, kind, words):
    with pytest.raises(kind, match=words):
        sample(denoiser, synchronous(2), z, step=ddim(RectifiedFlow()))


@pytest.mark.parametrize(
    ("more", "kind", "words"),
    [
        ({"cond": torch.zeros(2)}, TypeError, "cond must be a Cond, .* got Tensor"),
        ({"cond": Cond(label=3)}, ValueError, r"cond.label must be a tensor with one row per sample \(2\), got int 3"),
        ({"cond": Cond(label=torch.tensor([5]))}, ValueError, r"cond.label .* per sample \(2\), got shape \[1\]"),
        ({"generator": 3}, TypeError, "generator must be a torch.Generator or a list of them, got int 3"),
    ],
)
def test_bad_conditions_and_generators_are_named(more, kind, words):
    with pytest.raises(kind, match=words):
        sample(shrink, synchronous(2), torch.zeros(2, 1, 2, 2), step=ddim(RectifiedFlow()), **more)


def test_a_step_sees_the_visit_before():
    visits, lasts = [], []

    def step(denoise, now, s, noise, last):
        lasts.append(last)
        return now.z + 1

    sample(shrink, synchronous(3), torch.zeros(1, 1, 1, 1), step=step, callback=visits.append)
    assert lasts[0] is None
    assert lasts[1] is visits[0]
    assert lasts[2] is visits[1]


class Custom:
    """A schedule of one step, from any field to any other."""

    def __init__(self, start, then):
        self.begin, self.then, self.heard = start, then, None

    def start(self, z):
        return self.begin

    def ask(self, k, t):
        return True if k < 1 else None

    def next(self, k, t, out):
        self.heard = out
        return self.then


def test_a_schedule_hears_the_whole_answer():
    schedule = Custom(torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1))
    logvar = torch.full((1, 1, 2, 2), 0.3)
    sample(lambda z, t, cond: Denoised(z, logvar), schedule, torch.zeros(1, 3, 2, 2), step=ddim(RectifiedFlow()))
    assert schedule.heard.logvar is logvar


def test_fields_that_only_broadcast_reach_the_denoiser_whole():
    shapes = []

    def denoiser(z, t, cond=None):
        shapes.append(t.shape)
        return Denoised(z)

    schedule = Custom(torch.ones(1, 1, 1, 1), torch.zeros(()))
    sample(denoiser, schedule, torch.zeros(2, 3, 4, 5), step=heun(RectifiedFlow()))
    assert shapes == [(2, 1, 4, 5)] * 2


@pytest.mark.parametrize("wrong", [torch.ones(2), torch.ones(3, 1, 2, 2), torch.ones(1, 2, 1, 1)])
def test_a_schedule_that_returns_another_shape_is_named(wrong):
    for schedule in (Custom(wrong, torch.zeros(1, 1, 1, 1)), Custom(torch.ones(1, 1, 1, 1), wrong)):
        with pytest.raises(ValueError, match="the schedule's time field must"):
            sample(shrink, schedule, torch.zeros(1, 1, 2, 2), step=ddim(RectifiedFlow()))


def test_a_canvas_in_float64_stays_so():
    seen = set()

    def step(denoise, now, s, noise, last):
        seen.update({now.z.dtype, noise().dtype, now.out.x.dtype})
        return now.z

    out = sample(shrink, synchronous(2), torch.zeros(1, 1, 1, 1, dtype=torch.float64), step=step)
    assert seen == {out.dtype} == {torch.float64}
