"""Processes that torchrun started, and how they share work on pictures.

Each takes a part of the pictures, in their order; what they found is gathered in the main process, which writes it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from typing import Any, TypeVar

import torch

PATIENCE = timedelta(hours=2)
"""For which processes wait for one that decodes, draws or compares."""

T = TypeVar("T")


@dataclass(frozen=True)
class Team:
    """This process, ``rank``, among ``world``. All of them must call these methods, in the same order."""

    rank: int = 0
    world: int = 1

    @property
    def main(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    def part(self, count: int) -> range:
        """Which of so many things are this process's."""
        return range(self.rank * count // self.world, (self.rank + 1) * count // self.world)

    def gathered(self, mine: T) -> list[T] | None:
        """What each process has, in their order; None but in the main process."""
        if self.world == 1:
            return [mine]
        several: list[Any] | None = [None] * self.world if self.main else None
        torch.distributed.gather_object(mine, several)
        return several

    def told(self, value: T) -> T:
        """What the main process has, in all of them."""
        if self.world == 1:
            return value
        said = [value]
        torch.distributed.broadcast_object_list(said)
        return said[0]

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """The main process alone, then the others: they find what it left on the disk."""
        if not self.main:
            torch.distributed.barrier()
        yield
        if self.main and self.world > 1:
            torch.distributed.barrier()


@contextmanager
def together() -> Iterator[Team]:
    """All processes that torchrun started, each with a GPU of its own where there are any; or the only one there is."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Team()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    # its functions have the group as a default argument: imported later, they would keep it, and its threads, for good
    import_module("torch.distributed.nn.functional")
    torch.distributed.init_process_group("gloo", timeout=PATIENCE)
    yield Team(torch.distributed.get_rank(), world)
    leave()


def leave() -> None:
    """The last thing that a process does which worked beside others: PyTorch may abort one that exits while threads of
    its group (gloo's) still run."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
