"""The paper's two ablation tables on one's own pictures: ways to train one network, and rivals to fill holes with it.

    python benchmarks/ablation.py train --data SET -o OUT [NAME ...]
    python benchmarks/ablation.py evaluate --data SET -o OUT --lpips FILE [NAME ...]
    python benchmarks/ablation.py tables -o OUT

``train`` gives each variant the recipe ``ablation64_23m``; given again it goes on where it was stopped.
``evaluate`` makes 10,000 pictures of 50 steps with each, and fills holes of four kinds in 1,000 held-out pictures; the
rivals fill them in 250 of these with the networks of one time per picture, and those 250 are filled by the others
too, with input guidance and without, to be compared with; by AsyncPatch and the mixture also as the paper samples, in
250 steps with noise. AsyncPatch and supervised fill squares under several class and input guidances besides, in 500
pictures and 25 steps. Cells are kept, and may be computed on several machines. ``tables`` writes OUT/results.md,
OUT/results.png and OUT/guidance.png from whatever is there. ``--quick`` does it all in minutes on a CPU, to see that it
works.

With ``--latents`` all three are about models of the latents of an autoencoder (``train --autoencoder FOLDER``), at
128x128, as in the paper's tables of those: AsyncPatch, the baseline with RePaint, supervised, and the mixture that
ships, all on 1,000 pictures.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from asyncpatch import recipes
from asyncpatch.evaluation import (
    FREE,
    OURS,
    RIVALS,
    SAMPLES,
    SUPERVISED,
    Cell,
    Result,
    frechet_said,
    guidance_plot,
    paired,
)
from asyncpatch.settings import Settings
from asyncpatch.train.config import MIXED
from asyncpatch.train.run import train
from evaluating import SET, line, opened

BASELINE, AGAIN = "baseline", "baseline-again"
KINDS = ("extrema", "square", "thin", "wide")
COST = ("calls", "ms")
SLOW, ETAS = 250, (0.5, 1.0)
"""The steps of the paper's sampler, and how random: its "stochastic coefficient of 0.25" is about the first, if it is
what it seems to be; the steps of RePaint are as random as the second."""
CLASS_GUIDANCES, INPUT_GUIDANCES = (0.0, 0.5, 1.5), (0.0, 0.5, 1.0, 2.0)


@dataclass(frozen=True)
class Suite:
    """What is trained and compared, and what the paper has to set beside it."""

    variants: dict[str, dict[str, Any]]
    """By name, how its recipe differs."""
    rivals: tuple[str, ...]
    """That fill holes with a network of one time per picture."""
    hosts: tuple[str, ...]
    """The variants that have such a network; the others are compared with RePaint on the first."""
    few: int
    """Pictures in which they do, of the 1,000 that the others fill."""
    swept: tuple[str, ...]
    """That fill squares under several guidances."""
    slow: tuple[str, ...]
    """That also fill holes in more steps, with noise."""
    fids: dict[str, float]
    papers_fid: str
    lpips: dict[str, tuple[float, float, float, float]]
    """By kind of hole, in the order of KINDS."""
    papers_lpips: str


PIXELS = Suite(
    variants={
        BASELINE: {"times": "global"},
        AGAIN: {"times": "global", "seed": 1},
        "independent": {"times": "independent"},
        "perlin": {"times": "perlin"},
        "perlin-picture": {"times": "perlin-picture"},
        "patchwise": {"times": "patchwise"},
        "asyncpatch": {"times": "asyncpatch"},
        SUPERVISED: {"times": "global", "holes": "square,thin,wide"},
        "mixture": {"times": MIXED},
    },
    rivals=tuple(each for each in RIVALS if each != SUPERVISED),
    hosts=(AGAIN, BASELINE),
    few=250,
    swept=("asyncpatch", SUPERVISED),
    slow=("asyncpatch", "mixture"),
    fids={BASELINE: 1.74, AGAIN: 1.74, "perlin": 2.05, "perlin-picture": 2.05, "patchwise": 2.54, "asyncpatch": 1.77},
    papers_fid="of 50,000 samples of a network of 600M on ImageNet at 64x64",
    lpips={
        "repaint": (0.282, 0.106, 0.053, 0.097),
        "perlin": (0.225, 0.085, 0.039, 0.075),
        "perlin-picture": (0.225, 0.085, 0.039, 0.075),
        "patchwise": (0.228, 0.087, 0.041, 0.078),
        "asyncpatch": (0.229, 0.088, 0.041, 0.078),
    },
    papers_lpips="on ImageNet at 64x64 with a network of 60M",
)
LATENTS = Suite(
    variants={name: PIXELS.variants[name] for name in (BASELINE, "asyncpatch", SUPERVISED, "mixture")},
    rivals=("repaint",),
    hosts=(BASELINE,),
    few=1000,
    swept=(),
    slow=(),
    fids={BASELINE: 8.24, "asyncpatch": 8.06},
    papers_fid="of 50,000 samples of a latent network of 600M on ImageNet at 256x256",
    lpips={"repaint": (0.504, 0.206, 0.202, 0.198), "asyncpatch": (0.413, 0.162, 0.133, 0.152)},
    papers_lpips="on ImageNet at 256x256 with a latent network of 600M",
)


def cells(suite: Suite, name: str, quick: bool) -> list[Cell]:
    """What is computed of a variant."""
    many, some, few, samples = (4, 3, 2, 10) if quick else (1000, 500, suite.few, 10_000)
    steps, batch = (2, 8) if quick else (50, 250)
    plain = Settings(steps=steps, batch=batch)
    own = SUPERVISED if name == SUPERVISED else OURS
    found = [Cell(SET, SAMPLES, own, plain, samples)]
    for kind in KINDS:
        found += [Cell(SET, kind, own, plain, count) for count in sorted({many, few}, reverse=True)]
        found.append(Cell(SET, kind, own, replace(plain, input_guidance=1.0), few))
        if name in suite.slow:
            slow = replace(plain, steps=steps if quick else SLOW)
            found += [Cell(SET, kind, own, replace(slow, eta=eta), few) for eta in ETAS]
    if name in suite.swept:
        for first, second in itertools.product(CLASS_GUIDANCES, INPUT_GUIDANCES):
            how = replace(plain, steps=steps // 2, class_guidance=first, input_guidance=second)
            found.append(Cell(SET, "square", own, how, some))
    if name in suite.hosts:
        quickest = {"ddrm", "ddnm"} & set(suite.rivals) or suite.rivals
        rivals = [each for each in suite.rivals if not quick or each in quickest]
        rivals.sort(key=lambda each: each != "repaint")  # which the paper compares with comes first
        found += [Cell(SET, kind, rival, Settings(batch=batch), few) for rival in rivals for kind in KINDS]
    return found


def train_all(given: argparse.Namespace) -> None:
    recipe = recipes.smoke() if given.quick else recipes.ablation64_23m()
    if given.quick:
        recipe = replace(recipe, steps=10, resolution=32)
    if given.latents:
        recipe = replace(recipe, autoencoder=str(given.autoencoder), resolution=64 if given.quick else 128)
    for name in given.names:
        how = given.suite.variants[name]
        print(f"{name}: {how}", flush=True)
        train(replace(recipe, **how), given.data, given.output / name, resume=True, cache=given.cache)
        print(f"{name} is trained", flush=True)


def evaluate_all(given: argparse.Namespace) -> None:
    for name in given.names:
        work = opened(given.output / name / "model", given.output / name / "evaluation", given)
        for cell in cells(given.suite, name, given.quick):
            found = work.result(cell)
            said = {key: found[key] for key in ("frechet", "lpips", "calls", "seconds") if key in found}
            print(name, cell.what, cell.method, cell.count, said, flush=True)


def tables(given: argparse.Namespace) -> None:
    found = {
        name: [json.loads(file.read_text()) for file in sorted((given.output / name).glob("evaluation/cells/*.json"))]
        for name in given.suite.variants
    }
    many, few = sizes(found)
    swept = {
        name: [row for row in found[name] if row["what"] != SAMPLES and row["pictures"] not in (many, few)]
        for name in given.suite.swept
    }
    lines = [
        *generation(given.suite, found), "", *inpainting(given.suite, found), "", *variants(given.suite, found), "",
        *comparison(given.suite, found), "", *guidances(swept), "", *guided(given.suite, found, few),
    ]  # fmt: skip
    (given.output / "results.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    plot(dots(given.suite, found), few, given.output / "results.png")
    guidance_plot([row for rows in swept.values() for row in rows], given.output / "guidance.png")


def one(rows: Iterable[Result], **wanted: Any) -> Result | None:
    """The row with these values: of its own, or of its settings."""
    found = [row for row in rows if all({**row["settings"], **row}.get(key) == value for key, value in wanted.items())]
    if len(found) > 1:
        raise ValueError(
            f"there are {len(found)} cells of {wanted}: of other weights, data or machines, or without LPIPS. Remove "
            "those that are not meant from the variant's evaluation/cells"
        )
    return found[0] if found else None


def sizes(found: dict[str, list[Result]]) -> tuple[int, int]:
    """How many pictures the large cells of holes have, and the small ones."""
    counts = {row["pictures"] for rows in found.values() for row in rows if row["what"] != SAMPLES} or {0}
    return max(counts), min(counts)


def wanted(name: str, *, guidance: float = 0.0, eta: float = 0.0) -> dict[str, Any]:
    """Which cells are of a variant's own way to fill holes."""
    method = SUPERVISED if name == SUPERVISED else OURS
    return {"method": method, "class_guidance": 0.0, "input_guidance": guidance, "eta": eta}


def mean_of(row: Result | None, key: str) -> str:
    return "" if row is None or key not in row else f"{row[key][0]:.4f} ± {row[key][1]:.4f}"


def cost(*rows: Result | None) -> tuple[str, str]:
    """What a picture took, under the titles COST: of the first of these cells that is there."""
    row = next(each for each in rows if each is not None)
    return f"{row['calls']:,.0f}", f"{1000 * row['seconds']:.1f}"


def generation(suite: Suite, found: dict[str, list[Result]]) -> list[str]:
    rows = {name: row for name, each in found.items() if (row := one(each, what=SAMPLES)) is not None}
    if not rows:
        return []
    titles = (
        "trained with", "samples", *COST, "Fréchet", "kernel distance x 1000", "precision", "recall", "paper's FID"
    )  # fmt: skip
    steps = next(iter(rows.values()))["settings"]["steps"]
    known = any("frechet error" in row for row in rows.values())
    lines = [
        f"New pictures in {steps} steps, with the network calls and milliseconds that each took. The Fréchet distance"
        f"{' (± standard error over samples)' if known else ''} is in the features of EfficientNet-Lite0, and no FID; "
        f"the paper's FID is {suite.papers_fid}: only the order of the rows can be compared.", "",
        line(*titles), line(*["---"] * len(titles)),
    ]  # fmt: skip
    for name, row in rows.items():
        kernel = f"{1000 * row['kernel'][0]:.2f} ± {1000 * row['kernel'][1]:.2f}"
        published = f"{suite.fids[name]:.2f}" if name in suite.fids else ""
        lines.append(
            line(name, f"{row['pictures']:,}", *cost(row), frechet_said(row), kernel, f"{row['precision']:.3f}",
                 f"{row['recall']:.3f}", published)
        )  # fmt: skip
    return lines


def methods(suite: Suite) -> list[tuple[str, str, dict[str, Any]]]:
    """Rows of the table of holes: their title, the variant, and which of its cells."""
    listed: list[tuple[str, str, dict[str, Any]]] = []
    for name in suite.variants:
        title = f"{name}, asked with a time per token" if name in suite.hosts else name
        listed.append((title, name, wanted(name)))
        listed.append((f"{title}, input guidance 1", name, wanted(name, guidance=1.0)))
        if name in suite.slow:
            listed += [(f"{title}, {SLOW} steps, eta {eta:g}", name, wanted(name, eta=eta)) for eta in ETAS]
    return listed + of_rivals(suite)


def of_rivals(suite: Suite) -> list[tuple[str, str, dict[str, Any]]]:
    """Likewise, those of the rivals."""
    return [(f"{each} on {host}", host, {"method": each}) for each in suite.rivals for host in suite.hosts]


def inpainting(suite: Suite, found: dict[str, list[Result]]) -> list[str]:
    """Two tables: LPIPS, the paper's beside; Fréchet distance, PSNR and seam, of equally many pictures, for the first
    of these depends on how many there are."""
    many, few = sizes(found)
    near = [line("method", "pictures", *COST, *(f"{kind} (paper)" for kind in KINDS)), line(*["---"] * 8)]
    like = [line("method", *COST, *KINDS), line(*["---"] * 7)]
    originals: dict[str, float] = {}
    for (title, name, which), count in itertools.product(methods(suite), sorted({many, few}, reverse=True)):
        rows = {kind: one(found[name], what=kind, pictures=count, **which) for kind in KINDS}
        if not any(rows.values()):
            continue
        took = cost(rows["square"], *rows.values())
        key = name if which["method"] in FREE else which["method"]
        published = None if which.get("input_guidance") or which.get("eta") else suite.lpips.get(key)
        papers = [f" ({each:.3f})" for each in published] if published else [""] * len(KINDS)
        texts = [mean_of(row, "lpips") + paper for row, paper in zip(rows.values(), papers, strict=True)]
        near.append(line(title, f"{count:,}", *took, *texts))
        if count == few:
            like.append(line(title, *took, *(resemblance(row) for row in rows.values())))
            originals |= {kind: row["seam of the original"] for kind, row in rows.items() if row is not None}
    seams = ", ".join(f"{kind} {value:.2f}" for kind, value in originals.items())
    return [
        f"LPIPS ± standard error over pictures (in brackets the paper's, {suite.papers_lpips}), with the network calls "
        "and milliseconds that a picture took (of squares, 250 at a time). The supervised network was trained on "
        f"{suite.variants[SUPERVISED]['holes'].replace(',', ', ')} holes: extrema are new to it.", "",
        *near, "",
        "Fréchet distance to the training set (EfficientNet-Lite0), PSNR in the hole, and the median gradient across "
        f"its border over that inside (of the originals: {seams}), of the same {few:,} pictures for all:",
        "", *like,
    ]  # fmt: skip


def resemblance(row: Result | None) -> str:
    return "" if row is None else f"{row['frechet']:.1f}, {row['psnr'][0]:.2f} dB, {row['seam']:.2f}"


def variants(suite: Suite, found: dict[str, list[Result]]) -> list[str]:
    """LPIPS against the network that the paper proposes, picture by picture: without guidance, and with."""
    lines = [
        f"LPIPS against that of {OURS}, of the same pictures, with intervals of 95 % over pictures (not over "
        "trainings):", "",
        line("trained with", "pictures", *KINDS), line(*["---"] * (2 + len(KINDS))),
    ]  # fmt: skip
    for guidance, count in zip((0.0, 1.0), sizes(found), strict=True):
        ours = {kind: one(found[OURS], what=kind, pictures=count, **wanted(OURS, guidance=guidance)) for kind in KINDS}
        for name in suite.variants:
            which = {"pictures": count, **wanted(name, guidance=guidance)}
            texts = [beside(one(found[name], what=kind, **which), row) for kind, row in ours.items()]
            if any(texts):
                lines.append(line(f"{name}, both with input guidance 1" if guidance else name, f"{count:,}", *texts))
    return lines


def comparison(suite: Suite, found: dict[str, list[Result]]) -> list[str]:
    """LPIPS against RePaint on the first of its networks, picture by picture."""
    host = suite.hosts[0]
    titles = ("method", "calls, of RePaint's", *KINDS)
    lines = [
        f"LPIPS against that of RePaint on {host}, on the same pictures, with intervals of 95 % likewise:", "",
        line(*titles), line(*["---"] * len(titles)),
    ]  # fmt: skip
    repaint = {kind: one(found[host], what=kind, method="repaint") for kind in KINDS}
    for title, name, which in methods(suite):
        texts, calls = [], ""
        for kind, theirs in repaint.items():
            row = theirs and one(found[name], what=kind, pictures=theirs["pictures"], **which)
            texts.append(beside(row, theirs))
            if row is not None and theirs is not None and texts[-1]:
                calls = f"{row['calls'] / theirs['calls']:.3f}"
        if any(texts):
            lines.append(line(title, calls, *texts))
    return lines


def guidances(swept: dict[str, list[Result]]) -> list[str]:
    every = [row for rows in swept.values() for row in rows]
    if not every:
        return []
    titles = ("trained with", "class guidance", "input guidance", *COST, "LPIPS", "against none", "Fréchet")
    lines = [
        f"Squares in {every[0]['pictures']:,} pictures, {every[0]['settings']['steps']} steps: network calls and "
        "milliseconds that a picture took, LPIPS ± standard error, by how much it differs from that without guidance, "
        "with intervals of 95 % over pictures, and Fréchet distance to the training set (EfficientNet-Lite0).", "",
        line(*titles), line(*["---"] * len(titles)),
    ]  # fmt: skip
    for (name, found), first, second in itertools.product(swept.items(), CLASS_GUIDANCES, INPUT_GUIDANCES):
        row, plain = (one(found, class_guidance=a, input_guidance=b) for a, b in ((first, second), (0.0, 0.0)))
        if row is not None:
            figures = mean_of(row, "lpips"), beside(row, plain), f"{row['frechet']:.1f}"
            lines.append(line(name, f"{first:g}", f"{second:g}", *cost(row), *figures))
    return lines


def guided(suite: Suite, found: dict[str, list[Result]], few: int) -> list[str]:
    pairs = {
        name: [[one(found[name], what=kind, pictures=few, **wanted(name, guidance=each)) for each in (1.0, 0.0)]
               for kind in KINDS] for name in suite.variants
    }  # fmt: skip
    there = [pair for each in pairs.values() for pair in each if beside(*pair)]
    if not there:
        return []
    (calls, _), (fewer, _) = (cost(row) for row in there[0])
    lines = [
        f"LPIPS with input guidance 1, in {calls} network calls, against that without, in {fewer}, on the same {few:,} "
        "pictures, with intervals of 95 %:", "",
        line("trained with", *KINDS), line(*["---"] * (1 + len(KINDS))),
    ]  # fmt: skip
    texts = {name: [beside(*pair) for pair in each] for name, each in pairs.items()}
    return lines + [line(name, *each) for name, each in texts.items() if any(each)]


def beside(row: Result | None, other: Result | None) -> str:
    """By how much a row's LPIPS is above another's, of the same pictures, if both are there."""
    if row is None or other is None or row is other or not ("each" in row and "each" in other):
        return ""
    change, error = paired(row, other)
    return f"{change:+.1%} ± {1.96 * error:.1%}"


class Dot(NamedTuple):
    """A figure of the plot: in which row and panel, how much, and with which interval."""

    row: str
    panel: str
    value: float
    half: float
    """Of an interval of 95 %."""
    hollow: bool = False


def dots(suite: Suite, found: dict[str, list[Result]]) -> list[Dot]:
    """New pictures, and holes of each kind, with input guidance (hollow) and without: of each variant and each rival,
    of the same pictures."""
    _, few = sizes(found)
    made = []
    for name, rows in found.items():
        if row := one(rows, what=SAMPLES):
            made.append(Dot(name, SAMPLES, row["frechet"], 1.96 * row.get("frechet error", 0.0)))
    own = [
        (name, name, wanted(name, guidance=each))
        for name in suite.variants if name not in suite.hosts for each in (0.0, 1.0)
    ]  # fmt: skip
    for (title, name, which), kind in itertools.product([*own, *of_rivals(suite)], KINDS):
        row = one(found[name], what=kind, pictures=few, **which)
        if row is not None and "lpips" in row:
            mean, error = row["lpips"]
            made.append(Dot(title, kind, mean, 1.96 * error, bool(which.get("input_guidance"))))
    return made


def plot(made: list[Dot], few: int, file: Path) -> None:
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter

    rows = list(dict.fromkeys(each.row for each in made if each.row not in (BASELINE, AGAIN)))
    if not rows:
        return
    figure = Figure(figsize=(14, 1.2 + 0.3 * len(rows)), layout="constrained")
    panels = dict(zip((SAMPLES, *KINDS), figure.subplots(1, 1 + len(KINDS), sharey=True), strict=True))
    heights = {row: len(rows) - k for k, row in enumerate(rows)}
    for each in made:
        if each.row in (BASELINE, AGAIN):
            panels[each.panel].axvline(
                each.value, color="tab:grey", linestyle=":", label=BASELINE if each.row == BASELINE else None
            )
            panels[each.panel].legend(loc="center right", frameon=False)
            continue
        colour = "tab:grey" if " on " in each.row else "tab:red" if each.row == "mixture" else "tab:blue"
        panels[each.panel].errorbar(
            each.value, heights[each.row], xerr=each.half, fmt="o", color=colour,
            markerfacecolor="white" if each.hollow else colour,
        )  # fmt: skip
    new = panels[SAMPLES]
    new.set(title="Fréchet distance: new pictures", xscale="log", yticks=list(heights.values()))
    new.set_yticklabels(rows)
    new.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 3.0, 5.0)))
    new.xaxis.set_major_formatter(ScalarFormatter())
    new.xaxis.set_minor_locator(NullLocator())
    for kind in KINDS:
        panels[kind].set(title=f"LPIPS: {kind}")
        panels[kind].locator_params(axis="x", nbins=4)
    for axes in panels.values():
        axes.grid(axis="y", alpha=0.3)
    known = "intervals of 95 % where there are bars"
    figure.supxlabel(f"lower is better; holes of {few:,} pictures, the same for all; {known}; hollow: input guidance 1")
    figure.savefig(file, dpi=110)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=("train", "evaluate", "tables"))
    options.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PIXELS.variants)} [default: all]")
    options.add_argument("--data", action="append", help="may be given several times [default: shapes]")
    options.add_argument("-o", "--output", type=Path, required=True)
    options.add_argument("--lpips", type=Path)
    options.add_argument("--cache", type=Path)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--latents", action="store_true")
    options.add_argument("--autoencoder", type=Path)
    given = options.parse_intermixed_args()
    given.data, given.suite = given.data or ["shapes"], LATENTS if given.latents else PIXELS
    given.names = given.names or list(given.suite.variants)
    if given.what == "train" and given.latents != (given.autoencoder is not None):
        options.error("--latents and --autoencoder go together")
    if unknown := set(given.names) - set(given.suite.variants):
        options.error(f"there is no variant {', '.join(sorted(unknown))}")
    {"train": train_all, "evaluate": evaluate_all, "tables": tables}[given.what](given)


if __name__ == "__main__":
    main()
