"""The tool around a model: generate, inpaint, outpaint and grow textures, at any size.

All four are one thing: pictures with holes (a `Task` each), cut to boxes, filled by `completion.Completion`, and put
back into a `Picture` that keeps every other pixel as it was. What differs is the hole: everything, a part, a margin,
or all but a swatch.
"""

from __future__ import annotations

import difflib
import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from diffusers import DiffusionPipeline
from PIL import Image
from torch import Tensor

from asyncpatch import checks, fields, images
from asyncpatch.adaptive import SCHEDULES, LookAhead, schedule_from
from asyncpatch.completion import Box, Completion, Moment, boxes, halvings
from asyncpatch.guidance import Guided, drop_label, renoise
from asyncpatch.images import ImageError, Picture, picture_from, read_hole
from asyncpatch.models.autoencoder import PART, Autoencoder
from asyncpatch.models.denoiser import Compiled
from asyncpatch.models.folder import HEAD, INDEX, Model, codec_of
from asyncpatch.models.placing import PRECISIONS, choose_device, choose_precision, place
from asyncpatch.models.uncertainty import UncertaintyHead
from asyncpatch.models.unet import UNet
from asyncpatch.process import PROCESSES
from asyncpatch.protocols import NULL_LABEL, Cond, Denoiser, Noise, Schedule
from asyncpatch.settings import (
    INPUT_GUIDANCE,
    LABEL_GUIDANCE,
    LOOK_AHEAD,
    PAINTED,
    SYNCHRONOUS,
    Settings,
    solver_for_new,
)
from asyncpatch.steps import ddim, heun, multistep

SHIPPED = ("asyncpatch-64",)
"""The models that come with this package, the usual one first."""
ORDERS = {"raster": fields.raster_order, "spiral": fields.spiral_order}
_PIXELS_AT_ONCE = 1 << 24


class Task(NamedTuple):
    """A picture to complete, once for each seed."""

    picture: Picture
    hole: Tensor
    """[1, H, W]; 1: generate, 0: keep, in between: the time to start from."""
    seeds: tuple[int, ...]
    label: int = NULL_LABEL


@dataclass(frozen=True)
class Plan:
    """What is to be done, before any of it is."""

    tasks: Sequence[Task]
    settings: Settings = field(default_factory=Settings)
    rings: bool = False
    """Grow from what is known, ring by ring."""
    wrap: bool = False
    """Opposite edges are joined."""
    notes: tuple[str, ...] = ()
    """What there is to say to the user."""
    order: Picture | None = None
    """Where the schedule is a picture: dark pixels come first."""
    paste: bool = True
    """Outside of holes the pixels that were given; without it, in the boxes around them, those that their tokens decode
    to. (Pixels decode to themselves.)"""
    doubts: bool = False
    """Ask how sure the network is, for an onlooker, also where the schedule does not."""

    def __post_init__(self) -> None:
        if self.settings.class_guidance and any(task.label == NULL_LABEL for task in self.tasks):
            raise ValueError("class guidance pushes towards a label: give one, or leave it at 0")
        name = self.settings.schedule
        if self.order is None and not is_schedule(name):
            if not Path(name).is_file():
                known = ", ".join((SYNCHRONOUS, *ORDERS, *SCHEDULES, LOOK_AHEAD))
                raise ImageError(
                    f"schedule must be {known}, raster:16 (patches of so many pixels) or a picture file; there is no "
                    f"file {name!r}"
                )
            object.__setattr__(self, "order", picture_from(name))


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
    """With bit depth, transparency, colour profile and EXIF of the input; ``asyncpatch.images.write`` keeps them."""
    seeds: list[int]
    notes: tuple[str, ...] = ()

    @property
    def images(self) -> list[Image.Image]:
        """As Pillow pictures."""
        return [picture.image() for picture in self.pictures]


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
            folder = shipped(str(folder)) if str(folder) in SHIPPED else folder  # else of a hub
        if Path(folder).exists() and not (Path(folder) / INDEX).is_file():
            raise FileNotFoundError(f"{folder} is no model folder: it has no {INDEX}")
        made: AsyncPatchPipeline = super().from_pretrained(str(folder), **options)
        return made

    @classmethod
    def default(cls, device: str = "auto", precision: str = "auto") -> AsyncPatchPipeline:
        """The usual model that ships, where and how this machine runs it best."""
        return cls.from_pretrained(shipped_model()).prepare(device, precision)

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
        labels = self.model.labels
        if name is None:
            return NULL_LABEL
        if isinstance(name, int):
            if NULL_LABEL <= name < len(labels):
                return name
            raise ValueError(f"label must be below {len(labels)} (-1 for none), got {name}")
        if not labels:
            raise ValueError(f"label {name!r}: this model knows no labels")
        lower = [each.lower() for each in labels]
        if name.lower() in lower:
            return lower.index(name.lower())
        if name.isdecimal():
            return self.label(int(name))
        near = [each for each in lower if name.lower() in each]
        near += [each for each in difflib.get_close_matches(name.lower(), lower, n=3) if each not in near]
        said = " or ".join(repr(labels[lower.index(each)]) for each in near[:3])
        raise ValueError(
            f"there is no label {name!r}; {f'did you mean {said}?' if said else 'asyncpatch info lists them'}"
        )

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

    def plan_generate(
        self, label: str | int | None = None, n: int = 1, *, size: tuple[int, int] | None = None,
        seed: int | None = None, **settings: Any,
    ) -> Plan:  # fmt: skip
        height, width = size or (self.model.resolution, self.model.resolution)
        for name, side in (("height", height), ("width", width)):
            checks.at_least(name, side, 8)
        task = Task(images.blank(height, width), torch.ones(1, height, width), _seeds(seed, n), self.label(label))
        settings, order = _painted(settings)
        usual = solver_for_new(settings.get("eta", Settings.eta), settings.get("schedule", Settings.schedule))
        settings = {"solver": usual, **settings}
        if task.label != NULL_LABEL:
            settings = {"class_guidance": LABEL_GUIDANCE, **settings}
        return Plan([task], Settings.of(settings), order=order)

    def plan_inpaint(
        self, picture: object, hole: object, n: int = 1, *, label: str | int | None = None, invert: bool = False,
        grow: int = 0, feather: int = 0, seed: int | None = None, **settings: Any,
    ) -> Plan:  # fmt: skip
        checks.at_least("feather", feather, 0)
        whole = picture_from(picture)
        read = read_hole(hole, whole.size, invert=invert)
        shaped = images.feather(images.grow(read.hole, grow), feather)
        if not bool(shaped.any()):
            raise ImageError(f"nothing to repaint: the mask shrank away by {-grow} pixels")
        task = Task(whole, shaped, _seeds(seed, n), self.label(label))
        settings, order = _painted(settings)
        return Plan([task], _guided(settings), notes=(*whole.notes, *read.notes), order=order)

    def plan_outpaint(
        self, picture: object, n: int = 1, *, left: int = 0, top: int = 0, right: int = 0, bottom: int = 0,
        label: str | int | None = None, seed: int | None = None, **settings: Any,
    ) -> Plan:  # fmt: skip
        whole = picture_from(picture)
        larger, hole = whole.extended(left, top, right, bottom)
        task = Task(larger, hole, _seeds(seed, n), self.label(label))
        settings, order = _painted(settings)
        return Plan([task], _guided(settings), notes=whole.notes, order=order)

    def plan_texture(
        self, swatch: object, size: tuple[int, int] | None = None, n: int = 1, *, tileable: bool = False,
        hole: object | None = None, invert: bool = False, label: str | int | None = None, seed: int | None = None,
        **settings: Any,
    ) -> Plan:  # fmt: skip
        given = picture_from(swatch)
        missing, notes = torch.zeros(1, *given.size), given.notes
        if hole is not None:
            missing, more = read_hole(hole, given.size, invert=invert)
            notes += more
        height, width = size or given.size
        down, across = height - given.height, width - given.width
        if down < 0 or across < 0:
            raise ImageError(
                f"the texture must be at least as large as the swatch, {given.width}x{given.height}; got "
                f"{width}x{height}. Cut the swatch first"
            )
        whole, new = given, missing
        if down or across:
            top, left = down // 2, across // 2
            whole, new = given.extended(left, top, across - left, down - top)
            new[:, top : top + given.height, left : left + given.width] = missing
        if tileable:
            across_token = self.model.codec.factor
            if height % across_token or width % across_token:
                raise ImageError(
                    f"to be made tileable with this model, sides must divide by {across_token}; got {width}x{height}"
                )
            new = _open_rim(new, down, across, self.model.resolution // 8)
        if not bool(new.any()):
            raise ImageError("nothing to grow: give a larger size, a mask of what is missing, or make it tileable")
        if not bool((new < 1).any()):
            raise ImageError("nothing of the swatch is left to grow from: give a larger one")
        task = Task(whole, new, _seeds(seed, n), self.label(label))
        settings, order = _painted(settings)
        return Plan([task], _guided(settings), rings=True, wrap=tileable, notes=notes, order=order)

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
                stages = number if plan.rings else halvings(part[None, None], max(part.shape), window)
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


def shipped_models() -> dict[str, Path]:
    """The folders of the models that come with this package, by name, the usual one first: in a checkout, or
    installed."""
    here = Path(__file__).resolve().parent
    places = here / "weights", here.parents[1] / "weights"
    found = {name: [place / name for place in places if (place / name / INDEX).is_file()] for name in SHIPPED}
    return {name: folders[0] for name, folders in found.items() if folders}


def shipped(name: str) -> Path:
    """The folder of the one of that name."""
    found = shipped_models()
    if name in found:
        return found[name]
    here = f"here there is {', '.join(found)}" if found else "here there is none"
    if name in SHIPPED:
        raise FileNotFoundError(
            f"{name} is not part of this copy of asyncpatch: a checkout of its repository has it, in weights/{name}; "
            + here
        )
    raise FileNotFoundError(f"there is no model folder {name}, and no model of that name ships; {here}")


def shipped_model() -> Path:
    """The folder of the usual one of them."""
    for folder in shipped_models().values():
        return folder
    raise FileNotFoundError(
        "this copy of asyncpatch carries no trained model. Name the folder of one (--model, or from_pretrained): "
        "'asyncpatch train' leaves one in the run's folder, under model"
    )


def doubts(schedule: str) -> bool:
    """Whether a schedule of that name asks how sure the network is."""
    return schedule == LOOK_AHEAD or schedule_from(schedule) is not None


def is_schedule(name: str) -> bool:
    """Whether a schedule goes by that name, so that no file is meant."""
    return name == SYNCHRONOUS or doubts(name) or _ordered(name) is not None


def _painted(settings: dict[str, Any]) -> tuple[dict[str, Any], Picture | None]:
    """A schedule that is given as a picture goes beside the settings."""
    given = settings.get("schedule", SYNCHRONOUS)
    if isinstance(given, str):
        return settings, None
    return {**settings, "schedule": PAINTED}, picture_from(given)


def _guided(settings: dict[str, Any]) -> Settings:
    """By default pushed towards what is known."""
    return Settings.of({"input_guidance": INPUT_GUIDANCE, **settings})


def _seeds(seed: int | None, n: int) -> tuple[int, ...]:
    checks.at_least("n", n)
    first = secrets.randbelow(1 << 31) if seed is None else seed
    checks.at_least("seed", first, 0)
    if first + n > 1 << 63:
        raise ValueError(f"seed must be below 2^63, got {first}")
    return tuple(range(first, first + n))


def _mixed(seed: int, number: int) -> int:
    """The seed of a picture's box: that of the picture, or another for each further box, or all would look alike."""
    if not number:
        return seed
    return int.from_bytes(hashlib.blake2b(f"{seed}/{number}".encode(), digest_size=7).digest(), "big")


def _cut(picture: Picture, box: Box) -> Tensor:
    return picture.window(box.top, box.left, box.bottom - box.top, box.right - box.left)


def _teller(watch: Watch, rows: list[Row], questions: int) -> Callable[[Moment], object]:
    return lambda moment: watch(Glimpse(rows, moment, moment.windows * questions))


def _ordered(name: str) -> tuple[Callable[[int, int, int], Tensor], int] | None:
    """What draws the order of such a name, and the side of its patches (0: an eighth of the picture)."""
    if name in ORDERS:
        return ORDERS[name], 0
    kind, _, side = name.partition(":")
    if kind not in ORDERS or not side.isdecimal() or not int(side):
        return None
    return ORDERS[kind], int(side)


def _orders(plan: Plan, rows: list[Row]) -> Tensor | None:
    """Which pixels of the boxes come first, [B, 1, h, w], as the schedule's name or picture says."""
    name, painted = plan.settings.schedule, plan.order
    if painted is None:
        known = _ordered(name)
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


def _open_rim(new: Tensor, down: int, across: int, rim: int) -> Tensor:
    """Where less than two rims of new pixels stand between opposite edges of a swatch, its own rim becomes new too."""
    new = new.clone()
    for side, margin in ((1, down), (2, across)):
        if margin < 2 * rim:
            length = new.shape[side]
            if length < 6 * rim:
                raise ImageError(f"to be made tileable a texture must be at least {6 * rim} pixels high and wide")
            new.narrow(side, 0, rim).fill_(1.0)
            new.narrow(side, length - rim, rim).fill_(1.0)
    return new
