"""Training of the head that says how sure a network is, beside the network, which stays as it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from asyncpatch import time_sampling
from asyncpatch.codecs import Codec, Latents
from asyncpatch.data.feed import Pictures, StoredFeed, seed_for
from asyncpatch.data.sources import DataError
from asyncpatch.data.store import Store, open_split
from asyncpatch.loss import uncertainty_loss
from asyncpatch.models.denoiser import NetworkDenoiser
from asyncpatch.models.folder import HEAD, Model
from asyncpatch.models.placing import choose_device, choose_precision, place
from asyncpatch.models.uncertainty import UncertaintyHead
from asyncpatch.protocols import Cond
from asyncpatch.train import checkpoint
from asyncpatch.train.config import HeadRecipe, Recipe
from asyncpatch.train.trainer import Batch, draw_batch

Say = Callable[[str], None]
BINS = 10
"""Of time, and of predicted error, in which predictions are compared with what happens."""


def train_uncertainty(
    folder: Path | str, data: Sequence[str], recipe: HeadRecipe = HeadRecipe(), *, cache: Path | None = None,  # noqa: B008
    say: Say = print,
) -> dict[str, Any]:  # fmt: skip
    """Train a head for the model in ``folder`` and put it there, with ``calibration.json`` beside it; returns that.
    With no steps the head that is there is measured anew."""
    time_sampling.by_name(recipe.times)
    folder = Path(folder)
    device = choose_device(recipe.device)
    model = Model.load(folder, head=not recipe.steps)
    if not recipe.steps and model.head is None:
        raise ValueError(f"{folder} has no head to be measured: train one, with steps")
    held = _store(data, "validation", model, cache)
    training = _store(data, "train", model, cache) if recipe.steps or held is None else None
    shown = held if held is not None else training
    if shown is None or (recipe.steps and training is None):
        raise DataError(f"there are no training pictures in {', '.join(data)}")
    dtype = choose_precision(device, recipe.precision)
    place(model.net, device, dtype)
    if isinstance(model.codec, Latents):
        place(model.codec.coder, device, dtype)
    torch.manual_seed(recipe.seed)
    head = (model.head or UncertaintyHead.beside(model.net)).to(device).float()
    denoiser = NetworkDenoiser(model.net, model.process, model.prediction, head)
    drawn = Recipe(times=recipe.times, resolution=model.resolution, batch=recipe.batch)
    if training is not None and recipe.steps:
        _learn(denoiser, head, training, drawn, recipe, model.codec, say)
    if held is None:
        say("no pictures are held out: the calibration is that of training pictures")
    found = {"held out": held is not None, **calibration(denoiser, drawn, shown, model.codec)}
    with checkpoint.whole_or_nothing(folder / HEAD) as part:
        head.to("cpu").half().save_pretrained(part)
        (part / "calibration.json").write_text(json.dumps(found, indent=1) + "\n")
    model.write_index(folder, head=True)
    return found


def _learn(
    denoiser: NetworkDenoiser, head: UncertaintyHead, training: Store, drawn: Recipe, recipe: HeadRecipe, codec: Codec,
    say: Say,
) -> None:  # fmt: skip
    device = denoiser.net.device
    adam = torch.optim.Adam(head.parameters(), recipe.rate)
    feed = StoredFeed(training, recipe.batch, recipe.seed, device)
    size = sum(p.numel() for p in head.parameters())
    say(f"{len(training):,} pictures; a head of {size / 1e6:.2f}M parameters, {recipe.steps:,} steps on {device}")
    every = max(1, recipe.steps // 20)
    try:
        for step in range(recipe.steps):
            for group in adam.param_groups:
                group["lr"] = recipe.rate * (1.0 - step / recipe.steps)
            seed = seed_for(recipe.seed, "uncertainty", step)
            batch = draw_batch(drawn, feed.batch(step), recipe.batch, slice(None), seed, codec=codec)
            loss = _loss(denoiser, batch)
            adam.zero_grad(set_to_none=True)
            if not bool(loss.isfinite()):
                raise ValueError(f"the loss is no longer a number (step {step + 1}): try a lower --rate")
            loss.backward()  # type: ignore[no-untyped-call]
            adam.step()
            if (step + 1) % every == 0 or step + 1 == recipe.steps:
                say(f"step {step + 1}/{recipe.steps}, loss {loss.item():.4f}")
    finally:
        feed.close()


def _store(data: Sequence[str], split: str, model: Model, cache: Path | None) -> Store | None:
    store = open_split(data, split, model.resolution, cache)
    if store is None:
        return None
    number = [model.labels.index(name) if name in model.labels else -1 for name in store.names] + [-1]
    return Store(store.pictures, torch.tensor(number).numpy()[store.labels], model.labels, store.broken)


def _asked(denoiser: NetworkDenoiser, batch: Batch) -> tuple[Tensor, Tensor]:
    """x-hat and logvar of a batch, the network without gradients."""
    z = denoiser.process.diffuse(batch.x, batch.t, batch.noise)
    with torch.autocast(z.device.type, torch.bfloat16, enabled=denoiser.net.dtype == torch.bfloat16):
        out = denoiser(z, batch.t, Cond(label=batch.label))  # the network's weights want no gradients
    assert out.logvar is not None
    return out.x, out.logvar


def _loss(denoiser: NetworkDenoiser, batch: Batch) -> Tensor:
    """Over tokens with noise: at time 0 nothing is wrong, and the loss would fall without end."""
    x, logvar = _asked(denoiser, batch)
    noisy = (batch.t > 0).float()
    return (uncertainty_loss(logvar, batch.x, x) * noisy).sum() / noisy.sum().clamp_min(1.0)


@torch.no_grad()
def calibration(
    denoiser: NetworkDenoiser, recipe: Recipe, held: Store, codec: Codec, count: int = 1024
) -> dict[str, Any]:
    """What was predicted of pictures and what came of it: mean squared errors by time, by prediction and by region.

    ``ratio`` is the mean of real over predicted, 1 if all is well; ``correlation`` that of the logarithms over patches
    of 8 tokens at times above 0.05, within which the error of a single one is mostly chance. Regions are such patches:
    ``by detail`` from the evenest to the busiest fifth, by the deviation within a patch of the network's answer; ``by
    place`` from the rim of the picture to its middle.
    """
    device = denoiser.net.device
    count = min(count, len(held))
    said, real, at, patches = (list[Tensor]() for _ in range(4))
    for start in range(0, count, recipe.batch):
        which = [k * len(held) // count for k in range(start, min(count, start + recipe.batch))]
        shown = Pictures(*(torch.from_numpy(each[which]).to(device) for each in (held.pictures, held.labels)))
        batch = draw_batch(recipe, shown, len(which), slice(None), seed_for("calibration", start), codec=codec)
        x, logvar = _asked(denoiser, batch)
        error = (x - batch.x).square().mean(1, keepdim=True)
        t = batch.t.expand_as(error)
        side = min(8, error.shape[-1])
        pooled = [avg_pool2d(each, side) for each in (logvar.exp(), error, t)]
        spread = (avg_pool2d(x.square(), side) - avg_pool2d(x, side).square()).mean(1, keepdim=True)
        inwards = [torch.minimum(k := torch.arange(each, device=device), each - 1 - k) for each in spread.shape[2:]]
        ring = torch.minimum(inwards[0][:, None], inwards[1]).expand_as(spread)
        patches.append(torch.stack([each.flatten() for each in (*pooled, spread, ring)]).cpu())
        known = t.flatten() > 0
        for parts, value in ((said, logvar.exp()), (real, error), (at, t)):
            parts.append(value.flatten()[known].cpu())
    predicted, errors, times = (torch.cat(parts).double() for parts in (said, real, at))
    by_patch = torch.cat(patches, 1).double()
    by_patch = by_patch[:, by_patch[2] > 0.05]
    logs = by_patch[:2].clamp_min(1e-12).log()
    order = predicted.argsort().tensor_split(BINS)
    said_there, real_there, _, spread_there, ring_there = by_patch
    return {
        "pictures": count,
        "ratio": float(errors.mean() / predicted.mean()),
        "correlation": float(torch.corrcoef(logs)[0, 1]),
        "by time": [
            _pair(predicted, errors, ((times * BINS).clamp_max(BINS - 1).long() == k).nonzero()[:, 0])
            | {"from": k / BINS}
            for k in range(BINS)
        ],
        "by prediction": [_pair(predicted, errors, some) for some in order],
        "by detail": [
            _pair(said_there, real_there, some) | {"deviation": float(spread_there[some].clamp_min(0).sqrt().mean())}
            for some in spread_there.argsort().tensor_split(5)
        ],
        "by place": [
            _pair(said_there, real_there, (ring_there == k).nonzero()[:, 0])
            for k in range(int(ring_there.max()) + 1 if len(ring_there) else 0)
        ],
    }


def _pair(predicted: Tensor, errors: Tensor, which: Tensor) -> dict[str, float]:
    if not len(which):
        return {"predicted": 0.0, "real": 0.0, "tokens": 0}
    return {"predicted": float(predicted[which].mean()), "real": float(errors[which].mean()), "tokens": len(which)}
