"""A model of latents does all that one of pixels does, through the same doors."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from asyncpatch.cli import app
from asyncpatch.codecs import Latents
from asyncpatch.data.masks import holes
from asyncpatch.data.store import Store
from asyncpatch.evaluation import Cell, Evaluation, markdown
from asyncpatch.frames import Frames
from asyncpatch.images import ImageError
from asyncpatch.judging import judge, path_by_name, rank
from asyncpatch.models.folder import Model
from asyncpatch.pipelines import AsyncPatchPipeline, Speed
from asyncpatch.progress import Work
from asyncpatch.settings import Settings

PHOTO = np.random.default_rng(0).integers(0, 256, (50, 61, 3), np.uint8)
MASK = np.zeros((50, 61), bool)
MASK[11:24, 20:43] = True


@pytest.fixture
def pipe(tiny_latent_model):
    return AsyncPatchPipeline.from_pretrained(tiny_latent_model).prepare("cpu", "fp32")


def test_a_folder_keeps_the_codec(tiny_latent_model, tmp_path, pipe):
    model = Model.load(tiny_latent_model)
    assert isinstance(model.codec, Latents)
    assert (model.resolution, model.tokens, model.codec.factor) == (32, 16, 2)
    model.save(tmp_path / "again")
    pipe.save_pretrained(tmp_path / "piped")
    for folder in ("again", "piped"):
        for other in (Model.load(tmp_path / folder), AsyncPatchPipeline.from_pretrained(tmp_path / folder).model):
            assert other.codec.told() == model.codec.told()
            mine, theirs = (each.codec.coder.state_dict() for each in (model, other))
            assert all(torch.equal(value, theirs[name]) for name, value in mine.items())
    with pytest.raises(ValueError, match="has an autoencoder"):
        AsyncPatchPipeline(pipe.unet, vae=pipe.vae)


@pytest.mark.parametrize("schedule", ["synchronous", "raster", "spiral:8"])
def test_holes_are_filled_and_nothing_else_changes(pipe, schedule):
    made = pipe.inpaint(PHOTO, MASK, n=2, seed=1, steps=3, schedule=schedule)
    for each in made.pictures:
        assert np.array_equal(each.levels[~MASK], PHOTO[~MASK])
        assert each.levels[MASK].std() > 0
    assert not np.array_equal(made.pictures[0].levels, made.pictures[1].levels)
    other = PHOTO.copy()
    other[MASK] = 7  # what was in the hole does not matter
    again = pipe.inpaint(other, MASK, n=2, seed=1, steps=3, schedule=schedule)
    assert np.array_equal(again.pictures[1].levels, made.pictures[1].levels)


def test_all_tools_work(pipe, tmp_path):
    new = pipe.generate("cat", n=2, seed=0, steps=3, size=(33, 70))
    assert [each.size for each in new.pictures] == [(33, 70)] * 2
    wide = pipe.outpaint(PHOTO, right=20, top=5, seed=0, steps=3).pictures[0]
    assert np.array_equal(wide.levels[5:, :61], PHOTO)
    tile = pipe.texture(PHOTO[:24, :24], (48, 60), tileable=True, seed=0, steps=2).pictures[0]
    assert np.array_equal(tile.levels[12:36, 18:42], PHOTO[:24, :24])
    plan = pipe.plan_inpaint(PHOTO, MASK, seed=1, steps=3)
    frames, seen = Frames(plan, pipe.model.resolution), []
    made = pipe.run(plan, lambda glimpse: (frames(glimpse), seen.append(glimpse.windows)))
    assert sum(seen) == pipe.work(plan)
    frames.write(made[0], tmp_path / "a.gif")
    with Image.open(tmp_path / "a.gif") as gif:
        assert gif.n_frames == 4
    assert min(pipe.speed(1)) > 0


def test_a_tile_of_parts_of_tokens_is_refused_at_once(pipe):
    with pytest.raises(ImageError, match="tileable with this model, sides must divide by 2; got 47x48"):
        pipe.plan_texture(PHOTO[:24, :24], (48, 47), tileable=True)


def test_the_time_of_coding_is_estimated_too(pipe):
    """40 seconds to encode a window, 60 to decode it, and 1 for the network, asked twice a step for its guidance."""
    speed, plan = (
        Speed(1.0, 40.0, 60.0),
        pipe.plan_generate(steps=5, class_guidance=1.0, label=0, solver="ddim", seed=0),
    )
    assert pipe.work(plan) == 10
    assert Work(pipe, plan, speed).left == pytest.approx(10 * 1.0 + 40.0 + 60.0)
    assert Work(pipe, plan, speed, watched=True).left == pytest.approx(10 * 1.0 + 40.0 + 60.0 + 5 * 60.0)


def test_times_of_part_of_a_token_are_those_of_the_whole(pipe):
    times = []
    hole = np.zeros((50, 61), np.uint8)
    hole[21, 31] = 255
    pipe.inpaint(PHOTO, hole, seed=0, steps=2, watch=lambda glimpse: times.append(glimpse.moment.visit.t[0, 0]))
    assert (times[0] > 0).sum() == 9  # one token, and its neighbours
    assert times[0].shape == (16, 16)


def test_likelihood_is_that_of_latents(pipe):
    made = pipe.inpaint(PHOTO, MASK, n=2, seed=1, steps=2)
    task = pipe.plan_inpaint(PHOTO, MASK, n=2, seed=1).tasks[0]
    assert rank(pipe, task, made.pictures, calls=2).isfinite().all()
    terms = judge(pipe, made.pictures[0], path_by_name("synchronous"), calls=2)
    assert terms.map.shape == (1, 1, 25, 31)
    # continuous data: no levels, so the reconstruction is that of the density
    assert terms.total.isfinite().all()


def test_evaluation_fills_by_tokens_whatever_the_method(pipe, tmp_path):
    store = Store(
        np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), np.uint8), np.zeros(12, np.int64), ("cat",)
    )
    work = Evaluation(pipe, tmp_path, {"noise": store})
    for method in ("asyncpatch", "replacement", "ddnm"):
        row = work.result(Cell("noise", "square", method, Settings(steps=2), 3))
        assert np.isfinite(row["psnr"][0])
        assert row["calls"] >= 2


def test_what_is_judged_is_decoded_unless_originals_are_asked_for(pipe, tmp_path, monkeypatch):
    store = Store(np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8), np.zeros(2, np.int64), ("cat",))
    x = torch.from_numpy(store.pictures).permute(0, 3, 1, 2) / 127.5 - 1.0
    hole = holes("square", [0, 1], 32, 32)
    seen = []
    judge = "asyncpatch.evaluation.computing.psnr_in_hole"
    monkeypatch.setattr(judge, lambda made, *rest: seen.append(made) or torch.zeros(2))
    for method in ("asyncpatch", "ddnm"):
        for paste in (False, True):
            work = Evaluation(pipe, tmp_path, {"noise": store}, paste=paste)
            row = work.result(Cell("noise", "square", method, Settings(steps=2), 2))
            assert (row.get("pasted"), "pasted" in markdown([row])) == (paste or None, paste)
            known = (hole == 0).expand_as(x)
            assert torch.allclose(seen[-1][known], x[known], atol=1e-5) == paste
            codec = pipe.model.codec
            far = (codec.pixels(codec.tokens(hole), (32, 32)) == 0).expand_as(x)  # whatever is there was decoded
            with torch.no_grad():
                again = codec.decode(codec.encode(x, hole), (32, 32))
            assert (seen[-1] - again)[far].abs().mean() < 0.1 or paste
    assert len({file.name for file in (tmp_path / "cells").iterdir()}) == 4


def test_ring_by_ring_originals_are_pasted(pipe):
    plan = pipe.plan_texture(PHOTO[:24, :24], (48, 60), seed=0, steps=2)
    with pytest.raises(ValueError, match="rings need paste"):
        pipe.run(replace(plan, paste=False))


def test_from_the_command_line(tiny_latent_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.fromarray(PHOTO).save("photo.png")
    Image.fromarray(MASK).save("mask.png")
    machine = ["--model", str(tiny_latent_model), "--device", "cpu", "--precision", "fp32"]
    done = CliRunner().invoke(
        app, ["inpaint", "photo.png", "--mask", "mask.png", "-o", "out.png", "--steps", "2", *machine]
    )
    assert done.exit_code == 0, done.output
    assert np.array_equal(np.asarray(Image.open("out.png"))[~MASK], PHOTO[~MASK])
    shown = CliRunner().invoke(app, ["info", *machine]).output
    assert "latents" in shown
    judged = CliRunner().invoke(
        app, ["elbo", "out.png", "--calls", "2", "--map", "maps", *machine], env={"COLUMNS": "200"}
    )
    assert judged.exit_code == 0, judged.output
    assert "bits per number of the latents" in " ".join(judged.output.split())
    with Image.open("maps/out.png.png") as drawn:
        assert drawn.size == (4 * 62, 4 * 50)  # four times as large, and whole tokens
    index = json.loads((tiny_latent_model / "model_index.json").read_text())
    assert index["vae"] == ["asyncpatch.models.autoencoder", "Autoencoder"]
