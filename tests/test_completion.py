"""Holes of any size: the right law in one window, the stages that were promised, and nothing outside touched."""

import pytest
import torch

from asyncpatch.completion import Completion, Stage
from asyncpatch.oracle import gaussian_field
from asyncpatch.process import RectifiedFlow
from asyncpatch.protocols import Cond, Denoised
from asyncpatch.regions import Box, boxes, halvings, reduced, reduced_hole, rings
from asyncpatch.steps import ddim
from oracle import Law, conditional, law_of

PROCESS = RectifiedFlow()


def completion(denoiser, **settings):
    return Completion(denoiser=denoiser, process=PROCESS, step=ddim(PROCESS), **settings)


class Grey:
    """Says that everything is of one grey, and remembers what it was asked."""

    def __init__(self, value=0.25):
        self.value, self.asked = value, []

    def __call__(self, z, t, cond=None):
        self.asked.append((z.clone(), t.clone(), cond))
        return Denoised(torch.full_like(z, self.value))


def square(height, width, top, left, side, value=1.0):
    hole = torch.zeros(1, 1, height, width)
    hole[..., top : top + side, left : left + side] = value
    return hole


def test_a_hole_in_one_window_has_the_conditional_law():
    exact = gaussian_field(PROCESS, 8, 8, length=1.5)
    hole = square(8, 8, 2, 3, 3)
    x = exact.draw(1, generator=torch.Generator().manual_seed(5)).float()
    many = 3000
    made = completion(exact, window=8, steps=50)(x.expand(many, -1, -1, -1), hole, range(many))
    inside = hole.flatten() > 0
    wanted = conditional(law_of(exact), ~inside, x.double().flatten())
    found = Law(made.double().flatten(1).mean(0), made.double().flatten(1).T.cov())
    spread = wanted.covariance.diagonal()[inside].sqrt()
    assert ((found.mean - wanted.mean)[inside].abs() / spread).max() < 0.1
    off = (found.covariance - wanted.covariance)[inside][:, inside].norm()
    assert off / wanted.covariance[inside][:, inside].norm() < 0.08


@pytest.mark.parametrize("rings", [False, True])
@pytest.mark.parametrize("size", [(8, 8), (37, 51), (64, 24)])
def test_outside_the_hole_nothing_changes_and_inside_all_does(rings, size):
    x = torch.rand(2, 3, *size) * 2 - 1
    hole = square(*size, 2, 1, 6)
    hole[..., 5:, size[1] // 2 :] = 0.7
    made = completion(Grey(), window=8, steps=4, rings=rings)(x, hole, [1, 2])
    assert torch.equal(made[hole.expand_as(x) == 0], x[hole.expand_as(x) == 0])
    assert torch.allclose(made[hole.expand_as(x) > 0], torch.tensor(0.25), atol=1e-6)
    assert torch.equal(completion(Grey(), window=8)(x, torch.zeros(1, 1, *size), [1, 2]), x)


def test_large_holes_are_filled_from_coarse_to_fine():
    """Equation (1) at 1/8, then (2) at 1/4, 1/2 and 1, from the time ``refine``."""
    hole = square(128, 128, 32, 32, 64)
    grey = Grey()
    how = completion(grey, window=16, steps=10, refine=0.4)
    x = torch.zeros(1, 3, 128, 128)
    stages = list(how.stages(hole))
    assert [(stage.factor, stage.steps, float(stage.start.max())) for stage in stages] == [
        (8, 10, 1.0), (4, 4, pytest.approx(0.4)), (2, 4, pytest.approx(0.4)), (1, 4, pytest.approx(0.4)),
    ]  # fmt: skip
    assert [list(stage.start.shape[2:]) for stage in stages] == [[16, 16], [32, 32], [64, 64], [128, 128]]
    how(x, hole, [0])
    assert sum(len(z) for z, _, _ in grey.asked) == how.work(hole)
    first = grey.asked[0][1]
    assert first.shape == (1, 1, 16, 16)
    assert first.max() == 1.0
    assert max(float(t.max()) for _, t, _ in grey.asked[10:]) == pytest.approx(0.4)


def test_without_refinement_the_coarse_filling_is_enlarged():
    hole = square(32, 32, 8, 8, 16)
    grey = Grey(0.5)
    made = completion(grey, window=16, steps=3, refine=0.0)(torch.zeros(1, 1, 32, 32), hole, [0])
    assert len(grey.asked) == 3
    assert made[0, 0, 12:20, 12:20] == pytest.approx(torch.full((8, 8), 0.5))


def test_refining_starts_from_the_coarse_filling():
    """At time r the canvas is (1 - r) of the enlarged filling plus r of noise: its mean says which filling it was."""
    seen = []

    def coarse_then_watch(z, t, cond=None):
        if float(t.max()) > 0.5:
            return Denoised(torch.full_like(z, 0.8))
        inside = t > 0
        seen.append(float((z / (1 - t))[inside].mean()))
        return Denoised(torch.full_like(z, 0.8))

    completion(coarse_then_watch, window=16, steps=8, refine=0.5)(
        torch.full((1, 1, 64, 64), -0.5), square(64, 64, 16, 16, 32), [3]
    )
    assert seen
    assert seen[0] == pytest.approx(0.8, abs=0.15)


def test_grey_holes_start_from_what_is_there_at_full_size():
    grey = Grey()
    x = torch.full((1, 1, 40, 40), 0.9)
    completion(grey, window=16, steps=10)(x, square(40, 40, 10, 10, 20, 0.3), [0])
    z, t, _ = grey.asked[0]
    assert t.max() == pytest.approx(0.3)
    assert (z[t > 0] / 0.7).mean() == pytest.approx(0.9, abs=0.1)


def test_what_is_known_is_averaged_and_what_is_not_is_left_out():
    x = torch.tensor([[1.0, 3.0, 0.0], [5.0, 100.0, 4.0]])[None, None]
    hole = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.5]])[None, None]
    assert reduced(x, hole, 2).flatten().tolist() == [3.0, 4.0]
    assert reduced_hole(hole, 2).flatten().tolist() == [1.0, 1.0]
    assert reduced_hole(square(4, 4, 0, 0, 2), 2).flatten().tolist() == [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("hole", "wanted"),
    [
        (square(64, 64, 8, 8, 48), 0),  # fits
        (square(128, 128, 32, 32, 64), 1),  # must be halved to fit
        (square(1000, 1000, 500, 500, 32), 0),  # nothing is further than 16 from what is known
        (square(1000, 1000, 500, 500, 34), 1),
        (torch.ones(1, 1, 256, 256), 2),  # nothing is known
        (square(300, 300, 0, 0, 300, 0.5), 0),  # all of it can be seen, half
    ],
)
def test_a_picture_is_halved_until_a_window_sees_across(hole, wanted):
    assert halvings(hole, max(hole.shape[2:]), 64) == wanted


def test_a_strip_is_not_reduced_by_its_length():
    strip = torch.zeros(1, 1, 3000, 500)
    strip[..., 436:] = 1
    assert halvings(strip, 3000, 64) == 2
    (box,) = boxes(strip[0, 0], 64)
    assert box == Box(0, 244, 3000, 500)


def test_boxes_hold_the_hole_and_little_else():
    hole = torch.zeros(3000, 4000)
    hole[1000:1040, 2000:2040] = 1
    hole[0:10, 3990:4000] = 0.5
    found = boxes(hole, 64)
    assert found == [Box(0, 3936, 64, 4000), Box(988, 1988, 1052, 2052)]
    assert sum(float(box.of(hole).sum()) for box in found) == float(hole.sum())
    assert boxes(torch.zeros(100, 100), 64) == []
    assert boxes(torch.ones(20, 30), 64) == [Box(0, 0, 20, 30)]


def test_holes_that_are_near_share_a_box():
    hole = torch.zeros(500, 500)
    hole[100:110, 100:110] = 1
    hole[100:110, 150:160] = 1
    hole[400:410, 400:410] = 1
    found = boxes(hole, 64)
    assert len(found) == 2
    assert found[0].left < 100
    assert found[0].right > 160


def test_a_small_hole_costs_the_same_in_a_large_picture():
    costs = []
    for height, width in ((256, 256), (1500, 2000), (3000, 4000)):
        hole = torch.zeros(height, width)
        hole[100:180, 120:170] = 1
        (box,) = boxes(hole, 64)
        costs.append((completion(Grey()).work(box.of(hole)[None, None]), box.bottom - box.top, box.right - box.left))
    assert costs[0] == costs[1] == costs[2]


def test_rings_grow_from_what_is_known():
    """Each ring from coarse to fine; meanwhile what is further out stands at 1, and what is further in at 0."""
    hole, inner = 1 - square(72, 72, 32, 32, 8), square(72, 72, 16, 16, 40)
    grey = Grey()
    how = completion(grey, window=32, steps=2, rings=True, refine=0.5)
    stages = list(how.stages(hole))
    assert [stage.factor for stage in stages] == [2, 1, 2, 1]  # from 32 to 16, then to 0
    for stage, ring in zip(stages, (inner * hole,) * 2 + (1 - inner,) * 2, strict=True):
        assert torch.equal(stage.start, reduced_hole(ring, stage.factor) * (1.0 if stage.factor == 2 else 0.5))
    for stage in stages[:2]:
        assert torch.equal(stage.wait, reduced_hole(1 - inner, stage.factor))
    assert max(float(stage.wait.max()) for stage in stages[2:]) == 0
    made = how(torch.zeros(1, 3, 72, 72), hole, [0])
    assert sum(len(z) for z, _, _ in grey.asked) == how.work(hole)
    assert torch.allclose(made[hole.expand_as(made) > 0], torch.tensor(0.25), atol=1e-6)
    assert all(t.max() <= 1 for _, t, _ in grey.asked)


@pytest.mark.parametrize(("side", "widths"), [(40, [16]), (50, [12, 12]), (56, [12, 12]), (100, [16, 16, 16])])
def test_rings_are_equally_wide(side, widths):
    """Around a known square of 8 pixels, with a window of 32: about half a window, none of them thin."""
    known = side // 2 - 4
    hole = 1 - square(side, side, known, known, 8)
    stages = [stage for stage in completion(Grey(), window=32, rings=True).stages(hole) if stage.factor == 1]
    row = [int((stage.start[0, 0, side // 2, :known] > 0).sum()) for stage in stages]
    assert row == [min(width, known - sum(widths[:k])) for k, width in enumerate(widths)]


@pytest.mark.parametrize(
    ("size", "coarsest"),
    [
        ((64, 64), (64, 64)), ((66, 66), (66, 66)), ((100, 100), (100, 100)), ((112, 112), (56, 56)),
        ((128, 128), (64, 64)), ((136, 136), (68, 68)), ((256, 250), (64, 63)), ((128, 192), (64, 96)),
        ((64, 512), (64, 512)), ((40, 300), (40, 300)),
    ],
)  # fmt: skip
def test_nothing_is_filled_from_noise_on_a_canvas_much_smaller_than_a_window(size, coarsest):
    stages = list(completion(Grey(), window=64).stages(torch.ones(1, 1, *size)))
    assert tuple(stages[0].start.shape[2:]) == coarsest
    assert tuple(stages[-1].start.shape[2:]) == size
    assert (stages[0].start == 1).all()


@pytest.mark.parametrize("margin", [161, 201, 322, 73, 34])
def test_no_ring_is_thin(margin):
    hole = torch.ones(1, 1, 1, 8 + margin)
    hole[..., :8] = 0
    sizes = [int(ring.sum()) for ring, _ in rings(hole, 32, False)]
    assert sum(sizes) == margin
    assert min(sizes) >= max(sizes) - 16  # two cells: one of rounding, one that the last may lack


def test_noise_that_waits_does_not_leak_into_a_ring():
    """What a ring is refined from, with a denoiser that knows the answer, is that answer up to its very edge."""
    hole = 1 - square(96, 96, 40, 40, 16)
    made = completion(Grey(), window=32, steps=2, rings=True, refine=0.0)(torch.full((1, 3, 96, 96), 0.25), hole, [0])
    assert torch.allclose(made, torch.tensor(0.25), atol=1e-5)


@pytest.mark.parametrize("wrap", [False, True])
def test_strips_of_a_pixel_can_be_grown(wrap):
    hole = torch.ones(1, 1, 1, 40)
    hole[..., :8] = 0
    made = completion(Grey(), window=16, steps=1, rings=True, wrap=wrap)(torch.zeros(1, 3, 1, 40), hole, [0])
    assert torch.equal(made[..., :8], torch.zeros(1, 3, 1, 8))


def correlation(x, dim, shift=1):
    """Of neighbours along a side, going round."""
    return float((x * x.roll(shift, dim)).mean() / x.square().mean())


@pytest.mark.parametrize("wrap", [False, True])
def test_a_field_grown_in_rings_is_nearly_right(wrap):
    """A Gaussian field with a short memory: neighbours are correlated as they should be, across rings too, and with
    ``wrap`` across the edges of the picture."""
    small = gaussian_field(PROCESS, 16, 16, length=1.5)
    true = small.draw(2000, generator=torch.Generator().manual_seed(1))
    near = float((true[..., 1:] * true[..., :-1]).mean() / true.square().mean())
    hole = 1 - square(32, 32, 12, 12, 8)
    x = torch.zeros(40, 1, 32, 32)
    x[..., 12:20, 12:20] = small.draw(40, generator=torch.Generator().manual_seed(2)).float()[..., :8, :8]
    made = completion(small, window=16, steps=40, rings=True, wrap=wrap)(x, hole, range(40))
    inner = made[..., 1:-1, 1:-1]
    for dim in (2, 3):
        pairs = (inner * made.roll(1, dim)[..., 1:-1, 1:-1]).mean() / inner.square().mean()
        assert float(pairs) == pytest.approx(near, rel=0.12)
        edge = (made.select(dim, 0) * made.select(dim, 31)).mean() / made.square().mean()
        assert (float(edge) > 0.7 * near) == wrap
    assert float(made.square().mean()) == pytest.approx(float(true.square().mean()), rel=0.15)


def test_an_order_says_who_is_first():
    times = []

    def watch(moment):
        times.append(moment.visit.t[0, 0, 4])

    order = torch.linspace(5.0, 9.0, 16).expand(1, 1, 16, 16)
    hole = torch.ones(1, 1, 16, 16)
    hole[..., 0] = 0
    completion(Grey(), window=16, steps=20, callback=watch)(torch.zeros(1, 1, 16, 16), hole, [0], order=order)
    row = torch.stack(times)
    assert len(row) == 20
    assert (row[:, 0] == 0).all()  # known
    assert torch.equal(row[0, 1:], torch.ones(15))
    assert (row[1:, 1:].diff(dim=1) >= 0).all()
    assert row[10, 1] == pytest.approx(0.0, abs=1e-6)  # the first is done where the last begins
    assert row[10, 15] == pytest.approx(1.0, abs=1e-6)


def test_a_picture_depends_on_its_own_seed_alone():
    exact = gaussian_field(PROCESS, 8, 8, length=2.0)
    x, hole = torch.zeros(3, 1, 16, 16), square(16, 16, 4, 4, 8)
    how = completion(exact, window=8, steps=4)
    together = how(x, hole, [7, 8, 9])
    alone = how(x[:1], hole, [8])
    assert torch.allclose(together[1:2], alone, atol=1e-5)
    assert not torch.allclose(together[0], together[1], atol=0.1)


def test_labels_reach_the_denoiser():
    grey = Grey()
    completion(grey, window=8, steps=1)(
        torch.zeros(2, 1, 12, 12), torch.ones(1, 1, 12, 12), [0, 1], Cond(label=torch.tensor([4, 6]))
    )
    assert all(set(cond.label.tolist()) <= {4, 6} for _, _, cond in grey.asked)


def test_guidance_is_told_where_a_stage_starts_and_gets_noise():
    given = []

    def prepare(denoiser, start, noise):
        given.append((start.clone(), noise().shape))
        return denoiser

    hole = square(32, 32, 8, 8, 16)
    completion(Grey(), window=16, steps=4, prepare=prepare)(torch.zeros(1, 3, 32, 32), hole, [0])
    assert [list(start.shape[2:]) for start, _ in given] == [[16, 16], [32, 32]]
    assert torch.equal(given[1][0], hole * 0.5)
    assert given[1][1] == (1, 3, 32, 32)


def test_a_callback_sees_every_visit_and_can_break_off():
    moments = []
    hole = square(32, 32, 8, 8, 16)
    how = completion(Grey(), window=16, steps=4, callback=moments.append)
    how(torch.zeros(1, 3, 32, 32), hole, [0])
    assert all(isinstance(moment.stage, Stage) for moment in moments)
    assert sum(moment.windows for moment in moments) == how.work(hole)
    assert [moment.stage.factor for moment in moments] == [2] * 4 + [1] * 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"window": 4}, "window"), ({"steps": 0}, "steps"), ({"refine": 2.0}, "refine"), ({"wrap": True}, "rings")],
)
def test_mistakes_are_said(wrong, said):
    with pytest.raises(ValueError, match=said):
        completion(Grey(), **wrong)
    with pytest.raises(ValueError, match="one per picture"):
        completion(Grey())(torch.zeros(2, 3, 8, 8), torch.ones(1, 1, 8, 8), [0])


def test_an_order_holds_where_filling_starts_from_noise_and_not_later():
    """At the coarsest scale, and in every ring; not where a filling is refined."""

    def kinds(**how):
        seen = []
        order = torch.linspace(0, 1, 32).expand(1, 1, 32, 32)
        hole = square(32, 32, 8, 8, 16) if not how else 1 - square(32, 32, 12, 12, 8)
        completion(
            Grey(), window=16, steps=4, callback=lambda moment: seen.append((moment.stage, moment.visit.t)), **how
        )(torch.zeros(1, 1, 32, 32), hole, [0], order=order)
        return seen

    def spread(stage, t):
        return t[stage.start > 0].unique().numel()

    coarse = kinds()
    assert max(spread(stage, t) for stage, t in coarse if stage.factor == 2) > 3
    assert max(spread(stage, t) for stage, t in coarse if stage.factor == 1) == 1
    rings = kinds(rings=True)
    firsts = [stage.start for stage, _ in rings]
    for start in {id(each): each for each in firsts}.values():
        turns = {stage.factor: spread(stage, t) for stage, t in rings if stage.start is start}
        assert turns.get(2, 4) > 3
        assert turns.get(1, 1) == 1


def test_an_order_is_each_pictures_own_and_counts_only_in_its_hole():
    hole = square(16, 16, 4, 4, 8).repeat(2, 1, 1, 1)
    order = torch.linspace(0, 1, 16).expand(2, 1, 16, 16).clone()
    order[1] = order[1] * 1000 + 7
    order[1, :, :4] = 1e6  # outside of the hole
    times = []
    completion(Grey(), window=16, steps=6, callback=lambda moment: times.append(moment.visit.t))(
        torch.zeros(2, 1, 16, 16), hole, [0, 1], order=order
    )
    for t in times:
        assert torch.allclose(t[0], t[1], atol=1e-4)


def test_a_faint_hole_is_asked_about_at_least_once():
    grey = Grey()
    made = completion(grey, window=16, steps=10)(torch.zeros(1, 1, 16, 16), square(16, 16, 4, 4, 8, 0.02), [0])
    assert len(grey.asked) == 1
    assert made[0, 0, 8, 8] == pytest.approx(0.25, abs=1e-5)


def test_almost_white_is_as_unknown_as_white():
    for value in (0.96, 1.0):
        assert halvings(square(300, 300, 50, 50, 200, value), 300, 64) == 3
    assert halvings(square(300, 300, 50, 50, 200, 0.9), 300, 64) == 0
    stages = list(completion(Grey(), window=16, rings=True).stages(1 - 0.04 * square(60, 60, 0, 0, 60)))
    assert [stage.factor for stage in stages] == [2, 1]  # nothing to grow from: all at once
    grey = torch.ones(1, 1, 60, 60) - 0.5 * square(60, 60, 20, 20, 20)
    assert len(list(completion(Grey(), window=16, rings=True).stages(grey))) > 2


def test_a_coarse_filling_is_enlarged_smoothly_in_its_place_and_range():
    """A ramp that the coarse scale says comes out as the ramp, without steps, and never beyond [-1, 1]."""

    def ramp(z, t, cond=None):
        across = torch.linspace(-1, 1, z.shape[3]).expand_as(z)
        return Denoised(1.5 * across)

    hole = torch.zeros(1, 1, 31, 31)
    hole[..., 8:23, :] = 1
    made = completion(ramp, window=16, steps=2, refine=0.0)(torch.zeros(1, 1, 31, 31), hole, [0])
    row = made[0, 0, 15]
    assert row.abs().max() <= 1
    inner = row[(row.abs() < 0.95)]
    assert (inner.diff() > 0).all()
    assert inner.diff().max() < 1.5 * inner.diff().mean()
    assert abs(float(row[15])) < 0.1


def test_rings_go_round_where_edges_are_joined():
    hole = torch.ones(1, 1, 40, 40)
    hole[..., :8, 10:30] = 0  # known at the top edge
    first = next(completion(Grey(), window=32, rings=True, wrap=True).stages(hole)).start
    assert first[0, 0, -8:, 15].all()
    assert not next(completion(Grey(), window=32, rings=True).stages(hole)).start[0, 0, -8:].any()


def test_what_waits_is_not_known_to_guidance():
    given = []

    def prepare(denoiser, start, noise):
        given.append(start.clone())
        return denoiser

    hole = 1 - square(40, 40, 16, 16, 8)
    completion(Grey(), window=16, steps=1, rings=True, prepare=prepare)(torch.zeros(1, 1, 40, 40), hole, [0])
    assert torch.equal(given[0], reduced_hole(hole, 2))


def test_random_steps_are_seeded_too():
    how = Completion(denoiser=Grey(), process=PROCESS, step=ddim(PROCESS, eta=1.0), window=16, steps=4)
    x, hole = torch.zeros(1, 1, 16, 16), square(16, 16, 2, 2, 12)
    seen = []
    for _ in range(2):
        watched = Completion(**{**vars(how), "callback": lambda moment: seen.append(moment.visit.z)})
        watched(x, hole, [5])
    assert torch.equal(seen[3], seen[7])
    assert not torch.equal(seen[2], seen[3])


def test_no_more_windows_at_a_time_than_allowed():
    grey = Grey()
    completion(grey, window=16, steps=2, batch=3)(torch.zeros(2, 1, 64, 64), torch.ones(1, 1, 64, 64), [0, 1])
    assert max(len(z) for z, _, _ in grey.asked) == 3


def test_an_order_is_reduced_with_its_picture():
    order = torch.arange(48.0).expand(1, 1, 48, 48)
    made = completion(Grey(), window=16, steps=4)(torch.zeros(1, 1, 48, 48), torch.ones(1, 1, 48, 48), [0], order=order)
    assert made.shape == (1, 1, 48, 48)


def test_boxes_have_the_context_that_was_promised():
    hole = torch.zeros(1000, 1000)
    hole[500:556, 500:556] = 1  # 56 and an eighth of a window on each side do not fit into 64: f = 2, two windows
    assert boxes(hole, 64) == [Box(464, 464, 592, 592)]
    hole[:] = 0
    hole[400:410, 300:700] = 1  # longer than a window, thin: f = 1, context of 8
    assert boxes(hole, 64) == [Box(373, 292, 437, 708)]


def test_boxes_that_meet_after_merging_are_merged_again_and_scratches_are_one():
    hole = torch.zeros(600, 600)
    for k in range(400):
        hole[100 + k, 100 + k] = 1
    assert len(boxes(hole, 64)) == 1
    hole[:] = 0
    for top, left in ((100, 100), (100, 170), (170, 135), (160, 60)):
        hole[top : top + 20, left : left + 20] = 1
    found = boxes(hole, 64)
    for k, a in enumerate(found):
        for b in found[k + 1 :]:
            assert a.bottom <= b.top or b.bottom <= a.top or a.right <= b.left or b.right <= a.left


def test_a_small_hole_in_a_long_strip_has_a_small_box():
    hole = torch.zeros(48, 2000)
    assert boxes(hole, 64) == boxes(hole[:, :64], 64) == []
    hole[20:28, 1000:1010] = 1
    assert boxes(hole, 64) == [Box(0, 973, 48, 1037)]
    assert boxes(hole[:, 1000:1064], 64) == [Box(0, 0, 48, 64)]
