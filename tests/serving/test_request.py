"""Requests: what they take, and that the command line and the Python that they say make the same pictures."""

import shlex

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from asyncpatch.cli import app
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.request import NAMES, Given, Request

REQUESTS = [
    Request(tool="generate", label="tabby", n=2, seed=5, width=24, settings={"steps": 2, "eta": 0.5}),
    Request(tool="generate", seed=5, settings={"steps": 2, "schedule": "spiral", "pace": 0.25}),
    Request(tool="inpaint", seed=1, grow=2, feather=1, settings={"steps": 2, "input_guidance": 0.5}),
    Request(tool="inpaint", seed=1, invert=True, settings={"steps": 2, "schedule": "painted"}),
    Request(tool="outpaint", seed=2, n=2, left=8, bottom=3, settings={"steps": 2, "solver": "heun"}),
    Request(tool="texture", seed=2, width=70, height=60, tileable=True, settings={"steps": 2}),
]
ids = [f"{each.tool}-{k}" for k, each in enumerate(REQUESTS)]


@pytest.fixture
def given(photo, hole, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    order = np.add.outer(np.arange(40), np.arange(60)).astype(np.uint8)
    for name, array in zip(NAMES, (photo, hole, order), strict=True):
        Image.fromarray(array).save(name)
    return photo, hole, order


def pictures_for(request, given):
    photo, hole, order = given
    return Given(
        None if request.tool == "generate" else photo,
        hole if request.tool == "inpaint" else None,
        order if request.settings.get("schedule") == "painted" else None,
    )


def names_of(given):
    return Given(*(name if each is not None else None for name, each in zip(NAMES, given, strict=True)))


def check_files(folder, made):
    """That out.png, or out-1.png and so on, are what was made."""
    names = ["out.png"] if len(made.images) == 1 else [f"out-{k}.png" for k in range(1, len(made.images) + 1)]
    assert sorted(file.name for file in folder.glob("out*")) == names
    for name, image in zip(names, made.images, strict=True):
        assert np.array_equal(np.asarray(Image.open(folder / name)), np.asarray(image))


@pytest.mark.parametrize("request_", REQUESTS, ids=ids)
def test_the_command_line_makes_the_same(request_, given, pipe, tiny_model, tmp_path):
    pictures = pictures_for(request_, given)
    (made,) = pipe.run(request_.plan(pipe, pictures))
    words = shlex.split(request_.command(names_of(pictures)))
    machine = ["--model", str(tiny_model), "--device", "cpu", "--precision", "fp32"]
    done = CliRunner().invoke(app, [*words[1:], *machine])
    assert done.exit_code == 0, done.output
    check_files(tmp_path, made)


@pytest.mark.parametrize("request_", REQUESTS, ids=ids)
def test_the_python_makes_the_same(request_, given, pipe, tmp_path, monkeypatch):
    pictures = pictures_for(request_, given)
    (made,) = pipe.run(request_.plan(pipe, pictures))
    monkeypatch.setattr(AsyncPatchPipeline, "default", lambda: pipe)
    exec(request_.python(names_of(pictures)), {})
    check_files(tmp_path, made)


@pytest.mark.parametrize("request_", REQUESTS, ids=ids)
def test_a_request_survives_as_text(request_):
    assert Request.from_text(request_.text()) == request_
    assert Request.of({name: str(value) for name, value in request_.flat().items()}) == request_


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "tool is missing"),
        ({"tool": "paint"}, "tool must be one of"),
        ({"tool": "generate", "grow": 3}, "grow is for inpaint, not for generate"),
        ({"tool": "generate", "nonsense": 3}, "there is no 'nonsense'"),
        ({"tool": "generate", "steps": "many"}, "cannot read 'many'"),
        ({"tool": "generate", "steps": -1}, "at least 1"),
        ({"tool": "generate", "width": -1}, "must not be negative"),
        ({"tool": "generate", "n": True}, "n must be of type int"),
        ({"tool": "generate", "label": ["tabby"]}, "label must be of type str"),
        ({"tool": "generate", "schedule": "../order.png"}, "no schedule"),
        ({"tool": "generate", "schedule": "paced:x"}, "paced:x"),
    ],
)
def test_what_a_request_cannot_be(given, said):
    with pytest.raises(ValueError, match=said):
        Request.of(given)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"tool": []}', "[" * 100_000, '{"settings": {}, "tool": "generate"}'])
def test_damaged_notes_are_an_error_of_the_usual_kind(text):
    with pytest.raises(ValueError, match=r"notes|tool|settings"):
        Request.from_text(text)


def test_a_label_that_looks_like_an_option_stays_a_label():
    words = shlex.split(Request(tool="generate", label="--force; rm -rf", settings={}).command())
    assert words[words.index("--label") + 1] == "--force; rm -rf"


def test_seed_0_is_a_seed(tiny_model):
    pipe = AsyncPatchPipeline.from_pretrained(tiny_model)
    assert Request(tool="generate", seed=0).plan(pipe).tasks[0].seeds == (0,)
