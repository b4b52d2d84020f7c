"""What lies in picture files, arrays and Pillow pictures, before it is a picture or a mask: levels, and what goes with
them."""

from __future__ import annotations

import io
import math
import os
import stat
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin, UnidentifiedImageError

from asyncpatch.images.picture import (
    ImageError,
    described,
    require_pixels,
)

READABLE = ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF", "PPM", "AVIF", "JPEG2000", "QOI")
"""What is read. Not all that Pillow knows: some of its readers start other programs or have no signature."""

_ORIENTATION, _EXIF_PART, _GPS_PART, _INTEROP_PART = 0x0112, 0x8769, 0x8825, 0xA005
_ACROSS, _DOWN, _UNIT = 282, 283, 296
_PER_INCH = {2: 1.0, 3: 2.54}
_LENGTH, _BITS, _PHOTOMETRIC, _OFFSETS, _ROWS, _PLANAR = 257, 258, 262, 273, 278, 284
# Tags of a TIFF that say how its pixels are stored: no more true of the picture that is written. The resolution
# (282, 283, 296) and the profile (34675) travel by themselves, and a thumbnail would show what was painted over.
_STRUCTURE = (
    *range(254, 260), 262, 263, 266, _ORIENTATION, 273, 277, 278, 279, 282, 283, 284, 296, 301, 317, 318, 319, 320, 322,
    323, 324, 325, 330, 338, 339, 347, 513, 514, 529, 530, 531, 532, 34675,
)  # fmt: skip
# So would these tags; others do where they hold a JPEG.
_SHOWING = {700: "XMP", 34377: "Photoshop's resources", 37724: "Photoshop's layers"}
_JPEG = b"\xff\xd8\xff"
_SIZE = (0xA002, 0xA003)  # width and height, as they were before it was turned or extended
_TEXT = 1 << 26  # bytes of a PNG's text or profile, unpacked: Pillow would refuse more than one megabyte
_LOCK = threading.RLock()


class Decoded(NamedTuple):
    """What comes out of a file before it is a picture or a mask."""

    levels: NDArray[Any]  # [H, W, 1 or 3]; of a mask given as an array also float
    alpha: NDArray[Any] | None = None
    profile: bytes | None = None
    exif: bytes | None = None
    dpi: tuple[float, float] | None = None
    chunks: tuple[tuple[bytes, bytes], ...] = ()
    notes: tuple[str, ...] = ()
    unkept: tuple[str, ...] = ()  # notes on what a result will not have: a mask has none
    lossy: bool = False


def from_file(path: Path, limit: int, size: tuple[int, int] | None = None) -> Decoded:
    """What a file holds. One of a mask that cannot have the right ``size``, (height, width), is not unpacked."""
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
        return _decode(lambda: Image.open(file, formats=READABLE), str(path), limit, file, size)


def from_bytes(data: bytes, name: str, limit: int, size: tuple[int, int] | None = None) -> Decoded:
    """What the bytes of a file hold."""
    if not data:
        raise ImageError(f"{name}: the file is empty (0 bytes); get it anew")
    file = io.BytesIO(data)
    return _decode(lambda: Image.open(file, formats=READABLE), name, limit, file, size)


def from_pil(image: Image.Image, name: str, limit: int) -> Decoded:
    """What a Pillow picture holds."""
    return _decode(lambda: image, name, limit)


def _decode(
    source: Callable[[], Image.Image], name: str, limit: int, file: IO[bytes] | None = None,
    size: tuple[int, int] | None = None,
) -> Decoded:  # fmt: skip
    """``source`` gives the picture, with a ``file`` anew each time that it is called. A mask that cannot have the right
    ``size``, whichever way it is turned, is not unpacked."""
    notes: list[str] = []
    unkept: list[str] = []
    with guarded(name, limit, file) as said:
        image = source()
        require_pixels(name, image.height, image.width, limit)
        if size is not None and sorted(size) != sorted(image.size):
            same_size(name, (image.height, image.width), size)
        if image.format == "TIFF" and file is not None:
            _check_tiff(image, name)
        deep = _other_bytes(image) if file else None
        shallow = file is not None and deep is None and _deeper_than_read(image)
        spread = _spread(image) if file else 1
        turned = image.format == "TIFF" and _orientation(image) >= 5  # which Pillow does to it, not to its resolution
        image.load()
        exif, orientation = _exif(image, notes, unkept)
        key = image.info.get("transparency")
        if isinstance(key, int) and spread > 1:
            image.info["transparency"] = key = key * spread
        levels: NDArray[Any]
        alpha: NDArray[Any] | None
        if deep is not None:
            levels, alpha = _sixteen(image, source(), deep, key)
        else:
            levels, alpha = _unpacked(image, key, name, notes)
        if file is not None and image.format in ("GIF", "PNG", "WEBP", "TIFF", "AVIF", "MPO") and _is_animated(image):
            notes.append("it holds several pictures: the first one is used")
        if shallow:
            notes.append("it has more than 8 bits a colour, and was read at 8")
        profile = image.info.get("icc_profile") or None
        if image.mode in ("CMYK", "LAB"):
            profile = None
        lossy = image.format in ("JPEG", "MPO", "JPEG2000", "AVIF") or (
            image.format == "WEBP" and not (file is not None and _webp_is_lossless(file))
        )
        dpi = _dpi(image)
        chunks = _chunks(image, file)
    if dpi is not None and (turned or orientation >= 5):
        dpi = dpi[1], dpi[0]
    return Decoded(
        _upright(levels, orientation),
        None if alpha is None else _upright(alpha, orientation),
        profile if isinstance(profile, bytes) else None,
        exif,
        dpi,
        chunks,
        (*notes, *dict.fromkeys(str(each.message).strip() for each in said)),
        tuple(unkept),
        lossy,
    )


@contextmanager
def guarded(name: str, limit: int, file: IO[bytes] | None) -> Iterator[list[warnings.WarningMessage]]:
    """Whatever a decoder does with a hostile file, it is an ImageError. Its warnings are collected.

    Pillow's limits and the filters of warnings are the process's: one thread at a time is in here.
    """
    with _LOCK, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        before = Image.MAX_IMAGE_PIXELS, PngImagePlugin.MAX_TEXT_CHUNK
        Image.MAX_IMAGE_PIXELS = limit  # some readers allocate before the size can be looked at
        PngImagePlugin.MAX_TEXT_CHUNK = _TEXT
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
            Image.MAX_IMAGE_PIXELS, PngImagePlugin.MAX_TEXT_CHUNK = before


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
    tags = getattr(image, "tag_v2", {})
    bits = tags.get(_BITS, (16,))[0]
    if 8 < bits < 16:
        notes.append(f"levels of {bits} bits were scaled to 16")
        array = (array.astype(np.float64) * (65535.0 / ((1 << bits) - 1))).round()
    levels = array.astype(np.uint16)
    if tags.get(_PHOTOMETRIC) == 0:  # white is zero, which Pillow knows of 8 bits alone
        levels = 65535 - levels
    alpha = np.where(levels == key, 0, 65535).astype(np.uint16) if isinstance(key, int) else None
    return levels[..., None], alpha


def _raw_mode(tile: Any) -> Any:
    return tile.args if isinstance(tile.args, str) else tile.args[0] if tile.args else None


def _check_tiff(image: Image.Image, name: str) -> None:
    """Refuse what Pillow would read wrong without a word."""
    tags: Any = image.tag_v2  # type: ignore[attr-defined]
    planes = len(image.getbands()) if tags.get(_PLANAR) == 2 else 1
    if planes > 1 and max(tags.get(_BITS, (8,))) > 8:
        raise ImageError(f"{name}: its colours of 16 bits lie in planes of their own; save it interleaved, or as PNG")
    rows = tags[_LENGTH]
    if _OFFSETS in tags and len(tags[_OFFSETS]) < planes * -(-rows // min(tags.get(_ROWS, rows), rows)):
        raise ImageError(f"{name}: the file is damaged or cut short (rows are missing); get it anew")


def _spread(image: Image.Image) -> int:
    """By what Pillow multiplies levels of 2 and 4 bits, though not the one that is transparent."""
    raws = {_raw_mode(tile) for tile in getattr(image, "tile", ())} if image.format == "PNG" else set()
    return {"L;2": 85, "L;4": 17}.get(raws.pop(), 1) if len(raws) == 1 else 1


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


def _exif(image: Image.Image, notes: list[str], unkept: list[str]) -> tuple[bytes | None, int]:
    """What to keep of the EXIF block, and by which of its eight ways the picture is stored."""
    try:
        tags = image.getexif()
        if not len(tags):
            return None, 1
        orientation = _orientation(image)
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
                kept[part] = {tag: value for tag, value in tags.get_ifd(part).items() if tag not in _SIZE}
        showing = [what for tag, what in _SHOWING.items() if kept.pop(tag, None) is not None]
        for tags_of in (kept, *(kept[part] for part in (_EXIF_PART, _GPS_PART) if part in kept)):
            for tag, value in list(tags_of.items()):
                if isinstance(value, bytes) and _JPEG in value:
                    del tags_of[tag]
                    showing.append(_called(tag))
        if showing:
            unkept.append(f"left out, for it may show what is painted over: {', '.join(showing)}")
        if _INTEROP_PART in kept.get(_EXIF_PART, {}):
            kept[_EXIF_PART][_INTEROP_PART] = tags.get_ifd(_INTEROP_PART)
        return (kept.tobytes() if len(kept) else None), orientation
    except Exception:
        notes.append("its EXIF block is damaged and was left out")
        return None, orientation


def _called(tag: int) -> str:
    """A tag, in words."""
    return {0x927C: "the maker's note", 0x9286: "a comment"}.get(tag, f"the tag {tag:#06x}")


def _orientation(image: Image.Image) -> int:
    """By which of eight ways the picture is stored. (Of a TIFF Pillow says 1 when it has turned it, in loading.)"""
    try:
        found = image.getexif().get(_ORIENTATION, 1)
    except Exception:
        return 1
    return found if found in range(1, 9) else 1


def _upright(array: NDArray[Any], orientation: int) -> NDArray[Any]:
    """The way a viewer shows what is stored so. The tag says where the first row and the first column belong."""
    if orientation >= 5:  # rows are columns
        array = array.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        array = array[::-1]
    if orientation in (2, 3, 6, 7):
        array = array[:, ::-1]
    return array


def _dpi(image: Image.Image) -> tuple[float, float] | None:
    tags = getattr(image, "tag_v2", None)
    if tags is not None and not (_ACROSS in tags and _DOWN in tags):  # Pillow says 1 where a TIFF says nothing
        return None
    try:
        said = image.info.get("dpi")
        if said is None:  # WebP and AVIF have no other place for it
            exif = image.getexif()
            said = [float(exif[tag]) * _PER_INCH[exif.get(_UNIT, 2)] for tag in (_ACROSS, _DOWN)]
        across, down = (float(each) for each in said)
    except Exception:  # whatever stands there, or a damaged block, is no reason to refuse the pixels
        return None
    return (across, down) if all(math.isfinite(each) and 0 < each < 1e6 for each in (across, down)) else None


def _chunks(image: Image.Image, file: IO[bytes] | None) -> tuple[tuple[bytes, bytes], ...]:
    """See `Picture.chunks`. Pillow reads all but cICP; a text may have the name of any, but is a str."""
    gamma, primaries, intent = (image.info.get(key) for key in ("gamma", "chromaticity", "srgb"))
    found = []
    if isinstance(gamma, float):
        found.append((b"gAMA", struct.pack(">I", round(gamma * 100_000))))
    if isinstance(primaries, tuple) and len(primaries) == 8:
        found.append((b"cHRM", struct.pack(">8I", *(round(each * 100_000) for each in primaries))))
    if isinstance(intent, int):
        found.append((b"sRGB", bytes([intent])))
    if file is not None and image.format == "PNG" and (points := _cicp(file)):
        found.append((b"cICP", points))
    return tuple(found)


def _cicp(file: IO[bytes]) -> bytes | None:
    """The body of a PNG's chunk of that name, which comes before the pixels."""
    file.seek(8)
    for _ in range(1000):
        head = file.read(8)
        if len(head) < 8:
            return None
        length, name = struct.unpack(">I4s", head)
        if name == b"cICP" and length == 4:
            return file.read(length)
        if name == b"IDAT":
            return None
        file.seek(length + 4, os.SEEK_CUR)
    return None


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


def from_array(array: NDArray[Any], name: str, *, exactly: bool = False) -> Decoded:
    """Levels of an array; ``exactly``: without rounding floating-point values (a mask need not have 8 bits)."""
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 2, 3, 4) or 0 in array.shape:
        first = array.ndim == 3 and array.shape[0] in (1, 3, 4)
        hint = "; channels come last: use array.transpose(1, 2, 0)" if first else ""
        raise ImageError(
            f"{name} as an array must be [H, W], [H, W, 3] or with alpha [H, W, 4], got {described(array)}{hint}"
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
    return Decoded(array[..., :colours], array[..., colours] if array.shape[2] > colours else None)


def same_size(name: str, got: tuple[int, ...], size: tuple[int, int]) -> None:
    """Refuse a mask of another size than the photo's, (height, width)."""
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
