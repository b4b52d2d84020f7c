"""The head that says how sure a network is: what it learns, that it changes nothing, and how it is kept."""

import json
import math
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from asyncpatch.cli import app
from asyncpatch.loss import uncertainty_loss
from asyncpatch.models.denoiser import NetworkDenoiser
from asyncpatch.models.folder import Model
from asyncpatch.models.uncertainty import UncertaintyHead
from asyncpatch.models.unet import UNet
from asyncpatch.parameterization import structureless
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.process import RectifiedFlow
from asyncpatch.protocols import Cond
from asyncpatch.train.config import HeadRecipe
from asyncpatch.train.uncertainty import train_uncertainty
from runs import write_pictures


@pytest.fixture
def folder(tmp_path):
    """A model that is not trained, but says something."""
    torch.manual_seed(0)
    net = UNet(width=16, multipliers=(1, 2), blocks=(1, 1), middle_blocks=1, attention=0, labels=2)
    for weight in net.parameters():
        if weight.dim() > 1 and not weight.any():
            torch.nn.init.normal_(weight, std=0.05)
    Model(net, RectifiedFlow(), "v", 8, ("dark", "light")).save(tmp_path / "model")
    return tmp_path / "model"


def test_the_loss_is_least_where_the_variance_is_right(generator):
    x = torch.zeros(4000, 3, 1, 1)
    out = 0.3 * torch.randn(x.shape, generator=generator)
    logvar = torch.linspace(-5, 1, 61)
    losses = torch.stack([uncertainty_loss(value.expand(4000, 1, 1, 1), x, out).mean() for value in logvar])
    assert logvar[losses.argmin()].item() == pytest.approx(math.log(0.09), abs=0.11)
    assert losses.min() == pytest.approx(0.5 * (math.log(0.09) + 1), abs=0.02)


def test_without_structure_it_is_the_posterior_variance(process):
    """Of one pixel with variance 1/4 and noise: by the formula for two Gaussians."""
    t = torch.tensor([0.2, 0.5, 0.9])
    alpha, sigma = process.alpha(t), process.sigma(t)
    wanted = 1 / (1 / 0.25 + alpha.square() / sigma.square())
    assert torch.allclose(structureless(process, t).exp(), wanted, rtol=1e-5)
    assert structureless(process, torch.tensor([0.0, 1.0])).isfinite().all()


def test_a_head_changes_nothing_of_the_answer(folder, generator):
    model = Model.load(folder)
    head = UncertaintyHead(16, 64, 16)
    torch.nn.init.normal_(head.out.weight, std=0.3)
    z, t = torch.randn(2, 3, 7, 8, generator=generator), torch.rand(2, 1, 7, 8, generator=generator)
    cond = Cond(label=torch.tensor([1, -1]))
    plain = model.denoiser(z, t, cond)
    both = NetworkDenoiser(model.net, model.process, model.prediction, head)(z, t, cond)
    assert plain.logvar is None
    assert torch.equal(plain.x, both.x)
    assert both.logvar.shape == (2, 1, 7, 8)
    offset = both.logvar - structureless(model.process, t)
    assert offset.std() > 1e-3
    with pytest.raises(ValueError, match="train-uncertainty makes one"):
        _ = model.doubting


def test_it_learns_how_far_off_the_network_is(folder, tmp_path, generator):
    """Of pictures of noise, dark ones and light ones. Real errors are as it says, on average."""
    data = write_pictures(tmp_path / "data", count=64)
    weights = {path.name: path.read_bytes() for path in (folder / "unet").iterdir()}
    lines = []
    recipe = HeadRecipe(steps=150, batch=32, device="cpu", precision="fp32")
    found = train_uncertainty(folder, [str(data)], recipe, cache=tmp_path / "cache", say=lines.append)
    assert {path.name: path.read_bytes() for path in (folder / "unet").iterdir()} == weights
    assert json.loads((folder / "uncertainty" / "calibration.json").read_text()) == found
    assert found["ratio"] == pytest.approx(1.0, abs=0.15)
    assert found["correlation"] > 0.8
    for row in found["by time"][2:]:
        assert row["real"] == pytest.approx(row["predicted"], rel=0.35)
    for row in found["by detail"]:
        assert row["real"] == pytest.approx(row["predicted"], rel=0.35)
    assert [len(found[name]) for name in ("by detail", "by place")] == [5, 1]  # of one patch each
    assert found["by detail"][0]["deviation"] < found["by detail"][-1]["deviation"]
    quiet, loud = found["by prediction"][0], found["by prediction"][-1]
    assert quiet["real"] < 0.2 * loud["real"]
    assert lines[-2].startswith("step 150/150, loss ")

    before = (folder / "uncertainty" / "diffusion_pytorch_model.safetensors").read_bytes()
    again = train_uncertainty(
        folder, [str(data)], replace(recipe, steps=0), cache=tmp_path / "cache", say=lambda text: None
    )
    assert again["ratio"] == pytest.approx(found["ratio"], rel=1e-2)
    assert (folder / "uncertainty" / "diffusion_pytorch_model.safetensors").read_bytes() == before

    assert found["held out"] is False  # there is no such split
    assert any("no pictures are held out" in line for line in lines)

    model = Model.load(folder)
    known = torch.zeros(1, 1, 8, 8)
    known[..., :4] = 1.0  # what is next to known pixels is judged as well as the rest
    x, label = torch.zeros(256, 3, 8, 8).uniform_(-1, 0, generator=generator), torch.zeros(256, dtype=torch.long)
    z = torch.where(known > 0, x, torch.randn(x.shape, generator=generator))
    with torch.no_grad():
        said = model.doubting(z, (1 - known).expand(256, -1, -1, -1), Cond(label=label))
    ratio = (said.x - x).square().mean((0, 1, 2))[4:] / said.logvar.exp().mean((0, 1, 2))[4:]
    assert (ratio.log().abs() < 0.5).all(), ratio
    z, t = torch.zeros(1, 3, 8, 8), torch.full((1, 1, 8, 8), 0.5)
    said = model.doubting(z, t)
    assert torch.equal(said.x, model.denoiser(z, t).x)
    pipe = AsyncPatchPipeline.from_pretrained(folder).prepare("cpu", "fp32")
    assert torch.allclose(pipe.model.doubting(z, t).logvar, said.logvar, atol=1e-2)  # kept in fp16
    model.save(tmp_path / "again")
    assert torch.allclose(Model.load(tmp_path / "again").doubting(z, t).logvar, said.logvar, atol=1e-5)


def test_on_the_command_line(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCPATCH_CACHE", str(tmp_path / "cache"))
    data = write_pictures(tmp_path / "data")
    call = ["train-uncertainty", str(folder), "--data", str(data), "--steps", "2", "--batch", "4", "--device", "cpu"]
    nothing = CliRunner().invoke(app, [*call, "--steps", "0"])
    assert nothing.exit_code == 2
    assert "no head to be measured" in nothing.output
    first = CliRunner().invoke(app, call)
    assert first.exit_code == 0, first.output
    assert "by time" in first.output
    assert "real over predicted" in first.output
    again = CliRunner().invoke(app, call)
    assert again.exit_code == 2
    assert "--force" in again.output
    measured = CliRunner().invoke(app, [*call, "--steps", "0"])
    assert measured.exit_code == 0
    assert "from even to busy regions" in measured.output
    assert CliRunner().invoke(app, [*call, "--force"]).exit_code == 0
    for wrong, said in ((["--steps", "-1"], "steps"), (["--times", "often"], "often"), (["--rate", "0"], "rate"),
                        (["--precision", "fp16"], "fp16")):  # fmt: skip
        result = CliRunner().invoke(app, [*call, "--force", *wrong])
        assert result.exit_code == 2
        assert said in result.output
    assert AsyncPatchPipeline.from_pretrained(folder).generate(steps=1).images[0].size == (8, 8)
