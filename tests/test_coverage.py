import pytest
import torch

from asyncpatch import coverage
from asyncpatch.schedules import inpainting, synchronous
from asyncpatch.time_sampling import AsyncPatch, Global, Independent, Mixture, Perlin


def small_hole(side):
    hole = torch.zeros(1, 1, 32, 32)
    hole[..., 8 : 8 + side, 8 : 8 + side] = 1
    return inpainting(hole, 8)


def test_circumstances_by_hand():
    t = torch.zeros(1, 1, 16, 16)
    t[..., 0, 0] = 1
    own, around, whole = coverage.circumstances(t)[0]
    assert torch.equal(own, t[0, 0])
    assert around[0, 0] == pytest.approx(1 / 9)  # the window of 5 is cut to 3 x 3 at the corner
    assert around[2, 2] == pytest.approx(1 / 25)
    assert around[3, 3] == 0
    assert torch.allclose(whole, torch.full((16, 16), 1 / 256))


def test_coverage_counts_the_training_tokens_in_like_circumstances(generator):
    """Against a plain count, for fields whose circumstances lie on the table's own levels."""

    class Coarse(Global):
        def _sample(self, *args):
            return (super()._sample(*args) * 20).round() / 20

    seen = coverage.observe(Coarse(), 8, 8, count=2000, generator=generator)
    for time in (0.0, 0.35, 1.0):
        t = torch.full((1, 1, 8, 8), time)
        close = ((seen.mean_times - time).abs() <= coverage.TOLERANCE + 1e-4).double().mean()
        assert seen(t).flatten().double().tolist() == pytest.approx([close.item()] * 64, abs=1e-9)


def test_training_on_the_states_of_generation_covers_generation_and_no_hole(generator):
    seen = coverage.observe(Global(), 32, 32, count=2048, generator=generator)
    assert coverage.along(seen, synchronous(8), 32, 32)[2:-6].mean().item() == pytest.approx(0.25, abs=0.03)
    assert coverage.along(seen, small_hole(12), 32, 32)[0] == 0


def test_asyncpatch_hardly_sees_small_holes_and_a_mixture_with_perlin_does(generator):
    """The gap of the paper's sampler: a picture whose mean time is low is never seen with a token at time 1."""
    alone = coverage.observe(AsyncPatch(), 32, 32, count=2048, generator=generator)
    mixed = coverage.observe(
        Mixture((AsyncPatch(), Perlin(times="picture")), (0.8, 0.2)), 32, 32, count=2048, generator=generator
    )
    assert coverage.along(alone, small_hole(8), 32, 32)[0] == 0
    assert coverage.along(mixed, small_hole(8), 32, 32)[0] > 3e-5
    assert coverage.along(alone, synchronous(8), 32, 32).min() > 0.05
    assert coverage.along(mixed, synchronous(8), 32, 32).min() > 0.05


def test_the_report_is_a_table_and_a_picture(tmp_path):
    found = coverage.report({"one": Global(), "two": AsyncPatch()}, 16, 12, count=64)
    lines = found.table().splitlines()
    assert lines[0].startswith("| sampler | generation | hole of 75 %")
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["one", "two"]
    assert all(line.count("|") == len(coverage.standard_schedules(16, 12)) + 2 for line in lines)
    found.plot(tmp_path / "coverage.png")
    assert (tmp_path / "coverage.png").stat().st_size > 10_000


def test_the_window_is_a_quarter_of_the_longer_side():
    t = torch.zeros(1, 1, 8, 32)
    t[..., 0] = 1
    around = coverage.circumstances(t)[0, 1, 4]
    assert around[4] > 0
    assert around[5] == 0


def test_the_tolerance_is_what_the_table_compares_up_to():
    assert pytest.approx(coverage._REACH / (coverage._LEVELS - 1)) == coverage.TOLERANCE


def test_all_fields_asked_for_are_counted(generator):
    seen = coverage.observe(Independent(), 8, 8, count=700, generator=generator)
    assert seen.mean_times.shape == (700,)
    assert (seen.mean_times - 0.5).abs().max() < 0.2
    assert seen.examples.shape == (9, 1, 8, 8)

    class Two(Global):
        calls = 0

        def _sample(self, batch, height, width, generator, device):
            type(self).calls += 1
            return torch.full((batch, height, width), float(type(self).calls == 2))

    halves = coverage.observe(Two(), 4, 4, count=1024)
    assert halves.close[0, 0, 0] == halves.close[20, 20, 20] == 0.5


def test_the_surroundings_count(generator):
    """Own time and mean of the picture as in training, but not what is around it."""
    seen = coverage.observe(Global(), 16, 16, count=512, generator=generator)
    t = torch.full((1, 1, 16, 16), 0.5)
    t[..., 6:11, 6:11] = 0
    t[..., 8, 8] = 0.5
    assert seen(t)[0, 0, 8, 8] == 0
    assert seen(t)[0, 0, 0, 0] > 0


def test_standard_holes_have_the_sizes_they_are_named_for():
    canvas = torch.empty(1, 1, 40, 40)
    schedules = coverage.standard_schedules(40, 40)
    for name, share in (("hole of 75 %", 0.75), ("hole of 25 %", 0.25), ("hole of 5 %", 0.05)):
        assert schedules[name].start(canvas).mean().item() == pytest.approx(share, abs=0.02)
    half = schedules["right half"].start(canvas)
    assert (half[..., 20:] == 1).all()
    assert (half[..., :20] == 0).all()


def test_the_table_gives_the_lowest_and_the_mean():
    values = {"a": torch.tensor([0.1, 0.1, 0.7, torch.nan]), "b": torch.tensor([torch.nan])}
    assert coverage.Report({}, {"s": values}).table().splitlines()[-1] == "| s | 0.1 (0.300) |  |"


def test_the_report_follows_its_seed_and_works_on_tiny_pictures():
    first, other = (coverage.report({"g": Global()}, 2, 2, count=32, seed=seed) for seed in (0, 1))
    assert not torch.equal(first.seen["g"].mean_times, other.seen["g"].mean_times)
    assert "hole of 5 %" in first.table()
    with pytest.raises(ValueError, match="samplers must name at least one sampler"):
        coverage.report({})
