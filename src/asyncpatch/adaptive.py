"""Closed-loop schedules: where the denoiser is sure it goes ahead, where it is not it takes its time.

They need a denoiser that says how sure it is (``Denoised.logvar``). From it comes the *doubt* of each patch: the mean
of log sqrt(expected squared error) over its tokens that are not finished, less what it would be at their times without
any structure (``parameterization.structureless``); a picture is only compared with itself. With u the mean doubt of the
picture's patches, d that of a patch, and N all questions:

    (1)  paced        s = t - f start / N,   f = exp(strength (u - d)), at least 1 and at most ``lead``
                      A token with f = 1 always is on the synchronous schedule; nobody falls behind it, and who was sure
                      is done in fewer, larger steps.
    (2)  dual         rounds of one long step each. The surest ``share`` of the patches takes it at once, the others in
                      ``substeps``, with the sure ones before their eyes (Patch Forcing's dual loop)
    (3)  sequential   patch after patch, the surest of those that wait next; with ``overlap`` the next one begins before
                      the last one is done (as SRM goes)

Each makes ``calls`` visits, and asks at each as long as anything is left to do. Known tokens, where ``hole`` is 0, stay
as they are; a hole between 0 and 1 starts from that time, as in ``schedules``.

    (4)  look-ahead   a denoiser that asks twice: first about (z, t); then with the surest ``share`` of the patches
                      brought on, by DDIM with the first answer, to s = 1 - ahead (1 - t), at least 0. What is unsure
                      takes the second answer, what was sure the first (Patch Forcing's look-ahead).

(1) to (3) change the order in which tokens come, and are right for exact answers whatever the order is. (4) answers
another question than it was asked, and where tokens depend on each other its error stays however many steps there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from asyncpatch import checks, fields
from asyncpatch.parameterization import from_x, structureless
from asyncpatch.process import Process, RectifiedFlow, check_process
from asyncpatch.protocols import Cond, Denoised, Denoiser, Schedule, Visit


@dataclass(frozen=True, kw_only=True)
class _Doubting:
    """The doubt of patches of side ``patch``."""

    process: Process
    patch: int = 8

    def __post_init__(self) -> None:
        check_process(self.process)
        checks.at_least("patch", self.patch)

    def _doubt(self, t: Tensor, out: Denoised | None) -> Tensor:
        """Of each patch, [B, 1, rows, columns]; infinite where nothing is left to do."""
        if out is not None and out.logvar is None and not bool((t > 0).any()):  # all is finished: nobody was asked
            return torch.full_like(self._pooled(t), torch.inf)
        if out is None or out.logvar is None:
            raise ValueError(
                f"{type(self).__name__.lower()} schedules need a denoiser that says how sure it is (Denoised.logvar)"
            )
        open_ = (t > 0).to(out.logvar.dtype)
        doubt = 0.5 * (out.logvar - structureless(self.process, t))
        total, count = (self._pooled(each) for each in (doubt * open_, open_))
        return torch.where(count > 0, total / count.clamp_min(1e-9), torch.inf)

    def _surest(self, share: float, t: Tensor, out: Denoised | None) -> Tensor:
        """True in a share of each picture's patches that are not finished: those with the least doubt, [B, 1, H, W]."""
        doubt = self._doubt(t, out)
        return self._spread(_rank(doubt) < (share * doubt.isfinite().sum((2, 3), keepdim=True) + 1e-6).floor(), t)

    def _pooled(self, field: Tensor) -> Tensor:
        """The mean over each patch; patches at the right and the bottom may be cut short."""
        height, width = field.shape[2:]
        below, right = -height % self.patch, -width % self.patch
        return functional.avg_pool2d(functional.pad(field, (0, right, 0, below)), self.patch)

    def _spread(self, values: Tensor, like: Tensor) -> Tensor:
        return fields.spread(values, self.patch, *like.shape[2:])


def _rank(values: Tensor) -> Tensor:
    """Of each value among those of its picture, [B, 1, rows, columns]: 0 for the least."""
    return values.flatten(1).argsort(1).argsort(1).view_as(values)


@dataclass(frozen=True, kw_only=True)
class _Adaptive(_Doubting):
    """A schedule that goes by doubt."""

    hole: Tensor | float = 1.0
    falls: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.hole, Tensor):
            checks.times("hole", self.hole, wait=True)
        else:
            checks.fraction("hole", self.hole)

    def start(self, z: Tensor, /) -> Tensor:
        """Where tokens start from, [B, 1, H, W]; ``z`` may be any tensor of that batch and size."""
        hole = self.hole if isinstance(self.hole, Tensor) else torch.tensor(self.hole)
        return hole.to(z.device, torch.float32).expand(len(z), 1, *z.shape[2:])

    def needs(self, k: int, t: Tensor) -> Tensor:
        """Where the answer at visit ``k`` is needed, if only for its doubt."""
        return t > 0


@dataclass(frozen=True, kw_only=True)
class Paced(_Adaptive):
    """Equation (1), in ``calls`` questions."""

    calls: int
    strength: float = 1.0
    lead: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("calls", self.calls)
        if not 0 <= self.strength < math.inf or not self.lead >= 1:
            raise ValueError(f"strength must be at least 0 and lead at least 1, got {self.strength} and {self.lead}")

    def ask(self, k: int, t: Tensor, /) -> bool | None:
        return True if k < self.calls else None

    def next(self, k: int, t: Tensor, out: Denoised | None, /) -> Tensor:
        doubt = self._doubt(t, out)
        known = doubt.isfinite()
        mean = torch.where(known, doubt, 0.0).sum((2, 3), keepdim=True) / known.sum((2, 3), keepdim=True).clamp_min(1)
        faster = (self.strength * torch.where(known, mean - doubt, 0.0)).exp().clamp(1.0, self.lead)
        start = self.start(t)
        ahead = t - self._spread(faster, t) * start / self.calls
        return torch.where(ahead < 1e-6, 0.0, torch.minimum(ahead, start * (1.0 - (k + 1) / self.calls)))


@dataclass(frozen=True, kw_only=True)
class Dual(_Adaptive):
    """Equation (2), in ``calls`` questions: rounds of ``substeps`` each, the last one shorter if need be."""

    calls: int
    substeps: int = 4
    share: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("calls", self.calls)
        checks.at_least("substeps", self.substeps)
        checks.fraction("share", self.share)

    def ask(self, k: int, t: Tensor, /) -> bool | None:
        return True if k < self.calls else None

    def needs(self, k: int, t: Tensor) -> Tensor:
        return self._even(k + 1, t) < t if k % self.substeps else t > 0

    def next(self, k: int, t: Tensor, out: Denoised | None, /) -> Tensor:
        slow = self._even(k + 1, t)
        if k % self.substeps:
            return torch.minimum(t, slow)
        return torch.where(self._surest(self.share, t, out), self._even(k + self.substeps, t), slow)

    def _even(self, k: int, t: Tensor) -> Tensor:
        """Where those stand before visit ``k`` that take every step alike."""
        return self.start(t) * (1.0 - min(k, self.calls) / self.calls)


@dataclass(frozen=True, kw_only=True)
class Sequential(_Adaptive):
    """Equation (3), in ``calls`` questions. While a patch is under way, for ``overlap`` of its steps so is the next:

        calls = steps + (P - 1) gap,   gap = (1 - overlap) steps

    for a picture of P patches with something to do. Where that makes a gap of less than a visit, several begin at once.
    """

    calls: int
    overlap: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("calls", self.calls)
        checks.fraction("overlap", self.overlap)

    def ask(self, k: int, t: Tensor, /) -> bool | None:
        return True if k < self.calls else None

    def needs(self, k: int, t: Tensor) -> Tensor:
        done, steps, due = self._standing(k, t)
        return torch.where(due > 0, t > 0, (done > 0) & (done < steps))

    def next(self, k: int, t: Tensor, out: Denoised | None, /) -> Tensor:
        start = self.start(t)
        done, steps, due = self._standing(k, t)
        waits = self._pooled(((done == 0) & (start > 0)).float()) > 0
        doubt = torch.where(waits, self._doubt(t, out), torch.inf)
        moves = ((done > 0) & (done < steps)) | self._spread(waits & (_rank(doubt) < due), t)
        return torch.where(moves & (start > 0), start * (1.0 - (done + 1) / steps).clamp_min(0.0), t)

    def _standing(self, k: int, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """How many of its steps each token has taken; and of each picture, [B, 1, 1, 1], how many each takes, and how
        many patches are due to begin at visit ``k``."""
        start = self.start(t)
        patches = self._count(start > 0)
        steps = (self.calls / (1.0 + (patches - 1.0) * (1.0 - self.overlap)) - 1e-4).ceil().clamp(1, self.calls)
        gap = (self.calls - steps) / (patches - 1.0).clamp_min(1.0)
        done = torch.where(start > 0, (1.0 - t / start.clamp_min(1e-9)) * steps, 0.0).round()
        due = torch.where(gap > 0, (k / gap.clamp_min(1e-9) + 1e-4).floor() + 1.0, patches)
        return done, steps, torch.minimum(due, patches) - self._count(done > 0)

    def _count(self, where: Tensor) -> Tensor:
        """Patches in which anything is so, [B, 1, 1, 1]."""
        return (self._pooled(where.float()) > 0).sum((2, 3), keepdim=True).float()


@dataclass(frozen=True, kw_only=True)
class LookAhead(_Doubting):
    """Equation (4): around a denoiser, for any schedule."""

    denoiser: Denoiser
    share: float = 0.4
    ahead: float = 1.4

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.fraction("share", self.share)
        if not 1 <= self.ahead < math.inf:
            raise ValueError(f"ahead must be at least 1, got {self.ahead}")

    def __call__(self, z: Tensor, t: Tensor, cond: Cond | None = None, /) -> Denoised:
        out = self.denoiser(z, t, cond)
        t = t.expand(len(z), 1, *z.shape[2:])
        wanted = None if cond is None else cond.wanted
        if out.logvar is None and wanted is not None and not bool(wanted.any()):
            return out  # nobody was asked
        asked = t if wanted is None else torch.where(wanted, t, 0.0)  # what was not asked about is nothing to go by
        sure = self._surest(self.share, asked, out) & (asked > 0)
        s = torch.where(sure, (1.0 - self.ahead * (1.0 - t)).clamp_min(0.0), t)
        brought = self.process.alpha(s) * out.x + self.process.sigma(s) * from_x(self.process, "eps", out.x, z, t)
        again = self.denoiser(torch.where(sure, brought, z), s, cond)
        return out._replace(x=torch.where(sure, out.x, again.x))


Make = Callable[[Process, Tensor | float, int], Schedule]
"""For a process, the times that tokens start from ([B, 1, H, W] or one for all), and a number of questions."""

SCHEDULES: dict[str, tuple[Callable[..., Schedule], Callable[[str], dict[str, Any]]]] = {
    "paced": (Paced, lambda number: {"strength": float(number), "lead": 1.0 + float(number)}),
    "dual": (Dual, lambda number: {"substeps": int(number)}),
    "sequential": (Sequential, lambda number: {"overlap": float(number)}),
}
"""By name; and what a number after the name means."""


def schedule_from(name: str) -> Make | None:
    """One of SCHEDULES, as in ``paced`` or ``paced:3``; None if it is none of them."""
    kind, colon, number = name.partition(":")
    if kind not in SCHEDULES:
        return None
    schedule, options_from = SCHEDULES[kind]

    def make(process: Process, hole: Tensor | float, calls: int) -> Schedule:
        return schedule(process=process, hole=hole, calls=calls, **options)

    try:
        options = options_from(number) if colon else {}
        make(RectifiedFlow(), 1.0, 1)
    except ValueError as error:
        raise ValueError(f"schedule {name!r}: {error}") from None
    return make


class Effort:
    """A callback that counts the steps of each token: ``sample(..., callback=effort)``, then ``effort.steps``. One for
    each run."""

    def __init__(self) -> None:
        self._times: Tensor | None = None
        self._moves: Tensor | None = None

    def __call__(self, visit: Visit) -> None:
        if self._moves is None or self._times is None:
            self._moves = torch.zeros_like(visit.t)
        else:
            if visit.t.shape != self._times.shape:
                raise ValueError("this has counted the steps of another run: take a new one for each")
            self._moves = self._moves + (visit.t < self._times)
        self._times = visit.t

    @property
    def steps(self) -> Tensor:
        """How often each token was stepped, [B, 1, H, W]; after the last visit those that are left take their last."""
        if self._moves is None or self._times is None:
            raise ValueError("nothing was sampled yet with this as callback")
        return self._moves + (self._times > 0)
