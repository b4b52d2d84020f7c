"""A denoising network in training: what is drawn for a batch, its loss, and what one sees of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from asyncpatch import time_sampling
from asyncpatch.codecs import PIXELS, Codec, Coder, Latents
from asyncpatch.data.feed import Feed, Pictures, StoredFeed, room
from asyncpatch.data.store import Store
from asyncpatch.likelihood import SPAN
from asyncpatch.loss import diffusion_loss
from asyncpatch.models.autoencoder import Autoencoder
from asyncpatch.models.folder import Model, codec_of, relabelled
from asyncpatch.models.placing import place
from asyncpatch.models.unet import Layer, UNet, beside
from asyncpatch.process import PROCESSES
from asyncpatch.protocols import NULL_LABEL
from asyncpatch.train.config import NEEDED, Recipe
from asyncpatch.train.errors import TrainingError
from asyncpatch.train.grids import eight_of, inpainting_grid, sample_grid
from asyncpatch.train.inputs import Say, draw_holes, kinds_of_holes, shown
from asyncpatch.train.learner import Learner, from_compiler, held_out
from asyncpatch.train.watch import Watch


class Batch(NamedTuple):
    """A training batch: tokens of pictures, their classes, their time fields, and the noise."""

    x: Tensor
    label: Tensor
    t: Tensor
    noise: Tensor
    given: Tensor | None = None
    """What is known of the pictures, for a network that is shown it."""


@torch.no_grad()
def draw_batch(
    recipe: Recipe, pictures: Pictures, batch: int, rows: slice, seed: int, stock: Tensor | None = None,
    codec: Codec = PIXELS, tokens: Tensor | None = None,
) -> Batch:  # fmt: skip
    """Draw everything random for a global batch of ``batch``, of which ``pictures`` are the given rows; holes are taken
    from ``stock``, and tokens from ``tokens`` where they are encoded already (``all_tokens``)."""
    device, side = pictures.levels.device, pictures.levels.shape[1]
    generator = torch.Generator(device).manual_seed(seed)
    across = side // codec.factor
    t = time_sampling.by_name(recipe.times).sample(batch, across, across, generator=generator)[rows]
    noise = torch.randn(batch, codec.channels, across, across, generator=generator, device=device)[rows]
    flip, drop = torch.rand(2, batch, generator=generator, device=device)[:, rows]
    if tokens is None or stock is not None:
        x = shown(pictures.levels, flip if recipe.flips else None)
    label = torch.where(drop < recipe.label_dropout, NULL_LABEL, pictures.label)
    given = None
    if stock is not None:
        which = torch.randint(len(stock), (batch,), generator=generator, device=device)[rows]
        hidden = torch.rand(batch, generator=generator, device=device)[rows] < recipe.picture_dropout
        hole = torch.where(hidden.view(-1, 1, 1, 1), 1.0, stock[which].float())
        given = beside(codec.encode(x, hole), codec.tokens(hole))
    if tokens is None:
        whole = codec.encode(x, torch.zeros_like(x[:, :1]))
    else:
        whole = tokens[pictures.place, (flip < 0.5).long() if recipe.flips else 0]
    return Batch(whole, label, t, noise, given)


@torch.no_grad()
def all_tokens(recipe: Recipe, store: Store, codec: Codec, device: torch.device) -> Tensor:
    """Of all pictures, and of their mirror images if the recipe has such, [N, 1 or 2, d, h, w], float32."""
    across = recipe.resolution // codec.factor
    found = torch.empty(len(store), 1 + recipe.flips, codec.channels, across, across, device=device)
    for k in range(0, len(store), 256):
        x = shown(torch.from_numpy(store.pictures[k : k + 256].copy()).to(device), None)
        for way in range(1 + recipe.flips):
            seen = x.flip(3) if way else x
            found[k : k + 256, way] = codec.encode(seen, torch.zeros_like(seen[:, :1])).float()
    return found


class Quick:
    """A coder that encodes batches of one size, compiled; without that, where it does not work."""

    def __init__(self, coder: Coder, say: Say) -> None:
        self.coder, self.say, self.factor, self.reach = coder, say, coder.factor, coder.reach
        self.compiled: Any = torch.compile(coder.encode, fullgraph=True, dynamic=False)

    def encode(self, x: Tensor, hole: Tensor) -> Tensor:
        if self.compiled is None:
            return self.coder.encode(x, hole)
        try:
            encoded: Tensor = self.compiled(x, hole)
            return encoded
        except Exception as error:
            if not from_compiler(error):
                raise
            self.say("torch.compile does not work for the autoencoder here; going on without it, which is slower")
            self.compiled = None
            return self.coder.encode(x, hole)

    def decode(self, e: Tensor) -> Tensor:
        return self.coder.decode(e)


class Trainer(Learner[Recipe, Batch, Model]):
    """A denoising network in training."""

    apart = (Layer,)
    smaller = "make the network smaller (--width), add --checkpointing, or spread its weights over more GPUs (--shard)"

    def __init__(self, recipe: Recipe, model: Model, accelerator: Accelerator, say: Say) -> None:
        if bool(recipe.holes) != model.net.config["given"]:
            said = "is shown pictures with holes" if model.net.config["given"] else "is shown no pictures with holes"
            raise TrainingError(f"the network to start from {said}: that goes with the recipe's --holes, and stays")
        self.model = model
        if isinstance(model.codec, Latents):
            place(model.codec.coder, accelerator.device, torch.float32)
        self.tokens: Tensor | None = None
        stock = draw_holes(recipe.holes, recipe.resolution) if recipe.holes else None
        self.holes = None if stock is None else stock.to(accelerator.device)
        super().__init__(recipe, model.net, accelerator, say)
        self.codec = model.codec
        """For training batches."""
        if isinstance(model.codec, Latents) and self.compiled:
            self.codec = replace(model.codec, coder=Quick(model.codec.coder, say))

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        if recipe.autoencoder == NEEDED:
            raise ValueError("this recipe is for latents: add --autoencoder FOLDER, of a model of train-autoencoder")
        times = time_sampling.by_name(recipe.times)
        if recipe.weighting == "elbo":
            time_sampling.evenly(times, torch.zeros(1))
        if recipe.holes and recipe.times != "global":
            raise ValueError(
                f"a network that is shown pictures with --holes has one time per picture: add --times global (now "
                f"{recipe.times!r})"
            )
        if recipe.holes:
            kinds_of_holes(recipe.holes)

    @classmethod
    def new(
        cls, recipe: Recipe, init: str | None, names: tuple[str, ...], accelerator: Accelerator, say: Say
    ) -> Trainer:
        """With the recipe's network, or that of ``init``, whose classes may differ."""
        if init is None:
            codec = _new_codec(recipe)
            net = UNet(
                in_channels=codec.channels, out_channels=codec.channels, width=recipe.width,
                multipliers=recipe.multipliers, blocks=recipe.blocks, middle_blocks=recipe.middle_blocks,
                attention=recipe.attention, labels=len(names), fourier=recipe.fourier, given=bool(recipe.holes),
            )  # fmt: skip
            process = PROCESSES[recipe.process]()
            return cls(
                recipe, Model(net, process, recipe.prediction, recipe.resolution, names, codec=codec), accelerator, say
            )
        old = Model.load(init)
        if isinstance(old.codec, Latents) and not recipe.autoencoder:
            raise TrainingError(f"{init} works on latents: add --autoencoder {init}")
        net = old.net
        if names != old.labels:
            known = len(set(names) & set(old.labels))
            say(f"{init} knows {known} of the {len(names)} classes; the others start as the null class")
            net = relabelled(net, old.labels, names)
        codec = old.codec if isinstance(old.codec, Latents) else _new_codec(recipe)
        model = Model(net, old.process, old.prediction, recipe.resolution, names, codec=codec)
        return cls(recipe, model, accelerator, say)

    @classmethod
    def again(
        cls, recipe: Recipe, facts: dict[str, Any], names: tuple[str, ...], accelerator: Accelerator, say: Say
    ) -> Trainer:
        if tuple(facts["labels"]) != names:
            raise TrainingError(
                f"the run was started with {len(facts['labels'])} classes, the data now have {len(names)}, or others: "
                "to train the model on other data start a new run with --init"
            )
        net, told = UNet.from_config(facts["network"]), facts.get("latents")
        if (told is None) == bool(recipe.autoencoder):
            raise TrainingError(f"the run was started {'with' if told else 'without'} --autoencoder: that stays")
        codec = codec_of(Autoencoder.load(recipe.autoencoder) if recipe.autoencoder else None, told)
        process = PROCESSES[facts["process"]]()
        model = Model(net, process, facts["prediction"], facts["resolution"], names, codec=codec)
        return cls(recipe, model, accelerator, say)

    def _arithmetic(self) -> torch.autocast:
        return torch.autocast(self.meter.device.type, torch.bfloat16, enabled=self.bf16)

    def prepare(self, feed: Feed) -> None:
        """Encode all pictures, if each will be seen more often than that takes, and there is room for their tokens."""
        recipe, codec, device = self.recipe, self.model.codec, self.accelerator.device
        if not isinstance(codec, Latents) or not isinstance(feed, StoredFeed):
            return
        encoded = len(feed.store) * (1 + recipe.flips)
        size = 4 * codec.channels * (recipe.resolution // codec.factor) ** 2
        if recipe.steps * recipe.batch > 2 * encoded and encoded * size < room(device):  # also if it is resumed late
            self.say(f"encoding {encoded:,} pictures, once")
            with self._arithmetic():
                self.tokens = all_tokens(recipe, feed.store, codec, device)

    def draw(self, pictures: Pictures, rows: slice, seed: int) -> Batch:
        with self._arithmetic():
            return draw_batch(self.recipe, pictures, self.recipe.batch, rows, seed, self.holes, self.codec, self.tokens)

    def loss(self, net: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a batch."""
        process, prediction, recipe = self.model.process, self.model.prediction, self.recipe
        t, scale = batch.t, 1.0
        if recipe.weighting == "elbo":  # then the loss is the bound's diffusion term, in nats per number
            even = time_sampling.evenly(time_sampling.by_name(recipe.times), t)
            t, scale = process.time_of(SPAN[0] + (SPAN[1] - SPAN[0]) * even), SPAN[0] - SPAN[1]
        z = process.diffuse(batch.x, t, batch.noise)
        with self._arithmetic():
            value = net(z, t, batch.label, batch.given)
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
        return replace(self.model, net=net.eval())

    def facts(self) -> dict[str, Any]:
        model = self.model
        network = {name: value for name, value in self.bare.config.items() if not name.startswith("_")}
        return {
            "network": network, "process": model.process_name, "prediction": model.prediction,
            "labels": list(model.labels), "latents": model.codec.told() if isinstance(model.codec, Latents) else None,
        }  # fmt: skip

    @torch.no_grad()
    def look(self, made: Model, held: Store, watch: Watch) -> None:
        """Held-out loss, samples and inpainting, with the averaged weights."""
        device = self.accelerator.device
        made.net.to(device, memory_format=torch.channels_last)
        total, count = 0.0, 0
        for pictures, seed in held_out(held, device):
            some = len(pictures.levels)
            with self._arithmetic():
                batch = draw_batch(self.recipe, pictures, some, slice(None), seed, self.holes, made.codec)
            total, count = total + float(self.loss(made.net, batch)) * some, count + some
        watch.log(self.step, {"held_out_loss": total / count})
        with self._arithmetic():
            watch.picture(self.step, "samples", sample_grid(made, device))
            watch.picture(self.step, "inpainting", inpainting_grid(made, eight_of(held), device))


def _new_codec(recipe: Recipe) -> Codec:
    if not recipe.autoencoder:
        return PIXELS
    coder = Autoencoder.load(recipe.autoencoder)
    if recipe.resolution % coder.factor:
        raise ValueError(f"resolution must divide by {coder.factor} with this autoencoder, got {recipe.resolution}")
    return Latents(coder, *coder.codebook.moments())
