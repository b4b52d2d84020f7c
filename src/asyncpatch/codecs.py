"""Between pictures and what a denoiser works on: pixels themselves, or the latents of an autoencoder.

A *token* is what has a time of its own: a pixel, or a latent, which stands for a square of ``factor`` pixels across.
Everything that samples works on tokens; holes, boxes, windows and scales are those of pictures. With m the hole, 1
where nothing is known of a picture:

    (1)  e = (E(x, m) - mean) / std                 nothing of the hole gets in
    (2)  x = D(mean + std e)
    (3)  tau_j = max of t over the square of j      and over those of its neighbours up to ``border`` away

By (3) a token of which any pixel is to be made is made; and so are those beside it that see the hole.

Pixels that are known are put back in the end. Those beside them came out of D, which is not exact, and of tokens that
were made anew; by how much the known ones are missed there, d = x - D(...), is made up for near them too, or there
would be an edge. With k = 1 - m and blurs B over about two tokens, half of that, and so on to the next pixels, each of
which mends what the one before has left, nearer to what is known:

    (4)  D + c,   c <- c + min(1, w B k) (B(k d) / B k - c),   c = 0 at first             in the hole

with w such that c is all made up for right beside a straight border.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from asyncpatch import checks

TILE = 448
"""Pixels across what is encoded or decoded at a time, beside a rim: all of a large picture would take gigabytes."""
_AT_ONCE = {"cpu": 1 << 18, "cuda": 1 << 20}
"""Pixels of pictures that are encoded or decoded together: at 4 KB each a gigabyte, and four of a GPU's."""


class Codec(Protocol):
    """From pictures to tokens and back. Pictures may have any size, and where ``wrap`` is said opposite edges meet."""

    @property
    def factor(self) -> int:
        """Pixels across a token."""
        ...

    @property
    def channels(self) -> int:
        """Numbers of a token."""
        ...

    @property
    def levels(self) -> bool:
        """Whether tokens of pictures with 256 levels have as many."""
        ...

    def encode(self, x: Tensor, hole: Tensor, *, wrap: bool = False) -> Tensor:
        """Tokens [B, d, h, w] of pictures x [B, C, H, W]; ``hole`` [B, 1, H, W] is above 0 where nothing is known."""
        ...

    def decode(self, e: Tensor, size: tuple[int, int], *, wrap: bool = False) -> Tensor:
        """Pictures of that height and width."""
        ...

    def tokens(self, t: Tensor, *, wrap: bool = False) -> Tensor:
        """Times of tokens [B, 1, h, w] from those of pixels [B, 1, H, W]."""
        ...

    def pixels(self, field: Tensor, size: tuple[int, int]) -> Tensor:
        """A field of tokens [B, ?, h, w] as one of pixels."""
        ...

    def join(self, made: Tensor, given: Tensor, hole: Tensor, *, wrap: bool = False) -> Tensor:
        """Pictures as they were decoded where ``hole`` [B, 1, H, W] is above 0, and as they were given elsewhere."""
        ...


class Pixels:
    """Tokens are pixels."""

    factor, channels, levels = 1, 3, True

    def encode(self, x: Tensor, hole: Tensor, *, wrap: bool = False) -> Tensor:
        return x

    def decode(self, e: Tensor, size: tuple[int, int], *, wrap: bool = False) -> Tensor:
        return e

    def tokens(self, t: Tensor, *, wrap: bool = False) -> Tensor:
        return t

    def pixels(self, field: Tensor, size: tuple[int, int]) -> Tensor:
        return field

    def join(self, made: Tensor, given: Tensor, hole: Tensor, *, wrap: bool = False) -> Tensor:
        return torch.where(hole > 0, made, given)


PIXELS = Pixels()


class Coder(Protocol):
    """An autoencoder, such as ``models.autoencoder.Autoencoder``."""

    @property
    def factor(self) -> int: ...

    @property
    def reach(self) -> int:
        """Pixels beyond a token's own, at most, that change it or that it changes."""
        ...

    def encode(self, x: Tensor, hole: Tensor) -> Tensor: ...

    def decode(self, e: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Latents:
    """Equations (1) to (4)."""

    coder: Coder
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Of each channel of the latents, so that tokens have mean 0 and variance 1."""
    border: int = 1
    levels: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(each > 0 for each in self.std):
            raise ValueError(f"mean and std must be one for each channel, std above 0; got {self.mean} and {self.std}")
        checks.at_least("border", self.border, 0)

    def told(self) -> dict[str, Any]:
        """All of it but the coder, for a file."""
        return {"mean": list(self.mean), "std": list(self.std), "border": self.border}

    @property
    def factor(self) -> int:
        return self.coder.factor

    @property
    def channels(self) -> int:
        return len(self.mean)

    def encode(self, x: Tensor, hole: Tensor, *, wrap: bool = False) -> Tensor:
        rim = self._rim(x.shape[2:], wrap)
        whole, missing = (self._filled_up(each, rim, wrap) for each in (x, (hole > 0).to(x.dtype).expand_as(x[:, :1])))
        height, width = (-(-side // self.factor) for side in x.shape[2:])
        coded = self._tiled(self.coder.encode, (whole, missing), self.factor, 1)
        e = _cut(coded, rim // self.factor, (height, width))
        mean, std = self._scale(e)
        return (e - mean) / std

    def decode(self, e: Tensor, size: tuple[int, int], *, wrap: bool = False) -> Tensor:
        mean, std = self._scale(e)
        rim = self._rim(size, wrap)
        whole = functional.pad(mean + std * e, [rim // self.factor] * 4, mode="circular") if rim else mean + std * e
        return _cut(self._tiled(self.coder.decode, (whole,), 1, self.factor), rim, size).clamp(-1.0, 1.0)

    def tokens(self, t: Tensor, *, wrap: bool = False) -> Tensor:
        most = functional.max_pool2d(t, self.factor, ceil_mode=True)
        if not self.border:
            return most
        sides = functional.pad(most, [self.border] * 4, mode="circular" if wrap else "constant")
        return functional.max_pool2d(sides, 2 * self.border + 1, stride=1)

    def pixels(self, field: Tensor, size: tuple[int, int]) -> Tensor:
        return _cut(functional.interpolate(field.float(), scale_factor=self.factor), 0, size)

    def join(self, made: Tensor, given: Tensor, hole: Tensor, *, wrap: bool = False) -> Tensor:
        known = (hole <= 0).to(made.dtype)
        missed = known * (given - made)
        added = torch.zeros_like(made)
        for radius, times in self._blurs():
            weight = 2.0 if times > 1 else 3.0  # 1 beside a straight border
            near = _blurred(known, radius, times, wrap)
            mean = _blurred(missed, radius, times, wrap) / near.clamp_min(1e-6)
            added = added + (weight * near).clamp_max(1.0) * (mean - added)
        return torch.where(hole > 0, (made + added).clamp(-1.0, 1.0), given)

    def _blurs(self) -> Iterator[tuple[int, int]]:
        """The radii of boxes, and how many of them one after the other: from about two tokens to the next pixels."""
        radius = 2 * self.factor
        while radius:
            yield radius, 2
            radius //= 2
        yield 1, 1

    def _scale(self, e: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = (  # by way of the CPU, so that nothing waits for a GPU
            torch.tensor(each, dtype=e.dtype).view(1, -1, 1, 1).to(e.device, non_blocking=True)
            for each in (self.mean, self.std)
        )
        return mean, std

    def _rim(self, size: tuple[int, ...], wrap: bool) -> int:
        """Pixels to lay on around a picture whose edges meet."""
        if not wrap:
            return 0
        if any(side % self.factor for side in size):
            raise ValueError(
                f"to be made tileable with this model, sides must divide by {self.factor}; got {size[1]}x{size[0]}"
            )
        return min(self._far * self.factor, *size)

    @property
    def _far(self) -> int:
        """The coder's reach, in tokens."""
        return -(-self.coder.reach // self.factor)

    def _tiled(self, run: Callable[..., Tensor], given: tuple[Tensor, ...], into: int, out: int) -> Tensor:
        """What ``run`` makes of fields [B, ?, H, W], by parts, each with all that changes it around; for every token
        ``into`` of their numbers across go in, and ``out`` come out."""
        height, width = (side // into for side in given[0].shape[2:])
        side = TILE // self.factor
        most = _AT_ONCE.get(given[0].device.type, _AT_ONCE["cpu"])
        rows = max(1, most // (min(height, side) * min(width, side) * self.factor**2))

        def tile(top: int, left: int) -> Tensor:
            above, before = max(0, top - self._far), max(0, left - self._far)
            below, after = min(height, top + side + self._far), min(width, left + side + self._far)
            seen = [each[..., above * into : below * into, before * into : after * into] for each in given]
            made = torch.cat([run(*some) for some in zip(*(torch.split(each, rows) for each in seen), strict=True)])
            down, across = min(top + side, height), min(left + side, width)
            return made[
                ..., (top - above) * out : (down - above) * out, (left - before) * out : (across - before) * out
            ]

        lines = [torch.cat([tile(top, k) for k in range(0, width, side)], 3) for top in range(0, height, side)]
        return torch.cat(lines, 2)

    def _filled_up(self, x: Tensor, rim: int, wrap: bool) -> Tensor:
        """With a rim, or with its last pixels repeated until tokens are whole."""
        if wrap:
            return functional.pad(x, [rim] * 4, mode="circular")
        return functional.pad(x, (0, -x.shape[3] % self.factor, 0, -x.shape[2] % self.factor), mode="replicate")


def _blurred(field: Tensor, radius: int, times: int, wrap: bool) -> Tensor:
    for _ in range(times):
        sides = functional.pad(field, [radius] * 4, mode="circular" if wrap else "replicate")
        field = functional.avg_pool2d(sides, 2 * radius + 1, stride=1)
    return field


def _cut(field: Tensor, rim: int, size: tuple[int, int]) -> Tensor:
    return field[..., rim : rim + size[0], rim : rim + size[1]]
