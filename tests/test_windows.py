"""Windows: exact where they must be, blended where they meet, and never asked for nothing."""

import pytest
import torch

from asyncpatch.oracle import gaussian_field
from asyncpatch.process import RectifiedFlow
from asyncpatch.protocols import Cond, Denoised
from asyncpatch.sampling import sample
from asyncpatch.schedules import autoregressive, inpainting, synchronous
from asyncpatch.steps import ddim
from asyncpatch.windows import Windows, bump, starts
from finished import Silent


def pointwise(z, t, cond=None):
    """A denoiser that looks at each token alone."""
    return Denoised(z * (1 - t) / ((1 - t).square() + t.square()), (t + 1e-3).log())


class Asked:
    """Remembers the questions."""

    def __init__(self, inner=pointwise):
        self.inner, self.shapes, self.conds = inner, [], []

    def __call__(self, z, t, cond=None):
        self.shapes.append(tuple(z.shape))
        self.conds.append(cond)
        return self.inner(z, t, cond)


@pytest.mark.parametrize(
    ("length", "size", "stride"), [(64, 16, 8), (65, 16, 8), (17, 16, 16), (16, 16, 8), (100, 7, 3)]
)
@pytest.mark.parametrize("wrap", [False, True])
def test_windows_reach_everywhere(length, size, stride, wrap):
    found = starts(length, size, stride, wrap=wrap)
    covered = {(k + n) % length for k in found for n in range(size)}
    assert covered == set(range(length))
    gaps = [b - a for a, b in zip(found, found[1:] + ([length + found[0]] if wrap else []), strict=False)]
    assert all(0 < gap <= stride for gap in gaps)
    assert wrap or (found[0] == 0 and found[-1] == length - size)


def test_a_bump_is_symmetric_and_positive():
    for size in (1, 2, 7, 8):
        assert torch.equal(bump(size), bump(size).flip(0))
        assert bump(size).min() >= 1


@pytest.mark.parametrize("wrap", [False, True])
def test_a_local_denoiser_does_not_notice(wrap):
    z, t = torch.randn(2, 3, 21, 34), torch.rand(2, 1, 21, 34)
    out = Windows(pointwise, size=8, stride=5, wrap=wrap, batch=7)(z, t)
    direct = pointwise(z, t)
    assert torch.allclose(out.x, direct.x, atol=1e-5)
    assert torch.allclose(out.logvar, direct.logvar, atol=1e-5)


def test_one_window_is_the_denoiser_itself():
    exact = gaussian_field(RectifiedFlow(), 8, 8, length=2.0)
    z, t = torch.randn(2, 1, 8, 8), torch.rand(2, 1, 8, 8)
    assert torch.allclose(Windows(exact, size=64)(z, t).x, exact(z, t).x, atol=1e-6)


def test_answers_are_blended_by_equation_1():
    def place(z, t, cond=None):  # says which window it is in, by its first pixel
        return Denoised(z[..., :1, :1].expand_as(z))

    z = torch.arange(12.0).view(1, 1, 1, 12).repeat(1, 1, 8, 1)
    x = Windows(place, size=8, stride=4)(z, torch.ones(1, 1, 8, 12)).x[0, 0, 0]
    assert x[:4].tolist() == [0.0] * 4
    assert x[8:].tolist() == [4.0] * 4
    expected = [4 * b / (a + b) for a, b in ((4, 1), (3, 2), (2, 3), (1, 4))]
    assert x[4:8].tolist() == pytest.approx(expected)


def test_what_holds_no_hole_is_not_asked():
    hole = torch.zeros(1, 1, 400, 300)
    hole[..., 200:210, 100:110] = 1
    asked = Asked()
    z, t = torch.randn(1, 3, 400, 300), hole
    out = Windows(asked, size=16, stride=8, hole=hole)(z, t)
    small = Asked()
    Windows(small, size=16, stride=8, hole=hole[..., 160:260, 60:160])(z[..., :100, :100], t[..., :100, :100])
    assert sum(shape[0] for shape in asked.shapes) == pytest.approx(sum(shape[0] for shape in small.shapes), abs=3)
    assert torch.equal(out.x[..., :150, :], z[..., :150, :])
    nothing = Asked()
    assert torch.equal(Windows(nothing, size=16, hole=torch.zeros_like(hole))(z, t).x, z)
    assert not nothing.shapes


def test_labels_and_fields_reach_every_window():
    asked = Asked()
    cond = Cond(label=torch.tensor([3, 5]), hole=torch.arange(2 * 16 * 8.0).view(2, 1, 16, 8))
    Windows(asked, size=8, stride=8, batch=100)(torch.randn(2, 3, 16, 8), torch.rand(2, 1, 16, 8), cond)
    assert asked.conds[0].label.tolist() == [3, 5, 3, 5]
    assert torch.equal(asked.conds[0].hole[:2], cond.hole[:, :, :8])
    assert torch.equal(asked.conds[0].hole[2:], cond.hole[:, :, 8:])


def test_no_call_is_larger_than_allowed():
    asked = Asked()
    Windows(asked, size=8, stride=4, batch=6)(torch.randn(2, 3, 32, 32), torch.rand(2, 1, 32, 32))
    assert max(shape[0] for shape in asked.shapes) <= 6
    assert sum(shape[0] for shape in asked.shapes) == 2 * 49


def test_wrapped_windows_see_across_the_edge():
    """Whoever rolls the canvas by a stride gets the rolled answer: there is no edge."""

    def blur(z, t, cond=None):
        return Denoised((z + z.roll(1, 3) + z.roll(1, 2)) / 3)

    z, t = torch.randn(1, 1, 16, 24), torch.rand(1, 1, 16, 24)
    windows = Windows(blur, size=8, stride=4, wrap=True)
    shifted = windows(z.roll((4, 8), (2, 3)), t.roll((4, 8), (2, 3))).x
    assert torch.allclose(shifted, windows(z, t).x.roll((4, 8), (2, 3)), atol=1e-6)
    flat = Windows(blur, size=8, stride=4)
    assert not torch.allclose(flat(z.roll((4, 8), (2, 3)), t).x, flat(z, t).x.roll((4, 8), (2, 3)), atol=1e-3)


def test_a_field_larger_than_the_window_is_sampled_nearly_right():
    """A Gaussian field whose memory is short against the window: variance and neighbours' correlation come out."""
    process = RectifiedFlow()
    small = gaussian_field(process, 16, 16, length=1.5)
    windows = Windows(small, size=16, stride=8)
    noise = torch.randn(60, 1, 32, 40, generator=torch.Generator().manual_seed(0))
    x = sample(windows, synchronous(60), noise, step=ddim(process))
    true = small.draw(2000, generator=torch.Generator().manual_seed(1))
    for dim in (2, 3):
        n = x.shape[dim] - 1
        mine = (x.narrow(dim, 0, n) * x.narrow(dim, 1, n)).mean()
        theirs = (true.narrow(dim, 0, 15) * true.narrow(dim, 1, 15)).mean()
        assert float(mine) == pytest.approx(float(theirs), rel=0.12)
    assert float(x.var()) == pytest.approx(float(true.var()), rel=0.12)


def test_known_pixels_stay_bit_for_bit_under_windows():
    process = RectifiedFlow()
    hole = torch.zeros(1, 1, 40, 24)
    hole[..., 10:30, 4:20] = 1
    small = gaussian_field(process, 16, 16, length=2.0)
    x = torch.randn(1, 1, 40, 24)
    schedule = inpainting(hole, 8)
    z = process.diffuse(x, schedule.start(x), torch.randn_like(x))
    out = sample(Windows(small, size=16, hole=hole), schedule, z, step=ddim(process))
    assert torch.equal(torch.where(hole > 0, 0.0, out), torch.where(hole > 0, 0.0, x))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"size": 1}, "size"), ({"stride": 70}, "gaps"), ({"stride": 0}, "stride"), ({"batch": 0}, "batch")],
)
def test_mistakes_are_said(wrong, said):
    with pytest.raises(ValueError, match=said):
        Windows(pointwise, **wrong)
    with pytest.raises(ValueError, match="canvas's size"):
        Windows(pointwise, hole=torch.ones(1, 1, 8, 8))(torch.randn(1, 3, 9, 9), torch.rand(1, 1, 9, 9))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("can't allocate memory")])
def test_when_memory_runs_out_fewer_are_asked_at_a_time(error):
    asked = []

    def small(z, t, cond=None):
        if len(z) > 5:
            raise error
        asked.append(len(z))
        return pointwise(z, t)

    windows = Windows(small, size=8, stride=4, batch=64)
    z, t = torch.randn(3, 3, 20, 16), torch.rand(3, 1, 20, 16)
    assert torch.allclose(windows(z, t).x, pointwise(z, t).x, atol=1e-5)
    assert max(asked) <= 5
    assert sum(asked) == 3 * 12
    windows(z, t)
    assert sum(asked) == 2 * 3 * 12  # it has learnt, and does not fail again

    def hopeless(z, t, cond=None):
        raise error

    with pytest.raises(type(error)):
        Windows(hopeless, size=8)(z, t)


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    def broken(z, t, cond=None):
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        Windows(broken, size=8)(torch.randn(2, 3, 16, 16), torch.rand(2, 1, 16, 16))


def test_windows_that_know_more_are_trusted_more():
    """Equations (1) and (2), where one window is clean and its neighbour all noise."""

    def place(z, t, cond=None):
        return Denoised(z[..., :1, :1].expand_as(z))

    z = torch.arange(12.0).view(1, 1, 1, 12).repeat(1, 1, 8, 1)
    t = torch.zeros(1, 1, 8, 12)
    t[..., 8:] = 1  # the second window, from 4 on, is half noise
    x = Windows(place, size=8, stride=4)(z, t).x[0, 0, 0]
    expected = [4 * 0.501 * b / (1.001 * a + 0.501 * b) for a, b in ((4, 1), (3, 2), (2, 3), (1, 4))]
    assert x[4:8].tolist() == pytest.approx(expected)


def test_trust_brings_windows_nearer_to_the_answer_of_the_whole():
    """A hole as large as a window, in a Gaussian field whose exact answer is known."""
    process = RectifiedFlow()
    whole, small = (gaussian_field(process, side, side, length=3.0) for side in (32, 16))
    t = torch.zeros(16, 1, 32, 32)
    t[..., 8:24, 8:24] = 1
    x = whole.draw(16, generator=torch.Generator().manual_seed(0)).float()
    z = process.diffuse(x, t, torch.randn(x.shape, generator=torch.Generator().manual_seed(1)))
    off = (Windows(small, size=16)(z, t).x - whole(z, t).x)[t > 0]
    assert float(off.square().mean().sqrt()) < 0.06  # 0.10 if all windows count alike


@pytest.mark.parametrize("length", [4, 6, 8, 12])
def test_a_wrapped_canvas_has_no_edge_however_small(length):
    seen = starts(length, min(8, length), 4, wrap=True)
    assert len(seen) >= 2


def test_every_picture_of_a_batch_has_its_holes_asked():
    hole = torch.zeros(2, 1, 32, 32)
    hole[0, :, :4, :4] = 1
    hole[1, :, -4:, -4:] = 1
    z = torch.randn(2, 1, 32, 32)
    out = Windows(lambda z, t, cond=None: Denoised(torch.zeros_like(z)), size=8, hole=hole)(z, hole)
    assert (out.x[hole > 0] == 0).all()
    assert (out.x[..., 12:20, 12:20] == z[..., 12:20, 12:20]).all()


def test_one_window_gives_the_answer_to_the_last_bit():
    z, t = torch.randn(3, 3, 8, 8), torch.rand(3, 1, 8, 8)
    assert torch.equal(Windows(pointwise, size=8)(z, t).x, pointwise(z, t).x)


def test_a_picture_is_only_asked_where_its_own_hole_is():
    hole = torch.zeros(3, 1, 32, 32)
    hole[0, :, :4, :4] = 1
    hole[2, :, -4:, -4:] = 1
    asked = Asked()
    windows = Windows(asked, size=8, stride=8, hole=hole)
    for batch in (3, 6):  # guidance puts two questions side by side
        asked.shapes.clear()
        z = torch.randn(batch, 1, 32, 32)
        out = windows(z, torch.rand(batch, 1, 32, 32))
        assert (
            sum(shape[0] for shape in asked.shapes) == 2 * batch // 3 == windows.asked(torch.ones(batch, 1, 32, 32) > 0)
        )
        assert torch.equal(out.x[1], z[1])
        assert torch.equal(out.x[0, :, 8:], z[0, :, 8:])
        assert not torch.equal(out.x[0, :, :8, :8], z[0, :, :8, :8])
        assert not torch.equal(out.x[batch - 1, :, 24:, 24:], z[batch - 1, :, 24:, 24:])
    assert windows.asked() == windows.asked(hole > 0) == 2
    with pytest.raises(ValueError, match="without a hole"):
        Windows(asked, size=8).asked()
    one = Windows(asked, size=8, stride=8, hole=hole[:1])
    assert one.asked(torch.ones(5, 1, 32, 32) > 0) == 5


@pytest.mark.parametrize("wrap", [False, True])
def test_nothing_is_asked_that_is_not_wanted_and_no_answer_changes_by_that(wrap):
    exact, asked = gaussian_field(RectifiedFlow(), 8, 8, length=2.0), Asked()
    z, t = torch.randn(3, 1, 24, 32), torch.rand(3, 1, 24, 32)
    wanted = torch.zeros(3, 1, 24, 32, dtype=torch.bool)
    wanted[0, :, 3, 5], wanted[2, :, 20:, 25:] = True, True
    windows = Windows(exact, size=8, wrap=wrap)
    whole, part = windows(z, t), windows(z, t, Cond(wanted=wanted))
    assert torch.allclose(part.x[wanted], whole.x[wanted], atol=1e-5)
    assert torch.equal(part.x[1], z[1])
    counting = Windows(asked, size=8, wrap=wrap)
    counting(z, t, Cond(label=torch.tensor([4, 5, 6]), wanted=wanted))
    count = sum(shape[0] for shape in asked.shapes)
    assert count == counting.asked(wanted) < counting.asked(torch.ones_like(wanted)) / 5
    assert {int(label) for cond in asked.conds for label in cond.label} == {4, 6}
    hole = torch.zeros(1, 1, 24, 32)
    hole[..., :12, :12] = 1
    assert Windows(exact, size=8, hole=hole)(z, t, Cond(wanted=wanted)).x[2].equal(z[2])
    assert torch.equal(windows(z, t, Cond(wanted=torch.zeros_like(wanted))).x, z)


def test_an_ordered_canvas_costs_a_fraction_and_becomes_the_same():
    """Against the same schedule, which does not say what it needs."""
    exact = gaussian_field(RectifiedFlow(), 8, 8, length=2.0)
    groups = torch.arange(12).repeat_interleave(4).expand(48, 48).contiguous()

    z, told, made = torch.randn(2, 1, 48, 48), autoregressive(groups, 4), []
    for schedule in (told, Silent(told)):
        asked = Asked(exact)
        filled = sample(Windows(asked, size=8), schedule, z, step=ddim(RectifiedFlow()))
        made.append((filled, sum(shape[0] for shape in asked.shapes)))
    assert torch.allclose(made[0][0], made[1][0], atol=1e-4)
    assert made[0][1] < made[1][1] / 5
