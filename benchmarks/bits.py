"""Bits per dimension on a held-out set, for paths of every patch size, beside published figures.

    python benchmarks/bits.py evaluate RUN --data SET -o OUT [--calls 16]
    python benchmarks/bits.py tables -o OUT
    python benchmarks/bits.py precision --data SET

RUN is what ``asyncpatch train --weighting elbo`` left: its model is judged, and its config tells how many pictures it
saw. ``evaluate`` writes OUT/RUN.json: the bound of ``likelihood.elbo`` on the probability of 8-bit levels, without
labels, seeded by the number of the picture; and what each noise level costs, on FIRST of them. ``tables`` writes
OUT/bits.md and OUT/bits.png from all that is there. ``precision`` judges the first held-out picture of a set SEEDS
times over by the shipped model: how far the figures scatter, and what they say of it.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from asyncpatch.data.sources import open_sources
from asyncpatch.data.store import open_store
from asyncpatch.evaluation import spaced
from asyncpatch.likelihood import SPAN, ElboTerms, elbo, random_path, synchronous_path
from asyncpatch.likelihood import Path as Along
from asyncpatch.models.placing import choose_device
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.sampling import generators
from evaluating import line, pictures

PUBLISHED = (
    ("VDM", "bound", "1,280 M", "2.64"),
    ("Score-SDE, sub-VP, deep", "ODE", "122 M", "2.99"),
    ("Score-SDE, DDPM, VP", "ODE", "166 M", "3.21"),
)
"""Bits per dimension on CIFAR-10, and pictures seen by the authors' configurations (steps times batch)."""
SLICES = 24
"""Of the log-SNR, to see what each noise level costs."""
FIRST = 1000
"""So many pictures for that."""
SEEDS = 16
"""So often is one picture judged, to see how far the figures scatter."""


def evaluate(given: argparse.Namespace) -> None:
    given.output.mkdir(parents=True, exist_ok=True)
    pipeline, device = AsyncPatchPipeline.from_pretrained(given.run / "model"), choose_device(given.device)
    pipeline.prepare(given.device, given.precision, compiled=device.type == "cuda")
    model, denoiser = pipeline.model, pipeline.denoiser(given.batch)
    store = open_store(open_sources(given.data, "validation"), model.resolution, cache=given.cache)
    chosen = spaced(len(store), given.count)

    def bounds(which: list[int], path: Along, calls: int, span: tuple[float, float] = SPAN) -> list[ElboTerms]:
        parts = [which[first : first + given.batch] for first in range(0, len(which), given.batch)]
        return [
            elbo(denoiser, pictures(store, some, device), process=model.process, path=path, calls=calls, span=span,
                 generator=generators(some, device))
            for some in parts
        ]  # fmt: skip

    recipe = json.loads((given.run / "config.json").read_text())["recipe"]
    rows: list[dict[str, float]] = []
    about: dict[str, Any] = {
        "run": given.run.name, "times": recipe["times"], "pictures seen": recipe["steps"] * recipe["batch"],
        "parameters": sum(each.numel() for each in pipeline.unet.parameters()),
        "pictures": len(chosen), "calls": given.calls, "training seed": recipe["seed"], "ran on": pipeline.where(),
        "torch": torch.__version__, "paths": rows,
    }  # fmt: skip
    file = given.output / f"{given.run.name}.json"
    for size in [2**k for k in reversed(range(int(math.log2(model.resolution)) + 1))]:
        path = synchronous_path() if size == model.resolution else random_path(size)
        began = time.perf_counter()
        parts = bounds(chosen, path, given.calls)
        bits, unit = torch.cat([part.bits_per_dim for part in parts]), float(parts[0].numbers[0]) * math.log(2)
        rows.append({
            "patch": size, "bits": float(bits.mean()), "error": float(bits.std() / len(bits) ** 0.5),
            "prior": float(-torch.cat([part.prior for part in parts]).mean() / unit),
            "reconstruction": float(-torch.cat([part.reconstruction for part in parts]).mean() / unit),
            "estimate": float(torch.cat([part.bits_error for part in parts]).square().mean().sqrt() / len(bits) ** 0.5),
            "seconds": time.perf_counter() - began,
        })  # fmt: skip
        print(rows[-1], flush=True)
        file.write_text(json.dumps(about, indent=2) + "\n")
    edges = torch.linspace(*SPAN, SLICES + 1).tolist()
    parts_of = [bounds(chosen[:FIRST], synchronous_path(), 2, span) for span in pairwise(edges)]
    about["edges"] = edges
    about["levels"] = [-float(torch.cat([each.diffusion for each in parts]).mean()) / unit for parts in parts_of]
    file.write_text(json.dumps(about, indent=2) + "\n")


def tables(given: argparse.Namespace) -> None:
    found = [json.loads(file.read_text()) for file in sorted(given.output.glob("*.json"))]
    sizes = [row["patch"] for row in found[0]["paths"]]
    named = [f"{size} (one time)" if size == sizes[0] else str(size) for size in sizes]
    lines = [line("trained with", "pictures seen", *(f"patch {each}" for each in named))]
    lines += [line(*["---"] * (len(sizes) + 2))]
    for each in found:
        bits = [f"{row['bits']:.3f} ± {row['error']:.3f}" for row in each["paths"]]
        lines.append(line(each["times"], f"{each['pictures seen'] / 1e6:.1f} M", *bits))
    lines += ["", line("published", "kind", "pictures seen", "bits per dimension"), line(*["---"] * 4)]
    lines += [line(*each) for each in PUBLISHED]
    lines += ["", line("trained with", "prior", "reconstruction", "error of the estimates", "parameters", "ran on")]
    lines += [line(*["---"] * 6)]
    for each in found:
        errors = [row["estimate"] for row in each["paths"]]
        first = each["paths"][0]
        lines.append(
            line(each["times"], f"{first['prior']:.4f}", f"{first['reconstruction']:.4f}",
                 f"{min(errors):.4f} to {max(errors):.4f}", f"{each['parameters'] / 1e6:.1f} M", each["ran on"])
        )  # fmt: skip
    (given.output / "bits.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    plot(found, given.output / "bits.png")


def precision(given: argparse.Namespace) -> None:
    pipeline = AsyncPatchPipeline.default().prepare(given.device)
    model, device = pipeline.model, pipeline.unet.device
    store = open_store(open_sources(given.data, "validation"), model.resolution, cache=given.cache)
    x = pictures(store, [0], device)
    print(pipeline.where(), "\n")
    print(line("path", "calls", "bits per dimension", "scatter of one", "standard error, as said"))
    print(line(*["---"] * 5), flush=True)
    for name, path in (("synchronous", synchronous_path()), ("patches of 8", random_path(8))):
        for calls in (8, 16, 32, 64):
            terms = elbo(
                pipeline.denoiser(SEEDS), x.expand(SEEDS, -1, -1, -1).contiguous(), process=model.process, path=path,
                calls=calls, generator=generators(range(SEEDS), device),
            )  # fmt: skip
            bits, said = terms.bits_per_dim, terms.bits_error.square().mean().sqrt()
            print(line(name, str(calls), f"{bits.mean():.3f}", f"{bits.std():.3f}", f"{said:.3f}"), flush=True)


def plot(found: list[dict[str, Any]], file: Path) -> None:
    """Bound by patch size, cost by noise level, and what paths cost more than that of one time per picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.8), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for each in found:
        sizes = [row["patch"] for row in each["paths"]]
        bits = [row["bits"] for row in each["paths"]]
        left.plot(range(len(sizes)), bits, "o-", markersize=4, label=f"trained with {each['times']} times")
        right.semilogy(
            range(1, len(sizes)), [value - bits[0] for value in bits[1:]], "o-", markersize=4, label=each["times"]
        )
        wide = (each["edges"][0] - each["edges"][-1]) / SLICES
        middle.stairs([value / wide for value in reversed(each["levels"])], each["edges"][::-1], label=each["times"])
    for axes in (left, right):
        axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        axes.set_xlabel("side of the patches that share a time")
    left.set(ylabel="bits per dimension", title="bound by path")
    middle.set(xlabel="log-SNR", ylabel="bits per unit of log-SNR", title="what each noise level costs")
    right.set(ylabel="bits per dimension", title="more than along the first path")
    for axes in (left, middle, right):
        axes.legend(fontsize=8)
    figure.savefig(file, dpi=110)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=("evaluate", "tables", "precision"))
    options.add_argument("run", nargs="?", type=Path)
    options.add_argument("--data", action="append")
    options.add_argument("--calls", type=int, default=16)
    options.add_argument("--count", type=int, default=1_000_000, help="pictures, at most")
    options.add_argument("--batch", type=int, default=500)
    options.add_argument("--device", default="auto")
    options.add_argument("--precision", default="fp32")
    options.add_argument("--cache", type=Path)
    options.add_argument("-o", "--output", type=Path)
    given = options.parse_args()
    if given.what == "evaluate" and given.run is None:
        options.error("evaluate needs a RUN")
    if given.what != "tables" and not given.data:
        options.error(f"{given.what} needs --data")
    if given.what != "precision" and given.output is None:
        options.error(f"{given.what} needs -o")
    {"evaluate": evaluate, "tables": tables, "precision": precision}[given.what](given)


if __name__ == "__main__":
    main()
