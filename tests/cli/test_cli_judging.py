"""Likelihood on the command line."""

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from asyncpatch.cli import app


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for k in range(2):
        levels = np.random.default_rng(k).integers(0, 256, (16, 16 + 4 * k, 3), np.uint8)
        Image.fromarray(levels).save(tmp_path / f"photos/{k}.png")
    hole = np.zeros((16, 16), np.uint8)
    hole[4:10, 4:10] = 255
    Image.fromarray(hole).save(tmp_path / "mask.png")
    return tmp_path


@pytest.fixture
def run(tiny_model):
    def command(*arguments):
        machine = ["--model", str(tiny_model), "--device", "cpu", "--precision", "fp32"]
        return CliRunner().invoke(app, [*map(str, arguments), *machine], env={"COLUMNS": "200"})

    return command


def test_a_table_and_maps(here, run):
    done = run("elbo", "photos", "--path", "synchronous", "--path", 4, "--calls", 4, "--map", "maps")
    assert done.exit_code == 0, done.output
    assert "photos/0.png" in done.stdout
    assert "patches of 4" in done.stdout
    with Image.open("maps/1.png.png") as image:
        assert image.size == (20 * 12, 16 * 12)
    assert run("elbo", "photos", "--calls", 2, "--map", "maps").exit_code == 2  # they exist
    again = run("elbo", "photos", "--path", "synchronous", "--path", 4, "--calls", 4)
    assert again.stdout == done.stdout  # a seed


def test_maps_keep_their_folders(here, run):
    (here / "photos/deep").mkdir()
    (here / "photos/deep/0.png").write_bytes((here / "photos/0.png").read_bytes())
    assert run("elbo", "photos", "--calls", 2, "--map", "maps").exit_code == 0
    assert (here / "maps/0.png.png").is_file()
    assert (here / "maps/deep/0.png.png").is_file()


def test_a_broken_picture_does_not_stop_the_rest(here, run):
    (here / "photos/2.png").write_bytes(b"no picture")
    done = run("elbo", "photos", "--calls", 2)
    assert done.exit_code == 1
    assert "photos/1.png" in done.stdout
    assert "2.png: not a picture" in done.stderr


def test_a_hole_given_the_rest(here, run):
    done = run("elbo", "photos/0.png", "--mask", "mask.png", "--calls", 4)
    assert done.exit_code == 0, done.output
    assert "inpainting" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["elbo", "photos", "--path", "zigzag"], "a path is"),
        (["elbo", "photos", "--calls", "3"], "even"),
        (["elbo", "none.png"], "there is no such file"),
        (["elbo", "photos", "--label", "taby"], "did you mean"),
        (["elbo", "empty"], "no pictures"),
        (["elbo", "photos/0.png", "--mask", "mask.png", "--path", "4"], "leave out --path"),
        (["elbo", "photos/0.png", "copy/0.png", "--map", "maps"], "of the same name"),
    ],
)
def test_mistakes_are_said(here, run, arguments, said):
    (here / "empty").mkdir()
    (here / "copy").mkdir()
    (here / "copy/0.png").write_bytes((here / "photos/0.png").read_bytes())
    done = run(*arguments)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


def test_candidates_are_written_best_first(here, run):
    done = run("inpaint", "photos/0.png", "--mask", "mask.png", "-n", 3, "--rank", "--steps", 2, "--seed", 5,
               "-o", "out.png")  # fmt: skip
    assert done.exit_code == 0, done.output
    bounds = [float(line.split("at least ")[1].split()[0]) for line in done.stderr.splitlines() if "at least" in line]
    assert bounds == sorted(bounds, reverse=True)
    first = done.stderr.split("1. seed ")[1].split(":")[0]
    assert f"wrote out-1.png (seed {first})" in done.stdout
