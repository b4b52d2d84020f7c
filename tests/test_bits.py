"""Bits per dimension of a training run: that figures are those of the bound, and the documented ones those recorded."""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bits
from asyncpatch.likelihood import elbo, random_path, synchronous_path
from asyncpatch.models.folder import Model
from asyncpatch.sampling import generators
from asyncpatch.train.config import Recipe
from asyncpatch.train.run import train

RECORDED = Path(__file__).parents[1] / "benchmarks" / "results" / "bits"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    recipe = Recipe(
        resolution=8, width=16, multipliers=(1, 2), blocks=(1, 1), middle_blocks=1, attention=0, weighting="elbo",
        steps=2, batch=4, picture_every=100, device="cpu",
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("run") / "tiny"
    train(replace(recipe, process="cosine"), ["shapes"], folder, quiet=True, cache=folder.parent / "cache")
    return folder


def test_what_is_written_is_the_bound(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bits, "FIRST", 3)
    said = f"bits.py evaluate {run} --data shapes --calls 64 --count 3 --batch 2 --device cpu -o {tmp_path}"
    monkeypatch.setattr(sys, "argv", [*said.split(), "--cache", str(run.parent / "cache")])
    bits.main()
    found = json.loads((tmp_path / "tiny.json").read_text())
    assert [row["patch"] for row in found["paths"]] == [8, 4, 2, 1]
    assert (found["pictures seen"], found["pictures"], found["calls"]) == (8, 3, 64)
    model = Model.load(run / "model")
    store = bits.open_store(bits.open_sources(["shapes"], "validation"), 8, cache=run.parent / "cache")
    places = torch.arange(len(store))[:: len(store) // 3][:3]
    x = torch.from_numpy(store.pictures[places.numpy()]).permute(0, 3, 1, 2) / 127.5 - 1
    for row, path in zip(found["paths"], (synchronous_path(), random_path(4)), strict=False):
        terms = elbo(
            model.denoiser, x, process=model.process, path=path, calls=64, generator=generators(places.tolist())
        )
        assert row["bits"] == pytest.approx(float(terms.bits_per_dim.mean()), rel=1e-3)
        assert row["error"] == pytest.approx(float(terms.bits_per_dim.std()) / 3**0.5, rel=1e-2)
    # finer slices of the same integral
    whole = found["paths"][0]
    assert sum(found["levels"]) == pytest.approx(whole["bits"] - whole["prior"] - whole["reconstruction"], rel=0.2)


def test_the_documented_figures_are_those_recorded(tmp_path, capsys):
    for file in RECORDED.glob("*.json"):
        (tmp_path / file.name).write_text(file.read_text())
    bits.tables(argparse.Namespace(output=tmp_path))
    documented = (RECORDED.parents[2] / "docs" / "likelihood.md").read_text()
    assert (tmp_path / "bits.md").read_text() == capsys.readouterr().out
    for each in (tmp_path / "bits.md").read_text().splitlines():
        assert each in documented
    assert (tmp_path / "bits.png").stat().st_size > 10_000
    for file in RECORDED.glob("*.json"):  # what noise levels cost, on a tenth of the pictures, adds up to the bound
        found = json.loads(file.read_text())
        whole = found["paths"][0]
        assert sum(found["levels"]) == pytest.approx(whole["bits"] - whole["prior"] - whole["reconstruction"], abs=0.05)
