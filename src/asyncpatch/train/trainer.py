"""The training loop: pictures, a time per token, noise, the loss, and never losing a run.

Everything random of step k (order, fields, noise, flips, dropped labels) is drawn for the whole global batch from the
seed and k; each process takes its rows. So a run does not depend on how many processes share it, nor on whether it
was interrupted: ``kill -9`` and ``resume`` lead to the same weights, bit for bit on a CPU.
"""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import FullyShardedDataParallelPlugin
from safetensors.torch import save_file
from torch import Tensor, nn

import asyncpatch
from asyncpatch import time_sampling
from asyncpatch.data.feed import Feed, Pictures, Share, StoredFeed, StreamedFeed, seed_for
from asyncpatch.data.sources import DataError, Joined, Shards, open_sources
from asyncpatch.data.store import Store, open_store
from asyncpatch.loss import diffusion_loss
from asyncpatch.models.folder import Model, relabelled
from asyncpatch.models.unet import Layer, UNet
from asyncpatch.process import PROCESSES
from asyncpatch.protocols import NULL_LABEL
from asyncpatch.train import average, checkpoint
from asyncpatch.train.config import Recipe
from asyncpatch.train.errors import Stopped, TrainingError
from asyncpatch.train.grids import inpainting_grid, sample_grid
from asyncpatch.train.watch import Watch

CONFIG = "config.json"
HELD_OUT = 1024
"""Pictures at most on which the held-out loss is measured."""


class Batch(NamedTuple):
    """A training batch: pictures in [-1, 1], their classes, their time fields, and the noise."""

    x: Tensor
    label: Tensor
    t: Tensor
    noise: Tensor

    def piece(self, k: int, of: int) -> Batch:
        """Part k of ``of``."""
        return Batch(*(each.chunk(of)[k] for each in self))


def draw_batch(recipe: Recipe, pictures: Pictures, batch: int, rows: slice, seed: int) -> Batch:
    """Draw everything random for a global batch of ``batch``, of which ``pictures`` are the given rows."""
    device, side = pictures.levels.device, pictures.levels.shape[1]
    generator = torch.Generator(device).manual_seed(seed)
    t = time_sampling.by_name(recipe.times).sample(batch, side, side, generator=generator)[rows]
    noise = torch.randn(batch, 3, side, side, generator=generator, device=device)[rows]
    flip, drop = torch.rand(2, batch, generator=generator, device=device)[:, rows]
    x = pictures.levels.permute(0, 3, 1, 2).float() / 127.5 - 1.0
    if recipe.flips:
        x = torch.where(flip.view(-1, 1, 1, 1) < 0.5, x.flip(3), x)
    label = torch.where(drop < recipe.label_dropout, NULL_LABEL, pictures.label)
    return Batch(x, label, t, noise)


def whole(tensor: Tensor) -> Tensor:
    """A tensor in full, on the CPU; gathered from all processes where it is sharded."""
    full = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach().cpu()


@torch.no_grad()
def fill(tensor: Tensor, value: Tensor) -> None:
    """Overwrite a tensor, sharded or not, with a full one."""
    if hasattr(tensor, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements)
    tensor.copy_(value)


class Trainer:
    """A network in training: its weights, Adam, averages, and how far it is."""

    def __init__(self, recipe: Recipe, model: Model, accelerator: Accelerator, watch: Watch) -> None:
        self.recipe, self.model, self.accelerator, self.watch = recipe, model, accelerator, watch
        device = accelerator.device
        self.bf16 = recipe.precision == "bf16" or (
            recipe.precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()
        )
        net = model.net.float().train()
        if recipe.checkpointing:
            net.enable_gradient_checkpointing()
        if not recipe.shard:  # FSDP2 wants its tensors plain
            net = net.to(device, memory_format=torch.channels_last)
        self.compiled: list[nn.Module] = []
        if recipe.compile == "on" or (recipe.compile == "auto" and device.type == "cuda"):
            # hooks that gather weights would break a whole graph: where they are sharded, layers are compiled apart
            self.compiled = [each for each in net.modules() if isinstance(each, Layer)] if recipe.shard else [net]
            for each in self.compiled:
                each.compile(fullgraph=True, dynamic=False)
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
                self.averages[f"sigma-{sigma:.3f}"] = average.Average(named, average.power(sigma))
        self.step = 0
        self.meter = torch.zeros(2, device=device)  # sum of losses since the last line of the log, and their number
        self.accumulate = 1 if recipe.accumulate == "auto" else recipe.accumulate

    @property
    def bare(self) -> UNet:
        """The network as it is inside what accelerate made of it."""
        return self.accelerator.unwrap_model(self.net)

    def loss(self, net: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a batch."""
        process, prediction = self.model.process, self.model.prediction
        z = process.diffuse(batch.x, batch.t, batch.noise)
        with torch.autocast(z.device.type, torch.bfloat16, enabled=self.bf16):
            value = net(z, batch.t, batch.label)
        return diffusion_loss(process, prediction, value, batch.x, batch.noise, batch.t, bias=self.recipe.bias).mean()

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
        self.accelerator.clip_grad_norm_(self.net.parameters(), self.recipe.clip)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        self.step += 1
        for each in self.averages.values():
            each.update(self.parameters, self.step)
        self.meter += torch.stack([total, torch.ones_like(total)])

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
            self.watch.say(f"torch.compile does not work here ({first}); going on without it, which is slower")
            for each in self.compiled:
                each._compiled_call_impl = None
            self.compiled = []
            self.adam.zero_grad(set_to_none=True)
            self.update(batch)

    def fitting_pieces(self, batch: Batch) -> int:
        """The fewest pieces, a power of two, with which a batch fits in memory in every process.

        Tried without compilation, which needs rather more, and with room kept for what Adam will need.
        """
        if self.recipe.shard:
            raise TrainingError("--batch auto cannot be combined with --shard; set --accumulate yourself")
        rows, pieces = len(batch.x), 1
        forward, self.bare._compiled_call_impl = self.bare._compiled_call_impl, None
        size = sum(p.numel() for p in self.parameters)
        while True:
            fits = True
            try:
                reserve = torch.empty(3 * size, device=self.meter.device)
                self.loss(self.bare, batch.piece(0, pieces)).backward()
                del reserve
            except torch.OutOfMemoryError:
                fits = False
            self.adam.zero_grad(set_to_none=True)
            if self.meter.device.type == "cuda":
                torch.cuda.empty_cache()
            if self.agree(fits, every=True):
                break
            if pieces * 2 > rows or rows % (pieces * 2):
                raise TrainingError(
                    f"out of memory even with {rows // pieces} picture(s) at a time: make the network smaller "
                    "(--width), add --checkpointing, or spread its weights over more GPUs (--shard)"
                )
            pieces *= 2
        self.bare._compiled_call_impl = forward
        self.watch.say(f"memory holds {rows // pieces} pictures at a time: --accumulate {pieces}")
        return pieces

    def agree(self, flag: bool, *, every: bool = False) -> bool:
        """Whether any process says so (or every one), known to all of them."""
        if self.accelerator.num_processes == 1:
            return flag
        votes = self.accelerator.reduce(torch.tensor([float(flag)], device=self.meter.device), "sum").item()
        return votes >= (self.accelerator.num_processes if every else 1)

    def read_meter(self) -> Tensor:
        """The meter's mean over the processes."""
        if self.accelerator.num_processes > 1:
            self.meter = self.accelerator.reduce(self.meter, "mean")
        return self.meter

    def state(self) -> dict[str, Tensor]:
        """All tensors of a checkpoint, in full, on the CPU. All processes must ask for it together."""
        tensors = {f"weights/{name}": whole(p) for name, p in zip(self.names, self.parameters, strict=True)}
        for name, p in zip(self.names, self.parameters, strict=True):
            for key in ("exp_avg", "exp_avg_sq"):
                tensors[f"adam/{key}/{name}"] = whole(self.adam.state[p][key])
        for kind, each in self.averages.items():
            tensors |= {f"average/{kind}/{name}": whole(value) for name, value in each.weights.items()}
        tensors["meter"] = self.read_meter().cpu()
        return tensors

    def restore(self, tensors: dict[str, Tensor], step: int) -> None:
        self.step = step
        self.meter = tensors["meter"].to(self.meter.device)
        counter = torch.tensor(float(step))
        for name, p in zip(self.names, self.parameters, strict=True):
            fill(p, tensors[f"weights/{name}"])
            state = self.adam.state[p]
            state["step"] = counter.to(p.device) if self.meter.device.type == "cuda" else counter.clone()
            for key in ("exp_avg", "exp_avg_sq"):
                state[key] = torch.zeros_like(p)
                fill(state[key], tensors[f"adam/{key}/{name}"])
        for kind, each in self.averages.items():
            for name, value in each.weights.items():
                source = f"average/{kind}/{name}"
                fill(value, tensors[source if source in tensors else f"weights/{name}"])

    def averaged(self) -> Model:
        """The model with its averaged weights, a copy, not compiled. All processes must ask for it together."""
        weights = {name: whole(value) for name, value in self.averages["ema"].weights.items()}
        net = UNet.from_config(self.bare.config)
        net.load_state_dict(weights)
        return Model(net.eval(), self.model.process, self.model.prediction, self.model.resolution, self.model.labels)


def _from_compiler(error: Exception) -> bool:
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor", "triton"))


class Signals:
    """SIGTERM and SIGINT as a wish to stop, granted between two steps; a second SIGINT is not waited for."""

    def __init__(self) -> None:
        self.caught = 0

    def __enter__(self) -> Signals:
        self.before = {}
        if threading.current_thread() is threading.main_thread():
            self.before = {number: signal.signal(number, self._catch) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def _catch(self, number: int, frame: object) -> None:
        if self.caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.caught = number

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)


def make_accelerator(recipe: Recipe) -> Accelerator:
    """One process or, under torchrun, all of them."""
    plugin = None
    if recipe.shard:
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=[Layer.__name__],
            cpu_ram_efficient_loading=False, reshard_after_forward=True,
        )  # fmt: skip
    if recipe.device not in ("auto", "cpu", "cuda", "mps"):
        raise TrainingError(f"device must be auto, cuda, mps or cpu, got {recipe.device!r}")
    accelerator = Accelerator(cpu=recipe.device == "cpu", fsdp_plugin=plugin, mixed_precision="no")
    found = accelerator.device.type
    if recipe.device not in ("auto", found):
        raise TrainingError(f"--device {recipe.device} was asked for, but there is only {found} here")
    told = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != told:
        raise TrainingError(f"torchrun started {told} processes but {accelerator.num_processes} take part")
    if recipe.shard and accelerator.num_processes == 1:
        raise TrainingError(
            "--shard spreads the weights over several processes: start it with torchrun, or set --no-shard"
        )
    return accelerator


def load_config(run: Path) -> dict[str, Any] | None:
    path = run / CONFIG
    return json.loads(path.read_text()) if path.exists() else None


def train(
    recipe: Recipe,
    data: Sequence[str],
    run: Path | str,
    *,
    init: str | None = None,
    resume: bool = False,
    cache: Path | None = None,
    minutes: float | None = None,
    quiet: bool = False,
) -> Path:
    """Train by ``recipe`` on ``data`` and return the folder of the trained model, ``run/model``.

    Args:
        recipe: how; see ``asyncpatch.recipes``.
        data: what on, one or more of what ``data.sources.open_sources`` understands.
        run: folder of the run: ``config.json``, ``log.jsonl``, ``checkpoints/``, ``pictures/``, ``tensorboard/``,
            ``snapshots/``, ``model/`` and ``report.html``.
        init: a model folder to start from. Its network takes the place of the recipe's; classes may differ.
        resume: go on from the run's newest checkpoint, or from the start if there is none yet.
        cache: folder of decoded data; by default the user's cache folder.
        minutes: save and stop after so many, with ``Stopped``; for machines that are lent by the hour.
        quiet: say nothing on the terminal.

    Raises TrainingError or DataError, with a message for the user, and Stopped after SIGTERM, SIGINT or ``minutes``.
    """
    run = Path(run)
    began = time.monotonic()
    accelerator = make_accelerator(recipe)
    watch = Watch(run, main=accelerator.is_main_process, quiet=quiet)
    with Signals() as signals, checkpoint.explained(run), _out_of_memory(recipe, accelerator):
        _prepare_run(recipe, data, run, init, resume, accelerator)
        feed, held, names = _open_data(recipe, data, cache, accelerator, watch)
        try:
            torch.manual_seed(recipe.seed)
            model = _model(recipe, init, names, watch)
            trainer = Trainer(recipe, model, accelerator, watch)
            _describe(trainer, watch)
            if resume:
                _resume(trainer, feed, run, watch)
            watch.start(trainer.step, recipe.steps, recipe.batch)
            pictures = _looks(trainer, held, watch)
            until = began + 60 * minutes if minutes is not None else math.inf
            _loop(trainer, feed, run, signals, until, pictures)
        finally:
            feed.close()
            watch.close()
    return run / "model"


def _loop(trainer: Trainer, feed: Feed, run: Path, signals: Signals, until: float, look: Callable[[], None]) -> None:
    recipe, watch, accelerator = trainer.recipe, trainer.watch, trainer.accelerator
    rows = Share(accelerator.process_index, accelerator.num_processes).rows(recipe.batch)
    update = trainer.first_update
    clock, counted = time.monotonic(), trainer.step
    saved = trainer.step if checkpoint.all_in(run / "checkpoints") else -1
    while trainer.step < recipe.steps:
        seed = seed_for(recipe.seed, "step", trainer.step)
        update(draw_batch(recipe, feed.batch(trainer.step), recipe.batch, rows, seed))
        if update == trainer.first_update:  # which may have compiled: do not count it, unless there is nothing else
            update = trainer.update
            if recipe.log_every > 1:
                clock, counted = time.monotonic(), trainer.step
        step, last = trainer.step, trainer.step == recipe.steps
        watch.step(step)
        logs = last or step % recipe.log_every == 0
        # one process may stop at any step; several agree where they meet anyway
        wish = bool(signals.caught) or time.monotonic() > until
        stop = not last and (logs or accelerator.num_processes == 1) and trainer.agree(wish)
        saves = last or stop or step % recipe.save_every == 0
        looks = last or step % recipe.picture_every == 0
        if logs or saves:
            _check_finite(trainer, run)
        if logs:
            total, count = trainer.read_meter().tolist()
            speed = max(step - counted, 1) * recipe.batch / (time.monotonic() - clock)
            rate = recipe.rate_at(step - 1)
            watch.log(step, {"loss": total / count, "rate": rate, "pictures_per_second": speed})
            trainer.meter.zero_()
            clock, counted = time.monotonic(), step
        if recipe.snapshot_every and (last or step % recipe.snapshot_every == 0):
            _snapshot(trainer, run)
        if saves and saved != step:
            tensors = trainer.state()
            if accelerator.is_main_process:
                facts = {"feed": feed.state(), "asyncpatch": asyncpatch.__version__}
                checkpoint.save(run / "checkpoints", step, tensors, facts, recipe.keep)
            saved = step
        if looks or stop:
            _export(trainer, run)
        if looks:
            look()
        if saves or looks:
            watch.report()
            accelerator.wait_for_everyone()
            clock, counted = time.monotonic(), step
        if stop:
            why = signal.Signals(signals.caught).name if signals.caught else "the time that was given is over"
            code = 128 + signals.caught if signals.caught else 0
            raise Stopped(f"{why}: saved step {step} of {recipe.steps}; go on with --out {run} --resume", code)


def _check_finite(trainer: Trainer, run: Path) -> None:
    if not bool(trainer.read_meter().isfinite().all()):
        kept = checkpoint.all_in(run / "checkpoints")
        last = f"the last good checkpoint is {kept[-1]}" if kept else "there is no checkpoint yet"
        raise TrainingError(
            f"the loss is no longer a number (noticed at step {trainer.step}); {last}. Go on from it with --resume and "
            f"a lower --rate (now {trainer.recipe.rate:g}), a longer --warmup, or --precision fp32"
        )


def _snapshot(trainer: Trainer, run: Path) -> None:
    for sigma in average.SIGMAS:
        weights = trainer.averages[f"sigma-{sigma:.3f}"].weights
        tensors = {name: whole(value).half().contiguous() for name, value in weights.items()}
        if trainer.accelerator.is_main_process:
            folder, name = run / "snapshots", average.snapshot_name(trainer.step, sigma)
            folder.mkdir(exist_ok=True)
            save_file(tensors, folder / f".{name}")
            os.replace(folder / f".{name}", folder / name)


def _export(trainer: Trainer, run: Path) -> None:
    model = trainer.averaged()
    if trainer.accelerator.is_main_process:
        with checkpoint.whole_or_nothing(run / "model") as folder:
            model.save(folder)


def _looks(trainer: Trainer, held: Store, watch: Watch) -> Callable[[], None]:
    """What is looked at now and then: held-out loss, samples, inpainting, all with the averaged weights."""
    device, recipe = trainer.accelerator.device, trainer.recipe
    count = min(len(held), HELD_OUT)
    piece = min(64, count)
    which = np.arange(count) * len(held) // count  # from all over the set, which may be sorted by class

    @torch.no_grad()
    def look() -> None:
        model = trainer.averaged()
        if not trainer.accelerator.is_main_process:
            return
        model.net.to(device, memory_format=torch.channels_last)
        total = 0.0
        for start in range(0, count, piece):
            some = which[start : start + piece]
            shown = Pictures(*(torch.from_numpy(each[some]).to(device) for each in (held.pictures, held.labels)))
            batch = draw_batch(recipe, shown, len(some), slice(None), seed_for("held out", start))
            total += float(trainer.loss(model.net, batch)) * len(some)
        watch.log(trainer.step, {"held_out_loss": total / count})
        with torch.autocast(device.type, torch.bfloat16, enabled=trainer.bf16):
            watch.picture(trainer.step, "samples", sample_grid(model, device))
            watch.picture(
                trainer.step, "inpainting", inpainting_grid(model, held.pictures[which[:: -(-count // 8)]], device)
            )

    return look


def _prepare_run(
    recipe: Recipe, data: Sequence[str], run: Path, init: str | None, resume: bool, accelerator: Accelerator
) -> None:
    if not resume and checkpoint.all_in(run / "checkpoints"):
        raise TrainingError(f"{run} already holds a run: go on with --resume, or choose another --out")
    accelerator.wait_for_everyone()  # or a slow process would find what a quick one has written
    if accelerator.is_main_process:
        run.mkdir(parents=True, exist_ok=True)
        config = {"asyncpatch": asyncpatch.__version__, "torch": torch.__version__, "data": list(data), "init": init,
                  "ran_on": str(accelerator.device), "processes": accelerator.num_processes,
                  "recipe": recipe.to_dict()}  # fmt: skip
        fresh = run / f".{CONFIG}"
        fresh.write_text(json.dumps(config, indent=2) + "\n")
        os.replace(fresh, run / CONFIG)


def _open_data(
    recipe: Recipe, data: Sequence[str], cache: Path | None, accelerator: Accelerator, watch: Watch
) -> tuple[Feed, Store, tuple[str, ...]]:
    """The feed, pictures to look at (held out where there are such), and the classes."""
    share, device = Share(accelerator.process_index, accelerator.num_processes), accelerator.device
    share.rows(recipe.batch)
    source = open_sources(data)
    if source is None:
        raise DataError(f"there are no training pictures in {', '.join(data)}")
    with accelerator.main_process_first():  # the others find it in the cache
        held = _store(open_sources(data, "validation"), recipe, cache, watch, crops=0.0)
        store = None if isinstance(source, Shards) else _store(source, recipe, cache, watch, crops=recipe.crops)
    if isinstance(source, Shards):
        feed: Feed = StreamedFeed(source, recipe.resolution, recipe.batch, recipe.seed, device, share)
        first = feed.batch(0)
        feed.restore({"epoch": 0, "shard": 0, "given": 0})
        shown = Store(first.levels.cpu().numpy(), first.label.cpu().numpy(), source.names)
        watch.say(f"streaming {len(source.paths)} shards, {len(source.names)} classes")
        return feed, held or shown, source.names
    assert store is not None
    if len(store) == 0:
        raise DataError(f"there are no training pictures in {', '.join(data)}")
    feed = StoredFeed(store, recipe.batch, recipe.seed, device, share)
    what = "held out" if held else "no held-out pictures: the held-out loss is that of training pictures"
    watch.say(f"{len(store):,} pictures, {len(source.names)} classes; {f'{len(held):,} ' if held else ''}{what}")
    if held is not None and held.names != source.names:  # another split may lack classes, and then number others
        number = [source.names.index(name) if name in source.names else NULL_LABEL for name in held.names] + [
            NULL_LABEL
        ]
        labels = torch.tensor(number)[torch.from_numpy(held.labels)].numpy()
        held = Store(held.pictures, labels, source.names, held.broken)
    return feed, held or store, source.names


def _store(
    source: Joined | Shards | None, recipe: Recipe, cache: Path | None, watch: Watch, *, crops: float
) -> Store | None:
    if source is None or isinstance(source, Shards):
        return None
    told = [0.0]

    def progress(done: int, of: int) -> None:
        if time.monotonic() - told[0] > 5:
            told[0] = time.monotonic()
            watch.say(f"decoding, once: {done:,} of {of:,}")

    store = open_store(source, recipe.resolution, crops=crops, cache=cache, progress=progress)
    if store.broken:
        watch.say(f"{len(store.broken)} pictures cannot be read and are left out:")
        for line in store.broken[:10]:
            watch.say(f"  {line}")
    return store


def _model(recipe: Recipe, init: str | None, names: tuple[str, ...], watch: Watch) -> Model:
    if init is None:
        net = UNet(
            width=recipe.width, multipliers=recipe.multipliers, blocks=recipe.blocks,
            middle_blocks=recipe.middle_blocks, attention=recipe.attention, labels=len(names),
        )  # fmt: skip
        return Model(net, PROCESSES[recipe.process](), recipe.prediction, recipe.resolution, names)
    model = Model.load(init)
    net = model.net
    if names != model.labels:
        known = len(set(names) & set(model.labels))
        watch.say(f"{init} knows {known} of the {len(names)} classes; the others start as the null class")
        net = relabelled(net, model.labels, names)
    return Model(net, model.process, model.prediction, recipe.resolution, names)


def _describe(trainer: Trainer, watch: Watch) -> None:
    recipe, accelerator = trainer.recipe, trainer.accelerator
    size = sum(p.numel() for p in trainer.parameters)
    device = accelerator.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    many = f" x {accelerator.num_processes}" if accelerator.num_processes > 1 else ""
    watch.say(
        f"{size / 1e6:.1f}M parameters, {'bf16' if trainer.bf16 else 'fp32'}, on {name}{many}, "
        f"{'compiled (the first step takes a minute or two)' if trainer.compiled else 'not compiled'}"
    )
    if device.type == "cpu" and size * recipe.steps * recipe.batch > 1e13:
        watch.say("there is no GPU here, or it was not asked for: on a CPU this recipe takes very long")


def _resume(trainer: Trainer, feed: Feed, run: Path, watch: Watch) -> None:
    for path in reversed(checkpoint.all_in(run / "checkpoints")):
        try:
            tensors, facts = checkpoint.load(path)
        except Exception as error:
            watch.say(f"{path} cannot be read ({error}); trying the one before")
            continue
        trainer.restore(tensors, facts["step"])
        if facts["feed"]:
            feed.restore(facts["feed"])
        watch.say(f"going on from {path}")
        return
    watch.say(f"{run} has no checkpoint yet: starting from the beginning")


@contextmanager
def _out_of_memory(recipe: Recipe, accelerator: Accelerator) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        pieces = 1 if recipe.accumulate == "auto" else recipe.accumulate
        at_once = recipe.batch // accelerator.num_processes // pieces
        raise TrainingError(
            f"out of memory with {at_once} pictures at a time. Raise --accumulate from {pieces} to {2 * pieces}, which "
            "changes nothing but speed, or let --batch auto find it; if that does not do, add --checkpointing or lower "
            f"--batch (now {recipe.batch}) or --width (now {recipe.width})"
        ) from error
