"""How likely pictures are to a model: the bound of ``likelihood``, for pictures of any size and for filled holes.

A picture larger than the model's window is judged by overlapping windows (``windows``): what they say together is a
denoiser like any other, and every denoiser has a bound. A model of latents bounds the density of a picture's latents:
such figures can be compared among pictures and fillings, not with those of another model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from PIL import Image
from torch import Tensor

from asyncpatch.drawing import heat
from asyncpatch.images import Picture
from asyncpatch.likelihood import SPAN, ElboTerms, Path, elbo, random_path, schedule_path, synchronous_path
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.plans import Task
from asyncpatch.protocols import Cond
from asyncpatch.regions import boxes
from asyncpatch.sampling import generators
from asyncpatch.schedules import inpainting
from asyncpatch.windows import Windows

CALLS = 64
"""Questions to the network, unless something else is said."""


def path_by_name(name: str) -> Path:
    """``synchronous``, or the side of the patches that go each at its own pace: ``1`` for pixels, ``8``, ..."""
    if name == "synchronous":
        return synchronous_path()
    if not name.isdecimal() or int(name) < 1:
        raise ValueError(f"a path is 'synchronous' or the side of its patches, such as 1 or 8; got {name!r}")
    return random_path(int(name))


def judge(
    pipeline: AsyncPatchPipeline,
    picture: Picture,
    path: Path,
    *,
    calls: int = CALLS,
    hole: Tensor | None = None,
    label: int = -1,
    seed: int = 0,
    span: tuple[float, float] = SPAN,
    progress: Callable[[int, int], object] | None = None,
) -> ElboTerms:
    """The bound on log p of a picture's levels, at 8 bits and without transparency, as the model sees it; or, for a
    model of latents, on the log density of these.

    With a ``hole`` [1, H, W] it is the bound on log p(hole | the rest); then the path is that of inpainting.
    """
    x = ((picture.x + 1.0) * 127.5).round() / 127.5 - 1.0
    whole = None if hole is None else hole[None]
    return _bound(pipeline, x[None], path, [seed], label, calls=calls, bits=8, span=span, hole=whole, progress=progress)


def rank(
    pipeline: AsyncPatchPipeline, task: Task, candidates: Sequence[Picture], *, calls: int = CALLS, seed: int = 0
) -> Tensor:
    """A bound on log p(hole | its surroundings) for each candidate filling of a task, [n]: the higher, the likelier.

    All candidates are judged with the same noise, which makes them easier to compare.
    """
    total = torch.zeros(len(candidates), dtype=torch.float64)
    for box in boxes(task.hole[0], pipeline.model.resolution):
        top, left, height, width = box.top, box.left, box.bottom - box.top, box.right - box.left
        x = torch.stack([each.window(top, left, height, width) for each in candidates])
        bits = 8 if task.picture.bits == 8 and task.picture.alpha is None and not task.picture.grey else None
        hole = box.of(task.hole)[None]
        terms = _bound(pipeline, x, None, [seed] * len(x), task.label, calls=calls, bits=bits, hole=hole)
        total += terms.total.cpu()
    return total


def heat_map(terms: ElboTerms, scale: int = 1) -> Image.Image:
    """Where a picture surprises: its nats pixel by pixel, from dark (expected) to bright, over their middle 96 %."""
    nats = -terms.map[0, 0].float().cpu()
    judged = nats[nats != 0] if bool((nats != 0).any()) else nats.flatten()  # what is known adds nothing at all
    some = judged[:: -(-len(judged) // 1_000_000)]
    low, high = (float(each) for each in some.quantile(torch.tensor([0.02, 0.98])))
    return heat(nats, low, high, scale)


def _bound(
    pipeline: AsyncPatchPipeline, x: Tensor, path: Path | None, seeds: list[int], label: int, *, calls: int,
    bits: int | None, span: tuple[float, float] = SPAN, hole: Tensor | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> ElboTerms:  # fmt: skip
    """Of pictures x, by a path; or of what is in a hole [1, 1, H, W], by that of inpainting."""
    model, device = pipeline.model, next(pipeline.unet.parameters()).device
    x, told = x.to(device), Cond(label=torch.full((len(x),), label, device=device))
    open_ = None
    if hole is not None:
        open_ = model.codec.tokens((hole > 0).float().to(device))
        path = schedule_path(inpainting(open_, 1))
    assert path is not None
    return elbo(
        Windows(model.denoiser, model.tokens, hole=open_), model.codec.encode(x, torch.zeros_like(x[:, :1])),
        process=model.process, path=path, calls=calls, bits=bits if model.codec.levels else None, cond=told,
        generator=generators(seeds), span=span, progress=progress,
    )  # fmt: skip
