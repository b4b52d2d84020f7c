"""The pictures of the gallery (docs/gallery.md) and of the model's card, made by the shipped model.

    python examples/gallery.py [NAME ...]       labels, textures, halves, photo, order, failures; by default all of them

What is given was drawn by examples/scenes.py; all seeds are fixed. Some ten minutes on two CPU cores.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
from diffusers.utils import logging
from PIL import Image, ImageDraw, ImageFont

import scenes
from asyncpatch.drawing import sheet
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.plans import Plan
from asyncpatch.shipped import shipped_model
from demo import framed, given, scratch, square, twice

IMAGES = Path(__file__).parents[1] / "docs" / "images"
LABELS = (
    "monarch", "dog", "tabby", "golden retriever", "king penguin", "brown bear", "goldfish", "ladybug", "school bus",
    "sports car", "pizza", "orange", "mushroom", "teapot", "suspension bridge", "barn", "alp", "seashore",
    "coral reef", "lakeside", "cracked", "bubbly", "cobwebbed", "chequered",
)  # fmt: skip


def labels(pipe: AsyncPatchPipeline) -> Image.Image:
    """One picture of each of some labels, with seeds from 0 on: none is chosen."""
    plans = [pipe.plan_generate(label, seed=k) for k, label in enumerate(LABELS)]
    made = pipe.run(Plan([plan.tasks[0] for plan in plans], plans[0].settings))
    tiles = [captioned(twice(each.images[0]), label) for each, label in zip(made, LABELS, strict=True)]
    return sheet([tiles[k : k + 8] for k in range(0, len(tiles), 8)])


def captioned(image: Image.Image, text: str) -> Image.Image:
    page = Image.new("RGB", (image.width, image.height + 18), "#d8d8d8")
    page.paste(image, (0, 0))
    ImageDraw.Draw(page).text((2, image.height + 2), text, "black", ImageFont.load_default(12))
    return page


def textures(pipe: AsyncPatchPipeline) -> Image.Image:
    """Swatches, what was grown from them, and that again laid two by two: it can be tiled."""
    rows = []
    for draw, label in ((scenes.pebbles, "bumpy"), (scenes.cracked, "cracked")):
        swatch = draw(64, 64)
        grown = pipe.texture(swatch, (144, 144), tileable=True, label=label, seed=0).images[0]
        tiled = Image.fromarray(np.tile(np.asarray(grown), (2, 2, 1)))
        rows.append([framed(swatch, 144, 144), grown, tiled])
    return sheet(rows)


def halves(pipe: AsyncPatchPipeline) -> Image.Image:
    """Textures of which a half, or all but a corner, is missing, and two ways to complete them."""
    half, corner = Image.new("L", (112, 112)), Image.new("L", (112, 112), 255)
    half.paste(255, (56, 0, 112, 112))
    corner.paste(0, (0, 56, 56, 112))
    row: list[Image.Image] = []
    for draw, label, hole in ((scenes.cracked, "cracked", half), (scenes.pebbles, "bumpy", corner)):
        whole = draw(112, 112)
        row += [given(whole, hole), *pipe.texture(whole, hole=hole, label=label, n=2, seed=0).images]
    return sheet([row])


def photo(pipe: AsyncPatchPipeline) -> Image.Image:
    """A scratch through a whole photo, and a photo that grows to the right."""
    lake = scenes.lake(192, 256)
    line = scratch(192, 256)
    repaired = pipe.inpaint(lake, line, seed=0).images[0]
    wider = pipe.outpaint(lake, right=96, seed=0).images[0]
    return sheet([[given(lake, line), repaired], [framed(lake, 192, 352), wider]])


def order(pipe: AsyncPatchPipeline) -> Image.Image:
    """The same seed, generated all at once, row by row and in a spiral."""
    kinds = ("synchronous", "raster", "spiral")
    rows = [[twice(each) for each in pipe.generate("monarch", n=4, seed=3, schedule=kind).images] for kind in kinds]
    return sheet(rows, names=list(kinds))


def failures(pipe: AsyncPatchPipeline) -> Image.Image:
    """What the model cannot do: a hole much larger than its window, writing, straight lines."""
    lake, hole = scenes.lake(192, 256), square(192, 256, 40, 88, 100)
    rows = [[given(lake, hole), *pipe.inpaint(lake, hole, n=2, seed=0).images]]
    letters = Image.new("RGB", (256, 96), "#f4efe2")
    ImageDraw.Draw(letters).text((8, 20), "asynchronous", "#20242c", ImageFont.load_default(40))
    board = Image.fromarray(np.kron(np.indices((8, 20)).sum(0) % 2, np.ones((12, 12))).astype(np.uint8) * 200 + 30)
    for image in (letters, board.convert("RGB").resize((256, 96))):
        levels, gap = np.asarray(image), square(96, 256, 24, 100, 48)
        rows.append([given(levels, gap), *pipe.inpaint(levels, gap, n=2, seed=0).images])
    return sheet(rows)


GALLERY = {each.__name__: each for each in (labels, textures, halves, photo, order, failures)}


def main(names: list[str]) -> None:
    logging.disable_progress_bar()
    pipe = AsyncPatchPipeline.default()
    for name in names or GALLERY:
        began = time.monotonic()
        page = GALLERY[name](pipe)
        file = shipped_model() / "failures.png" if name == "failures" else IMAGES / f"gallery-{name}.png"
        page.save(file, optimize=True)
        print(f"{file.name}: {page.width}x{page.height}, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
