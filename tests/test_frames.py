"""The animation: where things are, what waits, and how long it may get."""

import numpy as np
import pytest
import torch
from PIL import Image

from asyncpatch import frames as module
from asyncpatch.frames import Frames
from asyncpatch.pipelines import AsyncPatchPipeline


@pytest.fixture(scope="module")
def pipe(tiny_model):
    return AsyncPatchPipeline.from_pretrained(tiny_model).prepare("cpu", "fp32")


def photo(height, width):
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def watched(pipe, plan):
    frames = Frames(plan, pipe.model.resolution)
    return frames, pipe.run(plan, frames)[0]


def test_a_coarse_stage_fills_the_whole_hole(pipe):
    hole = torch.zeros(1, 64, 64)
    hole[:, 8:56, 8:56] = 1
    frames, _ = watched(pipe, pipe.plan_inpaint(photo(64, 64), hole, steps=2))
    assert frames.view.box == (0, 0, 64, 64)
    first = np.asarray(frames.frames[0])[::2, ::2]  # enlarged twice
    grey = np.abs(first.astype(int) - 128).max(-1) <= 1
    assert grey[8:56, 8:56].mean() < 0.2


def test_every_candidate_is_shown(pipe):
    frames, _ = watched(pipe, pipe.plan_generate(n=2, steps=2, seed=0))
    assert not torch.equal(frames.shown[0], frames.shown[1])
    assert frames.frames[0].width > 2 * frames.frames[0].height - 20


def test_what_waits_is_grey_and_a_texture_is_shown_whole(pipe):
    plan = pipe.plan_texture(photo(16, 16), (60, 60), steps=2)
    frames, _ = watched(pipe, plan)
    assert frames.view.box == (0, 0, 60, 60)
    first = np.asarray(frames.frames[0])[::2, ::2].astype(int)
    assert (np.abs(first[:6] - 128) <= 1).all()
    partly = pipe.plan_texture(photo(60, 60), hole=np.pad(np.full((4, 4), 255, np.uint8), (0, 56)))
    assert Frames(partly, 16).view.box == (0, 0, 60, 60)


def test_a_long_run_is_thinned_evenly(pipe, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "MOST", 10)
    plan = pipe.plan_generate(steps=64, seed=0)
    frames, made = watched(pipe, plan)
    assert len(frames.frames) < 20
    frames.write(made, tmp_path / "run.gif")
    with Image.open(tmp_path / "run.gif") as gif:
        assert 5 <= gif.n_frames <= 12
        gif.seek(gif.n_frames - 2)
        before = np.asarray(gif.convert("RGB")).astype(int)
        gif.seek(0)
        first = np.asarray(gif.convert("RGB")).astype(int)
        gif.seek(gif.n_frames - 1)
        last = np.asarray(gif.convert("RGB")).astype(int)
    assert np.abs(before - last).mean() < 0.5 * np.abs(first - last).mean()
