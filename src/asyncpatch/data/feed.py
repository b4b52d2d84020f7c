"""Batches for training, by step.

A *feed* hands each process its rows of the global batch of a step. Stored pictures come in an order that is a fresh
permutation per epoch, drawn from the seed; so a run that is resumed, or spread over another number of processes, sees
the same batches. Shards are streamed: there each process has its own, and keeps a position (``state``) that can be gone
back to (``restore``).
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from asyncpatch.data.decoders import Decoders
from asyncpatch.data.pictures import Pixels
from asyncpatch.data.sources import DataError, Item, Shards
from asyncpatch.data.store import Store, check_broken


class Pictures(NamedTuple):
    """Rows of a batch on the device: uint8 [b, H, W, 3], labels [b] (-1 for none) and, of a store, places in it [b]."""

    levels: Tensor
    label: Tensor
    place: Tensor | None = None


@dataclass(frozen=True)
class Share:
    """Which rows of a global batch are this process's: those of ``rank`` among ``world`` equal parts."""

    rank: int = 0
    world: int = 1

    def rows(self, batch: int) -> slice:
        if batch % self.world:
            raise ValueError(f"batch must divide among {self.world} processes, got {batch}")
        each = batch // self.world
        return slice(self.rank * each, (self.rank + 1) * each)


class Feed(Protocol):
    def batch(self, step: int) -> Pictures: ...
    def state(self) -> dict[str, int]: ...
    def restore(self, state: dict[str, int]) -> None: ...
    def close(self) -> None: ...


def seed_for(*parts: object) -> int:
    """A seed of 63 bits that depends on all parts."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def room(device: torch.device) -> int:
    """Bytes that a whole data set may take there."""
    return torch.cuda.mem_get_info(device)[0] // 4 if device.type == "cuda" else 2**31


class Order:
    """The infinite sequence of pictures: one permutation after the other."""

    def __init__(self, count: int, seed: int) -> None:
        self.count, self.seed = count, seed
        self._epochs: dict[int, Tensor] = {}

    def _epoch(self, epoch: int) -> Tensor:
        if epoch not in self._epochs:
            generator = torch.Generator().manual_seed(seed_for(self.seed, "epoch", epoch))
            self._epochs[epoch] = torch.randperm(self.count, generator=generator)
            self._epochs = {key: value for key, value in self._epochs.items() if epoch - 1 <= key <= epoch}
        return self._epochs[epoch]

    def __call__(self, start: int, stop: int) -> Tensor:
        """Which pictures stand at the positions from ``start`` to ``stop``."""
        parts = []
        while start < stop:
            epoch, within = divmod(start, self.count)
            taken = min(stop - start, self.count - within)
            parts.append(self._epoch(epoch)[within : within + taken])
            start += taken
        return torch.cat(parts)


class StoredFeed:
    """Batches of a store. Where a GPU has room for all pictures they are put there once, else they follow ahead."""

    def __init__(self, store: Store, batch: int, seed: int, device: torch.device, share: Share = Share()) -> None:  # noqa: B008
        self.order, self.store, self.global_batch = Order(len(store), seed), store, batch
        self.device, self.rows = device, share.rows(batch)
        self.labels = torch.from_numpy(store.labels)
        self.resident: Tensor | None = None
        if device.type == "cuda" and store.pictures.nbytes < room(device):
            self.resident = torch.empty(store.pictures.shape, dtype=torch.uint8, device=device)
            for k in range(0, len(store), 4096):  # by parts: each process would need the set's size in memory
                self.resident[k : k + 4096] = torch.from_numpy(store.pictures[k : k + 4096].copy()).to(device)
        self._pool = ThreadPoolExecutor(1)
        self._ahead: dict[int, Future[Pictures]] = {}

    def _load(self, step: int) -> Pictures:
        which = self.order(step * self.global_batch, (step + 1) * self.global_batch)[self.rows]
        place, label = self._send(which), self._send(self.labels[which])
        if self.resident is not None:
            return Pictures(self.resident[place], label, place)
        return Pictures(self._send(torch.from_numpy(self.store.pictures[which.numpy()])), label, place)

    def _send(self, tensor: Tensor) -> Tensor:
        if self.device.type == "cuda":
            return tensor.pin_memory().to(self.device, non_blocking=True)
        return tensor.to(self.device)

    def batch(self, step: int) -> Pictures:
        wanted = self._ahead.pop(step, None) or self._pool.submit(self._load, step)  # by one thread, in its order
        self._ahead = {step + 1: self._pool.submit(self._load, step + 1)}
        return wanted.result()

    def state(self) -> dict[str, int]:
        return {}

    def restore(self, state: dict[str, int]) -> None:
        """Nothing to go back to: a step says it all."""

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


class StreamedFeed:
    """Batches of tar shards, which are dealt to the processes in a fresh order per epoch.

    Shards are read in groups of at least ``group`` pictures and each group is shuffled as a whole, so that a position
    (epoch, first shard of the group, pictures already given) is enough to go on where a run was stopped: nothing is
    read again but the current group. Groups are fetched, and batches decoded, ahead of their use.
    """

    def __init__(
        self,
        shards: Shards,
        side: int,
        batch: int,
        seed: int,
        device: torch.device,
        share: Share = Share(),  # noqa: B008
        *,
        group: int = 4096,
    ) -> None:
        if len(shards.paths) < share.world:
            raise DataError(f"{len(shards.paths)} shards cannot feed {share.world} processes; give at least as many")
        self.shards, self.side, self.seed, self.group = shards, side, seed, group
        self.device, self.share, rows = device, share, share.rows(batch)
        self.count = rows.stop - rows.start
        self.broken: list[str] = []
        self.seen = 0
        self._decoders = Decoders(side)
        self._reading, self._batching = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        try:
            self._decode(list(islice(shards.read(shards.paths[0]), 1000)))
            if not self.seen:
                raise DataError(f"{shards.paths[0]} holds no pictures")
            check_broken(self.broken, self.seen)
        except BaseException:
            self.close()
            raise
        self.restore({"epoch": 0, "shard": 0, "given": 0})

    def restore(self, state: dict[str, int]) -> None:
        self._state = dict(state)
        batches = self._batches(**state)
        self._ahead = deque(self._batching.submit(next, batches) for _ in range(3))
        self._batches_now = batches

    def state(self) -> dict[str, int]:
        return dict(self._state)

    def batch(self, step: int) -> Pictures:
        """The next batch: steps must be asked for in their order, from the one that was restored."""
        levels, label, self._state = self._ahead.popleft().result()
        self._ahead.append(self._batching.submit(next, self._batches_now))
        return Pictures(levels.to(self.device, non_blocking=True), label.to(self.device, non_blocking=True))

    def _batches(self, epoch: int, shard: int, given: int) -> Iterator[tuple[Tensor, Tensor, dict[str, int]]]:
        groups = self._groups(epoch, shard)
        coming = self._reading.submit(next, groups)
        good: list[tuple[Pixels, int]] = []
        while True:
            (epoch, shard, items), coming = coming.result(), self._reading.submit(next, groups)
            while given < len(items):
                wanted = items[given : given + self.count - len(good)]
                given += len(wanted)
                good += self._decode(wanted)
                if self.seen >= 1000:
                    check_broken(self.broken, self.seen)
                if len(good) == self.count:
                    levels = torch.from_numpy(np.stack([pixels for pixels, _ in good]))
                    label = torch.tensor([each for _, each in good])
                    yield levels, label, {"epoch": epoch, "shard": shard, "given": given}
                    good = []
            given = 0

    def _decode(self, items: list[Item]) -> list[tuple[Pixels, int]]:
        """The pictures that can be read, with their labels; the others are counted."""
        good = []
        for item, result in self._decoders.map(items):
            if isinstance(result, str):
                self.broken.append(result)
            else:
                good.append((result[0], item.label))
        self.seen += len(items)
        return good

    def _groups(self, epoch: int, shard: int) -> Iterator[tuple[int, int, list[Item]]]:
        """Shuffled groups of items, each with its epoch and the place of its first shard in the epoch's order."""
        while True:
            generator = torch.Generator().manual_seed(seed_for(self.seed, "shards", epoch))
            order = torch.randperm(len(self.shards.paths), generator=generator).tolist()
            mine = [self.shards.paths[k] for k in order[self.share.rank :: self.share.world]]
            while shard < len(mine):
                first, items = shard, list[Item]()
                while shard < len(mine) and len(items) < self.group:
                    items += self.shards.read(mine[shard])
                    shard += 1
                if not items and len(mine) == shard - first:
                    raise DataError(f"there are no pictures in {', '.join(mine)}")
                generator.manual_seed(seed_for(self.seed, "group", epoch, self.share.rank, first))
                yield epoch, first, [items[k] for k in torch.randperm(len(items), generator=generator).tolist()]
            epoch, shard = epoch + 1, 0

    def close(self) -> None:
        for pool in (self._batching, self._reading):
            pool.shutdown(wait=False, cancel_futures=True)
        self._decoders.close()
