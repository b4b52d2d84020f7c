"""What a model that says how sure it is does with it: where it takes its steps, and whether it is right.

    python examples/adaptive.py [--model FOLDER] [FOLDER]       pictures go to docs/images unless a folder is named

- ``adaptive.png``: new pictures by `adaptive.Paced` (the paper's figure of uncertainty-guided sampling). Time
  goes on over the columns; for each picture x-hat, how unsure the network is of it (the root of the expected squared
  error; dark is sure), and the times of its pixels (white is clean). At the end the picture, and its steps.
- ``calibration.png``: errors of held-out pictures, predicted and real (``calibration.json``, by `train-uncertainty`).

All seeds are fixed. About a minute on two CPU cores.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from asyncpatch.adaptive import Effort, Paced
from asyncpatch.drawing import heat, picture, sheet, time_field
from asyncpatch.models.folder import HEAD
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.protocols import Cond, Visit
from asyncpatch.sampling import draw_noise, generators, sample
from asyncpatch.shipped import shipped_model
from asyncpatch.steps import ddim

LABELS = ("monarch", "alp", "dog")
CALLS = 48
FRAMES = (0, 6, 12, 18, 24, 32, 40)


def run(pipeline: AsyncPatchPipeline) -> Image.Image:
    """Paced with a strength and a lead above the usual, so that something is to be seen."""
    model, device, side = pipeline.model, pipeline.unet.device, pipeline.model.resolution
    random = generators(range(len(LABELS)))
    z = draw_noise(torch.empty(len(LABELS), 3, side, side, device=device), random)
    cond = Cond(label=torch.tensor([pipeline.label(name) for name in LABELS], device=device))
    schedule = Paced(process=model.process, calls=CALLS, strength=3.0, lead=4.0, patch=4)
    effort, visits = Effort(), list[Visit]()

    def watch(visit: Visit) -> None:
        effort(visit)
        visits.append(visit)

    made = sample(model.doubting, schedule, z, step=ddim(model.process), cond=cond, generator=random, callback=watch)
    rows, names = [], []
    for k, label in enumerate(LABELS):
        shown = [visits[frame] for frame in FRAMES]
        clean, doubt, times = [], [], []
        for visit in shown:
            assert visit.out is not None
            assert visit.out.logvar is not None
            clean.append(picture(visit.out.x[k], 2))
            doubt.append(heat((0.5 * visit.out.logvar[k, 0]).exp() * (visit.t[k, 0] > 0), 0.0, 0.5, 2))
            times.append(time_field(visit.t[k, 0], 2))
        steps = effort.steps[k, 0]
        rows += [
            [*clean, picture(made[k], 2)],
            [*doubt, heat(steps, float(steps.min()), float(steps.max()), 2)],
            [*times, Image.new("RGB", times[0].size, "#d8d8d8")],
        ]
        names += [f"{label}\nx-hat", f"unsure\nlast: steps,\n{int(steps.min())} to {int(steps.max())}", "time"]
    return sheet(rows, names=names)


def reliability(calibration: dict[str, Any], file: Path) -> None:
    """Squared errors, predicted and real, by prediction, by time, and by the detail and the place of a region."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(15, 3.8), layout="constrained")
    first, *others = figure.subplots(1, 4)
    rows = calibration["by prediction"]
    predicted, real = ([row[name] for row in rows] for name in ("predicted", "real"))
    first.plot(predicted, real, "o-")
    ends = [min(predicted + real), max(predicted + real)]
    first.plot(ends, ends, color="grey", linewidth=1)
    first.set(
        xlabel="predicted", ylabel="real squared error", xscale="log", yscale="log", title="by what was predicted"
    )
    width = 1 / len(calibration["by time"])
    across = {
        "by time": ("time", [row["from"] + 0.5 * width for row in calibration["by time"]]),
        "by detail": ("deviation within a region", [row["deviation"] for row in calibration["by detail"]]),
        "by place": ("from the rim (0) to the middle", list(range(len(calibration["by place"])))),
    }
    for axes, (key, (label, places)) in zip(others, across.items(), strict=True):
        for name in ("predicted", "real"):
            told = [(place, row[name]) for place, row in zip(places, calibration[key], strict=True) if row["tokens"]]
            axes.plot(*zip(*told, strict=True), "o-", label=name)
        axes.set(xlabel=label, title=key)
        if key == "by time":
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0.0)
        axes.legend()
    figure.suptitle(f"ratio {calibration['ratio']:.3f}, correlation over patches {calibration['correlation']:.3f}")
    figure.savefig(file, dpi=110)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parents[1] / "docs" / "images")
    options.add_argument("--model", type=Path)
    given = options.parse_args()
    model = given.model or shipped_model()
    given.folder.mkdir(parents=True, exist_ok=True)
    run(AsyncPatchPipeline.from_pretrained(model).prepare()).save(given.folder / "adaptive.png")
    reliability(json.loads((model / HEAD / "calibration.json").read_text()), given.folder / "calibration.png")


if __name__ == "__main__":
    main()
