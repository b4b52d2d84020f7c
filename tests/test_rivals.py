"""The rivals on the shipped network: that they run, and that figures stand where they belong."""

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

import rivals
from asyncpatch.baselines import mcg
from asyncpatch.evaluation import OURS
from asyncpatch.metrics import LPIPS
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.settings import Settings

RECORDED = Path(__file__).parents[1] / "benchmarks" / "results" / "rivals"


class Apart(torch.nn.Module):
    """In the place of LPIPS, which needs larger pictures, and a file."""

    def forward(self, x, y):
        return (x - y).square().flatten(1).mean(1)


@pytest.fixture
def said(tiny_model, monkeypatch, tmp_path, capsys):
    """What comes of a command line, with a tiny model in the place of the shipped one."""
    monkeypatch.setattr(AsyncPatchPipeline, "default", lambda: AsyncPatchPipeline.from_pretrained(tiny_model))
    monkeypatch.setattr(LPIPS, "load", lambda file: Apart())

    def ran(line):
        monkeypatch.setattr(sys, "argv", ["rivals.py", *line.split(), "--cache", str(tmp_path / "cache")])
        rivals.main()
        return capsys.readouterr().out.splitlines()

    return ran


def test_weights_are_compared_on_the_same_pictures(said, monkeypatch):
    weights = []

    def few(process, x, hole, *, weight):
        weights.append(weight)
        return mcg(process, x, hole, 3, weight=weight)

    monkeypatch.setattr(rivals, "mcg", few)
    head, _, *rows = said("tune 0.5 2 0.5 --lpips some")
    assert (head, weights) == ("| weight | LPIPS |", [0.5, 2.0, 0.5])
    assert rows[0].startswith("| 0.5 | ")
    assert rows[0] == rows[2] != rows[1]


def test_cells_are_kept_and_make_the_table(said, tmp_path):
    out = tmp_path / "out"
    lines = said(f"evaluate ddrm asyncpatch --lpips some -o {out} --data shapes --count 2 --batch 2")
    assert len(lines) == len(list(out.glob("cells/*.json"))) == 3 * len(rivals.KINDS)
    head, _, *rows = [[text.strip() for text in line.split("|")[1:-1]] for line in said(f"tables -o {out}")]
    assert head == ["method", "calls", "extrema", "square", "thin", "wide"]
    assert [row[:2] for row in rows] == [
        [OURS, "50"],
        [f"{OURS}, as the tool does", "32"],
        ["ddrm", "20"],
    ]
    assert all("%" not in text for text in rows[0])
    assert all("%" in text for row in rows[1:] for text in row[2:])


def row(method, what, values, calls=50.0, **how):
    return {
        "method": method, "what": what, "settings": asdict(Settings(**how)), "calls": calls, "data": "d",
        "lpips": [sum(values) / len(values), 0.001], "each": {"lpips": values},
    }  # fmt: skip


def test_each_difference_is_that_of_its_kind():
    plain = {"steps": 50, "batch": 3}
    found = [
        row("mcg", "wide", [0.8, 0.8], 250.0), row(OURS, "thin", [0.1, 0.2], **plain),
        row(OURS, "wide", [0.1, 0.3], 250.0, steps=250, eta=1.0), row(OURS, "wide", [0.4, 0.4], **plain),
    ]  # fmt: skip
    _, _, first, second, third = rivals.table(found)
    assert first == "| asyncpatch | 50 |  |  | 0.1500 ± 0.0010 | 0.4000 ± 0.0010 |"
    assert second.startswith("| asyncpatch, 250 steps, eta 1 | 250 |  |  |  | 0.2000 ± 0.0010 (-50.0% ± ")
    assert third == "| mcg | 250 |  |  |  | 0.8000 ± 0.0010 (+100.0% ± 0.0%) |"


def test_slow_ways_are_asked_for():
    given = argparse.Namespace(count=5, batch=2, slow=False)
    few = rivals.cells(OURS, given)
    many = rivals.cells(OURS, argparse.Namespace(count=5, batch=2, slow=True))
    assert {each.settings.steps for each in few} == {16, 50}
    assert {(each.settings.steps, each.settings.eta) for each in set(many) - set(few)} == {(250, 0.5), (250, 1.0)}
    assert {(each.count, each.settings.batch) for each in many} == {(5, 2)}


def test_what_is_missing_is_said(said, monkeypatch, tmp_path):
    monkeypatch.setattr(rivals, "lpips_file", lambda: None)
    with pytest.raises(SystemExit, match="LPIPS needs its weights"):
        said(f"evaluate -o {tmp_path}")
    with pytest.raises(SystemExit):
        said("tables")


def test_the_documented_figures_are_those_recorded(capsys):
    rivals.tables(argparse.Namespace(output=RECORDED))
    computed = capsys.readouterr().out.splitlines()
    documented = (RECORDED.parents[2] / "docs" / "results.md").read_text()
    assert len(computed) > 4
    assert "\n".join(computed) in documented
