"""The command line: instant help, every field of a recipe, errors that a person can act on."""

import dataclasses
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from asyncpatch import __version__, recipes
from asyncpatch.cli import app
from asyncpatch.train.config import Recipe


def run(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})


def test_help_needs_no_torch():
    code = "import sys; from asyncpatch.cli import app; assert 'torch' not in sys.modules; app(['train', '--help'])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "--recipe" in shown


def test_every_field_of_a_recipe_is_an_option_with_its_help():
    shown = " ".join(run("train", "--help").output.split())
    for each in dataclasses.fields(Recipe):
        assert f"--{each.name.replace('_', '-')} " in shown, each.name
        assert " ".join(each.metadata["help"].split()[:3]) in shown


def test_version_and_recipes():
    assert run("--version").output.strip() == __version__
    shown = run("recipes").output
    for name in recipes.ALL:
        assert name in shown
    assert "width = 256" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train"], "give --recipe"),
        (["train", "--recipe", "smok", "--data", "shapes"], "did you mean smoke"),
        (["train", "--recipe", "smoke"], "--data is missing"),
        (["train", "--recipe", "smoke", "--data", "missing"], "missing is no folder"),
        (["train", "--recipe", "smoke", "--data", "shapes", "--steps", "x"], "steps: cannot read 'x'"),
        (["train", "--recipe", "smoke", "--data", "shapes", "--times", "odd"], "time fields must be of"),
        (["train", "--recipe", "smoke", "--data", "shapes", "--init", "none"], "none is no model folder"),
        (["train", "--resume"], "has no run to go on with"),
        (["average", "none", "-o", "out"], "no model folder"),
    ],
)
def test_a_mistake_is_said_in_one_line(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASYNCPATCH_CACHE", str(tmp_path / "cache"))
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


def test_a_run_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCPATCH_CACHE", str(tmp_path / "cache"))
    options = ["--steps", "2", "--batch", "4", "--width", "16", "--attention", "0", "--device", "cpu"]
    options += ["--snapshot-every", "1", "--picture-every", "100"]
    result = run("train", "--recipe", "smoke", "--data", "shapes", "--out", str(tmp_path / "run"), *options)
    assert result.exit_code == 0, result.output
    assert "done: the model is in" in result.output
    made = run("average", str(tmp_path / "run"), "-o", str(tmp_path / "wide"), "--sigma", "0.15")
    assert made.exit_code == 0, made.output
    assert (tmp_path / "wide/model_index.json").exists()
    again = run("average", str(tmp_path / "run"), "-o", str(tmp_path / "wide"))
    assert again.exit_code == 2
    assert "exists already" in again.output


def test_an_average_is_what_was_asked_for(tmp_path, monkeypatch):
    import torch

    from asyncpatch.models.folder import Model
    from asyncpatch.train.average import rebuild

    monkeypatch.setenv("ASYNCPATCH_CACHE", str(tmp_path / "cache"))
    options = ["--steps", "4", "--batch", "4", "--width", "16", "--attention", "0", "--device", "cpu", "--rate", "0.01"]
    options += ["--snapshot-every", "1", "--picture-every", "100"]
    assert (
        run("train", "--recipe", "smoke", "--data", "shapes", "--out", str(tmp_path / "run"), *options).exit_code == 0
    )
    for sigma, step in ((0.05, 4), (0.2, 4), (0.2, 2)):
        out = tmp_path / f"{sigma}-{step}"
        made = run("average", str(tmp_path / "run"), "-o", str(out), "--sigma", str(sigma), "--step", str(step))
        assert made.exit_code == 0
        wanted = rebuild(tmp_path / "run/snapshots", sigma, step)["conv_in.weight"]
        assert torch.allclose(Model.load(out).net.state_dict()["conv_in.weight"], wanted)
    weights = [Model.load(tmp_path / name).net.state_dict()["conv_in.weight"] for name in ("0.05-4", "0.2-4", "0.2-2")]
    assert not torch.allclose(weights[0], weights[1])
    assert not torch.allclose(weights[1], weights[2])
