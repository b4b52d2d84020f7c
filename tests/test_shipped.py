"""The model that ships: small enough, found in a checkout and in a wheel, and it has learned what it is for."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from typer.testing import CliRunner

import scenes
from asyncpatch.cli import app
from asyncpatch.images import picture_from
from asyncpatch.metrics import psnr_in_hole, seam_ratio
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.protocols import Cond
from asyncpatch.shipped import shipped_model

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pipe():
    return AsyncPatchPipeline.default("cpu", "fp32")


def x_of(pixels) -> torch.Tensor:
    return picture_from(pixels).x[None]


def frame(side: int, width: int) -> torch.Tensor:
    """A hole in the middle of a square, with ``width`` known pixels around."""
    hole = torch.zeros(1, 1, side, side)
    hole[..., width:-width, width:-width] = 1
    return hole


# ---- Files


def test_it_is_small_and_holds_half_precision_weights_alone():
    folder = shipped_model()
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 64e6
    assert max(file.stat().st_size for file in files) <= 15e6
    assert {file.suffix for file in files} <= {".json", ".safetensors", ".md", ".png"}
    for file in folder.glob("unet/*.safetensors"):
        with safe_open(file, "pt") as stored:
            assert {stored.get_slice(name).get_dtype() for name in stored.keys()} == {"F16"}  # noqa: SIM118
    assert not any("/tmp" in file.read_text() for file in files if file.suffix == ".json")
    assert (folder / "README.md").is_file()
    assert (folder.parent / "NOTICE.md").is_file()


def test_a_wheel_carries_it(tmp_path):
    pytest.importorskip("hatchling")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size <= 100e6
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(tmp_path / "site")
    there = {each.name for each in (tmp_path / "site/asyncpatch/weights").iterdir()}
    assert there == {"NOTICE.md", shipped_model().name}  # others are too large to go with it
    code = "from asyncpatch.pipelines import AsyncPatchPipeline as A; print(A.default('cpu', 'fp32').name_or_path)"
    found = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
    )  # fmt: skip
    assert Path(found.stdout.strip()) == tmp_path / "site" / "asyncpatch" / "weights" / shipped_model().name


# ---- What it has learned


def test_commands_need_no_model_folder(tmp_path):
    out = tmp_path / "tabby.png"
    result = CliRunner().invoke(app, ["generate", "--label", "tabby", "--steps", "2", "--seed", "0", "-o", str(out)])
    assert result.exit_code == 0, result.output
    assert picture_from(out).size == (64, 64)


def test_it_repairs_what_was_drawn(pipe):
    """A scratch of a few pixels: far nearer to the truth than the mean of the picture, with no seam."""
    for picture in (scenes.orange(64), scenes.lake(64, 64), scenes.pebbles(64, 64)):
        hole = torch.zeros(1, 64, 64)
        for k in range(12, 52):
            hole[:, k, k - 2 : k + 3] = 1
        x = x_of(picture)
        made = pipe.inpaint(picture, hole, seed=0, steps=16).pictures[0].x[None]
        grey = torch.where(hole[None] > 0, x.mean((2, 3), keepdim=True), x)
        ours, plain = (float(psnr_in_hole(each, x, hole[None])) for each in (made, grey))
        assert ours > plain + 4.0, (ours, plain)
        assert float(seam_ratio(made, hole[None])) < 1.4


@torch.no_grad()
def test_it_reads_the_time_of_every_pixel(pipe):
    """The same noise in the same hole is understood better the cleaner its surroundings are, and best where told so."""
    model = pipe.model
    x, hole = x_of(scenes.lake(64, 64)), frame(64, 20)
    noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))

    def error(around: float, told: float) -> float:
        t = torch.where(hole > 0, 0.9, around)
        z = model.process.diffuse(x, t, noise)
        answer = model.denoiser(z, torch.where(hole > 0, 0.9, told)).x
        return float(((answer - x).square() * hole).sum() / hole.sum())

    clean, half, noisy = (error(level, level) for level in (0.0, 0.5, 0.9))
    assert clean < half < noisy
    assert clean < 0.9 * error(0.0, 0.9)


@torch.no_grad()
def test_labels_mean_something(pipe):
    """Of pictures in noise, answers are better with their own label than with any of five others."""
    others = ("school bus", "king penguin", "tractor", "monarch", "umbrella")
    for own, pixels in (
        ("orange", scenes.orange(64)),
        ("lakeside", scenes.lake(64, 64)),
        ("cracked", scenes.cracked(64, 64)),
    ):
        names = (own, *others)
        x = x_of(pixels).expand(len(names), -1, -1, -1)
        label = torch.tensor([pipe.label(name) for name in names])
        t = torch.full((len(names), 1, 64, 64), 0.85)
        errors = torch.zeros(len(names))
        for seed in range(3):
            noise = torch.randn(1, *x.shape[1:], generator=torch.Generator().manual_seed(seed)).expand_as(x)
            answer = pipe.model.denoiser(pipe.model.process.diffuse(x, t, noise), t, Cond(label=label)).x
            errors += (answer - x).square().mean((1, 2, 3)) / 3
        assert errors[0] < 0.97 * errors[1:].min(), (own, errors)
