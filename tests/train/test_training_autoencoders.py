"""An autoencoder in training: its losses by hand, the discriminator's part, codes, and how it stops and goes on."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import save_file
from torch.nn import functional
from typer.testing import CliRunner

from asyncpatch import checks, recipes
from asyncpatch.cli import app
from asyncpatch.data.feed import Pictures, seed_for
from asyncpatch.data.store import Store
from asyncpatch.models.autoencoder import Autoencoder
from asyncpatch.models.discriminator import hinge
from asyncpatch.models.folder import Model
from asyncpatch.train import checkpoint
from asyncpatch.train.autoencoder import AutoencoderTrainer, Holed, draw_holed
from asyncpatch.train.config import NEEDED
from asyncpatch.train.errors import Stopped, TrainingError
from asyncpatch.train.learner import piece
from asyncpatch.train.pupil import Pupil
from asyncpatch.train.run import train
from asyncpatch.train.watch import read_log
from runs import TINY, TINY_VQ, losses, tensors_of
from watch import CountWaits

# Losses of 10 steps as first computed (torch 2.13, CPU). They change only if training changes: say why when they do.
GOLDEN = [0.492093, 0.379822, 0.3486, 0.312732, 0.244641, 0.242793, 0.433165, 0.283785, 0.278745, 0.286623]


def trained(recipe, data, run, **options):
    return train(recipe, data, run, quiet=True, **options)


def make_trainer(recipe=TINY_VQ):
    torch.manual_seed(0)
    return AutoencoderTrainer.new(recipe, None, (), Accelerator(cpu=True), lambda text: None)


def some_batch(count=8, side=32):
    generator = torch.Generator().manual_seed(0)
    x = functional.interpolate(torch.rand(count, 3, 4, 4, generator=generator) * 2 - 1, size=side)
    hole = torch.zeros(count, 1, side, side)
    hole[::2, :, 4:20, 8:24] = 1.0
    return Holed(x, hole, torch.arange(count))


def unaligned_batch(side=32):
    """With holes that begin and end within tokens of 2 pixels."""
    batch = some_batch(side=side)
    hole = torch.zeros_like(batch.hole)
    hole[::2, :, 5:20, 7:26] = 1.0
    return batch._replace(hole=hole)


def known_tokens(hole):
    """Of whose 2 by 2 pixels none is in the hole, [B, h, w]."""
    corners = [hole[:, 0, i::2, j::2] for i in (0, 1) for j in (0, 1)]
    return torch.stack(corners).sum(0) == 0


def lpips_weights(path):
    """Random ones, in the file's layout."""
    generator = torch.Generator().manual_seed(0)
    sizes = {0: (64, 3, 11), 3: (192, 64, 5), 6: (384, 192, 3), 8: (256, 384, 3), 10: (256, 256, 3)}
    found = {}
    for head, (number, (out, into, kernel)) in enumerate(sizes.items()):
        found[f"net.features.{number}.weight"] = 0.05 * torch.randn(out, into, kernel, kernel, generator=generator)
        found[f"net.features.{number}.bias"] = torch.zeros(out)
        found[f"lin{head}.model.1.weight"] = torch.rand(1, out, 1, 1, generator=generator)
    save_file(found, path)
    return path


@pytest.fixture(autouse=True)
def _no_lpips(monkeypatch):
    monkeypatch.delenv("ASYNCPATCH_LPIPS", raising=False)


def test_golden_losses(data, tmp_path):
    trained(replace(TINY_VQ, steps=10), data, tmp_path / "run")
    assert list(losses(tmp_path / "run").values()) == pytest.approx(GOLDEN, rel=1e-3)


def test_the_loss_by_hand():
    """L1 over what is known, and beta on what draws encodings to codes, not on what draws codes."""
    trainer, batch = make_trainer(replace(TINY_VQ, commitment=0.25)), some_batch()
    net = trainer.bare
    e = net.encode(batch.x, batch.hole)
    flat = e.permute(0, 2, 3, 1).reshape(-1, 3)
    nearest = net.codebook.codes[torch.cdist(flat, net.codebook.codes).argmin(1)]
    q = nearest.detach().view(8, 16, 16, 3).permute(0, 3, 1, 2)
    off = ((batch.x - net.decoded(q, batch.hole)) * (1 - batch.hole)).abs().mean()
    loss = trainer.loss(net, batch)
    assert loss.item() == pytest.approx((off + 1.25 * (flat - nearest).square().mean()).item(), rel=1e-5)
    to_codes, to_last = torch.autograd.grad(loss, [net.codebook.codes, net.decoder.conv_out.weight])
    used = (flat.detach() - nearest).square().mean()
    assert torch.allclose(to_codes, torch.autograd.grad(used, net.codebook.codes)[0], atol=1e-7)
    assert to_last.abs().max() > 0


def test_known_tokens_are_drawn_to_those_of_the_whole_picture():
    """And these to them. Of the batch's own variance, the gradient is that of a ratio: small latents win nothing."""
    plain, trainer, batch = make_trainer(), make_trainer(replace(TINY_VQ, locality=2.0)), some_batch()
    net = trainer.bare
    holed, whole = net.encode(batch.x, batch.hole), net.encode(batch.x)
    known = (functional.avg_pool2d(batch.hole, 2) == 0).float()
    assert 0 < known.mean() < 1
    off = ((holed - whole).square() * known).mean()
    assert trainer.loss(net, batch).item() == pytest.approx((plain.loss(plain.bare, batch) + 2 * off).item(), rel=1e-5)
    net.codebook.note(torch.zeros(32), net.codebook.sizes(whole, torch.ones_like(known)), decay=0.0)
    ratio = off / whole.var((0, 2, 3), unbiased=False).mean()
    trainer.change = ratio.detach()
    loss = trainer.loss(net, batch)
    assert loss.item() == pytest.approx((plain.loss(plain.bare, batch) + 2 * ratio).item(), rel=1e-5)
    for weight in (net.encoder.conv_out.weight, net.encoder.conv_in.weight):
        (found,) = torch.autograd.grad(loss - plain.loss(net, batch), weight, retain_graph=True)
        (wanted,) = torch.autograd.grad(2 * ratio, weight, retain_graph=True)
        assert torch.allclose(found, wanted, atol=1e-5, rtol=1e-3)
        assert wanted.abs().max() > 1e-2


def test_what_is_noted_of_a_batch_is_of_known_tokens():
    """Which codes they took, their moments, and their locality; a token is known if nothing of it is in the hole."""
    trainer, batch = make_trainer(replace(TINY_VQ, locality=1.0, adversary=0.0)), unaligned_batch()
    net, known = trainer.bare, known_tokens(batch.hole)
    assert 0 < (known != (functional.avg_pool2d(batch.hole, 2)[:, 0] < 1)).sum() < known.numel()
    with torch.no_grad():
        e, whole = net.encode(batch.x, batch.hole), net.encode(batch.x)
    tokens = e.permute(0, 2, 3, 1)[known]
    numbers = torch.cdist(tokens, net.codebook.codes.detach()).argmin(1)
    locality = (e - whole).square().mean(1)[known].sum() / known.numel()
    found = trainer.update(batch)
    assert torch.allclose(found["shares"], torch.bincount(numbers, minlength=32) * 32.0 / len(tokens), atol=1e-4)
    of_all = torch.stack([torch.ones_like(tokens), tokens, tokens.square()]).sum(1) / known.numel()
    assert torch.allclose(net.codebook.encoded, 0.01 * of_all, rtol=1e-4, atol=1e-7)
    moments = torch.tensor(net.codebook.moments())
    assert torch.allclose(moments[0], tokens.mean(0), atol=1e-4)
    assert torch.allclose(moments[1], tokens.std(0, unbiased=False), atol=1e-4)
    used = found["shares"] > 1.0
    assert 0 < used.sum() < 32
    assert torch.allclose(net.codebook.usage[used], 0.05 * found["shares"][used])
    assert found["locality"].item() == pytest.approx(locality.item(), rel=1e-4)
    assert trainer.change.item() == found["locality"].item() > 0  # for the next step


def test_codes_are_revived_at_tokens_of_whole_pictures():
    """With locality these are there, so that a hole, whose own tokens are all alike, takes up no codes."""
    trainer, batch = make_trainer(replace(TINY_VQ, locality=1.0, adversary=0.0)), unaligned_batch()
    with torch.no_grad():
        whole, holed = (trainer.bare.encode(batch.x, hole) for hole in (None, batch.hole))
    places = trainer.learn(batch, 1)["places"][:, :3]
    whole, holed = (
        torch.cdist(places, each.permute(0, 2, 3, 1).reshape(-1, 3)).min(1).values for each in (whole, holed)
    )
    assert whole.max() < 1e-3 < holed.max()
    assert len(places.unique(dim=0)) > 20


def test_so_a_hole_changes_less_of_what_is_known():
    shares = []
    for locality in (0.0, 1.0):
        trainer, batch = (
            make_trainer(replace(TINY_VQ, locality=locality, rate=3e-3, warmup=5, adversary=0.0)),
            some_batch(),
        )
        for _ in range(60):
            trainer.update(batch)
        net = trainer.bare
        known = (functional.avg_pool2d(batch.hole, 2) == 0).float()
        with torch.no_grad():
            whole = net.encode(batch.x)
            shares.append((((net.encode(batch.x, batch.hole) - whole) * known).norm() / (whole * known).norm()).item())
    assert shares[1] < 0.5 * shares[0]


def test_what_is_learnt_is_the_gradient_of_the_loss():
    """Gone back in two parts (to x-hat, then on), straight through the codes: the same as in one."""
    trainer, batch = make_trainer(), some_batch()
    names = trainer.pupil.names
    wanted = torch.autograd.grad(trainer.loss(trainer.bare, batch), trainer.parameters)
    found = trainer.learn(batch, 1)
    for name, p, gradient in zip(names, trainer.parameters, wanted, strict=True):
        assert torch.allclose(p.grad, gradient, atol=1e-7), name
    assert found["loss"].item() == pytest.approx(trainer.loss(trainer.bare, batch).item())
    reached = dict(zip(names, wanted, strict=True))["encoder.conv_out.weight"]
    only = 0.25 * trainer.bare(batch.x, batch.hole).quantized.commitment
    (committed,) = torch.autograd.grad(only, trainer.bare.encoder.conv_out.weight)
    assert (reached - committed).norm() > 0.1 * reached.norm()  # that of the picture comes through to the encoder


def test_what_lies_in_the_hole_does_not_matter(tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCPATCH_LPIPS", str(lpips_weights(tmp_path / "lpips.safetensors")))
    trainer, batch = make_trainer(replace(TINY_VQ, adversary_start=0, perceptual=1.0)), some_batch()
    other = batch._replace(x=torch.where(batch.hole > 0, torch.rand_like(batch.x), batch.x))
    a, b = (trainer.learn(each, 1) for each in (batch, other))
    assert a["lpips"] > 1e-3
    for name in ("loss", "l1", "lpips", "adversary", "discriminator", "both", "shares", "sizes"):
        assert torch.allclose(a[name], b[name], atol=1e-6), name


def test_the_discriminator_counts_by_the_ratio_of_gradients():
    """After a step, the weight is w |dR/dW| / |dG/dW| of that step, by autograd on the decoder's last layer."""
    trainer, batch = make_trainer(replace(TINY_VQ, adversary_start=0, adversary=0.6)), some_batch()
    for _ in range(3):
        net, judge, known = trainer.bare, trainer.adversary.bare, 1 - batch.hole
        last, made = net.decoder.conv_out.weight, net(batch.x, batch.hole).x
        likeness = ((batch.x - made) * known).abs().mean()
        fooling = -judge(made * known).mean()
        pull, push = (torch.autograd.grad(each, last, retain_graph=True)[0] for each in (likeness, fooling))
        assert float(pull.norm() * push.norm()) > 0
        trainer.update(batch)
        assert float(trainer.weight) == pytest.approx(0.6 * float(pull.norm() / push.norm()), rel=1e-3)


@pytest.mark.parametrize("pieces", [1, 2])
def test_both_sides_of_the_contest_get_their_gradients(pieces):
    trainer, batch = make_trainer(replace(TINY_VQ, adversary_start=0)), some_batch()
    trainer.weight = torch.tensor(0.3)
    net, judge, known = trainer.bare, trainer.adversary.bare, 1 - batch.hole
    made = net(batch.x, batch.hole).x
    total = trainer.loss(net, batch) - 0.3 * judge(made * known).mean()
    wanted = torch.autograd.grad(total, trainer.parameters)
    learnt = hinge(judge(batch.x * known), judge(made.detach() * known))
    judged = torch.autograd.grad(learnt, list(judge.parameters()))
    for k in range(pieces):
        trainer.learn(piece(batch, k, pieces), pieces)
    for name, p, gradient in zip(trainer.pupil.names, trainer.parameters, wanted, strict=True):
        assert torch.allclose(p.grad, gradient, atol=1e-6), name
    for p, gradient in zip(judge.parameters(), judged, strict=True):
        assert torch.allclose(p.grad, gradient, atol=1e-6)


@pytest.mark.parametrize("lead", [0, 1])
def test_the_discriminator_starts_late(lead):
    trainer, batch = make_trainer(replace(TINY_VQ, adversary_start=2, adversary_lead=lead)), some_batch()
    alone = make_trainer(replace(TINY_VQ, adversary=0.0))
    assert alone.adversary is None
    first = [p.detach().clone() for p in trainer.adversary.parameters]
    for step in range(4 + lead):
        found = trainer.update(batch)
        alone.update(batch)
        assert ("discriminator" in found) == (step >= 2)
        same = all(torch.equal(a, b) for a, b in zip(first, trainer.adversary.parameters, strict=True))
        assert same == (step < 2)
        unheard = all(torch.equal(a, b) for a, b in zip(alone.parameters, trainer.parameters, strict=True))
        assert unheard == (step < 3 + lead)  # its weight is known after its first step
    assert trainer.adversary.steps == 2 + lead
    assert trainer.take_measures()["discriminator"] > 0


def test_an_averaged_network_is_judged_by_itself():
    """Also its locality: by what it makes of the whole picture, not by what the network in training makes of it."""
    trainer, batch = make_trainer(replace(TINY_VQ, locality=1.0, adversary=0.0)), some_batch()
    made = trainer.averaged()
    before = trainer.loss(made, batch).item()
    assert before == pytest.approx(trainer.loss(trainer.net, batch).item(), rel=1e-5)
    with torch.no_grad():
        for weight in trainer.parameters:
            weight.add_(0.3 * torch.randn_like(weight))
    assert trainer.loss(made, batch).item() == before


@pytest.mark.parametrize("start", [0, 100])
def test_pieces_change_nothing(start):
    batch, ends = some_batch(), []
    for pieces in (1, 4):
        trainer = make_trainer(replace(TINY_VQ, accumulate=pieces, adversary_start=start, locality=1.0))
        for _ in range(3):
            trainer.update(batch)
        ends.append((trainer, trainer.take_measures()))
    (one, said), (four, again) = ends
    assert said == pytest.approx(again, rel=1e-3, abs=1e-5)
    for a, b in ((one.pupil, four.pupil), (one.adversary, four.adversary)):
        for name, p, q in zip(a.names, a.parameters, b.parameters, strict=True):
            assert torch.allclose(p, q, atol=1e-4), name


def test_room_is_found_for_the_discriminator_too(monkeypatch):
    """Which joins later: what fits is tried with it."""
    trainer, asked = make_trainer(replace(TINY_VQ, accumulate="auto", adversary_start=100)), []
    trainer.adversary.bare.register_forward_hook(lambda *_: asked.append(trainer.step))
    trainer.first_update(some_batch())
    assert asked == [100, 100]
    assert trainer.step == 1


def test_codes_are_revived_in_training_and_their_averages_follow():
    trainer, batch = make_trainer(replace(TINY_VQ, ema=0.5, snapshot_every=1)), some_batch()
    batch = batch._replace(hole=torch.zeros_like(batch.hole))
    assert len(trainer.averages) == 3
    book = trainer.bare.codebook
    e = trainer.bare.encode(batch.x, batch.hole).detach().permute(0, 2, 3, 1).reshape(-1, 3)
    trainer.update(batch)
    placed = book.usage == 1.0  # those that are not used at once, of random ones
    assert trainer.take_measures()["codes_revived"] == int(placed.sum()) > 10
    assert torch.cdist(book.codes.detach()[placed], e).min(1).values.max() < 1e-3
    for each in trainer.averages.values():
        assert torch.equal(each.weights["codebook.codes"][placed], book.codes[placed])
    trainer.update(batch)
    living = book.usage >= 0.01
    living[:5] = False
    book.usage[:5] = 0.0
    before = book.codes.detach().clone()
    with torch.no_grad():
        book.codes[:5] = 100.0
    trainer.update(batch)
    assert (book.codes[:5].abs() < 10).all()
    assert torch.allclose(book.codes[living], before[living], atol=0.01)
    for each in trainer.averages.values():
        assert torch.equal(each.weights["codebook.codes"][:5], book.codes[:5])
        assert not torch.equal(each.weights["codebook.codes"][living], book.codes[living])
    assert int(trainer.meter[trainer.measures.index("codes_revived")]) == 5


def test_no_code_is_revived_in_a_hole():
    """Without locality only pictures with their holes are encoded; half of each is missing here."""
    trainer, batch = make_trainer(TINY_VQ), some_batch()
    assert not TINY_VQ.locality
    batch.hole[:] = 0.0
    batch.hole[..., :16] = 1.0
    book = trainer.bare.codebook
    e = trainer.bare.encode(batch.x, batch.hole).detach().permute(0, 2, 3, 1)
    known = 1.0 - functional.max_pool2d(batch.hole, 2)[:, 0]
    with torch.no_grad():
        book.codes[:] = 100.0  # all but one are dead
    trainer.update(batch)
    moved = (book.codes.abs() < 10).all(1)
    assert 0.3 < float(moved.float().mean()) < 0.7
    assert torch.cdist(book.codes.detach()[moved], e[known > 0]).min(1).values.max() < 1e-2
    assert torch.equal(book.usage == 1.0, moved)  # the others are as dead as before


def test_what_is_drawn_for_a_batch():
    levels = torch.arange(2000 * 32 * 32 * 3).remainder(251).to(torch.uint8).view(2000, 32, 32, 3)
    pictures, trainer = Pictures(levels, torch.zeros(2000, dtype=torch.long)), make_trainer()
    recipe = replace(TINY_VQ, whole=0.3)
    batch = draw_holed(recipe, pictures, 2000, slice(None), 1, trainer.holes)
    share = batch.hole.flatten(1).mean(1)
    assert (share == 0).float().mean() == pytest.approx(0.3, abs=0.04)
    assert (share[share > 0] == 0.25).all()
    straight = levels.permute(0, 3, 1, 2).float() / 127.5 - 1
    mirrored = (batch.x == straight.flip(3)).flatten(1).all(1)
    assert mirrored.float().mean() == pytest.approx(0.5, abs=0.05)
    assert (mirrored | (batch.x == straight).flatten(1).all(1)).all()
    part = draw_holed(
        recipe, Pictures(*(each[500:] for each in pictures[:2])), 2000, slice(500, None), 1, trainer.holes
    )
    assert all(torch.equal(a[500:], b) for a, b in zip(batch, part, strict=True))


def test_nothing_waits_for_the_device(tmp_path, monkeypatch):
    monkeypatch.setattr(checks, "unit_values", lambda *args, **how: None)  # which looks at values on a CPU alone
    monkeypatch.setattr(Pupil, "advance", lambda self, rate: torch.zeros(()))  # as does Adam's counter
    monkeypatch.setenv("ASYNCPATCH_LPIPS", str(lpips_weights(tmp_path / "lpips.safetensors")))
    trainer = make_trainer(replace(TINY_VQ, adversary_start=0, locality=1.0, perceptual=1.0))
    pictures = Pictures(torch.zeros(8, 32, 32, 3, dtype=torch.uint8), torch.zeros(8, dtype=torch.long))
    with CountWaits() as count:
        found = trainer.update(trainer.draw(pictures, slice(0, 8), 1))
    assert count.waits == 0
    assert {"locality", "lpips", "discriminator"} <= found.keys()


def test_it_learns_to_draw_shapes(tmp_path):
    """The error is a fraction of what it was within seconds, and most codes are in use."""
    recipe = replace(
        TINY_VQ, width=16, codes=128, steps=100, batch=16, rate=2e-3, warmup=5, decay=0.5, ema=0.9, adversary=0.0,
        log_every=10, save_every=100, picture_every=1000,
    )  # fmt: skip
    folder = trained(recipe, ["shapes"], tmp_path / "run")
    log = [line for line in read_log(tmp_path / "run") if "loss" in line]
    assert log[-1]["l1"] < 0.5 * log[0]["l1"]
    assert log[-1]["perplexity"] > 30
    end = read_log(tmp_path / "run")[-1]
    assert end["held_out_psnr"] > 18
    assert end["codes_used"] > 0.5
    net = Autoencoder.load(folder).eval()
    assert net.config.codes == 128
    assert (net.codebook.usage > 0).all()


def test_lpips_is_part_of_it_where_there_are_weights(data, tmp_path, monkeypatch, capsys):
    recipe = replace(TINY_VQ, perceptual=2.0, adversary=0.0, steps=2)
    train(recipe, data, tmp_path / "without")
    assert "no weights of LPIPS are found" in capsys.readouterr().err
    assert "lpips" not in read_log(tmp_path / "without")[0]
    monkeypatch.setenv("ASYNCPATCH_LPIPS", str(lpips_weights(tmp_path / "lpips.safetensors")))
    train(recipe, data, tmp_path / "with")
    assert "LPIPS" not in capsys.readouterr().err
    line = read_log(tmp_path / "with")[0]
    parts = line["l1"] + 2 * line["lpips"] + line["codebook"] + 0.25 * line["commitment"]
    assert line["loss"] == pytest.approx(parts, rel=1e-5)
    assert line["lpips"] > 0
    assert read_log(tmp_path / "with")[-1]["held_out_lpips"] > 0
    monkeypatch.delenv("ASYNCPATCH_LPIPS")
    with pytest.raises(TrainingError, match="started with LPIPS, whose weights are not found now"):
        trained(replace(recipe, steps=4), data, tmp_path / "with", resume=True)
    trained(replace(recipe, steps=4, perceptual=0.0), data, tmp_path / "with", resume=True)


def test_whole_pictures_are_looked_at():
    """Although most of the held-out loss is of pictures with holes."""
    trainer = make_trainer(replace(TINY_VQ, whole=0.0, flips=False, adversary=0.0))
    made, seen = trainer.averaged(), {}
    levels = torch.randint(256, (9, 32, 32, 3), generator=torch.Generator().manual_seed(0)).byte()
    held = Store(levels.numpy(), torch.zeros(9, dtype=torch.long).numpy(), ("a",))
    watch = SimpleNamespace(log=lambda step, values: seen.update(values), picture=lambda *given: None)
    trainer.look(made, held, watch)
    x = levels.permute(0, 3, 1, 2) / 127.5 - 1
    with torch.no_grad():
        e = made.encode(x)
        again = made.decode(e).clamp(-1, 1)
    psnr = 10 * (4 / (again - x).square().mean((1, 2, 3))).log10()
    assert seen["held_out_psnr"] == pytest.approx(psnr.mean().item(), abs=1e-3)
    assert seen["codes_used"] == len(made.codebook(e).numbers.unique()) / 32
    batch = draw_holed(
        trainer.recipe, Pictures(levels, torch.zeros(9)), 9, slice(None), seed_for("held out", 0), trainer.holes
    )
    assert (batch.hole.flatten(1).mean(1) == 0.25).all()
    with torch.no_grad():
        assert seen["held_out_loss"] == pytest.approx(trainer.loss(made, batch).item(), rel=1e-5)


def test_a_run_leaves_what_it_promises(data, tmp_path):
    run = tmp_path / "run"
    trained(replace(TINY_VQ, snapshot_every=3, picture_every=3), data, run)
    assert {path.name for path in (run / "pictures").iterdir()} == {f"decoded-0000000{step}.png" for step in (3, 6)}
    assert len(list((run / "snapshots").iterdir())) == 4
    page = (run / "report.html").read_text()
    assert "Decoded at step 6" in page
    assert "adversary_start" in page
    net, kept = Autoencoder.load(run / "model"), tensors_of(run, 6)
    for name, value in net.state_dict().items():
        wanted = f"buffers/{name}" if name in dict(net.named_buffers()) else f"average/ema/{name}"
        assert torch.equal(value, kept[wanted]), name
    facts = json.loads((run / "checkpoints/step-00000006/facts.json").read_text())
    assert facts["trained by"] == "AutoencoderRecipe"
    assert facts["adversary_width"] == 8


def test_stopped_and_resumed_to_the_same_end(data, tmp_path):
    """Both networks, both Adams, averages, the codes' usage and the discriminator's weight, before its start and after:
    bit for bit. Settings of the networks are those of the checkpoint."""
    recipe = replace(TINY_VQ, locality=1.0)
    trained(recipe, data, tmp_path / "whole")
    for step in range(1, 6):
        other = replace(recipe, adversary_width=8 if step == 1 else 16, width=8 if step == 1 else 24)
        with pytest.raises(Stopped, match=f"saved step {step} of 6"):
            trained(other, data, tmp_path / "parts", minutes=0.0, resume=True)
    trained(recipe, data, tmp_path / "parts", resume=True)
    assert losses(tmp_path / "whole") == losses(tmp_path / "parts")
    one, two = (tensors_of(tmp_path / name, 6) for name in ("whole", "parts"))
    assert one.keys() == two.keys()
    assert {
        "locality/change",
        "adversary/balance",
        "adversary/adam/exp_avg/conv_in.weight",
        "buffers/codebook.usage",
    } <= one.keys()
    assert int(one["adversary/steps"]) == 3
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_discriminator_may_come_and_go(data, tmp_path):
    run = tmp_path / "run"
    trained(replace(TINY_VQ, steps=2, adversary=0.0), data, run)
    assert not any(name.startswith("adversary/") for name in tensors_of(run, 2))
    trained(replace(TINY_VQ, steps=4, adversary_start=2), data, run, resume=True)
    assert int(tensors_of(run, 4)["adversary/steps"]) == 2
    trained(replace(TINY_VQ, steps=6, adversary=0.0), data, run, resume=True)


def test_fine_tuning_starts_from_a_folder(data, tmp_path):
    trained(replace(TINY_VQ, steps=2), data, tmp_path / "first")
    frozen = replace(TINY_VQ, steps=1, rate=1e-30, width=99, codes=7)  # its network is that of the folder
    trained(frozen, data, tmp_path / "second", init=str(tmp_path / "first/model"))
    a, b = (dict(Autoencoder.load(tmp_path / name / "model").named_parameters()) for name in ("first", "second"))
    same = (a["codebook.codes"] - b.pop("codebook.codes")).abs().amax(1) < 1e-6
    assert same.float().mean() > 0.5  # the others were dead, and were moved
    assert all(torch.allclose(a[name], b[name], atol=1e-6) for name in b)


def test_what_does_not_fit_is_refused(data, tmp_path):
    for wrong, said in (
        (replace(TINY_VQ, resolution=16), "--adversary needs pictures of at least 24 pixels: add --adversary 0"),
        (replace(TINY_VQ, resolution=24, perceptual=1.0), "--perceptual needs pictures of at least 31 pixels"),
        (replace(TINY_VQ, holes="round"), "holes must be of extrema"),
        (replace(TINY_VQ, holes=""), "holes must be of extrema"),
    ):
        with pytest.raises(ValueError, match=said):
            trained(wrong, data, tmp_path / "run")
    trained(replace(TINY, steps=2), data, tmp_path / "run")
    with pytest.raises(TrainingError, match="started with a Recipe, not a AutoencoderRecipe"):
        trained(TINY_VQ, data, tmp_path / "run", resume=True)
    with pytest.raises(FileNotFoundError, match="holds no autoencoder"):
        trained(TINY_VQ, data, tmp_path / "other", init=str(tmp_path / "run/model"))


def test_nothing_is_saved_once_the_discriminator_is_no_number(data, tmp_path, monkeypatch):
    real = AutoencoderTrainer.update

    def update(self, batch):
        found = real(self, batch)
        if self.step == 4:
            with torch.no_grad():
                self.adversary.bare.conv_out.weight.fill_(float("nan"))
        return found

    monkeypatch.setattr(AutoencoderTrainer, "update", update)
    with pytest.raises(TrainingError, match="no longer a number"):
        trained(TINY_VQ, data, tmp_path / "run")
    assert [path.name for path in checkpoint.all_in(tmp_path / "run/checkpoints")] == ["step-00000002"]


def test_batch_auto_finds_pieces(data, tmp_path, monkeypatch, capsys):
    real = AutoencoderTrainer.learn

    def learn(self, batch, pieces):
        if len(batch.x) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(self, batch, pieces)

    monkeypatch.setattr(AutoencoderTrainer, "learn", learn)
    train(replace(TINY_VQ, accumulate="auto", adversary_start=0), data, tmp_path / "found")
    assert "memory holds 4 pictures at a time: --accumulate 2" in capsys.readouterr().err
    trained(replace(TINY_VQ, accumulate=2, adversary_start=0), data, tmp_path / "told")
    assert losses(tmp_path / "told") == losses(tmp_path / "found")


def test_it_can_be_compiled_in_one_graph():
    """As on a GPU, but for the last stage, in which code is made."""
    recipe, batch = replace(TINY_VQ, adversary_start=0, locality=1.0, precision="bf16"), some_batch()
    trainer, plain = make_trainer(recipe), make_trainer(recipe)
    for part in (trainer.bare, trainer.whole):
        part.compile(fullgraph=True, dynamic=False, backend="aot_eager")
    found, wanted = (each.update(batch) for each in (trainer, plain))
    for name in ("loss", "gradient_norm", "discriminator", "both", "locality"):
        assert torch.allclose(found[name], wanted[name], rtol=0.02, atol=1e-3), name
    assert all(p.dtype == torch.float32 for p in trainer.parameters)


def test_a_compiler_that_fails_is_done_without_also_while_memory_is_probed(data, tmp_path, monkeypatch, capsys):
    from torch._dynamo.exc import BackendCompilerFailed

    compiled = []

    def broken(*given):
        raise BackendCompilerFailed(lambda: None, RuntimeError("no compiler"), None)

    def compile_(self, **how):
        compiled.append(type(self).__name__)
        self._compiled_call_impl = broken

    monkeypatch.setattr(torch.nn.Module, "compile", compile_)
    train(replace(TINY_VQ, locality=1.0, compile="on", accumulate="auto", steps=2), data, tmp_path / "run")
    assert compiled == ["Autoencoder", "Whole"]
    assert "torch.compile does not work here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("coder", "denoiser"),
    [
        ("imagenet256_vq", "imagenet256_latent"),
        ("imagenet256_vq", "lsun256_latent"),
        ("default256_vq", "latent256_23m"),
        ("default128_vq", "latent128_23m"),
    ],
)
def test_recipes_train_at_a_small_size(coder, denoiser, data, tmp_path, monkeypatch):
    """An autoencoder, with its discriminator, and a network on its latents, 4 times smaller than pictures: as the
    recipes say, but for their size."""
    monkeypatch.setattr("asyncpatch.train.grids.STEPS", 2)
    small = {"resolution": 32, "steps": 2, "batch": 4, "log_every": 1, "device": "cpu", "compile": "off"}
    told = replace(
        recipes.AUTOENCODERS[coder](), **small, width=8, blocks=1, codes=64, perceptual=0.0, holes="square",
        adversary_start=1, adversary_lead=0, adversary_width=8,
    )  # fmt: skip
    trained(told, data, tmp_path / "coder")
    line = read_log(tmp_path / "coder")[1]
    assert {"l1", "locality", "discriminator", "codes_revived"} <= line.keys()
    assert all(math.isfinite(value) for value in line.values())
    recipe = recipes.ALL[denoiser]()
    assert recipe.autoencoder == NEEDED
    recipe = replace(
        recipe, **small, width=16, multipliers=(1, 2, 4, 4), blocks=(1, 1, 1, 1), middle_blocks=1, shard=False,
        autoencoder=str(tmp_path / "coder/model"),
    )  # fmt: skip
    trained(recipe, data, tmp_path / "run")
    assert [math.isfinite(value) for value in losses(tmp_path / "run").values()] == [True, True]
    model, kept = Model.load(tmp_path / "run/model"), Autoencoder.load(tmp_path / "coder/model").state_dict()
    assert (model.resolution, model.tokens, model.codec.factor) == (32, 8, 4)
    assert all(torch.equal(value, kept[name]) for name, value in model.codec.coder.state_dict().items())
    assert len(list((tmp_path / "run").glob("snapshots/*"))) == (2 if recipe.snapshot_every else 0)


def test_on_the_command_line(tmp_path):
    def run(*arguments):
        return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})

    folder = tmp_path / "run"
    options = ["--steps", "2", "--batch", "4", "--width", "8", "--codes", "16", "--device", "cpu", "--holes", "square"]
    options += ["--adversary-start", "1", "--snapshot-every", "1", "--picture-every", "100"]
    call = ["train-autoencoder", "--recipe", "smoke_vq", "--data", "shapes", "-o", str(folder)]
    first = run(*call, *options)
    assert first.exit_code == 0, first.output
    assert "done: the model is in" in first.output
    assert Autoencoder.load(folder / "model").config.codes == 16
    more = run("train-autoencoder", "-o", str(folder), "--resume", "--steps", "3")
    assert more.exit_code == 0, more.output
    assert list(losses(folder))[-1] == 3
    made = run("average", str(folder), "-o", str(tmp_path / "wide"), "--sigma", "0.15")
    assert made.exit_code == 0, made.output
    Autoencoder.load(tmp_path / "wide")
    for arguments, said in (
        (["train", "-o", str(folder), "--resume"], "those of another kind of network"),
        (["train-autoencoder"], "give --recipe, one of imagenet256_vq"),
        (["train-autoencoder", "--recipe", "smoke", "--data", "shapes"], "there is no recipe 'smoke'; did you mean"),
        ([*call[:-1], str(tmp_path / "other"), "--holes", "odd"], "holes must be of"),
    ):
        wrong = run(*arguments)
        assert wrong.exit_code == 2
        assert said in wrong.output, wrong.output
