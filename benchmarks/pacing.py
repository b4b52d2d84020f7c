"""Quality against network calls: solvers, adaptive schedules and orders, with one model.

    python benchmarks/pacing.py evaluate --data SET -o OUT --lpips FILE [--model FOLDER] [--shard i/n]
    python benchmarks/pacing.py tables -o OUT

``evaluate`` makes 2,000 new pictures, and fills square holes in as many held-out ones, by each of WAYS in each of CALLS
questions a picture, and by each of VARIANTS in few; and makes 1,000 by each of ORDERED. The model needs a head that
says how sure it is (asyncpatch train-uncertainty). Cells are kept, and may be computed by several processes. ``tables``
writes OUT/pacing.md and OUT/pacing.png from whatever is there. ``--quick`` shows that it works, on a CPU.
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

from asyncpatch.cli.pictures import shard_from
from asyncpatch.evaluation import OURS, SAMPLES, Cell, Result
from asyncpatch.pipelines import shipped_model
from asyncpatch.settings import Settings
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
ORDER = "order.png"
ORDERED: dict[str, dict[str, Any]] = {
    "synchronous, 256 calls": {"steps": 256},
    "raster, 64 patches, overlapping by half": {"steps": 256, "schedule": "raster"},
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
    for what, title in ((SAMPLES, "New pictures: Fréchet distance (EfficientNet-Lite0; no FID)"),
                        (HOLES, "Square holes: LPIPS, and Fréchet distance of the filled pictures")):  # fmt: skip
        lines += [f"{title}, by network calls:", "", line("way", *(f"{count:,}" for count in calls))]
        lines.append(line(*["---"] * (len(calls) + 1)))
        for name, rows in grid[what].items():
            lines.append(line(name, *(said(rows[count]) if count in rows else "" for count in calls)))
        lines.append("")
    if ordered:
        lines += ["In an order:", "", line("order", "calls", "Fréchet", "kernel distance x 1000"), line(*["---"] * 4)]
        for name, row in ordered:
            kernel = f"{1000 * row['kernel'][0]:.2f} ± {1000 * row['kernel'][1]:.2f}"
            lines.append(line(name, f"{row['calls']:,.0f}", f"{row['frechet']:.2f}", kernel))
    (given.output / "pacing.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    plot(grid, given.output / "pacing.png")


def said(row: Result) -> str:
    distance = f"{row['frechet']:.2f}"
    return distance if "lpips" not in row else f"{row['lpips'][0]:.4f} ± {row['lpips'][1]:.4f}, {distance}"


def plot(grid: dict[str, dict[str, dict[int, Result]]], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    panels = ((SAMPLES, "frechet", "new pictures: Fréchet distance"), (HOLES, "frechet", "holes: Fréchet distance"),
              (HOLES, "lpips", "holes: LPIPS"))  # fmt: skip
    for axes, (what, key, title) in zip(figure.subplots(1, 3), panels, strict=True):
        for name, rows in grid[what].items():
            if name not in WAYS:
                continue
            points = [(count, row[key][0] if key == "lpips" else row[key]) for count, row in rows.items() if key in row]
            if points:
                axes.plot(*zip(*sorted(points), strict=True), "o-", label=name, markersize=3)
        axes.set(title=title, xlabel="network calls", xscale="log")
        axes.set_xticks(CALLS, [str(each) for each in CALLS])
        axes.minorticks_off()
    figure.axes[0].legend(fontsize=8)
    figure.savefig(file, dpi=120)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=("evaluate", "tables"))
    options.add_argument("--data", default="shapes")
    options.add_argument("--model", type=Path)
    options.add_argument("-o", "--output", type=Path, required=True)
    options.add_argument("--lpips", type=Path)
    options.add_argument("--cache", type=Path)
    options.add_argument("--batch", type=int, default=250)
    options.add_argument("--shard", default="1/1")
    options.add_argument("--quick", action="store_true")
    given = options.parse_args()
    {"evaluate": evaluate, "tables": tables}[given.what](given)


if __name__ == "__main__":
    main()
