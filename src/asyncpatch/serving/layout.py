"""The page as gradio lays it out, around a surface to paint on (``static/page.js``), which follows jobs over HTTP.

What its events come to is for ``page`` to say.
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.responses import Response

from asyncpatch.request import Request, Tool
from asyncpatch.serving.jobs import Full, Workshop
from asyncpatch.serving.page import (
    EXAMPLES,
    MAKES,
    ORDERS,
    RANGES,
    SIDES,
    STATIC,
    Controls,
    Page,
    Session,
    models_of,
    orders_of,
    restored,
)
from asyncpatch.settings import INPUT_GUIDANCE, LABEL_GUIDANCE, PAINTED, QUALITIES, Settings

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # before it is imported
import gradio as gr

KINDS = {".js": "text/javascript", ".css": "text/css", ".png": "image/png"}


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
                        for name in SIDES:
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
                        list(orders_of(shelf)), value="in a spiral", label="In which order", elem_id="order-kind"
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
                models = list(models_of(shelf).items())
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
    sides = [parts.controls[name] for name in SIDES]
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
    sizes = [*size, *(parts.controls[name] for name in ("make", *SIDES))]
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
