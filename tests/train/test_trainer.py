"""The trainer, in one process: what it learns, what it draws, and how it stops."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from asyncpatch import oracle, recipes
from asyncpatch.data.feed import Pictures
from asyncpatch.data.masks import holes
from asyncpatch.models.denoiser import NetworkDenoiser
from asyncpatch.models.folder import Model, relabelled
from asyncpatch.models.unet import UNet
from asyncpatch.process import RectifiedFlow
from asyncpatch.protocols import Cond
from asyncpatch.time_sampling import AsyncPatch
from asyncpatch.train import checkpoint
from asyncpatch.train.errors import Stopped, TrainingError
from asyncpatch.train.inputs import HOLES, draw_holes
from asyncpatch.train.run import train
from asyncpatch.train.trainer import Batch, Trainer, draw_batch
from runs import TINY, losses, tensors_of, write_pictures

# Losses of 20 steps as first computed (torch 2.13, CPU). They change only if training changes: say why when they do.
GOLDEN = [
    0.933035, 0.569241, 0.953496, 0.738842, 0.598232, 0.597053, 0.784307, 0.689987, 0.764461, 0.627401,
    0.852454, 0.621165, 0.831845, 0.715711, 0.698752, 0.644616, 0.787095, 0.666090, 0.361650, 0.690343,
]  # fmt: skip


def trained(recipe, data, run, **options):
    return train(recipe, data, run, quiet=True, **options)


def test_golden_losses(data, tmp_path):
    trained(replace(TINY, steps=20), data, tmp_path / "run")
    assert list(losses(tmp_path / "run").values()) == pytest.approx(GOLDEN, rel=1e-4)


def make_trainer(recipe, labels=2, **more):
    torch.manual_seed(0)
    net = UNet(
        width=recipe.width, multipliers=recipe.multipliers, blocks=recipe.blocks, attention=recipe.attention,
        middle_blocks=recipe.middle_blocks, labels=labels, **more,
    )  # fmt: skip
    model = Model(net, RectifiedFlow(), recipe.prediction, recipe.resolution, tuple("abcdef"[:labels]))
    return Trainer(recipe, model, Accelerator(cpu=True), print)


def some_batch(count=8, side=8):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(count, 3, side, side, generator=generator) * 2 - 1
    noise = torch.randn(count, 3, side, side, generator=generator)
    t = AsyncPatch().sample(count, side, side, generator=generator)
    return Batch(x, torch.arange(count) % 2, t, noise)


@pytest.mark.parametrize("prediction", ["v", "x", "eps"])
def test_one_batch_is_learnt_by_heart(prediction):
    recipe = replace(TINY, width=32, rate=3e-3, warmup=10, steps=300, decay=0.5, prediction=prediction)
    trainer, batch = make_trainer(recipe), some_batch()
    before = trainer.loss(trainer.net, batch).detach()
    for _ in range(recipe.steps):
        trainer.update(batch)
    assert trainer.loss(trainer.net, batch).detach() < 0.05 * before


def test_pieces_change_nothing():
    batch = some_batch()
    weights = []
    for pieces in (1, 4):
        trainer = make_trainer(replace(TINY, accumulate=pieces))
        for _ in range(3):
            trainer.update(batch)
        weights.append(torch.cat([p.detach().flatten() for p in trainer.parameters]))
        assert trainer.meter[-1] == 3
    assert torch.allclose(*weights, atol=1e-5)


def test_checkpointing_changes_nothing():
    batch, gradients = some_batch(), []
    for on in (False, True):
        trainer = make_trainer(replace(TINY, checkpointing=on))
        trainer.update(batch)  # the last layer starts at zero: only then does a gradient reach the others
        trainer.loss(trainer.net, batch).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in trainer.parameters]))
    assert gradients[0].norm() > 0
    assert torch.allclose(*gradients, atol=1e-6)


def test_what_is_drawn_for_a_batch():
    levels = torch.arange(2000 * 4 * 4 * 3).remainder(256).to(torch.uint8).view(2000, 4, 4, 3)
    pictures = Pictures(levels, torch.ones(2000, dtype=torch.long))
    batch = draw_batch(TINY, pictures, 2000, slice(None), seed=1)
    straight = levels.permute(0, 3, 1, 2).float() / 127.5 - 1
    same = (batch.x == straight).flatten(1).all(1)
    mirrored = (batch.x == straight.flip(3)).flatten(1).all(1)
    assert bool((same | mirrored).all())
    assert same.float().mean() == pytest.approx(0.5, abs=0.05)
    assert (batch.label == -1).float().mean() == pytest.approx(0.1, abs=0.03)
    assert float(batch.noise.mean()) == pytest.approx(0, abs=0.02)
    assert float(batch.noise.std()) == pytest.approx(1, abs=0.02)
    assert batch.t.shape == (2000, 1, 4, 4)
    plain = draw_batch(replace(TINY, flips=False, label_dropout=0.0), pictures, 2000, slice(None), seed=1)
    assert torch.equal(plain.x, straight)
    assert bool((plain.label == 1).all())
    other = draw_batch(TINY, pictures, 2000, slice(None), seed=2)
    assert not torch.equal(other.noise, batch.noise)
    assert not torch.equal(other.t, batch.t)


def test_rows_of_a_batch_are_drawn_as_in_the_whole():
    """What makes two processes equal to one: noise, fields, flips and dropped labels do not depend on the share."""
    levels = torch.randint(256, (8, 4, 4, 3), dtype=torch.uint8)
    whole = draw_batch(TINY, Pictures(levels, torch.arange(8)), 8, slice(None), seed=1)
    for rows in (slice(0, 4), slice(4, 8)):
        part = draw_batch(TINY, Pictures(levels[rows], torch.arange(8)[rows]), 8, rows, seed=1)
        assert all(torch.equal(a[rows], b) for a, b in zip(whole[:4], part[:4], strict=True))


def test_what_is_drawn_of_holes():
    pictures = Pictures(torch.zeros(2000, 8, 8, 3, dtype=torch.uint8), torch.zeros(2000, dtype=torch.long))
    recipe, stock = replace(TINY, holes="square,wide"), draw_holes("square, wide", 8)
    assert len(stock) == 2 * HOLES
    batch = draw_batch(recipe, pictures, 2000, slice(None), 1, stock)
    hole = batch.given[:, 3:]
    whole = hole.flatten(1).all(1)
    assert whole.float().mean() == pytest.approx(0.1, abs=0.03)
    share = hole[~whole].flatten(1).mean(1)
    assert (share == 0.25).float().mean() == pytest.approx(0.5, abs=0.07)  # squares, nearly all of that size
    part = draw_batch(recipe, Pictures(*(each[500:] for each in pictures[:2])), 2000, slice(500, None), 1, stock)
    assert torch.equal(batch.given[500:], part.given)
    assert torch.equal(batch.given[:, :3], torch.where(hole > 0, 0.0, batch.x))
    plain = draw_batch(TINY, pictures, 2000, slice(None), 1)
    assert plain.given is None
    assert torch.equal(plain.noise, batch.noise)


def test_a_network_learns_to_look_at_what_it_is_shown():
    """Pictures of one colour: at time 1 only what is shown tells which."""
    recipe = replace(TINY, holes="square", times="global", rate=5e-3, warmup=10, ema=0.9, bias=-2.0)
    trainer = make_trainer(recipe, given=True)
    generator = torch.Generator().manual_seed(0)
    for _ in range(150):
        levels = torch.randint(256, (16, 1, 1, 3), generator=generator).byte().expand(16, 8, 8, 3)
        seed = int(torch.randint(1 << 30, (), generator=generator))
        pictures = Pictures(levels, torch.zeros(16, dtype=torch.long))
        trainer.update(draw_batch(recipe, pictures, 16, slice(None), seed, trainer.holes))
    x = (torch.rand(64, 3, 1, 1, generator=generator) * 2 - 1).expand(64, 3, 8, 8)
    z, t = torch.randn(x.shape, generator=generator), torch.ones(64, 1, 8, 8)
    hole = holes("square", range(64), 8, 8)
    with torch.no_grad():
        denoiser = trainer.averaged().denoiser
        told, blind = ((denoiser(z, t, cond).x - x).square().mean() for cond in (Cond(picture=x, hole=hole), Cond()))
    assert told < 0.5 * blind


def test_a_run_with_holes_goes_on_as_such_alone(data, tmp_path):
    recipe, run = replace(TINY, steps=2, holes="square", times="global"), tmp_path / "run"
    trained(recipe, data, run)
    model = Model.load(run / "model")
    assert model.net.config["given"]
    assert len(list((run / "pictures").glob("inpainting-*.png"))) == 1
    trained(replace(recipe, steps=3), data, run, resume=True)
    for wrong, given in ((replace(recipe, holes=""), run), (recipe, tmp_path / "plain")):
        if given != run:
            trained(replace(TINY, steps=1), data, given)
        with pytest.raises(TrainingError, match=r"is shown (no )?pictures with holes.*--holes"):
            trained(wrong, data, tmp_path / "more", init=str(given / "model"))
    with pytest.raises(ValueError, match="add --times global"):
        trained(replace(recipe, times="asyncpatch"), data, tmp_path / "other")
    with pytest.raises(ValueError, match=r"holes must be of extrema, square.* got 'round'"):
        trained(replace(recipe, holes="square,round"), data, tmp_path / "other")


def test_a_run_leaves_what_it_promises(data, tmp_path):
    run = tmp_path / "run"
    recipe = replace(TINY, snapshot_every=3, picture_every=3)
    assert trained(recipe, data, run) == run / "model"
    config = json.loads((run / "config.json").read_text())
    assert config["recipe"]["batch"] == 8
    assert config["data"] == data
    assert config["processes"] == 1
    assert len(losses(run)) == 6
    assert [path.name for path in checkpoint.all_in(run / "checkpoints")] == ["step-00000004", "step-00000006"]
    names = {path.name for path in (run / "pictures").iterdir()}
    assert names == {f"{kind}-0000000{step}.png" for kind in ("samples", "inpainting") for step in (3, 6)}
    assert len(list((run / "snapshots").iterdir())) == 4
    assert list((run / "tensorboard").iterdir())
    page = (run / "report.html").read_text()
    for part in ("<polyline", "data:image/png", "held-out loss", "asyncpatch", "48"):
        assert part in page
    assert "http" not in page
    model = Model.load(run / "model")
    assert model.labels == ("dark", "light")
    assert model.resolution == 8
    tensors = tensors_of(run, 6)
    for name, value in model.net.state_dict().items():
        assert torch.equal(value, tensors[f"average/ema/{name}"])


def test_a_used_folder_is_not_overwritten(data, tmp_path):
    trained(replace(TINY, steps=2), data, tmp_path / "run")
    with pytest.raises(TrainingError, match="already holds a run"):
        trained(replace(TINY, steps=2), data, tmp_path / "run")


@pytest.mark.parametrize("log_every", [1, 4])
def test_time_that_is_over_stops_and_resumes_to_the_same_end(data, tmp_path, log_every):
    tiny = replace(TINY, log_every=log_every)
    trained(tiny, data, tmp_path / "whole")
    for step in range(1, 6):  # each time it manages one step, then its time is over
        with pytest.raises(Stopped, match=f"saved step {step} of 6") as stopped:
            trained(tiny, data, tmp_path / "parts", minutes=0.0, resume=True)
        assert stopped.value.code == 0
        exported = Model.load(tmp_path / "parts/model").net.state_dict()
        kept = tensors_of(tmp_path / "parts", step)
        assert all(torch.equal(exported[name], kept[f"average/ema/{name}"]) for name in exported)
    trained(tiny, data, tmp_path / "parts", minutes=0.0, resume=True)
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")
    one, two = (tensors_of(tmp_path / name, 6) for name in ("whole", "parts"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_damaged_checkpoint_is_passed_over(data, tmp_path, capsys):
    trained(TINY, data, tmp_path / "run")
    first = losses(tmp_path / "run")
    (tmp_path / "run/checkpoints/step-00000006/state.safetensors").write_bytes(b"damaged")
    train(TINY, data, tmp_path / "run", resume=True)
    said = capsys.readouterr().err
    assert "step-00000006 cannot be read" in said
    assert "going on from" in said
    assert losses(tmp_path / "run") == first


def test_a_loss_that_is_no_number_stops_the_run(data, tmp_path):
    run = tmp_path / "run"
    trained(replace(TINY, steps=2), data, run)
    with pytest.raises(TrainingError, match=r"(?s)no longer a number.*step-00000002.*lower --rate"):
        trained(replace(TINY, steps=20, rate=1e30), data, run, resume=True)
    assert [path.name for path in checkpoint.all_in(run / "checkpoints")] == ["step-00000002"]
    assert all(bool(value.isfinite().all()) for value in tensors_of(run, 2).values())
    trained(replace(TINY, steps=4), data, run, resume=True)
    assert len(losses(run)) == 4


@pytest.fixture
def _small_memory(monkeypatch):
    """Three pictures at a time fit, more do not."""
    real = Trainer.loss

    def loss(self, net, batch):
        if len(batch.x) > 3 and torch.is_grad_enabled():
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, net, batch)

    monkeypatch.setattr(Trainer, "loss", loss)


@pytest.mark.usefixtures("_small_memory")
def test_out_of_memory_says_which_number_to_change(data, tmp_path, capsys):
    with pytest.raises(TrainingError, match=r"8 pictures at a time.*--accumulate from 1 to 2.*--batch auto"):
        trained(TINY, data, tmp_path / "one")
    train(replace(TINY, accumulate="auto"), data, tmp_path / "two")
    assert "memory holds 2 pictures at a time: --accumulate 4" in capsys.readouterr().err
    assert len(losses(tmp_path / "two")) == 6
    train(replace(TINY, batch=5, accumulate="auto", steps=1), data, tmp_path / "three")
    assert "memory holds 1 pictures at a time: --accumulate 5" in capsys.readouterr().err


def test_fitting_a_batch_by_pieces_changes_nothing(data, tmp_path, monkeypatch):
    trained(replace(TINY, accumulate=4), data, tmp_path / "told")
    with monkeypatch.context() as patch:
        real = Trainer.loss
        patch.setattr(
            Trainer, "loss",
            lambda self, net, batch: real(self, net, batch) if len(batch.x) < 4 or not torch.is_grad_enabled()
            else (_ for _ in ()).throw(torch.OutOfMemoryError("full")),
        )  # fmt: skip
        trained(replace(TINY, accumulate="auto"), data, tmp_path / "found")
    assert losses(tmp_path / "told") == losses(tmp_path / "found")


def test_a_compiler_that_fails_is_said_and_done_without(data, tmp_path, monkeypatch, capsys):
    from torch._dynamo.exc import BackendCompilerFailed

    real, calls = Trainer.update, []

    def update(self, batch):
        calls.append(bool(self.compiled))
        if self.compiled:
            raise BackendCompilerFailed(lambda: None, RuntimeError("no compiler"), None)
        real(self, batch)

    monkeypatch.setattr(Trainer, "update", update)
    train(replace(TINY, compile="on"), data, tmp_path / "run")
    assert "torch.compile does not work here" in capsys.readouterr().err
    assert calls == [True] + [False] * 6


def test_a_device_that_is_missing_is_said(data, tmp_path):
    with pytest.raises(TrainingError, match="there is only"):
        trained(replace(TINY, device="mps" if torch.cuda.is_available() else "cuda"), data, tmp_path / "run")
    with pytest.raises(TrainingError, match="start several with torchrun"):
        trained(replace(TINY, shard=True), data, tmp_path / "run")


@pytest.mark.parametrize("log_every", [1, 100])
def test_nothing_is_saved_once_weights_are_no_numbers(data, tmp_path, log_every):
    """The loss of the step that breaks them is still a number: what is saved must be looked at itself."""
    run = tmp_path / "run"
    trained(replace(TINY, steps=2), data, run)
    with pytest.raises(TrainingError, match="no longer a number"):
        trained(
            replace(TINY, steps=9, rate=1e30, save_every=1, keep=1, warmup=0, log_every=log_every),
            data,
            run,
            resume=True,
        )
    assert [path.name for path in checkpoint.all_in(run / "checkpoints")] == ["step-00000002"]
    trained(replace(TINY, steps=3), data, run, resume=True)


def test_a_gradient_that_is_no_number_is_noticed(data, tmp_path, monkeypatch):
    real = Accelerator.clip_grad_norm_
    monkeypatch.setattr(Accelerator, "clip_grad_norm_", lambda *args: real(*args) * float("nan"))
    with pytest.raises(TrainingError, match=r"(?s)no longer a number.*no checkpoint yet"):
        trained(TINY, data, tmp_path / "run")


def test_resuming_with_what_does_not_fit_is_refused_and_harmless(data, tmp_path):
    run = tmp_path / "run"
    trained(replace(TINY, steps=2), data, run)
    other = write_pictures(tmp_path / "other", classes=("dark", "grey"))
    with pytest.raises(TrainingError, match=r"2 classes.*--init"):
        trained(replace(TINY, steps=4), [str(other)], run, resume=True)
    with pytest.raises(TrainingError, match="--resolution 8"):
        trained(replace(TINY, steps=4, resolution=16), data, run, resume=True)
    before = (run / "config.json").read_text()
    trained(replace(TINY, steps=4, width=64), data, run, resume=True)  # the network is that of the checkpoint
    assert json.loads(before)["data"] == json.loads((run / "config.json").read_text())["data"] == data
    assert Model.load(run / "model").net.config.width == 16


def test_a_fine_tuning_run_does_not_need_its_beginning_again(data, tmp_path):
    trained(replace(TINY, steps=1), data, tmp_path / "first")
    small = replace(TINY, steps=2, width=99)
    trained(small, data, tmp_path / "second", init=str(tmp_path / "first/model"))
    (tmp_path / "first").rename(tmp_path / "gone")
    trained(replace(small, steps=3), data, tmp_path / "second", init=str(tmp_path / "first/model"), resume=True)
    assert len(losses(tmp_path / "second")) == 3


def test_a_finished_run_without_a_model_gets_one(data, tmp_path):
    trained(replace(TINY, steps=2), data, tmp_path / "run")
    (tmp_path / "run/model").rename(tmp_path / "lost")
    trained(replace(TINY, steps=2), data, tmp_path / "run", resume=True)
    one, two = (Model.load(folder).net.state_dict() for folder in (tmp_path / "run/model", tmp_path / "lost"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_checkpoints_that_cannot_be_read_are_not_forgotten(data, tmp_path):
    trained(replace(TINY, steps=2), data, tmp_path / "run")
    (tmp_path / "run/checkpoints/step-00000002/facts.json").write_text("{")
    with pytest.raises(TrainingError, match="none of the checkpoints"):
        trained(replace(TINY, steps=4), data, tmp_path / "run", resume=True)
    assert list(losses(tmp_path / "run")) == [1, 2]


def test_pieces_must_be_equal(data, tmp_path):
    with pytest.raises(ValueError, match="accumulate must divide each process's 8 pictures"):
        trained(replace(TINY, accumulate=3), data, tmp_path / "run")


def test_layers_compiled_apart_are_allowed_their_shapes(monkeypatch):
    """Four scales of layers share their code, and have more shapes than dynamo's usual limit of versions."""
    import torch._dynamo

    monkeypatch.setattr(torch.nn.Module, "compile", lambda self, **how: None)
    recipe = replace(TINY, multipliers=(1, 2, 3, 4), blocks=(1, 1, 1, 1), compile="on")
    with torch._dynamo.config.patch(recompile_limit=8):  # monkeypatch would leave it without one
        trainer = make_trainer(recipe)
        object.__setattr__(trainer.recipe, "shard", True)
        trainer._compile(trainer.bare)
        assert len(trainer.compiled) == 13
        assert torch._dynamo.config.recompile_limit >= 13


def test_fine_tuning_keeps_what_is_known(data, tmp_path, capsys):
    trained(TINY, data, tmp_path / "first")
    old = Model.load(tmp_path / "first/model")
    other = write_pictures(tmp_path / "other", classes=("light", "new"))
    frozen = replace(TINY, steps=1, rate=1e-30, width=99, prediction="x")  # its network is that of the folder
    train(frozen, [str(other)], tmp_path / "second", init=str(tmp_path / "first/model"))
    new = Model.load(tmp_path / "second/model")
    assert "knows 1 of the 2 classes" in capsys.readouterr().err
    assert new.labels == ("light", "new")
    assert new.prediction == "v"
    z, t = torch.randn(1, 3, 8, 8), torch.rand(1, 1, 8, 8)

    def answer(model, label):
        with torch.no_grad():
            return model.net(z, t, None if label is None else torch.tensor([label]))

    assert torch.allclose(answer(new, 0), answer(old, 1), atol=1e-6)
    assert torch.allclose(answer(new, 1), answer(old, None), atol=1e-6)
    assert torch.allclose(answer(new, None), answer(old, None), atol=1e-6)
    assert not torch.allclose(answer(old, 0), answer(old, 1), atol=1e-6)


def test_relabelling_to_no_classes():
    net = UNet(width=16, multipliers=(1,), blocks=(1,), middle_blocks=1, attention=0, labels=2)
    bare = relabelled(net, ("a", "b"), ())
    assert torch.equal(bare.label.weight, net.label.weight[-1:])


def test_a_model_folder_holds_all_it_takes(tmp_path):
    net = UNet(width=16, multipliers=(1, 2), blocks=(1, 1), middle_blocks=1, attention=0, labels=2)
    Model(net, RectifiedFlow(), "eps", 8, ("a", "b")).save(tmp_path / "model")
    back = Model.load(tmp_path / "model", dtype=torch.bfloat16)
    assert isinstance(back.denoiser, NetworkDenoiser)
    assert (back.prediction, back.resolution, back.labels) == ("eps", 8, ("a", "b"))
    assert isinstance(back.process, RectifiedFlow)
    assert next(back.net.parameters()).dtype == torch.bfloat16
    assert not list((tmp_path / "model").rglob("*.bin"))
    with pytest.raises(FileNotFoundError, match="no model folder"):
        Model.load(tmp_path)


def test_the_smoke_recipe_learns_what_can_be_learnt(tmp_path):
    """Pictures are fields of Gaussian noise, for which the best possible answer is known.

    What the untrained network loses against the exact denoiser, the trained one must have made good by nine tenths,
    on pictures it has not seen: for AsyncPatch fields and where a square is to be filled into a known rest.
    """
    from PIL import Image

    process, side = RectifiedFlow(), 16
    exact = oracle.gaussian_field(process, side, side, length=3.0)

    def draw(count, seed):
        field = exact.draw(3 * count, generator=torch.Generator().manual_seed(seed))
        return 0.3 * field.view(count, 3, side, side)

    for k, x in enumerate(draw(2000, 0)):
        levels = ((x.permute(1, 2, 0).clamp(-1, 1) + 1) * 127.5).round().byte().numpy()
        (tmp_path / "data").mkdir(exist_ok=True)
        Image.fromarray(levels).save(tmp_path / f"data/{k}.png")
    recipe = replace(recipes.smoke(), device="cpu", picture_every=1000)
    model = Model.load(trained(recipe, [str(tmp_path / "data")], tmp_path / "run"))

    generator = torch.Generator().manual_seed(1)
    hole = torch.zeros(100, 1, side, side)
    hole[:, :, 4:12, 4:12] = torch.rand(100, 1, 1, 1, generator=generator)
    t = torch.cat([AsyncPatch().sample(200, side, side, generator=generator), hole])
    x = draw(300, 1)
    z = process.diffuse(x, t, torch.randn(x.shape, generator=generator))
    # the exact denoiser is that of fields of variance 1, one channel each: bring z to that scale at another time
    best = torch.cat([_exact(exact, process, z[:, c : c + 1], t, 0.3) for c in range(3)], 1)
    with torch.no_grad():
        answer = model.denoiser(z, t, Cond(label=torch.full((300,), -1))).x
    untrained = z  # the last layer starts at zero: v = 0
    excess = [float((each - best).square()[rows].mean()) for rows in (slice(200), slice(200, 300))
              for each in (answer, untrained)]  # fmt: skip
    assert excess[0] < 0.1 * excess[1]
    assert excess[2] < 0.1 * excess[3]


def _exact(exact, process, z, t, scale):
    """E[x | z] for x = scale * y with y from ``exact``: noise t/(1-t) on x is t/(1-t)/scale on y."""
    ratio = t / (1 - t) / scale  # sigma / alpha as seen by y; at alpha = 0 nothing is known but the prior
    s = torch.where(t < 1, ratio / (1 + ratio), 1.0)
    w = torch.where(t < 1, z / (1 - t).clamp_min(1e-9) / scale * (1 - s), z)
    return scale * exact(w, s).x


def test_the_report_needs_no_run_to_be_finished(tmp_path):
    from asyncpatch.train.report import write_report

    config = {"recipe": {"steps": 10, "batch": 2, "times": "<b>"}, "data": ["a"]}
    write_report(tmp_path, config, [])
    assert "&lt;b&gt;" in (tmp_path / "report.html").read_text()
    log = [{"step": k, "loss": 1 / k, "pictures_per_second": 1.0} for k in range(1, 3000)]
    write_report(tmp_path, config, [*log, {"step": 3000, "held_out_loss": 0.1}])
    page = (tmp_path / "report.html").read_text()
    assert len(page) < 60_000
    assert np.isfinite([float(part.split(",")[1]) for part in page.split('points="')[1].split('"')[0].split()]).all()
