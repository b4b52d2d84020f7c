"""What is to be done, before any of it is: pictures with holes, and how to fill them.

To generate, inpaint, outpaint and grow textures is one thing: pictures with holes, a `Task` each. What differs is the
hole: everything, a part, a margin, or all but a swatch.
"""

from __future__ import annotations

import difflib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, SupportsIndex

import torch
from torch import Tensor

from asyncpatch import checks, fields, images
from asyncpatch.adaptive import SCHEDULES, schedule_from
from asyncpatch.images import ImageError, Picture, picture_from, read_hole
from asyncpatch.models.folder import Model
from asyncpatch.protocols import NULL_LABEL
from asyncpatch.settings import (
    INPUT_GUIDANCE,
    LABEL_GUIDANCE,
    LOOK_AHEAD,
    PAINTED,
    SYNCHRONOUS,
    Settings,
    solver_for_new,
)

ORDERS = {"raster": fields.raster_order, "spiral": fields.spiral_order}


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


def generation(
    model: Model, label: str | int | None = None, n: int = 1, *, size: tuple[int, int] | None = None,
    seed: int | None = None, **settings: Any,
) -> Plan:  # fmt: skip
    """New pictures: everything is hole."""
    height, width = _sides(size, (model.resolution, model.resolution))
    for name, side in (("height", height), ("width", width)):
        checks.at_least(name, side, 8)
    nothing, everywhere = images.blank(height, width), torch.ones(1, height, width)
    task = Task(nothing, everywhere, _seeds(seed, n), number_of(label, model.labels))
    settings, order = _painted(settings)
    usual = solver_for_new(settings.get("eta", Settings.eta), settings.get("schedule", Settings.schedule))
    settings = {"solver": usual, **settings}
    if task.label != NULL_LABEL:
        settings = {"class_guidance": LABEL_GUIDANCE, **settings}
    return Plan([task], Settings.of(settings), order=order)


def inpainting(
    model: Model, picture: object, hole: object, n: int = 1, *, label: str | int | None = None, invert: bool = False,
    grow: int = 0, feather: int = 0, seed: int | None = None, **settings: Any,
) -> Plan:  # fmt: skip
    """A picture with a hole that a mask says."""
    checks.at_least("feather", feather, 0)
    whole = picture_from(picture)
    read = read_hole(hole, whole.size, invert=invert)
    shaped = images.feather(images.grow(read.hole, grow), feather)
    if not bool(shaped.any()):
        raise ImageError(f"nothing to repaint: the mask shrank away by {-grow} pixels")
    task = Task(whole, shaped, _seeds(seed, n), number_of(label, model.labels))
    settings, order = _painted(settings)
    return Plan([task], _guided(settings), notes=(*whole.notes, *read.notes), order=order)


def outpainting(
    model: Model, picture: object, n: int = 1, *, left: int = 0, top: int = 0, right: int = 0, bottom: int = 0,
    label: str | int | None = None, seed: int | None = None, **settings: Any,
) -> Plan:  # fmt: skip
    """A larger picture, whose margins are holes."""
    whole = picture_from(picture)
    larger, hole = whole.extended(left, top, right, bottom)
    task = Task(larger, hole, _seeds(seed, n), number_of(label, model.labels))
    settings, order = _painted(settings)
    return Plan([task], _guided(settings), notes=whole.notes, order=order)


def texture(
    model: Model, swatch: object, size: tuple[int, int] | None = None, n: int = 1, *, tileable: bool = False,
    hole: object | None = None, invert: bool = False, label: str | int | None = None, seed: int | None = None,
    **settings: Any,
) -> Plan:  # fmt: skip
    """All but a swatch, or what is missing in it, to be grown ring by ring."""
    given = picture_from(swatch)
    missing, notes = torch.zeros(1, *given.size), given.notes
    if hole is not None:
        missing, more = read_hole(hole, given.size, invert=invert)
        notes += more
    height, width = _sides(size, given.size)
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
        across_token = model.codec.factor
        if height % across_token or width % across_token:
            raise ImageError(
                f"to be made tileable with this model, sides must divide by {across_token}; got {width}x{height}"
            )
        new = _open_rim(new, down, across, model.resolution // 8)
    if not bool(new.any()):
        raise ImageError("nothing to grow: give a larger size, a mask of what is missing, or make it tileable")
    if not bool((new < 1).any()):
        raise ImageError("nothing of the swatch is left to grow from: give a larger one")
    task = Task(whole, new, _seeds(seed, n), number_of(label, model.labels))
    settings, order = _painted(settings)
    return Plan([task], _guided(settings), rings=True, wrap=tileable, notes=notes, order=order)


def number_of(name: str | int | None, labels: tuple[str, ...]) -> int:
    """The number of a label, by its name or number; None is no label."""
    if name is None:
        return NULL_LABEL
    if isinstance(name, SupportsIndex) and not isinstance(name, bool):  # numpy has integers of its own
        name = name.__index__()
        if NULL_LABEL <= name < len(labels):
            return name
        raise ValueError(f"label must be below {len(labels)} (-1 for none), got {name}")
    if not isinstance(name, str):
        raise ValueError(f"label must be a name or a number, got {name!r}")
    if not labels:
        raise ValueError(f"label {name!r}: this model knows no labels")
    lower = [each.lower() for each in labels]
    if name.lower() in lower:
        return lower.index(name.lower())
    if name.isdecimal():
        return number_of(int(name), labels)
    near = [each for each in lower if name.lower() in each]
    near += [each for each in difflib.get_close_matches(name.lower(), lower, n=3) if each not in near]
    said = " or ".join(repr(labels[lower.index(each)]) for each in near[:3])
    raise ValueError(f"there is no label {name!r}; {f'did you mean {said}?' if said else 'asyncpatch info lists them'}")


def doubts(schedule: str) -> bool:
    """Whether a schedule of that name asks how sure the network is."""
    return schedule == LOOK_AHEAD or schedule_from(schedule) is not None


def is_schedule(name: str) -> bool:
    """Whether a schedule goes by that name, so that no file is meant."""
    return name == SYNCHRONOUS or doubts(name) or ordered(name) is not None


def ordered(name: str) -> tuple[Callable[[int, int, int], Tensor], int] | None:
    """What draws the order of such a name, and the side of its patches (0: an eighth of the picture)."""
    if name in ORDERS:
        return ORDERS[name], 0
    kind, _, side = name.partition(":")
    if kind not in ORDERS or not side.isdecimal() or not int(side):
        return None
    return ORDERS[kind], int(side)


def _sides(size: object, usual: tuple[int, int]) -> tuple[int, int]:
    """Height and width."""
    if size is None:
        return usual
    if not isinstance(size, tuple | list) or len(size) != 2:
        raise ValueError(f"size must be (height, width), got {size!r}")
    return size[0], size[1]


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
