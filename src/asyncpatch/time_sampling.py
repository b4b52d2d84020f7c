"""Training time fields: which noise levels the network sees together (paper, section 3.1 and appendix C).

    (1)  Global       t ~ U(t_min, t_max), one per picture: ordinary diffusion
    (2)  Independent  t_i ~ U(t_min, t_max), one per pixel
    (3)  Patchwise    t_i ~ U(t_min, t_max), one per patch, the patch side drawn per picture
    (4)  Perlin       t m + (1 - m) b, with m a thresholded Perlin mask and b in {0, 1} by a fair coin
    (5)  AsyncPatch   mean ~ U(t_min, t_max), delta = min(mean - t_min, t_max - mean, max_delta),
                      t_i ~ U(mean - delta, mean + delta), one per patch
    (6)  Mixture      of any of these

Under (5) with t_min = 0, t_max = 1 the time of any one token has the density -log(t (1-t)) / 2: it is *not*
uniform but favours both ends (see docs/deviations.md).

``sample`` never reads a value back from the device, so a GPU is never waited for. Patch sides are therefore
not drawn but *dealt*: each side to equally many pictures, then shuffled. Any one picture's side is uniform,
and a batch sees them all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from asyncpatch import checks, fields

Device = torch.device | str | None


class TimeSampler(ABC):
    """Draws the time fields of a training batch."""

    def sample(
        self, batch: int, height: int, width: int, *, generator: torch.Generator | None = None, device: Device = None
    ) -> Tensor:
        """Time fields [batch, 1, height, width], float32, in [0, 1]."""
        for name, value in (("batch", batch), ("height", height), ("width", width)):
            checks.at_least(name, value)
        where = torch.device(device) if device is not None else generator.device if generator else None
        return self._sample(batch, height, width, generator, where).unsqueeze(1)

    @abstractmethod
    def _sample(
        self, batch: int, height: int, width: int, generator: torch.Generator | None, device: torch.device | None
    ) -> Tensor:
        """Time fields [batch, height, width]."""


@dataclass(frozen=True, kw_only=True)
class _Ranged(TimeSampler):
    """Times between ``t_min`` and ``t_max``."""

    t_min: float = 0.0
    t_max: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.t_min < self.t_max <= 1.0:
            raise ValueError(f"t_min and t_max must satisfy 0 <= t_min < t_max <= 1, got {self.t_min}, {self.t_max}")

    def _scale(self, uniform: Tensor) -> Tensor:
        return uniform.mul_(self.t_max - self.t_min).add_(self.t_min)


@dataclass(frozen=True, kw_only=True)
class Global(_Ranged):
    """One time per picture: the baseline that ordinary diffusion trains with."""

    def _sample(
        self, batch: int, height: int, width: int, generator: torch.Generator | None, device: torch.device | None
    ) -> Tensor:
        t = self._scale(torch.rand(batch, 1, 1, generator=generator, device=device))
        return t.repeat(1, height, width)


@dataclass(frozen=True, kw_only=True)
class Independent(_Ranged):
    """One time per pixel. Nearly every field has a mean of 1/2, which is why this trains badly."""

    def _sample(
        self, batch: int, height: int, width: int, generator: torch.Generator | None, device: torch.device | None
    ) -> Tensor:
        return self._scale(torch.rand(batch, height, width, generator=generator, device=device))


@dataclass(frozen=True, kw_only=True)
class Patchwise(_Ranged):
    """One time per patch.

    ``patch_sizes`` are the sides, in pixels, that a picture's patches may have; one listed twice is twice as likely.
    By default they are the powers of two from one pixel to the whole picture (whatever its shape).
    """

    patch_sizes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.patch_sizes is not None:
            if not self.patch_sizes:
                raise ValueError("patch_sizes must name at least one side, got an empty tuple")
            for size in self.patch_sizes:
                checks.at_least("each of patch_sizes", size)

    def _patches(self, uniform: Tensor, generator: torch.Generator | None) -> Tensor:
        """Times of the patches, [B, rows, columns], from U(0, 1) values of that shape (which it may overwrite)."""
        return self._scale(uniform)

    def _sample(
        self, batch: int, height: int, width: int, generator: torch.Generator | None, device: torch.device | None
    ) -> Tensor:
        sizes = self.patch_sizes or fields.powers_of_two(height, width)
        each = -(-batch // len(sizes))  # rounded up: a few fields more than asked are dealt, shuffled and dropped
        dealt = []
        for size in sizes:
            rows, columns = fields.patch_grid(height, width, size)
            uniform = torch.rand(each, rows, columns, generator=generator, device=device)
            dealt.append(fields.spread(self._patches(uniform, generator), size, height, width))
        shuffled = torch.randperm(each * len(sizes), generator=generator, device=device)[:batch]
        return torch.cat(dealt).index_select(0, shuffled)


@dataclass(frozen=True, kw_only=True)
class AsyncPatch(Patchwise):
    """The paper's sampler: the mean of the field is drawn first, then patches around it.

    ``max_delta`` bounds how far a patch may lie from that mean: 0 gives ordinary diffusion, the paper's 0.5 (or more)
    the widest spread that the mean allows.
    """

    max_delta: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fraction("max_delta", self.max_delta)

    def _patches(self, uniform: Tensor, generator: torch.Generator | None) -> Tensor:
        mean = self._scale(torch.rand(len(uniform), 1, 1, generator=generator, device=uniform.device))
        delta = torch.minimum(mean - self.t_min, self.t_max - mean).clamp_(0.0, self.max_delta)
        t = uniform.mul_(2.0 * delta).add_(mean - delta)
        return t.clamp_(self.t_min, self.t_max)  # rounding may step outside


@dataclass(frozen=True, kw_only=True)
class Perlin(_Ranged):
    """Noise in blobs, as RAD trains with: inside a Perlin mask any time, outside all clean or all noise.

    ``times`` settles what the paper leaves open: one time per ``"pixel"`` of the mask (its comment) or one per
    ``"picture"`` (RAD). The share of the picture that the mask covers is uniform on [0, 1]. The background is
    exactly 0 or exactly 1, whatever ``t_min`` and ``t_max``: that is what inpainting will show the network.
    """

    times: Literal["pixel", "picture"] = "pixel"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.times not in ("pixel", "picture"):
            raise ValueError(f"times must be 'pixel' or 'picture', got {self.times!r}")

    def _sample(
        self, batch: int, height: int, width: int, generator: torch.Generator | None, device: torch.device | None
    ) -> Tensor:
        def uniform(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator, device=device)

        cell = 1.0 + (max(height, width) - 1.0) * uniform(batch)
        noise = fields.perlin(batch, height, width, cell, generator=generator)
        # a random pixel's noise is a uniformly drawn order statistic: what lies below it is a uniform share of the
        # picture
        pixel = torch.randint(height * width, (batch, 1), generator=generator, device=device)
        inside = noise <= noise.flatten(1).gather(1, pixel)[:, :, None]
        background = (uniform(batch, 1, 1) < 0.5).float()
        t = self._scale(uniform(batch, height, width) if self.times == "pixel" else uniform(batch, 1, 1))
        return torch.where(inside, t, background)


@dataclass(frozen=True)
class Mixture(TimeSampler):
    """Each picture's field from one of ``samplers``, chosen with probabilities proportional to ``weights``.

    ``Mixture((AsyncPatch(), Perlin(times="picture")), (0.8, 0.2))`` covers small holes, which AsyncPatch alone
    hardly sees.
    """

    samplers: tuple[TimeSampler, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samplers or len(self.samplers) != len(self.weights):
            raise ValueError(
                "samplers and weights must be equally many and not empty, "
                f"got {len(self.samplers)} and {len(self.weights)}"
            )
        if min(self.weights) < 0 or not 0 < sum(self.weights) < float("inf"):
            raise ValueError(f"weights must not be negative and must have a positive sum, got {self.weights}")

    def _sample(
        self, batch: int, height: int, width: int, generator: torch.Generator | None, device: torch.device | None
    ) -> Tensor:
        pick = torch.rand(batch, 1, 1, generator=generator, device=device).mul_(sum(self.weights))
        edge = self.weights[0]
        t = self.samplers[0]._sample(batch, height, width, generator, device)
        for sampler, weight in zip(self.samplers[1:], self.weights[1:], strict=True):
            t = torch.where(pick < edge, t, sampler._sample(batch, height, width, generator, device))
            edge += weight
        return t


def evenly(sampler: TimeSampler, t: Tensor) -> Tensor:
    """The sampler's times moved, in their order, so that each token's are uniform on [0, 1]: t goes to its share below.

    Known for samplers over [0, 1] whose marginal is: Global, Independent and Patchwise are uniform already, and of
    AsyncPatch the density is -log(t (1 - t)) / 2.
    """
    if type(sampler) in (Global, Independent, Patchwise) and (sampler.t_min, sampler.t_max) == (0.0, 1.0):  # type: ignore[attr-defined]
        return t
    if sampler == AsyncPatch():
        return t - 0.5 * (torch.xlogy(t, t) - torch.xlogy(1.0 - t, 1.0 - t))
    raise ValueError(
        "training for likelihood needs times that can be spread evenly: global, independent, patchwise or asyncpatch"
    )


def by_name(text: str) -> TimeSampler:
    """A sampler from words: one name, or a mixture such as ``0.8 asyncpatch + 0.2 perlin-picture``."""
    known: dict[str, TimeSampler] = {
        "global": Global(),
        "independent": Independent(),
        "patchwise": Patchwise(),
        "perlin": Perlin(),
        "perlin-picture": Perlin(times="picture"),
        "asyncpatch": AsyncPatch(),
    }
    samplers, weights = [], []
    for part in text.split("+"):
        *weight, name = part.split() or [""]
        if name not in known or len(weight) > 1:
            raise ValueError(
                f"time fields must be of {', '.join(known)}, or a mixture '0.8 NAME + 0.2 NAME'; got {text!r}"
            )
        try:
            weights.append(float(weight[0]) if weight else 1.0)
        except ValueError:
            raise ValueError(f"the weight of {name} must be a number, got {weight[0]!r}") from None
        samplers.append(known[name])
    return samplers[0] if len(samplers) == 1 else Mixture(tuple(samplers), tuple(weights))
