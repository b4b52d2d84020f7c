"""A network in training: one step of Adam, averages of the weights, and the state that a checkpoint holds.

What it learns is for those who inherit to say. Everything random of step k is drawn for the whole global batch from the
seed and k; each process takes its rows. So a run does not depend on how many processes share it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from torch import Tensor, nn

from asyncpatch.data.feed import Feed, Pictures, seed_for
from asyncpatch.data.store import Store
from asyncpatch.train import average
from asyncpatch.train.config import Training
from asyncpatch.train.errors import TrainingError
from asyncpatch.train.inputs import Say
from asyncpatch.train.pupil import Pupil
from asyncpatch.train.sharded import fill, whole
from asyncpatch.train.watch import Watch

HELD_OUT = 1024
"""Pictures at most on which a held-out loss is measured."""


class Drawn(Protocol):
    """A batch, with all that was drawn for it: a named tuple of what has a row for each picture."""

    @property
    def x(self) -> Tensor:
        """Its pictures."""
        ...

    def __iter__(self) -> Iterator[Tensor | None]: ...


class Savable(Protocol):
    def save(self, folder: Path) -> None: ...


Told = TypeVar("Told", bound=Training)
Batch = TypeVar("Batch", bound=Drawn)
Made = TypeVar("Made", bound=Savable)


def piece(batch: Batch, k: int, of: int) -> Batch:
    """Part k of ``of`` equal ones."""
    size = len(batch.x) // of
    return type(batch)(*(None if each is None else each[k * size : (k + 1) * size] for each in batch))


class Learner(ABC, Generic[Told, Batch, Made]):
    """A network's weights, Adam, averages, and how far it is."""

    apart: tuple[type[nn.Module], ...] = ()
    """Kinds of layers that are compiled each for itself where weights are sharded."""
    measures: tuple[str, ...] = ("loss", "gradient_norm")
    """What is logged, as a mean over the steps between two lines of the log."""
    smaller = "make the network smaller (--width), or add --checkpointing"
    """What to do where not even one picture fits in memory."""

    def __init__(self, recipe: Told, net: Any, accelerator: Accelerator, say: Say) -> None:
        self.recipe, self.accelerator, self.say = recipe, accelerator, say
        device = accelerator.device
        self.bf16 = recipe.precision == "bf16" or (
            recipe.precision == "auto"
            and device.type == "cuda"
            and torch.cuda.is_bf16_supported(including_emulation=False)
        )
        net = net.float().train()
        if recipe.checkpointing:
            net.enable_gradient_checkpointing()
        if not recipe.shard:  # FSDP2 wants its tensors plain
            net = net.to(device, memory_format=torch.channels_last)
        self.compiled: list[Any] = []
        if recipe.compile == "on" or (recipe.compile == "auto" and device.type == "cuda"):
            self._compile(net)
        self.pupil = Pupil(recipe, net, accelerator)
        self.pupils = [self.pupil]
        """All that learn: this network, and what helps it to."""
        self.net, self.adam, self.parameters = self.pupil.net, self.pupil.adam, self.pupil.parameters
        self.averages = {"ema": average.Average(self.pupil.named, average.exponential(recipe.ema))}
        if recipe.snapshot_every:
            for sigma in average.SIGMAS:
                self.averages[average.kind_of(sigma)] = average.Average(self.pupil.named, average.power(sigma))
        self.step = 0
        # sums since the last line of the log, and the number of steps
        self.meter = torch.zeros(len(self.measures) + 1, device=device)
        self.accumulate = 1 if recipe.accumulate == "auto" else recipe.accumulate

    @classmethod
    @abstractmethod
    def check(cls, recipe: Told) -> None:
        """Refuse what can be known to be wrong before any work is done."""

    @classmethod
    @abstractmethod
    def new(
        cls,
        recipe: Told,
        init: str | None,
        names: tuple[str, ...],
        accelerator: Accelerator,
        say: Say,
    ) -> Self:
        """At the beginning, for data with classes of these names; ``init`` is a model folder to start from."""

    @classmethod
    @abstractmethod
    def again(
        cls,
        recipe: Told,
        facts: dict[str, Any],
        names: tuple[str, ...],
        accelerator: Accelerator,
        say: Say,
    ) -> Self:
        """That of a checkpoint with these ``facts``, still without its weights."""

    def prepare(self, feed: Feed) -> None:
        """Do once, before the first step, what would be done again and again for the pictures of this feed."""

    @abstractmethod
    def draw(self, pictures: Pictures, rows: slice, seed: int) -> Batch:
        """Everything random for a global batch, of which ``pictures`` are these rows."""

    @abstractmethod
    def loss(self, net: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a batch."""

    def learn(self, batch: Batch, pieces: int) -> dict[str, Tensor]:
        """Add the gradients of a batch, which is one of so many pieces. Returns means over the batch: those that
        ``measures`` names are logged."""
        loss = self.loss(self.net, batch)
        self.accelerator.backward(loss / pieces)
        return {"loss": loss.detach()}

    def probe(self, batch: Batch) -> Tensor:
        """A number, as long as all weights are."""
        return self.loss(self.bare, batch)

    @abstractmethod
    def averaged(self) -> Made | None:
        """What is kept, with averaged weights, a copy, not compiled; None but in the main process."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What it takes to build the network again."""

    @abstractmethod
    def look(self, made: Made, held: Store, watch: Watch) -> None:
        """Show what was learnt, by pictures that are held out."""

    def _compile(self, net: nn.Module) -> None:
        if self.recipe.shard:  # hooks that gather weights would break one graph: layers are compiled apart
            self.compiled = [each for each in net.modules() if isinstance(each, self.apart)]
            # they share their code, of which there is a version for every shape: far more than the usual limit
            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, 4 * len(self.compiled))
        else:
            self.compiled = [net]
        for each in self.compiled:
            each.compile(fullgraph=True, dynamic=False)

    @property
    def bare(self) -> Any:
        """The network as it is inside what accelerate made of it."""
        return self.pupil.bare

    def update(self, batch: Batch) -> dict[str, Tensor]:
        """One step of Adam, and of the averages. Returns the means that ``learn`` found, of this process."""
        pieces, found = self.accumulate, dict[str, Tensor]()
        for k in range(pieces):
            with self._unshared() if k + 1 < pieces else ExitStack():
                for name, value in self.learn(piece(batch, k, pieces), pieces).items():
                    found[name] = found.get(name, 0.0) + value / pieces
        found["gradient_norm"] = self.pupil.advance(self.recipe.rate_at(self.step))
        self.step += 1
        for each in self.averages.values():
            each.update(self.parameters, self.step)
        self.note(found)
        self.meter[-1] += 1
        return found

    def note(self, found: dict[str, Tensor]) -> None:
        """Add to the meter what it measures."""
        for k, name in enumerate(self.measures):
            if name in found:
                self.meter[k] += found[name]

    def _unshared(self) -> ExitStack:
        """In here each process has gradients of its own."""
        stack = ExitStack()
        for each in self.pupils:
            stack.enter_context(self.accelerator.no_sync(each.net))
        return stack

    def first_update(self, batch: Batch) -> dict[str, Tensor]:
        """``update`` for the first time in this process, when it shows whether the machine can do it."""
        if self.recipe.accumulate == "auto":
            self.accumulate = self.fitting_pieces(batch)
        try:
            return self.update(batch)
        except Exception as error:
            if not self.compiled or not from_compiler(error):
                raise
            first = str(error).strip().splitlines()[0]
            self.say(f"torch.compile does not work here ({first}); going on without it, which is slower")
            for each in self.compiled:
                each._compiled_call_impl = None
            self.compiled = []
            for pupil in self.pupils:
                pupil.forget()
            return self.update(batch)

    def fitting_pieces(self, batch: Batch) -> int:
        """The fewest equal pieces with which a batch fits in memory in every process.

        Tried without compilation, which needs rather more, and with room kept for what Adam will need.
        """
        if self.recipe.shard:
            raise TrainingError("--batch auto cannot be combined with --shard; set --accumulate yourself")
        forwards = [each._compiled_call_impl for each in self.compiled]
        for each in self.compiled:
            each._compiled_call_impl = None
        rows, size = len(batch.x), sum(p.numel() for pupil in self.pupils for p in pupil.parameters)
        for pieces in (each for each in range(1, rows + 1) if rows % each == 0):
            reserve = None
            try:
                reserve = torch.empty(3 * size, device=self.meter.device)
                with self._unshared():
                    self.heaviest(piece(batch, 0, pieces), pieces)
                fits = True
            except torch.OutOfMemoryError:
                fits = False
            del reserve
            for pupil in self.pupils:
                pupil.forget()
            if self.meter.device.type == "cuda":
                torch.cuda.empty_cache()
            if self.all_agree(fits):
                for each, forward in zip(self.compiled, forwards, strict=True):
                    each._compiled_call_impl = forward
                self.say(f"memory holds {rows // pieces} pictures at a time: --accumulate {pieces}")
                return pieces
        raise TrainingError(f"out of memory even with one picture at a time: {self.smaller}")

    def heaviest(self, batch: Batch, pieces: int) -> None:
        """``learn``, as it is when it needs most memory."""
        self.learn(batch, pieces)

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

    def take_measures(self) -> dict[str, float]:
        """Means since this was last asked for."""
        *sums, count = self.read_meter().tolist()
        self.meter.zero_()
        return {name: value / count for name, value in zip(self.measures, sums, strict=True)}

    def state(self) -> dict[str, Tensor]:
        """All tensors of a checkpoint, in full, on the CPU of the main process (the others get nothing).

        All processes must ask for it together.
        """
        found = self.pupil.state()
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
        sums = tensor("meter").to(self.meter.device)
        if len(sums) == len(self.meter):  # else other things are measured now, and means begin here
            self.meter = sums
        self.pupil.restore(tensor, step)
        for kind, each in self.averages.items():
            for name, value in each.weights.items():
                try:
                    fill(value, tensor(f"average/{kind}/{name}"))
                except SafetensorError:  # snapshots were not asked for before: this average starts here
                    fill(value, tensor(f"weights/{name}"))

    def average(self, kind: str) -> dict[str, Tensor]:
        """Averaged weights, in the main process. All processes must ask for them together."""
        return self._gathered(self.averages[kind].weights)


def held_out(held: Store, device: torch.device) -> Iterator[tuple[Pictures, int]]:
    """Pictures that are held out, some at a time, each time with a seed of their own."""
    count = min(len(held), HELD_OUT)
    which = np.arange(count) * len(held) // count  # from all over the set, which may be sorted by class
    for start in range(0, count, 64):
        some = which[start : start + 64]
        shown = Pictures(*(torch.from_numpy(each[some]).to(device) for each in (held.pictures, held.labels)))
        yield shown, seed_for("held out", start)


def from_compiler(error: Exception) -> bool:
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor", "triton"))
