"""The bound is log p(x) for exact denoisers, along every path; less for others. And the tests can tell."""

import math

import pytest
import torch

from asyncpatch import fields, likelihood
from asyncpatch.likelihood import elbo, random_path, schedule_path, synchronous_path
from asyncpatch.oracle import GaussianMixture, gaussian_field
from asyncpatch.process import CosineVP, RectifiedFlow
from asyncpatch.protocols import Cond, Denoised
from asyncpatch.sampling import generators
from asyncpatch.schedules import OpenLoop, autoregressive, from_map, inpainting, synchronous
from oracle import conditional, law_of, random_gaussian

WIDE = (16.0, -12.0)
PATHS = {
    "synchronous": synchronous_path(),
    "pixels": random_path(1),
    "patches": random_path(2),
    "raster": schedule_path(autoregressive(fields.raster_order(2, 3), 1)),
    "spiral of patches": schedule_path(autoregressive(fields.spiral_order(2, 3, 2), 1)),
    "a map": schedule_path(from_map(1.0, torch.rand(1, 1, 2, 3) * 0.4, 0.6 + torch.rand(1, 1, 2, 3) * 0.4, 1)),
    "a schedule": schedule_path(synchronous(5)),
}


def mixture(process):
    parts = [random_gaussian(process, (1, 2, 3), seed=seed) for seed in (1, 2, 3)]
    return GaussianMixture(
        process, torch.tensor([0.5, 0.3, 0.2]), torch.cat([part.means for part in parts]),
        torch.cat([part.covariances for part in parts]) * 0.3,
    )  # fmt: skip


def log_prob(oracle, x):
    """Of a mixture of Gaussians, by torch.distributions."""
    each = torch.distributions.MultivariateNormal(oracle.means.double().flatten(1), oracle.covariances.double())
    share = oracle.weights.double().log() - oracle.weights.double().sum().log()
    return (each.log_prob(x.double().flatten(1)[:, None]) + share).logsumexp(-1)


def bound(denoiser, x, path, calls=32, **how):
    settings = {"process": RectifiedFlow(), "bits": None, "span": WIDE, "generator": generators(range(len(x)))}
    return elbo(denoiser, x, path=path, calls=calls, **settings | how)


def check(terms, true):
    """The mean over pictures is right within four standard errors, and these are what is claimed."""
    off = terms.total - true
    assert float(off.mean()) == pytest.approx(0.0, abs=4 * float(off.std()) / len(off) ** 0.5)
    assert 0.6 < float(off.square().mean() / terms.error.square().mean()) < 1.6


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("oracle", [lambda p: random_gaussian(p, (1, 2, 3)), mixture], ids=["gaussian", "mixture"])
def test_the_bound_of_an_exact_denoiser_is_the_log_likelihood(process, name, oracle):
    exact = oracle(process)
    x = exact.draw(150, generator=torch.Generator().manual_seed(0)).double()
    terms = bound(exact, x, PATHS[name], process=process)
    check(terms, log_prob(exact, x))
    assert torch.allclose(terms.map.flatten(1).sum(1), terms.total)
    assert float(terms.error.mean()) < 12.0


@pytest.mark.parametrize("path", [synchronous_path(), random_path(1), random_path(4), schedule_path(synchronous(3))])
def test_a_path_takes_every_token_down_the_whole_span(path, process):
    """The mean of -dlogsnr/dw, over clocks and environments, is the span: slow tokens are not missed."""
    x = torch.zeros(20_000, 1, 4, 4)
    generator = torch.Generator().manual_seed(0)

    def uniform(like):
        return torch.rand(like.shape, generator=generator, dtype=like.dtype)

    w = uniform(torch.empty(len(x), 1, 1, 1, dtype=torch.float64))
    known = torch.zeros(len(x), 1, 4, 4, dtype=torch.bool)
    _, rate = likelihood._place(path(x, process, (13.3, -5.0), uniform), process, w, known)
    each = rate.flatten(1).mean(1)
    assert (rate >= 0).all()
    assert float(each.mean()) == pytest.approx(18.3, abs=4 * float(each.std()) / len(x) ** 0.5 + 1e-6)
    assert float(each.std()) / len(x) ** 0.5 < 0.25


def test_random_paths_are_those_of_the_theorem(process):
    """Patches share a time, no two patches do, and their paces are draws from Exp(1)."""
    x, span, generator = torch.zeros(4_000, 1, 4, 6), (13.3, -5.0), torch.Generator().manual_seed(0)

    def uniform(like):
        return torch.rand(like.shape, generator=generator, dtype=like.dtype)

    y = random_path(2)(x, process, span, uniform)(torch.full((len(x), 1, 1, 1), 0.7, dtype=torch.float64))
    patches = y.unfold(2, 2, 2).unfold(3, 2, 2).reshape(len(x), 6, 4)
    assert torch.equal(patches.amin(2), patches.amax(2))
    low, high = (float(process.time_of(torch.tensor(each, dtype=torch.float64))) for each in span)
    sigma = likelihood._auxiliary(torch.tensor(0.7, dtype=torch.float64), low / (high - low))
    pace = ((high - low) / (high - patches[..., 0])).log() / sigma
    assert len(pace[0].unique()) == 6
    below = (pace[..., None] < torch.tensor([0.01, 0.1, 0.5, 1.0, 2.0, 4.0])).double().mean((0, 1))
    wanted = 1.0 - torch.exp(-torch.tensor([0.01, 0.1, 0.5, 1.0, 2.0, 4.0], dtype=torch.float64))
    assert torch.allclose(below, wanted, atol=0.015)
    assert torch.corrcoef(pace.T).triu(1).abs().max() < 0.08


@pytest.mark.parametrize("pace", [1e-3, 1e-2, 0.1, 1.0, 10.0])
def test_no_token_is_too_slow_to_be_counted(process, pace):
    """By quadrature over the clock, the log-SNR of a token of any pace falls by the span."""
    places = 200_000
    w = ((torch.arange(places, dtype=torch.float64) + 0.5) / places).view(-1, 1, 1, 1)
    x = torch.zeros(places, 1, 1, 2)

    def uniform(like):
        return torch.full_like(like, -math.expm1(-pace))

    known = torch.zeros(places, 1, 1, 2, dtype=torch.bool)
    _, rate = likelihood._place(random_path(1)(x, process, (13.3, -5.0), uniform), process, w, known)
    assert float(rate.mean()) == pytest.approx(18.3, rel=2e-3)


def test_pictures_of_three_channels_have_the_same_bound(process):
    exact = random_gaussian(process, (3, 2, 2))
    x = exact.draw(150, generator=torch.Generator().manual_seed(0)).double()
    for path in (synchronous_path(), random_path(1)):
        check(bound(exact, x, path, process=process), log_prob(exact, x))


def test_many_tokens_at_their_own_pace_have_the_same_bound():
    """Sixteen tokens and enough pictures to see a tenth of a nat per token."""
    exact = gaussian_field(RectifiedFlow(), 4, 4, length=2.0)
    x = exact.draw(250, generator=torch.Generator().manual_seed(0)).double()
    terms = bound(exact, x, random_path(1), calls=48, span=(14.0, -9.0))
    check(terms, log_prob(exact, x))
    assert float(terms.error.square().mean().sqrt()) / 250**0.5 < 0.25


@pytest.mark.parametrize("calls", [8, 128])
def test_more_calls_give_less_error(calls):
    exact = random_gaussian(RectifiedFlow(), (1, 2, 3))
    x = exact.draw(40, generator=torch.Generator().manual_seed(0)).double()
    terms = bound(exact, x, synchronous_path(), calls=calls)
    check(terms, log_prob(exact, x))
    few = bound(exact, x, synchronous_path(), calls=2)
    assert float(terms.error.mean()) < 1.5 * float(few.error.mean()) * (2 / calls) ** 0.5


def test_a_wrong_denoiser_has_a_lower_bound_that_depends_on_the_path():
    exact = random_gaussian(RectifiedFlow(), (1, 2, 3))
    x = exact.draw(300, generator=torch.Generator().manual_seed(0)).double()

    def wrong(z, t, cond=None):
        """It believes in its neighbours too little where they are clean."""
        out = exact(z, t, cond).x
        return Denoised(out + 1.5 * t * (1 - t.mean((2, 3), keepdim=True)))

    true, found = log_prob(exact, x), {}
    for name in ("synchronous", "pixels", "raster"):
        terms = bound(wrong, x, PATHS[name])
        gap = true - terms.total
        assert float(gap.mean()) > 4 * float(gap.std()) / len(x) ** 0.5
        found[name] = (float(terms.total.mean()), float(gap.std()) / len(x) ** 0.5)
    values = sorted(found.values())
    assert values[-1][0] - values[0][0] > 4 * (values[-1][1] + values[0][1])


WRONG = {
    "sign": lambda right: lambda *args: -right(*args),
    "one half": lambda right: lambda *args: 2 * right(*args),
    "signal-to-noise ratio": lambda right: lambda error, surplus, logsnr, rate: right(error, surplus, logsnr / 2, rate),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_in_the_bound_would_be_seen(what, monkeypatch):
    exact = random_gaussian(RectifiedFlow(), (1, 2, 3))
    x = exact.draw(150, generator=torch.Generator().manual_seed(0)).double()
    monkeypatch.setattr(likelihood, "_density", WRONG[what](likelihood._density))
    for name in ("synchronous", "pixels", "raster"):
        with pytest.raises(AssertionError):
            check(bound(exact, x, PATHS[name]), log_prob(exact, x))


@pytest.mark.parametrize("name", ["pixels", "raster"])
def test_a_mistake_in_the_path_measure_would_be_seen(name, monkeypatch):
    """The speed of a synchronous path, along another one."""
    exact = random_gaussian(RectifiedFlow(), (1, 2, 3))
    x = exact.draw(150, generator=torch.Generator().manual_seed(0)).double()
    right = likelihood._place
    steady = WIDE[0] - WIDE[1]
    monkeypatch.setattr(likelihood, "_place", lambda *args: (right(*args)[0], torch.full_like(right(*args)[1], steady)))
    with pytest.raises(AssertionError):
        check(bound(exact, x, PATHS[name]), log_prob(exact, x))
    check(bound(exact, x, synchronous_path()), log_prob(exact, x))


@pytest.mark.parametrize("term", ["_prior", "_reconstruction"])
def test_a_forgotten_end_of_the_path_would_be_seen(term, monkeypatch):
    exact = random_gaussian(RectifiedFlow(), (1, 2, 3))
    x = exact.draw(150, generator=torch.Generator().manual_seed(0)).double()
    right = getattr(likelihood, term)
    monkeypatch.setattr(likelihood, term, lambda *args: right(*args) * 0)
    with pytest.raises(AssertionError):
        check(bound(exact, x, synchronous_path(), span=(16.0, 2.0)), log_prob(exact, x))


def test_a_hole_is_judged_given_what_is_known():
    exact = random_gaussian(RectifiedFlow(), (1, 2, 3))
    x = exact.draw(150, generator=torch.Generator().manual_seed(0)).double()
    hole = torch.tensor([[1.0, 0, 1], [0, 1, 0]])[None, None]
    inside = hole.flatten() > 0
    true = []
    for each in x:
        law = conditional(law_of(exact), ~inside, each.double().flatten())
        part = torch.distributions.MultivariateNormal(law.mean[inside], law.covariance[inside][:, inside])
        true.append(part.log_prob(each.double().flatten()[inside]))
    for schedule in (inpainting(hole, 1), autoregressive(fields.raster_order(2, 3), 1, hole=hole)):
        terms = bound(exact, x, schedule_path(schedule))
        check(terms, torch.stack(true))
        assert terms.numbers.tolist() == [3.0] * len(x)
        assert not terms.map[..., hole[0, 0] == 0].any()


def test_the_better_candidate_has_the_higher_bound():
    exact = random_gaussian(RectifiedFlow(), (1, 2, 3))
    x = exact.draw(1, generator=torch.Generator().manual_seed(0)).double().repeat(8, 1, 1, 1)
    x[1:, :, 0, 0] += torch.arange(1, 8.0)[:, None]
    hole = torch.zeros(1, 1, 2, 3)
    hole[..., 0, 0] = 1
    terms = bound(exact, x, schedule_path(inpainting(hole, 1)), calls=128)
    law = conditional(law_of(exact), hole.flatten() == 0, x[0].flatten())
    wanted = -(x[:, 0, 0, 0] - law.mean[0]).abs()
    assert int(terms.total.argmax()) == int(wanted.argmax())
    assert int(terms.total.argmin()) == int(wanted.argmin())


def levels(bits, shape, generator=None):
    return torch.randint(0, 2**bits, shape, generator=generator).double() * (2 / (2**bits - 1)) - 1


@pytest.mark.parametrize("path", [synchronous_path(), random_path(1)])
def test_of_discrete_data_it_is_the_log_probability(path):
    """Two pixels of four levels each, all sixteen pictures with known probabilities."""
    process = RectifiedFlow()
    grid = torch.cartesian_prod(*[torch.arange(4.0)] * 2) * (2 / 3) - 1
    weights = torch.rand(16, generator=torch.Generator().manual_seed(0)) + 0.05
    exact = GaussianMixture(process, weights, grid.view(16, 1, 1, 2), 1e-9 * torch.eye(2).repeat(16, 1, 1))
    which = torch.arange(16).repeat(12)
    x = grid[which].view(-1, 1, 1, 2)
    terms = bound(exact, x, path, bits=2, span=(9.0, -12.0))
    check(terms, (weights / weights.sum()).double().log()[which])
    assert torch.allclose(terms.bits_per_dim, -terms.total / (2 * math.log(2)))
    assert torch.allclose(terms.bits_error, terms.error / (2 * math.log(2)))


@pytest.mark.parametrize("logsnr", [2.0, 6.0, 12.0])
@pytest.mark.parametrize("bits", [1, 4, 8])
def test_the_reconstruction_is_a_softmax_over_all_levels(bits, logsnr):
    x = levels(bits, (3, 2, 4, 4))
    noise = torch.randn(x.shape, dtype=torch.float64)
    scale = math.exp(-logsnr / 2)
    every = torch.arange(2**bits).double() * (2 / (2**bits - 1)) - 1
    logits = -0.5 * ((x + scale * noise)[..., None] - every).square() / scale**2
    chosen = ((x + 1) * (2**bits - 1) / 2).round().long()
    wanted = logits.log_softmax(-1).gather(-1, chosen[..., None])[..., 0].sum(1, keepdim=True)
    assert torch.allclose(likelihood._reconstruction(x, logsnr, bits, noise), wanted, atol=1e-9)


@pytest.mark.parametrize("logsnr", [-5.0, 0.5])
def test_the_prior_is_a_divergence_of_gaussians(process, logsnr):
    x = torch.randn(2, 3, 2, 2, dtype=torch.float64)
    t = process.time_of(torch.tensor(logsnr, dtype=torch.float64))
    alpha, sigma = process.alpha(t), process.sigma(t)
    one = torch.distributions.Normal(alpha * x, sigma.expand_as(x))
    other = torch.distributions.Normal(torch.zeros_like(x), (alpha**2 + sigma**2).sqrt().expand_as(x))
    wanted = torch.distributions.kl_divergence(one, other).sum(1, keepdim=True)
    assert torch.allclose(likelihood._prior(x, logsnr), wanted)


def test_times_are_where_the_log_snr_says(process):
    logsnr = torch.linspace(-14, 14, 50, dtype=torch.float64)
    assert torch.allclose(process.logsnr(process.time_of(logsnr)), logsnr, atol=1e-6)


def test_a_patch_as_large_as_the_picture_is_the_synchronous_path():
    exact = random_gaussian(RectifiedFlow(), (1, 2, 3))
    x = exact.draw(4, generator=torch.Generator().manual_seed(0)).double()
    assert torch.equal(bound(exact, x, random_path(3)).total, bound(exact, x, synchronous_path()).total)


def test_a_bound_depends_on_its_own_seed_alone():
    exact = random_gaussian(RectifiedFlow(), (1, 2, 3))
    x = exact.draw(3, generator=torch.Generator().manual_seed(0)).double()
    for path in (synchronous_path(), random_path(1)):
        together = bound(exact, x, path)
        alone = bound(exact, x[1:2], path, generator=generators([1]))
        assert torch.allclose(together.total[1:2], alone.total)
        assert torch.allclose(together.total, bound(exact, x, path).total)


def test_labels_and_progress_reach_whom_they_should():
    seen, told = [], []

    def denoiser(z, t, cond=None):
        seen.append((z.dtype, t.dtype, cond))
        return Denoised(torch.zeros_like(z))

    cond = Cond(label=torch.tensor([1, 2]))
    x = levels(8, (2, 3, 4, 4)).float()
    terms = elbo(
        denoiser, x, process=CosineVP(), path=random_path(2), calls=6, cond=cond,
        progress=lambda done, of: told.append((done, of)),
    )  # fmt: skip
    assert told == [(k, 6) for k in range(1, 7)]
    assert len(seen) == 6
    assert all(z == t == torch.float32 and c is cond for z, t, c in seen)
    assert terms.total.shape == terms.error.shape == (2,)
    assert (terms.bits_per_dim > 0).all()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"calls": 3}, "even"),
        ({"calls": 0}, "calls"),
        ({"span": (-5.0, 13.0)}, "higher to a lower"),
        ({"x": torch.rand(1, 3, 4, 4)}, "bits=None"),
        ({"x": torch.full((1, 3, 4, 4), 3.0)}, "levels of 8 bits"),
        ({"path": schedule_path(inpainting(torch.full((1, 1, 4, 4), 0.5), 2))}, "in between"),
        ({"path": schedule_path(OpenLoop(lambda u: (3 * u - 1).square().clamp(0, 1).expand(1, 1, 4, 4), 4))}, "raises"),
    ],
)
def test_mistakes_are_said(wrong, said):
    settings = {
        "x": levels(8, (1, 3, 4, 4)),
        "process": RectifiedFlow(),
        "path": synchronous_path(),
        "calls": 2,
    } | wrong
    with pytest.raises(ValueError, match=said):
        elbo(lambda z, t, cond: Denoised(z), settings.pop("x"), **settings)


def test_a_path_needs_a_schedule_that_is_known_beforehand():
    with pytest.raises(TypeError, match="known beforehand"):
        schedule_path(lambda z: z)
    with pytest.raises(ValueError, match="patch"):
        random_path(0)


@pytest.mark.parametrize(
    ("tau", "said"),
    [
        (lambda u: torch.floor((1 - u) * 8) / 8, "jumps"),
        (lambda u: 1 - 0.5 * u, "does not reach 0"),
        (lambda u: torch.where(u < 0.5, 1.0, 0.0) + 0 * u, "jumps"),
    ],
)
def test_paths_that_miss_a_part_of_the_way_are_refused(tau, said):
    with pytest.raises(ValueError, match=said):
        bound(lambda z, t, cond: Denoised(z), torch.zeros(1, 1, 2, 2), schedule_path(OpenLoop(tau, 4)))


def test_a_smooth_function_is_a_path():
    exact = random_gaussian(RectifiedFlow(), (1, 2, 3))
    x = exact.draw(100, generator=torch.Generator().manual_seed(0)).double()
    smooth = schedule_path(OpenLoop(lambda u: torch.cos(0.5 * math.pi * u) ** 2, 4))
    check(bound(exact, x, smooth), log_prob(exact, x))


def test_levels_must_be_levels():
    x = levels(8, (1, 1, 2, 2)).float()
    elbo(lambda z, t, cond: Denoised(z), x, process=RectifiedFlow(), path=synchronous_path(), calls=2)
    with pytest.raises(ValueError, match="levels of 8 bits"):
        elbo(
            lambda z, t, cond: Denoised(z), x + 0.1 * 2 / 255, process=RectifiedFlow(), path=synchronous_path(), calls=2
        )
    deep = levels(16, (1, 1, 2, 2)).float()
    elbo(lambda z, t, cond: Denoised(z), deep, process=RectifiedFlow(), path=synchronous_path(), calls=2, bits=16)


def test_the_reconstruction_is_seeded_and_its_spread_is_counted():
    """With a denoiser that knows the answer only the reconstruction varies: over seeds as much as is claimed."""
    x = levels(8, (1, 1, 4, 4)).expand(200, 1, 4, 4)

    def told(z, t, cond=None):
        return Denoised(x[: len(z)].to(z))

    how = {"process": RectifiedFlow(), "path": synchronous_path(), "calls": 2, "span": (7.0, 6.9), "bits": 8}
    terms = elbo(told, x, generator=generators(range(200)), **how)
    again = elbo(told, x[:1], generator=generators([0]), **how)
    assert torch.equal(terms.reconstruction[:1], again.reconstruction)
    spread = float(terms.total.std())
    assert spread > 0.1
    assert float(terms.error.square().mean().sqrt()) == pytest.approx(spread, rel=0.3)
