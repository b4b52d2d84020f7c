"""A network in training: one step of Adam, averages of the weights, and the state that a checkpoint holds.

What it learns is for those who inherit to say. Everything random of step k is drawn for the whole global batch from the
seed and k; each process takes its rows. So a run does not depend on how many processes share it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Generic, Protocol, Self, TypeVar

import torch
from accelerate import Accelerator
from safetensors import SafetensorError
from torch import Tensor, nn

from asyncpatch.data.feed import Pictures
from asyncpatch.data.store import Store
from asyncpatch.train import average
from asyncpatch.train.config import Recipe
from asyncpatch.train.errors import TrainingError
from asyncpatch.train.sharded import fill, whole
from asyncpatch.train.watch import Watch


class Drawn(Protocol):
    """A batch, with all that was drawn for it."""

    @property
    def x(self) -> Tensor:
        """Its pictures."""
        ...

    def piece(self, k: int, of: int) -> Self:
        """Part k of ``of`` equal ones."""
        ...


class Savable(Protocol):
    def save(self, folder: Path) -> None: ...


Batch = TypeVar("Batch", bound=Drawn)
Made = TypeVar("Made", bound=Savable)


class Learner(ABC, Generic[Batch, Made]):
    """A network's weights, Adam, averages, and how far it is."""

    apart: tuple[type[nn.Module], ...] = ()
    """Kinds of layers that are compiled each for itself where weights are sharded."""

    def __init__(self, recipe: Recipe, net: Any, accelerator: Accelerator, say: Callable[[str], None]) -> None:
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

    @abstractmethod
    def draw(self, pictures: Pictures, rows: slice, seed: int) -> Batch:
        """Everything random for a global batch, of which ``pictures`` are these rows."""

    @abstractmethod
    def loss(self, net: nn.Module, batch: Batch) -> Tensor:
        """The mean loss of a batch."""

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
        return self.accelerator.unwrap_model(self.net)

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
                self.loss(self.bare, batch.piece(0, pieces)).backward()  # type: ignore[no-untyped-call]
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


def _from_compiler(error: Exception) -> bool:
    return type(error).__module__.startswith(("torch._dynamo", "torch._inductor", "triton"))
