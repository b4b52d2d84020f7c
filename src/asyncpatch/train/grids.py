"""Grids to judge a model by while it trains: the same seeds, labels and holes every time."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from asyncpatch.baselines import supervised
from asyncpatch.drawing import picture, sheet
from asyncpatch.models.folder import Model
from asyncpatch.protocols import NULL_LABEL, Cond
from asyncpatch.sampling import draw_noise, generators, sample
from asyncpatch.schedules import inpainting, synchronous
from asyncpatch.steps import ddim

STEPS = 32


def _scale(side: int) -> int:
    return max(1, 96 // side)


def sample_grid(model: Model, device: torch.device, rows: int = 4, columns: int = 8) -> Image.Image:
    """Samples by 32 steps of DDIM, their classes spread evenly over all there are."""
    side, count = model.resolution, rows * columns
    classes = [k * len(model.labels) // count for k in range(count)] if model.labels else [NULL_LABEL] * count
    noise = draw_noise(torch.empty(count, 3, side, side, device=device), generators(range(count)))
    cond = Cond(label=torch.tensor(classes, device=device))
    made = sample(model.denoiser, synchronous(STEPS), noise, step=ddim(model.process), cond=cond)
    tiles = [picture(x, _scale(side)) for x in made]
    return sheet([tiles[k : k + columns] for k in range(0, count, columns)])


def inpainting_grid(model: Model, levels: NDArray[np.uint8], device: torch.device) -> Image.Image:
    """Pictures, what is left of them, and how the model completes it without being told a class."""
    x = torch.from_numpy(levels).to(device).permute(0, 3, 1, 2).float() / 127.5 - 1.0
    side = x.shape[-1]
    hole = torch.zeros(len(x), 1, side, side, device=device)
    hole[::2, :, side // 4 : side - side // 4, side // 4 : side - side // 4] = 1.0  # a square, or the right half
    hole[1::2, :, :, side // 2 :] = 1.0
    random = generators(range(len(x)))
    if model.net.config["given"]:
        filled = supervised(model.process, x, hole, STEPS).run(model.denoiser, x, generator=random)
    else:
        schedule = inpainting(hole, STEPS)
        z = model.process.diffuse(x, schedule.start(x), draw_noise(x, random))
        filled = sample(model.denoiser, schedule, z, step=ddim(model.process))
    tiles = [[picture(each, _scale(side)) for each in row] for row in (x, x * (1 - hole), filled)]
    return sheet(tiles, names=("picture", "given", "completed"))
