"""Recipes: functions that return a ``Recipe`` or, for autoencoders, an ``AutoencoderRecipe``. Change one with
``dataclasses.replace``, or on the command line.

The paper's two denoisers are for ImageNet at 64x64. It does not state the learning rate, warm-up and Adam's numbers,
which are those of the public code that its method descends from; of its autoencoder it states nothing but the network
(docs/deviations.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from asyncpatch.train.config import MIXED, NEEDED, AutoencoderRecipe, Recipe, Training


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
        steps=3_920, batch=512, rate=6e-4, warmup=300, decay=0.6, ema=0.998, save_every=1_960, picture_every=3_920,
    )  # fmt: skip


def cifar10() -> Recipe:
    """CIFAR-10 at 32x32: 36M parameters, three scales, attention at the lower two."""
    return Recipe(
        resolution=32, width=128, multipliers=(1, 2, 2), blocks=(3, 3, 3), middle_blocks=2,
        steps=200_000, batch=256, rate=2e-4, warmup=2_000, ema=0.9999, save_every=5_000, picture_every=10_000,
    )  # fmt: skip


def cifar10_likelihood() -> Recipe:
    """CIFAR-10 for bits per dimension: 22M parameters, most of its work at full size, eight minutes of one GPU.

    Most bits are where there is hardly any noise. There the cosine process asks for the noise alone; rectified flow
    asks for noise minus picture, which has to be copied exactly.
    """
    return Recipe(
        resolution=32, width=128, multipliers=(1, 2), blocks=(7, 2), middle_blocks=2, attention=1, fourier=2,
        weighting="elbo", process="cosine",
        steps=10_500, batch=256, rate=6e-4, warmup=500, decay=0.7, ema=0.999, save_every=3_500, picture_every=10_500,
    )  # fmt: skip


def imagenet256_latent() -> Recipe:
    """The paper's 620M network for ImageNet at 256x256, on the 64x64 latents of imagenet256_vq."""
    return replace(imagenet64_620m(), resolution=256, autoencoder=NEEDED)


def lsun256_latent() -> Recipe:
    """The same for LSUN bedrooms, whose pictures have no classes; 80 of 192 parts of its time, as in the paper."""
    return replace(imagenet256_latent(), steps=420_000)


def latent128_23m() -> Recipe:
    """The network of default64_23m at 128x128, on the 32x32 latents of default128_vq, for some ten minutes of one GPU:
    small sets are gone through often enough by then."""
    return replace(default64_23m(), resolution=128, autoencoder=NEEDED, steps=8_000)


def latent256_23m() -> Recipe:
    """The network of default64_23m at 256x256, on the 64x64 latents of default256_vq."""
    return replace(default64_23m(), resolution=256, autoencoder=NEEDED)


def smoke() -> Recipe:
    """A tiny network at 16x16 that learns something visible in a minute on two cores."""
    return Recipe(
        resolution=16, width=32, multipliers=(1, 2), blocks=(1, 1), middle_blocks=1, attention=1,
        steps=250, batch=32, rate=2e-3, warmup=10, decay=0.5, ema=0.98,
        log_every=10, save_every=50, picture_every=125,
    )  # fmt: skip


def imagenet256_vq() -> AutoencoderRecipe:
    """The paper's autoencoder for ImageNet and LSUN at 256x256: 4 times smaller, 8,192 codes."""
    return AutoencoderRecipe(
        resolution=256, width=128,
        steps=500_000, batch=64, rate=1e-4, warmup=5_000, adversary_start=50_000,
        log_every=100, save_every=5_000, picture_every=10_000,
    )  # fmt: skip


def default128_vq() -> AutoencoderRecipe:
    """A small autoencoder, 6M parameters, at 128x128, for some ten minutes of one GPU."""
    return AutoencoderRecipe(
        crops=4.0,
        steps=8_000, batch=64, rate=3e-4, warmup=150, decay=0.4, ema=0.998, adversary_start=2_500, adversary_lead=300,
        save_every=1_000, picture_every=4_000,
    )  # fmt: skip


def default256_vq() -> AutoencoderRecipe:
    """The network of default128_vq at 256x256, for a few hours of one GPU."""
    return AutoencoderRecipe(
        resolution=256, crops=4.0,
        steps=60_000, batch=32, rate=2e-4, warmup=1_000, decay=0.4, adversary_start=20_000,
        save_every=2_000, picture_every=5_000,
    )  # fmt: skip


def smoke_vq() -> AutoencoderRecipe:
    """A tiny autoencoder at 32x32, whose pictures can be recognised after a minute on two cores."""
    return AutoencoderRecipe(
        resolution=32, width=16, multipliers=(1, 2), blocks=1, codes=256,
        steps=250, batch=16, rate=2e-3, warmup=10, decay=0.5, ema=0.98, adversary_start=150, adversary_lead=20,
        adversary_width=16,
        log_every=10, save_every=50, picture_every=125,
    )  # fmt: skip


ALL: dict[str, Callable[[], Recipe]] = {
    each.__name__: each
    for each in (
        imagenet64_60m, imagenet64_620m, default64_23m, ablation64_23m, cifar10, cifar10_likelihood,
        imagenet256_latent, lsun256_latent,
        latent128_23m, latent256_23m, smoke,
    )
}  # fmt: skip
AUTOENCODERS: dict[str, Callable[[], AutoencoderRecipe]] = {
    each.__name__: each for each in (imagenet256_vq, default128_vq, default256_vq, smoke_vq)
}
Told = TypeVar("Told", bound=Training)


def named(name: str, among: dict[str, Callable[[], Told]]) -> Told:
    """The recipe of that name."""
    if name not in among:
        from difflib import get_close_matches

        close = get_close_matches(name, among, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"there is no recipe {name!r}{hint} (there are {', '.join(among)})")
    return among[name]()
