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

import torch
from PIL import Image

from asyncpatch.adaptive import Effort, Paced
from asyncpatch.drawing import heat, picture, sheet, time_field
from asyncpatch.models.folder import HEAD
from asyncpatch.pipelines import AsyncPatchPipeline, shipped_model
from asyncpatch.protocols import Cond, Visit
from asyncpatch.sampling import draw_noise, generators, sample
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


def reliability(calibration: dict[str, object], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, key, title in ((left, "by prediction", "by what was predicted"), (right, "by time", "by time")):
        rows = [row for row in calibration[key] if row["tokens"]]  # type: ignore[attr-defined]
        predicted, real = ([row[name] for row in rows] for name in ("predicted", "real"))
        if key == "by time":
            across = [row["from"] + 0.5 / len(calibration[key]) for row in rows]  # type: ignore[arg-type]
            axes.plot(across, predicted, "o-", label="predicted")
            axes.plot(across, real, "o-", label="real")
            axes.set(xlabel="time", ylabel="mean squared error", yscale="log")
            axes.legend()
        else:
            axes.plot(predicted, real, "o-")
            ends = [min(predicted + real), max(predicted + real)]
            axes.plot(ends, ends, color="grey", linewidth=1)
            axes.set(xlabel="predicted squared error", ylabel="real squared error", xscale="log", yscale="log")
        axes.set(title=title)
    figure.suptitle(f"ratio {calibration['ratio']:.3f}, correlation over patches {calibration['correlation']:.3f}")
    figure.savefig(file, dpi=120)


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
