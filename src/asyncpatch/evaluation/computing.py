"""How a cell's figures are computed: by one process, or by all that torchrun started."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

from asyncpatch.data.masks import holes
from asyncpatch.data.store import Store
from asyncpatch.drawing import picture, sheet
from asyncpatch.evaluation.cells import FREE, OURS, RIVALS, SAMPLES, SUPERVISED, Cell, Result, spaced
from asyncpatch.evaluation.likeness import Likeness
from asyncpatch.evaluation.tables import flat, markdown
from asyncpatch.guidance import Guided, drop_label
from asyncpatch.images import Picture, blank
from asyncpatch.metrics import (
    FEATURES,
    LPIPS,
    InceptionFeatures,
    LiteFeatures,
    psnr_in_hole,
    seam_ratio,
    ssim_in_hole,
)
from asyncpatch.models.autoencoder import Autoencoder
from asyncpatch.models.uncertainty import UncertaintyHead
from asyncpatch.models.unet import UNet
from asyncpatch.pipelines import AsyncPatchPipeline, Made
from asyncpatch.plans import Plan, Task, doubts
from asyncpatch.processes import Team
from asyncpatch.protocols import NULL_LABEL, Cond, Denoised, Denoiser, concat, rows
from asyncpatch.sampling import Ahead, generators
from asyncpatch.settings import SYNCHRONOUS

T = TypeVar("T")

_FEATURE_BATCH = 256
_AT_ONCE = 1024
"""Pictures that are made before they are looked at, about: memory does not grow with their number."""
_SHOWN = 12
"""Pictures in a row of a sheet."""


class Part(NamedTuple):
    """What came of some of a cell's pictures, in their order."""

    figures: dict[str, Tensor]
    """Of each picture, [n] or [n, d]."""
    shown: list[list[Image.Image]]
    """Of each of the first ones: what a sheet shows of it."""
    asked: int
    """Questions to the network."""
    seconds: float

    @classmethod
    def joined(cls, parts: Sequence[Part]) -> Part:
        names = parts[0].figures
        return cls(
            {name: torch.cat([part.figures[name] for part in parts]) for name in names},
            [each for part in parts for each in part.shown],
            sum(part.asked for part in parts),
            sum(part.seconds for part in parts),
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
    team: Team = Team()
    """Which shares the pictures of each cell. All of its processes ask for the same cells, in the same order."""

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

    def kept(self, cell: Cell) -> Result | None:
        """What its file says, if there is one."""
        return json.loads(self.file(cell).read_text()) if self.file(cell).exists() else None

    def result(self, cell: Cell) -> Result:
        """From its file, or computed now."""
        found = self.team.told(self.kept(cell))
        if found is not None:
            return found
        self.check(cell)
        if self.training is not None:
            self._refer(self.training)
        store = self.training if cell.what == SAMPLES else self.sets[cell.set]
        made = {"set": cell.set, "what": cell.what, "method": cell.method, "settings": asdict(cell.settings),
                "ran on": self.pipeline.where(), "model": self._model[:16],
                "data": "" if store is None else _mark(store)[:16]}  # fmt: skip
        made |= self._samples(cell) if cell.what == SAMPLES else self._filled(cell)
        if self.team.main:
            self.file(cell).parent.mkdir(parents=True, exist_ok=True)
            temporary = self.file(cell).with_suffix(_part())
            lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in made.items())
            temporary.write_text("{\n" + ",\n".join(lines) + "\n}\n")
            os.replace(temporary, self.file(cell))
        return self.team.told(made)

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
        rows = [flat(each) for each in results]
        with open(self.folder / "table.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(dict.fromkeys(name for each in rows for name in each)))
            writer.writeheader()
            writer.writerows(rows)
        return text

    def _all(self, cell: Cell, chosen: list[int], some: Callable[[Cell, list[int]], Part]) -> Part | None:
        """What comes of all pictures of a cell, of which each process takes a part; None but in the main one."""
        batch = min(cell.settings.batch, max(1, len(self.team.part(len(chosen)))))  # compiled, a batch is filled up
        cell = replace(cell, settings=replace(cell.settings, batch=batch))
        parts = self._gathered(chosen, max(1, _AT_ONCE // batch) * batch, lambda part: some(cell, part))
        return None if parts is None else Part.joined(parts)

    def _gathered(self, chosen: list[int], size: int, some: Callable[[list[int]], T]) -> list[T] | None:
        """What comes of the pictures of those numbers, ``size`` at a time, in their order; None but in the main
        process."""
        mine = self.team.part(len(chosen))
        made = [some(chosen[first : min(first + size, mine.stop)]) for first in mine[::size]]
        several = self.team.gathered(made)
        return None if several is None else [part for each in several for part in each]

    # ---- Holes

    def _filled(self, cell: Cell) -> Result:
        found = self._all(cell, spaced(len(self.sets[cell.set]), cell.count), self._fill)
        if found is None:
            return {}
        figures, count = found.figures, len(found.figures["psnr"])
        row: Result = {"pictures": count, **({"pasted": True} if self.paste else {})}
        if self.lpips is not None:
            distances = figures["lpips"]
            row |= {"lpips": _mean(distances), "each": {"lpips": [round(float(value), 5) for value in distances]}}
        row |= {name: _mean(figures[name]) for name in ("psnr", "ssim")}
        row |= {name: float(figures[name].nanquantile(0.5)) for name in ("seam", "seam of the original")}
        if self.training is not None:  # tells what LPIPS does not: whether they look like pictures, whatever was there
            row["frechet"] = self._likeness.frechet(figures["features"])
            row |= {"references": len(self._likeness.real), "features": self._network.title}
        self._show(cell, [list(each) for each in zip(*found.shown[:_SHOWN], strict=True)])
        return {**row, "calls": found.asked / count, "seconds": found.seconds / count}

    @torch.no_grad()
    def _fill(self, cell: Cell, chosen: list[int]) -> Part:
        store, device = self.sets[cell.set], self.pipeline.unet.device
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

        def measured(metric: Callable[..., Tensor], *what: Tensor) -> Tensor:
            """Of each picture; by parts, where the network is."""
            parts = zip(*(torch.split(each, _FEATURE_BATCH) for each in what), strict=True)
            return torch.cat([metric(*(each.to(device) for each in part)).cpu() for part in parts])

        figures = {
            **({} if self.lpips is None else {"lpips": measured(self.lpips, x, made)}),
            "psnr": measured(psnr_in_hole, made, x, hole),
            "ssim": measured(ssim_in_hole, made, x, hole),
            "seam": measured(seam_ratio, made, hole),
            "seam of the original": measured(seam_ratio, x, hole),
        }
        if self.training is not None:
            figures["features"] = self._features(((made + 1.0) * 127.5).round().byte())
        shown = [[picture(each) for each in some] for some in zip(x, x * (1 - hole), made, strict=True)][:_SHOWN]
        return Part(figures, shown, asked, seconds)

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
        counted, how, options = Counted(self.pipeline.denoiser(batch), batch), cell.settings, dict[str, Any]()
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
        levels = ((torch.cat(made) + 1.0) * 127.5).round()  # as in a file
        return levels / 127.5 - 1.0, counted.asked

    @cached_property
    def _likeness(self) -> Likeness:
        """To the training set."""
        assert self.training is not None
        return Likeness(load_file(self._reference(self.training))["features"].float(), self.pipeline.unet.device)

    # ---- Samples

    def _samples(self, cell: Cell) -> Result:
        found = self._all(cell, list(range(cell.count)), self._sample)
        if found is None:
            return {}
        shown = [image for (image,) in found.shown]
        self._show(cell, [shown[k : k + _SHOWN] for k in range(0, len(shown) - _SHOWN + 1, _SHOWN)][:8] or [shown])
        return {
            "pictures": cell.count, "references": len(self._likeness.real), "features": self._network.title,
            **self._likeness.all(found.figures["features"]),
            "calls": found.asked / cell.count, "seconds": found.seconds / cell.count,
        }  # fmt: skip

    @torch.no_grad()
    def _sample(self, cell: Cell, numbers: list[int]) -> Part:
        assert self.training is not None
        height, width = self.training.pictures.shape[1:3]
        labels = self.training.labels[[k * len(self.training) // cell.count for k in numbers]]
        told = [NULL_LABEL if label < 0 else self.pipeline.label(self.training.names[label]) for label in labels]
        hole = torch.ones(1, height, width)
        tasks = [Task(blank(height, width), hole, (k,), label) for k, label in zip(numbers, told, strict=True)]
        began = time.perf_counter()
        made, asked = self._run(Plan(tasks, cell.settings))
        seconds = time.perf_counter() - began
        levels = torch.stack([torch.from_numpy(each.pictures[0].levels.copy()) for each in made]).permute(0, 3, 1, 2)
        shown = [[each.pictures[0].image()] for each in made[: 8 * _SHOWN]]
        return Part({"features": self._features(levels)}, shown, asked, seconds)

    def _refer(self, store: Store) -> None:
        """Compute the features of training pictures, unless they are kept already."""
        file = self._reference(store)
        if self.team.told(file.exists()):
            return

        def seen(numbers: list[int]) -> Tensor:
            return self._features(torch.from_numpy(store.pictures[numbers].copy()).permute(0, 3, 1, 2))

        parts = self._gathered(spaced(len(store), self.references), _AT_ONCE, seen)
        if parts is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            temporary = file.with_suffix(_part())
            save_file({"features": torch.cat(parts).half()}, temporary)
            os.replace(temporary, file)

    def _reference(self, store: Store) -> Path:
        """Where features of training pictures are kept."""
        count = min(len(store), self.references)
        return self.folder / f"reference-{self.features}-{_mark(store)[:12]}-{count}.safetensors"

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


def _part() -> str:
    """The suffix of a file that is not whole yet: other machines may write into the same folder."""
    return f".part{secrets.token_hex(4)}"


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
    """A denoiser that counts about how many pictures it is asked, and is asked about no more than ``batch`` at a time:
    guidance asks about twice as many, and DeqIR about all its times at once."""

    def __init__(self, denoiser: Denoiser, batch: int) -> None:
        self.denoiser, self.batch, self.asked = denoiser, batch, 0

    def __call__(self, z: Tensor, t: Tensor, cond: Cond | None = None, /) -> Denoised:
        self.asked += len(z)
        parts = [slice(first, first + self.batch) for first in range(0, len(z), self.batch)]
        t = t.expand(len(z), *t.shape[1:])
        out = [self.denoiser(z[part], t[part], None if cond is None else rows(cond, part)) for part in parts]
        return reduce(concat, out)


def _mean(values: Tensor) -> list[float]:
    """Mean and its standard error, over the finite values."""
    values = values[values.isfinite()].double()
    return [float(values.mean()), float(values.std() / len(values) ** 0.5)]
