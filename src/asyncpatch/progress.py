"""How much of the work is done, and how long the rest will take."""

from __future__ import annotations

import time
from collections.abc import Callable

from asyncpatch.pipelines import AsyncPatchPipeline, Speed
from asyncpatch.plans import Plan


class Work:
    """Of a plan: windows that the network has seen, of all that it will see at most.

    Until there is something to go by, ``speed`` says how long it takes; longer if every step is ``watched``.
    """

    def __init__(
        self, pipeline: AsyncPatchPipeline, plan: Plan, speed: Speed, clock: Callable[[], float] = time.monotonic, *,
        watched: bool = False,
    ) -> None:  # fmt: skip
        self.total, self.done = pipeline.work(plan), 0
        self._seconds, self._clock, self._began = speed.per_window(plan.settings, watched=watched), clock, clock()

    def begin(self) -> None:
        """Only now: what went before was waiting."""
        self._began = self._clock()

    def advance(self, windows: int) -> None:
        self.done += windows

    @property
    def share(self) -> float:
        """Of the work that is done, from 0 to 1."""
        return min(1.0, self.done / self.total) if self.total else 0.0

    @property
    def taken(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._began

    @property
    def left(self) -> float:
        """Seconds, expected."""
        each = self.taken / self.done if self.done else self._seconds
        return max(0.0, each * (self.total - self.done))


def spoken(seconds: float) -> str:
    for length, name in ((3600.0, "hours"), (60.0, "minutes")):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.1f} {name}"
    return f"{seconds:.0f} seconds"
