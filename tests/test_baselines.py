"""Rivals on the exact Gaussian: each does what it says, and is as far from the conditional law as it should be."""

import pytest
import torch

from asyncpatch.baselines import _anderson, ddnm, ddrm, deqir, mcg, repaint, replacement, supervised
from asyncpatch.process import RectifiedFlow
from asyncpatch.protocols import Cond, Denoised
from asyncpatch.sampling import draw_noise, generators, sample
from asyncpatch.schedules import inpainting
from asyncpatch.steps import ddim
from oracle import conditional, law_of, random_gaussian

HOLE = torch.tensor([[1.0, 1, 0, 0], [0, 1, 0, 1]])[None, None]
INSIDE = HOLE.flatten() > 0
METHODS = {
    "replacement": lambda p, x: replacement(p, x, HOLE, 12),
    "repaint": lambda p, x: repaint(p, x, HOLE, 12, jump=3, resample=3),
    "mcg": lambda p, x: mcg(p, x, HOLE, 12, weight=0.1),
    "ddrm": lambda p, x: ddrm(p, x, HOLE, 12),
    "ddnm": lambda p, x: ddnm(p, x, HOLE, 12),
    "deqir": lambda p, x: deqir(p, x, HOLE, 12),
}


class Counted:
    def __init__(self, denoiser):
        self.denoiser, self.calls, self.pictures = denoiser, 0, 0

    def __call__(self, z, t, cond=None):
        self.calls, self.pictures = self.calls + 1, self.pictures + len(z)
        return self.denoiser(z, t, cond)


@pytest.fixture(scope="module")
def exact():
    return random_gaussian(RectifiedFlow(), (1, 2, 4))


@pytest.fixture(scope="module")
def x(exact):
    return exact.draw(1, generator=torch.Generator().manual_seed(3)).double()


def errors(exact, x, method, count=1500):
    """Of the mean, in standard deviations, and of the covariance, relative."""
    many = x.expand(count, -1, -1, -1)
    made = method(many).flatten(1)
    wanted = conditional(law_of(exact), ~INSIDE, x.flatten())
    spread = wanted.covariance.diagonal()[INSIDE].sqrt()
    mean = ((made.mean(0) - wanted.mean)[INSIDE] / spread).square().mean().sqrt()
    truth = wanted.covariance[INSIDE][:, INSIDE]
    return float(mean), float((made.T.cov()[INSIDE][:, INSIDE] - truth).norm() / truth.norm())


@pytest.mark.parametrize("name", METHODS)
def test_what_is_known_comes_back_exactly(process, name):
    exact = random_gaussian(process, (1, 2, 4))
    x = exact.draw(5, generator=torch.Generator().manual_seed(3))
    made = METHODS[name](process, x).run(exact, x, generator=generators(range(5)))
    assert torch.equal(made.flatten(1)[:, ~INSIDE], x.flatten(1)[:, ~INSIDE])
    assert made.isfinite().all()
    again = METHODS[name](process, x[1:2]).run(exact, x[1:2], generator=generators([1]))
    assert torch.allclose(made[1:2], again, atol=1e-4)  # its own seed alone


@pytest.mark.parametrize("name", ["replacement", "repaint", "mcg", "ddrm", "ddnm"])
def test_a_move_by_hand(process, name):
    """From 2/3 to 1/3, where the network says c, whatever it is asked: alpha c + sigma times a mixture of the noise
    that it takes for what is there and of fresh noise n, which in DDIM's steps is chance for sqrt(1 - r^2) of it."""
    x, c = torch.randn(2, 2, 1, 2, 4, generator=torch.Generator().manual_seed(1))
    moves = {
        "replacement": replacement(process, x, HOLE, 3),
        "repaint": repaint(process, x, HOLE, 3, jump=1, resample=1),
        "mcg": mcg(process, x, HOLE, 3),
        "ddrm": ddrm(process, x, HOLE, 3),
        "ddnm": ddnm(process, x, HOLE, 3),
    }
    visits, drawn = [], generators([4, 5])
    moves[name].run(lambda z, t, cond: Denoised(c + 0.0 * z), x, generator=generators([4, 5]), callback=visits.append)
    _, _, n = (draw_noise(x, drawn) for _ in range(3))  # the first is the canvas, the second of the move before
    now, then = visits[1], visits[2]
    assert (float(now.t[0, 0, 0, 0]), float(then.t[0, 0, 0, 0])) == pytest.approx((2 / 3, 1 / 3))
    (a, b), (alpha, sigma) = ((process.alpha(t), process.sigma(t)) for t in (now.t, then.t))
    eps, chance = (now.z - a * c) / b, (1 - (a * sigma / (alpha * b)) ** 2) ** 0.5
    rest = (1 - 0.85**2) ** 0.5
    hole, known = {
        "replacement": (eps, n),
        "repaint": ((1 - chance**2) ** 0.5 * eps + chance * n, n),
        "mcg": ((1 - chance**2) ** 0.5 * eps + chance * n, n),
        "ddrm": (rest * eps + 0.85 * n, n),
        "ddnm": (rest * eps + 0.85 * n, rest * eps + 0.85 * n),
    }[name]
    wanted = torch.where(HOLE > 0, alpha * c + sigma * hole, alpha * x + sigma * known)
    assert torch.allclose(then.z, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "calls"),
    [
        (lambda p, x: replacement(p, x, HOLE), 250),
        (lambda p, x: repaint(p, x, HOLE), 2410),
        (lambda p, x: mcg(p, x, HOLE), 250),
        (lambda p, x: ddrm(p, x, HOLE), 20),
        (lambda p, x: ddnm(p, x, HOLE), 100),
    ],
)
def test_how_often_the_network_is_asked(exact, x, method, calls):
    counted = Counted(lambda z, t, cond: Denoised(0.5 * z))
    method(RectifiedFlow(), x.float()).run(counted, x.float(), generator=torch.Generator().manual_seed(0))
    assert counted.calls == calls


def test_each_is_as_far_from_the_law_as_it_should_be(exact, x):
    """A time per pixel draws from the conditional law. Replacement misses its mean by half a standard deviation, which
    going back and forth mends at ten times the cost; a gradient mends it where its weight is right, and spoils it where
    it is not."""
    process = RectifiedFlow()

    def ours(many):
        schedule = inpainting(HOLE, 50)
        z = process.diffuse(many, schedule.start(many), draw_noise(many, torch.Generator().manual_seed(0)))
        return sample(exact, schedule, z, step=ddim(process))

    def of(make, *arguments, **options):
        return lambda many: make(process, many, HOLE, *arguments, **options).run(
            exact, many, generator=torch.Generator().manual_seed(0)
        )

    mean = {
        "ours": errors(exact, x, ours)[0],
        "replacement": errors(exact, x, of(replacement, 50))[0],
        "repaint": errors(exact, x, of(repaint, 50, jump=5, resample=10))[0],
        "mcg, tuned": errors(exact, x, of(mcg, 50, weight=0.1))[0],
        "mcg, weight 1": errors(exact, x, of(mcg, 50, weight=1.0))[0],
        "ddrm": errors(exact, x, of(ddrm, 50))[0],
        "ddnm": errors(exact, x, of(ddnm, 50))[0],
    }
    assert mean["ours"] < 0.08
    assert 0.3 < mean["replacement"] < 0.7
    assert mean["repaint"] < 0.5 * mean["replacement"]
    assert mean["mcg, tuned"] < 0.6 * mean["replacement"] < mean["replacement"] < mean["mcg, weight 1"]
    assert mean["ddnm"] < 0.6 * mean["replacement"]
    assert mean["ddrm"] < 0.8 * mean["replacement"]
    assert all(value > 1.5 * mean["ours"] for name, value in mean.items() if name != "ours")


def test_ddnm_is_nearer_with_the_noise_of_its_uncorrected_answer(exact, x, monkeypatch):
    """Recomputing eps-hat from the corrected picture, as some write it, moves the mean away."""
    from asyncpatch import baselines

    process = RectifiedFlow()

    def run(many):
        return ddnm(process, many, HOLE, 50).run(exact, many, generator=torch.Generator().manual_seed(0))

    right = errors(exact, x, run)[0]

    def recomputed(process, now):
        corrected = torch.where(HOLE > 0, now.out.x, x)
        return now.out.x, (now.z - process.alpha(now.t) * corrected) / process.sigma(now.t)

    monkeypatch.setattr(baselines, "_answer", recomputed)
    assert errors(exact, x, run)[0] > 1.3 * right


def test_the_known_part_has_the_noise_of_the_time_that_is_stepped_to(exact, x):
    """At every visit below 1 it is alpha(t) x + sigma(t) n, not one step off."""
    process, seen = RectifiedFlow(), []
    many = x.expand(4000, -1, -1, -1)
    repaint(process, many, HOLE, 5, jump=2, resample=2).run(
        exact, many, generator=torch.Generator().manual_seed(0), callback=seen.append
    )
    for visit in seen[1:]:
        t = visit.t.flatten()[0].double()
        known = visit.z.flatten(1)[:, ~INSIDE]
        off = known.mean(0) - (1 - t) * x.flatten()[~INSIDE]
        assert off.abs().max() < 5 * t / 4000**0.5 + 1e-6
        assert known.std(0).mean() == pytest.approx(float(t), abs=0.03)


def test_deqir_finds_what_ddnm_walks_to(exact, x):
    """Enough iterations, and the fixed point is the chain with the same noise; a few, and it is near."""
    process = RectifiedFlow()
    many = x.expand(8, -1, -1, -1)

    def run(method):
        return method.run(exact, many, generator=generators(range(8)))

    def missed(steps, **options):
        return float((run(deqir(process, many, HOLE, steps, **options)) - walked[steps]).square().mean().sqrt())

    walked = {steps: run(ddnm(process, many, HOLE, steps)) for steps in (12, 20)}
    assert missed(12, iterations=12, memory=1, tolerance=0.0) < 1e-5  # as many as there are states do, without more ado
    assert missed(12, iterations=4, memory=5, tolerance=0.0) < 0.2 * missed(12, iterations=4, memory=1, tolerance=0.0)
    assert missed(12, tolerance=0.0) < 0.1
    assert missed(20, tolerance=0.0) < 0.5  # by fewer iterations than there are states
    counted = Counted(exact)
    until = deqir(process, many, HOLE, 12, iterations=60).run(counted, many, generator=generators(range(8)))
    assert counted.calls < 50  # it stops once hardly anything moves
    assert (until - walked[12]).square().mean().sqrt() < 0.03
    assert counted.pictures == 12 * 8 * counted.calls  # all times at once


def test_deqir_asks_about_15_times_15_times_over_and_once_more(exact, x):
    def run(**options):
        counted = Counted(exact)
        made = deqir(RectifiedFlow(), x, HOLE, **options).run(counted, x, generator=generators([0]))
        return made, (counted.calls, counted.pictures)

    assert run(tolerance=0.0)[1] == (16, 16 * 15)
    usual = run()
    assert torch.equal(usual[0], run(memory=5, tolerance=1e-2)[0])
    assert not torch.equal(usual[0], run(memory=3)[0])
    assert usual[1] != run(tolerance=0.1)[1]


def test_acceleration_mixes_each_state_by_its_own_least_squares(generator):
    """Of two results the mixture whose own residual is least, a thousandth added to the squared ones: by hand, with
    w on the first, a minimum of |w a + (1 - w) b|^2 + 0.001 (w^2 + (1 - w)^2)."""
    pull = torch.rand(3, 2, 4, generator=generator) - 0.5
    aim, start = torch.randn(2, 3, 2, 4, generator=generator)
    start = aim + torch.tensor([0.1, 1.0, 10.0]).view(3, 1, 1) * (start - aim)  # some are near, some are far

    def function(states):
        return aim + pull * (states - aim)

    first, second = function(start), function(function(start))
    wanted = torch.empty_like(start)
    for k in range(3):
        for picture in range(2):
            a, b = (first - start)[k, picture], (second - first)[k, picture]
            w = float((b @ (b - a) + 1e-3) / ((a - b) @ (a - b) + 2e-3))
            wanted[k, picture] = w * first[k, picture] + (1.0 - w) * second[k, picture]
    assert torch.allclose(_anderson(function, start, 2, 5, 0.0), function(wanted), atol=1e-5)


@pytest.mark.parametrize("scale", [0.01, 1.0, 100.0])
def test_it_stops_once_hardly_anything_moves_whatever_the_size(scale):
    """Half the way from 0 to 2 at a time: moves of 2^-k to 2 - 2^-k, of which that of 2^-6 is the first to be less than
    a hundredth of where it leads. Then it is asked once more."""
    asked = []

    def function(states):
        asked.append(1)
        return 0.5 * states + scale

    made = _anderson(function, torch.zeros(2, 3, 4), 60, 1, 1e-2)
    assert len(asked) == 7 + 1
    assert torch.allclose(made, torch.full_like(made, scale * (2.0 - 2.0**-7)))


def test_mcg_goes_down_the_gradient_of_a_distance(generator):
    """That of ||m (y - A z)|| in z is -A^T m (y - A z) / ||m (y - A z)||, of each picture by itself."""
    A, x = torch.randn(8, 8, generator=generator), 3.0 * torch.randn(2, 1, 2, 4, generator=generator)
    z = draw_noise(x, generators([4, 5]))
    for weight, told in ((0.7, {"weight": 0.7}), (1.0, {})):
        method = mcg(RectifiedFlow(), x, HOLE, 1, **told)  # one step, which ends at x-hat itself
        made = method.run(
            lambda z, t, cond: Denoised((z.flatten(1) @ A.T).view_as(z)), x, generator=generators([4, 5])
        ).flatten(1)
        for k in range(2):
            missed = (x[k].flatten() - A @ z[k].flatten()) * ~INSIDE
            wanted = A @ z[k].flatten() + weight * A.T @ missed / missed.square().sum().sqrt()
            assert torch.allclose(made[k][INSIDE], wanted[INSIDE], atol=1e-5)


def test_conditions_reach_the_denoiser(x):
    seen = []

    def denoiser(z, t, cond):
        seen.append(cond.label.tolist())
        return Denoised(z * 0.5)

    method = replacement(RectifiedFlow(), x.float(), HOLE, 2)
    method.run(denoiser, x.float(), cond=Cond(label=torch.tensor([7])))
    assert seen == [[7], [7]]


@pytest.mark.parametrize("make", [replacement, repaint, mcg, ddrm, ddnm, deqir])
def test_grey_holes_are_refused(make, x):
    with pytest.raises(ValueError, match="values in between"):
        make(RectifiedFlow(), x, HOLE * 0.5)


def test_repaint_never_turns_back_from_the_clean_picture():
    method = repaint(RectifiedFlow(), torch.zeros(1, 1, 2, 4), HOLE)
    times = method.schedule.times
    assert times[0] == 1
    assert times[-1] == 0
    assert min(times[:-1]) == pytest.approx(1 / 250)
    turns = [now for before, now, after in zip(times, times[1:], times[2:], strict=False) if before > now < after]
    assert sorted({round(250 * turn) for turn in turns}) == list(range(1, 240, 10))
    assert len(turns) == 9 * 24


def test_ancestral_steps_keep_the_spread(exact, x):
    """RePaint and MCG come out with about the right covariance."""
    process = RectifiedFlow()

    def of(method):
        return lambda many: method(many).run(exact, many, generator=torch.Generator().manual_seed(0))

    assert errors(exact, x, of(lambda many: repaint(process, many, HOLE, 50, jump=5, resample=10)))[1] < 0.25
    assert errors(exact, x, of(lambda many: mcg(process, many, HOLE, 50, weight=0.1)))[1] < 0.2


def test_a_blend_of_0_leaves_the_known_part_to_the_denoiser(x):
    made = ddrm(RectifiedFlow(), x.float(), HOLE, 3, blend=0.0).run(
        lambda z, t, cond: Denoised(torch.full_like(z, 0.3)), x.float()
    )
    assert torch.allclose(made, torch.full_like(made, 0.3))


@pytest.mark.parametrize("make", [ddrm, ddnm, deqir])
def test_an_eta_beyond_1_is_refused(make, x):
    with pytest.raises(ValueError, match="eta"):
        make(RectifiedFlow(), x, HOLE, eta=1.2)
    with pytest.raises(ValueError, match="steps"):
        repaint(RectifiedFlow(), x, HOLE, 0)


class Told:
    """An exact network of the supervised kind: what it is shown is known to it, whatever its canvas says there."""

    def __init__(self, exact):
        self.exact = exact

    def __call__(self, z, t, cond=None):
        return self.exact(torch.where(cond.hole > 0, z, cond.picture), torch.where(cond.hole > 0, t, 0.0))


def test_a_network_that_is_shown_the_rest_draws_from_the_conditional_law(exact, x):
    process, told = RectifiedFlow(), Told(exact)

    def of(denoiser, steps=50, **options):
        return lambda many: supervised(process, many, HOLE, steps, **options).run(
            denoiser, many, generator=torch.Generator().manual_seed(0)
        )

    mean, covariance = errors(exact, x, of(told))
    assert mean < 0.08
    assert covariance < 0.15
    assert errors(exact, x, of(told, eta=1.0))[0] < 0.12
    blind = errors(exact, x, of(lambda z, t, cond: exact(z, t)))[0]
    assert blind > 5 * mean  # as far as what is drawn without knowing anything
    assert errors(exact, x, of(told, input_guidance=1.0))[0] > 2 * mean  # pushed too far, where the answer is exact


def test_its_guidance_costs_two_questions(x):
    for weight, pictures in ((0.0, 7), (1.0, 14)):
        counted = Counted(lambda z, t, cond: Denoised(0.5 * z))
        method = supervised(RectifiedFlow(), x.float(), HOLE, 7, input_guidance=weight)
        method.run(counted, x.float(), generator=torch.Generator().manual_seed(0))
        assert (counted.calls, counted.pictures) == (7, pictures)
