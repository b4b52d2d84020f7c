"""How good a model is: inpainting by LPIPS, PSNR and seams for four kinds of holes, generation by a Fréchet distance.

    python benchmarks/quality.py --model FOLDER --data SET [--data SET ...] --lpips lpips-alex.safetensors -o OUT

Inpainting is judged on held-out pictures (``--count`` of each set), without a label, through the same path as the
command line; candidates, holes and noise are seeded by the number of the picture. Errors are standard errors over
pictures. The Fréchet distance is in the features of EfficientNet-Lite0 (not Inception's: this is no FID), of
``--samples`` pictures with the labels of the training set, against all training pictures; beside it stands that of the
held-out pictures, for which the same bias holds only if they are as many. Writes OUT/quality.json, OUT/quality.md and
contact sheets (which show pictures of the data: mind their terms).
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from asyncpatch.data.masks import holes
from asyncpatch.data.sources import open_sources
from asyncpatch.data.store import Store, open_store
from asyncpatch.drawing import picture, sheet
from asyncpatch.images import Picture
from asyncpatch.metrics import LPIPS, frechet_distance, psnr_in_hole, seam_ratio
from asyncpatch.pipelines import AsyncPatchPipeline, Plan, Task
from asyncpatch.settings import INPUT_GUIDANCE, Settings

HOLES = "square,extrema,thin,wide"
BATCH = 256


def mean(values: Tensor) -> tuple[float, float]:
    """Mean and its standard error, over the finite values."""
    values = values[values.isfinite()].double()
    return float(values.mean()), float(values.std() / len(values) ** 0.5)


def completed(pipeline: AsyncPatchPipeline, store: Store, kind: str, count: int, how: Settings) -> tuple[Tensor, ...]:
    """Pictures, holes and fillings, each [N, ., side, side]."""
    side = pipeline.model.resolution
    chosen = range(0, len(store), max(1, len(store) // count))[:count]
    hole = holes(kind, list(chosen), side, side)
    tasks = [Task(Picture(levels=store.pictures[k]), hole[i], (k,)) for i, k in enumerate(chosen)]
    made = []
    for first in range(0, len(tasks), BATCH):
        made += pipeline.run(Plan(tasks[first : first + BATCH], how))
    x, filled = (torch.stack([each.x for each in pictures]) for pictures in
                 ([task.picture for task in tasks], [each.pictures[0] for each in made]))  # fmt: skip
    return x, hole, filled


@torch.no_grad()
def inpainting(
    pipeline: AsyncPatchPipeline, sets: dict[str, Store], given: argparse.Namespace
) -> list[dict[str, object]]:
    lpips, device = LPIPS.load(given.lpips).to(pipeline.unet.device), pipeline.unet.device
    rows: list[dict[str, object]] = []
    for name, store in sets.items():
        for kind in given.holes.split(","):
            began = time.perf_counter()
            x, hole, filled = completed(pipeline, store, kind, given.count, given.filling)
            parts = zip(x.split(BATCH), filled.split(BATCH), strict=True)
            distance = torch.cat([lpips(a.to(device), b.to(device)).cpu() for a, b in parts])
            row = {
                "set": name, "hole": kind, "pictures": len(x), "lpips": mean(distance),
                "psnr": mean(psnr_in_hole(filled, x, hole)), "seam": float(seam_ratio(filled, hole).nanmedian()),
                "seam of the original": float(seam_ratio(x, hole).nanmedian()),
                "seconds": time.perf_counter() - began,
            }  # fmt: skip
            rows.append(row)
            print(json.dumps(row), flush=True)
            shown = [x[:12], x[:12] * (1 - hole[:12]), filled[:12]]
            page = sheet([[picture(each) for each in several] for several in shown])
            page.save(given.output / f"{name}-{kind}.png")
    return rows


@torch.no_grad()
def generation(pipeline: AsyncPatchPipeline, train: Store, held: Store, given: argparse.Namespace) -> dict[str, object]:
    device, began = pipeline.unet.device, time.perf_counter()
    metric = frechet_distance().to(device)

    def add(levels: Tensor, real: bool) -> None:
        for part in levels.split(BATCH):
            metric.update(part.permute(0, 3, 1, 2).to(device), real=real)

    real = torch.from_numpy(train.pictures[:: max(1, len(train) // given.references)].copy())
    add(real, True)
    add(torch.from_numpy(held.pictures[:].copy()), False)
    floor = float(metric.compute())
    metric.reset_real_features = False
    metric.reset()
    labels = train.labels[:: max(1, len(train) // given.samples)][: given.samples]
    blank = Picture(levels=train.pictures[0])
    told = [pipeline.label(train.names[label]) for label in labels]
    tasks = [Task(blank, torch.ones(1, *blank.size), (k,), label) for k, label in enumerate(told)]
    shown = []
    for first in range(0, len(tasks), BATCH):
        made = pipeline.run(Plan(tasks[first : first + BATCH], given.drawing))
        levels = torch.stack([torch.from_numpy(each.pictures[0].levels.copy()) for each in made])
        add(levels, False)
        shown += [each.pictures[0].image() for each in made][: max(0, 96 - len(shown))]
    whole = len(shown) // 12 * 12
    if whole:
        sheet([shown[k : k + 12] for k in range(0, whole, 12)]).save(given.output / "samples.png")
    return {
        "features": "EfficientNet-Lite0", "settings": asdict(given.drawing),
        "samples": len(tasks), "references": len(real),
        "distance": float(metric.compute()), "held-out pictures": len(held), "their distance": floor,
        "seconds": time.perf_counter() - began,
    }  # fmt: skip


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--model", type=Path, required=True)
    options.add_argument("--data", action="append", required=True)
    options.add_argument("--lpips", type=Path)
    options.add_argument("--device", default="auto")
    options.add_argument("--precision", default="auto")
    options.add_argument("--holes", default=HOLES, help="kinds of holes, with commas between them")
    options.add_argument("--steps", type=int, default=Settings.steps)
    options.add_argument("--eta", type=float, default=Settings.eta)
    options.add_argument("--input-guidance", type=float, default=INPUT_GUIDANCE)
    options.add_argument("--class-guidance", type=float, default=0.0, help="of the samples")
    options.add_argument("--count", type=int, default=1000, help="held-out pictures of each set")
    options.add_argument("--samples", type=int, default=10_000, help="0: no Fréchet distance")
    options.add_argument("--references", type=int, default=1_000_000, help="training pictures, at most")
    options.add_argument("--cache", type=Path)
    options.add_argument("-o", "--output", type=Path, default=Path("out/quality"))
    given = options.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    common = {"steps": given.steps, "eta": given.eta, "batch": BATCH}
    given.filling = Settings(input_guidance=given.input_guidance, **common)
    given.drawing = Settings(class_guidance=given.class_guidance, **common)
    pipeline = AsyncPatchPipeline.from_pretrained(given.model).prepare(given.device, given.precision)
    side = pipeline.model.resolution

    def store(data: list[str], split: str) -> Store:
        return open_store(open_sources(data, split), side, cache=given.cache)

    sets = {Path(each).name: store([each], "validation") for each in given.data}
    result: dict[str, Any] = {
        "model": given.model.name, "ran on": pipeline.where(), "settings": asdict(given.filling),
        "inpainting": inpainting(pipeline, sets, given),
    }  # fmt: skip
    lines = ["| set | hole | pictures | LPIPS | PSNR in the hole | seam (original) |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {row['set']} | {row['hole']} | {row['pictures']:,} | {row['lpips'][0]:.4f} ± {row['lpips'][1]:.4f} | "
        f"{row['psnr'][0]:.2f} ± {row['psnr'][1]:.2f} dB | {row['seam']:.2f} ({row['seam of the original']:.2f}) |"
        for row in result["inpainting"]
    ]
    if given.samples:
        result["generation"] = made = generation(
            pipeline, store(given.data, "train"), store(given.data, "validation"), given
        )
        lines += ["", f"Fréchet distance in {made['features']}: {made['distance']:.2f} of {made['samples']:,} samples; "
                  f"{made['their distance']:.2f} of {made['held-out pictures']:,} held-out pictures "
                  f"(against {made['references']:,} training pictures)"]  # fmt: skip
    (given.output / "quality.json").write_text(json.dumps(result, indent=2) + "\n")
    (given.output / "quality.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
