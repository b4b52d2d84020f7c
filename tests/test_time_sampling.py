import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncpatch import fields
from asyncpatch.time_sampling import (
    AsyncPatch,
    Global,
    Independent,
    MeanBeta,
    Mixture,
    PatchForcing,
    Patchwise,
    Perlin,
    _symmetric_beta,
    by_name,
    evenly,
)
from watch import CountWaits

ALL = {
    "Global": Global(),
    "Independent": Independent(),
    "Patchwise": Patchwise(),
    "Perlin": Perlin(),
    "Perlin, one t": Perlin(times="picture"),
    "AsyncPatch": AsyncPatch(),
    "PatchForcing": PatchForcing(patch_sizes=(4,)),
    "MeanBeta": MeanBeta(patch_sizes=(4,)),
    "Mixture": Mixture((AsyncPatch(), Perlin(times="picture")), (0.8, 0.2)),
}


def distance(samples, cdf=lambda t: t):
    """Kolmogorov-Smirnov distance of samples from a distribution on [0, 1] (by default the uniform one)."""
    samples = samples.flatten().double().sort().values
    rank = torch.arange(len(samples) + 1, dtype=torch.float64) / len(samples)
    wanted = cdf(samples)
    return max((wanted - rank[:-1]).abs().max().item(), (rank[1:] - wanted).abs().max().item())


def asyncpatch_cdf(t):
    """Integral of the density -log(t (1-t)) / 2 of one token's time."""
    return t + 0.5 * (torch.special.xlogy(1 - t, 1 - t) - torch.special.xlogy(t, t))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", [(64, 64), (48, 80), (7, 5), (1, 1), (33, 1)])
def test_fields_have_their_shape_and_range(name, shape, generator):
    t = ALL[name].sample(9, *shape, generator=generator)
    assert t.shape == (9, 1, *shape)
    assert t.dtype == torch.float32
    assert t.is_contiguous()
    assert t.min() >= 0
    assert t.max() <= 1


@pytest.mark.parametrize("name", ALL)
def test_fields_follow_their_seed_and_differ_from_each_other(name):
    first, again, other = (
        ALL[name].sample(16, 16, 16, generator=torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert len(torch.unique(first.flatten(1), dim=0)) > 12


@pytest.mark.parametrize("name", ALL)
def test_sampling_never_waits_for_the_device(name):
    with CountWaits() as count:
        ALL[name].sample(32, 16, 16)
    assert count.waits == 0


@pytest.mark.parametrize("name", ["Global", "Independent", "Patchwise"])
@pytest.mark.parametrize("batch", [3, 4096])
def test_one_tokens_time_is_uniform(name, batch, generator):
    """Also where the batch is no multiple of the number of patch sides, and some that were dealt are dropped."""
    draws = [ALL[name].sample(batch, 8, 8, generator=generator)[:, 0, 5, 2] for _ in range(-(-4096 // batch))]
    assert distance(torch.cat(draws)) < 0.03


@pytest.mark.parametrize("patch_sizes", [None, (1,), (64,)])
def test_one_tokens_time_under_asyncpatch_has_the_density_that_the_algorithm_implies(patch_sizes, generator):
    sampler = AsyncPatch(patch_sizes=patch_sizes)
    t = sampler.sample(20_000, 4, 4, generator=generator)[:, 0, 1, 2]
    assert distance(t, asyncpatch_cdf) < 0.012
    assert distance(t) > 0.03  # and so is not uniform


def test_the_mean_of_an_asyncpatch_field_is_uniform(generator):
    """With many patches the realised mean is the one that was drawn, up to the patches' own scatter."""
    means = AsyncPatch(patch_sizes=(1,)).sample(4000, 32, 32, generator=generator).mean((1, 2, 3))
    assert distance(means) < 0.03
    concentrated = Patchwise(patch_sizes=(1,)).sample(4000, 32, 32, generator=generator).mean((1, 2, 3))
    assert (concentrated - 0.5).abs().max() < 0.06  # what the paper holds against independent times


def test_asyncpatch_fields_fill_the_widest_interval_around_their_mean(generator):
    """mean +- delta, with delta as large as the range allows: one end of the interval touches an end of the range."""
    t = AsyncPatch(patch_sizes=(1,), t_min=0.1, t_max=0.9).sample(500, 32, 32, generator=generator).flatten(1)
    low, high = t.min(1).values, t.max(1).values
    assert (torch.minimum(low - 0.1, 0.9 - high) < 0.01).all()
    assert ((low - 0.1 > 0.1) | (0.9 - high > 0.1)).float().mean() > 0.5  # and most stay away from the other end
    assert t.min() >= 0.1
    assert t.max() <= 0.9
    inner = (t - low[:, None]) / (high - low)[:, None]
    assert distance(inner[::7, ::7]) < 0.03  # evenly filled


def test_max_delta_bounds_the_spread_and_zero_is_ordinary_diffusion(generator):
    t = AsyncPatch(max_delta=0.1).sample(700, 8, 8, generator=generator).flatten(1)
    assert (t.max(1).values - t.min(1).values).max() <= 0.2 + 1e-6
    flat = AsyncPatch(max_delta=0.0).sample(700, 8, 8, generator=generator).flatten(1)
    assert (flat == flat[:, :1]).all()
    assert distance(flat[:, 0]) < 0.06


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 24))
def test_times_are_shared_within_patches_and_only_there(height, width, size):
    generator = torch.Generator().manual_seed(0)
    for sampler in (Patchwise(patch_sizes=(size,)), AsyncPatch(patch_sizes=(size,))):
        t = sampler.sample(3, height, width, generator=generator)[:, 0]
        corners = t[:, ::size, ::size]
        assert torch.equal(t, fields.spread(corners, size, height, width))
        for picture in corners:
            assert len(torch.unique(picture)) >= 0.95 * picture.numel()


def patch_side(t):
    """The side of the patches of each square field, from how many values it holds."""
    return [t.shape[-1] // round(len(torch.unique(field)) ** 0.5) for field in t]


def test_every_patch_side_is_dealt_equally_often_and_shuffled(generator):
    t = Patchwise().sample(70, 16, 16, generator=generator)
    sides = patch_side(t)
    assert [sides.count(side) for side in (1, 2, 4, 8, 16)] == [14] * 5
    assert sides != sorted(sides)


def test_a_side_listed_twice_is_twice_as_likely(generator):
    sides = patch_side(Patchwise(patch_sizes=(2, 8, 8)).sample(60, 16, 16, generator=generator))
    assert (sides.count(2), sides.count(8)) == (20, 40)


@pytest.mark.parametrize("times", ["pixel", "picture"])
def test_perlin_fields_are_a_mask_of_any_size_on_a_clean_or_noisy_ground(times, generator):
    t = Perlin(t_min=0.01, t_max=0.99, times=times).sample(3000, 24, 32, generator=generator).flatten(1)
    ground = (t == 0) | (t == 1)
    both = (t == 0).any(1) & (t == 1).any(1)
    assert not both.any()
    assert distance(1 - ground.double().mean(1)) < 0.03  # the masked share is uniform
    noisy = (t == 1).any(1)[ground.any(1)].double().mean().item()
    assert noisy == pytest.approx(0.5, abs=0.03)
    values = [len(torch.unique(row[~mask])) for row, mask in zip(t, ground, strict=True)]
    if times == "picture":
        assert set(values) == {1}
        assert (
            distance(
                torch.stack([row[~mask][0] for row, mask in zip(t, ground, strict=True)]), lambda v: (v - 0.01) / 0.98
            )
            < 0.03
        )
    else:
        assert all(count >= 0.99 * (~mask).sum() for count, mask in zip(values, ground, strict=True))


def test_perlin_masks_are_blobs(generator):
    t = Perlin(times="picture").sample(400, 32, 32, generator=generator)[:, 0]
    inside = ((t != 0) & (t != 1)).float()
    half = inside[(inside.mean((1, 2)) - 0.5).abs() < 0.2]
    same = (half[:, :, 1:] == half[:, :, :-1]).float().mean()
    assert same > 0.85  # neighbours nearly always agree; independent pixels would half of the time


def test_a_mixture_draws_from_its_parts_in_proportion(generator):
    parts = (Global(t_min=0.0, t_max=0.3), Global(t_min=0.4, t_max=0.6), Global(t_min=0.7))
    t = Mixture(parts, (1.0, 2.0, 5.0)).sample(8000, 1, 1, generator=generator).flatten()
    shares = [(t < 0.35).float().mean(), ((t > 0.35) & (t < 0.65)).float().mean(), (t > 0.65).float().mean()]
    assert [share.item() for share in shares] == pytest.approx([0.125, 0.25, 0.625], abs=0.02)


def test_fields_can_be_had_on_another_device():
    for sampler in ALL.values():
        assert sampler.sample(4, 8, 8, device="meta").is_meta


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: AsyncPatch(t_min=0.5, t_max=0.5), "0 <= t_min < t_max <= 1, got 0.5, 0.5"),
        (lambda: Global(t_max=1.5), "0 <= t_min < t_max <= 1, got 0.0, 1.5"),
        (lambda: Independent(t_min=math.nan), "0 <= t_min < t_max <= 1, got nan"),
        (lambda: Patchwise(patch_sizes=()), "patch_sizes must name at least one side"),
        (lambda: Patchwise(patch_sizes=(4, 0)), "each of patch_sizes must be an integer of at least 1, got 0"),
        (lambda: AsyncPatch(max_delta=-0.1), r"max_delta must lie in \[0, 1\], got -0.1"),
        (lambda: Perlin(times="patch"), "times must be 'pixel' or 'picture', got 'patch'"),
        (lambda: Mixture((), ()), "equally many and not empty, got 0 and 0"),
        (lambda: Mixture((Global(),), (1.0, 2.0)), "equally many and not empty, got 1 and 2"),
        (lambda: Mixture((Global(),), (-1.0,)), "weights must not be negative"),
        (lambda: Mixture((Global(),), (0.0,)), "a positive sum"),
        (lambda: Mixture((Global(),), (math.inf,)), "a positive sum"),
        (lambda: Global().sample(0, 4, 4), "batch must be an integer of at least 1, got 0"),
        (lambda: Global().sample(2, 4, -1), "width must be an integer of at least 1, got -1"),
    ],
)
def test_bad_arguments_are_named(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_small_batches_see_all_patch_sides_equally_often():
    draws = [
        Patchwise(patch_sizes=(1, 2, 4, 8)).sample(3, 8, 8, generator=torch.Generator().manual_seed(seed))
        for seed in range(400)
    ]
    sides = patch_side(torch.cat(draws))
    for side in (1, 2, 4, 8):
        assert sides.count(side) / len(sides) == pytest.approx(0.25, abs=0.05)


def test_max_delta_is_reached(generator):
    t = AsyncPatch(max_delta=0.1, patch_sizes=(1,)).sample(700, 16, 16, generator=generator).flatten(1)
    assert (t.max(1).values - t.min(1).values).median() > 0.19


@pytest.mark.parametrize("times", ["pixel", "picture"])
def test_perlin_times_keep_to_their_range(times, generator):
    t = Perlin(t_min=0.2, t_max=0.6, times=times).sample(200, 8, 8, generator=generator)
    inside = t[(t != 0) & (t != 1)]
    assert 0.2 <= inside.min() < 0.22
    assert 0.58 < inside.max() <= 0.6


def test_perlin_cells_are_uniform_from_one_pixel_to_the_longer_side(generator, monkeypatch):
    cells = []
    perlin = fields.perlin
    monkeypatch.setattr(
        fields, "perlin", lambda b, h, w, cell, **more: cells.append(cell) or perlin(b, h, w, cell, **more)
    )
    Perlin().sample(2000, 4, 16, generator=generator)
    assert distance((cells[0] - 1) / 15) < 0.04


def test_the_papers_reading_of_perlin_is_the_default():
    assert Perlin().times == "pixel"


def test_samplers_by_name():
    assert by_name("asyncpatch") == AsyncPatch()
    assert by_name("perlin-picture") == Perlin(times="picture")
    mixed = by_name("0.8 asyncpatch + 0.2 perlin-picture")
    assert mixed == Mixture((AsyncPatch(), Perlin(times="picture")), (0.8, 0.2))
    assert by_name("global + patchwise") == Mixture((Global(), Patchwise()), (1.0, 1.0))
    for wrong in ("", "odd", "x asyncpatch", "0.5 0.5 global", "global +", "0.8"):
        with pytest.raises(ValueError, match=r"time fields must be|must be a number"):
            by_name(wrong)


@pytest.mark.parametrize("name", ["global", "independent", "patchwise", "asyncpatch"])
def test_times_can_be_spread_evenly(name):
    """Each token's marginal becomes uniform, and the order of the times stays."""
    sampler = by_name(name)
    t = sampler.sample(40_000, 4, 4, generator=torch.Generator().manual_seed(0))[:, 0, 1, 2]
    even = evenly(sampler, t)
    assert (even[t.argsort()].diff() >= -1e-6).all()
    places = torch.linspace(0.05, 0.95, 19)
    assert torch.allclose(even.quantile(places), places, atol=0.012)
    ends = evenly(sampler, torch.tensor([0.0, 0.5, 1.0]))
    assert ends.tolist() == pytest.approx([0.0, 0.5, 1.0])


@pytest.mark.parametrize("name", ["perlin", "perlin-picture", "0.8 asyncpatch + 0.2 perlin-picture"])
def test_times_that_cannot_are_refused(name):
    with pytest.raises(ValueError, match="spread evenly"):
        evenly(by_name(name), torch.zeros(1))


# ---- Samplers of other methods


@pytest.mark.parametrize("a", [1.0, 3.3, 2000.0])
def test_the_symmetric_beta_has_its_moments(a, generator):
    """Var = 1 / (4 (2a + 1)), and the fourth central moment 3 / (16 (2a + 1) (2a + 3))."""
    draws = _symmetric_beta(torch.tensor(a), torch.empty(200_000), generator).double() - 0.5
    second, fourth = 1 / (4 * (2 * a + 1)), 3 / (16 * (2 * a + 1) * (2 * a + 3))
    assert abs(float(draws.mean())) < 5 * math.sqrt(second / 200_000)
    assert float(draws.square().mean()) == pytest.approx(second, rel=0.02)
    assert float(draws.pow(4).mean()) == pytest.approx(fourth, rel=0.05)


@pytest.mark.parametrize("shape", [(8, 8), (5, 7), (3, 1)])
def test_the_mean_of_a_mean_beta_field_is_uniform_and_its_patches_are_all_alike(shape, generator):
    t = MeanBeta(patch_sizes=(1,)).sample(8192, *shape, generator=generator)[:, 0].flatten(1)
    assert distance(t.mean(1)) < 0.02
    first, last = t[:, 0], t[:, -1]
    assert abs(float(first.mean() - last.mean())) < 0.02  # shuffled: no place is special
    assert float(first.std()) == pytest.approx(float(last.std()), rel=0.05)
    assert float(t.std(1).mean()) > 0.05


def test_two_patches_of_a_mean_beta_field_share_their_sum_evenly(generator):
    """Beta(1, 1) is uniform: given the sum m of two, the first is uniform over what is possible."""
    t = MeanBeta(patch_sizes=(1,)).sample(20_000, 1, 2, generator=generator)[:, 0, 0]
    total = t.sum(1)
    least, most = (total - 1).clamp(min=0), total.clamp(max=1)
    assert distance((t[:, 0] - least) / (most - least)) < 0.015


def test_patch_forcing_fields_have_the_published_law(generator):
    """The cleanest of many patches is near 1 - sigmoid(0.7 + n); the others lie half a normal above it."""
    sampler = PatchForcing(patch_sizes=(1,))
    t = sampler.sample(4096, 32, 32, generator=generator)[:, 0].flatten(1).double()
    cleanest = t.min(1).values
    normal = torch.distributions.Normal(0.0, 1.0)
    assert distance(cleanest, lambda low: 1 - normal.cdf(torch.logit(1 - low) - 0.7)) < 0.025
    spread = (1 - cleanest) / 2
    inside = (t - cleanest[:, None]) / spread[:, None]
    assert float((inside < 0.6745).double().mean()) == pytest.approx(0.5, abs=0.02)  # the median of |n|
    assert float(t.max()) <= 1.0
