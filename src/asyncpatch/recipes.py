"""Recipes: functions that return a ``Recipe``. Change one with ``dataclasses.replace``, or on the command line.

The paper's two are for ImageNet at 64x64. It does not state the learning rate, warm-up and Adam's numbers, which are
those of the public code that its method descends from (docs/deviations.md).
"""

from __future__ import annotations

from collections.abc import Callable

from asyncpatch.train.config import MIXED, Recipe


def imagenet64_60m() -> Recipe:
    """The paper's 60M network for ImageNet at 64x64: a million steps of 512."""
    return Recipe(
        width=128, multipliers=(1, 2, 3, 3), blocks=(1, 2, 2, 2), middle_blocks=1,
        steps=1_000_000, batch=512, rate=3e-5, warmup=10_000, save_every=5_000, picture_every=25_000,
    )  # fmt: skip


def imagenet64_620m() -> Recipe:
    """The paper's 620M network for ImageNet at 64x64, sharded over the GPUs of one or more machines."""
    return Recipe(
        width=256, multipliers=(1, 2, 3, 4), blocks=(4, 4, 4, 4), middle_blocks=3,
        steps=1_000_000, batch=512, rate=3e-5, warmup=10_000, save_every=5_000, picture_every=25_000,
        checkpointing=True, shard=True,
    )  # fmt: skip


def default64_23m() -> Recipe:
    """About 23M parameters at 64x64, for half an hour to a few hours of one GPU: the rate is high and falls to 0.

    A fifth of the time fields are inpainting-like: in fine-tuning that filled holes better and generated as well (the
    card of the shipped model).
    """
    return Recipe(
        times=MIXED, crops=4.0,
        steps=16_000, batch=512, rate=6e-4, warmup=500, decay=0.5, ema=0.9988,
        snapshot_every=1_000, save_every=1_000, picture_every=4_000,
    )  # fmt: skip


def ablation64_23m() -> Recipe:
    """The network of default64_23m on two million pictures, six minutes of one GPU: to compare ways to train it."""
    return Recipe(
        steps=4_000, batch=512, rate=6e-4, warmup=300, decay=0.6, ema=0.998, save_every=2_000, picture_every=4_000,
    )  # fmt: skip


def cifar10() -> Recipe:
    """CIFAR-10 at 32x32: 36M parameters, three scales, attention at the lower two."""
    return Recipe(
        resolution=32, width=128, multipliers=(1, 2, 2), blocks=(3, 3, 3), middle_blocks=2,
        steps=200_000, batch=256, rate=2e-4, warmup=2_000, ema=0.9999, save_every=5_000, picture_every=10_000,
    )  # fmt: skip


def smoke() -> Recipe:
    """A tiny network at 16x16 that learns something visible in a minute on two cores."""
    return Recipe(
        resolution=16, width=32, multipliers=(1, 2), blocks=(1, 1), middle_blocks=1, attention=1,
        steps=250, batch=32, rate=2e-3, warmup=10, decay=0.5, ema=0.98,
        log_every=10, save_every=50, picture_every=125,
    )  # fmt: skip


ALL: dict[str, Callable[[], Recipe]] = {
    each.__name__: each for each in (imagenet64_60m, imagenet64_620m, default64_23m, ablation64_23m, cifar10, smoke)
}


def named(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in ALL:
        from difflib import get_close_matches

        close = get_close_matches(name, ALL, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"there is no recipe {name!r}{hint} (there are {', '.join(ALL)})")
    return ALL[name]()
