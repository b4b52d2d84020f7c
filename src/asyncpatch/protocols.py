"""The nouns of asynchronous diffusion, and how answers and conditions are joined and parted.

A *denoiser* answers one question: given a canvas whose every token states its own noise level, what is the
clean picture? A *schedule* decides which question comes next. A *step* carries the canvas from one question
to the next. Everything in this package is one of the three, or is made of them.

Shapes: a canvas ``z`` is ``[B, C, H, W]``; a time field ``t`` is ``[B, 1, H, W]``, 0 = clean, 1 = noise.
The sampling loop always hands a denoiser the full shape, as a view where the field is constant; one that also takes
fields which only broadcast to it is handier to call directly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from asyncpatch import checks

NULL_LABEL = -1
"""The label that says "no label": what classifier-free guidance asks the network with."""


class Denoised(NamedTuple):
    """A denoiser's answer."""

    x: Tensor
    """E[x | z_t], the expected clean picture, [B, C, H, W]."""
    logvar: Tensor | None = None
    """Log of the expected squared error of ``x``, averaged over channels, [B, 1, H, W]."""


class Cond(NamedTuple):
    """What a question says besides the canvas. Every tensor has the batch as its first dimension."""

    label: Tensor | None = None
    """Class of each picture, [B] integers; ``NULL_LABEL`` where there is none."""
    picture: Tensor | None = None
    """The picture to complete, [B, C, H, W]: only for networks that were trained on inpainting alone."""
    hole: Tensor | None = None
    """1 where it is to be completed, [B, 1, H, W]: only for such networks, too."""
    wanted: Tensor | None = None
    """True where an answer is wanted, [B, 1, H, W]; elsewhere anything will do. None: everywhere."""


class Question(NamedTuple):
    """All that a denoiser is told. ``denoiser(*question)`` asks it."""

    z: Tensor
    t: Tensor
    cond: Cond | None = None


class Denoiser(Protocol):
    """Any callable ``(z, t, cond) -> Denoised``. It is pure: the same question gets the same answer."""

    def __call__(self, z: Tensor, t: Tensor, cond: Cond | None, /) -> Denoised: ...


class Visit(NamedTuple):
    """One stop of the sampling loop: where the canvas is, and what the denoiser said of it."""

    z: Tensor
    t: Tensor
    out: Denoised | None
    """None where the schedule moved on without asking."""


class Schedule(Protocol):
    """The spatial noise schedule tau of the paper: which time field is visited next.

    Open-loop schedules use only ``k``, so nothing ever waits for the device. Closed-loop ones may look at
    the time field and at the denoiser's answer. One that never raises a time may say so with an attribute
    ``falls = True``: then noise is drawn only for steps that are random by themselves. One that knows beforehand where
    the answer at visit ``k`` will be needed may say so with a method ``needs(k, t)``, a field of booleans, or None for
    all that it ever moves: the loop hands it on as ``Cond.wanted``, and denoisers that can (``windows.Windows``) do no
    more than is wanted.
    """

    def start(self, z: Tensor, /) -> Tensor:
        """The time field of the canvas that sampling starts from, [B, 1, H, W] on the device of ``z``."""
        ...

    def ask(self, k: int, t: Tensor, /) -> bool | None:
        """None: finished. True: ask the denoiser at visit ``k``. False: move on without asking it."""
        ...

    def next(self, k: int, t: Tensor, out: Denoised | None, /) -> Tensor:
        """The time field to move to from visit ``k``."""
        ...


Ask = Callable[[Tensor, Tensor], Denoised]
"""Asks the denoiser about a canvas and its times, under the condition of the run."""

Noise = Callable[[], Tensor]
"""Gives a fresh canvas of standard normal noise at each call."""


class Step(Protocol):
    """Moves a canvas from its times ``now.t`` to the times ``s``, token by token.

    Where s < t the token is denoised, where s = t it comes back bit for bit, and where s > t it is noised
    forward. ``denoise(z, t)`` asks the denoiser again (for second-order steps); ``last`` is the visit before
    this one (for multistep solvers).
    """

    def __call__(self, denoise: Ask, now: Visit, s: Tensor, noise: Noise, last: Visit | None, /) -> Tensor: ...


def check_answer(out: object, z: Tensor) -> Denoised:
    """What a denoiser said of the canvas z, if it is an answer at all."""
    if not isinstance(out, Denoised):
        raise TypeError(f"a denoiser must return Denoised(x), got {type(out).__name__}")
    checks.same_shape("the denoiser's answer x", out.x, "the canvas", z)
    return out


_Rows = TypeVar("_Rows", Denoised, Cond)


def concat(first: _Rows, second: _Rows) -> _Rows:
    """One Denoised or Cond holding the rows of both, field by field along the batch."""
    joined: list[Tensor | None] = []
    for name, a, b in zip(first._fields, first, second, strict=True):
        if (a is None) != (b is None):
            raise ValueError(f"{name} is set in one of two {type(first).__name__} to be joined, but not in both")
        joined.append(None if a is None or b is None else torch.cat([a, b]))
    return type(first)._make(joined)


def rows(item: _Rows, index: slice) -> _Rows:
    """The rows ``index`` of a Denoised or Cond, field by field along the batch."""
    return type(item)._make(None if field is None else field[index] for field in item)
