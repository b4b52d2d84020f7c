"""A model's figures on pictures that it was not trained on, cell by cell.

A *cell* is a row of the table: a set of pictures, a kind of holes, and a method with its settings that fills them; or
new pictures, and the set that they should resemble. Each is computed once and kept in a file of its own, so that an
evaluation that was stopped goes on where it was, and several machines can share the cells.

Everything is seeded by the number of the picture: every method sees the same pictures and the same holes.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from asyncpatch import baselines
from asyncpatch.data.masks import holes
from asyncpatch.data.store import Store
from asyncpatch.drawing import picture, sheet
from asyncpatch.images import Picture, blank
from asyncpatch.metrics import (
    LPIPS,
    LiteFeatures,
    frechet_distance,
    kernel_distance,
    precision_and_recall,
    psnr_in_hole,
    seam_ratio,
    ssim_in_hole,
)
from asyncpatch.pipelines import AsyncPatchPipeline, Plan, Task
from asyncpatch.protocols import NULL_LABEL, Cond, Denoised, Denoiser
from asyncpatch.sampling import generators
from asyncpatch.settings import Settings

OURS = "asyncpatch"
SAMPLES = "samples"
RIVALS: dict[str, Callable[..., baselines.Method]] = {
    each.__name__: each
    for each in (
        baselines.replacement,
        baselines.repaint,
        baselines.mcg,
        baselines.ddrm,
        baselines.ddnm,
        baselines.deqir,
    )
}
"""Methods that ask with one time per picture, each with the number of steps that it was published with."""

_FEATURE_BATCH = 256
_SHOWN = 12

Result = dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """One row of the table."""

    set: str
    what: str
    """A kind of holes, or ``samples``."""
    method: str = OURS
    settings: Settings = Settings()
    count: int = 100

    def __post_init__(self) -> None:
        if self.method not in (OURS, *RIVALS):
            raise ValueError(f"method must be one of {', '.join((OURS, *RIVALS))}; got {self.method!r}")

    @property
    def name(self) -> str:
        """Of its files: what one would look for, and a mark of all the rest."""
        mark = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:8]
        return re.sub(r"[^\w.-]+", "_", f"{self.set}-{self.what}-{self.method}-{mark}")


@dataclass
class Evaluation:
    """Where results go, and what it takes to compute them.

    ``folder`` gets ``cells/``, ``sheets/`` (which show pictures of the data: mind their terms) and, from ``write``,
    the table as Markdown, CSV and JSON. Without ``lpips`` that column is left out.
    """

    pipeline: AsyncPatchPipeline
    folder: Path
    sets: dict[str, Store]
    """Held-out pictures at the model's resolution, by name."""
    training: Store | None = None
    """Pictures that samples should resemble, with labels."""
    lpips: LPIPS | None = None
    references: int = 20_000

    def file(self, cell: Cell) -> Path:
        return self.folder / "cells" / f"{cell.name}.json"

    def result(self, cell: Cell) -> Result:
        """From its file, or computed now."""
        if self.file(cell).exists():
            found: Result = json.loads(self.file(cell).read_text())
            return found
        made = {"set": cell.set, "what": cell.what, "method": cell.method, "settings": asdict(cell.settings),
                "ran on": self.pipeline.where()}  # fmt: skip
        made |= self._samples(cell) if cell.what == SAMPLES else self._filled(cell)
        self.file(cell).parent.mkdir(parents=True, exist_ok=True)
        temporary = self.file(cell).with_suffix(".part")
        temporary.write_text(json.dumps(made, indent=1) + "\n")
        os.replace(temporary, self.file(cell))
        return made

    def write(self, results: Sequence[Result]) -> str:
        """The table, as Markdown; and as files."""
        text = markdown(results)
        (self.folder / "table.md").write_text(text)
        (self.folder / "table.json").write_text(json.dumps(list(results), indent=1) + "\n")
        flat = [_flat(each) for each in results]
        with open(self.folder / "table.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(name for each in flat for name in each)))
            writer.writeheader()
            writer.writerows(flat)
        return text

    # ---- Holes

    @torch.no_grad()
    def _filled(self, cell: Cell) -> Result:
        store, side, device = self.sets[cell.set], self.pipeline.model.resolution, self.pipeline.unet.device
        chosen = range(0, len(store), max(1, len(store) // cell.count))[: cell.count]
        hole = holes(cell.what, list(chosen), side, side)
        x = torch.from_numpy(store.pictures[list(chosen)].copy()).permute(0, 3, 1, 2).float() / 127.5 - 1.0
        labels = [NULL_LABEL] * len(chosen)
        if cell.settings.class_guidance:
            labels = [self.pipeline.label(store.names[store.labels[k]]) for k in chosen]
        began = time.perf_counter()
        fill = self._ours if cell.method == OURS else self._rival
        made, asked = fill(cell, x, hole, list(chosen), labels)
        seconds = time.perf_counter() - began
        row: Result = {"pictures": len(x)}
        if self.lpips is not None:
            pairs = zip(x.split(_FEATURE_BATCH), made.split(_FEATURE_BATCH), strict=True)  # type: ignore[no-untyped-call]
            row["lpips"] = _mean(torch.cat([self.lpips(a.to(device), b.to(device)).cpu() for a, b in pairs]))
        row |= {
            "psnr": _mean(psnr_in_hole(made, x, hole)),
            "ssim": _mean(ssim_in_hole(made, x, hole)),
            "seam": float(seam_ratio(made, hole).nanmedian()),
            "seam of the original": float(seam_ratio(x, hole).nanmedian()),
            "calls": asked / len(x),
            "seconds": seconds / len(x),
        }
        self._show(cell, [[picture(each) for each in some[:_SHOWN]] for some in (x, x * (1 - hole), made)])
        return row

    def _ours(self, cell: Cell, x: Tensor, hole: Tensor, seeds: list[int], labels: list[int]) -> tuple[Tensor, int]:
        """Through the same path as the command line."""
        levels = ((x + 1.0) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()
        tasks = [Task(Picture(levels=levels[k]), hole[k], (seeds[k],), labels[k]) for k in range(len(x))]
        plan = Plan(tasks, cell.settings)
        made = self.pipeline.run(plan)
        return torch.stack([each.pictures[0].x for each in made]), self.pipeline.work(plan)

    def _rival(self, cell: Cell, x: Tensor, hole: Tensor, seeds: list[int], labels: list[int]) -> tuple[Tensor, int]:
        model, device, batch = self.pipeline.model, self.pipeline.unet.device, cell.settings.batch
        counted = Counted(model.denoiser)
        made = []
        for first in range(0, len(x), batch):
            some = slice(first, first + batch)
            xs, hs = x[some].to(device), hole[some].to(device)
            method = RIVALS[cell.method](model.process, xs, hs)
            told = None if cell.method == "deqir" else Cond(label=torch.tensor(labels[some], device=device))
            filled = method.run(counted, xs, cond=told, generator=generators(seeds[some]))
            made.append(torch.where(hs > 0, filled, xs).clamp(-1.0, 1.0).cpu())
        return torch.cat(made), counted.asked

    # ---- Samples

    @torch.no_grad()
    def _samples(self, cell: Cell) -> Result:
        if self.training is None:
            raise ValueError("samples are compared with training pictures, and there are none")
        real, side = self._reference(self.training), self.pipeline.model.resolution
        features = LiteFeatures().to(self.pipeline.unet.device)
        labels = self.training.labels[:: max(1, len(self.training) // cell.count)][: cell.count]
        told = [NULL_LABEL if label < 0 else self.pipeline.label(self.training.names[label]) for label in labels]
        tasks = [Task(blank(side, side), torch.ones(1, side, side), (k,), label) for k, label in enumerate(told)]
        plan, shown, found = Plan(tasks, cell.settings), [], []
        began = time.perf_counter()
        made = self.pipeline.run(plan)
        seconds = time.perf_counter() - began
        for first in range(0, len(made), _FEATURE_BATCH):
            some = [torch.from_numpy(each.pictures[0].levels.copy()) for each in made[first : first + _FEATURE_BATCH]]
            found.append(features(torch.stack(some).permute(0, 3, 1, 2).to(self.pipeline.unet.device)).cpu())
        shown = [each.pictures[0].image() for each in made[: 8 * _SHOWN]]
        self._show(cell, [shown[k : k + _SHOWN] for k in range(0, len(shown) - _SHOWN + 1, _SHOWN)] or [shown])
        return {
            "pictures": len(made), "references": len(real), "features": "EfficientNet-Lite0",
            **compared(real, torch.cat(found)),
            "calls": self.pipeline.work(plan) / len(made), "seconds": seconds / len(made),
        }  # fmt: skip

    def _reference(self, store: Store) -> Tensor:
        """Features of training pictures, computed once."""
        chosen = range(0, len(store), max(1, len(store) // self.references))[: self.references]
        mark = hashlib.sha256(store.pictures[chosen[:: max(1, len(chosen) // 64)]].tobytes()).hexdigest()[:12]
        file = self.folder / f"reference-{mark}-{len(chosen)}.safetensors"
        if not file.exists():
            device, features = self.pipeline.unet.device, LiteFeatures().to(self.pipeline.unet.device)
            parts = []
            for first in range(0, len(chosen), _FEATURE_BATCH):
                levels = torch.from_numpy(store.pictures[list(chosen[first : first + _FEATURE_BATCH])].copy())
                parts.append(features(levels.permute(0, 3, 1, 2).to(device)).cpu())
            file.parent.mkdir(parents=True, exist_ok=True)
            save_file({"features": torch.cat(parts).half()}, file)
        return load_file(file)["features"].float()

    def _show(self, cell: Cell, rows: list[list[Any]]) -> None:
        folder = self.folder / "sheets"
        folder.mkdir(parents=True, exist_ok=True)
        sheet(rows).save(folder / f"{cell.name}.png")


class Counted:
    """A denoiser that counts about how many pictures it is asked."""

    def __init__(self, denoiser: Denoiser) -> None:
        self.denoiser, self.asked = denoiser, 0

    def __call__(self, z: Tensor, t: Tensor, cond: Cond | None = None, /) -> Denoised:
        self.asked += len(z)
        return self.denoiser(z, t, cond)


class AsTheyAre(torch.nn.Module):
    """Features that were computed before, for torchmetrics."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.num_features = number

    def forward(self, features: Tensor) -> Tensor:
        return features


def compared(real: Tensor, made: Tensor) -> Result:
    """Fréchet and kernel distance, precision and recall, of features [N, d] and [M, d]."""
    given = AsTheyAre(real.shape[1])
    frechet = frechet_distance(given)
    kernel = kernel_distance(min(1000, len(real), len(made)), features=given)
    for metric in (frechet, kernel):
        metric.update(real, real=True)
        metric.update(made, real=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)  # of the subsets
        mean, spread = kernel.compute()
    most = min(len(real), len(made))
    precision, recall = precision_and_recall(real[:: max(1, len(real) // most)][:most], made)
    return {
        "frechet": float(frechet.compute()), "kernel": [float(mean), float(spread)],
        "precision": precision, "recall": recall,
    }  # fmt: skip


def markdown(results: Iterable[Result]) -> str:
    """Two tables: filled holes, and samples."""
    results = list(results)
    lines = []
    filled = [each for each in results if each["what"] != SAMPLES]
    if filled:
        scored = any("lpips" in each for each in filled)
        lines += [f"| set | hole | method | pictures |{' LPIPS |' if scored else ''} PSNR | SSIM | seam (original) "
                  "| calls | seconds |",
                  f"|---|---|---|---|{'---|' if scored else ''}---|---|---|---|---|"]  # fmt: skip
    for each in filled:
        lpips = f" {_said(each['lpips'], 4)} |" if "lpips" in each else " |" if scored else ""
        lines.append(
            f"| {each['set']} | {each['what']} | {_how(each)} | {each['pictures']:,} |{lpips} {_said(each['psnr'], 2)} "
            f"| {_said(each['ssim'], 3)} | {each['seam']:.2f} ({each['seam of the original']:.2f}) "
            f"| {each['calls']:,.0f} | {each['seconds']:.2f} |"
        )
    made = [each for each in results if each["what"] == SAMPLES]
    if made:
        lines += ["", f"In the features of {made[0]['features']} (this is no FID), against {made[0]['references']:,} "
                  "training pictures:", "",
                  "| method | samples | Fréchet distance | kernel distance x 1000 | precision | recall | calls "
                  "| seconds |",
                  "|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for each in made:
        kernel = [1000 * value for value in each["kernel"]]
        lines.append(
            f"| {_how(each)} | {each['pictures']:,} | {each['frechet']:.2f} | {_said(kernel, 2)} "
            f"| {each['precision']:.3f} | {each['recall']:.3f} | {each['calls']:,.0f} | {each['seconds']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def _how(result: Result) -> str:
    """The method, and which of its settings are not the usual ones."""
    if result["method"] != OURS:
        return str(result["method"])
    usual, words = asdict(Settings()), []
    for name, value in result["settings"].items():
        if name != "batch" and (value != usual[name] or name == "steps"):
            words.append(f"{name.replace('_', ' ')} {value}")
    return f"{OURS}, {', '.join(words)}"


def _mean(values: Tensor) -> list[float]:
    """Mean and its standard error, over the finite values."""
    values = values[values.isfinite()].double()
    return [float(values.mean()), float(values.std() / len(values) ** 0.5)]


def _said(value: Sequence[float], digits: int) -> str:
    return f"{value[0]:.{digits}f} ± {value[1]:.{digits}f}"


def _flat(result: Result) -> dict[str, Any]:
    """For a table without nesting."""
    flat: dict[str, Any] = {}
    for name, value in result.items():
        if isinstance(value, dict):
            flat |= value
        elif isinstance(value, list):
            flat[name], flat[f"{name} error"] = value
        else:
            flat[name] = value
    return flat
