"""Pictures into files: whole or not at all, and never over an input."""

from __future__ import annotations

import io
import os
import secrets
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from PIL import ExifTags, Image, TiffImagePlugin
from PIL.PngImagePlugin import PngInfo

from asyncpatch.images.picture import (
    ImageError,
    Picture,
    over_white,
    rounded_to_8,
    to_pil,
)

WRITABLE = {".png": "PNG", ".webp": "WEBP", ".tif": "TIFF", ".tiff": "TIFF", ".jpg": "JPEG", ".jpeg": "JPEG"}
"""The suffixes that are written, and as what."""

_SRGB = {
    b"gAMA": struct.pack(">I", 45455),
    b"cHRM": struct.pack(">8I", 31270, 32900, 64000, 33000, 30000, 60000, 15000, 6000),
    b"cICP": b"\x01\x0d\x00\x01",
}
"""The chunks of a PNG that say no more than what is taken for granted where nothing is said."""

_LARGEST = {"WEBP": 16383, "JPEG": 65500}  # pixels of a side, by the formats' own headers


def check_target(
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    inputs: Iterable[str | os.PathLike[str]] = (),
    suffixes: Iterable[str] = tuple(WRITABLE),
    parents: bool = False,
) -> None:
    """Raises the ImageError that `write` would raise for this path: to be asked before the work, not after.
    ``parents``: folders that are missing will have been made."""
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
        folder = path.parent
        while parents and not folder.exists() and folder != folder.parent:
            folder = folder.parent
        if not folder.is_dir():
            raise ImageError(f"{path}: there is no folder {folder}; make it first")
        if not os.access(folder, os.W_OK):
            raise ImageError(f"{path}: cannot be written: you may not write into {folder}")
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
    text: Mapping[str, str] = MappingProxyType({}),
) -> tuple[str, ...]:
    """Writes a picture in the format that the suffix says, and returns notes on what the format could not keep.

    PNG, WebP and TIFF are lossless here: every level comes back as it was. PNG keeps 16 bits of everything, TIFF of
    opaque grey, WebP of nothing; the rest is rounded to 8 bits. JPEG, at quality 95 and full
    colour resolution, **cannot keep pixels exact**, and has no transparency (it is laid over white). Profile, EXIF and
    resolution are kept where the format has a place for them. A PNG's chunks on its colours, and ``text``, notes by
    their keys, go into PNG alone.

    An existing file is overwritten only with ``force``, and one of ``inputs`` never. The file is written under
    another name in the same folder and then renamed: nobody ever sees half of it.
    """
    path, inputs = Path(path), tuple(inputs)
    check_target(path, force=force, inputs=inputs)
    data, notes = _encoded(picture, WRITABLE[path.suffix.lower()], str(path), text)
    write_bytes(data, path, lambda: check_target(path, force=force, inputs=inputs))
    return notes


def numbered(path: Path, count: int) -> list[Path]:
    """The names of so many pictures instead of one."""
    digits = len(str(count))
    return [path.with_name(f"{path.stem}-{k:0{digits}d}{path.suffix}") for k in range(1, count + 1)]


def png_of(picture: Picture, text: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """The bytes of the PNG that `write` would write."""
    return _encoded(picture, "PNG", "the picture", text)[0]


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


def _encoded(picture: Picture, kind: str, name: str, text: Mapping[str, str]) -> tuple[bytes, tuple[str, ...]]:
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
            picture = over_white(picture)
    if picture.bits == 16 and not (kind == "PNG" or (kind == "TIFF" and picture.grey and picture.alpha is None)):
        notes.append(f"16 bits were rounded to 8, which is what {kind} can hold here; write a .png to keep 16")
        picture = rounded_to_8(picture)
    profile, exif = picture.profile, picture.exif
    space = profile[16:20] if profile else b""
    grey = picture.grey and kind != "WEBP"
    if space == b"CMYK" or (space == b"GRAY" and not grey):
        notes.append("the colour profile is for another kind of colours, and was left out")
        profile = None
    chunks = tuple(each for each in picture.chunks if not (profile and each[0] == b"sRGB"))  # a PNG has one of the two
    if kind != "PNG":
        told = profile or any(chunk == b"sRGB" for chunk, _ in chunks)  # then the others but repeat it, cICP overrules
        lost = [chunk for chunk, body in chunks if _SRGB.get(chunk, body) != body and (chunk == b"cICP" or not told)]
        if lost:
            notes.append(
                f"{kind} has no place for what the PNG says of its colours ({b', '.join(lost).decode()}), so that they "
                "may look different; write a .png to keep it"
            )
    dpi = picture.dpi
    if dpi and kind == "WEBP":  # which has no other place for it
        exif, dpi = _with_resolution(exif, dpi), None
    if dpi and kind == "JPEG" and max(dpi) > 65535:
        notes.append("the resolution is too high for JPEG, and was left out")
        dpi = None
    if exif and kind == "JPEG" and len(exif) > 65533:
        notes.append("the EXIF block is too long for JPEG, and was left out")
        exif = None
    if kind == "PNG" and picture.bits == 16:
        return _with_chunks(_png_of_16_bits(picture, profile, exif, text), chunks), tuple(notes)
    options: dict[str, Any] = {"icc_profile": profile}
    if exif:
        options["exif"] = exif
    if dpi:
        options["dpi"] = dpi
    if kind == "PNG" and text:
        options["pnginfo"] = PngInfo()
        for key, value in text.items():
            options["pnginfo"].add_itxt(key, value)
    if kind == "JPEG":
        options |= {"quality": 95, "subsampling": 0}
    elif kind == "WEBP":
        options |= {"lossless": True, "exact": True}  # exact: also the colours of what is transparent
    elif kind == "TIFF" and not exif:
        options["compression"] = "tiff_adobe_deflate"  # libtiff cannot write EXIF: with it, pixels stay uncompressed
    file = io.BytesIO()
    try:
        to_pil(picture).save(file, kind, **options)
    except (OSError, ValueError, TypeError, RuntimeError, OverflowError, MemoryError, struct.error) as error:
        raise ImageError(f"{name}: cannot be written as {kind}: {error}") from error
    return _with_chunks(file.getvalue(), chunks) if kind == "PNG" else file.getvalue(), tuple(notes)


def _with_resolution(exif: bytes | None, dpi: tuple[float, float]) -> bytes:
    """An EXIF block that says it too."""
    tags = Image.Exif()
    if exif:
        tags.load(exif)
    for tag, value in zip((ExifTags.Base.XResolution, ExifTags.Base.YResolution), dpi, strict=True):
        tags[tag] = TiffImagePlugin.IFDRational(Fraction(value).limit_denominator(10_000))
    tags[ExifTags.Base.ResolutionUnit] = 2  # per inch
    return tags.tobytes()


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def _with_chunks(png: bytes, chunks: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """They follow the header, which is 33 bytes long. (Not all Pillows that are served write cICP.)"""
    return png[:33] + b"".join(_chunk(*each) for each in chunks) + png[33:] if chunks else png


def _png_of_16_bits(
    picture: Picture, profile: bytes | None, exif: bytes | None, text: Mapping[str, str]
) -> bytes:  # fmt: skip
    """A PNG by hand: Pillow writes 16 bits of grey alone."""
    levels = picture.levels if picture.alpha is None else np.dstack([picture.levels, picture.alpha])
    kind = {1: 0, 2: 4, 3: 2, 4: 6}[levels.shape[2]]
    # each row as its difference from the one above (filter 2): smaller, and simple in whole bytes
    rows = levels.astype(">u2").reshape(picture.height, -1).view(np.uint8)
    filtered = np.full((picture.height, rows.shape[1] + 1), 2, np.uint8)
    filtered[0, 1:], filtered[1:, 1:] = rows[0], rows[1:] - rows[:-1]
    parts = [
        b"\x89PNG\r\n\x1a\n",
        _chunk(b"IHDR", struct.pack(">IIBBBBB", picture.width, picture.height, 16, kind, 0, 0, 0)),
    ]
    if profile:
        parts.append(_chunk(b"iCCP", b"ICC Profile\0\0" + zlib.compress(profile)))
    if picture.dpi:
        across, down = (round(each / 0.0254) for each in picture.dpi)  # pixels per metre
        parts.append(_chunk(b"pHYs", struct.pack(">IIB", across, down, 1)))
    if exif:
        parts.append(_chunk(b"eXIf", exif.removeprefix(b"Exif\0\0")))
    for key, value in text.items():
        parts.append(_chunk(b"iTXt", key.encode("latin-1") + bytes(5) + value.encode()))
    packed = zlib.compress(filtered.tobytes())
    step = 1 << 30  # a chunk holds less than 2 GiB
    parts += [_chunk(b"IDAT", packed[start : start + step]) for start in range(0, len(packed), step)]
    return b"".join([*parts, _chunk(b"IEND", b"")])
