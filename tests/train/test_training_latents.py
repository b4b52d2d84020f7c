"""Training on latents: what is encoded, that a run goes on as it was, and what comes of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from asyncpatch import recipes
from asyncpatch.codecs import Latents
from asyncpatch.data.feed import Pictures
from asyncpatch.data.store import Store
from asyncpatch.models.autoencoder import Autoencoder
from asyncpatch.models.folder import Model
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.train import trainer
from asyncpatch.train.config import HeadRecipe
from asyncpatch.train.errors import Stopped, TrainingError
from asyncpatch.train.inputs import draw_holes
from asyncpatch.train.run import train
from asyncpatch.train.trainer import all_tokens, draw_batch
from asyncpatch.train.uncertainty import train_uncertainty
from runs import TINY, TINY_VQ, losses, tensors_of, write_pictures

RECIPE = replace(TINY, resolution=16, steps=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return [str(write_pictures(tmp_path_factory.mktemp("pictures")))]


@pytest.fixture(scope="module")
def coder(data, tmp_path_factory):
    return str(train(TINY_VQ, data, tmp_path_factory.mktemp("coder") / "run", quiet=True))


def test_a_batch_is_encoded_with_the_codes_moments_taken_away(coder):
    net = Autoencoder.load(coder).eval()
    codec = Latents(net, *net.codebook.moments())
    levels = torch.randint(256, (6, 16, 16, 3), generator=torch.Generator().manual_seed(0)).byte()
    pictures = Pictures(levels, torch.zeros(6, dtype=torch.long))
    plain = replace(RECIPE, flips=False)
    batch = draw_batch(plain, pictures, 6, slice(None), 1, codec=codec)
    x = levels.permute(0, 3, 1, 2).float() / 127.5 - 1
    mean, std = (torch.tensor(each).view(1, 3, 1, 1) for each in net.codebook.moments())
    with torch.no_grad():
        wanted = (net.encode(x) - mean) / std
    assert torch.allclose(batch.x, wanted.float(), atol=1e-5)
    assert batch.t.shape == (6, 1, 8, 8)
    assert batch.noise.shape == (6, 3, 8, 8)
    assert not batch.x.requires_grad
    stock = draw_holes("square", 16)
    shown = draw_batch(replace(plain, holes="square"), pictures, 6, slice(None), 1, stock, codec).given
    assert shown.shape == (6, 4, 8, 8)
    hole = shown[:, 3:]
    assert set(hole.unique().tolist()) == {0.0, 1.0}
    assert (shown[:, :3][hole.expand(-1, 3, -1, -1) > 0] == 0).all()


@pytest.mark.parametrize("flips", [True, False])
def test_tokens_that_are_kept_are_those_of_each_batch(coder, flips):
    """And of mirror images, which are not mirrored tokens."""
    net = Autoencoder.load(coder).eval()
    codec, recipe = Latents(net, *net.codebook.moments()), replace(RECIPE, flips=flips)
    random = np.random.default_rng(0)
    store = Store(random.integers(0, 256, (300, 16, 16, 3), np.uint8), np.zeros(300, np.int64), ("a",))
    kept = all_tokens(recipe, store, codec, torch.device("cpu"))
    assert kept.shape == (300, 1 + flips, 3, 8, 8)
    place = torch.tensor([7, 299, 0, 256, 7, 12])
    pictures = Pictures(torch.from_numpy(store.pictures)[place], torch.zeros(6, dtype=torch.long), place)
    plain, quick = (draw_batch(recipe, pictures, 6, slice(None), 1, codec=codec, tokens=each) for each in (None, kept))
    assert torch.allclose(plain.x, quick.x, atol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(plain[1:4], quick[1:4], strict=True))
    seen = {seed: draw_batch(recipe, pictures, 6, slice(None), seed, codec=codec, tokens=kept).x for seed in range(8)}
    assert any(not torch.equal(each[0], each[4]) for each in seen.values()) == flips  # twice the same picture


def test_pictures_are_encoded_once_where_that_pays(data, coder, tmp_path, monkeypatch):
    """24 and their mirror images: if 96 are seen it does not, if 104 are it does."""
    asked = []
    monkeypatch.setattr(trainer, "all_tokens", lambda *given: asked.append(1) or all_tokens(*given))
    recipe = replace(RECIPE, autoencoder=coder, batch=8)
    train(replace(recipe, steps=12), data, tmp_path / "few", quiet=True)
    assert not asked
    train(replace(recipe, steps=13), data, tmp_path / "many", quiet=True)
    assert asked
    monkeypatch.setattr(trainer, "room", lambda device: 1000)
    train(replace(recipe, steps=13), data, tmp_path / "crowded", quiet=True)
    assert len(asked) == 1
    one, two = losses(tmp_path / "many"), losses(tmp_path / "crowded")
    assert [one[k] for k in one] == pytest.approx([two[k] for k in one], rel=1e-4)


def test_a_run_on_latents_stops_goes_on_and_ends_as_a_model(data, coder, tmp_path):
    recipe = replace(RECIPE, autoencoder=coder)
    train(recipe, data, tmp_path / "whole", quiet=True)
    with pytest.raises(Stopped):
        train(recipe, data, tmp_path / "parts", quiet=True, minutes=0.0)
    train(recipe, data, tmp_path / "parts", quiet=True, resume=True)
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")
    one, two = (tensors_of(tmp_path / name, 4) for name in ("whole", "parts"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    model = Model.load(tmp_path / "parts/model")
    assert (model.resolution, model.tokens) == (16, 8)
    kept, given = model.codec.coder.state_dict(), Autoencoder.load(coder).state_dict()
    assert all(torch.equal(kept[name], given[name]) for name in given)
    found = train_uncertainty(
        tmp_path / "parts/model", data, HeadRecipe(steps=2, batch=4, device="cpu"), say=lambda text: None
    )  # fmt: skip
    assert found["pictures"] > 0
    pipe = AsyncPatchPipeline.from_pretrained(tmp_path / "parts/model").prepare("cpu", "fp32")
    picture = np.random.default_rng(0).integers(0, 256, (20, 20, 3), np.uint8)
    hole = np.zeros((20, 20), bool)
    hole[5:12, 6:13] = True
    made = pipe.inpaint(picture, hole, seed=0, steps=2, schedule="paced").pictures[0].levels
    assert np.array_equal(made[~hole], picture[~hole])


def test_fine_tuning_and_mistakes(data, coder, tmp_path):
    recipe = replace(RECIPE, steps=2, autoencoder=coder)
    first = train(recipe, data, tmp_path / "first", quiet=True)
    train(replace(recipe, autoencoder=str(first)), data, tmp_path / "more", init=str(first), quiet=True)
    assert Model.load(tmp_path / "more/model").codec.told() == Model.load(first).codec.told()
    with pytest.raises(TrainingError, match="works on latents: add --autoencoder"):
        train(replace(recipe, autoencoder=""), data, tmp_path / "none", init=str(first), quiet=True)
    with pytest.raises(TrainingError, match="started with --autoencoder: that stays"):
        train(replace(recipe, autoencoder="", steps=3), data, tmp_path / "first", resume=True, quiet=True)
    with pytest.raises(ValueError, match="this recipe is for latents: add --autoencoder"):
        train(recipes.latent128_23m(), data, tmp_path / "left-out", quiet=True)
    with pytest.raises(FileNotFoundError, match="holds no autoencoder"):
        train(replace(recipe, autoencoder=str(tmp_path)), data, tmp_path / "wrong", quiet=True)
    with pytest.raises(ValueError, match="resolution must divide by 2 with this autoencoder, got 15"):
        train(replace(recipe, resolution=15), data, tmp_path / "odd", quiet=True)


def test_a_network_that_is_shown_what_is_known_of_latents(data, coder, tmp_path):
    recipe = replace(RECIPE, steps=2, autoencoder=coder, holes="square", times="global")
    model = Model.load(train(recipe, data, tmp_path / "run", quiet=True))
    assert model.net.config["given"]
    assert len(list((tmp_path / "run/pictures").glob("inpainting-*.png"))) == 1


def test_pictures_are_encoded_by_what_is_compiled_or_without(coder, monkeypatch):
    """The same latents: compiled (all but the last stage, in which code is made), or after that has failed."""
    from torch._dynamo.exc import BackendCompilerFailed

    net, said = Autoencoder.load(coder).eval(), []
    x, hole = torch.rand(2, 3, 16, 16) * 2 - 1, torch.zeros(2, 1, 16, 16)
    hole[..., 4:9] = 1
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda what, **how: compile_(what, **how, backend="aot_eager"))
    quick = trainer.Quick(net, said.append)

    def broken(*given):
        raise BackendCompilerFailed(lambda: None, RuntimeError("no compiler"), None)

    with torch.no_grad():
        wanted = net.encode(x, hole)
        assert torch.allclose(quick.encode(x, hole), wanted, atol=1e-5)
        assert (quick.factor, said) == (net.factor, [])
        quick.compiled = broken
        for _ in range(2):
            assert torch.equal(quick.encode(x, hole), wanted)
    assert len(said) == 1
    assert "without it, which is slower" in said[0]


def test_where_networks_are_compiled_the_autoencoder_is_too(data, coder, tmp_path, monkeypatch):
    used = []

    def compiled(what, **how):
        return lambda *given: used.append(len(given[0])) or what(*given)

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **how: None)
    recipe = replace(RECIPE, steps=2, autoencoder=coder, holes="square", times="global", compile="on")
    train(recipe, data, tmp_path / "run", quiet=True)
    assert used == [recipe.batch] * 4  # at each step whole pictures, and what is known of them
