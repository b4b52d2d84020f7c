"""A picture in the levels of its file, with all that a result must keep."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from asyncpatch import checks

PIXELS = 200_000_000
"""The most pixels a picture may have, unless told otherwise: its tensor ``x`` takes 12 bytes for each."""

Levels = NDArray[Any]
"""uint8 or uint16, as in the file."""

LUMA = np.array([0.299, 0.587, 0.114], np.float32)


class ImageError(ValueError):
    """A picture or mask that cannot be read, used or written. The message is meant for the user."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Picture:
    """A picture in its own levels, upright, with all that a result must keep. Made by `read_picture`, `picture_from`.

    Attributes:
        levels: [H, W, 1] (grey) or [H, W, 3] (RGB), uint8 or uint16.
        alpha: [H, W] of the same type, the full value where the picture is opaque; None where it has no transparency.
        profile: the ICC profile.
        exif: the EXIF block, without orientation (the pixels are upright) and without thumbnail.
        dpi: pixels per inch across and down.
        chunks: what a PNG says of its colours besides a profile (gAMA, cHRM, sRGB, cICP): names and bodies of chunks.
        notes: what reading could not keep, in sentences.
        name: what errors call it.
    """

    levels: Levels = field(repr=False)
    alpha: Levels | None = field(default=None, repr=False)
    profile: bytes | None = field(default=None, repr=False)
    exif: bytes | None = field(default=None, repr=False)
    dpi: tuple[float, float] | None = None
    chunks: tuple[tuple[bytes, bytes], ...] = field(default=(), repr=False)
    notes: tuple[str, ...] = ()
    name: str = "the picture"

    def __post_init__(self) -> None:
        levels, alpha = self.levels, self.alpha
        if levels.dtype not in (np.uint8, np.uint16) or levels.ndim != 3 or levels.shape[2] not in (1, 3):
            raise ImageError(f"levels must be uint8 or uint16 [H, W, 1 or 3], got {described(levels)}")
        if 0 in levels.shape:
            raise ImageError(f"{self.name}: a picture needs at least one pixel, got {described(levels)}")
        if alpha is not None and (alpha.dtype != levels.dtype or alpha.shape != levels.shape[:2]):
            raise ImageError(
                f"alpha must be {levels.dtype} {list(levels.shape[:2])} like levels, got {described(alpha)}"
            )
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
        new = colours_of(x)
        inside = hole_array("hole", hole) > 0.0
        if inside.shape != new.shape[1:]:
            raise ImageError(f"hole must have the height and width of x, {list(new.shape[1:])}, got {described(hole)}")
        if at is None and inside.shape != self.size:
            raise ImageError(
                f"x must have the height and width of {self.name}, {list(self.size)}, got {described(x)}; "
                "for a window of it say where it lies: at=(top, left)"
            )
        rows, columns = self._box("x", *(at or (0, 0)), *inside.shape)
        values = new[:, inside].T  # [pixels, 3]
        if not np.isfinite(values).all():
            raise ImageError(f"x holds values in the hole that are not finite ({self.name}): nothing was painted")
        if self.grey:
            values = (values @ LUMA)[:, None]
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
            require(name, side, 0)
        if not left + top + right + bottom:
            raise ImageError("nothing to extend: left, top, right and bottom are all 0; at least one must be more")
        height, width = self.height + top + bottom, self.width + left + right
        require_pixels(f"{self.name}, extended,", height, width, limit)
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

        Pillow has nothing else of 16 bits: there the picture is rounded to 8. `write` keeps all 16, and ``chunks``.
        """
        image = to_pil(self if self.bits == 8 or (self.grey and self.alpha is None) else rounded_to_8(self))
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
            require(side, value, least)
        if top + height > self.height or left + width > self.width:
            raise ImageError(
                f"{name} must lie within {self.name} of height {self.height} and width {self.width}; got height "
                f"{height} and width {width} at top={top}, left={left}"
            )
        return slice(top, top + height), slice(left, left + width)


def to_pil(picture: Picture) -> Image.Image:
    levels = picture.levels if picture.alpha is None else np.dstack([picture.levels, picture.alpha])
    return Image.fromarray(np.ascontiguousarray(levels[..., 0] if levels.shape[2] == 1 else levels))


def rounded_to_8(picture: Picture) -> Picture:
    """Rounded to 8 bits."""
    if picture.bits == 8:
        return picture
    levels, alpha = (
        None if array is None else ((array.astype(np.uint32) + 128) // 257).astype(np.uint8)
        for array in (picture.levels, picture.alpha)
    )
    assert levels is not None
    return replace(picture, levels=levels, alpha=alpha)


def over_white(picture: Picture) -> Picture:
    assert picture.alpha is not None
    opaque = picture.alpha[..., None].astype(np.float32) / picture.full
    levels = picture.levels * opaque + (1.0 - opaque) * picture.full
    return replace(picture, levels=levels.round().astype(picture.levels.dtype), alpha=None)


def described(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"shape {list(value.shape)} of {value.dtype}"
    return checks.shape_of(value) + (f" of {value.dtype}" if isinstance(value, Tensor) else "")


def require(name: str, value: int, least: int) -> None:
    try:
        checks.at_least(name, value, least)
    except ValueError as error:
        raise ImageError(str(error)) from None


def require_pixels(name: str, height: int, width: int, limit: int) -> None:
    if height < 1 or width < 1:
        raise ImageError(f"{name}: has {width} x {height} pixels; a picture needs at least one")
    if height * width > limit:
        raise ImageError(
            f"{name} has {width} x {height} pixels, more than the {limit:,} that are read (it could be a "
            "decompression bomb): make it smaller first"
        )


def colours_of(x: Tensor, channels: tuple[int, ...] = (3,)) -> NDArray[np.float32]:
    """[3, H, W] from [3, H, W] or [1, 3, H, W]."""
    good = isinstance(x, Tensor) and x.is_floating_point() and x.dim() in (3, 4)
    if good and x.dim() == 4:
        good = x.shape[0] == 1
    if not good or x.shape[-3] not in channels or 0 in x.shape:
        raise ImageError(f"x must be a floating-point tensor [3, H, W] or [1, 3, H, W] in [-1, 1], got {described(x)}")
    array: NDArray[np.float32] = x.detach().to("cpu", torch.float32).reshape(x.shape[-3:]).numpy()
    return array


def hole_array(name: str, hole: Tensor, *, any_batch: bool = False) -> NDArray[np.float32]:
    """[H, W] from [H, W], [1, H, W] or [1, 1, H, W], its values in [0, 1]; ``any_batch``: only checked."""
    good = isinstance(hole, Tensor) and hole.dim() >= 2 and hole.numel() > 0
    good = good and (hole.is_floating_point() or (hole.dtype == torch.bool and not any_batch))
    if not good or not (any_batch or (hole.dim() <= 4 and hole.shape[:-2].numel() == 1)):
        raise ImageError(
            f"{name} must be a tensor [1, H, W] in [0, 1], floating point (1: repaint, 0: keep), got {described(hole)}"
        )
    low, high = (float(value) for value in torch.aminmax(hole.detach()))
    if not (low >= 0.0 and high <= 1.0):  # also for NaN
        hint = "; divide by 255?" if 1.0 < high <= 255.0 and low >= 0.0 else ""
        raise ImageError(f"{name} must lie in [0, 1] (1: repaint, 0: keep), got values from {low:g} to {high:g}{hint}")
    if any_batch:
        return np.empty(0, np.float32)
    array: NDArray[np.float32] = hole.detach().to("cpu", torch.float32).reshape(hole.shape[-2:]).numpy()
    return array
