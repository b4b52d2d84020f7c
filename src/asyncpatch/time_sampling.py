"""Training time fields: which noise levels the network sees together (paper, section 3.1 and appendix C).

    (1)  Global       t ~ U(t_min, t_max), one per picture: ordinary diffusion
    (2)  Independent  t_i ~ U(t_min, t_max), one per pixel
    (3)  Patchwise    t_i ~ U(t_min, t_max), one per patch, the patch side drawn per picture
    (4)  Perlin       t m + (1 - m) b, with m a thresholded Perlin mask and b in {0, 1} by a fair coin
    (5)  AsyncPatch   mean ~ U(t_min, t_max), delta = min(mean - t_min, t_max - mean, max_delta),
                      t_i ~ U(mean - delta, mean + delta), one per patch
    (6)  PatchForcing low = 1 - sigmoid(0.7 + n), t_i = low + (1 - low) / 2 |n_i|, one per patch, n and n_i normal;
                      where that exceeds 1, t_i ~ U(low, 1)
    (7)  MeanBeta     mean ~ U(t_min, t_max); the patches' sum is split between halves of them, and so on down to one,
                      each time by a symmetric Beta over the range that is possible, then they are shuffled
    (8)  Mixture      of any of these

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
class PatchForcing(Patchwise):
    """The sampler of Patch Forcing: the cleanest patch is drawn first, the others are noisier by half a normal."""

    def _patches(self, uniform: Tensor, generator: torch.Generator | None) -> Tensor:
        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, device=uniform.device)

        highest = torch.sigmoid(0.7 + normal(len(uniform), 1, 1))  # how clean, 1 - t, is what theirs is in terms of
        clean = highest - 0.5 * highest * normal(*uniform.shape).abs_()
        return self._scale(1.0 - torch.where(clean < 0.0, uniform.mul_(highest), clean))


@dataclass(frozen=True, kw_only=True)
class MeanBeta(Patchwise):
    """The sampler of Spatial Reasoning Models: the mean is uniform, and exactly that of the patches, equation (7).

    The Beta that splits n patches has both parameters (n - 1 - n mod 2)^1.05, as theirs has. (They also weigh the loss
    by the inverse of a time's density; that is not done here.)
    """

    def _patches(self, uniform: Tensor, generator: torch.Generator | None) -> Tensor:
        batch, rows, columns = uniform.shape
        size = torch.full((1,), float(rows * columns), device=uniform.device)
        total = uniform.view(batch, -1)[:, :1] * size
        for _ in range((rows * columns - 1).bit_length()):  # parts of 1 and of 0 patches split into themselves and 0
            left = (size / 2).floor()
            right = size - left
            least = (total - right).clamp_(min=0.0)
            share = _symmetric_beta((size - 1 - size % 2).clamp_(min=1.0) ** 1.05, total, generator)
            first = torch.lerp(least, torch.minimum(total, left), share)
            total = torch.stack([first, total - first], 2).flatten(1)
            size = torch.stack([left, right], 1).flatten()
        shuffled = torch.rand(total.shape, generator=generator, device=total.device).add_(size < 0.5).argsort(1)
        patches = total.gather(1, shuffled[:, : rows * columns])
        return self._scale(patches.clamp_(0.0, 1.0).view(batch, rows, columns))


def _symmetric_beta(a: Tensor, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Beta(a, a) for a > 1/2: (1 + r cos phi) / 2 with phi uniform and r^2 = 1 - U^(2 / (2a - 1)) (Ulrich 1984)."""
    uniform, angle = torch.rand(2, *like.shape, generator=generator, device=like.device)
    radius = torch.expm1(uniform.log_() * (2.0 / (2.0 * a - 1.0))).neg_().sqrt_()
    return radius.mul_(torch.cos(angle.mul_(2.0 * torch.pi))).add_(1.0).mul_(0.5)


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
        "patch-forcing": PatchForcing(patch_sizes=(4,)),
        "mean-beta": MeanBeta(patch_sizes=(4,)),
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
