"""What is measured of autoencoders: distances from a hole, and that only what changes is counted."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image

import latents
from asyncpatch.models.autoencoder import Autoencoder


def test_distances_go_across_and_down():
    hole = torch.zeros(1, 1, 24, 24)
    hole[..., 3, 4] = 1
    found = latents.distances(hole)[0, 0]
    rows, columns = torch.meshgrid(torch.arange(24), torch.arange(24), indexing="ij")
    assert torch.equal(found, torch.maximum((rows - 3).abs(), (columns - 4).abs()).clamp_max(latents.FAR).float())


def test_changes_are_counted_where_they_are():
    """A coder whose tokens see the pixel to their left, and so a hole that begins there."""

    class Near:
        factor = reach = 1
        codebook = None

        def encode(self, x, hole=None):
            kept = x if hole is None else torch.where(hole > 0, 0.0, x)
            return kept + kept.roll(1, 3)

    class Book:
        def moments(self):
            return (0.0,), (2.0,)

        def __call__(self, e):
            return type("Quantized", (), {"numbers": (e[:, 0] > 1.5).long()})

    net, x, hole = Near(), torch.ones(1, 1, 12, 12), torch.zeros(1, 1, 12, 12)
    net.codebook = Book()
    hole[..., 4:6, 4:6] = 1
    squares, codes, count = latents.reach(net, x, hole)
    assert count.sum() == 144
    assert count[:3].tolist() == [4, 12, 20]
    assert squares[1] == pytest.approx(2 * (1 / 2) ** 2)  # two tokens lost half of what they were, of deviation 2
    assert squares[2:].sum() == 0
    assert codes[1] == 2


def test_the_tables(tmp_path, monkeypatch, capsys):
    random = np.random.default_rng(0)
    for name in ("train", "val"):
        (tmp_path / "data" / name / "a").mkdir(parents=True)
        for k in range(8):
            Image.fromarray(random.integers(0, 256, (32, 32, 3), np.uint8)).save(
                tmp_path / "data" / name / f"a/{k}.png"
            )
    torch.manual_seed(0)
    Autoencoder(width=8, multipliers=(1, 2), blocks=1, codes=64).save(tmp_path / "model")
    options = ["--data", str(tmp_path / "data"), "--side", "32", "--cache", str(tmp_path / "cache"), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["latents.py", str(tmp_path / "model"), *options])
    latents.main()
    said = capsys.readouterr().out.splitlines()
    assert [row.count("|") for row in said if row] == [11] * 3 + [7] * 4
