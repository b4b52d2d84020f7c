"""Decoding: whatever a picture file is, what comes out is what a viewer would show."""

import io
import struct
import zlib
from random import Random

import numpy as np
import pytest
from PIL import Image

from asyncpatch.data.pictures import decode, random_square, square, views


def encoded(image, kind="PNG", **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_the_exif_tag_turns_a_picture_upright():
    image = Image.new("RGB", (8, 4), "black")
    image.paste("white", (0, 0, 2, 4))  # left edge white; orientation 6 means: turn a quarter clockwise to see it
    exif = Image.Exif()
    exif[0x0112] = 6
    upright = decode(encoded(image, "JPEG", exif=exif, quality=100))
    assert upright.size == (4, 8)
    assert np.asarray(upright)[:2].mean() > 200
    assert np.asarray(upright)[4:].mean() < 50


@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "CMYK", "I;16"])
def test_any_mode_becomes_rgb_of_the_same_look(mode):
    grey = Image.fromarray(np.full((5, 7), 255 if mode == "1" else 64, np.uint8))
    if mode == "I;16":
        image = Image.fromarray(np.full((5, 7), 64 * 257, np.uint16))
    else:
        image = grey.convert("RGB").quantize() if mode == "P" else grey.convert("RGB").convert(mode)
    found = decode(encoded(image, "TIFF" if mode == "CMYK" else "PNG"))
    assert found.mode == "RGB"
    assert np.abs(np.asarray(found).astype(int) - (255 if mode == "1" else 64)).max() <= 1


def test_sixteen_bits_per_colour():
    def chunk(name, body):
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    pixels = np.full((3, 4, 3), (10 * 257, 100 * 257, 250 * 257), ">u2")
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", 4, 3, 16, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    assert (np.asarray(decode(data)) == (10, 100, 250)).all()


def test_what_is_transparent_is_white():
    image = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    image.paste((0, 0, 255, 255), (0, 0, 2, 4))
    found = np.asarray(decode(encoded(image)))
    assert (found[:, :2] == (0, 0, 255)).all()
    assert (found[:, 2:] == 255).all()
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 255, 255, 0, 0])
    assert (np.asarray(decode(encoded(palette, transparency=1))) == 255).all()


def test_a_broken_file_is_an_error(monkeypatch):
    whole = encoded(Image.effect_noise((64, 64), 50), "JPEG")
    for data in (whole[: len(whole) // 2], b"", b"<svg/>", b"GIF89a"):
        with pytest.raises((OSError, ValueError)):
            decode(data)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ValueError, match="bomb"):
        decode(whole)


def test_a_large_jpeg_may_come_reduced_but_never_too_small():
    data = encoded(Image.effect_noise((640, 480), 50), "JPEG")
    assert decode(data).size == (640, 480)
    reduced = decode(data, least=64)
    assert 64 <= min(reduced.size) < 480


def test_square_is_the_centre_by_area():
    levels = np.zeros((4, 8, 3), np.uint8)
    levels[:, 2:4], levels[:, 4:6] = 100, 200  # the centred square; what lies beside it must not count
    levels[:, :2] = levels[:, 6:] = 255
    image = Image.fromarray(levels)
    assert (square(image, 2)[:, 0] == 100).all()
    assert (square(image, 2)[:, 1] == 200).all()
    assert (square(image, 1) == 150).all()
    assert square(image, 16).shape == (16, 16, 3)


def test_random_squares_have_every_size_and_place():
    ramp = np.stack(np.broadcast_arrays(np.arange(200)[:, None], np.arange(256)[None], 0), -1).astype(np.uint8)
    image, random = Image.fromarray(ramp), Random(0)
    found = [random_square(image, 20, random) for _ in range(300)]
    spans = [int(each[-1, 0, 0]) - int(each[0, 0, 0]) for each in found]  # rows of the picture from first to last
    assert min(spans) < 25
    assert max(spans) > 170
    assert np.median(spans) == pytest.approx((20 * 200) ** 0.5, rel=0.2)  # on a logarithmic scale
    assert min(each[0, 0, 0] for each in found) < 10
    assert max(each[-1, 0, 0] for each in found) > 190
    assert max(each[0, -1, 1] for each in found) > 245


def test_how_many_views_a_picture_gets():
    def count(width, height, crops):
        return len(views(Image.new("RGB", (width, height)), 16, crops))

    assert count(16, 16, 4) == count(12, 40, 4) == count(100, 100, 0) == 1
    assert count(32, 32, 4) == count(64, 32, 4) == 5
    assert count(64, 64, 4) == 37
