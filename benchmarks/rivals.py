"""Rivals on the shipped network, asked with one time per picture.

    python benchmarks/rivals.py tune --data SET [--lpips FILE] [WEIGHT ...]
    python benchmarks/rivals.py evaluate --data SET -o OUT [--lpips FILE] [--count N] [METHOD ...]
    python benchmarks/rivals.py tables -o OUT

``tune`` fills squares in training pictures by MCG, with several weights of its gradient; the right one depends on the
size of pictures, and the best here is the one that ``baselines.mcg`` has unless it is told another. ``evaluate`` fills
holes of four kinds in held-out pictures; cells are kept, and several processes may share the methods. As it is, few
pictures are filled, which is what a CPU can do; on a GPU, ``--count 250 --batch 250 --slow`` fills more of them,
AsyncPatch also as the paper samples, in 250 steps with noise. ``tables`` prints LPIPS, and by how much it differs from
AsyncPatch's. ``--compile`` takes some minutes, and pays on two cores, too.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
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
WEIGHTS = (0.3, 1.0, 3.0, 10.0)
PLAIN, SLOW = Settings(steps=50), Settings(steps=250)
OWN = {
    OURS: PLAIN,
    f"{OURS}, as the tool does": Settings(input_guidance=INPUT_GUIDANCE),
    **{f"{OURS}, {SLOW.steps} steps, eta {eta:g}": replace(SLOW, eta=eta) for eta in (0.5, 1.0)},
}
"""Ways to fill holes with AsyncPatch: as in the ablation, as the tool does, and as the paper may have done."""


def cells(method: str, given: argparse.Namespace) -> list[Cell]:
    own = [how for how in OWN.values() if given.slow or how.steps < SLOW.steps]
    ways = [replace(how, batch=given.batch) for how in (own if method == OURS else [Settings()])]
    return [Cell(SET, kind, method, how, given.count) for how in ways for kind in KINDS]


def way(row: Result) -> str:
    """What a cell's method is called in the table."""
    told = row["settings"] | {"batch": Settings().batch}
    if row["method"] != OURS:
        return row["method"]
    return next((name for name, how in OWN.items() if told == asdict(how)), f"{OURS}, in some other way")


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
        for cell in cells(method, given):
            found = work.result(cell)
            print(method, cell.what, found["lpips"], f"{found['calls']:g} calls, {found['seconds']:.1f} s", flush=True)


def table(found: list[Result]) -> list[str]:
    """A row for each method and its settings: LPIPS by kind of hole, and its difference from AsyncPatch's."""
    rows = dict[tuple[str, str], Result]()
    for row in found:
        key = way(row), row["what"]
        if key in rows:
            raise ValueError(
                f"there are two cells of {key[0]} and {key[1]}: of other weights, pictures or machines. Remove what is "
                "not meant from OUT/cells"
            )
        rows[key] = row
    names = [*OWN, *(each for each in RIVALS if any(each == name for name, _ in rows))]
    lines = [line("method", "calls", *KINDS), line(*["---"] * (2 + len(KINDS)))]
    for name in names:
        texts, calls = [], [row["calls"] for key, row in rows.items() if key[0] == name]
        for kind in KINDS:
            row, ours = rows.get((name, kind)), rows.get((OURS, kind))
            texts.append("" if row is None else "{:.4f} ± {:.4f}".format(*row["lpips"]))
            if row is not None and ours is not None and row is not ours:
                difference, error = paired(row, ours)
                texts[-1] += f" ({difference:+.1%} ± {1.96 * error:.1%})"
        if calls:
            lines.append(line(name, f"{max(calls):,.0f}", *texts))
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
    parser.add_argument("--count", type=int, default=3 * BATCH, help="pictures [default: %(default)s]")
    parser.add_argument("--batch", type=int, default=BATCH, help="of these at a time [default: %(default)s]")
    parser.add_argument("--slow", action="store_true", help="AsyncPatch also in 250 steps, with noise")
    parser.add_argument("--compile", action="store_true", help="the network")
    parser.add_argument("--cache", type=Path, help="where decoded data are kept")
    given = parser.parse_args()
    if given.output is None and given.what != "tune":
        parser.error(f"{given.what} needs -o")
    {"tune": tune, "evaluate": evaluate, "tables": tables}[given.what](given)


if __name__ == "__main__":
    main()
