"""From a picture file to a square of uint8 RGB, the way a viewer would show it."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

Pixels = NDArray[np.uint8]
"""A picture [H, W, 3]."""


def decode(data: bytes, *, least: int = 0) -> Image.Image:
    """The picture in RGB: upright by its EXIF tag, 16 bits brought to 8, transparency laid over white.

    A JPEG may come back reduced, with the shorter side no less than ``least`` pixels, which is much quicker; 0 asks
    for full size. What is no whole picture raises an error (decoders raise all kinds).
    """
    try:
        image: Image.Image = Image.open(io.BytesIO(data))
    except UnidentifiedImageError:
        raise ValueError("not a picture of any known kind") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ValueError(str(error)) from error
    if Image.MAX_IMAGE_PIXELS and image.width * image.height > Image.MAX_IMAGE_PIXELS:  # where PIL only warns
        raise ValueError(f"{image.width} x {image.height} pixels could be a decompression bomb")
    if least:
        image.draft("RGB", (least, least))
    image.load()
    ImageOps.exif_transpose(image, in_place=True)
    return _rgb(image)


@contextmanager
def quietly() -> Iterator[None]:
    """Without warnings of oddities in files. Around a whole set, not one file: it is not for many threads at once."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and "transparency" not in image.info:
        return image
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        levels = np.asarray(image).astype(np.float64)  # grey, of 16 bits where a file states no more
        top = 1.0 if image.mode == "F" and levels.max(initial=0.0) <= 1.0 else 65535.0
        return Image.fromarray((levels.clip(0.0, top) * (255.0 / top)).round().astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    return image.convert("RGB")


def square(image: Image.Image, side: int) -> Pixels:
    """The largest centred square, scaled to ``side`` (by area where it shrinks)."""
    short = min(image.size)
    left, top = (image.width - short) // 2, (image.height - short) // 2
    return _scaled(image, left, top, short, side)


def random_square(image: Image.Image, side: int, random: Random) -> Pixels:
    """A square at a random place, its side anywhere (on a logarithmic scale) from ``side`` to the whole picture."""
    short = min(image.size)
    crop = round(side * (short / side) ** random.random()) if short > side else short
    return _scaled(image, random.randint(0, image.width - crop), random.randint(0, image.height - crop), crop, side)


def _scaled(image: Image.Image, left: int, top: int, crop: int, side: int) -> Pixels:
    if image.size == (side, side) == (crop, crop):
        return np.asarray(image, dtype=np.uint8)
    how = Image.Resampling.BOX if crop >= side else Image.Resampling.BICUBIC
    scaled = image.resize((side, side), how, box=(left, top, left + crop, top + crop))
    return np.asarray(scaled, dtype=np.uint8)


def views(image: Image.Image, side: int, crops: float, seed: int = 0) -> list[Pixels]:
    """The whole picture and, where it is larger than ``side``, random squares of it.

    ``crops`` is how many there are per picture's worth of further area: of a picture twice as large as ``side``
    about ``crops``, of one four times as large nine times that.
    """
    further = round(crops * max(min(image.size) / side - 1.0, 0.0) ** 2)
    if not further:
        return [square(image, side)]
    random = Random(seed)
    return [square(image, side), *(random_square(image, side, random) for _ in range(further))]
