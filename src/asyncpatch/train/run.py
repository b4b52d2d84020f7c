"""A training run from beginning to end, and how it is never lost.

Order, time fields, noise, holes, flips and dropped labels follow from the seed and the step alone, and a checkpoint
holds all else; so ``kill -9`` and ``resume`` lead to the same weights as an undisturbed run, bit for bit on a CPU.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import (
    DistributedDataParallelKwargs,
    FullyShardedDataParallelPlugin,
    InitProcessGroupKwargs,
    broadcast_object_list,
    gather_object,
)
from safetensors.torch import save_file

import asyncpatch
from asyncpatch.data.feed import Feed, seed_for
from asyncpatch.data.store import Store
from asyncpatch.models.unet import Layer
from asyncpatch.processes import PATIENCE
from asyncpatch.train import average, checkpoint
from asyncpatch.train.autoencoder import AutoencoderTrainer
from asyncpatch.train.config import AutoencoderRecipe, Recipe, Training
from asyncpatch.train.errors import Stopped, TrainingError
from asyncpatch.train.inputs import open_feed, open_training, share_of
from asyncpatch.train.learner import Drawn, Learner, piece
from asyncpatch.train.trainer import Trainer
from asyncpatch.train.watch import Watch, write_config

LEARNERS: dict[type[Training], type[Learner[Any, Any, Any]]] = {
    Recipe: Trainer,
    AutoencoderRecipe: AutoencoderTrainer,
}
"""What is trained by which kind of recipe."""


def train(
    recipe: Training,
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
    run, until = Path(run), time.monotonic() + 60 * minutes if minutes is not None else math.inf
    learner = LEARNERS[type(recipe)]
    accelerator = make_accelerator(recipe)
    _check(recipe, accelerator)
    learner.check(recipe)
    with ExitStack() as stack:
        watch = Watch(run, main=accelerator.is_main_process, quiet=quiet)
        stack.callback(watch.close)
        source = open_training(data)
        saved = _newest(run, accelerator, watch, resume)
        tensor, facts = checkpoint.load(saved) if saved is not None else (None, None)
        torch.manual_seed(recipe.seed)
        if facts is None:
            trainer = learner.new(recipe, init, source.names, accelerator, watch.say)
        else:
            _check_same(facts, recipe)
            trainer = learner.again(recipe, facts, source.names, accelerator, watch.say)
        feed, held = open_feed(source, data, recipe, cache, accelerator, watch.say)
        stack.callback(feed.close)
        _describe(trainer, watch)
        if tensor is not None and facts is not None:
            trainer.restore(tensor, facts["step"])
            _restore_feed(feed, facts["feed"], accelerator, watch)
            watch.say(f"going on from {saved}")
        elif resume:
            watch.say(f"{run} has no checkpoint yet: starting from the beginning")
        if accelerator.is_main_process:
            config = {
                "asyncpatch": asyncpatch.__version__, "torch": torch.__version__, "data": list(data), "init": init,
                "cache": None if cache is None else str(cache),
                "ran_on": str(accelerator.device), "processes": accelerator.num_processes, "recipe": recipe.to_dict(),
            }  # fmt: skip
            write_config(run, config)
        trainer.prepare(feed)
        watch.start(trainer.step, recipe.steps, recipe.batch)
        with Signals(accelerator) as signals, checkpoint.explained(run), _out_of_memory(trainer):
            Loop(trainer, feed, held, run, watch).go(signals, until)
    return run / "model"


class Loop:
    """The training loop, with what happens now and then beside the steps."""

    def __init__(self, trainer: Learner[Any, Any, Any], feed: Feed, held: Store, run: Path, watch: Watch) -> None:
        self.trainer, self.feed, self.held, self.run, self.watch = trainer, feed, held, run, watch
        self.recipe, self.accelerator = trainer.recipe, trainer.accelerator
        self.main = self.accelerator.is_main_process

    def go(self, signals: Signals, until: float) -> None:
        trainer, recipe = self.trainer, self.recipe
        rows = share_of(self.accelerator).rows(recipe.batch)
        update, clock, counted = trainer.first_update, time.monotonic(), trainer.step
        while trainer.step < recipe.steps:
            seed = seed_for(recipe.seed, "step", trainer.step)
            batch = trainer.draw(self.feed.batch(trainer.step), rows, seed)
            update(batch)
            step, last = trainer.step, trainer.step == recipe.steps
            self.watch.step(step)
            caught = signals.agreed(time.monotonic() > until)
            stop = caught is not None and not last
            logs = last or step % recipe.log_every == 0
            saves = last or stop or step % recipe.save_every == 0
            looks = last or step % recipe.picture_every == 0
            if logs or saves:
                self.check_finite(batch if saves else None)
            if logs:
                values = trainer.take_measures()
                speed = (step - counted) * recipe.batch / (time.monotonic() - clock)
                self.watch.log(step, {**values, "rate": recipe.rate_at(step - 1), "pictures_per_second": speed})
            if recipe.snapshot_every and (last or step % recipe.snapshot_every == 0):
                self.snapshot()
            if saves:
                self.save()
            if looks or stop:
                made = self.export()
                if looks and made is not None:
                    trainer.look(made, self.held, self.watch)
            if saves or looks:
                self.watch.report()
                self.accelerator.wait_for_everyone()
            if logs or saves or looks or update == trainer.first_update:  # which may have compiled: not counted
                clock, counted = time.monotonic(), step
            update = trainer.update
            if stop:
                why = signal.Signals(caught).name if caught else "the time that was given is over"
                raise Stopped(
                    f"{why}: saved step {step} of {recipe.steps}; go on with --out {self.run} --resume",
                    128 + caught if caught else 0,
                )
        if not (self.run / "model").exists():  # an earlier process was killed between the last save and this
            self.export()

    def check_finite(self, batch: Drawn | None) -> None:
        """Losses and gradients so far were numbers and, for a batch, its loss still is with the weights of now."""
        trainer = self.trainer
        good = bool(trainer.read_meter().isfinite().all())
        if batch is not None and good:
            good = bool(trainer.probe(piece(batch, 0, trainer.accumulate)).isfinite())
        if trainer.all_agree(good):
            return
        kept = checkpoint.all_in(self.run / "checkpoints")
        last = f"the last good checkpoint is {kept[-1]}" if kept else "there is no checkpoint yet"
        raise TrainingError(
            f"the loss is no longer a number (noticed at step {self.trainer.step}); {last}. Go on from it with "
            f"--resume and a lower --rate (now {self.recipe.rate:g}), a longer --warmup, or --precision fp32"
        )

    def save(self) -> None:
        """A checkpoint."""
        positions, tensors = gather_object([self.feed.state()]), self.trainer.state()
        if self.main:
            facts = {
                "asyncpatch": asyncpatch.__version__, "trained by": type(self.recipe).__name__, "feed": positions,
                "resolution": self.recipe.resolution, **self.trainer.facts(),
            }  # fmt: skip
            checkpoint.save(self.run / "checkpoints", self.trainer.step, tensors, facts, self.recipe.keep)

    def snapshot(self) -> None:
        for sigma in average.SIGMAS:
            weights = self.trainer.average(average.kind_of(sigma))
            if self.main:
                folder, name = self.run / "snapshots", average.snapshot_name(self.trainer.step, sigma)
                folder.mkdir(exist_ok=True)
                save_file({key: value.half().contiguous() for key, value in weights.items()}, folder / f".{name}")
                os.replace(folder / f".{name}", folder / name)

    def export(self) -> Any:
        """The averaged model, as a folder too; None but in the main process."""
        made = self.trainer.averaged()
        if made is not None:
            with checkpoint.whole_or_nothing(self.run / "model") as folder:
                made.save(folder)
        return made


class Signals:
    """SIGTERM and SIGINT as a wish to stop, granted between two steps; a second SIGINT is not waited for.

    Several processes agree after every step, over the CPU, so that nobody waits for a GPU.
    """

    def __init__(self, accelerator: Accelerator) -> None:
        self.caught = 0
        several = accelerator.num_processes > 1
        self.group = torch.distributed.new_group(backend="gloo") if several else None

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

    def agreed(self, over: bool) -> int | None:
        """The signal that any process has caught, 0 if the time is ``over`` in any, else None: the same for all."""
        wish = self.caught or (0 if over else -1)
        if self.group is not None:
            told = torch.tensor([wish])
            torch.distributed.all_reduce(told, torch.distributed.ReduceOp.MAX, group=self.group)
            wish = int(told)
        return wish if wish >= 0 else None


def make_accelerator(recipe: Training) -> Accelerator:
    """One process or, under torchrun, all of them."""
    plugin = None
    if recipe.shard:
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=[Layer.__name__],
            cpu_ram_efficient_loading=False, reshard_after_forward=True,
        )  # fmt: skip
    accelerator = Accelerator(
        cpu=recipe.device == "cpu", fsdp_plugin=plugin, mixed_precision="no",
        kwargs_handlers=[
            InitProcessGroupKwargs(timeout=PATIENCE),
            DistributedDataParallelKwargs(broadcast_buffers=False, gradient_as_bucket_view=True),
        ],
    )  # fmt: skip
    found = accelerator.device.type
    if recipe.device not in ("auto", found):
        raise TrainingError(f"--device {recipe.device} was asked for, but there is only {found} here")
    told = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != told:
        raise TrainingError(f"torchrun started {told} processes but {accelerator.num_processes} take part")
    if recipe.shard and accelerator.num_processes == 1:
        raise TrainingError(
            "--shard spreads the weights over processes: start several with torchrun, or add --no-shard"
        )
    return accelerator


def _check(recipe: Training, accelerator: Accelerator) -> None:
    """What can be known to be wrong before any work is done."""
    rows = share_of(accelerator).rows(recipe.batch)
    each = rows.stop - rows.start
    if recipe.accumulate != "auto" and each % recipe.accumulate:
        raise ValueError(f"accumulate must divide each process's {each} pictures of a batch, got {recipe.accumulate}")


def _newest(run: Path, accelerator: Accelerator, watch: Watch, resume: bool) -> Path | None:
    """The checkpoint to go on from, chosen by the main process for all."""
    chosen: list[Any] = [None]
    if accelerator.is_main_process:
        try:
            folder = run / "checkpoints"
            watch.claim()
            if resume:
                chosen = [checkpoint.newest(folder, watch.say)]
            elif checkpoint.all_in(folder):
                raise TrainingError(f"{run} already holds a run: go on with --resume, or choose another --out")
        except TrainingError as error:
            chosen = [error]
    found = broadcast_object_list(chosen)[0]
    if isinstance(found, TrainingError):
        raise found
    return found


def _check_same(facts: dict[str, Any], recipe: Training) -> None:
    """A checkpoint is one of such a run."""
    kind = facts.get("trained by", Recipe.__name__)  # there was one kind at first, which went without saying
    if kind != type(recipe).__name__:
        raise TrainingError(f"the run was started with a {kind}, not a {type(recipe).__name__}")
    if facts["resolution"] != recipe.resolution:
        raise TrainingError(f"the run was started at --resolution {facts['resolution']}, not {recipe.resolution}")


def _restore_feed(feed: Feed, positions: list[dict[str, int]], accelerator: Accelerator, watch: Watch) -> None:
    if not positions[0]:
        return
    if len(positions) == accelerator.num_processes:
        feed.restore(positions[accelerator.process_index])
    else:
        watch.say("the number of processes has changed: the current epoch of the stream begins anew")
        feed.restore({"epoch": positions[0]["epoch"], "shard": 0, "given": 0})


def _describe(trainer: Learner[Any, Any, Any], watch: Watch) -> None:
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


@contextmanager
def _out_of_memory(trainer: Learner[Any, Any, Any]) -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError as error:
        recipe, pieces = trainer.recipe, trainer.accumulate
        at_once = recipe.batch // trainer.accelerator.num_processes // pieces
        raise TrainingError(
            f"out of memory with {at_once} pictures at a time. Raise --accumulate from {pieces} to {2 * pieces}, which "
            "changes nothing but speed, or let --batch auto find it; if that does not do, add --checkpointing or lower "
            f"--batch (now {recipe.batch}) or --width (now {recipe.width})"
        ) from error
