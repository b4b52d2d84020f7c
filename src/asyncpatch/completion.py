"""Filling holes in pictures of any size with a denoiser of small ones.

A large picture is cut to a box around each hole (``regions``), with context in proportion to the hole, so that the rest
of the photo costs nothing. A box is then filled in stages, in one of two ways.

*From coarse to fine*:

    (1)  reduced until a window sees across the hole, the hole is filled from pure noise;
    (2)  at each finer scale that filling, enlarged, is noised to an intermediate time and denoised again.

(2) is what a time per pixel is made for: known pixels stand at 0, the hole starts at ``refine``, and what is asked of
the network is only the detail that the coarser scale could not show.

*Ring by ring*, for textures: a ring around what is known, half a window wide, is filled from coarse to fine, then the
next one around that. What lies further out waits at time 1, where a denoiser learns nothing from it.

Wherever a canvas is larger than a window, overlapping windows are denoised together (``windows``).

Each stage begins and ends with pictures. What is denoised between are their tokens (``codecs``): pixels, or latents.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from asyncpatch import checks
from asyncpatch.codecs import PIXELS, Codec
from asyncpatch.process import Process
from asyncpatch.protocols import Cond, Denoised, Denoiser, Noise, Schedule, Step, Visit
from asyncpatch.regions import UNKNOWN, reduced, reduced_hole, rings, scales
from asyncpatch.sampling import draw_noise, generators, sample
from asyncpatch.schedules import OpenLoop, from_map, inpainting
from asyncpatch.windows import Windows

MakeSchedule = Callable[[Tensor, int], Schedule]
"""Makes a schedule of the times that tokens start from, and a number of questions."""

Prepare = Callable[[Denoiser, Tensor, Noise], Denoiser]
"""Puts guidance around a denoiser: told the time that each token starts from, and a source of noise."""


class Stage(NamedTuple):
    """One run of the sampling loop on the way to a filled box. Fields are [B, 1, h, w], of pixels."""

    factor: int
    """By which the picture is reduced."""
    start: Tensor
    """The time from which a pixel is brought to 0; 0 where it stays as it is."""
    wait: Tensor
    """The time at which a pixel waits for a later stage; 0 where it does not."""
    before: Tensor
    """True where a pixel was filled by the stage before."""
    steps: int
    """Questions to the denoiser."""


class Moment(NamedTuple):
    """What an onlooker sees: a visit of a stage's sampling loop, which goes over tokens."""

    stage: Stage
    visit: Visit
    windows: int
    """How many windows the denoiser is asked about, all pictures together; by guidance, or a step that asks twice, as
    often again."""
    codec: Codec

    def pictures(self, tokens: Tensor) -> Tensor:
        """What tokens [B, d, h, w] show at the stage's scale; grey where it has to wait."""
        _, _, height, width = self.stage.start.shape
        shown = self.codec.decode(tokens, (height, width))
        return torch.where(self.stage.wait > 0, 0.0, shown).clamp(-1.0, 1.0)

    def pixels(self, field: Tensor) -> Tensor:
        """A field of tokens, at the stage's scale."""
        _, _, height, width = self.stage.start.shape
        return self.codec.pixels(field, (height, width))


@dataclass(frozen=True, kw_only=True)
class Completion:
    """How holes are filled.

    ``codec`` is what the denoiser's tokens are to pictures. ``window`` is the side that the denoiser was trained at, in
    pixels, ``steps`` how often it is asked where it starts from noise, ``refine`` the time that enlarged fillings start
    from (0: leave them as they are), ``batch`` how many windows are asked at a time. ``rings``: go ring by ring;
    ``wrap`` (only then) joins opposite edges of the picture. ``paste``: pixels outside the hole are those that were
    given; without it those that tokens, which do not change there, decode to. ``pace`` is the share of the steps that
    each token takes for itself where there is an order. ``prepare`` puts guidance around the denoiser; ``make`` makes
    the schedule of a stage, where pixels do not all go together; ``callback`` sees every visit (to break the work off,
    let it raise).
    """

    denoiser: Denoiser
    process: Process
    step: Step
    codec: Codec = PIXELS
    window: int = 64
    steps: int = 32
    refine: float = 0.5
    rings: bool = False
    wrap: bool = False
    paste: bool = True
    batch: int = 64
    pace: float = 0.5
    prepare: Prepare | None = None
    make: MakeSchedule | None = None
    callback: Callable[[Moment], object] | None = None

    def __post_init__(self) -> None:
        checks.at_least("window", self.window, 8)
        if self.window % self.codec.factor:
            raise ValueError(f"window must divide by {self.codec.factor}, got {self.window}")
        checks.at_least("steps", self.steps)
        checks.at_least("batch", self.batch)
        checks.fraction("refine", self.refine)
        if not 0 < self.pace <= 1:
            raise ValueError(f"pace must lie in (0, 1], got {self.pace}")
        if self.rings and not self.paste:
            raise ValueError("rings need paste: what is known must not change from ring to ring")
        if self.wrap and not self.rings:
            raise ValueError("wrap needs rings: edges are joined where a picture grows ring by ring")

    @torch.no_grad()
    def __call__(
        self, x: Tensor, hole: Tensor, seeds: Sequence[int], cond: Cond | None = None, order: Tensor | None = None
    ) -> Tensor:
        """The pictures x [B, C, H, W] with their holes filled; pixels outside them are exactly those of x (``paste``).

        ``hole`` [B, 1, H, W] (or broadcastable) is 1 where something is to be generated; between 0 and 1 it is the
        time that the pixel starts from, as it is. There is one seed per picture. ``order`` (of the hole's shape) says
        which pixels come first where filling starts from noise: those with small values.
        """
        checks.canvas("x", x)
        checks.times("hole", hole, x, wait=True)
        if len(seeds) != len(x):
            raise ValueError(f"seeds must be one per picture, {len(x)}, got {len(seeds)}")
        hole = hole.to(x.device, torch.float32).expand(len(x), 1, *x.shape[2:])
        random = generators(seeds)
        for start, wait in self._turns(hole):
            filled: Tensor | None = None
            for stage in self._scales(start, wait):
                now, first = reduced(x, start + wait, stage.factor), filled is None
                if filled is not None:
                    now = torch.where(stage.before, self._enlarged(filled, now), now)
                if stage.steps:
                    filled = self._denoised(now, stage, random, cond, order if first else None)
                else:
                    filled = _without_noise(now, stage.wait)
            if filled is not None:
                x = self.codec.join(filled, x, start, wrap=self.wrap) if self.paste else filled
        return x

    def work(self, hole: Tensor, order: Tensor | None = None) -> int:
        """How many windows the denoiser will be asked about, once for each step, for pictures with these holes: at most
        that, where the schedule looks at the answers."""
        total = 0
        for start, wait in self._turns(hole.float()):
            for number, stage in enumerate(self._scales(start, wait)):
                tokens = self._tokens(stage)
                windows = self._windowed(tokens)
                if order is None or number or not stage.steps:
                    total += stage.steps * windows.asked()
                    continue
                schedule = self._ordered(tokens, order)
                t = schedule.start(tokens.start)
                for k in range(stage.steps):
                    total += windows.asked(schedule.needs(k, t))
                    t = schedule.next(k, t, None)
        return total

    def stages(self, hole: Tensor) -> Iterator[Stage]:
        """The stages in which a hole [B, 1, H, W] is filled."""
        for start, wait in self._turns(hole):
            yield from self._scales(start, wait)

    def _turns(self, hole: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """What is filled now and what has to wait: the times that they start from, at full size."""
        if self.rings:
            for ring, later in rings(hole, self.window // 2, self.wrap):
                yield hole * ring, hole * later
        elif bool((hole > 0).any()):
            yield hole, torch.zeros_like(hole)

    def _scales(self, start: Tensor, wait: Tensor) -> Iterator[Stage]:
        """One turn, from coarse to fine."""
        first = scales(start, self.window, wait, self.wrap)
        if self.rings:
            first = min(first, 1)  # halved, a ring is about as near to what is known as it has to be
        for scale in reversed(range(first + 1)):
            now = reduced_hole(start, 2**scale)
            before = now > (self.refine if scale < first else 1.0)
            now = torch.where(before, self.refine, now)
            later = torch.where(now > 0, 0.0, reduced_hole(wait, 2**scale))
            yield Stage(2**scale, now, later, before, round(self.steps * float(now.max()) + 0.499))

    def _enlarged(self, filled: Tensor, like: Tensor) -> Tensor:
        """Twice as large, or a pixel less where a side is odd."""
        rim, sides = 2, filled  # as far as a cubic sees
        for dim in (2, 3):
            length = filled.shape[dim]
            k = torch.arange(-rim, length + rim, device=filled.device)
            sides = sides.index_select(dim, k % length if self.wrap else k.clamp(0, length - 1))
        finer = functional.interpolate(sides, scale_factor=2, mode="bicubic", align_corners=False)
        return finer[..., 2 * rim :, 2 * rim :][..., : like.shape[2], : like.shape[3]].clamp(-1.0, 1.0)

    def _tokens(self, stage: Stage) -> Stage:
        """The stage's fields, of tokens."""
        start, wait = (self.codec.tokens(each, wrap=self.wrap) for each in (stage.start, stage.wait))
        return stage._replace(start=start, wait=torch.where(start > 0, 0.0, wait))

    def _windowed(self, tokens: Stage) -> Windows:
        side = self.window // self.codec.factor
        return Windows(self.denoiser, side, hole=tokens.start, wrap=self.wrap, batch=self.batch)

    def schedule(self, stage: Stage, order: Tensor | None = None) -> Schedule:
        """Of a stage's tokens, those that wait apart."""
        return self._schedule(self._tokens(stage), order)

    def _schedule(self, tokens: Stage, order: Tensor | None) -> Schedule:
        if order is not None:
            return self._ordered(tokens, order)
        if self.make is not None:
            return self.make(tokens.start, tokens.steps)
        return inpainting(tokens.start, tokens.steps)

    def _ordered(self, tokens: Stage, order: Tensor) -> OpenLoop:
        order = order.to(tokens.start)
        whole = reduced(order, torch.zeros_like(order), tokens.factor * self.codec.factor)
        begin = (1.0 - self.pace) * _ranked(whole, tokens.start)
        return from_map(tokens.start, begin, (begin + self.pace).clamp_max(1.0), tokens.steps)

    def _denoised(
        self, x: Tensor, stage: Stage, random: list[torch.Generator], cond: Cond | None, order: Tensor | None
    ) -> Tensor:
        """x with its tokens noised to the stage's times, and those with a start brought back."""
        tokens = self._tokens(stage)
        e = self.codec.encode(x, stage.start + stage.wait >= UNKNOWN, wrap=self.wrap)

        def noise() -> Tensor:
            return draw_noise(e, random)

        schedule = _Beside(self._schedule(tokens, order), tokens.wait)
        windows = self._windowed(tokens)
        denoiser: Denoiser = windows
        if self.prepare is not None:
            denoiser = self.prepare(denoiser, tokens.start + tokens.wait, noise)
        callback, visits = self.callback, itertools.count()
        z = self.process.diffuse(e, schedule.start(e), noise())

        def tell(visit: Visit) -> None:
            if callback is not None:
                wanted = schedule.needs(next(visits), visit.t)
                callback(Moment(stage, visit, windows.asked(wanted), self.codec))

        e = sample(denoiser, schedule, z, step=self.step, cond=cond, generator=random, callback=tell)
        return self.codec.decode(_without_noise(e, tokens.wait), (x.shape[2], x.shape[3]), wrap=self.wrap)


@dataclass(frozen=True)
class _Beside:
    """A schedule of some pixels, beside others that stand still at their times ``wait`` (and at 0 in that schedule)."""

    schedule: Schedule
    wait: Tensor

    @property
    def falls(self) -> bool:
        return getattr(self.schedule, "falls", False)

    def _own(self, t: Tensor) -> Tensor:
        return torch.where(self.wait > 0, 0.0, t)

    def start(self, z: Tensor, /) -> Tensor:
        return self.schedule.start(z) + self.wait

    def ask(self, k: int, t: Tensor, /) -> bool | None:
        return self.schedule.ask(k, self._own(t))

    def needs(self, k: int, t: Tensor) -> Tensor | None:
        own = self._own(t)
        needs = getattr(self.schedule, "needs", None)
        return own > 0 if needs is None else needs(k, own)

    def next(self, k: int, t: Tensor, out: Denoised | None, /) -> Tensor:
        return self.schedule.next(k, self._own(t), out) + self.wait


def _without_noise(x: Tensor, wait: Tensor) -> Tensor:
    """Noise that waits beside what was filled is replaced by the mean of what is near it: it must not be smeared into
    that when it is enlarged."""
    if not bool((wait > 0).any()):
        return x
    clean = (wait <= 0).to(x.dtype)
    total, share = (functional.avg_pool2d(each, 5, stride=1, padding=2) for each in (x * clean, clean))
    return torch.where(clean > 0, x, total / share.clamp(min=1e-6))


def _ranked(order: Tensor, start: Tensor) -> Tensor:
    """An order brought to [0, 1] over the pixels of each picture that are to be filled."""
    order = order.expand_as(start)
    low = torch.where(start > 0, order, torch.inf).amin((1, 2, 3), keepdim=True)
    high = torch.where(start > 0, order, -torch.inf).amax((1, 2, 3), keepdim=True)
    return ((order - low) / (high - low).clamp(min=1e-12)).clamp(0.0, 1.0)
