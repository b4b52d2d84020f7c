"""That each setting of a recipe, and each argument of a run, reaches what it is meant for."""

import os
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from PIL import Image
from safetensors.torch import load_file

from asyncpatch import machine
from asyncpatch.codecs import PIXELS
from asyncpatch.data.feed import Pictures, StoredFeed, StreamedFeed
from asyncpatch.data.sources import open_sources
from asyncpatch.likelihood import elbo, synchronous_path
from asyncpatch.models.folder import Model
from asyncpatch.models.unet import UNet
from asyncpatch.oracle import gaussian_field
from asyncpatch.process import CosineVP, RectifiedFlow
from asyncpatch.protocols import Denoised
from asyncpatch.train import run as run_module
from asyncpatch.train import trainer as trainer_module
from asyncpatch.train.average import gamma_of
from asyncpatch.train.errors import Stopped, TrainingError
from asyncpatch.train.grids import inpainting_grid
from asyncpatch.train.run import Signals, train
from asyncpatch.train.trainer import Trainer, draw_batch
from asyncpatch.train.watch import Watch, read_config, read_log
from runs import TINY, losses, tensors_of, write_pictures


def trained(recipe, data, run, **options):
    return train(recipe, data, run, quiet=True, **options)


def test_averages_follow_the_weights_after_each_step(data, tmp_path):
    """All of them, against the recursions written out, from checkpoints of every step."""
    recipe = replace(TINY, ema=0.3, snapshot_every=3, save_every=1, keep=9)
    trained(recipe, data, tmp_path / "run")
    name = "conv_in.weight"
    kinds = {"ema": lambda n: min(0.3, (1 + n) / (10 + n))}
    for sigma in (0.05, 0.1):
        kinds[f"sigma-{sigma:.3f}"] = lambda n, sigma=sigma: (1 - 1 / n) ** (gamma_of(sigma) + 1)
    torch.manual_seed(0)
    first = UNet(width=16, multipliers=(1, 2), blocks=(1, 1), middle_blocks=1, attention=0, labels=2)
    for kind, beta in kinds.items():
        expected = first.state_dict()[name]
        for n in range(1, 7):
            kept = tensors_of(tmp_path / "run", n)
            expected = beta(n) * expected + (1 - beta(n)) * kept[f"weights/{name}"]
            assert torch.allclose(kept[f"average/{kind}/{name}"], expected, atol=1e-6), (kind, n)
    for sigma in (0.05, 0.1):
        snapshot = load_file(tmp_path / f"run/snapshots/step-00000006-sigma-{sigma:.3f}.safetensors")
        last = tensors_of(tmp_path / "run", 6)
        assert all(torch.equal(v, last[f"average/sigma-{sigma:.3f}/{k}"].half()) for k, v in snapshot.items())


def test_snapshots_can_be_asked_for_later(data, tmp_path):
    trained(replace(TINY, steps=2), data, tmp_path / "run")
    trained(replace(TINY, steps=4, snapshot_every=1), data, tmp_path / "run", resume=True)
    assert len(list((tmp_path / "run/snapshots").iterdir())) == 4


def first_weights(run):
    return tensors_of(run, 1)["weights/conv_in.weight"]


def test_the_seed_reaches_weights_order_and_noise(data, tmp_path, monkeypatch):
    seen, real = [], StoredFeed.batch
    monkeypatch.setattr(StoredFeed, "batch", lambda self, step: seen.append(real(self, step)) or seen[-1])
    for seed in (0, 1):
        trained(replace(TINY, steps=1, seed=seed, rate=1e-9), data, tmp_path / str(seed))
    assert not torch.allclose(first_weights(tmp_path / "0"), first_weights(tmp_path / "1"), atol=1e-3)
    assert not torch.equal(seen[0].levels, seen[1].levels)


@pytest.mark.parametrize(
    "change", [{"bias": -1.0}, {"process": "cosine"}, {"prediction": "x"}, {"times": "global"}, {"label_dropout": 1.0}]
)
def test_what_is_learnt_depends_on_it(data, tmp_path, change):
    trained(replace(TINY, rate=1e-2), data, tmp_path / "one")
    trained(replace(TINY, rate=1e-2, **change), data, tmp_path / "two")
    assert losses(tmp_path / "one")[6] != losses(tmp_path / "two")[6]


@pytest.mark.parametrize(("times", "mean"), [("patch-forcing", 0.592), ("mean-beta", 0.5)])
def test_the_time_fields_of_others_are_trained_with(data, tmp_path, monkeypatch, times, mean):
    """In patches of 4 pixels. The mean of the one: 1 - E[sigmoid(0.7 + n)] E[1 - |n| / 2, or U(0, 1) where that is
    below 0] = 1 - 0.645 (0.9545 - 0.345 + 0.0228); that of the other is uniform."""
    seen, real = [], Trainer.learn
    monkeypatch.setattr(Trainer, "learn", lambda self, batch, pieces: seen.append(batch.t) or real(self, batch, pieces))
    trained(replace(TINY, times=times, batch=256, steps=1), data, tmp_path / "run")
    (t,) = seen
    patches = t[:, :, ::4, ::4]
    assert torch.equal(t, patches.repeat_interleave(4, 2).repeat_interleave(4, 3))
    assert (patches.flatten(1).std(1) > 0).all()
    assert patches.mean().item() == pytest.approx(mean, abs=0.04)
    assert 0 < losses(tmp_path / "run")[1] < 10


def test_adam_gets_its_numbers():
    torch.manual_seed(0)
    recipe = replace(TINY, betas=(0.5, 0.6), epsilon=1e-3)
    net = UNet(width=16, multipliers=(1,), blocks=(1,), middle_blocks=1, attention=0)
    trainer = Trainer(recipe, Model(net, RectifiedFlow(), "v", 8), Accelerator(cpu=True), print)
    group = trainer.adam.param_groups[0]
    assert (group["betas"], group["eps"]) == ((0.5, 0.6), 1e-3)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32), ("auto", torch.float32)]
)
def test_the_arithmetic_has_the_precision_asked_for(precision, dtype):
    net = UNet(width=16, multipliers=(1,), blocks=(1,), middle_blocks=1, attention=0)
    trainer = Trainer(
        replace(TINY, precision=precision), Model(net, RectifiedFlow(), "v", 8), Accelerator(cpu=True), print
    )
    seen = []
    net.middle[0].block.conv_in.register_forward_hook(lambda module, args, out: seen.append(out.dtype))
    x = torch.zeros(2, 3, 8, 8)
    from asyncpatch.train.trainer import Batch

    trainer.loss(trainer.net, Batch(x, torch.tensor([-1, -1]), torch.rand(2, 1, 8, 8), x))
    assert seen == [dtype]
    assert next(net.parameters()).dtype == torch.float32


def test_checkpointing_computes_layers_twice():
    net = UNet(width=16, multipliers=(1,), blocks=(1,), middle_blocks=1, attention=0)
    recipe = replace(TINY, checkpointing=True)
    trainer = Trainer(recipe, Model(net, RectifiedFlow(), "v", 8), Accelerator(cpu=True), print)
    calls = []
    net.middle[0].register_forward_pre_hook(lambda *args: calls.append(1))
    out = trainer.net(torch.randn(1, 3, 8, 8), torch.rand(1, 1, 8, 8))
    out.sum().backward()
    assert len(calls) == 2


def test_a_model_of_another_process_is_saved_and_fine_tuned_as_such(data, tmp_path):
    trained(replace(TINY, steps=1, process="cosine", prediction="eps"), data, tmp_path / "first")
    model = Model.load(tmp_path / "first/model")
    assert isinstance(model.process, CosineVP)
    assert model.prediction == "eps"
    tuned = replace(TINY, steps=1, resolution=16)
    trained(tuned, data, tmp_path / "second", init=str(tmp_path / "first/model"))
    second = Model.load(tmp_path / "second/model")
    assert isinstance(second.process, CosineVP)
    assert second.resolution == 16


def test_minutes_are_minutes(data, tmp_path, monkeypatch):
    began, real = time.monotonic(), time.monotonic
    monkeypatch.setattr(run_module.time, "monotonic", lambda: began + 6 * (real() - began))
    trained(replace(TINY, steps=2), data, tmp_path / "one", minutes=10.0)
    now = [0.0]
    monkeypatch.setattr(run_module.time, "monotonic", lambda: now.__setitem__(0, now[0] + 20.0) or now[0])
    with pytest.raises(Stopped):
        trained(TINY, data, tmp_path / "two", minutes=1.0)
    assert 1 <= len(losses(tmp_path / "two")) < 6


def test_held_out_pictures_have_the_training_numbers_of_their_classes(tmp_path, monkeypatch):
    root = tmp_path / "split"
    write_pictures(root / "train", classes=("ape", "bee"))
    write_pictures(root / "val", count=80, classes=("bee",))
    seen, real = [], trainer_module.draw_batch

    def draw(recipe, pictures, batch, rows, seed, *rest):
        seen.append((pictures.label.tolist(), seed, pictures.levels.sum().item()))
        return real(recipe, pictures, batch, rows, seed, *rest)

    monkeypatch.setattr(trainer_module, "draw_batch", draw)
    trained(replace(TINY, steps=1), [str(root)], tmp_path / "run")
    held = seen[1:]
    assert [len(labels) for labels, _, _ in held] == [64, 16]
    assert all(set(labels) == {1} for labels, _, _ in held)
    assert held[0][1] != held[1][1]
    assert sum(total for _, _, total in held) == sum(
        int(np.asarray(Image.open(path)).sum()) for path in (root / "val").rglob("*.png")
    )


def test_the_log_states_the_rate_of_its_step(data, tmp_path):
    trained(TINY, data, tmp_path / "run")
    lines = [line for line in read_log(tmp_path / "run") if "loss" in line]
    assert [line["rate"] for line in lines] == [TINY.rate_at(step) for step in range(6)]
    assert all(line["gradient_norm"] > 0 for line in lines)
    assert all(1 < line["pictures_per_second"] < 1e5 for line in lines)


def test_crops_and_cache_reach_the_store(tmp_path, monkeypatch):
    (tmp_path / "large").mkdir()
    for k in range(4):
        Image.effect_noise((16, 16), 60).save(tmp_path / f"large/{k}.png")
    sizes, real = [], run_module.Loop

    def loop(trainer, feed, held, run, watch):
        sizes.append(len(feed.store))
        return real(trainer, feed, held, run, watch)

    monkeypatch.setattr(run_module, "Loop", loop)
    recipe = replace(TINY, steps=1, batch=4)
    for crops in (0.0, 2.0):
        run = tmp_path / str(crops)
        trained(replace(recipe, crops=crops), [str(tmp_path / "large")], run, cache=tmp_path / "mine")
    assert sizes == [4, 12]
    assert len(list((tmp_path / "mine").iterdir())) == 2
    assert not machine.cache_folder().exists()


def test_a_streamed_run_begins_with_the_first_batch(tmp_path, monkeypatch):
    import io
    import tarfile

    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for k in range(24):
            file = io.BytesIO()
            Image.new("RGB", (8, 8), (k, k, k)).save(file, "PNG")
            info = tarfile.TarInfo(f"{k}.png")
            info.size = file.tell()
            file.seek(0)
            tar.addfile(info, file)
    seen, real = [], trainer_module.draw_batch

    def draw(recipe, pictures, *args):
        seen.append(pictures.levels[:, 0, 0, 0].tolist())
        return real(recipe, pictures, *args)

    monkeypatch.setattr(trainer_module, "draw_batch", draw)
    trained(replace(TINY, steps=1), [str(tmp_path / "a.tar")], tmp_path / "run")
    feed = StreamedFeed(open_sources([str(tmp_path / "a.tar")]), 8, 8, 0, torch.device("cpu"))
    assert seen[0] == feed.batch(0).levels[:, 0, 0, 0].tolist()
    feed.close()


def test_signals_are_caught_once_and_handlers_given_back():
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with Signals(Accelerator(cpu=True)) as signals:
        assert signals.agreed(False) is None
        assert signals.agreed(True) == 0
        os.kill(os.getpid(), signal.SIGINT)
        assert signals.agreed(False) == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_the_inpainting_grid_shows_the_pictures_and_keeps_what_is_known():
    class Told:
        process, resolution, labels, codec = RectifiedFlow(), 32, (), PIXELS
        net = SimpleNamespace(config={"given": False})

        @property
        def denoiser(self):
            exact = gaussian_field(self.process, 32, 32, length=4.0)
            return lambda z, t, cond: Denoised(torch.cat([exact(z[:, c : c + 1], t).x for c in range(3)], 1))

    levels = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    sheet = np.asarray(inpainting_grid(Told(), levels, torch.device("cpu")))
    tile, gap, left = 96, 4, 112 + 2 * 4  # three times as large, after a column of names

    def cell(row, column):
        top, start = gap + row * (tile + gap), left + column * (tile + gap)
        return sheet[top : top + tile : 3, start : start + tile : 3]

    for column in range(2):
        assert (cell(0, column) == levels[column]).all()
        known = np.ones((32, 32), bool)
        known[(slice(8, 24), slice(8, 24)) if column == 0 else (slice(None), slice(16, None))] = False
        for row in (1, 2):
            assert (cell(row, column)[known] == levels[column][known]).all()
        assert (cell(1, column)[~known] == 128).all()
        assert (cell(2, column)[~known] != levels[column][~known]).mean() > 0.9


def test_two_processes_do_not_train_in_one_folder(data, tmp_path):
    other = Watch(tmp_path / "run", quiet=True)
    other.claim()
    with pytest.raises(TrainingError, match="another process is training"):
        trained(TINY, data, tmp_path / "run")
    other.close()
    trained(TINY, data, tmp_path / "run")


def test_a_resumed_run_remembers_its_cache(data, tmp_path):
    trained(TINY, data, tmp_path / "run", cache=tmp_path / "mine")
    assert read_config(tmp_path / "run")["cache"] == str(tmp_path / "mine")


@pytest.mark.parametrize("process", ["rectified_flow", "cosine"])
def test_training_for_likelihood_minimises_the_diffusion_term(data, tmp_path, process):
    """The loss with global times is the bound's diffusion term per number, for the same weights and pictures."""
    recipe = replace(TINY, weighting="elbo", times="global", process=process, flips=False, label_dropout=1.0, fourier=2)
    model = Model.load(trained(recipe, data, tmp_path / "run"))
    assert model.net.config.fourier == 2
    levels = torch.randint(0, 256, (16, 8, 8, 3), dtype=torch.uint8)
    trainer = Trainer(recipe, model, Accelerator(cpu=True), lambda text: None)
    with torch.no_grad():
        losses = [
            trainer.loss(model.net, draw_batch(recipe, Pictures(levels, torch.zeros(16).long()), 16, slice(16), seed))
            for seed in range(300)
        ]
    x = levels.permute(0, 3, 1, 2).float() / 127.5 - 1
    terms = elbo(model.denoiser, x, process=model.process, path=synchronous_path(), calls=200)
    wanted = -float(terms.diffusion.mean()) / float(terms.numbers[0])
    found = torch.stack(losses)
    assert float(found.mean()) == pytest.approx(wanted, abs=5 * float(found.std()) / len(losses) ** 0.5)
    assert float(found.std()) / len(losses) ** 0.5 < 0.1 * wanted
