"""Picture and mask files, arrays and tensors, as people have them."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from asyncpatch.images.decoding import Decoded, from_array, from_bytes, from_file, from_pil, guarded, same_size
from asyncpatch.images.picture import (
    LUMA,
    PIXELS,
    ImageError,
    Picture,
    colours_of,
    hole_array,
    require,
    require_pixels,
)

SNAP = 40
"""Of 255: how near to black or white a level of a lossy mask counts as black or white: as far as JPEG at its usual
quality strays beside a stroke."""
_ALIKE = 16
"""Of 255: how far colours of one paint may lie apart."""

_FAINT = 8.5 / 255  # a mask of which nothing is brighter is not meant to be so dark


class ReadHole(NamedTuple):
    """What `read_hole` gives: the hole [1, H, W] in [0, 1] (1: repaint), and what there is to say about it."""

    hole: Tensor
    notes: tuple[str, ...]


def read_picture(path: str | os.PathLike[str], *, limit: int = PIXELS) -> Picture:
    """The picture in a file, upright by its EXIF tag, of at most ``limit`` pixels.

    8 bits a level (RGB, grey, 1-bit as grey, palettes as RGB), 16-bit grey, and 16-bit RGB of PNG and TIFF come
    exactly as they are stored. What comes otherwise is said in ``notes``: CMYK becomes RGB, deeper colours of other
    kinds are read at 8 bits, of an animation only the first picture is used, and layers, previews and thumbnails are
    left out.
    """
    return _picture(from_file(Path(path), limit), str(path))


def picture_from(source: object, *, limit: int = PIXELS) -> Picture:
    """A picture from whatever holds one:

    - a path (str or Path), as `read_picture`; the bytes of a file, likewise; a `Picture`, as it is;
    - a Pillow picture, in the depth that it has, upright by its EXIF tag;
    - a numpy array [H, W], [H, W, 1], [H, W, 3], or with alpha last [H, W, 2], [H, W, 4]: uint8, uint16, bool, or
      floating point in [0, 1], which is rounded to 8 bits;
    - a tensor [3, H, W] or [1, 3, H, W], floating point in [-1, 1], rounded to 8 bits; [1, H, W] is grey.
    """
    if isinstance(source, Picture):
        return source
    if isinstance(source, str | os.PathLike):
        return read_picture(source, limit=limit)
    if isinstance(source, bytes):
        return _picture(from_bytes(source, "the picture", limit), "the picture")
    if isinstance(source, Image.Image):
        return _picture(from_pil(source, "the picture", limit), "the picture")
    if isinstance(source, Tensor):
        colours = colours_of(source, channels=(1, 3))
        if not np.isfinite(colours).all() or colours.min() < -1.0 or colours.max() > 1.0:
            raise ImageError(
                f"a picture given as a tensor must lie in [-1, 1], got values from {colours.min():g} to "
                f"{colours.max():g}; from [0, 1] use 2 * x - 1, for levels of 0 to 255 give a numpy array of uint8"
            )
        levels = ((colours.astype(np.float64) + 1.0) * 127.5).round().astype(np.uint8)
        return Picture(levels=np.ascontiguousarray(levels.transpose(1, 2, 0)))
    if isinstance(source, np.ndarray):
        return _picture(from_array(source, "the picture"), "the picture")
    raise ImageError(
        f"a picture must be a path, bytes, a Pillow picture, a numpy array or a tensor, got {type(source).__name__}"
    )


def read_text(source: object, key: str) -> str | None:
    """What `write` was given as text under a key, of a PNG as path or bytes; None where there is none."""
    file: Any = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        with guarded("the picture", PIXELS, None), Image.open(file, formats=("PNG",)) as image:
            found = image.info.get(key)
    except ImageError:
        return None
    return str(found) if isinstance(found, str) else None


def blank(height: int, width: int, *, limit: int = PIXELS) -> Picture:
    """A picture of which nothing is known yet: middle grey, RGB, 8 bits."""
    require("height", height, 1)
    require("width", width, 1)
    require_pixels("the picture", height, width, limit)
    return Picture(levels=np.full((height, width, 3), 128, np.uint8))


def read_hole(
    source: object, size: tuple[int, int] | None = None, *, invert: bool = False, limit: int = PIXELS
) -> ReadHole:
    """The hole [1, H, W] of a mask: float32 in [0, 1], 1 where it is white (repaint), 0 where it is black (keep).

    Grey is in between, the time at which a pixel starts. ``size`` is (height, width) of the photo that it belongs to:
    a mask of another size is an error, it is never stretched. ``invert`` is for masks that are white where the
    picture stays. A mask in which nothing is to be repainted is an error.

    ``source`` is a path, the bytes of a file, a Pillow picture, a numpy array (bool, uint8, uint16, or floating point
    in [0, 1]; [H, W] or as `picture_from` takes them) or a tensor ([H, W], [1, H, W] or [1, 1, H, W]; bool, or floating
    point in [0, 1]).

    - A mask of levels 0, 1, 2, ... of 255, or up to 255 of 65535, as programs that cut pictures into parts write them,
      is an error: nothing in it is white.
    - Of a coloured mask the brightness (luma) counts, and that is said.
    - Of a mask with transparency, when all that shows has one colour, the alpha counts, whatever the colour: strokes
      on a transparent sheet, as brushes export them. With several colours their brightness counts, and what is
      transparent is black.
    - In a lossy file (JPEG, lossy WebP, ...) levels within 16 of 255 from black or white are black or white, and that
      is said: an encoder blurs what was drawn.
    """
    notes: list[str] = []
    name = str(source) if isinstance(source, str | os.PathLike) else "the mask"
    full, lossy = 1.0, False
    if isinstance(source, Tensor):
        hole = hole_array("the mask", source)
    else:
        if isinstance(source, str | os.PathLike):
            read = from_file(Path(source), limit, size)
        elif isinstance(source, bytes):
            read = from_bytes(source, name, limit, size)
        elif isinstance(source, Image.Image):
            read = from_pil(source, name, limit)
        elif isinstance(source, np.ndarray):
            read = from_array(source, name, exactly=True)
        else:
            raise ImageError(
                "a mask must be a path, bytes, a Pillow picture, a numpy array or a tensor, got "
                f"{type(source).__name__}"
            )
        notes += read.notes
        full, lossy = _full(read.levels), read.lossy
        hole = _whiteness(read, name, invert, notes)
    if size is not None:
        same_size(name, hole.shape, size)
    _bright_enough(name, hole, full)
    if lossy:
        hole = _snapped(hole, notes)
    if invert:
        hole = 1.0 - hole
    if not hole.any():
        way = "it is all white, and inverted" if invert else "it is all black"
        hint = "leave out --invert" if invert else "use --invert (invert=True)"
        raise ImageError(
            f"{name}: nothing to repaint, {way}. White is repainted and black stays; if it is meant the other way "
            f"round, {hint}"
        )
    if hole.max() < 0.25:
        notes.append(f"by the mask nothing is repainted by more than {100 * hole.max():.2g} %")
    return ReadHole(torch.from_numpy(np.ascontiguousarray(hole, np.float32))[None], tuple(notes))


def _picture(read: Decoded, name: str) -> Picture:
    return Picture(
        levels=np.ascontiguousarray(read.levels),
        alpha=None if read.alpha is None else np.ascontiguousarray(read.alpha),
        profile=read.profile,
        exif=read.exif,
        dpi=read.dpi,
        chunks=read.chunks,
        notes=read.notes + read.unkept,
        name=name,
    )


def _full(levels: NDArray[Any]) -> float:
    """The level of white."""
    return 1.0 if np.issubdtype(levels.dtype, np.floating) else float(np.iinfo(levels.dtype).max)


def _whiteness(read: Decoded, name: str, invert: bool, notes: list[str]) -> NDArray[np.float32]:
    """How white a mask is, [H, W], before it is inverted: see `read_hole`."""
    full = _full(read.levels)
    colours = read.levels.astype(np.float32) / np.float32(full)
    alpha = None if read.alpha is None else read.alpha.astype(np.float32) / np.float32(full)
    if alpha is not None and alpha.min() == 1.0:
        alpha = None
    if alpha is not None:
        if not alpha.any():
            raise ImageError(
                f"{name}: says nothing, for the mask is wholly transparent. Paint white what shall "
                f"{'stay' if invert else 'change'}"
            )
        shows = colours[alpha >= alpha.max() / 2]  # at the rim of a stroke colours are rounded beyond use
        if np.ptp(shows, axis=0).max() <= _ALIKE / 255:
            what = "stays, the rest is repainted" if invert else "is repainted"
            notes.append(f"the mask is one colour on a transparent sheet: what is opaque {what}")
            return alpha
    white: NDArray[np.float32]
    if colours.shape[2] == 1:
        white = colours[..., 0]
    else:
        grey = (colours == colours[..., :1]).all()
        # not the product where all is grey: its rounding would make white a little less than 1
        white = colours[..., 0] if grey else (colours @ LUMA).clip(0.0, 1.0)
        if not grey:
            white[(colours == 1.0).all(-1)] = 1.0
            if np.ptp(colours, axis=2).max() > 2 * _ALIKE / 255:
                what = "stays" if invert else "is repainted"
                notes.append(f"the mask is coloured: its brightness says how much {what}")
    if alpha is not None:
        notes.append(f"the mask has transparent parts: they {'are repainted' if invert else 'stay as they are'}")
        white = white * alpha
    return white


def _bright_enough(name: str, white: NDArray[np.float32], full: float) -> None:
    """Refuse numbers of parts that were taken for levels."""
    high = float(white.max())
    if 0.0 < high <= _FAINT:
        raise ImageError(
            f"{name}: its brightest level is {high * full:.5g} of {full:.5g}, which is as good as black: multiply it "
            f"by {1.0 / high:.5g}, so that it is white ({full:.5g})"
        )


def _snapped(white: NDArray[np.float32], notes: list[str]) -> NDArray[np.float32]:
    near = np.float32(SNAP / 255 + 1e-6)
    snapped = np.where(white <= near, 0, np.where(white >= 1 - near, 1, white)).astype(np.float32)
    moved = int((snapped != white).sum())
    if moved:
        notes.append(
            f"the mask is a lossy file: {moved:,} pixels within {SNAP} levels of black or white were taken as black "
            "or white; masks are best kept as PNG"
        )
    return snapped
