"""The data of a run: what it is trained on, what is held out to look at, and how its processes share it."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor

from asyncpatch.data.feed import Feed, Share, StoredFeed, StreamedFeed
from asyncpatch.data.masks import KINDS, holes
from asyncpatch.data.sources import DataError, Joined, Shards, open_sources
from asyncpatch.data.store import Store, open_store
from asyncpatch.protocols import NULL_LABEL
from asyncpatch.train.config import Training

Say = Callable[[str], None]

HOLES = 4096
"""Of each kind, in the stock that a network is trained with."""
_FIRST_HOLE = 1 << 40


def kinds_of_holes(text: str) -> list[str]:
    """The kinds that a recipe names, with commas between them."""
    names = [each.strip() for each in text.split(",")]
    for name in names:
        if name not in KINDS:
            raise ValueError(f"holes must be of {', '.join(KINDS)}, with commas between them; got {name!r}")
    return names


def draw_holes(kinds: str, side: int) -> Tensor:
    """A stock of holes to train with, of all the kinds that are named, uint8; of other seeds than an evaluation's."""
    seeds = range(_FIRST_HOLE, _FIRST_HOLE + HOLES)
    return torch.cat([holes(name, seeds, side, side).byte() for name in kinds_of_holes(kinds)])


def shown(levels: Tensor, flip: Tensor | None) -> Tensor:
    """Levels [B, H, W, 3] as pictures in [-1, 1]; mirrored where ``flip`` [B], a draw from U(0, 1), is below a half."""
    x = levels.permute(0, 3, 1, 2).float() / 127.5 - 1.0
    return x if flip is None else torch.where(flip.view(-1, 1, 1, 1) < 0.5, x.flip(3), x)


def share_of(accelerator: Accelerator) -> Share:
    return Share(accelerator.process_index, accelerator.num_processes)


def open_training(data: Sequence[str]) -> Joined | Shards:
    """What ``data`` names; nothing is decoded yet."""
    source = open_sources(data)
    if source is None:
        raise DataError(f"there are no training pictures in {', '.join(data)}")
    return source


def open_feed(
    source: Joined | Shards,
    data: Sequence[str],
    recipe: Training,
    cache: Path | None,
    accelerator: Accelerator,
    say: Say,
) -> tuple[Feed, Store]:
    """Batches, and pictures to look at now and then: held out where there are such. Decodes what is not decoded yet."""
    share, device = share_of(accelerator), accelerator.device

    def stores() -> tuple[Store | None, Store | None]:
        held = _store(open_sources(data, "validation"), recipe.resolution, 0.0, cache, say)
        return held, _store(source, recipe.resolution, recipe.crops, cache, say)

    if accelerator.num_processes > 1:  # one decodes; then one on each machine, where they do not share a disk
        with accelerator.main_process_first():
            if accelerator.is_main_process:
                stores()
        with accelerator.local_main_process_first():
            held, store = stores()
    else:
        held, store = stores()
    if isinstance(source, Shards):
        feed: Feed = StreamedFeed(source, recipe.resolution, recipe.batch, recipe.seed, device, share)
        first = feed.batch(0)
        feed.restore({"epoch": 0, "shard": 0, "given": 0})
        store = Store(first.levels.cpu().numpy(), first.label.cpu().numpy(), source.names)
        say(f"streaming {len(source.paths)} shards, {len(source.names)} classes")
    else:
        assert store is not None
        feed = StoredFeed(store, recipe.batch, recipe.seed, device, share)
        say(f"{len(store):,} pictures, {len(source.names)} classes")
    if held is None:
        say("no pictures are held out: the loss called held-out is that of training pictures")
        return feed, store
    say(f"{len(held):,} pictures are held out")
    return feed, _relabelled(held, source.names)


def _relabelled(held: Store, names: tuple[str, ...]) -> Store:
    """With the numbers that the training set gives the classes: another split may lack some, or have others."""
    number = [names.index(name) if name in names else NULL_LABEL for name in held.names] + [NULL_LABEL]
    return Store(held.pictures, np.array(number)[held.labels], names, held.broken)


def _store(source: Joined | Shards | None, side: int, crops: float, cache: Path | None, say: Say) -> Store | None:
    if source is None or isinstance(source, Shards):
        return None
    told = time.monotonic()

    def progress(done: int, of: int) -> None:
        nonlocal told
        if time.monotonic() - told > 5:
            told = time.monotonic()
            say(f"decoding, once: {done:,} of {of:,}")

    try:
        store = open_store(source, side, crops=crops, cache=cache, progress=progress)
    except OSError as error:
        full = "; the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        raise DataError(
            f"cannot keep decoded data in the cache folder ({error}){full}: choose another --cache"
        ) from error
    if store.broken:
        say(f"{len(store.broken)} pictures cannot be read and are left out:")
        for line in store.broken[:10]:
            say(f"  {line}")
    return store
