import numpy
import pytest
import torch
from PIL import Image

from asyncpatch import drawing
from asyncpatch.schedules import autoregressive, inpainting, synchronous


def test_a_picture_becomes_its_bytes():
    x = torch.tensor([[[-1.0, 0.0], [1.0, 3.0]]])
    image = drawing.picture(x, scale=2)
    assert image.size == (4, 4)
    assert numpy.asarray(image)[::2, ::2].tolist() == [[0, 128], [255, 255]]
    colour = drawing.picture(torch.stack([torch.ones(2, 3), -torch.ones(2, 3), torch.zeros(2, 3)]))
    assert colour.size == (3, 2)
    assert colour.getpixel((0, 0)) == (255, 0, 128)


def test_a_strip_shows_a_schedule_from_noise_to_clean():
    hole = torch.zeros(1, 1, 4, 6)
    hole[..., 3:] = 1
    strip = numpy.asarray(drawing.strip(inpainting(hole, 8), 4, 6, frames=3).convert("L"))
    assert strip.shape == (4 + 8, 3 * 6 + 4 * 4)
    frames = [strip[4:8, 4 + k * 10 : 10 + k * 10] for k in range(3)]
    assert all((frame[:, :3] == 255).all() for frame in frames)  # known: clean from the start
    assert [frame[0, 4] for frame in frames] == [0, 128, 255]


def test_any_size_can_be_drawn():
    assert drawing.strip(synchronous(4), 5, 7, frames=2, scale=3).size == (2 * 21 + 12, 15 + 8)
    assert drawing.strip(autoregressive(torch.arange(6).view(2, 3), 2), 2, 3).height == 10


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"x must be one picture \[C, H, W\] with one or three channels"):
        drawing.picture(torch.zeros(2, 4, 4))
    with pytest.raises(ValueError, match=r"t must be one time field \[H, W\], got shape \[1, 1, 4, 4\]"):
        drawing.time_field(torch.zeros(1, 1, 4, 4))
    with pytest.raises(ValueError, match="frames must be an integer of at least 2, got 1"):
        drawing.strip(synchronous(4), frames=1)


def test_grey_levels_are_rounded():
    assert numpy.asarray(drawing.picture(torch.tensor([[[-0.5, 0.5]]]))).tolist() == [[64, 191]]


def test_a_sheet_keeps_its_rows_and_columns_apart():
    big, small = Image.new("L", (6, 6), 255), Image.new("L", (2, 2), 255)
    white = numpy.asarray(drawing.sheet([[small, big], [big, small]], gap=1).convert("L")) == 255
    for rows, columns in ((slice(1, 3), slice(1, 3)), (slice(1, 7), slice(8, 14)), (slice(8, 14), slice(1, 7))):
        assert white[rows, columns].all()
    assert white[8:10, 8:10].all()
    assert white.sum() == 80
    tall = numpy.asarray(drawing.sheet([[big, small], [small, small]], gap=1).convert("L")) == 255
    assert tall[8:10, 1:3].all()


def test_names_stand_before_their_rows():
    page = numpy.asarray(drawing.sheet([[Image.new("L", (20, 20), 255)]], names=["name"], gap=1).convert("L"))
    assert (page[1:21, 114:134] == 255).all()
    assert (page[:, :112] < 100).any()
