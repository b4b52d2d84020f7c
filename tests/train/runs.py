"""A recipe that trains in a second, and pictures to train it on."""

import json

import numpy as np
from PIL import Image
from safetensors.torch import load_file

from asyncpatch.train.config import AutoencoderRecipe, Recipe

TINY = Recipe(
    resolution=8, width=16, multipliers=(1, 2), blocks=(1, 1), middle_blocks=1, attention=0,
    steps=6, batch=8, rate=1e-3, warmup=2, log_every=1, save_every=2, picture_every=100, device="cpu",
)  # fmt: skip
"""For one test after the other: no pictures before the end."""
TINY_VQ = AutoencoderRecipe(
    resolution=32, width=8, multipliers=(1, 2), blocks=1, codes=32, holes="square", perceptual=0.0, locality=0.0,
    adversary=0.75, adversary_start=3, adversary_lead=0, adversary_width=8,
    steps=6, batch=8, rate=1e-3, warmup=2, log_every=1, save_every=2, picture_every=100, device="cpu",
)  # fmt: skip
"""The same of an autoencoder: its discriminator starts half way."""


def write_pictures(folder, count=24, classes=("dark", "light")):
    """Noise, darker or lighter by class; the same every time."""
    random = np.random.default_rng(0)
    for k in range(count):
        name = classes[k % len(classes)]
        levels = random.integers(0, 128, (8, 8, 3), np.uint8) + np.uint8(100 * (k % len(classes)))
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(levels).save(folder / name / f"{k:02d}.png")
    return folder


def options_of(recipe):
    """What a command line says for a recipe."""
    return [
        part
        for name, value in recipe.to_dict().items()
        for part in (
            [f"--{'' if value else 'no-'}{name.replace('_', '-')}"]
            if isinstance(value, bool)
            else [f"--{name.replace('_', '-')}", ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
        )
    ]


def tensors_of(run, step):
    """All tensors of a run's checkpoint."""
    return load_file(run / f"checkpoints/step-{step:08d}/state.safetensors")


def losses(run):
    """Loss by step."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}
