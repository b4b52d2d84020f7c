"""Evaluation holes: the right shapes, the right shares of the picture, the same at every size, one seed each."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from torch.nn.functional import avg_pool2d, max_pool2d

from asyncpatch.data.masks import KINDS, _segment, holes

STROKES = ("thin", "medium", "wide")
sides = st.integers(2, 48)


def corners(squares):
    """(top, left, height, width) of the smallest box around each hole."""
    found = []
    for hole in squares[:, 0]:
        rows, columns = hole.any(1).nonzero()[:, 0], hole.any(0).nonzero()[:, 0]
        top, left = int(rows[0]), int(columns[0])
        found.append((top, left, int(rows[-1]) + 1 - top, int(columns[-1]) + 1 - left))
    return found


def eroded(hole, by):
    """What is left when a rim ``by`` pixels wide is taken off (beyond the picture there is no rim)."""
    return 1.0 - max_pool2d(1.0 - hole, 2 * by + 1, stride=1, padding=by)


@given(st.sampled_from(KINDS), sides, sides, st.integers(0, 2**40))
def test_a_hole_is_zero_and_one_at_any_size(kind, height, width, seed):
    hole = holes(kind, [seed], height, width)
    assert hole.shape == (1, 1, height, width)
    assert hole.dtype == torch.float32
    assert ((hole == 0) | (hole == 1)).all()
    assert hole.any()


@pytest.mark.parametrize(("height", "width"), [(64, 64), (256, 256), (9, 9), (40, 72), (72, 40)])
def test_square_is_one_square_of_half_the_shorter_side(height, width):
    found = holes("square", range(50), height, width)
    half = min(height, width) // 2
    assert (found.sum((1, 2, 3)) == half**2).all()
    assert all(box[2:] == (half, half) for box in corners(found))  # with that sum: no pixel in it is missing


@pytest.mark.parametrize(("height", "width"), [(8, 8), (8, 12)])
def test_every_place_of_the_square_is_equally_likely(height, width):
    seen = Counter(box[:2] for box in corners(holes("square", range(5000), height, width)))
    places = (height - 4 + 1) * (width - 4 + 1)
    assert len(seen) == places
    expected = 5000 / places
    chi_squared = sum((count - expected) ** 2 / expected for count in seen.values())
    freedom = places - 1
    assert abs(chi_squared - freedom) < 4 * math.sqrt(2 * freedom)


def test_extrema_is_everything_but_the_square():
    for height, width in ((64, 64), (30, 50)):
        assert torch.equal(holes("extrema", range(20), height, width), 1 - holes("square", range(20), height, width))
    assert holes("extrema", range(20), 64, 64).mean() == 0.75


@pytest.mark.parametrize(("kind", "low", "high"), [("thin", 0.23, 0.28), ("medium", 0.18, 0.22), ("wide", 0.32, 0.39)])
def test_the_mean_share_of_the_picture_is_the_same_at_every_size(kind, low, high):
    share = {side: float(holes(kind, range(400), side, side).mean()) for side in (64, 128, 256)}
    assert all(low < value < high for value in share.values()), share
    assert share[64] == pytest.approx(share[256], rel=0.03)
    assert share[128] == pytest.approx(share[256], rel=0.03)


@pytest.mark.parametrize("kind", STROKES)
def test_a_seed_gives_the_same_drawing_at_every_size(kind):
    fine = avg_pool2d(holes(kind, range(100), 256, 256), 4)
    coarse = holes(kind, range(100), 64, 64)
    far_off = (fine - coarse).abs() > 0.75  # a pixel that is nearly all hole in one and none in the other
    assert far_off.float().mean() < 0.04  # moved by one coarse pixel, thin strokes would give 0.08, other seeds 0.3
    assert torch.corrcoef(torch.stack([fine.flatten(), coarse.flatten()]))[0, 1] > 0.85


def test_thin_strokes_are_thinner_than_wide_ones():
    left = {}
    for kind in STROKES:
        found = holes(kind, range(200), 64, 64)
        left[kind] = float(eroded(found, 2).sum() / found.sum())
    # thin strokes are at most 14/4 = 3.5 pixels wide here, so that only where several meet is anything left
    assert left["thin"] < 0.15
    assert left["medium"] > 0.45
    assert left["wide"] > 0.7


def test_strokes_keep_a_width_of_a_pixel_in_small_pictures():
    """At 16 pixels the thinnest strokes would be a third of a pixel wide."""
    found = holes("thin", range(100), 16, 16)
    assert found.flatten(1).sum(1).min() >= 4  # at least four strokes start somewhere
    assert found.mean() > holes("thin", range(100), 256, 256).mean()


@pytest.mark.parametrize("brush", [1, 2, 3, 4, 7, 20, 61])
@pytest.mark.parametrize("end", [(100, 60), (20, 21), (61, 60), (60, 60), (59, 110), (95, 95)])
def test_a_segment_is_all_that_is_near_its_line(brush, end):
    image = Image.new("L", (120, 120))
    _segment(ImageDraw.Draw(image), (60, 60), end, brush)
    painted = torch.tensor(list(image.tobytes())).view(120, 120) == 1
    y, x = torch.meshgrid(torch.arange(120.0), torch.arange(120.0), indexing="ij")
    dx, dy = end[0] - 60.0, end[1] - 60.0
    along = (((x - 60) * dx + (y - 60) * dy) / max(dx**2 + dy**2, 1.0)).clamp(0, 1)
    distance = torch.hypot(x - 60 - along * dx, y - 60 - along * dy)
    assert painted[distance < brush / 2 - 1].all()
    assert not painted[distance > brush / 2 + 1].any()
    length = max(abs(dx), abs(dy))
    assert painted.sum() >= length + 1  # without a gap


@pytest.mark.parametrize(
    ("kind", "most", "low", "high", "margin"), [("medium", 5, 10, 50, 0), ("wide", 3, 30, 150, 10)]
)
def test_boxes_come_instead_of_strokes_three_times_in_thirteen(kind, most, low, high, margin):
    found = holes(kind, range(600), 256, 256)
    # the rim of n boxes has 2 n edges from top to bottom, so there are at most 2 n + 1 different rows; round ends have
    # many more
    rows = [len(hole[0].unique(dim=0)) for hole in found]
    boxes = found[[count <= 2 * most + 1 for count in rows]]
    assert 0.19 < len(boxes) / len(found) < 0.28
    inner = torch.zeros(256, 256)
    inner[margin : 256 - margin, margin : 256 - margin] = 1
    assert not (boxes * (1 - inner)).any()
    touched = boxes.amax((0, 1))
    assert touched[margin + 2 : 254 - margin, margin + 2 : 254 - margin].mean() > 0.95  # and they come everywhere
    single = [box for box, hole in zip(corners(boxes), boxes, strict=True) if hole.sum() == box[2] * box[3]]
    assert len(single) > 20
    lengths = [length for box in single for length in box[2:]]
    assert low <= min(lengths) < low + 10
    assert high - 20 < max(lengths) <= high


def test_thin_holes_have_no_boxes():
    assert min(len(hole[0].unique(dim=0)) for hole in holes("thin", range(300), 256, 256)) > 15


@pytest.mark.parametrize("kind", KINDS)
def test_a_hole_depends_on_its_own_seed_alone(kind):
    together = holes(kind, [3, 1, 4, 1, 5], 32, 48)
    for hole, seed in zip(together, [3, 1, 4, 1, 5], strict=True):
        assert torch.equal(hole[None], holes(kind, (seed,), 32, 48))
    assert torch.equal(together[1], together[3])
    assert len({tuple(hole.flatten().tolist()) for hole in holes(kind, range(20), 64, 64)}) > 15
    assert holes(kind, [], 32, 48).shape == (0, 1, 32, 48)


@pytest.mark.parametrize("kind", STROKES)
def test_pictures_need_not_be_square(kind):
    """Strokes of the scale of the shorter side, all over the longer one."""
    wide = holes(kind, range(400), 64, 160)
    tall = holes(kind, range(400), 160, 64)
    for found, rows, columns in ((wide, 64, 160), (tall, 160, 64)):
        often = avg_pool2d(found.mean(0), (rows // 4, columns // 4))  # how often each sixteenth of the picture is hole
        assert often.min() > 0.2 * often.max()
    square = holes(kind, range(400), 64, 64)
    # as many strokes, of the same size, on two and a half times the area: their share is less, their area is more
    # (fewer of them meet, and fewer run against the rim)
    assert 1 / 2.5 < wide.mean() / square.mean() < 0.7
    assert float(tall.mean()) == pytest.approx(float(wide.mean()), rel=0.1)


def test_the_holes_of_published_figures_stay_what_they_are():
    """Places and pixel counts of the first seeds: if they change, figures of before and after cannot be compared."""
    assert [box[:2] for box in corners(holes("square", range(4), 64, 64))] == [(27, 25), (4, 27), (31, 31), (7, 17)]
    counts = {"thin": [1585, 438, 1916, 649], "medium": [1466, 323, 1392, 1373], "wide": [2433, 1602, 2797, 2293]}
    for kind, wanted in counts.items():  # a little leave for another Pillow
        assert holes(kind, range(4), 64, 64).sum((1, 2, 3)).tolist() == pytest.approx(wanted, rel=0.03)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: holes("thick", [0], 8, 8), "kind must be one of extrema, square, thin, medium, wide; got 'thick'"),
        (lambda: holes("thin", 7, 8, 8), "seeds must be a sequence of integers, one for each hole; got int 7"),
        (lambda: holes("thin", "7", 8, 8), "seeds must be a sequence"),
        (lambda: holes("thin", [1, -1], 8, 8), "each of seeds must be an integer of at least 0, got -1"),
        (lambda: holes("thin", [0.5], 8, 8), "each of seeds must be an integer of at least 0, got 0.5"),
        (lambda: holes("square", [0], 1, 8), "height must be an integer of at least 2, got 1"),
        (lambda: holes("square", [0], 8, 1), "width must be an integer of at least 2, got 1"),
    ],
)
def test_bad_arguments_are_named(build, words):
    with pytest.raises(ValueError, match=words):
        build()
