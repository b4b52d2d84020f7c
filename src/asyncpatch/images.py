"""Picture and mask files as people have them: read with all that must survive, repainted in the hole, written anew.

A `Picture` keeps the levels of the file as they are (8 or 16 bits, grey or colour), its transparency, colour profile,
EXIF and resolution. `Picture.x` is what a network sees; `Picture.completed` changes the pixels in the hole and no other
one, bit for bit. Colours are never converted: the network sees the levels of the file's own colour space, and the
result carries the same profile.

In a file a mask is white where the picture is to be repainted, black where it stays, and grey means "repaint this
much": the value becomes the time at which that pixel starts. `read_hole` gives just that, as a number from 0 to 1.

Whatever is wrong with a file, or cannot be done to it, is an `ImageError` that names the file and says what to do.
What was changed on the way without being wrong (a JPEG has no transparency) is said in ``notes``, short sentences for
the user to read.
"""

from __future__ import annotations

import io
import math
import os
import secrets
import stat
import struct
import sys
import threading
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from asyncpatch import checks

PIXELS = 200_000_000
"""The most pixels a picture may have, unless told otherwise: its tensor ``x`` takes 12 bytes for each."""

READABLE = ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF", "PPM", "AVIF", "JPEG2000", "QOI")
"""What is read. Not all that Pillow knows: some of its readers start other programs or have no signature."""

WRITABLE = {".png": "PNG", ".webp": "WEBP", ".tif": "TIFF", ".tiff": "TIFF", ".jpg": "JPEG", ".jpeg": "JPEG"}
"""The suffixes that are written, and as what."""

SNAP = 16
"""Of 255: how near to black or white a level of a lossy mask counts as black or white."""

Levels = NDArray[Any]
"""uint8 or uint16, as in the file."""

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
_LARGEST = {"WEBP": 16383, "JPEG": 65500}  # pixels of a side, by the formats' own headers
_ORIENTATION, _EXIF_PART, _GPS_PART, _INTEROP_PART = 0x0112, 0x8769, 0x8825, 0xA005
# Tags of a TIFF that say how its pixels are stored: no more true of the picture that is written. The resolution
# (282, 283, 296) and the profile (34675) travel by themselves, and a thumbnail would show what was painted over.
_STRUCTURE = (
    *range(254, 260), 262, 263, 266, _ORIENTATION, 273, 277, 278, 279, 282, 283, 284, 296, 301, 317, 318, 319, 320, 322,
    323, 324, 325, 330, 338, 339, 347, 513, 514, 529, 530, 531, 532, 34675,
)  # fmt: skip
_LOCK = threading.RLock()


class ImageError(ValueError):
    """A picture or mask that cannot be read, used or written. The message is meant for the user."""


class ReadHole(NamedTuple):
    """What `read_hole` gives: the hole [1, H, W] in [0, 1] (1: repaint), and what there is to say about it."""

    hole: Tensor
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class Picture:
    """A picture in its own levels, upright, with all that a result must keep. Made by `read_picture`, `picture_from`.

    Attributes:
        levels: [H, W, 1] (grey) or [H, W, 3] (RGB), uint8 or uint16.
        alpha: [H, W] of the same type, the full value where the picture is opaque; None where it has no transparency.
        profile: the ICC profile.
        exif: the EXIF block, without orientation (the pixels are upright) and without thumbnail.
        dpi: pixels per inch across and down.
        notes: what reading could not keep, in sentences.
        name: what errors call it.
    """

    levels: Levels = field(repr=False)
    alpha: Levels | None = field(default=None, repr=False)
    profile: bytes | None = field(default=None, repr=False)
    exif: bytes | None = field(default=None, repr=False)
    dpi: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()
    name: str = "the picture"

    def __post_init__(self) -> None:
        levels, alpha = self.levels, self.alpha
        if levels.dtype not in (np.uint8, np.uint16) or levels.ndim != 3 or levels.shape[2] not in (1, 3):
            raise ImageError(f"levels must be uint8 or uint16 [H, W, 1 or 3], got {_said(levels)}")
        if 0 in levels.shape:
            raise ImageError(f"{self.name}: a picture needs at least one pixel, got {_said(levels)}")
        if alpha is not None and (alpha.dtype != levels.dtype or alpha.shape != levels.shape[:2]):
            raise ImageError(f"alpha must be {levels.dtype} {list(levels.shape[:2])} like levels, got {_said(alpha)}")
        for name, array in (("levels", levels), ("alpha", alpha)):
            if array is not None:  # a picture never changes: what is repainted is another one
                view = array.view()
                view.setflags(write=False)
                object.__setattr__(self, name, view)

    @property
    def height(self) -> int:
        return int(self.levels.shape[0])

    @property
    def width(self) -> int:
        return int(self.levels.shape[1])

    @property
    def size(self) -> tuple[int, int]:
        """Height and width, as `read_hole` takes them. (Pillow says width first.)"""
        return self.height, self.width

    @property
    def grey(self) -> bool:
        return bool(self.levels.shape[2] == 1)

    @property
    def bits(self) -> int:
        """Of each level: 8 or 16."""
        return self.levels.dtype.itemsize * 8

    @property
    def full(self) -> int:
        """The level of white: 255 or 65535."""
        return (1 << self.bits) - 1

    @cached_property
    def x(self) -> Tensor:
        """The picture as a network sees it: float32 [3, H, W] in [-1, 1], what is transparent laid over white."""
        return self.window(0, 0, self.height, self.width)

    def window(self, top: int, left: int, height: int, width: int) -> Tensor:
        """``x[:, top : top + height, left : left + width]``, at the cost of the window alone."""
        rows, columns = self._box("window", top, left, height, width)
        colours = self.levels[rows, columns].astype(np.float32) / self.full
        if self.alpha is not None:
            opaque = self.alpha[rows, columns, None].astype(np.float32) / self.full
            colours = colours * opaque + (1.0 - opaque)
        return torch.from_numpy(colours).mul_(2.0).sub_(1.0).permute(2, 0, 1).expand(3, -1, -1).contiguous()

    def completed(self, x: Tensor, hole: Tensor, *, at: tuple[int, int] | None = None) -> Picture:
        """This picture with the pixels where ``hole`` > 0 taken from ``x``; all others keep their exact levels.

        ``x`` is [3, h, w] (or [1, 3, h, w]) in [-1, 1], ``hole`` [1, h, w] (or [h, w], [1, 1, h, w]) in [0, 1]; both
        may be a window of the picture, with its upper left corner ``at`` (top, left). What lies beyond [-1, 1] is
        clipped. A grey picture stays grey (the luma of ``x``). Repainted pixels become opaque: ``x`` has no
        transparency, and where the picture has some, ``x`` was what showed over white.
        """
        new = _colours(x)
        inside = _hole_array("hole", hole) > 0.0
        if inside.shape != new.shape[1:]:
            raise ImageError(f"hole must have the height and width of x, {list(new.shape[1:])}, got {_said(hole)}")
        if at is None and inside.shape != self.size:
            raise ImageError(
                f"x must have the height and width of {self.name}, {list(self.size)}, got {_said(x)}; "
                "for a window of it say where it lies: at=(top, left)"
            )
        rows, columns = self._box("x", *(at or (0, 0)), *inside.shape)
        values = new[:, inside].T  # [pixels, 3]
        if not np.isfinite(values).all():
            raise ImageError(f"x holds values in the hole that are not finite ({self.name}): nothing was painted")
        if self.grey:
            values = (values @ _LUMA)[:, None]
        levels = self.levels.copy()
        levels[rows, columns][inside] = self._rounded(values)
        alpha = self.alpha
        if alpha is not None:
            alpha = alpha.copy()
            alpha[rows, columns][inside] = self.full
        return replace(self, levels=levels, alpha=alpha)

    def extended(
        self, left: int = 0, top: int = 0, right: int = 0, bottom: int = 0, *, limit: int = PIXELS
    ) -> tuple[Picture, Tensor]:
        """A larger picture with this one in it, and the hole [1, H, W] that is 1 on the new pixels, 0 on the old.

        The sides are in pixels. The new pixels are middle grey and opaque until they are repainted.
        """
        for name, side in (("left", left), ("top", top), ("right", right), ("bottom", bottom)):
            _at_least(name, side, 0)
        if not left + top + right + bottom:
            raise ImageError("nothing to extend: left, top, right and bottom are all 0; at least one must be more")
        height, width = self.height + top + bottom, self.width + left + right
        _within(f"{self.name}, extended,", height, width, limit)
        old = slice(top, top + self.height), slice(left, left + self.width)
        levels = np.full((height, width, self.levels.shape[2]), (self.full + 1) // 2, self.levels.dtype)
        levels[old] = self.levels
        alpha = None
        if self.alpha is not None:
            alpha = np.full((height, width), self.full, self.levels.dtype)
            alpha[old] = self.alpha
        hole = torch.ones(1, height, width)
        hole[0][old] = 0.0
        return replace(self, levels=levels, alpha=alpha), hole

    def image(self) -> Image.Image:
        """As a Pillow picture (L, LA, RGB, RGBA, or I;16 for opaque grey of 16 bits), its profile and all in ``info``.

        Pillow has nothing else of 16 bits: there the picture is rounded to 8. `write` keeps all 16.
        """
        image = _pil(self if self.bits == 8 or (self.grey and self.alpha is None) else _eight(self))
        for key, value in (("icc_profile", self.profile), ("exif", self.exif), ("dpi", self.dpi)):
            if value is not None:
                image.info[key] = value
        return image

    def _rounded(self, values: NDArray[np.float32]) -> Levels:
        """From [-1, 1] to levels."""
        scaled = (values.astype(np.float64) + 1.0) * (self.full / 2)
        return scaled.round().clip(0, self.full).astype(self.levels.dtype)

    def _box(self, name: str, top: int, left: int, height: int, width: int) -> tuple[slice, slice]:
        for side, value, least in (("top", top, 0), ("left", left, 0), ("height", height, 1), ("width", width, 1)):
            _at_least(side, value, least)
        if top + height > self.height or left + width > self.width:
            raise ImageError(
                f"{name} must lie within {self.name} of height {self.height} and width {self.width}; got height "
                f"{height} and width {width} at top={top}, left={left}"
            )
        return slice(top, top + height), slice(left, left + width)


# ---- Reading


def read_picture(path: str | os.PathLike[str], *, limit: int = PIXELS) -> Picture:
    """The picture in a file, upright by its EXIF tag, of at most ``limit`` pixels.

    8 bits a level (RGB, grey, 1-bit as grey, palettes as RGB), 16-bit grey, and 16-bit RGB of PNG and TIFF come
    exactly as they are stored. What comes otherwise is said in ``notes``: CMYK becomes RGB, deeper colours of other
    kinds are read at 8 bits, of an animation only the first picture is used.
    """
    return _picture(_read(Path(path), limit), str(path))


def picture_from(source: object, *, limit: int = PIXELS) -> Picture:
    """A picture from whatever holds one:

    - a path (str or Path), as `read_picture`; a `Picture`, as it is;
    - a Pillow picture, in the depth that it has, upright by its EXIF tag;
    - a numpy array [H, W], [H, W, 1], [H, W, 3], or with alpha last [H, W, 2], [H, W, 4]: uint8, uint16, bool, or
      floating point in [0, 1], which is rounded to 8 bits;
    - a tensor [3, H, W] or [1, 3, H, W], floating point in [-1, 1], rounded to 8 bits; [1, H, W] is grey.
    """
    if isinstance(source, Picture):
        return source
    if isinstance(source, str | os.PathLike):
        return read_picture(source, limit=limit)
    if isinstance(source, Image.Image):
        return _picture(_from_pil(source, "the picture", limit), "the picture")
    if isinstance(source, Tensor):
        colours = _colours(source, channels=(1, 3))
        if not np.isfinite(colours).all() or colours.min() < -1.0 or colours.max() > 1.0:
            raise ImageError(
                f"a picture given as a tensor must lie in [-1, 1], got values from {colours.min():g} to "
                f"{colours.max():g}; from [0, 1] use 2 * x - 1, for levels of 0 to 255 give a numpy array of uint8"
            )
        levels = ((colours.astype(np.float64) + 1.0) * 127.5).round().astype(np.uint8)
        return Picture(levels=np.ascontiguousarray(levels.transpose(1, 2, 0)))
    if isinstance(source, np.ndarray):
        return _picture(_from_array(source, "the picture"), "the picture")
    raise ImageError(
        f"a picture must be a path, a Pillow picture, a numpy array or a tensor, got {type(source).__name__}"
    )


def blank(height: int, width: int, *, limit: int = PIXELS) -> Picture:
    """A picture of which nothing is known yet: middle grey, RGB, 8 bits."""
    _at_least("height", height, 1)
    _at_least("width", width, 1)
    _within("the picture", height, width, limit)
    return Picture(levels=np.full((height, width, 3), 128, np.uint8))


def read_hole(
    source: object, size: tuple[int, int] | None = None, *, invert: bool = False, limit: int = PIXELS
) -> ReadHole:
    """The hole [1, H, W] of a mask: float32 in [0, 1], 1 where it is white (repaint), 0 where it is black (keep).

    Grey is in between, the time at which a pixel starts. ``size`` is (height, width) of the photo that it belongs to:
    a mask of another size is an error, it is never stretched. ``invert`` is for masks that are white where the
    picture stays. A mask in which nothing is to be repainted is an error.

    ``source`` is a path, a Pillow picture, a numpy array (bool, uint8, uint16, or floating point in [0, 1]; [H, W] or
    as `picture_from` takes them) or a tensor ([H, W], [1, H, W] or [1, 1, H, W]; bool, or floating point in [0, 1]).

    - Of a coloured mask the brightness (luma) counts, and that is said.
    - Of a mask with transparency, when all that shows has one colour, the alpha counts, whatever the colour: strokes
      on a transparent sheet, as brushes export them. With several colours their brightness counts, and what is
      transparent is black.
    - In a lossy file (JPEG, lossy WebP, ...) levels within 16 of 255 from black or white are black or white, and that
      is said: an encoder blurs what was drawn.
    """
    notes: list[str] = []
    name = str(source) if isinstance(source, str | os.PathLike) else "the mask"
    if isinstance(source, Tensor):
        hole = _hole_array("the mask", source)
    else:
        if isinstance(source, str | os.PathLike):
            read = _read(Path(source), limit)
        elif isinstance(source, Image.Image):
            read = _from_pil(source, name, limit)
        elif isinstance(source, np.ndarray):
            read = _from_array(source, name, exactly=True)
            if source.dtype == np.uint8 and source.ndim == 2 and source.max() == 1:
                raise ImageError(
                    "the mask is an array of uint8 that holds no more than 1, where white is 255: give it as bool, "
                    "array.astype(bool), if 1 means repaint"
                )
        else:
            raise ImageError(
                f"a mask must be a path, a Pillow picture, a numpy array or a tensor, got {type(source).__name__}"
            )
        notes += read.notes
        hole = _whiteness(read, name, notes)
    if size is not None:
        _same_size(name, hole.shape, size)
    if invert:
        hole = 1.0 - hole
    if not hole.any():
        way = "it is all white, and inverted" if invert else "it is all black"
        hint = "leave out --invert" if invert else "use --invert (invert=True)"
        raise ImageError(
            f"{name}: nothing to repaint, {way}. White is repainted and black stays; if it is meant the other way "
            f"round, {hint}"
        )
    return ReadHole(torch.from_numpy(np.ascontiguousarray(hole, np.float32))[None], tuple(notes))


class _Read(NamedTuple):
    """What comes out of a file before it is a picture or a mask."""

    levels: NDArray[Any]  # [H, W, 1 or 3]; of a mask given as an array also float
    alpha: NDArray[Any] | None = None
    profile: bytes | None = None
    exif: bytes | None = None
    dpi: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()
    lossy: bool = False


def _picture(read: _Read, name: str) -> Picture:
    return Picture(
        levels=np.ascontiguousarray(read.levels),
        alpha=None if read.alpha is None else np.ascontiguousarray(read.alpha),
        profile=read.profile,
        exif=read.exif,
        dpi=read.dpi,
        notes=read.notes,
        name=name,
    )


def _read(path: Path, limit: int) -> _Read:
    try:
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            raise ImageError(f"{path}: this is a folder; name a picture file in it")
        if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for ever
            raise ImageError(f"{path}: this is not a regular file; save the picture in one first")
        if found.st_size == 0:
            raise ImageError(f"{path}: the file is empty (0 bytes); get it anew")
        file = path.open("rb")
    except FileNotFoundError:
        raise ImageError(f"{path}: there is no such file") from None
    except ImageError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a name with a null in it
        raise ImageError(f"{path}: cannot be opened: {getattr(error, 'strerror', None) or error}") from error
    with file:
        return _decode(lambda: Image.open(file, formats=READABLE), str(path), limit, file)


def _from_pil(image: Image.Image, name: str, limit: int) -> _Read:
    return _decode(lambda: image, name, limit)


def _decode(source: Callable[[], Image.Image], name: str, limit: int, file: IO[bytes] | None = None) -> _Read:
    """``source`` gives the picture, with a ``file`` anew each time that it is called."""
    notes: list[str] = []
    with _guarded(name, limit, file) as said:
        image = source()
        _within(name, image.height, image.width, limit)
        deep = _other_bytes(image) if file else None
        shallow = file is not None and deep is None and _deeper_than_read(image)
        image.load()
        exif, orientation = _exif(image, notes)
        key = image.info.get("transparency")
        levels: NDArray[Any]
        alpha: NDArray[Any] | None
        if deep is not None:
            levels, alpha = _sixteen(image, source(), deep, key)
        else:
            levels, alpha = _unpacked(image, key, name, notes)
        if file is not None and image.format in ("GIF", "PNG", "WEBP", "TIFF", "AVIF") and _is_animated(image):
            notes.append("it holds several pictures: the first one is used")
        if shallow:
            notes.append("it has more than 8 bits a colour, and was read at 8")
        profile = image.info.get("icc_profile") or None
        if image.mode in ("CMYK", "LAB"):
            profile = None
        lossy = image.format in ("JPEG", "MPO", "JPEG2000", "AVIF") or (
            image.format == "WEBP" and not (file is not None and _webp_is_lossless(file))
        )
        dpi = _dpi(image.info.get("dpi"))
    if dpi is not None and orientation >= 5:
        dpi = dpi[1], dpi[0]
    return _Read(
        _upright(levels, orientation),
        None if alpha is None else _upright(alpha, orientation),
        profile if isinstance(profile, bytes) else None,
        exif,
        dpi,
        (*notes, *dict.fromkeys(str(each.message).strip() for each in said)),
        lossy,
    )


@contextmanager
def _guarded(name: str, limit: int, file: IO[bytes] | None) -> Iterator[list[warnings.WarningMessage]]:
    """Whatever a decoder does with a hostile file, it is an ImageError. Its warnings are collected.

    Pillow's limit and the filters of warnings are the process's: one thread at a time is in here.
    """
    with _LOCK, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        before = Image.MAX_IMAGE_PIXELS
        Image.MAX_IMAGE_PIXELS = limit  # some readers allocate before the size can be looked at
        try:
            yield said
        except ImageError:
            raise
        except UnidentifiedImageError:
            first = b""
            if file is not None:
                file.seek(0)
                first = file.read(12)
            raise ImageError(
                f"{name}: not a picture that can be read, or its header is damaged (it begins with {first!r}). "
                f"Read are {', '.join(READABLE)}; save it as PNG with a program that shows it"
            ) from None
        except Image.DecompressionBombError as error:
            raise ImageError(f"{name}: more than {limit:,} pixels are not read: {error}") from error
        except MemoryError as error:
            raise ImageError(f"{name}: there is not enough memory to read it; make it smaller first") from error
        except Exception as error:  # decoders raise struct.error, KeyError, EOFError, SyntaxError, zlib.error, ...
            raise ImageError(f"{name}: the file is damaged or cut short ({error}); get it anew") from error
        finally:
            Image.MAX_IMAGE_PIXELS = before


def _unpacked(image: Image.Image, key: Any, name: str, notes: list[str]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Levels and alpha of what Pillow holds. ``key``: the one colour that is transparent, or a palette's alphas."""
    mode = image.mode
    if mode in ("I", "F") or mode.startswith("I;16"):
        return _deep_grey(image, key, name, notes)
    if mode == "CMYK":
        image, key = _rgb_from_cmyk(image), None
        notes.append("CMYK was converted to RGB")
    if image.mode in ("LA", "PA", "La", "RGBA", "RGBa") or key is not None:
        image = image.convert("LA" if image.mode in ("1", "L", "LA", "La") else "RGBA")
    elif image.mode in ("1", "L"):
        image = image.convert("L")
    elif image.mode != "RGB":
        try:
            image = image.convert("RGB")
        except ValueError as error:
            raise ImageError(f"{name}: pictures of mode {mode} cannot be used; convert it to RGB first") from error
    array = np.asarray(image)
    if array.ndim == 2:
        return array[..., None], None
    colours = 3 if array.shape[2] >= 3 else 1
    return array[..., :colours], array[..., colours] if array.shape[2] > colours else None


def _deep_grey(image: Image.Image, key: Any, name: str, notes: list[str]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    array = np.asarray(image)
    low, high = float(array.min()), float(array.max())
    if image.mode == "F":
        if not (low >= 0.0 and high <= 1.0):  # also for NaN
            raise ImageError(
                f"{name}: holds floating-point levels from {low:g} to {high:g}, where 0 to 1 was expected; save it "
                "with 8 or 16 bits"
            )
        notes.append("floating-point levels were rounded to 16 bits")
        array = (array.astype(np.float64) * 65535.0).round()
    elif low < 0 or high > 65535:
        raise ImageError(f"{name}: holds levels from {low:g} to {high:g}; save it with 8 or 16 bits")
    levels = array.astype(np.uint16)
    alpha = np.where(levels == key, 0, 65535).astype(np.uint16) if isinstance(key, int) else None
    return levels[..., None], alpha


def _raw_mode(tile: Any) -> Any:
    return tile.args if isinstance(tile.args, str) else tile.args[0] if tile.args else None


def _other_bytes(image: Image.Image) -> str | None:
    """For colours of 16 bits: how to ask Pillow for the bytes that it leaves out.

    Pillow has no mode for them and keeps the upper byte of each. But it knows both byte orders: read a second time in
    the wrong one, the file yields the lower bytes. Grey with alpha makes four bytes, and fits into RGBA at once.
    """
    raws = {_raw_mode(tile) for tile in getattr(image, "tile", ())}
    if len(raws) != 1:
        return None
    other = {
        f"{kind};16{order}": f"{kind};16{swapped}"
        for kind in ("RGB", "RGBA")
        for order, swapped in zip("BL", "LB", strict=True)
    }
    wrong = "B" if sys.byteorder == "little" else "L"  # N: the machine's own order
    other |= {f"{kind};16N": f"{kind};16{wrong}" for kind in ("RGB", "RGBA")}
    if image.format == "PNG":
        other["LA;16B"] = "RGBA"
    return other.get(raws.pop())


def _deeper_than_read(image: Image.Image) -> bool:
    """Whether Pillow shows that it drops bits of this file."""
    for tile in getattr(image, "tile", ()):
        if ";16" in str(_raw_mode(tile)) and image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
            return True
        if tile.codec_name in ("ppm", "ppm_plain") and image.mode == "RGB" and tile.args[-1] > 255:
            return True
    return False


def _sixteen(upper: Image.Image, other: Image.Image, raw: str, key: Any) -> tuple[NDArray[Any], NDArray[Any] | None]:
    """Levels and alpha of 16 bits from the upper bytes and a second look at the file, see `_other_bytes`."""
    other.tile = [  # type: ignore[attr-defined]
        tile._replace(args=raw if isinstance(tile.args, str) else (raw, *tile.args[1:]))
        for tile in other.tile  # type: ignore[attr-defined]
    ]
    low = np.asarray(other).astype(np.uint16)
    if raw == "RGBA":  # grey with alpha: upper and lower byte of the one, then of the other
        return (low[..., 0] << 8 | low[..., 1])[..., None], low[..., 2] << 8 | low[..., 3]
    array = np.asarray(upper).astype(np.uint16) << 8 | low
    if array.shape[2] == 4:
        return array[..., :3], array[..., 3]
    if isinstance(key, tuple) and len(key) == 3:
        return array, np.where((array == np.array(key)).all(-1), 0, 65535).astype(np.uint16)
    return array, None


def _rgb_from_cmyk(image: Image.Image) -> Image.Image:
    """By its own profile to sRGB where there is one that works; plainly where not."""
    profile = image.info.get("icc_profile")
    if profile:
        try:
            from PIL import ImageCms

            there = ImageCms.ImageCmsProfile(io.BytesIO(profile))
            turned = ImageCms.profileToProfile(image, there, ImageCms.createProfile("sRGB"), outputMode="RGB")
            if turned is not None:
                return turned
        except Exception:  # no littlecms, or a broken profile: a plain conversion is better than no picture
            pass
    return image.convert("RGB")


def _exif(image: Image.Image, notes: list[str]) -> tuple[bytes | None, int]:
    """What to keep of the EXIF block, and by which of its eight ways the picture is stored."""
    try:
        tags = image.getexif()
        if not len(tags):
            return None, 1
        orientation = tags.get(_ORIENTATION, 1)
        orientation = orientation if orientation in range(1, 9) else 1
    except Exception:  # a damaged block is no reason to refuse the pixels
        notes.append("its EXIF block is damaged and was left out")
        return None, 1
    try:
        kept = Image.Exif()  # another one: the tags may belong to a picture of the caller's
        kept.endian = tags.endian  # makers' notes are in the camera's byte order
        for tag, value in tags.items():
            if tag not in _STRUCTURE:
                kept[tag] = value
        for part in (_EXIF_PART, _GPS_PART):  # directories of their own
            if part in kept:
                kept[part] = dict(tags.get_ifd(part))
        if _INTEROP_PART in kept.get(_EXIF_PART, {}):
            kept[_EXIF_PART][_INTEROP_PART] = tags.get_ifd(_INTEROP_PART)
        return (kept.tobytes() if len(kept) else None), orientation
    except Exception:
        notes.append("its EXIF block is damaged and was left out")
        return None, orientation


def _upright(array: NDArray[Any], orientation: int) -> NDArray[Any]:
    """The way a viewer shows what is stored so. The tag says where the first row and the first column belong."""
    if orientation >= 5:  # rows are columns
        array = array.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        array = array[::-1]
    if orientation in (2, 3, 6, 7):
        array = array[:, ::-1]
    return array


def _dpi(value: Any) -> tuple[float, float] | None:
    try:
        across, down = (float(each) for each in value)
    except (TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None
    return (across, down) if all(math.isfinite(each) and 0 < each < 1e6 for each in (across, down)) else None


def _is_animated(image: Image.Image) -> bool:
    try:
        return bool(getattr(image, "is_animated", False))
    except Exception:  # GIF looks for a second picture, which may be damaged: the first one is whole
        return False


def _webp_is_lossless(file: IO[bytes]) -> bool:
    """Whether the (first) picture in a WebP file is stored without loss: by the names of its chunks."""
    file.seek(12)
    for _ in range(64):
        head = file.read(8)
        if len(head) < 8:
            return False
        name, length = struct.unpack("<4sI", head)
        if name in (b"VP8L", b"VP8 "):
            return bool(name == b"VP8L")
        file.seek(16 if name == b"ANMF" else length + length % 2, os.SEEK_CUR)  # a frame has chunks of its own
    return False


def _from_array(array: NDArray[Any], name: str, *, exactly: bool = False) -> _Read:
    """Levels of an array; ``exactly``: without rounding floating-point values (a mask need not have 8 bits)."""
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 2, 3, 4) or 0 in array.shape:
        first = array.ndim == 3 and array.shape[0] in (1, 3, 4)
        hint = "; channels come last: use array.transpose(1, 2, 0)" if first else ""
        raise ImageError(
            f"{name} as an array must be [H, W], [H, W, 3] or with alpha [H, W, 4], got {_said(array)}{hint}"
        )
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * np.uint8(255)
    elif np.issubdtype(array.dtype, np.floating):
        low, high = float(array.min()), float(array.max())
        if not (low >= 0.0 and high <= 1.0):  # also for NaN
            hint = "; divide by 255?" if 1.0 < high <= 255.0 and low >= 0.0 else ""
            raise ImageError(
                f"{name} as a floating-point array must lie in [0, 1], got values from {low:g} to {high:g}{hint}"
            )
        array = array.astype(np.float32) if exactly else (array.astype(np.float64) * 255.0).round().astype(np.uint8)
    elif array.dtype.newbyteorder("=") in (np.uint8, np.uint16):
        array = array.astype(array.dtype.newbyteorder("="))  # a copy: the caller may go on to write into it
    else:
        raise ImageError(f"{name} as an array must be uint8, uint16, bool or floating point, got {array.dtype}")
    colours = 3 if array.shape[2] >= 3 else 1
    return _Read(array[..., :colours], array[..., colours] if array.shape[2] > colours else None)


def _whiteness(read: _Read, name: str, notes: list[str]) -> NDArray[np.float32]:
    """How white a mask is, [H, W]: see `read_hole`."""
    exact = np.issubdtype(read.levels.dtype, np.floating)
    full = 1.0 if exact else float(np.iinfo(read.levels.dtype).max)
    colours = read.levels.astype(np.float32) / np.float32(full)
    alpha = None if read.alpha is None else read.alpha.astype(np.float32) / np.float32(full)
    if alpha is not None and alpha.min() == 1.0:
        alpha = None
    if alpha is not None:
        if not alpha.any():
            raise ImageError(
                f"{name}: nothing to repaint, the mask is wholly transparent. Paint white what shall change"
            )
        shows = colours[alpha >= alpha.max() / 2]  # at the rim of a stroke colours are rounded beyond use
        if np.ptp(shows, axis=0).max() <= SNAP / 255:
            notes.append("the mask is one colour on a transparent sheet: what is opaque is repainted")
            return _snapped(alpha, read.lossy, notes)
    white: NDArray[np.float32]
    if colours.shape[2] == 1:
        white = colours[..., 0]
    else:
        grey = (colours == colours[..., :1]).all()
        # not the product where all is grey: its rounding would make white a little less than 1
        white = colours[..., 0] if grey else (colours @ _LUMA).clip(0.0, 1.0)
        if not grey:
            white[(colours == 1.0).all(-1)] = 1.0
            if np.ptp(colours, axis=2).max() > 2 * SNAP / 255:
                notes.append("the mask is coloured: its brightness says how much is repainted")
    if alpha is not None:
        notes.append("the mask has transparent parts: they stay as they are")
        white = white * alpha
    return _snapped(white, read.lossy, notes)


def _snapped(white: NDArray[np.float32], lossy: bool, notes: list[str]) -> NDArray[np.float32]:
    if not lossy:
        return white
    near = np.float32(SNAP / 255 + 1e-6)
    snapped = np.where(white <= near, 0, np.where(white >= 1 - near, 1, white)).astype(np.float32)
    moved = int((snapped != white).sum())
    if moved:
        notes.append(
            f"the mask is a lossy file: {moved:,} pixels within {SNAP} levels of black or white were taken as black "
            "or white; masks are best kept as PNG"
        )
    return snapped


def _same_size(name: str, got: tuple[int, ...], size: tuple[int, int]) -> None:
    height, width = size
    if got == (height, width):
        return
    both = f"{name}: the mask is {got[1]} x {got[0]} pixels, the photo {width} x {height} (width x height)"
    if got == (width, height):
        raise ImageError(
            f"{both}: it lies on its side. The photo was rotated upright by its EXIF tag, or the mask was rotated; "
            "rotate the mask by a quarter turn, the way the photo is seen"
        )
    scale = height / got[0]
    if abs(got[1] * scale - width) <= 1.0 or abs(got[0] * width / got[1] - height) <= 1.0:
        raise ImageError(
            f"{both}: the same shape at another scale. Masks are not stretched; resize it to {width} x {height}, e.g. "
            f"with Pillow: mask.resize(({width}, {height}), Image.Resampling.NEAREST)"
        )
    raise ImageError(f"{both}: the shapes differ, so it belongs to another picture or to a crop; draw it on this photo")


# ---- Writing


def check_target(
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    inputs: Iterable[str | os.PathLike[str]] = (),
    suffixes: Iterable[str] = tuple(WRITABLE),
) -> None:
    """Raises the ImageError that `write` would raise for this path: to be asked before the work, not after."""
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        came = f"the suffix {path.suffix!r}" if path.suffix else "no suffix"
        raise ImageError(f"{path}: has {came}; what can be written is {', '.join(suffixes)}")
    try:
        for each in inputs:
            if path.resolve() == Path(each).resolve() or (
                path.exists() and os.path.exists(each) and os.path.samefile(path, each)
            ):
                raise ImageError(f"{path}: is an input, and inputs are never overwritten; choose another name")
        if path.is_dir():
            raise ImageError(f"{path}: is a folder; name a file in it")
        if not path.parent.is_dir():
            raise ImageError(f"{path}: there is no folder {path.parent}; make it first")
        os.lstat(path)
        if not force:
            raise ImageError(f"{path}: exists already; choose another name, or overwrite it with --force (force=True)")
    except FileNotFoundError:
        pass
    except ImageError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # a name too long, with a null, links in a circle
        raise ImageError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from error


def write(
    picture: Picture,
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    inputs: Iterable[str | os.PathLike[str]] = (),
) -> tuple[str, ...]:
    """Writes a picture in the format that the suffix says, and returns notes on what the format could not keep.

    PNG, WebP and TIFF are lossless here: every level comes back as it was. PNG keeps 16 bits of everything, TIFF of
    opaque grey, WebP of nothing (and no resolution); the rest is rounded to 8 bits. JPEG, at quality 95 and full
    colour resolution, **cannot keep pixels exact**, and has no transparency (it is laid over white). Profile, EXIF and
    resolution are kept where the format has a place for them.

    An existing file is overwritten only with ``force``, and one of ``inputs`` never. The file is written under
    another name in the same folder and then renamed: nobody ever sees half of it.
    """
    path, inputs = Path(path), tuple(inputs)
    check_target(path, force=force, inputs=inputs)
    data, notes = _encoded(picture, WRITABLE[path.suffix.lower()], str(path))
    write_bytes(data, path, lambda: check_target(path, force=force, inputs=inputs))
    return notes


def write_bytes(data: bytes, path: Path, check: Callable[[], None]) -> None:
    """Writes a file under another name in the same folder, asks ``check`` again whether it may, and renames it."""
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        try:
            with part.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            check()  # somebody else may have been quicker
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ImageError(f"{path}: cannot be written: {error.strerror or error}") from error


def _encoded(picture: Picture, kind: str, name: str) -> tuple[bytes, tuple[str, ...]]:
    notes: list[str] = []
    largest = _LARGEST.get(kind)
    if largest and max(picture.size) > largest:
        raise ImageError(
            f"{name}: {kind} holds no more than {largest} pixels a side, the picture is {picture.width} x "
            f"{picture.height}; write a .png"
        )
    if kind == "JPEG":
        notes.append("JPEG is lossy: no pixel comes back exactly; write .png, .webp or .tiff to keep them")
        if picture.alpha is not None:
            notes.append("JPEG has no transparency: it was laid over white")
            picture = _over_white(picture)
    if picture.bits == 16 and not (kind == "PNG" or (kind == "TIFF" and picture.grey and picture.alpha is None)):
        notes.append(f"16 bits were rounded to 8, which is what {kind} can hold here; write a .png to keep 16")
        picture = _eight(picture)
    profile, exif = picture.profile, picture.exif
    space = profile[16:20] if profile else b""
    grey = picture.grey and kind != "WEBP"
    if space == b"CMYK" or (space == b"GRAY" and not grey):
        notes.append("the colour profile is for another kind of colours, and was left out")
        profile = None
    if exif and kind == "JPEG" and len(exif) > 65533:
        notes.append("the EXIF block is too long for JPEG, and was left out")
        exif = None
    if kind == "PNG" and picture.bits == 16:
        return _png_of_16_bits(picture, profile, exif), tuple(notes)
    options: dict[str, Any] = {"icc_profile": profile}
    if exif:
        options["exif"] = exif
    if picture.dpi and kind != "WEBP":
        options["dpi"] = picture.dpi
    if kind == "JPEG":
        options |= {"quality": 95, "subsampling": 0}
    elif kind == "WEBP":
        options |= {"lossless": True, "exact": True}  # exact: also the colours of what is transparent
    elif kind == "TIFF" and not exif:
        options["compression"] = "tiff_adobe_deflate"  # libtiff cannot write EXIF: with it, pixels stay uncompressed
    file = io.BytesIO()
    try:
        _pil(picture).save(file, kind, **options)
    except (OSError, ValueError, TypeError, RuntimeError, OverflowError, MemoryError, struct.error) as error:
        raise ImageError(f"{name}: cannot be written as {kind}: {error}") from error
    return file.getvalue(), tuple(notes)


def _png_of_16_bits(picture: Picture, profile: bytes | None, exif: bytes | None) -> bytes:
    """A PNG by hand: Pillow writes 16 bits of grey alone."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))

    levels = picture.levels if picture.alpha is None else np.dstack([picture.levels, picture.alpha])
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[levels.shape[2]]
    # each row as its difference from the one above (filter 2): smaller, and simple in whole bytes
    rows = levels.astype(">u2").reshape(picture.height, -1).view(np.uint8)
    filtered = np.full((picture.height, rows.shape[1] + 1), 2, np.uint8)
    filtered[0, 1:], filtered[1:, 1:] = rows[0], rows[1:] - rows[:-1]
    parts = [
        b"\x89PNG\r\n\x1a\n",
        chunk(b"IHDR", struct.pack(">IIBBBBB", picture.width, picture.height, 16, kind, 0, 0, 0)),
    ]
    if profile:
        parts.append(chunk(b"iCCP", b"ICC Profile\0\0" + zlib.compress(profile)))
    if picture.dpi:
        across, down = (round(each / 0.0254) for each in picture.dpi)  # pixels per metre
        parts.append(chunk(b"pHYs", struct.pack(">IIB", across, down, 1)))
    if exif:
        parts.append(chunk(b"eXIf", exif.removeprefix(b"Exif\0\0")))
    packed = zlib.compress(filtered.tobytes())
    step = 1 << 30  # a chunk holds less than 2 GiB
    parts += [chunk(b"IDAT", packed[start : start + step]) for start in range(0, len(packed), step)]
    return b"".join([*parts, chunk(b"IEND", b"")])


def _pil(picture: Picture) -> Image.Image:
    levels = picture.levels if picture.alpha is None else np.dstack([picture.levels, picture.alpha])
    return Image.fromarray(np.ascontiguousarray(levels[..., 0] if levels.shape[2] == 1 else levels))


def _eight(picture: Picture) -> Picture:
    """Rounded to 8 bits."""
    if picture.bits == 8:
        return picture
    levels, alpha = (
        None if array is None else ((array.astype(np.uint32) + 128) // 257).astype(np.uint8)
        for array in (picture.levels, picture.alpha)
    )
    assert levels is not None
    return replace(picture, levels=levels, alpha=alpha)


def _over_white(picture: Picture) -> Picture:
    assert picture.alpha is not None
    opaque = picture.alpha[..., None].astype(np.float32) / picture.full
    levels = picture.levels * opaque + (1.0 - opaque) * picture.full
    return replace(picture, levels=levels.round().astype(picture.levels.dtype), alpha=None)


# ---- Holes


def grow(hole: Tensor, pixels: int) -> Tensor:
    """The hole [..., H, W] with a margin of so many pixels around it: each value is the largest within that distance.

    With fewer than 0 pixels it shrinks: each value is the smallest within that distance. The picture's rim is no
    edge: a hole that reaches it does not shrink away from it. Distance is measured from centre to centre.
    """
    _hole_array("hole", hole, any_batch=True)
    _at_least("pixels", pixels, -(10**9))
    rows, columns = _around(hole, max(pixels, 1))
    inner = hole[..., rows, columns]
    if pixels == 0 or inner.numel() == 0:
        return hole.clone()
    grown = hole.clone()
    grown[..., rows, columns] = _largest_within(inner, pixels) if pixels > 0 else -_largest_within(-inner, -pixels)
    return grown


def feather(hole: Tensor, pixels: int) -> Tensor:
    """The hole [..., H, W] faded inwards: from 0 just outside it evenly up to 1 at ``pixels`` + 1 from its edge.

    At distance d from the nearest pixel that is kept no value is more than d / (pixels + 1). What was 0 stays exactly
    0, no value rises, and 0 pixels change nothing. The picture's rim is no edge.
    """
    _hole_array("hole", hole, any_batch=True)
    _at_least("pixels", pixels, 0)
    rows, columns = _around(hole, 1)  # the nearest pixel that is kept is never further than the frame
    inner = hole[..., rows, columns]
    if pixels == 0 or inner.numel() == 0:
        return hole.clone()
    faded = hole.clone()
    ramp = _distance_to_kept(inner, pixels + 1) / (pixels + 1)
    faded[..., rows, columns] = torch.minimum(inner, ramp.to(inner.dtype))
    return faded


def _around(hole: Tensor, margin: int) -> tuple[slice, slice]:
    """The rows and columns of all that is not 0, with a margin: the rest of a large photo need not be looked at."""
    painted = (hole != 0).flatten(0, -3).any(0) if hole.dim() > 2 else hole != 0
    slices = []
    for other, size in ((1, painted.shape[0]), (0, painted.shape[1])):
        where = painted.any(other).nonzero()
        low, high = (int(where[0]), int(where[-1])) if len(where) else (0, -margin - 1)
        slices.append(slice(max(low - margin, 0), max(min(high + margin + 1, size), 0)))
    return slices[0], slices[1]


def _largest_within(values: Tensor, radius: int) -> Tensor:
    """The largest value in the disc around each pixel: rows of the disc from its poles to its equator, ever wider."""
    height, width = values.shape[-2:]
    radius = min(radius, height + width)  # more than all of it is no more
    wide, reach, found = values.clone(), 0, values.clone()
    for dy in range(radius, -1, -1):
        half = math.isqrt(radius * radius - dy * dy)
        for dx in range(reach + 1, min(half, width - 1) + 1):
            torch.maximum(wide[..., dx:], values[..., :-dx], out=wide[..., dx:])
            torch.maximum(wide[..., :-dx], values[..., dx:], out=wide[..., :-dx])
        reach = max(reach, half)
        if dy == 0:
            torch.maximum(found, wide, out=found)
        elif dy < height:
            torch.maximum(found[..., dy:, :], wide[..., :-dy, :], out=found[..., dy:, :])
            torch.maximum(found[..., :-dy, :], wide[..., dy:, :], out=found[..., :-dy, :])
    return found


def _distance_to_kept(hole: Tensor, most: int) -> Tensor:
    """To the nearest pixel that is exactly 0, from centre to centre; beyond ``most`` it is only said to be no less."""
    height, width = hole.shape[-2:]
    far, place = float(most), torch.arange(width, dtype=torch.float32, device=hole.device)
    kept = hole == 0
    before = torch.where(kept, place, -far - width).cummax(-1).values  # the last kept pixel of the row so far
    after = torch.where(kept, place, far + 2 * width).flip(-1).cummin(-1).values.flip(-1)
    squared = torch.minimum(place - before, after - place).clamp_(max=far).square_()
    nearest, further = squared.clone(), torch.empty_like(squared)
    for dy in range(1, min(most, height - 1) + 1):
        torch.add(squared, dy * dy, out=further)
        torch.minimum(nearest[..., dy:, :], further[..., :-dy, :], out=nearest[..., dy:, :])
        torch.minimum(nearest[..., :-dy, :], further[..., dy:, :], out=nearest[..., :-dy, :])
    return nearest.sqrt_()


# ---- Checks


def _said(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"shape {list(value.shape)} of {value.dtype}"
    return checks.shape_of(value) + (f" of {value.dtype}" if isinstance(value, Tensor) else "")


def _at_least(name: str, value: int, least: int) -> None:
    try:
        checks.at_least(name, value, least)
    except ValueError as error:
        raise ImageError(str(error)) from None


def _within(name: str, height: int, width: int, limit: int) -> None:
    if height < 1 or width < 1:
        raise ImageError(f"{name}: has {width} x {height} pixels; a picture needs at least one")
    if height * width > limit:
        raise ImageError(
            f"{name} has {width} x {height} pixels, more than the {limit:,} that are read (it could be a "
            "decompression bomb); make it smaller first, or allow more with limit="
        )


def _colours(x: Tensor, channels: tuple[int, ...] = (3,)) -> NDArray[np.float32]:
    """[3, H, W] from [3, H, W] or [1, 3, H, W]."""
    good = isinstance(x, Tensor) and x.is_floating_point() and x.dim() in (3, 4)
    if good and x.dim() == 4:
        good = x.shape[0] == 1
    if not good or x.shape[-3] not in channels or 0 in x.shape:
        raise ImageError(f"x must be a floating-point tensor [3, H, W] or [1, 3, H, W] in [-1, 1], got {_said(x)}")
    array: NDArray[np.float32] = x.detach().to("cpu", torch.float32).reshape(x.shape[-3:]).numpy()
    return array


def _hole_array(name: str, hole: Tensor, *, any_batch: bool = False) -> NDArray[np.float32]:
    """[H, W] from [H, W], [1, H, W] or [1, 1, H, W], its values in [0, 1]; ``any_batch``: only checked."""
    good = isinstance(hole, Tensor) and hole.dim() >= 2 and hole.numel() > 0
    good = good and (hole.is_floating_point() or (hole.dtype == torch.bool and not any_batch))
    if not good or not (any_batch or (hole.dim() <= 4 and hole.shape[:-2].numel() == 1)):
        raise ImageError(
            f"{name} must be a tensor [1, H, W] in [0, 1], floating point (1: repaint, 0: keep), got {_said(hole)}"
        )
    low, high = (float(value) for value in torch.aminmax(hole.detach()))
    if not (low >= 0.0 and high <= 1.0):  # also for NaN
        hint = "; divide by 255?" if 1.0 < high <= 255.0 and low >= 0.0 else ""
        raise ImageError(f"{name} must lie in [0, 1] (1: repaint, 0: keep), got values from {low:g} to {high:g}{hint}")
    if any_batch:
        return np.empty(0, np.float32)
    array: NDArray[np.float32] = hole.detach().to("cpu", torch.float32).reshape(hole.shape[-2:]).numpy()
    return array
