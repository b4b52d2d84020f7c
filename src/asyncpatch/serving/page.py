"""The page: gradio's controls around a surface to paint on (``static/page.js``), which follows jobs over HTTP.

What is on the page becomes a `Request`, as everything else does. Pictures go to the browser by the ids of their jobs;
nothing is written to disk.
"""

from __future__ import annotations

import base64
import binascii
import html
import json
import os
import shlex
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
from fastapi import FastAPI, HTTPException
from fastapi.responses import Response
from PIL import Image

from asyncpatch.drawing import strip
from asyncpatch.images import Picture, picture_from, read_text
from asyncpatch.request import KEY, Given, Request, Tool
from asyncpatch.schedules import OpenLoop
from asyncpatch.serving.jobs import HELD, MARGIN, Full, Unknown, Workshop
from asyncpatch.serving.preview import encoded, reduced, scaled
from asyncpatch.settings import INPUT_GUIDANCE, LABEL_GUIDANCE, PAINTED, QUALITIES, SYNCHRONOUS, Settings
from asyncpatch.shelf import Shelf

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # before it is imported
import gradio as gr

STATIC = Path(__file__).parent / "static"
EXAMPLES = ("lake", "orange", "pebbles", "cracked")
KINDS = {".js": "text/javascript", ".css": "text/css", ".png": "image/png"}
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


_SIDES = ("left", "top", "right", "bottom")
RANGES: dict[str, tuple[float, float]] = {
    "steps": (1, 64), "n": (1, 8), "class_guidance": (0, 4), "input_guidance": (0, 4), "pace": (0.05, 1),
    "grow": (-MARGIN, MARGIN), "feather": (0, MARGIN),
}  # fmt: skip
"""How far the sliders go."""
OWN: dict[Tool, dict[str, str]] = {
    "generate": {"width": "width", "height": "height"},
    "inpaint": {name: name for name in ("invert", "grow", "feather")},
    "outpaint": {name: name for name in _SIDES},
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
            "sides": [_whole(getattr(controls, name)) for name in _SIDES],
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
    said["model"] = request.model if request.model in _models(shelf).values() else ""

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
    words = {name: word for word, name in _orders(shelf).items()}
    schedule = more.get("schedule", SYNCHRONOUS)
    if schedule == SYNCHRONOUS:
        more.pop("schedule", None)
    elif schedule in words and request.tool in MAKES.values():
        said["order"] = words[more.pop("schedule")]
        said["make"] = next(word for word, tool in MAKES.items() if tool == request.tool)
        hold("pace", usual.pace)
    return {**said, "more": shlex.join(f"{name}={value}" for name, value in more.items())}


def _orders(shelf: Shelf) -> dict[str, str]:
    sure = any(each.says_how_sure for each in shelf.about.values())
    return {**ORDERS, **(BY_CERTAINTY if sure else {})}


def _models(shelf: Shelf) -> dict[str, str]:
    """What there is to choose from, in words."""
    known = {f"{name} ({each.resolution} pixels)": name for name, each in shelf.about.items()}
    return {"chosen for the picture": "", **(known if len(known) > 1 else {})}


@dataclass(frozen=True)
class Parts:
    """What is on the page, by name."""

    session: gr.State
    texts: dict[str, gr.Textbox]
    """Never seen: they carry what the script shows, follows and has painted."""
    controls: dict[str, Any]
    """By the names of `Controls`."""
    surfaces: dict[str, gr.HTML]
    buttons: dict[Tool | None, gr.Button]
    """What runs a tool; None: the one that is to run in an order."""
    tabs: gr.Tabs
    order: gr.Tab
    quality: gr.Radio
    strip: gr.HTML
    past: gr.HTML
    examples: gr.HTML
    job: gr.HTML
    notice: gr.Markdown


def blocks(workshop: Workshop) -> gr.Blocks:
    """The page itself."""
    with gr.Blocks(title="AsyncPatch", analytics_enabled=False) as made:
        page, parts = Page(workshop), _laid_out(workshop)
        _pictures(made, page, parts)
        _jobs(page, parts)
    whole: gr.Blocks = made
    return whole


def _laid_out(workshop: Workshop) -> Parts:
    shelf = workshop.shelf
    controls: dict[str, Any] = {}
    surfaces: dict[str, gr.HTML] = {}
    buttons: dict[Tool | None, gr.Button] = {}
    session, texts = gr.State(Session()), {name: gr.Textbox(visible=False) for name in _TEXTS}
    gr.HTML(_TITLE)
    with gr.Row():
        with gr.Column(scale=5, min_width=320):
            notice = gr.Markdown(elem_id="notice")
            with gr.Tabs(selected="inpaint") as tabs:
                with gr.Tab("Inpaint", id="inpaint"):
                    surfaces["hole"] = _painter("hole")
                    with gr.Row():
                        controls["grow"] = _slider("grow", "Grow the hole", "by so many pixels; below 0 it shrinks", 0)
                        controls["feather"] = _slider(
                            "feather", "Feather", "fades the hole inwards over so many pixels", 0
                        )
                    controls["invert"] = gr.Checkbox(False, label="Invert: what is painted stays", elem_id="invert")
                    buttons["inpaint"] = gr.Button("Fill the hole", variant="primary", elem_id="run-inpaint")
                with gr.Tab("Outpaint", id="outpaint"):
                    surfaces["sides"] = _painter("sides")
                    with gr.Row():
                        for name in _SIDES:
                            controls[name] = _number(name, 32 if name == "right" else 0, 0)
                    buttons["outpaint"] = gr.Button("Extend the picture", variant="primary", elem_id="run-outpaint")
                with gr.Tab("Texture", id="texture"):
                    surfaces["view"] = _painter("view")
                    with gr.Row():
                        controls["texture_width"] = _number("width", 2 * shelf.resolution, 8, "texture-width")
                        controls["texture_height"] = _number("height", 2 * shelf.resolution, 8, "texture-height")
                        controls["tileable"] = gr.Checkbox(True, label="Tileable: opposite edges fit together")
                    buttons["texture"] = gr.Button("Grow the texture", variant="primary", elem_id="run-texture")
                with gr.Tab("Generate", id="generate"):
                    gr.Markdown("Choose a label in the settings, or let the model make what it likes.")
                    with gr.Row():
                        controls["width"] = _number("width", shelf.resolution, 8)
                        controls["height"] = _number("height", shelf.resolution, 8)
                    buttons["generate"] = gr.Button("Generate", variant="primary", elem_id="run-generate")
                with gr.Tab("Order", id="order") as order:
                    controls["make"] = gr.Radio(list(MAKES), value=next(iter(MAKES)), label="Make", elem_id="make")
                    controls["order"] = gr.Radio(
                        list(_orders(shelf)), value="in a spiral", label="In which order", elem_id="order-kind"
                    )
                    strip_ = gr.HTML(elem_classes="strip", elem_id="strip")
                    surfaces["order"] = _painter("order")
                    controls["pace"] = _slider(
                        "pace", "Pace", "share of the steps that each pixel takes: less is stricter", 0.5, 0.05
                    )
                    buttons[None] = gr.Button("Run in this order", variant="primary", elem_id="run-order")
            past = gr.HTML(html_template="<async-past></async-past>", js_on_load=_LISTEN["past"])
            examples = gr.HTML(html_template=_EXAMPLES, js_on_load=_LISTEN["examples"])
        with gr.Column(scale=5, min_width=320):
            job = gr.HTML(html_template="<async-job></async-job>", js_on_load=_LISTEN["job"])
            with gr.Accordion("Settings", open=True):
                quality = gr.Radio(list(_QUALITY), value=_word_for(Settings.steps), label="Quality", elem_id="quality")
                with gr.Row():
                    controls["steps"] = _slider(
                        "steps", "Steps", "more is finer, and takes longer in proportion", Settings.steps
                    )
                    controls["n"] = _slider("n", "Candidates", "several to choose from", 1)
                with gr.Row():
                    labels = [("the model is not told", ""), *((each, each) for each in shelf.labels)]
                    controls["label"] = gr.Dropdown(
                        labels, value="", label="Label", info="what the picture shows", min_width=150, elem_id="label"
                    )
                    controls["seed"] = _number("seed", -1, -1, info="the same seed, the same picture; -1: a new one")
                with gr.Row():
                    controls["class_guidance"] = _slider(
                        "class_guidance", "Follow the label", "pushes towards the label; 0 is off, and faster",
                        LABEL_GUIDANCE, 0.1,
                    )  # fmt: skip
                    controls["input_guidance"] = _slider(
                        "input_guidance", "Follow the picture", "pushes towards what is around; 0 is off, and faster",
                        INPUT_GUIDANCE, 0.1,
                    )  # fmt: skip
                models = list(_models(shelf).items())
                controls["model"] = gr.Dropdown(
                    models, value="", label="Model", info="each has learnt other things, at its own size",
                    visible=len(models) > 1, elem_id="model",
                )  # fmt: skip
                controls["more"] = gr.Textbox(
                    "", label="Other settings", info="as name=value, e.g. solver=multistep refine=0.7", elem_id="more"
                )
    named = {each.name: controls[each.name] for each in fields(Controls)}
    return Parts(session, texts, named, surfaces, buttons, tabs, order, quality, strip_, past, examples, job, notice)


def _pictures(made: gr.Blocks, page: Page, parts: Parts) -> None:
    """Pictures that come in, and what is shown of them."""
    session, values, shown = parts.session, list(parts.controls.values()), parts.texts["shown"]
    sides = [parts.controls[name] for name in _SIDES]
    show: dict[str, Any] = {"fn": None, "inputs": [shown], "js": "(text) => { asyncpatch.show(text); }", **_QUIET}

    def changed(now: Session, said: tuple[Any, ...], doing: Callable[[], object]) -> tuple[str, str]:
        """Does something to the session; what is to be shown then, and what there is to say."""
        try:
            doing()
            return page.shown(now, Controls(*said)), ""
        except ValueError as error:
            return "", f"**{html.escape(str(error))}**"

    def on_open(event: gr.EventData, now: Session, *said: Any) -> list[Any]:
        found: list[str | None] = []
        text, words = changed(now, said, lambda: found.append(page.opened(now, event.data)))
        rest: list[Any] = [gr.update()] * (1 + len(values))
        if found and found[0] is not None:
            try:
                request = Request.from_text(found[0])
            except ValueError as error:
                words = f"The picture was opened, but its settings cannot be used: {html.escape(str(error))}."
            else:
                back = restored(request, page.workshop.shelf)
                words = f"The settings of this picture were restored ({request.tool})."
                tab = gr.Tabs(selected="order" if "order" in back else request.tool)
                rest = [tab, *(back.get(name, gr.update()) for name in parts.controls)]
        return [now, text, words, *rest]

    def on_example(event: gr.EventData, now: Session, *said: Any) -> list[Any]:
        return [now, *changed(now, said, lambda: page.example(now, event.name))]

    def on_further(event: gr.EventData, now: Session, *said: Any) -> list[Any]:
        return [now, *changed(now, said, lambda: page.further(now, event.id, event.number))]

    def on_pick(event: gr.EventData, now: Session, *said: Any) -> list[Any]:
        return [now, *changed(now, said, lambda: page.pick(now, event.at))]

    def on_surface(now: Session, *said: Any) -> str:
        return changed(now, said, lambda: None)[0]

    def on_drag(event: gr.EventData) -> list[int]:
        return [int(each) for each in event.sides]

    def on_model(name: str | None) -> list[int]:
        return [page.workshop.shelf.side(name=name or "")] * 2

    for surface in parts.surfaces.values():
        outputs = [session, shown, parts.notice, parts.tabs, *values]
        surface.upload(on_open, [session, *values], outputs, **_QUIET).then(**show)
    for part, doing in ((parts.examples, on_example), (parts.job, on_further), (parts.past, on_pick)):
        part.select(doing, [session, *values], [session, shown, parts.notice], **_QUIET).then(**show)
    model, size = parts.controls["model"], [parts.controls[name] for name in ("width", "height")]
    model.input(on_model, [model], size, **_QUIET)  # new pictures have the size that it has learnt
    sizes = [*size, *(parts.controls[name] for name in ("make", *_SIDES))]
    gr.on([each.change for each in sizes], on_surface, [session, *values], [shown], **_QUIET).then(**show)
    made.load(on_surface, [session, *values], [shown], **_QUIET).then(**show)
    parts.surfaces["sides"].release(on_drag, None, sides, **_QUIET)


def _jobs(page: Page, parts: Parts) -> None:
    """What is run, and the schedule before it is."""
    texts, controls, steps = parts.texts, parts.controls, parts.controls["steps"]
    inputs = [parts.session, texts["hole"], texts["order"], *controls.values()]
    painted = "(state, hole, order, ...rest) => [state, asyncpatch.hole(), asyncpatch.order(), ...rest]"

    def on_quality(word: str | None) -> Any:
        return gr.update() if word is None else _QUALITY[word]["steps"]

    def on_strip(now: Session, hole: str, order: str, *said: Any) -> str:
        return page.strip(now, Controls(*said), hole, order)

    parts.quality.input(on_quality, [parts.quality], [steps], **_QUIET)
    steps.change(_word_for, [steps], [parts.quality], **_QUIET)
    watched = [controls["order"].change, controls["make"].change, controls["pace"].release, parts.order.select]
    watched.append(parts.surfaces["hole"].input)
    see: dict[str, Any] = {"fn": on_strip, "inputs": inputs, "outputs": [parts.strip], "js": painted, **_QUIET}
    gr.on(watched, **see, trigger_mode="always_last")
    mine = next(word for word, name in ORDERS.items() if name == PAINTED)  # who paints an order means it
    parts.surfaces["order"].input(lambda: mine, None, [controls["order"]], **_QUIET).then(**see)

    def run(tool: Tool | None) -> Callable[..., str]:
        def on_run(now: Session, hole: str, order: str, *said: Any) -> str:
            says = Controls(*said)
            try:
                request = says.request(MAKES[says.make], ordered=True) if tool is None else says.request(tool)
                return page.submitted(now, request, hole, order)
            except (ValueError, Full) as error:
                return json.dumps({"wrong": str(error)})

        return on_run

    follow: dict[str, Any] = {"fn": None, "inputs": [texts["answer"]], "js": "(text) => { asyncpatch.follow(text); }"}
    for tool, button in parts.buttons.items():
        button.click(run(tool), inputs, [texts["answer"]], js=painted, **_QUIET).then(**follow, **_QUIET)


def mounted(app: FastAPI, workshop: Workshop) -> FastAPI:
    """The page at the root of an application, beside what it has."""
    files = {path.name: (path.read_bytes(), KINDS[path.suffix]) for path in STATIC.iterdir()}

    @app.get("/asyncpatch/{name}", include_in_schema=False)
    def static(name: str) -> Response:
        if name not in files:
            raise HTTPException(404, "there is no such file")
        data, kind = files[name]
        return Response(data, media_type=kind, headers={"Cache-Control": "no-cache"})

    theme = gr.themes.Default(
        primary_hue="pink", font=["system-ui", "sans-serif"], font_mono=["ui-monospace", "monospace"]
    )
    whole: FastAPI = gr.mount_gradio_app(
        app, blocks(workshop).queue(default_concurrency_limit=None, api_open=False), path="/", footer_links=[],
        theme=theme, head='<script src="/asyncpatch/page.js"></script>',
        css_paths=STATIC / "page.css", ssr_mode=False, max_file_size=1, pwa=False, run_history=False,
    )  # fmt: skip
    return whole


_TEXTS = ("shown", "answer", "hole", "order")
_QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
_QUALITY = {f"{name}: {words}": settings for name, (settings, words) in QUALITIES.items()}
_TITLE = """<div class="title"><h1>AsyncPatch</h1>
<p>Paint over what shall change; every other pixel stays as it is.</p><a href="api/docs">HTTP interface</a></div>"""
_LISTEN = {
    "painter": """const each = element.querySelector("async-painter");
each.addEventListener("photo", (event) => trigger("upload", { data: event.detail }));
each.addEventListener("painted", () => trigger("input", {}));
each.addEventListener("sides", (event) => trigger("release", { sides: event.detail }));""",
    "job": """const each = element.querySelector("async-job");
each.addEventListener("further", (event) => trigger("select", event.detail));""",
    "past": """const each = element.querySelector("async-past");
each.addEventListener("pick", (event) => trigger("select", { at: event.detail }));""",
    "examples": """element.querySelectorAll("button").forEach((each) =>
  each.addEventListener("click", () => trigger("select", { name: each.name })));""",
}
_EXAMPLE = """<button type="button" name="{0}" aria-label="example: {0}">
<img src="/asyncpatch/{0}.png" alt=""></button>"""
_EXAMPLES = f"""<div class="examples"><span>Examples:</span>{"".join(map(_EXAMPLE.format, EXAMPLES))}</div>"""


def _slider(name: str, label: str, info: str, value: float, step: float = 1) -> gr.Slider:
    low, high = RANGES[name]
    id = label.lower().replace(" ", "-")
    return gr.Slider(low, high, value, step=step, label=label, info=info, min_width=150, elem_id=id)


def _number(name: str, value: int, least: int, id: str | None = None, info: str | None = None) -> gr.Number:
    return gr.Number(
        value, label=name.capitalize(), info=info, precision=0, minimum=least, min_width=80, elem_id=id or name
    )


def _word_for(steps: float) -> str | None:
    """The quality of so many steps."""
    return next((word for word, settings in _QUALITY.items() if settings["steps"] == steps), None)


def _painter(mode: str) -> gr.HTML:
    return gr.HTML(html_template=f'<async-painter mode="{mode}"></async-painter>', js_on_load=_LISTEN["painter"])


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
