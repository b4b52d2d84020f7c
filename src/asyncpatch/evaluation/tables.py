"""What is said of results: tables, differences and a plot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from asyncpatch.evaluation.cells import FREE, SAMPLES, Result
from asyncpatch.metrics import InceptionFeatures
from asyncpatch.settings import Settings


def paired(one: Result, other: Result) -> tuple[float, float]:
    """By how much the LPIPS of one cell is above that of another, relatively, and the standard error of that: of the
    same pictures and holes, whose differences vary less than they do."""
    a, b = (torch.tensor(cell["each"]["lpips"], dtype=torch.float64) for cell in (one, other))
    if (one["data"], one["what"], len(a)) != (other["data"], other["what"], len(b)):
        raise ValueError("only cells of the same pictures and holes can be compared picture by picture")
    ratio = a.mean() / b.mean()
    return float(ratio - 1.0), float((a - ratio * b).std() / len(a) ** 0.5 / b.mean())


def markdown(results: Iterable[Result]) -> str:
    """Two tables: filled holes, and samples."""
    results = list(results)
    lines = []
    filled = [each for each in results if each["what"] != SAMPLES]
    if filled:
        distances = {_distance(each) for each in filled if "frechet" in each}
        extra = [*(["LPIPS"] if any("lpips" in each for each in filled) else []), *sorted(distances)]
        titles = ["set", "hole", "method", "pictures", *extra, "PSNR", "SSIM", "seam (original)", "calls", "seconds"]
        lines += [_row(titles), _row(["---"] * len(titles))]
        for each in filled:
            shown = {"LPIPS": _said(each["lpips"], 4) if "lpips" in each else ""}
            if "frechet" in each:
                shown[_distance(each)] = f"{each['frechet']:.2f}"
            seam = f"{each['seam']:.2f} ({each['seam of the original']:.2f})"
            further = (shown.get(title, "") for title in extra)
            lines.append(_row([
                each["set"], each["what"], _how(each), f"{each['pictures']:,}", *further,
                _said(each["psnr"], 2), _said(each["ssim"], 3), seam, f"{each['calls']:,.0f}", f"{each['seconds']:.2f}",
            ]))  # fmt: skip
    samples = [each for each in results if each["what"] == SAMPLES]
    for features in sorted({each["features"] for each in samples}):
        made = [each for each in samples if each["features"] == features]
        warned = "" if features == InceptionFeatures.title else " (this is no FID)"
        lines += [
            "",
            f"In the features of {features}{warned}, against {made[0]['references']:,} training pictures:",
            "",
        ]
        titles = [
            "method", "samples", _distance(made[0]), "kernel distance x 1000", "precision", "recall", "calls", "seconds"
        ]  # fmt: skip
        lines += [_row(titles), _row(["---"] * len(titles))]
        for each in made:
            kernel = _said([1000 * value for value in each["kernel"]], 2)
            lines.append(_row([
                _how(each), f"{each['pictures']:,}", frechet_said(each), kernel, f"{each['precision']:.3f}",
                f"{each['recall']:.3f}", f"{each['calls']:,.0f}", f"{each['seconds']:.2f}",
            ]))  # fmt: skip
    return "\n".join(lines) + "\n"


def guidance_plot(results: Iterable[Result], file: Path) -> bool:
    """Input guidance against class guidance, as a picture: LPIPS and Fréchet distance of filled holes, a line for each
    class guidance, along which input guidance grows. False, and no file, where there is nothing to compare."""
    swept: dict[tuple[str, str, str, str], dict[str, list[tuple[float, float, float]]]] = {}
    for each in results:
        if each["method"] in FREE and each["what"] != SAMPLES and "lpips" in each and "frechet" in each:
            lines = swept.setdefault((each["set"], each["what"], each["method"], each["features"]), {})
            how = each["settings"]
            point = (how["input_guidance"], each["lpips"][0], each["frechet"])
            rest = {
                name: value for name, value in how.items() if name not in ("input_guidance", "class_guidance", "batch")
            }
            further = [f"{name} {value}" for name, value in rest.items() if value != getattr(Settings, name)]
            lines.setdefault(", ".join([f"class guidance {how['class_guidance']:g}", *further]), []).append(point)
    swept = {key: lines for key, lines in swept.items() if sum(map(len, lines.values())) > 2}
    if not swept:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(swept), 5), layout="constrained")
    for axes, ((name, kind, method, features), lines) in zip(
        figure.subplots(1, len(swept), squeeze=False)[0], swept.items(), strict=True
    ):
        for title, points in sorted(lines.items()):
            inputs, lpips, frechet = zip(*sorted(points), strict=True)
            axes.plot(lpips, frechet, "o-", label=title)
            for value, across, up in zip(inputs, lpips, frechet, strict=True):
                axes.annotate(f"{value:g}", (across, up), xytext=(4, 4), textcoords="offset points", fontsize=8)
        axes.set(title=f"{name}, {kind}, {method}", xlabel="LPIPS", ylabel=f"Fréchet distance ({features})")
        axes.locator_params(axis="x", nbins=6)
        axes.legend(title="numbers: input guidance", loc="upper center", bbox_to_anchor=(0.5, -0.15))  # beside no point
    figure.savefig(file, dpi=120)
    return True


def _distance(result: Result) -> str:
    """What a Fréchet distance is called: in the features of one network, FID; in no others."""
    return "FID" if result["features"] == InceptionFeatures.title else "Fréchet"


def frechet_said(result: Result) -> str:
    """Of new pictures, with its standard error if that is known."""
    error = result.get("frechet error")
    return f"{result['frechet']:.2f}" if error is None else _said([result["frechet"], error], 2)


def _row(texts: Sequence[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _how(result: Result) -> str:
    """The method, and which of its settings are not the usual ones."""
    words = ["pasted"] if result.get("pasted") else []
    if result["method"] not in FREE:
        return ", ".join([str(result["method"]), *words])
    usual = asdict(Settings())
    for name, value in result["settings"].items():
        if name != "batch" and (value != usual[name] or name == "steps"):
            words.append(f"{name.replace('_', ' ')} {value}")
    return ", ".join([result["method"], *words])


def _said(value: Sequence[float], digits: int) -> str:
    return f"{value[0]:.{digits}f} ± {value[1]:.{digits}f}"


def flat(result: Result) -> dict[str, Any]:
    """For a table without nesting."""
    made: dict[str, Any] = {}
    for name, value in result.items():
        if isinstance(value, dict):
            made |= value
        elif isinstance(value, list):
            made[name], made[f"{name} error"] = value
        else:
            made[name] = value
    return made
