import numpy
import pytest
import torch

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
    with pytest.raises(ValueError, match="frames must be an integer of at least 2, got 1"):
        drawing.strip(synchronous(4), frames=1)
