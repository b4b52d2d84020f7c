"""Guidance: move away from the answer to a weaker question (paper, section 3.3).

    (1)  x-hat = strong + weight (strong - weak)

Classifier-free guidance weakens the question by dropping its label; input guidance by adding noise to a region of
its canvas. They nest: the paper's equations are

    Guided(Guided(net, w_class, drop_label), w_input, renoise(...))

Strong and weak question are put side by side in one batch, so that the pair costs one call of the inner denoiser,
and the nested pair above one network call of 4B.

The paper writes (1) for scores. Where both questions share a time, x-hat and score differ by the same affine map,
and it is the same thing. Inside a renoised region they do not share it, and taking x-hat is our choice
(docs/deviations.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncpatch import checks
from asyncpatch.process import Process, check_process
from asyncpatch.protocols import NULL_LABEL, Cond, Denoised, Denoiser, Question, check_answer, concat, rows

Weaken = Callable[[Question], Question]
"""Makes a question weaker. Pure: whatever noise it needs was given when it was built."""


@dataclass(frozen=True)
class Guided:
    """A denoiser that is pushed away from its own answer to a weaker question, equation (1).

    ``weight`` is the paper's omega: 0 is off (and then the inner denoiser is called as it is). It may be a field
    [B, 1, H, W].
    """

    denoiser: Denoiser
    weight: float | Tensor
    weaken: Weaken

    def __post_init__(self) -> None:
        if isinstance(self.weight, Tensor):
            checks.field("weight", self.weight)

    def __call__(self, z: Tensor, t: Tensor, cond: Cond | None = None, /) -> Denoised:
        if not isinstance(self.weight, Tensor) and self.weight == 0:
            return self.denoiser(z, t, cond)
        weight = _for_each("weight", self.weight, z) if isinstance(self.weight, Tensor) else self.weight
        batch = len(z)
        weak_z, weak_t, weak_cond = self.weaken(Question(z, t, cond))
        if weak_cond is None and cond is not None and all(each is None for each in cond._replace(wanted=None)):
            weak_cond = cond  # the loop's own, which says where an answer is wanted
        if (cond is None) != (weak_cond is None):
            raise ValueError(
                "a weaker question must have a cond where the question has one, and none where it has none"
            )
        both_t = torch.cat([time.expand(batch, 1, *z.shape[2:]) for time in (t, weak_t)])
        both_cond = None if cond is None or weak_cond is None else concat(cond, weak_cond)
        both_z = torch.cat([z, weak_z])
        out = check_answer(self.denoiser(both_z, both_t, both_cond), both_z)
        strong, weak = rows(out, slice(batch)), rows(out, slice(batch, None))
        return strong._replace(x=strong.x + weight * (strong.x - weak.x))


def _for_each(name: str, field: Tensor, z: Tensor) -> Tensor:
    """A field with a row per sample, once for each question about it that an outer guidance has put side by side."""
    if field.dim() == 4 and len(field) > 1:
        field = field.repeat(max(1, len(z) // len(field)), 1, 1, 1)
    checks.field(name, field, z)
    return field


def drop_label(question: Question) -> Question:
    """The same question without its label: classifier-free guidance."""
    z, t, cond = question
    if cond is None or cond.label is None:
        raise ValueError("drop_label needs a label to drop: give cond=Cond(label=...), or use no class guidance")
    return Question(z, t, cond._replace(label=torch.full_like(cond.label, NULL_LABEL)))


def drop_picture(question: Question) -> Question:
    """The same question as if nothing of the picture were known: input guidance of a network that is shown it."""
    z, t, cond = question
    if cond is None or cond.hole is None:
        raise ValueError("drop_picture needs a picture to drop: give cond=Cond(picture=..., hole=...)")
    return Question(z, t, cond._replace(hole=torch.ones_like(cond.hole)))


def renoise(process: Process, level: Tensor, noise: Tensor) -> Weaken:
    """The same question with a region of its canvas noised further: input guidance.

    ``level`` [B, 1, H, W] (or broadcastable) is the time that each token is raised to; tokens that are noisier
    already, and those with level 0, stay as they are. ``renoise(process, 1 - hole, noise)`` hides all that is known
    of a picture, ``0.5 * region`` blurs one region half. ``noise`` [B, C, H, W] is used at every call.
    """
    check_process(process)
    checks.canvas("noise", noise)
    checks.times("level", level, noise, wait=True)

    def weaken(question: Question) -> Question:
        z, t, cond = question
        own = noise.repeat(len(z) // len(noise), 1, 1, 1)
        if own.shape != z.shape:
            raise ValueError(f"noise must have the shape of the canvas, {list(z.shape)}, got {checks.shape_of(noise)}")
        s = torch.maximum(t, _for_each("level", level, z).to(t.dtype))
        return Question(process.transition(z, t, s, own.to(z.dtype)), s, cond)

    return weaken
