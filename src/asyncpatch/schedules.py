"""Open-loop schedules: tau(u), u from 0 to 1, says where every token's time stands (paper, section 3.2).

The schedules of the paper are one formula, a pace per token:

    (1)  tau_i(u) = start_i * clip((end_i - u) / (end_i - begin_i), 0, 1)

A token waits at its starting time until ``begin``, goes down at a steady pace, and is clean from ``end`` on.

    synchronous     start = 1, begin = 0, end = 1
    inpainting      start = hole, begin = 0, end = 1        (known tokens start, and stay, at 0)
    autoregressive  start = 1, begin = (k-1)/K, end = k/K   for the tokens of group k of K

Visit k of the sampling loop stands at u = k / steps. ``ask`` and ``next`` look at k alone, so that the device is
never waited for; what could go wrong is checked when a schedule is built. Times are float32 throughout, so that
"s = t" and "t = 0" mean exactly that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from asyncpatch import checks
from asyncpatch.protocols import Denoised

Tau = Callable[[Tensor], Tensor]
"""From u in [0, 1], a tensor that broadcasts, to a time field [B, 1, H, W] or broadcastable, never increasing in u."""


@dataclass(frozen=True)
class Pace:
    """Equation (1). Each map is a field that broadcasts to [B, 1, H, W], or a number for a constant one."""

    start: Tensor | float
    begin: Tensor | float
    end: Tensor | float

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Tensor):
                checks.times(each.name, value, wait=True)
                object.__setattr__(self, each.name, value.float())
            else:
                checks.fraction(each.name, value)
                object.__setattr__(self, each.name, torch.tensor(value, dtype=torch.float32).item())
        shapes = [list(value.shape) for value in vars(self).values() if isinstance(value, Tensor) and value.dim()]
        if any(len({shape[axis] for shape in shapes} - {1}) > 1 for axis in range(4) if shapes):
            raise ValueError(f"start, begin and end must be maps of one size, got shapes {shapes}")
        if not bool(torch.as_tensor(self.begin < self.end).all()):
            raise ValueError("begin must lie below end for every token, got tokens that begin at or after their end")

    def __call__(self, u: Tensor) -> Tensor:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, Tensor) and value.device != u.device:
                raise ValueError(
                    f"the schedule's map {each.name!r} is on {value.device}, the canvas on {u.device}: "
                    "build the schedule there, or move it with schedule.to(device)"
                )
        return self.start * ((self.end - u) / (self.end - self.begin)).clamp(0.0, 1.0)

    @property
    def together(self) -> bool:
        """Whether no token waits for another: all are under way from the first visit to the last."""
        return isinstance(self.begin, float) and isinstance(self.end, float) and self.begin <= 0.0 and self.end >= 1.0

    def to(self, device: torch.device | str) -> Pace:
        maps = (getattr(self, each.name) for each in fields(self))
        return Pace(*(value.to(device) if isinstance(value, Tensor) else value for value in maps))


@dataclass(frozen=True)
class OpenLoop:
    """A schedule that is a function ``tau`` of u and a number of steps. The functions below build them."""

    tau: Tau
    steps: int
    falls: bool = False
    """Known never to raise a time: the functions below see to it."""

    def __post_init__(self) -> None:
        checks.at_least("steps", self.steps)

    def at(self, u: float, z: Tensor) -> Tensor:
        """tau(u) for the canvas ``z`` (or any tensor of its batch, height, width and device), [B, 1, H, W]."""
        t = self.tau(torch.full((1, 1, 1, 1), u, device=z.device))
        checks.field("the schedule's time field (its hole, order or maps)", t, z)
        return t.float().expand(z.shape[0], 1, *z.shape[2:])

    def start(self, z: Tensor, /) -> Tensor:
        return self.at(0.0, z)

    def ask(self, k: int, t: Tensor, /) -> bool | None:
        return True if k < self.steps else None

    def next(self, k: int, t: Tensor, out: Denoised | None, /) -> Tensor:
        return self.at((k + 1) / self.steps, t)

    def needs(self, k: int, t: Tensor) -> Tensor | None:
        """Where the answer at visit ``k`` is needed: what stays where it is, finished or not yet begun, needs none."""
        if isinstance(self.tau, Pace) and self.tau.together:
            return None
        return self.next(k, t, None) < t

    def to(self, device: torch.device | str) -> OpenLoop:
        """The same schedule with its maps on another device."""
        return replace(self, tau=self.tau.to(device)) if isinstance(self.tau, Pace) else self


def from_map(start: Tensor | float, begin: Tensor | float, end: Tensor | float, steps: int) -> OpenLoop:
    """Any pace per token, equation (1). Each map broadcasts to [B, 1, H, W]; a number stands for a constant map."""
    return OpenLoop(Pace(start, begin, end), steps, falls=True)


def from_function(tau: Tau, steps: int, *, device: torch.device | str = "cpu") -> OpenLoop:
    """A schedule from any function tau, which is checked here, on ``device``, at every time it will be asked for.

    It must stay in [0, 1], never increase, and end at 0 (or the picture would come back noisy). Values within a
    millionth of 0 or 1 count as 0 or 1.
    """

    def exact(u: Tensor) -> Tensor:
        t = tau(u)
        return torch.where(t.abs() < 1e-6, 0.0, torch.where((t - 1.0).abs() < 1e-6, 1.0, t))

    schedule = OpenLoop(exact, steps, falls=True)
    before = None
    for k in range(steps + 1):
        now = exact(torch.full((1, 1, 1, 1), k / steps, device=device))
        checks.times(f"tau({k}/{steps})", now, wait=True)
        if before is not None and bool((now > before).any()):
            raise ValueError(f"tau must never increase, but somewhere tau({k}/{steps}) exceeds tau({k - 1}/{steps})")
        before = now
    if bool((now != 0).any()):
        raise ValueError(f"tau(1) must be 0 everywhere, got a time of {float(now.max()):g}")
    return schedule


def synchronous(steps: int) -> OpenLoop:
    """All tokens together: ordinary diffusion. For a canvas of any size, on any device."""
    return from_map(1.0, 0.0, 1.0, steps)


def inpainting(hole: Tensor, steps: int) -> OpenLoop:
    """Denoise the hole; what is known stays clean, and comes back bit for bit.

    ``hole`` [B, 1, H, W] (or broadcastable) is 1 where something is to be generated, 0 where the picture is known.
    A value in between is the time that the token starts from: 0.6 keeps the rough look of what was there.
    """
    checks.times("hole", hole, wait=True)
    return from_map(hole, 0.0, 1.0, steps)


def autoregressive(groups: Tensor, steps_per_group: int, *, hole: Tensor | None = None) -> OpenLoop:
    """Group after group, in the order of the integer map ``groups`` [H, W], each in ``steps_per_group`` steps.

    Only the order of the numbers counts, gaps do not; ``asyncpatch.fields`` draws raster, spiral, random and painted
    orders. With a ``hole``, as in ``inpainting``, groups that hold nothing to generate take no steps.
    """
    if not isinstance(groups, Tensor) or groups.dim() != 2 or groups.is_floating_point() or groups.dtype == torch.bool:
        kind = f" of {groups.dtype}" if isinstance(groups, Tensor) else ""
        raise ValueError(f"groups must be an integer map [H, W], got {checks.shape_of(groups)}{kind}")
    if groups.numel() == 0:
        raise ValueError(f"groups must not be empty, got {checks.shape_of(groups)}")
    checks.at_least("steps_per_group", steps_per_group)
    start = torch.ones(1, 1, *groups.shape, device=groups.device)
    if hole is not None:
        checks.field("hole", hole)
        checks.times("hole", hole, start.expand(len(hole) if hole.dim() else 1, -1, -1, -1), wait=True)
        start = start * hole
    numbers = torch.unique(groups[(start > 0).flatten(0, 1).any(0)])
    count = len(numbers)
    if count == 0:
        raise ValueError("hole is 0 everywhere: there is nothing to generate")
    rank = torch.searchsorted(numbers, groups.contiguous()).clamp(max=count - 1).double().view(1, 1, *groups.shape)
    return from_map(start, rank / count, (rank + 1) / count, count * steps_per_group)
