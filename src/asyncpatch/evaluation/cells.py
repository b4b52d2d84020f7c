"""What is evaluated: a row of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asyncpatch import baselines, checks
from asyncpatch.data.masks import KINDS
from asyncpatch.settings import Settings

OURS = "asyncpatch"
SUPERVISED = baselines.supervised.__name__
FREE = (OURS, SUPERVISED)
"""Methods that go by a cell's settings."""
SAMPLES = "samples"
RIVALS: dict[str, Callable[..., baselines.Method]] = {
    each.__name__: each
    for each in (
        baselines.replacement,
        baselines.repaint,
        baselines.mcg,
        baselines.ddrm,
        baselines.ddnm,
        baselines.deqir,
        baselines.supervised,
    )
}
"""Methods that ask with one time per picture, each with its own number of steps (but for ``supervised``, which has a
network of its own and goes by the settings)."""

Result = dict[str, Any]
"""What was found for a cell, by name."""


@dataclass(frozen=True)
class Cell:
    """One row of the table."""

    set: str
    what: str
    """A kind of holes, or ``samples``."""
    method: str = OURS
    settings: Settings = Settings()
    count: int = 100

    def __post_init__(self) -> None:
        if self.method not in (OURS, *RIVALS):
            raise ValueError(f"method must be one of {', '.join((OURS, *RIVALS))}; got {self.method!r}")
        if self.what not in (*KINDS, SAMPLES):
            raise ValueError(f"holes must be of {', '.join(KINDS)}; got {self.what!r}")
        checks.at_least(
            "count of samples" if self.what == SAMPLES else "count", self.count, 10 if self.what == SAMPLES else 2
        )


def spaced(length: int, count: int) -> list[int]:
    """As many of so many as are asked for, from all over."""
    count = min(length, count)
    return [k * length // count for k in range(count)]
