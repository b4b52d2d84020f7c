"""What the page does: its session, what its controls say, and what each of its events comes to.

What is on the page becomes a `Request`, as everything else does. Pictures go to the browser by the ids of their jobs;
nothing is written to disk. How it is laid out is for ``layout`` to say.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import shlex
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
from PIL import Image

from asyncpatch.drawing import strip
from asyncpatch.images import Picture, picture_from, read_text
from asyncpatch.request import KEY, Given, Request, Tool
from asyncpatch.schedules import OpenLoop
from asyncpatch.serving.jobs import HELD, MARGIN, Unknown, Workshop
from asyncpatch.serving.preview import encoded, reduced, scaled
from asyncpatch.settings import INPUT_GUIDANCE, LABEL_GUIDANCE, PAINTED, SYNCHRONOUS, Settings
from asyncpatch.shelf import Shelf

STATIC = Path(__file__).parent / "static"
EXAMPLES = ("lake", "orange", "pebbles", "cracked")
SIDE = 1024
"""Pixels of the longer side of what is painted on, at most."""
THUMB = 96
STEPS_BACK = 12
"""Pictures that a session remembers."""
ORDERS = {
    "all at once": SYNCHRONOUS,
    "row by row": "raster",
    "in a spiral": "spiral",
    "as I paint it": PAINTED,
}
BY_CERTAINTY = {"sure parts first": "sequential", "sure parts faster": "paced"}
"""Orders that need a model with a head for uncertainty."""
MAKES: dict[str, Tool] = {
    "a new picture": "generate",
    "the hole of the Inpaint tab": "inpaint",
    "the margin of the Outpaint tab": "outpaint",
}
"""What can be made in an order."""
SIDES = ("left", "top", "right", "bottom")
RANGES: dict[str, tuple[float, float]] = {
    "steps": (1, 64), "n": (1, 8), "class_guidance": (0, 4), "input_guidance": (0, 4), "pace": (0.05, 1),
    "grow": (-MARGIN, MARGIN), "feather": (0, MARGIN),
}  # fmt: skip
"""How far the sliders go."""
OWN: dict[Tool, dict[str, str]] = {
    "generate": {"width": "width", "height": "height"},
    "inpaint": {name: name for name in ("invert", "grow", "feather")},
    "outpaint": {name: name for name in SIDES},
    "texture": {"texture_width": "width", "texture_height": "height", "tileable": "tileable"},
}
"""The controls of each tool, and what they are called in a request."""


@dataclass(eq=False)
class Session:
    """What a visitor is working on: pictures, of which one is the current one."""

    history: list[Picture] = field(default_factory=list)
    at: int = -1
    turn: int = 0
    """When it last got a picture, counted over all sessions."""

    @property
    def picture(self) -> Picture | None:
        return self.history[self.at] if self.history else None

    def push(self, picture: Picture) -> None:
        """What was undone is forgotten, and so is what is too long ago."""
        self.history = [*self.history[: self.at + 1], picture][-STEPS_BACK:]
        self.at = len(self.history) - 1

    def drop(self) -> None:
        """Forgets the oldest picture."""
        self.history, self.at = self.history[1:], max(self.at - 1, min(0, len(self.history) - 2))

    @property
    def pixels(self) -> int:
        return sum(each.height * each.width for each in self.history)


@dataclass(frozen=True)
class Controls:
    """What the controls say."""

    steps: float
    n: float
    label: str | None
    seed: float | None
    class_guidance: float
    input_guidance: float
    invert: bool
    grow: float
    feather: float
    left: float | None
    top: float | None
    right: float | None
    bottom: float | None
    texture_width: float | None
    texture_height: float | None
    tileable: bool
    width: float | None
    height: float | None
    make: str
    order: str
    pace: float
    model: str | None
    more: str

    def request(self, tool: Tool, *, ordered: bool = False) -> Request:
        given: dict[str, Any] = {
            "tool": tool, "n": int(self.n), "label": self.label or "", "seed": _whole(self.seed, -1),
            "model": self.model or "", "steps": int(self.steps),
        }  # fmt: skip
        if self.label:
            given["class_guidance"] = float(self.class_guidance)
        if tool != "generate":
            given["input_guidance"] = float(self.input_guidance)
        for control, name in OWN[tool].items():
            value = getattr(self, control)
            given[name] = value if isinstance(value, bool) else _whole(value)
        if ordered:
            given["schedule"] = {**ORDERS, **BY_CERTAINTY}[self.order]
            if given["schedule"] != SYNCHRONOUS:
                given["pace"] = float(self.pace)
        return Request.of({**given, **self._more()})

    def _more(self) -> dict[str, str]:
        try:
            return dict(each.split("=", 1) for each in shlex.split(self.more or ""))
        except ValueError:
            raise ValueError(f"write other settings as name=value, with spaces between; got {self.more}") from None


class Page:
    """The handlers of the page's events. Each gets the session and what the controls say, and answers with texts for
    the script: what there is to show, or a job to follow."""

    def __init__(self, workshop: Workshop) -> None:
        self.workshop = workshop
        self._sessions: WeakSet[Session] = WeakSet()
        self._turn, self._lock = 0, threading.Lock()

    def _keep(self, session: Session, picture: Picture) -> None:
        """As the current picture. All visitors together keep no more than the jobs do: those who have been away
        longest lose theirs first, the oldest of them first."""
        with self._lock:
            session.push(picture)
            self._turn += 1
            session.turn = self._turn
            self._sessions.add(session)
            held = sum(each.pixels for each in self._sessions)
            for each in sorted(self._sessions, key=lambda each: each.turn):
                while held > HELD * self.workshop.limits.pixels and len(each.history) > (each is session):
                    held -= each.history[0].height * each.history[0].width
                    each.drop()

    # ---- Pictures in

    def opened(self, session: Session, data: str) -> str | None:
        """A picture that was dropped; the text of the request that is among its notes."""
        raw = _bytes_of(data)
        if len(raw) > self.workshop.limits.bytes:
            raise ValueError(f"a picture may have {self.workshop.limits.megabytes} megabytes: use a smaller one")
        self._keep(session, picture_from(raw, limit=self.workshop.limits.pixels))
        return read_text(raw, KEY)

    def example(self, session: Session, name: str) -> None:
        if name not in EXAMPLES:
            raise ValueError(f"there is no example {name!r}")
        self._keep(session, picture_from(STATIC / f"{name}.png"))

    def further(self, session: Session, id: str, number: int) -> None:
        """A candidate becomes the current picture."""
        try:
            self._keep(session, self.workshop.job(id).picture(number))
        except Unknown as error:
            raise ValueError(str(error)) from None

    def pick(self, session: Session, at: int) -> None:
        session.at = max(0, min(int(at), len(session.history) - 1))

    # ---- What is shown

    def shown(self, session: Session, controls: Controls) -> str:
        """The current picture, what an order is painted on, and the history."""
        picture = session.picture
        return json.dumps({
            "photo": None if picture is None else _surface(picture),
            "order": self._order_surface(session, controls),
            "history": [_shown(each, THUMB, "JPEG") for each in session.history],
            "at": session.at,
            "most": self.workshop.limits.bytes,
            "sides": [_whole(getattr(controls, name)) for name in SIDES],
        })  # fmt: skip

    def _order_surface(self, session: Session, controls: Controls) -> dict[str, Any] | None:
        tool = MAKES[controls.make]
        if tool == "generate":
            request = controls.request("generate")
            side = self.workshop.shelf.side(request.label or None, request.model)
            height, width = request.size or (side, side)
            if height * width > self.workshop.limits.pixels:
                return None
            return {"src": "", **_canvas(height, width)}
        if session.picture is None:
            return None
        if tool == "inpaint":
            return _surface(session.picture)
        request = controls.request("outpaint")
        sides = request.left, request.top, request.right, request.bottom
        return _surface(
            session.picture.extended(*sides, limit=self.workshop.limits.pixels)[0] if any(sides) else session.picture
        )

    def strip(self, session: Session, controls: Controls, hole: str, order: str) -> str:
        """The schedule as a strip, before anything is run."""
        try:
            request = controls.request(MAKES[controls.make], ordered=True)
            _, pipeline, plan = self.workshop.choose(request, self.given(session, request, hole, order))
            schedule, (height, width) = pipeline.schedule(plan)
        except ValueError as error:
            return f"<p>{html.escape(str(error))}</p>"
        if not isinstance(schedule, OpenLoop):
            return "<p>The network decides as it goes: watch the noise while it runs.</p>"
        drawn = strip(schedule, height, width, frames=9, scale=max(1, 96 // max(height, width)))
        return f'<p>From noise (dark) to clean (light):</p><img alt="the schedule" src="{_url(drawn)}">'

    # ---- Jobs

    def given(self, session: Session, request: Request, hole: str, order: str) -> Given:
        """The pictures that a request needs, of those that are on the page."""
        picture = None if request.tool == "generate" else session.picture
        if picture is None:
            if request.tool != "generate":
                raise ValueError("open a picture first: drop one on the left, or take an example")
            side = self.workshop.shelf.side(request.label or None, request.model)
            size = request.size or (side, side)
        else:
            size = picture.height + request.top + request.bottom, picture.width + request.left + request.right
        mask = None
        if request.tool == "inpaint":
            if not hole:
                raise ValueError("nothing is painted yet: paint over what shall change, or load a mask")
            mask = self._painted(hole, size)
        painted = None
        if request.settings.get("schedule") == PAINTED:
            if not order:
                raise ValueError("no order is painted yet: paint what shall come first")
            painted = self._painted(order, size)
        return Given(picture, mask, painted)

    def _painted(self, data: str, size: tuple[int, int]) -> object:
        """What was painted at the size of the picture; a file that has that size as it is."""
        raw = _bytes_of(data)
        painted = picture_from(raw, limit=self.workshop.limits.pixels)
        if painted.size == size:
            return raw
        image = Image.fromarray(np.ascontiguousarray(painted.levels[..., 0]))
        return np.asarray(image.resize((size[1], size[0]), Image.Resampling.NEAREST))

    def submitted(self, session: Session, request: Request, hole: str, order: str) -> str:
        """The job to follow, or what is wrong with the request."""
        job = self.workshop.submit(request, self.given(session, request, hole, order), doubts=True)
        return json.dumps({**self.workshop.status(job), "doubt": job.pipeline.uncertainty is not None})


def restored(request: Request, shelf: Shelf) -> dict[str, Any]:
    """What the controls say of a request, by the names of `Controls`; what none of them can say is in ``more``."""
    usual, said = Settings(), dict[str, Any]()
    for control, name in OWN[request.tool].items():
        value = getattr(request, name)
        if control in RANGES:
            value = min(max(value, RANGES[control][0]), RANGES[control][1])
        said[control] = (value or None) if name in ("width", "height") else value
    more = {name: value for name, value in request.flat().items() if name in ("n", "label", "seed", *request.settings)}
    said["model"] = request.model if request.model in models_of(shelf).values() else ""

    def hold(name: str, otherwise: Any) -> None:
        low, high = RANGES.get(name, (float("-inf"), float("inf")))
        value = more.get(name, otherwise)
        if isinstance(value, str) or low <= value <= high:
            said[name] = value
            more.pop(name, None)

    hold("n", 1)
    hold("seed", -1)
    hold("steps", usual.steps)
    if request.label in ("", *shelf.labels):
        hold("label", "")
    if request.label:
        hold("class_guidance", LABEL_GUIDANCE if request.tool == "generate" else 0.0)
    if request.tool != "generate":
        hold("input_guidance", INPUT_GUIDANCE)
    words = {name: word for word, name in orders_of(shelf).items()}
    schedule = more.get("schedule", SYNCHRONOUS)
    if schedule == SYNCHRONOUS:
        more.pop("schedule", None)
    elif schedule in words and request.tool in MAKES.values():
        said["order"] = words[more.pop("schedule")]
        said["make"] = next(word for word, tool in MAKES.items() if tool == request.tool)
        hold("pace", usual.pace)
    return {**said, "more": shlex.join(f"{name}={value}" for name, value in more.items())}


def orders_of(shelf: Shelf) -> dict[str, str]:
    """What there is to choose from, in words."""
    sure = any(each.says_how_sure for each in shelf.about.values())
    return {**ORDERS, **(BY_CERTAINTY if sure else {})}


def models_of(shelf: Shelf) -> dict[str, str]:
    """Likewise."""
    known = {f"{name} ({each.resolution} pixels)": name for name, each in shelf.about.items()}
    return {"chosen for the picture": "", **(known if len(known) > 1 else {})}


def _whole(value: float | None, otherwise: int = 0) -> int:
    return otherwise if value is None else int(value)


def _bytes_of(data: str) -> bytes:
    """Of a data URL."""
    try:
        return base64.b64decode(data.partition(",")[2], validate=True)
    except (binascii.Error, ValueError, AttributeError) as error:
        raise ValueError("this is no picture") from error


def _surface(picture: Picture) -> dict[str, Any]:
    return {"src": _shown(picture, SIDE), **_canvas(*picture.size)}


def _canvas(height: int, width: int) -> dict[str, Any]:
    """The size of what is painted on, and of what it stands for."""
    reduced_height, reduced_width = scaled(height, width, SIDE)
    return {"width": reduced_width, "height": reduced_height, "full": [width, height]}


_SHOWN: WeakKeyDictionary[Picture, dict[int, str]] = WeakKeyDictionary()


def _shown(picture: Picture, side: int, kind: Literal["PNG", "JPEG"] = "PNG") -> str:
    """A picture as a URL, made once."""
    sizes = _SHOWN.setdefault(picture, {})
    if side not in sizes:
        sizes[side] = _url(reduced(picture, side), kind)
    return sizes[side]


def _url(image: Image.Image, kind: Literal["PNG", "JPEG"] = "PNG") -> str:
    return f"data:image/{kind.lower()};base64,{base64.b64encode(encoded(image, kind)).decode()}"
