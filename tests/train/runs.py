"""A recipe that trains in a second, and pictures to train it on."""

import json

import numpy as np
from PIL import Image
from safetensors.torch import load_file

from asyncpatch.train.config import Recipe

TINY = Recipe(
    resolution=8, width=16, multipliers=(1, 2), blocks=(1, 1), middle_blocks=1, attention=0,
    steps=6, batch=8, rate=1e-3, warmup=2, log_every=1, save_every=2, picture_every=100, device="cpu",
)  # fmt: skip
"""For one test after the other: no pictures before the end."""


def write_pictures(folder, count=24, classes=("dark", "light")):
    """Noise, darker or lighter by class; the same every time."""
    random = np.random.default_rng(0)
    for k in range(count):
        name = classes[k % len(classes)]
        levels = random.integers(0, 128, (8, 8, 3), np.uint8) + np.uint8(100 * (k % len(classes)))
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(levels).save(folder / name / f"{k:02d}.png")
    return folder


def tensors_of(run, step):
    """All tensors of a run's checkpoint."""
    return load_file(run / f"checkpoints/step-{step:08d}/state.safetensors")


def losses(run):
    """Loss by step."""
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return {line["step"]: line["loss"] for line in lines if "loss" in line}
