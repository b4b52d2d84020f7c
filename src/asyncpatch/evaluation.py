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
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from asyncpatch import baselines, checks
from asyncpatch.data.masks import KINDS, holes
from asyncpatch.data.store import Store
from asyncpatch.drawing import picture, sheet
from asyncpatch.guidance import Guided, drop_label
from asyncpatch.images import Picture, blank
from asyncpatch.metrics import (
    FEATURES,
    LPIPS,
    InceptionFeatures,
    LiteFeatures,
    frechet_distance,
    frechet_error,
    kernel_distance,
    precision_and_recall,
    psnr_in_hole,
    seam_ratio,
    ssim_in_hole,
)
from asyncpatch.models.autoencoder import Autoencoder
from asyncpatch.models.uncertainty import UncertaintyHead
from asyncpatch.models.unet import UNet
from asyncpatch.pipelines import AsyncPatchPipeline, Made, Plan, Task, doubts
from asyncpatch.protocols import NULL_LABEL, Cond, Denoised, Denoiser
from asyncpatch.sampling import Ahead, generators
from asyncpatch.settings import SYNCHRONOUS, Settings

OURS = "asyncpatch"
SUPERVISED = baselines.supervised.__name__
FREE = (OURS, SUPERVISED)
"""Methods that go by a cell's settings."""
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
        baselines.supervised,
    )
}
"""Methods that ask with one time per picture, each with the number of steps that it was published with (but for
``supervised``, which has a network of its own and goes by the settings)."""

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
        if self.what not in (*KINDS, SAMPLES):
            raise ValueError(f"holes must be of {', '.join(KINDS)}; got {self.what!r}")
        checks.at_least(
            "count of samples" if self.what == SAMPLES else "count", self.count, 10 if self.what == SAMPLES else 2
        )


@dataclass
class Evaluation:
    """Where results go, and what it takes to compute them.

    ``folder`` gets ``cells/``, ``sheets/`` (which show pictures of the data: mind their terms) and, from ``write``,
    the table as Markdown, CSV and JSON. Without ``lpips`` that column is left out.
    """

    pipeline: AsyncPatchPipeline
    folder: Path
    sets: dict[str, Store]
    """Held-out pictures, by name: square, of the model's resolution or any other."""
    training: Store | None = None
    """Pictures that samples, and filled pictures, should resemble; with labels."""
    lpips: LPIPS | None = None
    references: int = 20_000
    features: str = "lite"
    """The network in whose features sets are compared, one of ``metrics.FEATURES``."""
    paste: bool = False
    """Outside of holes compare the pixels that were given, not those that tokens decode to. (Pixels decode to
    themselves.)"""

    def name(self, cell: Cell) -> str:
        """Of a cell's files: what one would look for, and a mark of all else that its figures depend on."""
        store = self.training if cell.what == SAMPLES else self.sets[cell.set]
        told = asdict(cell)
        del told["settings"]["batch"]  # it changes no figure
        parts = [json.dumps(told, sort_keys=True), self._model, "" if store is None else _mark(store)]
        schedule, head = cell.settings.schedule, self.pipeline.uncertainty
        if doubts(schedule) and head is not None:
            parts.append(_weights(head))
        if Path(schedule).is_file():
            parts.append(hashlib.sha256(Path(schedule).read_bytes()).hexdigest())
        parts += [
            str(self.lpips is not None),
            str(self.paste and cell.what != SAMPLES),
            "" if self.training is None else f"{_mark(self.training)}/{self.references}/{self.features}",
        ]
        mark = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
        return re.sub(r"[^\w.-]+", "_", f"{cell.set}-{cell.what}-{cell.method}-{mark}")

    @cached_property
    def _model(self) -> str:
        """A mark of the model's weights and of how it computes."""
        parts = (self.pipeline.unet, self.pipeline.vae)
        return "".join(_weights(each) for each in parts if each is not None) + self.pipeline.where()

    def file(self, cell: Cell) -> Path:
        return self.folder / "cells" / f"{self.name(cell)}.json"

    def result(self, cell: Cell) -> Result:
        """From its file, or computed now."""
        if self.file(cell).exists():
            found: Result = json.loads(self.file(cell).read_text())
            return found
        self.check(cell)
        store = self.training if cell.what == SAMPLES else self.sets[cell.set]
        made = {"set": cell.set, "what": cell.what, "method": cell.method, "settings": asdict(cell.settings),
                "ran on": self.pipeline.where(), "model": self._model[:16],
                "data": "" if store is None else _mark(store)[:16]}  # fmt: skip
        made |= self._samples(cell) if cell.what == SAMPLES else self._filled(cell)
        self.file(cell).parent.mkdir(parents=True, exist_ok=True)
        temporary = self.file(cell).with_suffix(f".part{os.getpid()}")
        lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in made.items())
        temporary.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        os.replace(temporary, self.file(cell))
        return made

    def check(self, cell: Cell) -> None:
        """What can be known to be wrong with a cell before any is computed."""
        if cell.method == OURS or cell.what == SAMPLES:
            self.pipeline.work(Plan((), cell.settings))  # whether there is such a schedule, and the head that it needs
        if cell.method in FREE and (cell.method == SUPERVISED) != self.pipeline.unet.config["given"]:
            raise ValueError(
                f"--methods {cell.method} needs a network that {'is' if cell.method == SUPERVISED else 'is not'} shown "
                "pictures with holes beside its canvas (asyncpatch train --holes); this model's is another"
            )
        if cell.method == SUPERVISED and cell.what != SAMPLES and cell.settings.solver != "ddim":
            raise ValueError("--methods supervised goes by --solver ddim")
        if cell.method == SUPERVISED and cell.what != SAMPLES and cell.settings.schedule != SYNCHRONOUS:
            raise ValueError("--methods supervised goes by --schedule synchronous")
        if cell.method != OURS and cell.what != SAMPLES:
            side, window = self.sets[cell.set].pictures.shape[1], self.pipeline.model.resolution
            if side != window:
                raise ValueError(f"--methods {cell.method} fills pictures of the model's {window} pixels, not {side}")
        if self.training is not None:
            _ = self._network  # it may not be installed
        elif cell.what == SAMPLES:
            raise ValueError("samples are compared with training pictures, and there are none")

    def write(self, results: Sequence[Result]) -> str:
        """The table, as Markdown; and as files. (What is known of each picture stays in the cells.)"""
        results = [{name: value for name, value in each.items() if name != "each"} for each in results]
        text = markdown(results)
        (self.folder / "table.md").write_text(text)
        (self.folder / "table.json").write_text(json.dumps(results, indent=1) + "\n")
        flat = [_flat(each) for each in results]
        with open(self.folder / "table.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(name for each in flat for name in each)))
            writer.writeheader()
            writer.writerows(flat)
        return text

    # ---- Holes

    @torch.no_grad()
    def _filled(self, cell: Cell) -> Result:
        store, device = self.sets[cell.set], self.pipeline.unet.device
        chosen = spaced(len(store), cell.count)
        hole = holes(cell.what, chosen, *store.pictures.shape[1:3])
        x = torch.from_numpy(store.pictures[chosen].copy()).permute(0, 3, 1, 2).float() / 127.5 - 1.0
        labels = [NULL_LABEL] * len(chosen)
        if cell.settings.class_guidance:
            if bool((store.labels[chosen] < 0).any()):
                raise ValueError(f"class guidance needs labels, and not all pictures of {cell.set} have one")
            labels = [self.pipeline.label(store.names[store.labels[k]]) for k in chosen]
        began = time.perf_counter()
        fill = self._ours if cell.method == OURS else self._rival
        made, asked = fill(cell, x, hole, chosen, labels)
        seconds = time.perf_counter() - began
        row: Result = {"pictures": len(x), **({"pasted": True} if self.paste else {})}

        def measured(metric: Callable[..., Tensor], *what: Tensor) -> Tensor:
            """Of each picture; by parts, where the network is."""
            parts = zip(*(torch.split(each, _FEATURE_BATCH) for each in what), strict=True)
            return torch.cat([metric(*(each.to(device) for each in part)).cpu() for part in parts])

        if self.lpips is not None:
            distances = measured(self.lpips, x, made)
            row |= {"lpips": _mean(distances), "each": {"lpips": [round(float(value), 5) for value in distances]}}
        row |= {
            "psnr": _mean(measured(psnr_in_hole, made, x, hole)),
            "ssim": _mean(measured(ssim_in_hole, made, x, hole)),
            "seam": float(measured(seam_ratio, made, hole).nanmedian()),
            "seam of the original": float(measured(seam_ratio, x, hole).nanmedian()),
            **self._resemblance(made),
            "calls": asked / len(x),
            "seconds": seconds / len(x),
        }
        self._show(cell, [[picture(each) for each in some[:_SHOWN]] for some in (x, x * (1 - hole), made)])
        return row

    def _ours(self, cell: Cell, x: Tensor, hole: Tensor, seeds: list[int], labels: list[int]) -> tuple[Tensor, int]:
        """Through the same path as the command line."""
        levels = ((x + 1.0) * 127.5).round().byte().permute(0, 2, 3, 1).numpy()
        tasks = [Task(Picture(levels=levels[k]), hole[k], (seeds[k],), labels[k]) for k in range(len(x))]
        made, asked = self._run(Plan(tasks, cell.settings, paste=self.paste))
        return torch.stack([each.pictures[0].x for each in made]), asked

    def _run(self, plan: Plan) -> tuple[list[Made], int]:
        """What is made of a plan, and about how many windows the network was asked for it."""
        asked: list[int] = []
        return self.pipeline.run(plan, lambda glimpse: asked.append(glimpse.windows)), sum(asked)

    def _rival(self, cell: Cell, x: Tensor, hole: Tensor, seeds: list[int], labels: list[int]) -> tuple[Tensor, int]:
        model, device, batch = self.pipeline.model, self.pipeline.unet.device, cell.settings.batch
        counted, how, options = Counted(self.pipeline.denoiser(batch)), cell.settings, dict[str, Any]()
        denoiser: Denoiser = Guided(counted, how.class_guidance, drop_label)
        if cell.method == SUPERVISED:
            options = {"steps": how.steps, "eta": how.eta, "input_guidance": how.input_guidance}
        made = []
        for first in range(0, len(x), batch):
            some = slice(first, first + batch)
            xs, hs = x[some].to(device), hole[some].to(device)
            e, open_ = model.codec.encode(xs, hs), model.codec.tokens(hs)
            method = RIVALS[cell.method](model.process, e, open_, **options)
            told = None if cell.method == "deqir" else Cond(label=torch.tensor(labels[some], device=device))
            # drawn on the device, and ahead: RePaint needs so much noise that it would take longer than the network
            tokens = method.run(denoiser, e, cond=told, generator=Ahead(generators(seeds[some], device)))
            filled = model.codec.decode(torch.where(open_ > 0, tokens, e), (x.shape[2], x.shape[3]))
            made.append((model.codec.join(filled, xs, hs) if self.paste else filled).clamp(-1.0, 1.0).cpu())
        return torch.cat(made), counted.asked

    def _resemblance(self, made: Tensor) -> Result:
        """The Fréchet distance of filled pictures to the training set, which tells what LPIPS does not: whether they
        look like such pictures, whatever the original was."""
        if self.training is None:
            return {}
        frechet = self._likeness.frechet(self._features(((made + 1.0) * 127.5).round().byte()))
        return {"frechet": frechet, "references": len(self._likeness.real), "features": self._network.title}

    @cached_property
    def _likeness(self) -> Likeness:
        """To the training set."""
        assert self.training is not None
        return Likeness(self._reference(self.training), self.pipeline.unet.device)

    # ---- Samples

    @torch.no_grad()
    def _samples(self, cell: Cell) -> Result:
        assert self.training is not None
        height, width = self.training.pictures.shape[1:3]
        labels = self.training.labels[[k * len(self.training) // cell.count for k in range(cell.count)]]
        told = [NULL_LABEL if label < 0 else self.pipeline.label(self.training.names[label]) for label in labels]
        tasks = [Task(blank(height, width), torch.ones(1, height, width), (k,), label) for k, label in enumerate(told)]
        began = time.perf_counter()
        made, asked = self._run(Plan(tasks, cell.settings))
        seconds = time.perf_counter() - began
        levels = torch.stack([torch.from_numpy(each.pictures[0].levels.copy()) for each in made]).permute(0, 3, 1, 2)
        shown = [each.pictures[0].image() for each in made[: 8 * _SHOWN]]
        self._show(cell, [shown[k : k + _SHOWN] for k in range(0, len(shown) - _SHOWN + 1, _SHOWN)] or [shown])
        return {
            "pictures": len(made), "references": len(self._likeness.real), "features": self._network.title,
            **self._likeness.all(self._features(levels)),
            "calls": asked / len(made), "seconds": seconds / len(made),
        }  # fmt: skip

    def _reference(self, store: Store) -> Tensor:
        """Features of training pictures, computed once."""
        chosen = spaced(len(store), self.references)
        file = self.folder / f"reference-{self.features}-{_mark(store)[:12]}-{len(chosen)}.safetensors"
        if not file.exists():
            levels = torch.from_numpy(store.pictures[chosen].copy()).permute(0, 3, 1, 2)
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary = file.with_suffix(f".part{os.getpid()}")
            save_file({"features": self._features(levels).half()}, temporary)
            os.replace(temporary, file)
        return load_file(file)["features"].float()

    def _features(self, levels: Tensor) -> Tensor:
        """Of pictures [N, 3, H, W], uint8; by parts."""
        parts = torch.split(levels, _FEATURE_BATCH)
        return torch.cat([self._network(part.to(self.pipeline.unet.device)).cpu() for part in parts])

    @cached_property
    def _network(self) -> LiteFeatures | InceptionFeatures:
        return FEATURES[self.features]().to(self.pipeline.unet.device)

    def _show(self, cell: Cell, rows: list[list[Any]]) -> None:
        folder = self.folder / "sheets"
        folder.mkdir(parents=True, exist_ok=True)
        sheet(rows).save(folder / f"{self.name(cell)}.png")


def spaced(length: int, count: int) -> list[int]:
    """As many of so many as are asked for, from all over."""
    count = min(length, count)
    return [k * length // count for k in range(count)]


def _weights(net: UNet | Autoencoder | UncertaintyHead) -> str:
    """A mark of a network's weights, by some of each."""
    some = torch.cat([each.detach().flatten()[:16].float().cpu() for each in net.parameters()])
    return hashlib.sha256(some.numpy().tobytes()).hexdigest()


def _mark(store: Store) -> str:
    """Of a set's pictures and labels, by 64 of them."""
    some = spaced(len(store), 64)
    about = f"{len(store)}/{store.names}/{store.labels[some].tolist()}".encode()
    return hashlib.sha256(store.pictures[some].tobytes() + about).hexdigest()


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


class Likeness:
    """How far sets of pictures are from a fixed one, by their features: [N, d] of the fixed one, [M, d] of others.
    Computed on ``device``, but for the eigenvalues of the Fréchet distance, which are the CPU's."""

    def __init__(self, real: Tensor, device: torch.device | str = "cpu") -> None:
        device = torch.device("cpu") if torch.device(device).type == "mps" else device  # which has no float64
        self.real, self.device, self._given = real.to(device), device, AsTheyAre(real.shape[1])
        self._frechet = frechet_distance(self._given, keep_real=True)
        self._frechet.to(device).update(self.real, real=True)

    def frechet(self, made: Tensor) -> float:
        self._frechet.to(self.device).update(made.to(self.device), real=False)
        value = float(self._frechet.cpu().compute())
        self._frechet.reset()
        return value

    def all(self, made: Tensor) -> Result:
        """Fréchet distance, with its error if there are more pictures than features; kernel distance; precision and
        recall."""
        real, made = self.real, made.to(self.device)
        kernel = kernel_distance(min(1000, len(real), len(made)), features=self._given).to(self.device)
        kernel.update(real, real=True)
        kernel.update(made, real=False)
        with torch.random.fork_rng():
            torch.manual_seed(0)  # of the subsets
            mean, spread = kernel.compute()
        most = min(len(real), len(made))
        precision, recall = precision_and_recall(real[spaced(len(real), most)], made[spaced(len(made), most)])
        enough = most > real.shape[1]
        return {
            "frechet": self.frechet(made), **({"frechet error": frechet_error(real, made)} if enough else {}),
            "kernel": [float(mean), float(spread)], "precision": precision, "recall": recall,
        }  # fmt: skip


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
