"""What is measured of autoencoders: distances from a hole, and that only what changes is counted."""

import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

import latents
from asyncpatch.data.masks import holes
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
    assert [row.count("|") for row in said if row] == [11] * 3 + [7] * 4 + [4] * 3
    tables = [[part.strip() for part in row.split("|")[1:-1]] for row in said if row]
    net = Autoencoder.load(tmp_path / "model").eval()
    files = sorted((tmp_path / "data/val/a").iterdir())
    x = torch.from_numpy(np.stack([np.array(Image.open(file)) for file in files])).permute(0, 3, 1, 2) / 127.5 - 1
    hole = torch.cat([holes("square", range(4), 32, 32), holes("wide", range(4, 8), 32, 32)])
    assert (hole[:4].flatten(1).sum(1) == 16**2).all()
    with torch.no_grad():
        e, holed = net.encode(x), net.encode(x, hole)
        again, bare = net.decode(e).clamp(-1, 1), net.decoded(e).clamp(-1, 1)
    changes = (e - holed).square().mean(1).flatten()  # of deviation 1, as long as nothing is known of it
    codes = (net.codebook(e).numbers != net.codebook(holed).numbers).flatten()
    missing = functional.max_pool2d(hole, 2)[:, 0] > 0
    rows, columns = (
        place.view(16, 16, 1) for place in torch.meshgrid(torch.arange(16), torch.arange(16), indexing="ij")
    )
    away = []
    for each in missing:
        i, j = each.nonzero(as_tuple=True)
        away.append(torch.maximum((rows - i).abs(), (columns - j).abs()).amin(2))
    away = torch.stack(away).flatten()
    for k in range(1, 10):
        there = away == k if k < 9 else away >= 9
        change, share = changes[there].mean().sqrt(), codes[there].float().mean()
        told = [float(part.strip(" %")) for part in tables[2][k].split(",")]
        assert told == [pytest.approx(change.item(), abs=6e-4), pytest.approx(100 * share.item(), abs=0.6)]
    assert tables[3][:3] == ["there and back", "PSNR", "PSNR, not rounded"]
    for column, made in ((1, again), (2, bare)):
        psnr = 10 * (4 / (made - x).square().mean((1, 2, 3))).log10()
        assert float(tables[5][column]) == pytest.approx(psnr.mean().item(), abs=0.006)
    assert tables[5][1] != tables[5][2]
    assert tables[5][-1] == f"{len(net.codebook(e).numbers.unique()) / 64:.1%}"
    for column, some in ((1, slice(4)), (2, slice(4, 8))):
        for place, made in ((0, x), (1, torch.where(hole > 0, again, x))):
            steps, inner, outer = (
                [(made.diff(dim=dim).abs().mean(1), hole.diff(dim=dim)[:, 0].abs()) for dim in (2, 3)],
                [],
                [],
            )
            both = [torch.minimum(hole.narrow(dim, 0, 31), hole.narrow(dim, 1, 31))[:, 0] for dim in (2, 3)]
            for (step, border), inside in zip(steps, both, strict=True):
                outer.append(torch.stack([(step * border).sum((1, 2)), border.sum((1, 2))]))
                inner.append(torch.stack([(step * inside).sum((1, 2)), inside.sum((1, 2))]))
            (across, pairs), (within, others) = sum(outer), sum(inner)
            ratio = ((across / pairs) / (within / others))[some].sort().values
            assert float(tables[9][column].split(",")[place]) == pytest.approx(float(ratio[1:3].mean()), abs=0.006)
