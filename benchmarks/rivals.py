"""Rivals on the shipped network, asked with one time per picture, in few pictures: what a CPU can do.

    python benchmarks/rivals.py tune --data SET [--lpips FILE] [WEIGHT ...]
    python benchmarks/rivals.py evaluate --data SET -o OUT [--lpips FILE] [METHOD ...]
    python benchmarks/rivals.py tables -o OUT

``tune`` fills squares in training pictures by MCG, with several weights of its gradient; the right one depends on the
size of pictures, and the best here is the one that ``baselines.mcg`` has unless it is told another. ``evaluate`` fills
holes of four kinds in held-out pictures; cells are kept, and several processes may share the methods. ``tables`` prints
LPIPS, and by how much it differs from AsyncPatch's. ``--compile`` takes some minutes, and pays on two cores, too.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from asyncpatch.baselines import mcg
from asyncpatch.data.masks import holes
from asyncpatch.data.store import Store, open_split
from asyncpatch.evaluation import OURS, RIVALS, SUPERVISED, Cell, Evaluation, Result, paired, spaced
from asyncpatch.metrics import LPIPS, lpips_file
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.sampling import Ahead, generators
from asyncpatch.settings import INPUT_GUIDANCE, Settings
from evaluating import SET, line, pictures

KINDS = ("extrema", "square", "thin", "wide")
BATCH = 8
COUNT = 3 * BATCH
WEIGHTS = (0.3, 1.0, 3.0, 10.0)
PLAIN, TOOL = Settings(steps=50, batch=BATCH), Settings(input_guidance=INPUT_GUIDANCE, batch=BATCH)
"""As in the ablation, and as the tool fills holes."""


def cells(method: str) -> list[Cell]:
    ways = [PLAIN, TOOL] if method == OURS else [Settings(batch=BATCH)]
    return [Cell(SET, kind, method, how, COUNT) for how in ways for kind in KINDS]


def parts(given: argparse.Namespace, split: str) -> tuple[AsyncPatchPipeline, Store, LPIPS]:
    found = given.lpips or lpips_file()
    if found is None:
        raise SystemExit("LPIPS needs its weights: --lpips FILE, or $ASYNCPATCH_LPIPS")
    pipeline = AsyncPatchPipeline.default().prepare(compiled=given.compile)
    store = open_split(given.data, split, pipeline.model.resolution, given.cache)
    if store is None:
        raise SystemExit(f"there are no pictures for {split} in {', '.join(given.data)}")
    return pipeline, store, LPIPS.load(found).to(pipeline.unet.device)


@torch.no_grad()
def tune(given: argparse.Namespace) -> None:
    pipeline, store, lpips = parts(given, "train")
    device, model = pipeline.unet.device, pipeline.model
    chosen = spaced(len(store), BATCH)
    x = pictures(store, chosen, device)
    hole = holes("square", chosen, *x.shape[2:]).to(device)
    denoiser = pipeline.denoiser(BATCH)
    print(line("weight", "LPIPS"), line("---", "---"), sep="\n")
    for weight in map(float, given.names or WEIGHTS):
        made = mcg(model.process, x, hole, weight=weight).run(denoiser, x, generator=Ahead(generators(chosen, device)))
        found = lpips(x, torch.where(hole > 0, made, x).clamp(-1.0, 1.0))
        error = float(found.std()) / len(found) ** 0.5
        print(line(f"{weight:g}", f"{float(found.mean()):.4f} ± {error:.4f}"), flush=True)


def evaluate(given: argparse.Namespace) -> None:
    pipeline, store, lpips = parts(given, "validation")
    work = Evaluation(pipeline, given.output, {SET: store}, lpips=lpips)
    for method in given.names or (OURS, *(each for each in RIVALS if each != SUPERVISED)):
        for cell in cells(method):
            found = work.result(cell)
            print(method, cell.what, found["lpips"], f"{found['calls']:g} calls, {found['seconds']:.1f} s", flush=True)


def table(found: list[Result]) -> list[str]:
    """A row for each method and its settings: LPIPS by kind of hole, and its difference from AsyncPatch's."""
    rows = {(row["method"], row["settings"]["input_guidance"], row["what"]): row for row in found}
    lines = [line("method", "calls", *KINDS), line(*["---"] * (2 + len(KINDS)))]
    for method, guided in sorted({key[:2] for key in rows}, key=lambda way: (way[0] != OURS, way)):
        texts = []
        for kind in KINDS:
            row, ours = rows.get((method, guided, kind)), rows.get((OURS, PLAIN.input_guidance, kind))
            texts.append("" if row is None else "{:.4f} ± {:.4f}".format(*row["lpips"]))
            if row is not None and ours is not None and row is not ours:
                difference, error = paired(row, ours)
                texts[-1] += f" ({difference:+.1%} ± {1.96 * error:.1%})"
        calls = max(row["calls"] for key, row in rows.items() if key[:2] == (method, guided))
        lines.append(line(method + (", as the tool does" if guided else ""), f"{calls:,.0f}", *texts))
    return lines


def tables(given: argparse.Namespace) -> None:
    print("\n".join(table([json.loads(file.read_text()) for file in sorted(given.output.glob("cells/*.json"))])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["tune", "evaluate", "tables"])
    parser.add_argument("names", nargs="*", help="weights to tune among, or methods to evaluate [default: all]")
    parser.add_argument("--data", nargs="+", default=["shapes"], help="sets, as for training")
    parser.add_argument("-o", "--output", type=Path, help="folder for finished cells")
    parser.add_argument("--lpips", type=Path, help="weights of LPIPS-Alex [default: $ASYNCPATCH_LPIPS]")
    parser.add_argument("--compile", action="store_true", help="the network")
    parser.add_argument("--cache", type=Path, help="where decoded data are kept")
    given = parser.parse_args()
    if given.output is None and given.what != "tune":
        parser.error(f"{given.what} needs -o")
    {"tune": tune, "evaluate": evaluate, "tables": tables}[given.what](given)


if __name__ == "__main__":
    main()
