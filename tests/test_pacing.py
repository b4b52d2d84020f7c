"""Quality against calls: that all ways get equally many, and that each figure stands where it belongs."""

import argparse

import pytest

import pacing
from asyncpatch.evaluation import SAMPLES
from asyncpatch.models.folder import Model
from asyncpatch.models.uncertainty import UncertaintyHead
from asyncpatch.process import RectifiedFlow


@pytest.mark.parametrize("name", pacing.WAYS | pacing.VARIANTS)
def test_all_ways_ask_equally_often(name):
    for calls in pacing.CALLS:
        how = pacing.settings(name, calls, 8)
        assert how.steps * how.questions == calls


def test_it_runs_and_every_figure_is_in_its_place(tiny_model, tmp_path, capsys, monkeypatch):
    chosen = ("WAYS", ("DDIM", "Heun", "dual")), ("VARIANTS", ()), ("ORDERED", tuple(pacing.ORDERED)[3:5])
    for name, few in chosen:
        monkeypatch.setattr(pacing, name, {each: getattr(pacing, name)[each] for each in few})
    folder, net = tmp_path / "model", Model.load(tiny_model).net
    head = UncertaintyHead.beside(net)
    Model(net, RectifiedFlow(), "v", 16, ("disc", "square", "triangle"), head).save(folder)
    given = argparse.Namespace(
        data=["shapes"], model=folder, output=tmp_path / "out", lpips=None, cache=tmp_path / "cache", batch=16,
        shard="1/1", quick=True,
    )  # fmt: skip
    pacing.evaluate(given)
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 * len(pacing.WAYS) + len(pacing.ORDERED)
    pacing.tables(given)
    text = (tmp_path / "out" / "pacing.md").read_text()
    assert "| way | 8 |\n" in text
    for name in (*pacing.WAYS, *pacing.ORDERED):
        assert f"| {name} |" in text
    row = next(each for each in said if each.startswith(f"Heun {SAMPLES}"))
    distance = float(row.split("'frechet': ")[1].split(",")[0])
    heun = next(each for each in text.splitlines() if each.startswith("| Heun |"))
    assert heun == f"| Heun | {distance:.2f} |"
    assert (tmp_path / "out" / "pacing.png").stat().st_size > 10_000
    capsys.readouterr()
    pacing.explain(given)
    rows = [[float(each) for each in row.split("|")[1:-1]] for row in capsys.readouterr().out.splitlines()[2:]]
    assert [row[0] for row in rows] == [pytest.approx(1 - k / 8) for k in range(8)]
    assert all(error > 0 and -1 <= correlation <= 1 for _, error, correlation, _ in rows)
