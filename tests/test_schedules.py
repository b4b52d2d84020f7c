import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncpatch import fields
from asyncpatch.schedules import autoregressive, from_function, from_map, inpainting, synchronous


def path(schedule, height=1, width=1, batch=1):
    """All time fields that the loop would see, [steps + 1, B, 1, H, W], walked as the loop walks."""
    t = schedule.start(torch.empty(batch, 3, height, width))
    visited = [t]
    k = 0
    while schedule.ask(k, t) is not None:
        t = schedule.next(k, t, None)
        visited.append(t)
        k += 1
    return torch.stack(visited)


def test_synchronous_goes_down_evenly_on_any_canvas():
    times = path(synchronous(8), 3, 5, batch=2)
    assert times.shape == (9, 2, 1, 3, 5)
    assert torch.equal(times, (1 - torch.arange(9) / 8).view(9, 1, 1, 1, 1).expand_as(times))


def test_inpainting_keeps_the_known_and_starts_grey_where_it_is_grey():
    hole = torch.tensor([0.0, 1.0, 0.6]).view(1, 1, 1, 3)
    times = path(inpainting(hole, 4), 1, 3)[:, 0, 0, 0]
    assert torch.equal(times[:, 0], torch.zeros(5))
    assert torch.equal(times[:, 1], 1 - torch.arange(5) / 4)
    assert torch.allclose(times[:, 2], 0.6 * (1 - torch.arange(5) / 4))


def test_a_hole_may_be_of_integers_or_booleans_and_differ_between_samples():
    hole = torch.tensor([[0, 1], [1, 0]]).view(2, 1, 1, 2)
    for kind in (hole, hole.bool()):
        times = path(inpainting(kind, 2), 1, 2, batch=2)
        assert times[:, :, 0, 0].tolist() == [[[0, 1], [1, 0]], [[0, 0.5], [0.5, 0]], [[0, 0], [0, 0]]]


@given(st.integers(1, 13), st.integers(1, 9))
def test_autoregressive_is_the_papers_formula_and_groups_are_never_active_together(count, steps):
    groups = torch.arange(count).view(1, count)
    times = path(autoregressive(groups, steps), 1, count)[:, 0, 0, 0]
    for row in range(count * steps + 1):
        for k in range(1, count + 1):  # the paper counts groups from 1
            u = row / (count * steps)
            wanted = 1.0 if row < (k - 1) * steps else 0.0 if row > k * steps else count * (k / count - u)
            assert times[row, k - 1].item() == pytest.approx(wanted, abs=1e-5)
    moves = times[1:] != times[:-1]  # exactly: a group moves in its own steps, to the bit
    assert torch.equal(moves, torch.arange(count * steps)[:, None] // steps == torch.arange(count))
    assert (times[-1] == 0).all()


def test_only_the_order_of_the_groups_counts():
    gaps = torch.tensor([[200, -7, 13]])
    dense = torch.tensor([[2, 0, 1]])
    assert torch.equal(path(autoregressive(gaps, 3), 1, 3), path(autoregressive(dense, 3), 1, 3))


def test_an_autoregressive_hole_takes_no_steps_where_there_is_nothing_to_do():
    groups = fields.raster_order(4, 4, 2)
    hole = torch.zeros(1, 1, 4, 4)
    hole[..., 2:, 2:] = 0.5  # the last of four patches
    hole[..., 0, 3] = 1.0  # and a pixel of the second
    schedule = autoregressive(groups, 5, hole=hole)
    times = path(schedule, 4, 4)
    assert schedule.steps == 10
    assert torch.equal(times[0, 0], hole[0])
    assert (times[:, 0, 0][:, hole[0, 0] == 0] == 0).all()
    assert times[5, 0, 0, 0, 3] == 0
    assert (times[5, 0, 0, 2:, 2:] == 0.5).all()
    assert (times[-1] == 0).all()


@given(
    st.floats(0.0, 1.0, width=32),
    st.floats(0.0, 0.96875, width=32),
    st.floats(0.015625, 1.0, width=32),
    st.integers(1, 20),
)
def test_from_map_is_its_formula_and_always_arrives(start, begin, length, steps):
    end = min(1.0, begin + length)
    maps = [torch.full((1, 1, 1, 1), value) for value in (start, begin, end)]
    times = path(from_map(*maps, steps)).flatten()
    for k, t in enumerate(times.tolist()):
        share = min(max((end - k / steps) / (end - begin), 0.0), 1.0)
        assert t == pytest.approx(start * share, abs=1e-4)
    assert times[0] == start
    assert times[-1] == 0
    assert (times[1:] <= times[:-1]).all()


def test_rounding_at_the_ends_of_a_function_is_forgiven():
    times = path(from_function(lambda u: torch.cos(u * (math.pi / 2)), 3))
    assert times.flatten()[[0, -1]].tolist() == [1.0, 0.0]  # the cosine ends at -4e-8


def test_a_function_is_a_schedule():
    times = path(from_function(lambda u: (1 - u) ** 2, 4), 2, 2)
    assert times[:, 0, 0, 0, 0].tolist() == [1.0, 0.5625, 0.25, 0.0625, 0.0]


@pytest.mark.parametrize(
    ("tau", "words"),
    [
        (lambda u: u, r"tau must never increase, but somewhere tau\(1/4\) exceeds tau\(0/4\)"),
        (lambda u: 1 - 0.5 * u, r"tau\(1\) must be 0 everywhere, got a time of 0.5"),
        (lambda u: torch.where(u == 0.5, 0.9, 1 - u), r"somewhere tau\(2/4\) exceeds tau\(1/4\)"),
        (lambda u: torch.cat([1 - u, torch.where(u == 0.5, 0.9, 1 - u)], 3), r"somewhere tau\(2/4\) exceeds"),
        (lambda u: torch.cat([1 - u, 1 - 0.5 * u], 3), r"tau\(1\) must be 0 everywhere, got a time of 0.5"),
        (lambda u: 1 - u + 1e-4 * (u == 1), r"tau\(1\) must be 0 everywhere, got a time of 0.0001"),
        (lambda u: 2 - 2 * u, r"tau\(0/4\) must lie in \[0, 1\].* to 2"),
        (lambda u: u * math.nan, r"tau\(0/4\) must lie in \[0, 1\].*nan"),
        (lambda u: (1 - u).view(1), r"tau\(0/4\) must be a tensor that broadcasts to \[B, 1, H, W\], got shape \[1\]"),
    ],
)
def test_a_bad_function_is_named(tau, words):
    with pytest.raises(ValueError, match=words):
        from_function(tau, 4)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: synchronous(0), "steps must be an integer of at least 1, got 0"),
        (lambda: synchronous(True), "steps must be an integer of at least 1, got True"),
        (lambda: synchronous(2.5), "steps must be an integer of at least 1, got 2.5"),
        (lambda: inpainting(torch.zeros(4, 4), 8), r"hole must .* got shape \[4, 4\]; .* use hole\[None, None\]"),
        (lambda: inpainting(torch.zeros(2, 4, 4), 8), r"hole must .* got shape \[2, 4, 4\]; .* use hole\[:, None\]"),
        (lambda: inpainting(torch.zeros(99, 99).numpy(), 8), r"got a ndarray of shape \[99, 99\] \(not a tensor\)$"),
        (lambda: inpainting(torch.full((1, 1, 4, 4), 255), 8), r"hole must lie in \[0, 1\].* 255; divide by 255\?"),
        (lambda: inpainting(torch.full((1, 1, 4, 4), math.nan), 8), r"hole must lie in \[0, 1\].*nan"),
        (lambda: inpainting(torch.zeros(1, 3, 4, 4), 8), r"hole must be one value per token.*\[1, 3, 4, 4\]"),
        (lambda: from_map(1.2, 0.0, 1.0, 8), r"start must lie in \[0, 1\], got 1.2"),
        (lambda: from_map(1.0, 0.5, 0.5, 8), "begin must lie below end"),
        (lambda: from_map(1.0, torch.full((1, 1, 2, 2), 0.9), 0.8, 8), "begin must lie below end"),
        (lambda: from_map(1.0, 0.0, torch.full((1, 1, 2, 2), 1.5), 8), r"end must lie in \[0, 1\]"),
        (lambda: autoregressive(torch.rand(4, 4), 2), r"groups must be an integer map \[H, W\], got .*float32"),
        (lambda: autoregressive(torch.zeros(1, 4, 4).long(), 2), r"groups must be an integer map .*\[1, 4, 4\]"),
        (lambda: from_map(1.0, torch.tensor([0.1, 0.9]).view(1, 1, 1, 2), 0.5, 4), "begin must lie below end"),
        (
            lambda: from_map(torch.ones(1, 1, 4, 4), 0.0, torch.ones(1, 1, 5, 5), 4),
            r"start, begin and end must be maps of one size, got shapes \[\[1, 1, 4, 4\], \[1, 1, 5, 5\]\]",
        ),
        (lambda: autoregressive(torch.ones(4, 4).bool(), 2), r"groups must be an integer map .* of torch.bool"),
        (lambda: autoregressive(torch.zeros(0, 4).long(), 2), r"groups must not be empty, got shape \[0, 4\]"),
        (lambda: autoregressive(torch.zeros(4, 4).long(), 2, hole=[1]), r"hole must be a tensor .* got list \[1\]"),
        (lambda: autoregressive([[1, 2]], 2), r"groups must be an integer map .* list"),
        (lambda: autoregressive(torch.zeros(4, 4).long(), 0), "steps_per_group must be"),
        (
            lambda: autoregressive(torch.zeros(4, 4).long(), 2, hole=torch.zeros(1, 1, 4, 4)),
            "hole is 0 everywhere: there is nothing to generate",
        ),
        (
            lambda: autoregressive(torch.zeros(4, 4).long(), 2, hole=torch.ones(2, 1, 5, 4)),
            r"hole must broadcast to \[2, 1, 4, 4\], got shape \[2, 1, 5, 4\]",
        ),
    ],
)
def test_bad_arguments_are_named(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_a_canvas_of_another_size_is_named():
    schedule = inpainting(torch.ones(1, 1, 4, 4), 8)
    with pytest.raises(ValueError, match=r"\(its hole, order or maps\) must broadcast to \[1, 1, 5, 5\], got shape"):
        schedule.start(torch.zeros(1, 3, 5, 5))


def test_maps_on_another_device_are_named_and_can_be_moved():
    schedule = inpainting(torch.ones(1, 1, 4, 4), 8)
    canvas = torch.zeros(1, 3, 4, 4, device="meta")
    with pytest.raises(ValueError, match=r"map 'start' is on cpu, the canvas on meta.*schedule.to\(device\)"):
        schedule.start(canvas)
    assert schedule.to("meta").start(canvas).shape == (1, 1, 4, 4)
    assert synchronous(8).start(canvas).is_meta


def test_a_function_may_pause():
    assert path(from_function(lambda u: (1 - 2 * u).clamp_min(0.0), 4)).flatten().tolist() == [1.0, 0.5, 0.0, 0.0, 0.0]


def test_a_function_is_checked_on_its_device():
    seen = []

    def tau(u):
        seen.append(u.device.type)
        return 1 - u

    with pytest.raises(RuntimeError):  # a meta tensor has no values to check
        from_function(tau, 2, device="meta")
    assert set(seen) == {"meta"}


def test_times_are_float32_whatever_a_function_returns():
    assert path(from_function(lambda u: 1 - u.double(), 2)).dtype == torch.float32


@pytest.mark.parametrize("begin", [1 / 3, torch.full((1, 1, 1, 1), 1 / 3)])
def test_a_token_waits_until_its_begin_exactly(begin):
    assert path(from_map(1.0, begin, 1.0, 3)).flatten()[:2].tolist() == [1.0, 1.0]


def test_a_hole_within_the_first_group_ends_with_it():
    hole = torch.tensor([1.0, 0.0, 0.0]).view(1, 1, 1, 3)
    schedule = autoregressive(torch.tensor([[0, 1, 2]]), 2, hole=hole)
    assert schedule.steps == 2
    assert (path(schedule, 1, 3)[-1] == 0).all()


def test_groups_that_any_sample_needs_take_their_steps():
    assert autoregressive(torch.tensor([[0, 1]]), 3, hole=torch.eye(2).view(2, 1, 1, 2)).steps == 6


def test_an_order_may_lie_in_memory_as_it_likes():
    assert autoregressive(torch.arange(6).view(2, 3).T, 2).steps == 12


def test_numbers_in_tensors_move_too():
    canvas = torch.zeros(1, 1, 2, 2, device="meta")
    assert from_map(torch.tensor(1.0), 0.0, 1.0, 4).to("meta").start(canvas).is_meta


def test_answers_are_needed_where_a_token_moves_and_nowhere_else():
    groups = torch.tensor([[0, 1, 2], [2, 1, 0]])
    hole = torch.tensor([[1.0, 1, 0], [0.5, 1, 1]])[None, None]
    schedule = autoregressive(groups, 2, hole=hole)
    t = schedule.start(torch.zeros(1, 1, 2, 3))
    for k in range(6):
        assert torch.equal(schedule.needs(k, t)[0, 0], (groups == k // 2) & (hole[0, 0] > 0))
        t = schedule.next(k, t, None)
    assert not t.any()


@pytest.mark.parametrize("order", [0.0, torch.tensor(0.0)])
def test_those_that_go_together_are_all_needed_all_the_time(order):
    """None says so without a look at the device; it must not be said of others."""
    start = torch.tensor([[1.0, 0.3], [0.0, 0.7]])[None, None]
    schedule = from_map(start, order, 1.0, 4)
    t = schedule.start(torch.zeros(1, 1, 2, 2))
    for k in range(4):
        needed = schedule.needs(k, t)
        assert needed is None if isinstance(order, float) else torch.equal(needed, start > 0)
        s = schedule.next(k, t, None)
        assert torch.equal(s < t, start > 0)
        t = s
    for other in (from_map(1.0, 0.5, 1.0, 4), from_map(1.0, 0.0, 0.5, 4), from_map(1.0, 0.0, torch.ones(()), 4)):
        assert other.needs(0, other.start(t)) is not None
