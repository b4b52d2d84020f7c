"""The HTTP interface: submit, poll or stream, fetch, cancel. ``/api/docs`` describes it, from its own OpenAPI."""

from __future__ import annotations

import asyncio
import html
import inspect
import json
import time
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, File, Form, HTTPException, Path, Query, UploadFile
from fastapi import Request as HTTPRequest
from fastapi.openapi.utils import get_openapi
from fastapi.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, Field

from asyncpatch import __version__
from asyncpatch.images import png_of
from asyncpatch.options import types_of
from asyncpatch.request import Given, Request
from asyncpatch.serving.jobs import OVER, Full, Job, State, Unknown, Workshop
from asyncpatch.serving.preview import Sight, encoded, reduced
from asyncpatch.settings import QUALITIES, Settings

PREFIX = "/api"
HEARTBEAT = 10.0
"""Seconds after which a stream says how things are though nothing has changed."""
LOOK = 0.1
"""Seconds between two looks at a job."""

Side = Annotated[int, Query(description="pixels of the longer side, at most: to look at; 0: all there are", ge=0)]
Id = Annotated[str, Path(description="the job's id", max_length=64)]


class Status(BaseModel):
    """How a job is."""

    id: str = Field(description="who has it may watch, fetch and cancel the job: keep it to yourself")
    state: State
    ahead: int = Field(description="jobs that come first")
    share: float = Field(description="of the work that is done, from 0 to 1")
    seconds_left: float = Field(description="expected, without the wait")
    previews: int = Field(description="how often the preview has changed")
    error: str
    seeds: list[int] = Field(description="one for each picture, when they are done")
    notes: list[str] = Field(description="what there is to say about the pictures")
    request: dict[str, Any] = Field(description="what was asked for, with the seed that was drawn")
    inputs: list[str] = Field(description="which pictures were given: picture, mask, order")


class ModelAbout(BaseModel):
    """A model."""

    name: str
    resolution: int = Field(description="pixels of a side that it sees at a time")
    labels: list[str]
    says_how_sure: bool = Field(description="whether it has a head for uncertainty")


class About(BaseModel):
    """What this server has."""

    version: str
    models: list[ModelAbout] = Field(description="the usual one first")
    limits: dict[str, float]


def router(workshop: Workshop) -> APIRouter:
    api = APIRouter(prefix=PREFIX)

    def found(id: str) -> Job:
        try:
            return workshop.job(id)
        except Unknown as error:
            raise HTTPException(404, str(error)) from None

    @api.get("", response_model=About, summary="About this server")
    def about() -> dict[str, Any]:
        models = [{"name": name, **about._asdict()} for name, about in workshop.shelf.about.items()]
        limits = {each.name: getattr(workshop.limits, each.name) for each in fields(workshop.limits)}
        return {"version": __version__, "models": models, "limits": limits}

    form = _form()
    names = {each.name for each in form}

    async def known(http: HTTPRequest) -> None:
        if unknown := sorted(set(await http.form()) - names):
            raise HTTPException(422, f"there is no {unknown[0][:64]!r}; there are {', '.join(sorted(names))}")

    def submit(
        picture: UploadFile | None, mask: UploadFile | None, order: UploadFile | None, doubt: bool, **given: Any
    ) -> Any:  # fmt: skip
        """A job that waits its turn. What is left out is as usual."""
        files = (None if each is None else each.file.read() for each in (picture, mask, order))
        try:
            request = Request.of({name: value for name, value in given.items() if value not in (None, "")})
            return workshop.status(workshop.submit(request, Given(*files), doubts=doubt))
        except Full as error:
            raise HTTPException(503, str(error), {"Retry-After": "5"}) from None
        except (ValueError, OverflowError) as error:
            raise HTTPException(422, str(error)) from None

    submit.__signature__ = inspect.Signature(form)  # type: ignore[attr-defined]
    post = api.post(
        "/jobs", response_model=Status, status_code=202, summary="Submit a job", dependencies=[Depends(known)]
    )
    post(submit)

    @api.get("/jobs/{id}", response_model=Status, summary="How a job is")
    def status(id: Id) -> dict[str, Any]:
        return workshop.status(found(id))

    @api.get("/jobs/{id}/events", summary="How a job is, as a stream of server-sent events until it is over")
    def events(id: Id) -> StreamingResponse:
        job = found(id)

        async def stream() -> AsyncIterator[str]:
            said, when = None, 0.0
            while True:
                now = workshop.status(job)
                if now != said or time.monotonic() - when > HEARTBEAT:
                    yield f"data: {json.dumps(now)}\n\n"
                    said, when = now, time.monotonic()
                if now["state"] in OVER:
                    return
                await asyncio.sleep(LOOK)

        return StreamingResponse(stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    @api.get("/jobs/{id}/preview/{what}", response_class=Response, summary="What is seen of it while it runs, as PNG")
    def preview(id: Id, what: Sight) -> Response:
        drawn = found(id).preview.drawn(what)
        if drawn is None:
            raise HTTPException(404, "it was not asked how sure it is (doubt), or this model does not say")
        return _png(encoded(drawn))

    @api.get("/jobs/{id}/pictures/{number}", response_class=Response, summary="A picture that was made, as PNG")
    def picture(id: Id, number: int, side: Side = 0) -> Response:
        """Its notes hold the request, under "asyncpatch", unless it is made smaller."""
        try:
            job = found(id)
            return _png(encoded(reduced(job.picture(number), side)) if side else job.png(number))
        except Unknown as error:
            raise HTTPException(404, str(error)) from None

    @api.get(
        "/jobs/{id}/given", response_class=Response, summary="The picture before, at the size of those made, as PNG"
    )
    def given(id: Id, side: Side = 0) -> Response:
        before = found(id).before
        return _png(encoded(reduced(before, side)) if side else png_of(before))

    @api.get("/jobs/{id}/inputs/{name}", response_class=Response, summary="A picture that was given, as PNG")
    def input_(id: Id, name: Literal["picture", "mask", "order"]) -> Response:
        try:
            return _png(found(id).input_png(name))
        except Unknown as error:
            raise HTTPException(404, str(error)) from None

    @api.get("/jobs/{id}/as/{language}", response_class=Response, summary="The same as a command line, or as Python")
    def said(id: Id, language: Literal["command", "python"]) -> Response:
        job = found(id)
        text = job.request.command(job.names) if language == "command" else job.request.python(job.names)
        return Response(text, media_type="text/plain; charset=utf-8")

    @api.delete("/jobs/{id}", response_model=Status, summary="Cancel a job")
    def cancel(id: Id) -> dict[str, Any]:
        job = found(id)
        workshop.cancel(job)
        return workshop.status(job)

    described = get_openapi(title="AsyncPatch", version=__version__, routes=api.routes)

    @api.get("/openapi.json", include_in_schema=False)
    def openapi() -> JSONResponse:
        return JSONResponse(described)

    @api.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(_page(described))

    return api


def _form() -> list[inspect.Parameter]:
    """The fields of a request, each as a field of a form, and its pictures."""
    made = []
    for kind in (Request, Settings):
        kinds = types_of(kind)
        for each in fields(kind):
            if each.name == "settings":
                continue
            words = each.metadata.get("help", "what to do")
            of = kinds[each.name] if each.name == "tool" else kinds[each.name] | None
            default = inspect.Parameter.empty if each.name == "tool" else None
            made.append(_parameter(each.name, Annotated[of, Form(description=words)], default))
    words = " | ".join(QUALITIES) + ": a word for the steps"
    made.append(_parameter("quality", Annotated[str | None, Form(description=words)], None))
    words = "so many questions to the network, in place of steps"
    made.append(_parameter("calls", Annotated[int | None, Form(description=words)], None))
    words = "show also how sure the model is while it runs, which takes a little longer"
    made.append(_parameter("doubt", Annotated[bool, Form(description=words)], False))
    for name, words in (
        ("picture", "all but generate: the picture, or the swatch"),
        ("mask", "inpaint, texture: white where the picture is to be repainted, grey: that much"),
        ("order", "dark pixels come first; of the picture's size"),
    ):
        made.append(_parameter(name, Annotated[UploadFile | None, File(description=words)], None))
    return made


def _parameter(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _png(data: bytes) -> Response:
    return Response(data, media_type="image/png", headers={"Cache-Control": "private, no-store"})


def _page(openapi: dict[str, Any]) -> str:
    """The description as a page without any script: the usual ones load theirs from elsewhere."""
    parts = []
    for path, ways in openapi["paths"].items():
        for method, what in ways.items():
            rows = [(each["name"], "in the path", each.get("description", "")) for each in what.get("parameters", ())]
            for body in what.get("requestBody", {}).get("content", {}).values():
                form = openapi["components"]["schemas"][body["schema"]["$ref"].rsplit("/", 1)[1]]
                rows += [(name, _kind(each), each.get("description", "")) for name, each in form["properties"].items()]
            for answer in what["responses"].values():
                for each in answer.get("content", {}).values():
                    if name := each.get("schema", {}).get("$ref", "").rsplit("/", 1)[-1]:
                        shape = openapi["components"]["schemas"][name]
                        if name != "HTTPValidationError":
                            rows += [
                                (f"→ {key}", _kind(of), of.get("description", ""))
                                for key, of in shape["properties"].items()
                            ]
            table = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
            parts.append(
                f"<h2><code>{method.upper()} {html.escape(path)}</code></h2><p>{html.escape(what['summary'])}. "
                f"{html.escape(what.get('description', ''))}</p><table>{table}</table>"
            )
    return _DOCS.replace("@parts@", "".join(parts))


def _kind(schema: dict[str, Any]) -> str:
    some = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    if words := some[0].get("enum"):
        return " | ".join(words)
    return (
        "file" if some[0].get("format") == "binary" or "contentMediaType" in some[0] else str(some[0].get("type", ""))
    )


_DOCS = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>AsyncPatch: HTTP interface</title><style>body{font:1rem/1.5 system-ui,sans-serif;max-width:56rem;margin:auto;
padding:1rem;color-scheme:light dark}code,pre{font-family:ui-monospace,monospace}h2{font-size:1.05rem;margin-top:2rem}
td{padding:.1rem .8rem .1rem 0;vertical-align:top}td:first-child{font-family:ui-monospace,monospace;white-space:nowrap}
pre,table{overflow-x:auto}pre{padding:.8rem;border:1px solid #8886;border-radius:.4rem}table{display:block}</style>
<h1>HTTP interface</h1><p>The same as <a href="openapi.json">OpenAPI</a>. Where a token is asked for, send it as
<code>Authorization: Bearer TOKEN</code>.</p>
<pre>curl -F tool=inpaint -F picture=@photo.png -F mask=@mask.png -F steps=8 http://127.0.0.1:7860/api/jobs
curl http://127.0.0.1:7860/api/jobs/ID            # until its state is "done"
curl -o out.png http://127.0.0.1:7860/api/jobs/ID/pictures/0</pre>@parts@</html>"""
