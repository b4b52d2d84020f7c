"""The page without a browser: what its events do, and what it serves. (`make test-ui` has the browser.)"""

import asyncio
import base64
import io
import json
import re
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import uvicorn
from fastapi.testclient import TestClient
from PIL import Image

from asyncpatch.images import picture_from, png_of
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.request import KEY, Request
from asyncpatch.serving.jobs import Workshop
from asyncpatch.serving.page import (
    BY_CERTAINTY,
    EXAMPLES,
    MAKES,
    ORDERS,
    RANGES,
    STATIC,
    Controls,
    Page,
    Session,
    restored,
)
from asyncpatch.serving.server import application
from asyncpatch.shelf import Shelf
from asyncpatch.shipped import shipped_models
from uploads import png

ROOT = Path(__file__).parents[2]


def controls(**changed):
    usual = {
        "steps": 2, "n": 1, "label": "", "seed": 3, "class_guidance": 1.5, "input_guidance": 1.0, "invert": False,
        "grow": 0, "feather": 0, "left": 0, "top": 0, "right": 8, "bottom": 0, "texture_width": 64,
        "texture_height": 64, "tileable": True, "width": 16, "height": 16, "make": "a new picture",
        "order": "in a spiral", "pace": 0.5, "model": "", "more": "",
    }  # fmt: skip
    return Controls(**{**usual, **changed})


def url(data):
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def image_in(text):
    return Image.open(io.BytesIO(base64.b64decode(text.partition(",")[2])))


@pytest.fixture
def page(workshop):
    return Page(workshop)


def made(workshop, token=None):
    """The application, made in a running event loop: outside of one gradio opens some and leaves them open."""

    async def inside():
        return application(workshop, token)

    return asyncio.run(inside())


@pytest.fixture(scope="module")
def client(shelf):
    workshop = Workshop(shelf)
    with TestClient(made(workshop), base_url="http://127.0.0.1:7860") as client:
        yield client
    workshop.close()


# ---- Events


def test_a_picture_that_is_dropped_is_shown_as_it_is(page, photo, files):
    session = Session()
    assert page.opened(session, url(files[0])) is None
    shown = json.loads(page.shown(session, controls()))
    assert np.array_equal(np.asarray(image_in(shown["photo"]["src"])), photo)
    assert (shown["photo"]["width"], shown["photo"]["height"]) == (60, 40)
    assert shown["order"] == {"src": "", "width": 16, "height": 16, "full": [16, 16]}


def test_large_pictures_are_reduced_to_paint_on_and_not_to_work_with(page):
    session = Session()
    page.opened(session, url(png(np.zeros((20, 3000, 3), np.uint8))))
    assert session.picture.size == (20, 3000)
    assert json.loads(page.shown(session, controls()))["photo"]["width"] == 1024
    painted = np.zeros((7, 1024), np.uint8)
    painted[:, 512:] = 255
    given = page.given(session, controls().request("inpaint"), url(png(painted)), "")
    assert given.mask.shape == (20, 3000)
    assert (given.mask[:, 1502:] == 255).all()
    assert (given.mask[:, :1498] == 0).all()
    assert set(np.unique(given.mask)) == {0, 255}  # no strength that was not painted
    whole = png(np.full((20, 3000), 255, np.uint8))
    assert page.given(session, controls().request("inpaint"), url(whole), "").mask == whole  # a file, as it is


@pytest.mark.parametrize("mode", ["16 bits", "transparent", "grey 16 bits"])
def test_all_kinds_of_pictures_can_be_shown(page, photo, mode):
    deep = photo.astype(np.uint16) * 257
    array = {"16 bits": deep, "transparent": np.dstack([photo, photo[..., 0]]), "grey 16 bits": deep[..., 0]}[mode]
    session = Session()
    page.opened(session, url(png_of(picture_from(array))))
    assert image_in(json.loads(page.shown(session, controls()))["photo"]["src"]).mode == "RGB"


def test_what_is_no_picture_is_said(page):
    for data in ("", "data:,", "data:image/png;base64,%%%", url(b"nothing"), url(b"")):
        with pytest.raises(ValueError, match="picture"):
            page.opened(Session(), data)


def test_a_picture_brings_its_settings_back(page, photo, shelf):
    request = Request(tool="outpaint", left=5, seed=9, settings={"steps": 7, "schedule": "raster", "pace": 0.25})
    session = Session()
    found = Request.from_text(page.opened(session, url(png_of(picture_from(photo), {KEY: request.text()}))))
    assert found == request
    back = restored(found, shelf)
    assert (back["left"], back["seed"], back["steps"], back["pace"]) == (5, 9, 7, 0.25)
    assert (back["order"], back["make"], back["more"]) == ("row by row", "the margin of the Outpaint tab", "")
    again = controls(**back).request("outpaint", ordered=True)
    assert again.flat() == {**request.flat(), "input_guidance": 1.0}


@pytest.mark.parametrize("tool", ["generate", "inpaint", "outpaint", "texture"])
def test_what_is_on_the_page_can_be_restored(tool, shelf):
    says = controls(n=2, label="cat", invert=True, grow=2, feather=1, left=4, width=24, height=32)
    request = says.request(tool)
    assert controls(**restored(request, shelf)).request(tool) == request


@pytest.mark.parametrize(
    "given",
    [
        {"tool": "inpaint", "steps": 200, "grow": 100, "eta": 0.5, "solver": "ddim", "input_guidance": 9.0},
        {"tool": "texture", "width": 96, "refine": 0.9, "schedule": "raster:4", "input_guidance": 0.0},
        {"tool": "generate", "label": "a nameless thing", "class_guidance": 7.5, "n": 9, "steps": 16},
        {"tool": "outpaint", "left": 3, "schedule": "paced", "pace": 0.01, "steps": 8, "input_guidance": 1.0},
    ],
)
def test_what_no_control_can_say_is_restored_too(given, shelf):
    request = Request.of(given)
    back = restored(request, shelf)  # a model without a head
    for name, (low, high) in RANGES.items():
        assert low <= back.get(name, low) <= high
    again = controls(**back).request(request.tool, ordered="order" in back)
    assert request.flat().items() <= {"steps": 16, **again.flat()}.items()


@pytest.mark.parametrize(("model", "said"), [("large", "large"), ("small", "small"), ("gone", "")])
def test_the_model_of_a_picture_is_restored_where_there_is_a_choice(model, said, two_ship, shelf):
    request = Request(tool="generate", model=model)
    for models, chosen in ((Shelf(shipped_models(), AsyncPatchPipeline.from_pretrained), said), (shelf, "")):
        back = restored(request, models)
        assert (back["model"], back["more"]) == (chosen, "")
        assert controls(**back).request("generate").model == chosen


def test_there_is_a_control_for_the_model_where_there_is_a_choice(two_ship, client):
    workshop = Workshop(Shelf(shipped_models(), AsyncPatchPipeline.from_pretrained))
    with TestClient(made(workshop), base_url="http://127.0.0.1:7860") as several:
        shown, hidden = (
            next(
                each["props"]
                for each in it.get("/config").json()["components"]
                if each["props"].get("elem_id") == "model"
            )
            for it in (several, client)
        )
    workshop.close()
    assert shown["choices"] == [
        ["chosen for the picture", ""],
        ["small (16 pixels)", "small"],
        ["large (32 pixels)", "large"],
    ]
    assert (shown["visible"], hidden["visible"]) == (True, False)


def test_what_belongs_to_a_tool_does_not_disturb_the_others(shelf):
    back = restored(Request.of({"tool": "inpaint", "grow": 500, "invert": True, "eta": 0.5}), shelf)
    assert (back["grow"], back["invert"], back["more"]) == (128, True, "eta=0.5")
    for tool in ("generate", "outpaint", "texture"):
        assert controls(**back).request(tool).settings["eta"] == 0.5


def test_other_settings_are_read(page):
    assert (
        controls(more="solver=multistep 'label=Golden retriever'").request("generate").flat()["solver"] == "multistep"
    )
    for more, said in (("eta", "name=value"), ("eta='", "name=value"), ("etta=1", "there is no 'etta'")):
        with pytest.raises(ValueError, match=said):
            controls(more=more).request("generate")


def test_all_visitors_together_keep_so_many_pixels(make, photo):
    page = Page(make(megapixels=0.0024 / 24 * 5))  # five of these photos
    first, second = Session(), Session()
    for _ in range(3):
        page._keep(first, picture_from(photo))
    page.pick(first, 0)
    for count in (1, 2):
        page._keep(second, picture_from(photo))
        assert (len(first.history), len(second.history)) == (3, count)
    page._keep(second, picture_from(photo))
    assert (len(first.history), first.at, len(second.history)) == (2, 0, 3)
    for _ in range(4):
        page._keep(second, picture_from(photo))
    assert (first.history, first.at, first.picture) == ([], -1, None)
    assert len(second.history) == 5
    page._keep(second, picture_from(np.zeros((400, 600, 3), np.uint8)))  # one too large is kept alone
    assert (len(second.history), second.at) == (1, 0)
    page._keep(first, picture_from(photo))
    assert (first.at, second.history) == (0, [])


def test_history_goes_back_and_forth(page, photo):
    session = Session()
    for name in EXAMPLES:
        page.example(session, name)
    page.pick(session, 1)
    assert session.picture.size == picture_from(STATIC / f"{EXAMPLES[1]}.png").size
    page.example(session, EXAMPLES[0])  # what was undone is forgotten
    assert (len(session.history), session.at) == (3, 2)
    page.pick(session, 99)
    assert session.at == 2
    for _ in range(40):
        page.example(session, EXAMPLES[0])
    assert len(session.history) == 12
    for name in ("../page.js", "nothing", "/etc/passwd"):
        with pytest.raises(ValueError, match="no example"):
            page.example(session, name)


def test_a_job_of_the_page_and_going_on_from_it(page, workshop, files, photo, hole):
    session = Session()
    page.opened(session, url(files[0]))
    with pytest.raises(ValueError, match="nothing is painted"):
        page.submitted(session, controls().request("inpaint"), "", "")
    answer = json.loads(page.submitted(session, controls(n=2).request("inpaint"), url(files[1]), ""))
    job = workshop.job(answer["id"])
    while not job.over:
        time.sleep(0.005)
    page.further(session, job.id, 1)
    made = session.picture.levels
    assert np.array_equal(made[hole == 0], photo[hole == 0])
    assert not np.array_equal(made[hole > 0], photo[hole > 0])
    for id, number in (("nonsense", 0), (job.id, 2), (job.id, -1)):
        with pytest.raises(ValueError, match="there is no "):
            page.further(session, id, number)
    with pytest.raises(ValueError, match="open a picture first"):
        page.submitted(Session(), controls().request("outpaint"), "", "")


@pytest.mark.parametrize("what", list(MAKES))
@pytest.mark.parametrize("order", [*ORDERS, *BY_CERTAINTY])
def test_the_schedule_is_seen_before_it_is_run(page, files, what, order):
    session = Session()
    page.opened(session, url(files[0]))
    says = controls(make=what, order=order)
    surface = json.loads(page.shown(session, says))["order"]
    painted = np.zeros((surface["height"], surface["width"]), np.uint8)
    painted[:, ::2] = 200
    text = page.strip(session, says, url(files[1]), url(png(painted)))
    if order in BY_CERTAINTY:
        assert "no head" in text  # this model has none
    else:
        assert image_in(re.search('src="(.*?)"', text)[1]).width > 500
        page.submitted(session, says.request(MAKES[what], ordered=True), url(files[1]), url(png(painted)))
    missing = page.strip(session, controls(make=what, order="as I paint it"), url(files[1]), "")
    assert "no order is painted yet" in missing


# ---- What is served


def test_the_page_has_nothing_from_elsewhere(client):
    text = client.get("/").text
    assert "/asyncpatch/page.js" in text
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"']?(?:https?:)?//", text)
    assert "fonts.g" not in text
    assert client.get("/").headers["content-security-policy"].startswith("default-src 'self'")
    for name in ("page.js", "page.css", "lake.png"):
        answer = client.get(f"/asyncpatch/{name}")
        assert answer.status_code == 200
        assert b"http://" not in answer.content
        assert b"https://" not in answer.content


@pytest.mark.parametrize(
    "path",
    [
        "/asyncpatch/../page.py", "/asyncpatch/..%2fpage.py", "/asyncpatch/%2fetc%2fpasswd",
        "/gradio_api/file=/etc/passwd", "/gradio_api/file=pyproject.toml", "/gradio_api/file=../../etc/passwd",
        "/gradio_api/file%3d/etc/passwd", "/file=/etc/passwd", "/static/../../../etc/passwd",
        "/static/..%2f..%2f..%2f..%2f..%2fetc%2fpasswd", "/assets/..%2f..%2f..%2fetc%2fpasswd",
        "/gradio_api/file=http://127.0.0.1:1/", "/custom_component/x/component/..%2f..%2fetc%2fpasswd",
    ],
)  # fmt: skip
def test_no_file_can_be_read_from_outside(client, path):
    answer = client.get(path, follow_redirects=False)
    assert answer.status_code in (307, 400, 403, 404, 405), answer.status_code
    assert "root:" not in answer.text
    assert "[build-system]" not in answer.text


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/gradio_api/upload"), ("GET", "/gradio_api/deep_link?session_hash=x"), ("GET", "/monitoring/summary"),
        ("GET", "/gradio_api/proxy=http://127.0.0.1:1/"), ("POST", "/gradio_api/call/on_open"),
        ("POST", "/gradio_api/run/on_open"), ("POST", "/gradio_api/component_server"), ("GET", "/gradio_api/info"),
        ("GET", "/gradio_api/file=/etc/hostname"), ("POST", "/login"), ("GET", "/gradio_api/queue/status"),
    ],
)  # fmt: skip
def test_of_gradios_doors_only_those_of_the_page_are_open(client, method, path):
    answer = client.request(method, path, files={"files": ("x.txt", b"")} if method == "POST" else None)
    assert (answer.status_code, answer.json()) == (404, {"detail": "there is nothing here"})


def test_with_a_token_the_page_asks_for_it(workshop):
    with TestClient(made(workshop, "a secret"), base_url="http://pictures.example") as client:
        for path in ("/", "/config", "/gradio_api/info", "/asyncpatch/page.js"):
            assert client.get(path).status_code == 401
        page = client.get("/", params={"token": "a secret"}, headers={"accept": "text/html"})
        assert (page.status_code, page.url.query) == (200, b"")


def test_the_client_of_the_documents_works(workshop, files, tmp_path, monkeypatch):
    code = re.search(
        r"^```py\n(import time, httpx.*?)^```", (ROOT / "docs/ui.md").read_text(), re.DOTALL | re.MULTILINE
    )[1]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(made(workshop), port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    monkeypatch.chdir(tmp_path)
    for name, data in zip(("photo.png", "mask.png"), files, strict=True):
        (tmp_path / name).write_bytes(data)
    try:
        exec(code.replace("7860", str(port)), {})
    finally:
        server.should_exit = True
        thread.join()
    assert len(list(tmp_path.glob("out-*.png"))) == 2
