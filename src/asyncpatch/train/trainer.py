"""A network in training: what is drawn for a batch, one step of Adam, and the state that a checkpoint holds.

Everything random of step k (fields, noise, flips, dropped labels) is drawn for the whole global batch from the seed and
k; each process takes its rows. So a run does not depend on how many processes share it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from torch import Tensor, nn

from asyncpatch import time_sampling
from asyncpatch.data.feed import Pictures
from asyncpatch.data.masks import holes
from asyncpatch.likelihood import SPAN
from asyncpatch.loss import diffusion_loss
from asyncpatch.models.folder import Model
from asyncpatch.models.unet import Layer, UNet, beside
from asyncpatch.protocols import NULL_LABEL
from asyncpatch.train import average
from asyncpatch.train.config import Recipe
from asyncpatch.train.errors import TrainingError
from asyncpatch.train.sharded import fill, whole

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


class Trainer:
    """A network in training: its weights, Adam, averages, and how far it is."""

    def __init__(self, recipe: Recipe, model: Model, accelerator: Accelerator, say: Callable[[str], None]) -> None:
        self.recipe, self.model, self.accelerator, self.say = recipe, model, accelerator, say
        device = accelerator.device
        if bool(recipe.holes) != model.net.config["given"]:
            shown = "is shown pictures with holes" if model.net.config["given"] else "is shown no pictures with holes"
            raise TrainingError(f"the network to start from {shown}: that goes with the recipe's --holes, and stays")
        self.holes = draw_holes(recipe.holes, recipe.resolution).to(device) if recipe.holes else None
        self.bf16 = recipe.precision == "bf16" or (
            recipe.precision == "auto"
            and device.type == "cuda"
            and torch.cuda.is_bf16_supported(including_emulation=False)
        )
        net = model.net.float().train()
        if recipe.checkpointing:
            net.enable_gradient_checkpointing()
        if not recipe.shard:  # FSDP2 wants its tensors plain
            net = net.to(device, memory_format=torch.channels_last)
        self.compiled: list[Any] = []
        if recipe.compile == "on" or (recipe.compile == "auto" and device.type == "cuda"):
            self._compile(net)
        adam = torch.optim.Adam(
            net.parameters(), recipe.rate, betas=(recipe.betas[0], recipe.betas[1]), eps=recipe.epsilon,
            fused=device.type == "cuda",
        )  # fmt: skip
        self.net, self.adam = accelerator.prepare(net, adam)
        self.names = [name for name, _ in net.named_parameters()]
        self.parameters = list(accelerator.unwrap_model(self.net).parameters())
        named = list(zip(self.names, self.parameters, strict=True))
        self.averages = {"ema": average.Average(named, average.exponential(recipe.ema))}
        if recipe.snapshot_every:
            for sigma in average.SIGMAS:
                self.averages[average.kind_of(sigma)] = average.Average(named, average.power(sigma))
        self.step = 0
        # sums of losses and of gradient norms since the last line of the log, and their number
        self.meter = torch.zeros(3, device=device)
        self.accumulate = 1 if recipe.accumulate == "auto" else recipe.accumulate

    def _compile(self, net: UNet) -> None:
        if self.recipe.shard:  # hooks that gather weights would break one graph: layers are compiled apart
            self.compiled = [each for each in net.modules() if isinstance(each, Layer)]
            # they share their code, of which there is a version for every shape: far more than the usual limit
            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 4 * len(self.compiled))
        else:
            self.compiled = [net]
        for each in self.compiled:
            each.compile(fullgraph=True, dynamic=False)

    @property
    def bare(self) -> UNet:
        """The network as it is inside what accelerate made of it."""
        return self.accelerator.unwrap_model(self.net)

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

    def update(self, batch: Batch) -> None:
        """One step of Adam, and of the averages."""
        for group in self.adam.param_groups:
            group["lr"] = self.recipe.rate_at(self.step)
        pieces = self.accumulate
        total = torch.zeros((), device=self.meter.device)
        for k in range(pieces):
            last = k + 1 == pieces
            with nullcontext() if last else self.accelerator.no_sync(self.net):
                loss = self.loss(self.net, batch.piece(k, pieces)) / pieces
                self.accelerator.backward(loss)
            total += loss.detach()
        norm = self.accelerator.clip_grad_norm_(self.net.parameters(), self.recipe.clip)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        self.step += 1
        for each in self.averages.values():
            each.update(self.parameters, self.step)
        self.meter += torch.stack([total, norm.to(total), torch.ones_like(total)])

    def first_update(self, batch: Batch) -> None:
        """``update`` for the first time in this process, when it shows whether the machine can do it."""
        if self.recipe.accumulate == "auto":
            self.accumulate = self.fitting_pieces(batch)
        try:
            self.update(batch)
        except Exception as error:
            if not self.compiled or not _from_compiler(error):
                raise
            first = str(error).strip().splitlines()[0]
            self.say(f"torch.compile does not work here ({first}); going on without it, which is slower")
            for each in self.compiled:
                each._compiled_call_impl = None
            self.compiled = []
            self.adam.zero_grad(set_to_none=True)
            self.update(batch)

    def fitting_pieces(self, batch: Batch) -> int:
        """The fewest equal pieces with which a batch fits in memory in every process.

        Tried without compilation, which needs rather more, and with room kept for what Adam will need.
        """
        if self.recipe.shard:
            raise TrainingError("--batch auto cannot be combined with --shard; set --accumulate yourself")
        forward, self.bare._compiled_call_impl = self.bare._compiled_call_impl, None
        rows, size = len(batch.x), sum(p.numel() for p in self.parameters)
        for pieces in (each for each in range(1, rows + 1) if rows % each == 0):
            reserve = None
            try:
                reserve = torch.empty(3 * size, device=self.meter.device)
                self.loss(self.bare, batch.piece(0, pieces)).backward()
                fits = True
            except torch.OutOfMemoryError:
                fits = False
            del reserve
            self.adam.zero_grad(set_to_none=True)
            if self.meter.device.type == "cuda":
                torch.cuda.empty_cache()
            if self.all_agree(fits):
                self.bare._compiled_call_impl = forward
                self.say(f"memory holds {rows // pieces} pictures at a time: --accumulate {pieces}")
                return pieces
        raise TrainingError(
            "out of memory even with one picture at a time: make the network smaller (--width), add --checkpointing, "
            "or spread its weights over more GPUs (--shard)"
        )

    def all_agree(self, flag: bool) -> bool:
        """Whether all processes say so."""
        if self.accelerator.num_processes == 1:
            return flag
        votes = self.accelerator.reduce(torch.tensor([float(flag)], device=self.meter.device), "sum")
        return bool(votes == self.accelerator.num_processes)

    def read_meter(self) -> Tensor:
        """The meter's mean over the processes."""
        if self.accelerator.num_processes > 1:
            self.meter = self.accelerator.reduce(self.meter, "mean")
        return self.meter

    def state(self) -> dict[str, Tensor]:
        """All tensors of a checkpoint, in full, on the CPU of the main process (the others get nothing).

        All processes must ask for it together.
        """
        found = {f"weights/{name}": p for name, p in zip(self.names, self.parameters, strict=True)}
        for name, p in zip(self.names, self.parameters, strict=True):
            found |= {f"adam/{key}/{name}": self.adam.state[p][key] for key in ("exp_avg", "exp_avg_sq")}
        for kind, each in self.averages.items():
            found |= {f"average/{kind}/{name}": value for name, value in each.weights.items()}
        return self._gathered({**found, "meter": self.read_meter()})

    def _gathered(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        keep = self.accelerator.is_main_process
        gathered = ((name, whole(value, keep=keep)) for name, value in tensors.items())
        return {name: value for name, value in gathered if value is not None}

    def restore(self, tensor: Callable[[str], Tensor], step: int) -> None:
        """Take up the state of a checkpoint, one tensor after the other."""
        self.step = step
        self.meter = tensor("meter").to(self.meter.device)
        counter = torch.tensor(float(step))
        for name, p in zip(self.names, self.parameters, strict=True):
            fill(p, tensor(f"weights/{name}"))
            state = self.adam.state[p]
            state["step"] = counter.to(p.device) if self.meter.device.type == "cuda" else counter.clone()
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = torch.zeros_like(p)
                fill(state[key], tensor(f"adam/{key}/{name}"))
        for kind, each in self.averages.items():
            for name, value in each.weights.items():
                try:
                    fill(value, tensor(f"average/{kind}/{name}"))
                except SafetensorError:  # snapshots were not asked for before: this average starts here
                    fill(value, tensor(f"weights/{name}"))

    def average(self, kind: str) -> dict[str, Tensor]:
        """Averaged weights, in the main process. All processes must ask for them together."""
        return self._gathered(self.averages[kind].weights)

    def averaged(self) -> Model | None:
        """The model with its averaged weights, a copy, not compiled; None but in the main process."""
        weights = self.average("ema")
        if not self.accelerator.is_main_process:
            return None
        net = UNet.from_config(self.bare.config)
        net.load_state_dict(weights)
        return Model(net.eval(), self.model.process, self.model.prediction, self.model.resolution, self.model.labels)


def _from_compiler(error: Exception) -> bool:
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor", "triton"))
