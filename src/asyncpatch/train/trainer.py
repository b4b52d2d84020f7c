"""A denoising network in training: what is drawn for a batch, its loss, and what one sees of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from asyncpatch import time_sampling
from asyncpatch.data.feed import Pictures, seed_for
from asyncpatch.data.masks import holes
from asyncpatch.data.store import Store
from asyncpatch.likelihood import SPAN
from asyncpatch.loss import diffusion_loss
from asyncpatch.models.folder import Model
from asyncpatch.models.unet import Layer, UNet, beside
from asyncpatch.protocols import NULL_LABEL
from asyncpatch.train.config import Recipe
from asyncpatch.train.errors import TrainingError
from asyncpatch.train.grids import inpainting_grid, sample_grid
from asyncpatch.train.learner import Learner
from asyncpatch.train.watch import Watch

HELD_OUT = 1024
"""Pictures at most on which the held-out loss is measured."""
HOLES = 4096
"""Of each kind, in the stock that a network is trained with."""
_FIRST_HOLE = 1 << 40


class Batch(NamedTuple):
    """A training batch: pictures in [-1, 1], their classes, their time fields, and the noise."""

    x: Tensor
    label: Tensor
    t: Tensor
    noise: Tensor
    hole: Tensor | None = None
    """What is not shown of the pictures, for a network that is shown the rest."""

    def piece(self, k: int, of: int) -> Batch:
        """Part k of ``of`` equal ones."""
        size = len(self.x) // of
        return Batch(*(None if each is None else each[k * size : (k + 1) * size] for each in self))


def draw_holes(kinds: str, side: int) -> Tensor:
    """A stock of holes to train with, of all the kinds that are named, uint8; of other seeds than an evaluation's."""
    names = [each.strip() for each in kinds.split(",")]
    seeds = range(_FIRST_HOLE, _FIRST_HOLE + HOLES)
    return torch.cat([holes(name, seeds, side, side).byte() for name in names])


def draw_batch(
    recipe: Recipe, pictures: Pictures, batch: int, rows: slice, seed: int, stock: Tensor | None = None
) -> Batch:
    """Draw everything random for a global batch of ``batch``, of which ``pictures`` are the given rows; holes are taken
    from ``stock``."""
    device, side = pictures.levels.device, pictures.levels.shape[1]
    generator = torch.Generator(device).manual_seed(seed)
    t = time_sampling.by_name(recipe.times).sample(batch, side, side, generator=generator)[rows]
    noise = torch.randn(batch, 3, side, side, generator=generator, device=device)[rows]
    flip, drop = torch.rand(2, batch, generator=generator, device=device)[:, rows]
    x = pictures.levels.permute(0, 3, 1, 2).float() / 127.5 - 1.0
    if recipe.flips:
        x = torch.where(flip.view(-1, 1, 1, 1) < 0.5, x.flip(3), x)
    label = torch.where(drop < recipe.label_dropout, NULL_LABEL, pictures.label)
    hole = None
    if stock is not None:
        which = torch.randint(len(stock), (batch,), generator=generator, device=device)[rows]
        hidden = torch.rand(batch, generator=generator, device=device)[rows] < recipe.picture_dropout
        hole = torch.where(hidden.view(-1, 1, 1, 1), 1.0, stock[which].float())
    return Batch(x, label, t, noise, hole)


class Trainer(Learner[Batch, Model]):
    """A denoising network in training."""

    apart = (Layer,)

    def __init__(self, recipe: Recipe, model: Model, accelerator: Accelerator, say: Callable[[str], None]) -> None:
        if bool(recipe.holes) != model.net.config["given"]:
            shown = "is shown pictures with holes" if model.net.config["given"] else "is shown no pictures with holes"
            raise TrainingError(f"the network to start from {shown}: that goes with the recipe's --holes, and stays")
        self.model = model
        stock = draw_holes(recipe.holes, recipe.resolution) if recipe.holes else None
        self.holes = None if stock is None else stock.to(accelerator.device)
        super().__init__(recipe, model.net, accelerator, say)

    def draw(self, pictures: Pictures, rows: slice, seed: int) -> Batch:
        return draw_batch(self.recipe, pictures, self.recipe.batch, rows, seed, self.holes)

    def loss(self, net: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a batch."""
        process, prediction, recipe = self.model.process, self.model.prediction, self.recipe
        t, scale = batch.t, 1.0
        if recipe.weighting == "elbo":  # then the loss is the bound's diffusion term, in nats per number
            even = time_sampling.evenly(time_sampling.by_name(recipe.times), t)
            t, scale = process.time_of(SPAN[0] + (SPAN[1] - SPAN[0]) * even), SPAN[0] - SPAN[1]
        z = process.diffuse(batch.x, t, batch.noise)
        with torch.autocast(z.device.type, torch.bfloat16, enabled=self.bf16):
            given = None if batch.hole is None else beside(batch.x, batch.hole)
            value = net(z, t, batch.label, given)
        losses = diffusion_loss(
            process, prediction, value, batch.x, batch.noise, t, bias=recipe.bias, weighting=recipe.weighting
        )
        return scale * losses.mean()

    def averaged(self) -> Model | None:
        """The model with its averaged weights, a copy, not compiled; None but in the main process."""
        weights = self.average("ema")
        if not self.accelerator.is_main_process:
            return None
        net = UNet.from_config(self.bare.config)
        net.load_state_dict(weights)
        return Model(net.eval(), self.model.process, self.model.prediction, self.model.resolution, self.model.labels)

    def facts(self) -> dict[str, Any]:
        model = self.model
        network = {name: value for name, value in self.bare.config.items() if not name.startswith("_")}
        return {
            "network": network, "process": model.process_name, "prediction": model.prediction,
            "resolution": model.resolution, "labels": list(model.labels),
        }  # fmt: skip

    @torch.no_grad()
    def look(self, made: Model, held: Store, watch: Watch) -> None:
        """Held-out loss, samples and inpainting, with the averaged weights."""
        device = self.accelerator.device
        made.net.to(device, memory_format=torch.channels_last)
        count = min(len(held), HELD_OUT)
        which = np.arange(count) * len(held) // count  # from all over the set, which may be sorted by class
        total = 0.0
        for start in range(0, count, 64):
            some = which[start : start + 64]
            shown = Pictures(*(torch.from_numpy(each[some]).to(device) for each in (held.pictures, held.labels)))
            seed = seed_for("held out", start)
            batch = draw_batch(self.recipe, shown, len(some), slice(None), seed, self.holes)
            total += float(self.loss(made.net, batch)) * len(some)
        watch.log(self.step, {"held_out_loss": total / count})
        with torch.autocast(device.type, torch.bfloat16, enabled=self.bf16):
            watch.picture(self.step, "samples", sample_grid(made, device))
            eight = held.pictures[which[:: -(-count // 8)]]
            watch.picture(self.step, "inpainting", inpainting_grid(made, eight, device))
