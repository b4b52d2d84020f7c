import pytest
import torch

from asyncpatch import coverage
from asyncpatch.schedules import inpainting, synchronous
from asyncpatch.time_sampling import AsyncPatch, Global, Mixture, Perlin


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
