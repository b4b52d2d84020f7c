"""The tool around a model: generate, inpaint, outpaint and grow textures, at any size.

All four are one thing, a plan (`plans.Plan`) of pictures with holes. They are cut to boxes, filled by
`completion.Completion`, and put back into a `Picture` that keeps every other pixel as it was.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from diffusers import DiffusionPipeline
from PIL import Image
from torch import Tensor

from asyncpatch import plans, shipped
from asyncpatch.adaptive import LookAhead, schedule_from
from asyncpatch.completion import Completion, Moment
from asyncpatch.guidance import Guided, drop_label, renoise
from asyncpatch.images import ImageError, Picture, check_target, numbered, write
from asyncpatch.models.autoencoder import PART, Autoencoder
from asyncpatch.models.denoiser import Compiled
from asyncpatch.models.folder import HEAD, INDEX, Model, codec_of
from asyncpatch.models.placing import PRECISIONS, choose_device, choose_precision, place
from asyncpatch.models.uncertainty import UncertaintyHead
from asyncpatch.models.unet import UNet
from asyncpatch.plans import Plan, doubts, ordered
from asyncpatch.process import PROCESSES
from asyncpatch.protocols import Cond, Denoiser, Noise, Schedule
from asyncpatch.regions import Box, boxes, scales
from asyncpatch.settings import (
    LOOK_AHEAD,
    Settings,
)
from asyncpatch.steps import ddim, heun, multistep

_PIXELS_AT_ONCE = 1 << 24


class Speed(NamedTuple):
    """Seconds that a window takes: of the network; and of the autoencoder, where there is one."""

    asking: float
    encoding: float = 0.0
    decoding: float = 0.0

    def per_window(self, settings: Settings, *, watched: bool = False) -> float:
        """All of it, for each time that the network is asked about a window. What it fills is encoded and decoded once;
        where every step is watched, decoded as often."""
        coding = (self.encoding + self.decoding) / settings.steps + (self.decoding if watched else 0.0)
        return self.asking + coding / settings.questions


class Row(NamedTuple):
    """A box of a task's candidate, to be filled."""

    task: int
    candidate: int
    box: Box
    seed: int


class Glimpse(NamedTuple):
    """What an onlooker sees of the work: boxes that are filled together, as they stand."""

    rows: list[Row]
    moment: Moment
    windows: int
    """That the network is asked about for this visit; over the whole run they come to ``work``, or to less of it."""


Watch = Callable[[Glimpse], object]
"""Sees the work go on, and breaks it off by raising something."""


@dataclass(frozen=True)
class Made:
    """Pictures, the seeds that made them, and what there is to say about it."""

    pictures: list[Picture]
    """With bit depth, transparency, colour profile and EXIF of the input, which ``save`` keeps."""
    seeds: list[int]
    notes: tuple[str, ...] = ()

    @property
    def images(self) -> list[Image.Image]:
        """As Pillow pictures, whose own ``save`` keeps neither EXIF and resolution nor 16 bits of colour."""
        return [picture.image() for picture in self.pictures]

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> list[Path]:
        """Writes them with all that they carry, as `images.write` does; several as NAME-1.png, NAME-2.png, ...

        Returns the files. One that exists is overwritten only with ``force``.
        """
        files = [Path(path)] if len(self.pictures) == 1 else numbered(Path(path), len(self.pictures))
        for file in files:
            check_target(file, force=force)
        for picture, file in zip(self.pictures, files, strict=True):
            write(picture, file, force=force)
        return files


class AsyncPatchPipeline(DiffusionPipeline):
    """A model and what can be done with it. ``from_pretrained(folder)`` reads one, ``default()`` the one that ships.

    ``generate``, ``inpaint``, ``outpaint`` and ``texture`` take, beside what each names, a ``seed`` (further pictures
    get the next numbers) and every field of `asyncpatch.settings.Settings`: steps, solver, eta, class_guidance,
    input_guidance, refine, schedule, pace, batch. Pictures are paths, Pillow pictures, numpy arrays or tensors, as
    `images.picture_from` takes them, also where the schedule is one. ``plan_...`` does everything but the work,
    ``work`` says how much it is, and ``run`` does it.
    """

    config: Any
    name_or_path: str
    unet: UNet
    uncertainty: UncertaintyHead | None
    vae: Autoencoder | None
    _optional_components: ClassVar[list[str]] = [HEAD, PART]

    def __init__(
        self,
        unet: UNet,
        process: str = "rectified_flow",
        prediction: str = "v",
        resolution: int = 64,
        labels: list[str] | None = None,
        uncertainty: UncertaintyHead | None = None,
        vae: Autoencoder | None = None,
        latents: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._compiled: dict[tuple[int, bool], Compiled] | None = None
        if process not in PROCESSES:
            raise ValueError(f"process must be one of {', '.join(PROCESSES)}, got {process!r}")
        if (vae is None) != (latents is None):
            raise ValueError("a model of latents has an autoencoder (vae) and says what its latents are like (latents)")
        self.register_modules(unet=unet, uncertainty=uncertainty, vae=vae)
        self.register_to_config(
            process=process, prediction=prediction, resolution=resolution, labels=list(labels or ()), latents=latents
        )

    @classmethod
    def from_pretrained(cls, folder: Path | str, **options: Any) -> AsyncPatchPipeline:
        """Read a model folder, one that ships by its name, or one from the Hugging Face hub. Weights are read from
        safetensors alone."""
        if not options.setdefault("use_safetensors", True):
            raise ValueError("weights are read from safetensors alone: use_safetensors=False is refused")
        if not Path(folder).exists():
            folder = shipped.shipped(str(folder)) if str(folder) in shipped.SHIPPED else folder  # else of a hub
        if Path(folder).exists() and not (Path(folder) / INDEX).is_file():
            raise FileNotFoundError(f"{folder} is no model folder: it has no {INDEX}")
        made: AsyncPatchPipeline = super().from_pretrained(str(folder), **options)
        return made

    @classmethod
    def default(cls, device: str = "auto", precision: str = "auto") -> AsyncPatchPipeline:
        """The usual model that ships, where and how this machine runs it best."""
        return cls.from_pretrained(shipped.shipped_model()).prepare(device, precision)

    def prepare(
        self, device: str = "auto", precision: str = "auto", *, compiled: bool = False
    ) -> AsyncPatchPipeline:  # fmt: skip
        """Move the network to a device, in a precision; "auto" is what the machine is best at. ``compiled``: for much
        work on a GPU; the first question then takes a minute or two."""
        where = choose_device(device)
        dtype = choose_precision(where, precision)
        for part in (self.unet, self.uncertainty, self.vae):
            if part is not None:
                place(part, where, dtype)
        self._compiled = {} if compiled else None
        return self

    def denoiser(self, batch: int, *, doubts: bool = False) -> Denoiser:
        """The network, to be asked about ``batch`` windows at a time; with ``doubts`` it says how sure it is."""
        plain = self.model.doubting if doubts else self.model.denoiser
        if self._compiled is None:
            return plain
        return self._compiled.setdefault((batch, doubts), Compiled(plain, batch))

    def where(self) -> str:
        """On what the network runs, in words."""
        weight = next(self.unet.parameters())
        name = torch.cuda.get_device_name(weight.device) if weight.device.type == "cuda" else weight.device.type
        return f"{name} ({next(said for said, dtype in PRECISIONS.items() if dtype == weight.dtype)})"

    @torch.no_grad()
    def speed(self, batch: int = 4) -> Speed:
        """Measured: the better of two tries."""
        model, device = self.model, next(self.unet.parameters()).device
        side, size, codec = model.tokens, (model.resolution, model.resolution), model.codec
        z = torch.zeros(batch, self.unet.config["in_channels"], side, side, device=device)
        doings: list[Callable[[], Tensor]] = [lambda: self.unet(z, z[:, :1])]
        if self.vae is not None:
            x = torch.zeros(batch, 3, *size, device=device)
            doings += [lambda: codec.encode(x, x[:, :1]), lambda: codec.decode(z[:, : codec.channels], size)]

        def seconds(doing: Callable[[], Tensor]) -> float:
            start = time.perf_counter()
            doing().sum().item()
            return (time.perf_counter() - start) / batch

        return Speed(*(min(seconds(doing) for _ in range(2)) for doing in doings))  # the first one prepares

    @property
    def model(self) -> Model:
        how = self.config
        process, labels = PROCESSES[how.process](), tuple(how.labels)
        codec = codec_of(self.vae, how.latents)
        return Model(self.unet, process, how.prediction, how.resolution, labels, self.uncertainty, codec)

    def label(self, name: str | int | None) -> int:
        """The number of a label, by its name or number; None is no label."""
        return plans.number_of(name, self.model.labels)

    # ---- What one can do

    def __call__(self, *args: Any, **options: Any) -> Made:
        """`generate`."""
        return self.generate(*args, **options)

    def generate(
        self, label: str | int | None = None, n: int = 1, *, watch: Watch | None = None, **options: Any
    ) -> Made:
        """``n`` new pictures, of a label or of whatever the model likes. Options: size (height, width)."""
        return self._only(self.plan_generate(label, n, **options), watch)

    def inpaint(self, picture: object, hole: object, n: int = 1, *, watch: Watch | None = None, **options: Any) -> Made:
        """The picture with its hole filled, ``n`` times; every pixel outside the hole stays as it is.

        ``hole`` is a mask: white (1) where the picture is to be repainted, black where it stays, grey for "this much".
        Options: label; invert, if the mask is meant the other way round; grow, to widen it by so many pixels (or, if
        negative, shrink it); feather, to fade it inwards.
        """
        return self._only(self.plan_inpaint(picture, hole, n, **options), watch)

    def outpaint(self, picture: object, n: int = 1, *, watch: Watch | None = None, **options: Any) -> Made:
        """The picture, larger by ``left``, ``top``, ``right`` and ``bottom`` pixels. Options: label."""
        return self._only(self.plan_outpaint(picture, n, **options), watch)

    def texture(
        self, swatch: object, size: tuple[int, int] | None = None, n: int = 1, *, watch: Watch | None = None,
        **options: Any,
    ) -> Made:  # fmt: skip
        """A texture of ``size`` (height, width), grown ring by ring around the swatch, which stays in its middle.

        Options: tileable, so that opposite edges fit together (without a larger size, the swatch's rim is repainted to
        that end); hole, a mask as for `inpaint`, to complete a texture of which a part is missing; label.
        """
        return self._only(self.plan_texture(swatch, size, n, **options), watch)

    def _only(self, plan: Plan, watch: Watch | None) -> Made:
        (made,) = self.run(plan, watch)
        return made

    # ---- Plans

    def plan_generate(self, *args: Any, **options: Any) -> Plan:
        """What `generate` would do."""
        return plans.generation(self.model, *args, **options)

    def plan_inpaint(self, *args: Any, **options: Any) -> Plan:
        """What `inpaint` would do."""
        return plans.inpainting(self.model, *args, **options)

    def plan_outpaint(self, *args: Any, **options: Any) -> Plan:
        """What `outpaint` would do."""
        return plans.outpainting(self.model, *args, **options)

    def plan_texture(self, *args: Any, **options: Any) -> Plan:
        """What `texture` would do."""
        return plans.texture(self.model, *args, **options)

    # ---- The work

    def work(self, plan: Plan) -> int:
        """How many windows the network will be asked about, at most: its time is proportional to that."""
        filling, total = self._completion(plan), 0
        for rows in self._batches(plan):
            hole = torch.stack([row.box.of(plan.tasks[row.task].hole) for row in rows])
            total += plan.settings.questions * filling.work(hole, _orders(plan, rows))
        return total

    def schedule(self, plan: Plan) -> tuple[Schedule, tuple[int, int]]:
        """The schedule by which the plan begins, and the height and width of its time fields: those of the first scale
        of the first box."""
        filling, rows = self._completion(plan), next(self._batches(plan))[:1]
        stage = next(filling.stages(rows[0].box.of(plan.tasks[rows[0].task].hole)[None]))
        height, width = filling.codec.tokens(stage.start).shape[2:]
        return filling.schedule(stage, _orders(plan, rows)), (height, width)

    def run(self, plan: Plan, watch: Watch | None = None) -> list[Made]:
        """What the plan makes of each task. Boxes of the same shape are filled together, whatever picture they are of.

        ``watch`` sees every visit of the sampling loop.
        """
        tasks, device = plan.tasks, next(self.unet.parameters()).device
        if self.unet.config["given"] and any(bool((task.hole < 1).any()) for task in tasks):
            raise ValueError(
                "this model is shown what is known beside its canvas (asyncpatch train --holes), for comparisons: it "
                "can generate, and 'asyncpatch evaluate --methods supervised' fills holes with it"
            )
        made = [[task.picture] * len(task.seeds) for task in tasks]
        for rows in self._batches(plan):
            x = torch.stack([_cut(tasks[row.task].picture, row.box) for row in rows]).to(device)
            hole = torch.stack([row.box.of(tasks[row.task].hole) for row in rows]).to(device)
            label = torch.tensor([tasks[row.task].label for row in rows], device=device)
            order = _orders(plan, rows)
            filling = self._completion(plan, None if watch is None else _teller(watch, rows, plan.settings.questions))
            filled = filling(x, hole, [row.seed for row in rows], Cond(label=label), order).cpu()
            changed = hole.cpu() if plan.paste else torch.ones_like(hole, device="cpu")
            for row, each, gap in zip(rows, filled, changed, strict=True):
                before = made[row.task][row.candidate]
                made[row.task][row.candidate] = before.completed(each, gap, at=(row.box.top, row.box.left))
        return [Made(each, list(task.seeds), plan.notes) for each, task in zip(made, tasks, strict=True)]

    def _batches(self, plan: Plan) -> Iterator[list[Row]]:
        """The boxes of all tasks, those of the same kind together, as many as memory is likely to hold."""
        window, alike = self.model.resolution, dict[tuple[object, ...], list[Row]]()
        for number, task in enumerate(plan.tasks):
            hole = task.hole[0]
            whole = Box(0, 0, *hole.shape)
            for k, box in enumerate([whole] if plan.rings else boxes(hole, window)):
                part = box.of(hole)
                # what a picture becomes must not depend on what else is in its batch: not even its stages
                stages = number if plan.rings else scales(part[None, None], window)
                kind = (*part.shape, stages, float(part.max()))
                for candidate, seed in enumerate(task.seeds):
                    alike.setdefault(kind, []).append(Row(number, candidate, box, _mixed(seed, k)))
        for (height, width, *_), rows in alike.items():
            most = max(1, min(plan.settings.batch, _PIXELS_AT_ONCE // (int(height) * int(width))))  # type: ignore[call-overload]
            for first in range(0, len(rows), most):
                yield rows[first : first + most]

    def _completion(self, plan: Plan, callback: Callable[[Moment], object] | None = None) -> Completion:
        how, model = plan.settings, self.model

        def guided(denoiser: Denoiser, start: Tensor, noise: Noise) -> Denoiser:
            if how.class_guidance:
                denoiser = Guided(denoiser, how.class_guidance, drop_label)
            if how.input_guidance:  # also where nothing is known: the noise that others get must not depend on it
                known = (start == 0).float()
                denoiser = Guided(denoiser, how.input_guidance, renoise(model.process, known, noise()))
            if how.schedule == LOOK_AHEAD:
                denoiser = LookAhead(denoiser=denoiser, process=model.process)
            return denoiser

        leading = schedule_from(how.schedule)
        step = {"multistep": multistep, "heun": heun}.get(how.solver, partial(ddim, eta=how.eta))
        return Completion(
            denoiser=self.denoiser(how.batch, doubts=plan.doubts or doubts(how.schedule)), process=model.process,
            step=step(model.process), make=None if leading is None else partial(leading, model.process),
            codec=model.codec, window=model.resolution, steps=how.steps, refine=how.refine, batch=how.batch,
            pace=how.pace, rings=plan.rings, wrap=plan.wrap, paste=plan.paste, prepare=guided, callback=callback,
        )  # fmt: skip


def _mixed(seed: int, number: int) -> int:
    """The seed of a picture's box: that of the picture, or another for each further box, or all would look alike."""
    if not number:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=7).digest(), "big")


def _cut(picture: Picture, box: Box) -> Tensor:
    return picture.window(box.top, box.left, box.bottom - box.top, box.right - box.left)


def _teller(watch: Watch, rows: list[Row], questions: int) -> Callable[[Moment], object]:
    return lambda moment: watch(Glimpse(rows, moment, moment.windows * questions))


def _orders(plan: Plan, rows: list[Row]) -> Tensor | None:
    """Which pixels of the boxes come first, [B, 1, h, w], as the schedule's name or picture says."""
    name, painted = plan.settings.schedule, plan.order
    if painted is None:
        known = ordered(name)
        if known is None:
            return None
        draw, patch = known
        box = rows[0].box
        height, width = box.bottom - box.top, box.right - box.left
        longer = max(height, width)
        return draw(height, width, min(patch, longer) or max(1, longer // 8)).float()[None, None]
    for row in rows:
        size = plan.tasks[row.task].picture.size
        if painted.size != size:
            raise ImageError(
                f"{name}: the order is {painted.width} x {painted.height} pixels, the picture {size[1]} x {size[0]} "
                "(width x height); they must be the same"
            )
    return torch.stack([_cut(painted, row.box).mean(0, keepdim=True) for row in rows])
