"""Grids to judge a model by while it trains: the same seeds, labels and holes every time."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from asyncpatch.baselines import supervised
from asyncpatch.data.store import Store
from asyncpatch.drawing import picture, sheet
from asyncpatch.models.autoencoder import Autoencoder
from asyncpatch.models.folder import Model
from asyncpatch.protocols import NULL_LABEL, Cond
from asyncpatch.sampling import draw_noise, generators, sample
from asyncpatch.schedules import inpainting, synchronous
from asyncpatch.steps import ddim
from asyncpatch.train.inputs import shown

STEPS = 32


def _scale(side: int) -> int:
    return max(1, 96 // side)


def sample_grid(model: Model, device: torch.device, rows: int = 4, columns: int = 8) -> Image.Image:
    """Samples by 32 steps of DDIM, their classes spread evenly over all there are."""
    side, count = model.resolution, rows * columns
    tokens = torch.empty(count, model.codec.channels, model.tokens, model.tokens, device=device)
    classes = [k * len(model.labels) // count for k in range(count)] if model.labels else [NULL_LABEL] * count
    noise = draw_noise(tokens, generators(range(count)))
    cond = Cond(label=torch.tensor(classes, device=device))
    made = sample(model.denoiser, synchronous(STEPS), noise, step=ddim(model.process), cond=cond)
    tiles = [picture(x, _scale(side)) for x in model.codec.decode(made, (side, side))]
    return sheet([tiles[k : k + columns] for k in range(0, count, columns)])


def eight_of(held: Store) -> NDArray[np.uint8]:
    """Pictures to look at, at most eight, from all over a set that may be sorted by class."""
    count = min(len(held), 8)
    return held.pictures[np.arange(count) * len(held) // count]


def inpainting_grid(model: Model, levels: NDArray[np.uint8], device: torch.device) -> Image.Image:
    """Pictures, what is left of them, and how the model completes it without being told a class."""
    x, hole = _holed(levels, device)
    random, codec = generators(range(len(x))), model.codec
    e, open_ = codec.encode(x, hole), codec.tokens(hole)
    if model.net.config["given"]:
        made = supervised(model.process, e, open_, STEPS).run(model.denoiser, e, generator=random)
    else:
        schedule = inpainting(open_, STEPS)
        z = model.process.diffuse(e, schedule.start(e), draw_noise(e, random))
        made = sample(model.denoiser, schedule, z, step=ddim(model.process))
    filled = codec.decode(made, (x.shape[2], x.shape[3]))
    return _rows({"picture": x, "given": x * (1 - hole), "completed": filled})


def coding_grid(net: Autoencoder, levels: NDArray[np.uint8], device: torch.device) -> Image.Image:
    """Pictures and what comes of them through the latents, whole and with a hole."""
    x, hole = _holed(levels, device)
    known = 1 - hole
    again, rest = net(x).x, net(x, hole).x * known
    return _rows({"picture": x, "decoded": again, "given": x * known, "decoded, of\nthe given": rest})


def _holed(levels: NDArray[np.uint8], device: torch.device) -> tuple[Tensor, Tensor]:
    """Pictures, and a hole for each: a square, or the right half, in turn."""
    x = shown(torch.from_numpy(levels).to(device), None)
    side = x.shape[-1]
    hole = torch.zeros(len(x), 1, side, side, device=device)
    hole[::2, :, side // 4 : side - side // 4, side // 4 : side - side // 4] = 1.0
    hole[1::2, :, :, side // 2 :] = 1.0
    return x, hole


def _rows(rows: dict[str, Tensor]) -> Image.Image:
    tiles = [[picture(each, _scale(each.shape[-1])) for each in row] for row in rows.values()]
    return sheet(tiles, names=tuple(rows))
