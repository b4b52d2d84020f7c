"""Closed-loop schedules: where the denoiser is sure it goes ahead, where it is not it takes its time.

They need a denoiser that says how sure it is (``Denoised.logvar``). From it comes the *doubt* of each patch: the mean
of log sqrt(expected squared error) over its tokens that are not finished, less what it would be at their times without
any structure (``parameterization.structureless``); a picture is only compared with itself. With u the mean doubt of the
picture's patches, d that of a patch, and n the questions that are left, this one included:

    (1)  paced        s = t (1 - f / n),   f = exp(strength (u - d)), at least 1 and at most ``lead``
                      A token with f = 1 always is on the synchronous schedule; nobody falls behind it.
    (2)  dual         rounds of one long step each. The surest ``share`` of the patches takes it at once, the others in
                      ``substeps``, with the sure ones before their eyes (Patch Forcing's dual loop)
    (3)  sequential   patch after patch, the surest of those that wait next, each in ``steps``; with ``overlap`` the
                      next one begins before the last one is done (as SRM goes)

Each takes exactly as many questions as it says (``calls``, ``calls_for``), and ``SCHEDULES`` makes each for a number of
questions. Known tokens, where ``hole`` is 0, stay as they are; a hole between 0 and 1 starts from that time, as in
``schedules``.

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
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from asyncpatch import checks, fields
from asyncpatch.parameterization import from_x, structureless
from asyncpatch.process import Process, check_process
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
        rank = doubt.flatten(1).argsort(1).argsort(1).view_as(doubt)
        return self._spread(rank < (share * doubt.isfinite().sum((2, 3), keepdim=True) + 1e-6).floor(), t)

    def _pooled(self, field: Tensor) -> Tensor:
        """The mean over each patch; patches at the right and the bottom may be cut short."""
        height, width = field.shape[2:]
        below, right = -height % self.patch, -width % self.patch
        return functional.avg_pool2d(functional.pad(field, (0, right, 0, below)), self.patch)

    def _spread(self, values: Tensor, like: Tensor) -> Tensor:
        return fields.spread(values, self.patch, *like.shape[2:])


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
        share = (self._spread(faster, t) / (self.calls - k)).clamp_max(1.0)
        return (t * (1.0 - share)).float()


@dataclass(frozen=True, kw_only=True)
class Dual(_Adaptive):
    """Equation (2), in ``rounds * substeps`` questions."""

    rounds: int
    substeps: int = 4
    share: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("rounds", self.rounds)
        checks.at_least("substeps", self.substeps)
        checks.fraction("share", self.share)

    @property
    def calls(self) -> int:
        return self.rounds * self.substeps

    def ask(self, k: int, t: Tensor, /) -> bool | None:
        return True if k < self.calls else None

    def needs(self, k: int, t: Tensor) -> Tensor:
        return self._slow(k, t) < t if k % self.substeps else t > 0

    def next(self, k: int, t: Tensor, out: Denoised | None, /) -> Tensor:
        slow, (round_, inner) = self._slow(k, t), divmod(k, self.substeps)
        if inner:
            return torch.minimum(t, slow)
        fast = self.start(t) * (1.0 - (round_ + 1) / self.rounds)
        return torch.where(self._surest(self.share, t, out), fast, slow)

    def _slow(self, k: int, t: Tensor) -> Tensor:
        """Where those stand after visit ``k`` that take every step."""
        return self.start(t) * (1.0 - (k + 1) / self.calls)


@dataclass(frozen=True, kw_only=True)
class Sequential(_Adaptive):
    """Equation (3): each patch in ``steps``, the next after (1 - ``overlap``) of them. A picture of P patches takes
    ``steps`` and P - 1 times as many as until the next begins."""

    steps: int
    overlap: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.at_least("steps", self.steps)
        checks.fraction("overlap", self.overlap)

    @property
    def gap(self) -> int:
        """Visits from the beginning of a patch to that of the next."""
        return max(1, round(self.steps * (1.0 - self.overlap)))

    def calls_for(self, z: Tensor) -> int:
        """Questions for the canvas z, or any tensor of its batch and size."""
        patches = int((self._pooled((self.start(z) > 0).float()) > 0).flatten(1).sum(1).max())
        return self.steps + (patches - 1) * self.gap if patches else 0

    def ask(self, k: int, t: Tensor, /) -> bool | None:
        return True if k < self.calls_for(t) else None

    def needs(self, k: int, t: Tensor) -> Tensor:
        return t > 0 if k % self.gap == 0 else self._under_way(self._done(t))

    def _done(self, t: Tensor) -> Tensor:
        """How many of its steps a token has taken."""
        start = self.start(t)
        return torch.where(start > 0, (1.0 - t / start.clamp_min(1e-9)) * self.steps, 0.0).round()

    def _under_way(self, done: Tensor) -> Tensor:
        return (done > 0) & (done < self.steps)

    def next(self, k: int, t: Tensor, out: Denoised | None, /) -> Tensor:
        start, done = self.start(t), self._done(t)
        moves = self._under_way(done)
        if k % self.gap == 0:
            waits = self._pooled(((done == 0) & (start > 0)).float()) > 0
            doubt = torch.where(waits, self._doubt(t, out), torch.inf).flatten(1)
            chosen = functional.one_hot(doubt.argmin(1), doubt.shape[1]).view_as(waits) > 0
            moves = moves | self._spread(chosen & waits, t)
        return torch.where(moves & (start > 0), start * (1.0 - (done + 1) / self.steps).clamp_min(0.0), t)


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
        sure = self._surest(self.share, t, out) & (t > 0)
        s = torch.where(sure, (1.0 - self.ahead * (1.0 - t)).clamp_min(0.0), t)
        brought = self.process.alpha(s) * out.x + self.process.sigma(s) * from_x(self.process, "eps", out.x, z, t)
        again = self.denoiser(torch.where(sure, brought, z), s, cond)
        return out._replace(x=torch.where(sure, out.x, again.x))


def _paced(process: Process, hole: Tensor, calls: int) -> Paced:
    return Paced(process=process, hole=hole, calls=calls)


def _dual(process: Process, hole: Tensor, calls: int) -> Dual:
    substeps = next(each for each in (4, 3, 2, 1) if calls % each == 0)
    return Dual(process=process, hole=hole, rounds=calls // substeps, substeps=substeps)


def _sequential(process: Process, hole: Tensor, calls: int) -> Sequential:
    """About half of the questions go by until the last patch begins; patches are as small as that allows."""
    patch = 8
    while True:
        one = Sequential(process=process, hole=hole, steps=1, patch=patch)
        patches = one.calls_for(hole)  # of one step each
        if 2 * patches <= calls or patch >= max(hole.shape[2:]):
            break
        patch *= 2
    gap = max(1, calls // (2 * patches)) if patches else 1
    steps = max(1, calls - (patches - 1) * gap)
    return Sequential(process=process, hole=hole, steps=steps, patch=patch, overlap=max(0.0, 1.0 - gap / steps))


SCHEDULES: dict[str, Callable[[Process, Tensor, int], Schedule]] = {
    "paced": _paced, "dual": _dual, "sequential": _sequential,
}  # fmt: skip
"""By name: for a process, the times that tokens start from [B, 1, H, W], and a number of questions."""


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
