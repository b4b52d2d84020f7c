"""The denoising as it ran, as an animation."""

from __future__ import annotations

import io
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from asyncpatch.drawing import picture, sheet
from asyncpatch.images import Picture, check_target, write_bytes
from asyncpatch.pipelines import Glimpse, Made
from asyncpatch.plans import Plan
from asyncpatch.regions import Box, boxes

SIDE = 256
"""Pixels of a picture's longer side in an animation, at most."""
MOST = 120
"""Frames of an animation."""


class View:
    """Where what is seen of a plan's first task belongs: of a large picture only the surroundings of its holes."""

    def __init__(self, plan: Plan, window: int) -> None:
        task = plan.tasks[0]
        parts = [Box(0, 0, *task.picture.size)] if plan.rings else boxes(task.hole[0], window)
        tops, lefts, bottoms, rights = zip(*parts, strict=True)
        self.box = Box(min(tops), min(lefts), max(bottoms), max(rights))
        self.hole = self.box.of(task.hole)
        self.given = torch.where(self.hole > 0, 0.0, self.of(task.picture))

    def of(self, picture: Picture) -> Tensor:
        """[3, h, w]"""
        return picture.window(self.box.top, self.box.left, *self.hole.shape[1:])

    def lay(self, shown: list[Tensor], glimpse: Glimpse, values: Tensor) -> bool:
        """Lays fields of the glimpse's rows, [B, C, h, w], over the holes of the candidates that they are of, each
        [C, h, w]; whether there were any."""
        factor, mine = glimpse.moment.stage.factor, False
        for row, value in zip(glimpse.rows, values.float().cpu(), strict=True):
            if row.task:
                continue
            top, left = row.box.top - self.box.top, row.box.left - self.box.left
            height, width = row.box.bottom - row.box.top, row.box.right - row.box.left
            place = Box(top, left, top + height, left + width)
            full = functional.interpolate(value[None], scale_factor=factor)[0, :, :height, :width]
            now = shown[row.candidate].clone()
            place.of(now).copy_(torch.where(place.of(self.hole) > 0, full, place.of(now)))
            shown[row.candidate], mine = now, True
        return mine


class Frames:
    """An onlooker that keeps what it sees of the plan's first task: all candidates beside each other."""

    def __init__(self, plan: Plan, window: int, columns: int = 4) -> None:
        self.view, self.columns = View(plan, window), columns
        self.shown = [self.view.given] * len(plan.tasks[0].seeds)
        self.frames: list[Image.Image] = []

    def __call__(self, glimpse: Glimpse) -> None:
        if self.view.lay(self.shown, glimpse, glimpse.moment.pictures(glimpse.moment.visit.z)):
            self._keep()

    def _keep(self) -> None:
        self.frames.append(beside([fitted(picture(each)) for each in self.shown], self.columns))
        if len(self.frames) >= 2 * MOST:  # a long run: every other one will do
            self.frames = self.frames[::2]

    def write(self, made: Made, path: Path, *, force: bool = False) -> None:
        """The animation, with what was made of it at the end, as a GIF."""
        self.shown = [self.view.of(each) for each in made.pictures]
        self._keep()
        some = [*self.frames[: -1 : -(-len(self.frames) // MOST)], self.frames[-1]]
        file = io.BytesIO()
        some[0].save(
            file, "GIF", save_all=True, append_images=some[1:], duration=[60] * (len(some) - 1) + [2000], loop=0
        )
        write_bytes(file.getvalue(), path, lambda: check_target(path, force=force, suffixes=[".gif"]))


def beside(tiles: list[Image.Image], columns: int) -> Image.Image:
    """Several of one size on a sheet, or the only one."""
    rows = [tiles[k : k + columns] for k in range(0, len(tiles), columns)]
    rows[-1] += [Image.new("RGB", tiles[0].size, "white")] * (len(rows[0]) - len(rows[-1]))
    return sheet(rows) if len(tiles) > 1 else tiles[0]


def fitted(image: Image.Image) -> Image.Image:
    """Of a size to look at."""
    longer = max(image.size)
    if longer > SIDE:
        image = image.resize(
            (max(1, image.width * SIDE // longer), max(1, image.height * SIDE // longer)), Image.Resampling.BOX
        )
    elif longer <= SIDE // 2:
        scale = SIDE // 2 // longer
        image = image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
    return image
