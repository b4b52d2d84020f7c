import math

import pytest
import torch

from asyncpatch.process import RectifiedFlow
from asyncpatch.protocols import Cond, Denoised
from asyncpatch.sampling import Ahead, draw_noise, generators, sample
from asyncpatch.schedules import OpenLoop, autoregressive, from_map, inpainting, synchronous
from asyncpatch.steps import churned_ddim, ddim, heun, multistep
from finished import Silent
from oracle import random_gaussian
from watch import CountWaits, live_bytes

SHAPE = (1, 3, 3)
COLOUR = (2, 2, 3)


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


@pytest.mark.parametrize("source_of", [generators, lambda seeds: Ahead(generators(seeds), draws=3)])
def test_a_sample_depends_on_its_seed_and_not_on_its_batch(process, source_of):
    denoiser = random_gaussian(process, COLOUR)
    step = ddim(process, eta=1.0)

    def run(seeds):
        source = source_of(seeds)
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


def test_noise_that_is_drawn_ahead_is_new_each_time():
    like = torch.empty(4, 3, 32, 32)
    source = Ahead(generators(range(4)), draws=3)
    drawn = torch.stack([draw_noise(like, source) for _ in range(7)])
    assert drawn.shape == (7, *like.shape)
    assert drawn.mean().abs() < 0.02
    assert drawn.std().item() == pytest.approx(1.0, abs=0.02)
    rows = drawn.flatten(2).reshape(28, -1)
    assert (rows @ rows.T / rows.shape[1] - torch.eye(28)).abs().max() < 0.12  # of any two, however drawn
    with pytest.raises(ValueError, match=r"drawn ahead for \(4, 3, 32, 32\), not for \(4, 3, 8, 8\)"):
        draw_noise(torch.empty(4, 3, 8, 8), source)


def test_a_wrong_number_of_generators_is_named():
    for wrong in (generators([1, 2]), Ahead(generators([1, 2]))):
        with pytest.raises(ValueError, match=r"generator must be one, or one per sample \(3\), got 2"):
            draw_noise(torch.empty(3, 1, 2, 2), wrong)


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


@pytest.mark.parametrize(
    ("make", "draws"),
    [
        (ddim, False),
        (heun, False),
        (multistep, False),
        (lambda process: ddim(process, eta=0.5), True),
        (churned_ddim, True),
    ],
)
def test_noise_is_drawn_only_where_something_needs_it(make, draws):
    fields = torch.full((1, 1, 1, 1), 0.5), torch.full((1, 1, 1, 1), 0.6)
    rising = OpenLoop(lambda u: 4 * u * (1 - u), 2)
    for schedule, needed in ((synchronous(2), draws), (Custom(*fields), True), (rising, True)):
        source = generators([0, 1])
        before = [each.get_state() for each in source]
        sample(shrink, schedule, torch.ones(2, 1, 2, 2), step=make(RectifiedFlow()), generator=source)
        same = [torch.equal(state, each.get_state()) for state, each in zip(before, source, strict=True)]
        assert same == [not needed] * 2


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


def test_a_step_that_was_not_made_yet_is_named():
    with pytest.raises(TypeError, match=r"step=heun\(process\)"):
        sample(lambda z, t, cond: Denoised(z), synchronous(2), torch.zeros(1, 1, 2, 2), step=heun)


@pytest.mark.parametrize("make", [ddim, heun, multistep, churned_ddim])
def test_what_a_schedule_does_not_need_is_never_used(process, make, generator):
    """A denoiser that talks nonsense where nothing is wanted, beside one whose schedule is silent about that."""
    denoiser, conds = random_gaussian(process, COLOUR), []

    def careless(z, t, cond):
        conds.append(cond)
        wanted = moved if cond.wanted is None else cond.wanted
        return Denoised(torch.where(wanted, denoiser(z, t, None).x, torch.nan))

    groups = torch.tensor([[0, 1, 2], [2, 1, 0]])
    hole = torch.tensor([[1.0, 1, 0], [0.5, 1, 1]])[None, None]
    x = torch.randn(2, *COLOUR, generator=generator)
    label = torch.tensor([0, -1])
    for schedule in (autoregressive(groups, 3, hole=hole), inpainting(hole, 5), synchronous(4)):
        moved = schedule.start(x) > 0
        made = [
            sample(who, how, x, step=make(process), cond=Cond(label=label), generator=generators([1, 2]))
            for who, how in ((careless, schedule), (denoiser, Silent(schedule)))
        ]
        assert torch.equal(made[0], made[1])
    assert all(torch.equal(cond.label, label) for cond in conds)
    assert all(cond.wanted.shape == (2, 1, 2, 3) for cond in conds if cond.wanted is not None)
    assert {cond.wanted is None for cond in conds} == {True, False}
    silent = []
    sample(
        lambda z, t, cond: silent.append(cond) or denoiser(z, t, None), Silent(synchronous(2)), x, step=ddim(process)
    )
    assert silent == [None, None]
