import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncpatch import fields

sides = st.integers(1, 12)


@given(sides, sides, st.integers(1, 15))
def test_spread_gives_every_pixel_its_patch(height, width, size):
    rows, columns = fields.patch_grid(height, width, size)
    values = torch.arange(2 * rows * columns).view(2, rows, columns)
    field = fields.spread(values, size, height, width)
    assert field.shape == (2, height, width)
    for y in range(height):
        for x in range(width):
            assert torch.equal(field[:, y, x], values[:, y // size, x // size])


@pytest.mark.parametrize(
    ("height", "width", "wanted"),
    [(64, 64, (1, 2, 4, 8, 16, 32, 64)), (48, 80, (1, 2, 4, 8, 16, 32, 64, 80)), (1, 1, (1,)), (3, 2, (1, 2, 3))],
)
def test_patch_sides_run_from_one_pixel_to_the_whole_picture(height, width, wanted):
    assert fields.powers_of_two(height, width) == wanted
    assert fields.patch_grid(height, width, wanted[-1]) == (1, 1)


def test_raster_order():
    assert fields.raster_order(3, 4, 2).tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3]]


def test_spiral_order():
    assert fields.spiral_order(3, 4, inward=True).tolist() == [[0, 1, 2, 3], [9, 10, 11, 4], [8, 7, 6, 5]]
    assert fields.spiral_order(3, 3).tolist() == [[8, 7, 6], [1, 0, 5], [2, 3, 4]]


@given(sides, sides, st.integers(1, 4))
def test_a_spiral_walks_from_neighbour_to_neighbour_over_all_patches(height, width, patch):
    order = fields.spiral_order(height, width, patch)[::patch, ::patch]
    place = {int(order[y, x]): (y, x) for y in range(order.shape[0]) for x in range(order.shape[1])}
    assert sorted(place) == list(range(order.numel()))
    for k in range(order.numel() - 1):
        assert abs(place[k][0] - place[k + 1][0]) + abs(place[k][1] - place[k + 1][1]) == 1


def test_random_order_is_a_permutation_of_the_patches_fixed_by_its_seed():
    first, again, other = (fields.random_order(8, 8, 2, generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert sorted(first[::2, ::2].flatten().tolist()) == list(range(16))
    assert torch.equal(first, fields.spread(first[::2, ::2], 2, 8, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_painted_order_is_dark_first_in_equal_groups():
    painted = torch.linspace(1, 0, 12).view(3, 4)
    assert fields.painted_order(painted, 4).tolist() == [[3, 3, 3, 2], [2, 2, 1, 1], [1, 0, 0, 0]]


def test_painted_order_never_parts_equal_values():
    painted = torch.tensor([[0, 0, 0, 0, 0, 7, 7, 255]], dtype=torch.uint8)
    order = fields.painted_order(painted, 8)[0].tolist()
    assert len(set(order[:5])) == len(set(order[5:7])) == 1
    assert order[0] < order[5] < order[7]


def test_perlin_noise_is_smooth_varied_and_scaled_by_its_cell(generator):
    cell = torch.full((64,), 16.0)
    noise = fields.perlin(64, 32, 48, cell, generator=generator)
    assert noise.shape == (64, 32, 48)
    assert noise.abs().max() <= 1.0
    assert noise.mean().abs() < 0.02
    assert 0.15 < noise.std() < 0.35
    step = (noise[:, 1:] - noise[:, :-1]).abs().max()
    assert step < 0.2  # neighbours a 16th of a cell apart
    rough = fields.perlin(64, 32, 48, torch.full((64,), 2.0), generator=generator)
    assert (rough[:, 1:] - rough[:, :-1]).std() > 3 * (noise[:, 1:] - noise[:, :-1]).std()
    spread = noise.std(0)  # no pixel is special, the corner included
    assert spread.min() > 0.1


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: fields.raster_order(0, 4), "height must be an integer of at least 1, got 0"),
        (lambda: fields.spiral_order(4, 4, 0), "patch must be"),
        (
            lambda: fields.painted_order(torch.zeros(1, 4, 4), 2),
            r"picture must be a tensor \[H, W\], got shape \[1, 4, 4\]",
        ),
        (
            lambda: fields.painted_order(torch.zeros(4, 4).numpy(), 2),
            r"got a ndarray .*; of an image: torch.from_numpy",
        ),
        (lambda: fields.painted_order(torch.zeros(4, 4), 0), "groups must be"),
        (lambda: fields.painted_order(torch.full((4, 4), torch.nan), 2), "picture must be finite"),
    ],
)
def test_bad_arguments_are_named(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_perlin_gradients_point_everywhere_and_differ_between_pictures(generator):
    noise = fields.perlin(512, 32, 32, torch.full((512,), 8.0), generator=generator)
    for slope in (noise.diff(dim=1), noise.diff(dim=2)):
        assert (slope.pow(3).mean() / slope.square().mean() ** 1.5).abs() < 0.05  # as often up as down
    assert (torch.corrcoef(noise.flatten(1)).mean() - 1 / 512).abs() < 0.02


def test_perlin_noise_is_smooth_across_lattice_nodes(generator):
    """The fade has no first and second derivative at a node, so that third differences stay small everywhere."""
    line = fields.perlin(64, 1, 256, torch.full((64,), 64.0), generator=generator).double()[:, 0]
    assert line.diff(dim=1).diff(dim=1).diff(dim=1).abs().max() < 6e-4


def test_each_picture_has_its_own_perlin_cell(generator):
    noise = fields.perlin(2, 32, 32, torch.tensor([2.0, 32.0]), generator=generator)
    rough, smooth = noise.diff(dim=1).std((1, 2))
    assert rough > 5 * smooth


def test_random_orders_use_up_their_generator(generator):
    assert not torch.equal(*(fields.random_order(8, 8, generator=generator) for _ in range(2)))


def test_painted_order_by_hand():
    """Eight pixels, eight groups: five share ranks 0 to 4 (middle 2.5), two share 5 and 6 (middle 6), one is last."""
    painted = torch.tensor([[0, 0, 0, 0, 0, 7, 7, 255]], dtype=torch.uint8)
    assert fields.painted_order(painted, 8).tolist() == [[2, 2, 2, 2, 2, 6, 6, 7]]
