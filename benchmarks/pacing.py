"""Quality against network calls: solvers, adaptive schedules and orders, with one model.

    python benchmarks/pacing.py evaluate --data SET -o OUT --lpips FILE [--model FOLDER] [--shard i/n]
    python benchmarks/pacing.py tables -o OUT
    python benchmarks/pacing.py explain [--model FOLDER]

``evaluate`` makes 2,000 new pictures, and fills square holes in as many held-out ones, by each of WAYS in each of CALLS
questions a picture, and by each of VARIANTS in few; and makes 1,000 by each of ORDERED. The model needs a head that
says how sure it is (asyncpatch train-uncertainty). Cells are kept, and may be computed by several processes. ``tables``
writes OUT/pacing.md and OUT/pacing.png from whatever is there. ``--quick`` shows that it works, on a CPU.
``explain`` compares doubt with what a larger step costs: along 8 synchronous steps of DDIM, of each patch of 8 pixels,
how far one step leads astray from two of half its size.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from asyncpatch.cli.common import shard_from
from asyncpatch.evaluation import OURS, SAMPLES, Cell, Result
from asyncpatch.parameterization import structureless
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.protocols import Cond, Visit
from asyncpatch.sampling import draw_noise, generators
from asyncpatch.settings import Settings
from asyncpatch.shipped import shipped_model
from asyncpatch.steps import ddim
from evaluating import SET, line, opened

CALLS = (8, 16, 32, 64, 128, 250)
WAYS: dict[str, dict[str, Any]] = {
    "DDIM": {},
    "multistep": {"solver": "multistep"},
    "Heun": {"solver": "heun"},
    "paced, DDIM": {"schedule": "paced"},
    "paced, multistep": {"schedule": "paced", "solver": "multistep"},
    "dual": {"schedule": "dual"},
    "surest patch next": {"schedule": "sequential"},
    "look-ahead": {"schedule": "lookahead"},
}
FEW = 64
VARIANTS: dict[str, dict[str, Any]] = {
    "paced half as much, multistep": {"schedule": "paced:0.5", "solver": "multistep"},
    "paced three times as much, multistep": {"schedule": "paced:3", "solver": "multistep"},
    "dual, two substeps, multistep": {"schedule": "dual:2", "solver": "multistep"},
    "surest patch next, more overlap, multistep": {"schedule": "sequential:0.98", "solver": "multistep"},
    "look-ahead, multistep": {"schedule": "lookahead", "solver": "multistep"},
    "DDIM, input guidance 1": {"input_guidance": 1.0},
    "multistep, input guidance 1": {"input_guidance": 1.0, "solver": "multistep"},
}
"""Up to FEW calls. Guidance where something is known."""
HOLES = "square"
PANELS = (
    (SAMPLES, "frechet", "New pictures: Fréchet distance"),
    (HOLES, "lpips", "Square holes: LPIPS"),
    (HOLES, "frechet", "Square holes: Fréchet distance"),
)
"""In the features of EfficientNet-Lite0 (no FID)."""
ORDER = "order.png"
ORDERED: dict[str, dict[str, Any]] = {
    "synchronous, 256 calls": {"steps": 256},
    "raster, 64 patches, each in half of the run": {"steps": 256, "schedule": "raster"},
    "raster, 16 patches, one after the other": {"steps": 256, "schedule": "raster:16", "pace": 1 / 16},
    "surest patch next, overlapping": {"steps": 256, "schedule": "sequential"},
    "from the middle outwards (painted)": {"steps": 256, "schedule": ORDER},
    "synchronous, 1,024 calls": {"steps": 1024},
    "raster, 64 patches, one after the other": {"steps": 1024, "schedule": "raster", "pace": 1 / 64},
}


def settings(name: str, calls: int, batch: int) -> Settings:
    """By one of WAYS or VARIANTS in so many questions."""
    how = Settings(**(WAYS | VARIANTS)[name], batch=batch)
    return replace(how, steps=calls // how.questions)


def cells(quick: bool, batch: int, order: Path) -> Iterator[tuple[str, Cell]]:
    """All there is to compute; first what tells most for its time."""
    many, some = (10, 10) if quick else (2000, 1000)
    few, more = (
        ([8], []) if quick else ([each for each in CALLS if (each <= FEW) == wanted] for wanted in (True, False))
    )
    for named, budgets in ((WAYS, few), (VARIANTS, few), (WAYS, more)):
        for calls in budgets:
            for name in named:
                how = settings(name, calls, batch)
                for what in (HOLES,) if how.input_guidance else (SAMPLES, HOLES):
                    yield name, Cell(SET, what, OURS, how, many)
    for name, given in ORDERED.items():
        made = Settings(**{**given, "batch": batch})
        if made.schedule == ORDER:
            made = replace(made, schedule=str(order))
        yield name, Cell(SET, SAMPLES, OURS, replace(made, steps=made.steps // 32) if quick else made, some)


def paint(file: Path, side: int) -> None:
    """The middle first."""
    across = (torch.arange(side) - (side - 1) / 2).abs()
    far = torch.hypot(across[:, None], across)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((far / far.max() * 255).byte().numpy()).save(file)


def evaluate(given: argparse.Namespace) -> None:
    work = opened(given.model or shipped_model(), given.output, given)
    paint(given.output / ORDER, work.pipeline.model.resolution)
    part, parts = shard_from(given.shard)
    listed = list(cells(given.quick, given.batch, given.output / ORDER))
    for _, cell in listed:
        work.check(cell)
    for name, cell in listed[part::parts]:
        found = work.result(cell)
        said = {key: found[key] for key in ("frechet", "kernel", "lpips", "calls", "seconds") if key in found}
        print(name, cell.what, said, flush=True)


def tables(given: argparse.Namespace) -> None:
    found = [json.loads(file.read_text()) for file in sorted((given.output / "cells").glob("*.json"))]

    def one(cell: Cell) -> Result | None:
        wanted = {key: value for key, value in asdict(cell.settings).items() if key not in ("batch", "schedule")}
        rows = [
            row for row in found
            if row["what"] == cell.what and {key: row["settings"].get(key) for key in wanted} == wanted
            and Path(row["settings"]["schedule"]).name == Path(cell.settings.schedule).name
        ]  # fmt: skip
        if len(rows) > 1:
            raise ValueError(
                f"there are {len(rows)} cells of {cell}: remove those that are not meant from {given.output}"
            )
        return rows[0] if rows else None

    grid: dict[str, dict[str, dict[int, Result]]] = {SAMPLES: {}, HOLES: {}}
    ordered: list[tuple[str, Result]] = []
    for name, cell in cells(given.quick, given.batch, given.output / ORDER):
        row = one(cell)
        if row is not None and name not in ORDERED:
            grid[cell.what].setdefault(name, {})[cell.settings.steps * cell.settings.questions] = row
        elif row is not None:
            ordered.append((name, row))
    calls = sorted({count for kinds in grid.values() for rows in kinds.values() for count in rows})
    lines: list[str] = []
    for what, key, title in PANELS:
        told = {name: {count: row for count, row in rows.items() if key in row} for name, rows in grid[what].items()}
        spread = [row[key][1] for rows in told.values() for row in rows.values() if key == "lpips"]
        lines += [f"{title}{f' (each ± {max(spread):.4f})' if spread else ''}, by network calls:", ""]
        lines += [line("way", *(f"{count:,}" for count in calls)), line(*["---"] * (len(calls) + 1))]
        for name, rows in told.items():
            figures = [f"{value(rows[count], key):.{4 if key == 'lpips' else 2}f}" if count in rows else ""
                       for count in calls]  # fmt: skip
            lines.append(line(name, *figures))
        lines.append("")
    if ordered:
        lines += ["In an order:", "", line("order", "calls", "Fréchet", "kernel distance x 1000"), line(*["---"] * 4)]
        for name, row in ordered:
            kernel = f"{1000 * row['kernel'][0]:.2f} ± {1000 * row['kernel'][1]:.2f}"
            lines.append(line(name, f"{row['calls']:,.0f}", f"{row['frechet']:.2f}", kernel))
    (given.output / "pacing.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    plot(grid, given.output / "pacing.png")


def value(row: Result, key: str) -> float:
    return float(row[key][0] if key == "lpips" else row[key])


def plot(grid: dict[str, dict[str, dict[int, Result]]], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    for axes, (what, key, title) in zip(figure.subplots(1, 3), PANELS, strict=True):
        for name, rows in grid[what].items():
            points = sorted((count, value(row, key)) for count, row in rows.items() if key in row)
            if name in WAYS and points:
                axes.plot(*zip(*points, strict=True), "o-", label=name, markersize=3)
        axes.set(title=title, xlabel="network calls", xscale="log", yscale="log" if what == SAMPLES else "linear")
        axes.set_xticks(CALLS, [str(each) for each in CALLS])
        axes.minorticks_off()
    figure.axes[0].set_yticks((25, 30, 40, 60, 100, 200), ("25", "30", "40", "60", "100", "200"))
    figure.axes[0].legend(fontsize=8)
    figure.savefig(file, dpi=120)


@torch.no_grad()
def explain(given: argparse.Namespace) -> None:
    pipeline = AsyncPatchPipeline.from_pretrained(given.model or shipped_model()).prepare()
    model, device, count, steps = pipeline.model, pipeline.unet.device, 4 if given.quick else 24, 8
    z = draw_noise(torch.empty(count, 3, *[model.resolution] * 2), generators(range(count))).to(device)
    cond = Cond(label=torch.arange(count, device=device) * max(1, len(model.labels)) // count)
    move = ddim(model.process)

    def by_patch(field: Tensor) -> Tensor:
        return functional.avg_pool2d(field, 8).flatten(1)

    def rank(values: Tensor) -> Tensor:
        return values.argsort(1).argsort(1).float()

    def moved(now: Visit, s: Tensor) -> Tensor:
        return move(model.denoiser, now, s, lambda: torch.zeros_like(z), None)

    print("\n".join([line("time", "error of a step", "rank correlation with doubt", "surest 2/5 over others"),
                     line(*["---"] * 4)]))  # fmt: skip
    for k in range(steps):
        t, half, s = (torch.full_like(z[:, :1], 1.0 - (k + part) / steps) for part in (0.0, 0.5, 1.0))
        now = Visit(z, t, model.doubting(z, t, cond))
        assert now.out is not None
        assert now.out.logvar is not None
        middle, z = moved(now, half), moved(now, s)
        error = by_patch((z - moved(Visit(middle, half, model.denoiser(middle, half, cond)), s)).square().mean(1, True))
        doubt = by_patch(now.out.logvar - structureless(model.process, t))
        centred = [rank(each) - rank(each).mean() for each in (error, doubt)]
        correlation = functional.cosine_similarity(*centred).mean()
        sure = rank(doubt) < 0.4 * doubt.shape[1]
        ratio = (error[sure].mean() / error[~sure].mean()).sqrt()
        print(
            line(f"{1 - k / steps:.3f}", f"{error.mean().sqrt():.4f}", f"{correlation:.2f}", f"{ratio:.2f}"), flush=True
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=("evaluate", "tables", "explain"))
    options.add_argument("--data", action="append", help="may be given several times [default: shapes]")
    options.add_argument("--model", type=Path)
    options.add_argument("-o", "--output", type=Path, default=Path("pacing"))
    options.add_argument("--lpips", type=Path)
    options.add_argument("--cache", type=Path)
    options.add_argument("--batch", type=int, default=250)
    options.add_argument("--shard", default="1/1")
    options.add_argument("--quick", action="store_true")
    given = options.parse_args()
    given.data = given.data or ["shapes"]
    {"evaluate": evaluate, "tables": tables, "explain": explain}[given.what](given)


if __name__ == "__main__":
    main()
