"""The denoising as it ran, as an animation."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from asyncpatch.completion import Box, boxes
from asyncpatch.drawing import picture, sheet
from asyncpatch.images import check_target, write_bytes
from asyncpatch.pipelines import Glimpse, Made, Plan

SIDE = 256
"""Pixels of a picture's longer side in an animation, at most."""
MOST = 120
"""Frames of an animation."""


class Frames:
    """An onlooker that keeps what it sees of the plan's first task: all candidates beside each other.

    Of a large picture only the surroundings of its holes are shown.
    """

    def __init__(self, plan: Plan, window: int, columns: int = 4) -> None:
        task = plan.tasks[0]
        parts = [Box(0, 0, *task.picture.size)] if plan.rings else boxes(task.hole[0], window)
        tops, lefts, bottoms, rights = zip(*parts, strict=True)
        self.view = Box(min(tops), min(lefts), max(bottoms), max(rights))
        self.hole = self.view.of(task.hole)
        self.columns = columns
        height, width = self.hole.shape[1:]
        given = task.picture.window(self.view.top, self.view.left, height, width)
        self.shown = [torch.where(self.hole > 0, 0.0, given)] * len(task.seeds)
        self.frames: list[Image.Image] = []

    def __call__(self, glimpse: Glimpse) -> None:
        stage, visit = glimpse.moment.stage, glimpse.moment.visit
        canvas = torch.where(stage.wait > 0, 0.0, visit.z).float().cpu()
        mine = [(row, z) for row, z in zip(glimpse.rows, canvas, strict=True) if row.task == 0]
        for row, z in mine:
            top, left = row.box.top - self.view.top, row.box.left - self.view.left
            height, width = row.box.bottom - row.box.top, row.box.right - row.box.left
            place = Box(top, left, top + height, left + width)
            full = functional.interpolate(z[None], scale_factor=stage.factor)[0, :, :height, :width]
            now = self.shown[row.candidate].clone()
            place.of(now).copy_(torch.where(place.of(self.hole) > 0, full.clamp(-1, 1), place.of(now)))
            self.shown[row.candidate] = now
        if mine:
            self._keep()

    def _keep(self) -> None:
        tiles = [_tile(each) for each in self.shown]
        rows = [tiles[k : k + self.columns] for k in range(0, len(tiles), self.columns)]
        rows[-1] += [Image.new("RGB", tiles[0].size, "white")] * (len(rows[0]) - len(rows[-1]))
        self.frames.append(sheet(rows) if len(tiles) > 1 else tiles[0])
        if len(self.frames) >= 2 * MOST:  # a long run: every other one will do
            self.frames = self.frames[::2]

    def write(self, made: Made, path: Path, *, force: bool = False) -> None:
        """The animation, with what was made of it at the end, as a GIF."""
        height, width = self.hole.shape[1:]
        self.shown = [each.window(self.view.top, self.view.left, height, width) for each in made.pictures]
        self._keep()
        some = [*self.frames[: -1 : -(-len(self.frames) // MOST)], self.frames[-1]]
        file = io.BytesIO()
        some[0].save(
            file, "GIF", save_all=True, append_images=some[1:], duration=[60] * (len(some) - 1) + [2000], loop=0
        )
        write_bytes(file.getvalue(), path, lambda: check_target(path, force=force, suffixes=[".gif"]))


def _tile(x: Tensor) -> Image.Image:
    image = picture(x)
    longer = max(image.size)
    if longer > SIDE:
        image = image.resize(
            (max(1, image.width * SIDE // longer), max(1, image.height * SIDE // longer)), Image.Resampling.BOX
        )
    elif longer <= SIDE // 2:
        scale = SIDE // 2 // longer
        image = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    return image
