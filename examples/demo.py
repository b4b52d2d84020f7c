"""What the shipped model does, on one sheet: it generates, repairs, fills, extends, and grows a texture.

    python examples/demo.py [OUT.png]

What is given was drawn by examples/scenes.py; all seeds are fixed. One or two minutes on two CPU cores.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from diffusers.utils import logging
from PIL import Image, ImageDraw

import scenes
from asyncpatch.drawing import sheet
from asyncpatch.pipelines import AsyncPatchPipeline, Made
from asyncpatch.plans import Plan

LABELS = ("monarch", "dog", "pizza", "school bus", "alp", "tabby", "cracked", "mushroom")


def scratch(height: int, width: int) -> Image.Image:
    """A mask: a zigzag across the picture."""
    mask = Image.new("L", (width, height))
    points = [(0.1, 0.15), (0.45, 0.75), (0.62, 0.25), (0.92, 0.85)]
    ImageDraw.Draw(mask).line([(x * width, y * height) for x, y in points], 255, max(2, width // 24), "curve")
    return mask


def square(height: int, width: int, top: int, left: int, side: int) -> Image.Image:
    """A mask: one square."""
    mask = Image.new("L", (width, height))
    ImageDraw.Draw(mask).rectangle((left, top, left + side - 1, top + side - 1), 255)
    return mask


def given(picture: scenes.Pixels, mask: Image.Image) -> Image.Image:
    """The picture with its hole in grey."""
    return Image.composite(Image.new("RGB", mask.size, "#808080"), Image.fromarray(picture), mask)


def framed(picture: scenes.Pixels, height: int, width: int) -> Image.Image:
    """The picture in the middle of a grey page (at its left, if only the width grows)."""
    page = Image.new("RGB", (width, height), "#808080")
    top = (height - picture.shape[0]) // 2
    page.paste(Image.fromarray(picture), ((width - picture.shape[1]) // 2 if top else 0, top))
    return page


def main(path: Path) -> None:
    logging.disable_progress_bar()
    began = time.monotonic()
    pipe = AsyncPatchPipeline.default()
    windows = 0

    def run(plan: Plan) -> list[Made]:
        nonlocal windows
        windows += pipe.work(plan)
        return pipe.run(plan)

    rows: dict[str, list[Image.Image]] = {}

    plans = [pipe.plan_generate(label, seed=1) for label in LABELS]
    made = run(Plan([plan.tasks[0] for plan in plans], plans[0].settings))
    rows["generate"] = [each.images[0] for each in made]
    print(f"generated {len(LABELS)} pictures after {time.monotonic() - began:.0f} s", flush=True)

    orange, lake = scenes.orange(112), scenes.lake(96, 128)
    line, box = scratch(112, 112), square(96, 128, 28, 48, 36)
    rows["repair, fill"] = [given(orange, line), *run(pipe.plan_inpaint(orange, line, seed=0))[0].images]
    rows["repair, fill"] += [given(lake, box), *run(pipe.plan_inpaint(lake, box, n=2, seed=0))[0].images]
    print(f"repaired and filled after {time.monotonic() - began:.0f} s", flush=True)

    rows["extend"] = [framed(lake, 96, 176), *run(pipe.plan_outpaint(lake, n=2, right=48, seed=0))[0].images]
    print(f"extended after {time.monotonic() - began:.0f} s", flush=True)

    rows["grow"] = []
    for swatch, label in ((scenes.pebbles(64, 64), "bumpy"), (scenes.cracked(64, 64), "cracked")):
        grown = run(pipe.plan_texture(swatch, (112, 112), label=label, seed=0))[0].images
        rows["grow"] += [framed(swatch, 112, 112), *grown]

    path.parent.mkdir(parents=True, exist_ok=True)
    strips = [[sheet([[twice(each) for each in row]], gap=6)] for row in rows.values()]
    sheet(strips, names=list(rows)).save(path)
    print(f"{path}: {windows:,} windows through the network on {pipe.where()}, {time.monotonic() - began:.0f} s")


def twice(image: Image.Image) -> Image.Image:
    return image.resize((image.width * 2, image.height * 2), Image.Resampling.BICUBIC)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("out") / "demo.png")
