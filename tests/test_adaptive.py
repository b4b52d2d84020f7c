"""Schedules that look at the answer: who goes first, what it costs, and that the law is right whoever does."""

import pytest
import torch

from asyncpatch.adaptive import SCHEDULES, Dual, Effort, LookAhead, Paced, Sequential, schedule_from
from asyncpatch.oracle import gaussian, gaussian_field
from asyncpatch.parameterization import structureless
from asyncpatch.process import RectifiedFlow
from asyncpatch.protocols import Cond, Denoised
from asyncpatch.sampling import sample
from asyncpatch.schedules import autoregressive, synchronous
from asyncpatch.steps import ddim, heun, multistep
from asyncpatch.windows import Windows
from oracle import conditional, error, law_of, law_of_sampler, random_gaussian

SHAPE = (1, 3, 4)
FLOW = RectifiedFlow()
KINDS = {
    "paced": lambda calls, **more: Paced(**{"process": FLOW, "calls": calls, "patch": 1, **more}),
    "dual": lambda calls, **more: Dual(**{"process": FLOW, "calls": calls, "patch": 1, **more}),
    "sequential": lambda calls, **more: Sequential(
        **{"process": FLOW, "calls": calls, "overlap": 0.75, "patch": 2, **more}
    ),
}
HOLE = torch.tensor([[1.0, 0, 1, 1], [0, 0, 1, 0.0], [1, 1, 0, 0]])[None, None]


def says(logvar):
    """A denoiser that is sure where it is told to be."""
    return lambda z, t, cond=None: Denoised(0.5 * z, logvar.expand(len(z), 1, *z.shape[2:]))


def walk(schedule, logvar, batch=1):
    """All time fields of a run, the last one included, and how often the denoiser was asked."""
    times = []
    z = torch.zeros(batch, 1, *logvar.shape[2:])
    sample(says(logvar), schedule, z, step=ddim(RectifiedFlow()), callback=lambda visit: times.append(visit.t))
    last = schedule.next(len(times) - 1, times[-1], Denoised(z, logvar.expand(batch, -1, -1, -1)))
    return torch.stack([*times, last]), len(times)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("step", [ddim, multistep])
def test_the_law_is_right_whoever_goes_first(process, name, step):
    """Of a Gaussian the doubt does not depend on the canvas, so that the algebra of open loops holds."""
    denoiser = random_gaussian(process, SHAPE, seed=1)
    errors = []
    for calls in (64, 128):
        schedule = KINDS[name](calls, process=process)
        found = law_of_sampler(denoiser, schedule, step(process), torch.zeros(1, *SHAPE), steps=calls)
        errors.append(error(found, law_of(denoiser))[1])
    assert errors[1] < (0.1 if step is ddim else 0.03)
    assert errors[0] / errors[1] > 1.6


@pytest.mark.parametrize("name", KINDS)
def test_what_is_known_stays_and_the_rest_is_conditioned_on_it(name, generator):
    process = RectifiedFlow()
    denoiser = random_gaussian(process, SHAPE, seed=2)
    x = denoiser.draw(1, generator=generator).double()
    schedule = KINDS[name](128, hole=HOLE)
    found = law_of_sampler(denoiser, schedule, heun(process), x, steps=128)
    known = HOLE.flatten() == 0
    assert torch.equal(found.mean[known], x.flatten()[known])
    mean, covariance = error(found, conditional(law_of(denoiser), known, x.flatten()))
    assert max(mean, covariance) < 0.02


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("hole", [1.0, 0.6, HOLE])
def test_all_end_clean_within_their_budget(name, hole, generator):
    schedule = KINDS[name](16, hole=hole)
    logvar = torch.randn(1, 1, 3, 4, generator=generator)
    times, asked = walk(schedule, logvar, batch=2)
    assert asked == 16
    assert (times[-1] == 0).all()
    assert (times[1:] <= times[:-1]).all()
    assert torch.equal(times[0], torch.as_tensor(hole).expand(2, 1, 3, 4).float())


def test_sure_patches_lead_and_nobody_falls_behind():
    surer = torch.zeros(1, 1, 4, 8)
    surer[..., 4:] = -4.0  # the right half, always

    def run(**how):
        times, effort = [], Effort()
        schedule = Paced(process=FLOW, calls=10, patch=4, **how)
        sample(
            lambda z, t, cond: Denoised(0.5 * z, structureless(FLOW, t) + surer), schedule, torch.zeros(1, 1, 4, 8),
            step=ddim(FLOW), callback=lambda visit: times.append(visit.t) or effort(visit),
        )  # fmt: skip
        return torch.cat(times)[:, 0, 0], effort.steps[0, 0, 0]

    even = 1.0 - torch.arange(10) / 10
    times, steps = run()
    assert torch.allclose(times[:, 0], even, atol=1e-6)
    assert torch.allclose(times[:, 7], (1.0 - 2 * torch.arange(10) / 10).clamp_min(0), atol=1e-6)  # exp(1) is held at 2
    assert (steps[0], steps[7]) == (10, 5)
    mild, _ = run(strength=0.1, lead=5.0)
    assert torch.allclose(mild[:, 7], (1.0 - torch.tensor(0.1).exp() * torch.arange(10) / 10).clamp_min(0), atol=1e-6)
    same, _ = run(strength=0.0)
    assert torch.allclose(same[:, 7], even, atol=1e-6)


def test_pictures_are_compared_with_themselves_alone():
    logvar = torch.zeros(2, 1, 4, 8)
    logvar[0, ..., 4:], logvar[1] = -4.0, -9.0
    out = Denoised(torch.zeros(2, 1, 4, 8), logvar)
    for schedule in (Paced(process=FLOW, calls=10, patch=4), Dual(process=FLOW, calls=8, patch=4, share=0.5)):
        found = schedule.next(0, torch.ones(2, 1, 4, 8), out)
        assert found[0, 0, 0, 7] < found[0, 0, 0, 0]
        if isinstance(schedule, Paced):
            assert torch.allclose(found[1], torch.tensor(0.9))


def test_lower_times_are_no_certainty():
    """Without any structure nobody leads, wherever the parts of a hole start from; nor where all is known."""
    hole = torch.ones(1, 1, 4, 12)
    hole[..., 4:8], hole[..., 8:] = 0.3, 0.0
    for strength in (0.0, 1.0):
        schedule = Paced(process=FLOW, calls=10, patch=4, hole=hole, strength=strength)
        t = schedule.start(hole)
        for k in range(5):
            t = schedule.next(k, t, Denoised(torch.zeros_like(t), structureless(FLOW, t)))
        assert torch.allclose(t, 0.5 * hole, atol=1e-6)


def test_dual_takes_no_more_than_its_share():
    t, logvar = torch.ones(1, 1, 1, 5), torch.zeros(1, 1, 1, 5)
    for share, wanted in ((0.0, 0), (0.1, 0), (0.4, 2), (1.0, 5)):
        schedule = Dual(process=FLOW, calls=8, share=share, patch=1)
        assert int((schedule.next(0, t, Denoised(t, logvar)) == 0.5).sum()) == wanted


def test_dual_lets_the_surest_jump_and_wait():
    logvar = torch.tensor([0.0, -1, -2, -3, -4]).view(1, 1, 1, 5)
    times, asked = walk(Dual(process=FLOW, calls=8, substeps=4, share=0.4, patch=1), logvar)
    assert asked == 8
    slow, quick = times[:, 0, 0, 0, 0], times[:, 0, 0, 0, 4]
    assert torch.allclose(slow, 1 - torch.arange(9) / 8)
    assert torch.allclose(quick, torch.tensor([1, 0.5, 0.5, 0.5, 0.5, 0, 0, 0, 0]))
    assert (times[1, 0, 0, 0] == 0.5).tolist() == [False, False, False, True, True]
    short, asked = walk(Dual(process=FLOW, calls=7, substeps=4, share=0.4, patch=1), logvar)
    assert asked == 7
    assert torch.allclose(short[:, 0, 0, 0, 4], torch.tensor([1, 3 / 7, 3 / 7, 3 / 7, 3 / 7, 0, 0, 0]))


def test_sequential_begins_with_the_surest():
    logvar = torch.tensor([[-1.0, -3.0], [0.0, -2.0]]).view(1, 1, 2, 2)
    times, asked = walk(Sequential(process=FLOW, calls=16, overlap=0.0, patch=1), logvar)
    assert asked == 16
    begun = [int((times[:, 0, 0, y, x] < 1).nonzero()[0]) for y, x in ((0, 1), (1, 1), (0, 0), (1, 0))]
    assert begun == [1, 5, 9, 13]
    assert torch.allclose(times[:5, 0, 0, 0, 1], torch.tensor([1, 0.75, 0.5, 0.25, 0]))
    overlapping, asked = walk(Sequential(process=FLOW, calls=10, overlap=0.5, patch=1), logvar)
    assert asked == 4 + 3 * 2
    assert torch.allclose(overlapping[3, 0, 0], torch.tensor([[1, 0.25], [1, 0.75]]))


def test_effort_counts_the_steps_of_each_token():
    logvar, effort = torch.tensor([0.0, -1, -2, -3, -4]).view(1, 1, 1, 5), Effort()
    with pytest.raises(ValueError, match="nothing was sampled"):
        _ = effort.steps
    schedule = Dual(process=FLOW, calls=8, substeps=4, share=0.4, patch=1)
    sample(says(logvar), schedule, torch.zeros(1, 1, 1, 5), step=ddim(RectifiedFlow()), callback=effort)
    assert effort.steps.flatten().tolist() == [8, 8, 8, 2, 2]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Paced(process=FLOW, calls=0), "calls"),
        (lambda: Paced(process=FLOW, calls=4, lead=0.5), "lead at least 1"),
        (lambda: Dual(process=FLOW, calls=8, share=1.5), "share"),
        (lambda: Sequential(process=FLOW, calls=2, overlap=-1.0), "overlap"),
        (lambda: Paced(process=FLOW, calls=4, patch=0), "patch"),
        (lambda: Paced(process=FLOW, calls=4, hole=2.0), "hole"),
        (
            lambda: Paced(process=FLOW, calls=4).next(0, torch.ones(1, 1, 2, 2), Denoised(torch.zeros(1, 1, 2, 2))),
            "how sure it is",
        ),
    ],
)
def test_mistakes_are_named(make, words):
    with pytest.raises(ValueError, match=words):
        make()


@pytest.mark.parametrize("name", KINDS)
def test_what_is_finished_or_waits_is_not_needed(name, generator):
    """With nonsense for an answer there nothing changes; and there are such places."""
    logvar = torch.randn(2, 1, 6, 8, generator=generator)
    hole = (torch.rand(2, 1, 6, 8, generator=generator) < 0.7).float()
    shares, made = [], []

    def careful(z, t, cond):
        shares.append(float(cond.wanted[hole > 0].float().mean()))
        return says(logvar)(z, t)

    def careless(z, t, cond):
        out = says(logvar)(z, t)
        return Denoised(*(torch.where(cond.wanted, each, 1e6) for each in out))

    for denoiser in (careful, careless):
        schedule = KINDS[name](16, hole=hole, process=FLOW)
        z = torch.ones(2, 1, 6, 8)
        made.append(sample(denoiser, schedule, z, step=ddim(FLOW)))
    assert torch.equal(*made)
    assert shares[0] == 1.0
    assert min(shares) < 0.95


def test_who_takes_part_in_a_round_is_asked_and_nobody_else():
    """Five patches of one pixel, of which the surest two take each round of four at once."""
    logvar, asked = torch.tensor([0.0, 1.0, 2.0, -2.0, -1.0]).view(1, 1, 1, 5), []

    def denoiser(z, t, cond):
        asked.append(int(cond.wanted.sum()))
        return says(logvar)(z, t)

    schedule = Dual(process=FLOW, calls=8, substeps=4, share=0.4, patch=1)
    sample(denoiser, schedule, torch.zeros(1, 1, 1, 5), step=ddim(FLOW))
    assert asked == [5, 3, 3, 3, 5, 3, 3, 3]


def test_who_waits_is_asked_only_when_the_next_one_is_chosen():
    """Three patches of one pixel, each in four visits, one after the other."""
    logvar, asked = torch.tensor([0.0, -1.0, 1.0]).view(1, 1, 1, 3), []

    def denoiser(z, t, cond):
        asked.append(int(cond.wanted.sum()))
        return says(logvar)(z, t)

    schedule = Sequential(process=FLOW, calls=12, overlap=0.0, patch=1)
    sample(denoiser, schedule, torch.zeros(1, 1, 1, 3), step=ddim(FLOW))
    assert asked == [3, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1, 1]


def test_what_is_finished_has_no_doubt():
    """A patch that is half known is as sure as its other half, whatever is said of the known one."""
    t = torch.tensor([[0.5, 0.0, 0.5, 0.5]]).view(1, 1, 1, 4)
    said = torch.tensor([[1.0, 1e3, 1.0, 1.0]]).view(1, 1, 1, 4)
    doubt = Paced(process=FLOW, calls=4, patch=2)._doubt(t, Denoised(torch.zeros(1, 3, 1, 4), said))
    assert doubt.flatten().tolist() == pytest.approx([float(doubt[0, 0, 0, 1])] * 2)


def test_a_picture_that_is_finished_early_is_not_asked_about():
    """First one half is sure, then the other: both are done before the last visit, when windows ask nobody."""
    visits = []

    def turning(z, t, cond):
        visits.append(t)
        logvar = torch.zeros_like(t)
        logvar[..., :4] = 6.0 if len(visits) % 2 else -6.0
        return Denoised(torch.zeros_like(z), logvar)

    schedule = Paced(process=FLOW, calls=12, patch=4)
    z = torch.ones(1, 3, 8, 8)
    made = sample(Windows(turning, 8), schedule, z, step=ddim(FLOW))
    assert torch.equal(made, torch.zeros_like(z))
    assert len(visits) == 8
    with pytest.raises(ValueError, match="how sure it is"):
        sample(Windows(lambda z, t, cond: Denoised(z), 8), schedule, z, step=ddim(FLOW))


@pytest.mark.parametrize("name", [*SCHEDULES, "paced:3", "dual:2", "sequential:0.5"])
def test_a_number_of_questions_is_kept(name, generator):
    hole = torch.zeros(2, 1, 40, 64)
    hole[0, :, 4:30, 7:50], hole[1, :, 8:12, 8:12] = 1.0, 0.5
    for start in (torch.ones(1, 1, 64, 64), hole):
        for calls in (1, 2, 7, 16, 32, 100, 250):
            schedule, asked = schedule_from(name)(FLOW, start, calls), []
            logvar = torch.randn(len(start), 1, *start.shape[2:], generator=generator)
            z = torch.zeros(len(start), 3, *start.shape[2:])
            sample(says(logvar), schedule, z, step=ddim(FLOW), callback=lambda visit, to=asked: to.append(visit.t))
            assert len(asked) == calls
            assert torch.equal(asked[0], start)


def test_a_name_may_carry_a_number():
    assert schedule_from("paced:3")(FLOW, 1.0, 8) == Paced(process=FLOW, calls=8, strength=3.0, lead=4.0)
    assert schedule_from("paced")(FLOW, 1.0, 8) == Paced(process=FLOW, calls=8)
    assert schedule_from("dual:2")(FLOW, 1.0, 8) == Dual(process=FLOW, calls=8, substeps=2)
    assert schedule_from("dual")(FLOW, 1.0, 8) == Dual(process=FLOW, calls=8)
    assert schedule_from("sequential:0.5")(FLOW, 1.0, 8) == Sequential(process=FLOW, calls=8, overlap=0.5)
    assert schedule_from("sequential")(FLOW, 1.0, 8) == Sequential(process=FLOW, calls=8)
    assert schedule_from("synchronous") is None
    assert schedule_from("C:/order.png") is None
    for wrong in ("paced:", "paced:fast", "paced:-1", "dual:0", "dual:1.5", "sequential:2"):
        with pytest.raises(ValueError, match=f"schedule '{wrong}': "):
            schedule_from(wrong)


def test_sequential_gives_every_picture_its_own_pace():
    """What others in the batch have to do changes nothing. Where questions are few, several patches begin at once."""
    hole = torch.zeros(2, 1, 6, 6)
    hole[0, :, :2, :2], hole[1] = 1.0, 1.0
    logvar = torch.arange(36.0).view(1, 1, 6, 6)
    both, _ = walk(Sequential(process=FLOW, calls=12, overlap=0.5, patch=2, hole=hole), logvar, batch=2)
    for k in range(2):
        alone, _ = walk(Sequential(process=FLOW, calls=12, overlap=0.5, patch=2, hole=hole[k : k + 1]), logvar)
        assert torch.equal(both[:, k], alone[:, 0])
    assert torch.allclose(both[:, 0, 0, 0, 0], 1 - torch.arange(13) / 12)  # one patch takes all steps for itself
    few, _ = walk(Sequential(process=FLOW, calls=4, overlap=0.5, patch=2, hole=hole[1:]), logvar)
    assert [int((few[k + 1, 0, 0, ::2, ::2] < 1).sum()) for k in range(4)] == [1, 3, 6, 9]


def test_look_ahead_shows_the_sure_parts_as_they_will_be():
    """The unsure take the answer to a question in which the sure ones stand where equation (4) says."""
    denoiser = random_gaussian(FLOW, SHAPE, seed=3)
    z, t = torch.randn(2, *SHAPE), torch.full((2, 1, 3, 4), 0.6)
    logvar = torch.zeros(1, 1, 3, 4)
    logvar[..., :2] = -2.0
    questions = []

    def asked(z, t, cond=None):
        questions.append((z, t))
        return Denoised(denoiser(z, t).x, logvar.expand(len(z), -1, -1, -1))

    out = LookAhead(denoiser=asked, process=FLOW, patch=1, share=0.5)(z, t)
    first, sure = denoiser(z, t).x, (logvar < 0).expand(2, -1, -1, -1)
    assert torch.equal(questions[0][0], z)
    assert torch.allclose(questions[1][1], torch.where(sure, 0.44, 0.6))  # 1 - 1.4 * 0.4
    eps = (z - 0.4 * first) / 0.6
    brought = torch.where(sure, 0.56 * first + 0.44 * eps, z)
    assert torch.allclose(questions[1][0], brought, atol=1e-6)
    wanted = torch.where(sure, first, denoiser(brought, questions[1][1]).x)
    assert torch.allclose(out.x, wanted, atol=1e-6)
    assert torch.equal(out.logvar, logvar.expand(2, -1, -1, -1))
    never = LookAhead(denoiser=asked, process=FLOW, patch=1, ahead=1.0)(z, t)
    assert torch.allclose(never.x, first, atol=1e-6)


def test_look_ahead_is_right_for_tokens_apart_and_wrong_for_others(process):
    """What its docstring says: an error that more steps do not mend, unless tokens have nothing to do with another."""
    together = random_gaussian(process, SHAPE, seed=1)
    alone = gaussian(process, together.means[0], torch.diag(together.covariances[0].diagonal()))
    errors, x = {}, torch.zeros(1, *SHAPE)
    for name, denoiser in (("together", together), ("apart", alone)):
        ahead = LookAhead(denoiser=denoiser, process=process, patch=1)
        laws = [law_of_sampler(ahead, synchronous(n), ddim(process), x, steps=n) for n in (64, 128)]
        errors[name] = [error(law, law_of(denoiser))[1] for law in laws]
    assert errors["apart"][0] / errors["apart"][1] > 1.7
    assert errors["together"][0] / errors["together"][1] < 1.3
    assert errors["together"][1] > 0.02


def test_look_ahead_goes_by_what_was_asked_alone():
    """Of the patches in which something is wanted half lead, whatever the others would say."""
    exact = gaussian_field(FLOW, 8, 8, length=2.0)
    z, t = torch.randn(1, 1, 8, 8), torch.full((1, 1, 8, 8), 0.5)
    wanted = torch.zeros(1, 1, 8, 8, dtype=torch.bool)
    wanted[..., :4] = True  # two patches of four
    first = exact(z, t).x
    found = LookAhead(denoiser=exact, process=FLOW, patch=4, share=0.5)(z, t, Cond(wanted=wanted)).x
    kept = torch.isclose(found, first)[0, 0, :, :4].reshape(2, 16).all(1)
    assert sorted(kept.tolist()) == [False, True]
    windowed = LookAhead(denoiser=Windows(exact, size=8), process=FLOW, patch=4)
    large = torch.randn(2, 1, 24, 24)
    nobody = torch.zeros(2, 1, 24, 24, dtype=torch.bool)
    assert torch.equal(windowed(large, 0.5 + 0.0 * large, Cond(wanted=nobody)).x, large)
    groups = torch.arange(6).repeat_interleave(4).expand(24, 24).contiguous()
    assert sample(windowed, autoregressive(groups, 3), large, step=ddim(FLOW)).isfinite().all()
