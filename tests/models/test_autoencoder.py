"""The autoencoder: nothing of a hole gets in, nothing far from it changes, and codes are the nearest ones."""

import pytest
import torch

from asyncpatch import recipes
from asyncpatch.models.autoencoder import Autoencoder, Codebook


@pytest.fixture(scope="module")
def tiny():
    torch.manual_seed(0)
    net = Autoencoder(width=8, multipliers=(1, 2, 4), blocks=1, codes=64)
    for each in net.parameters():
        if each.dim() > 1 and not each.any():  # layers that start at 0
            torch.nn.init.normal_(each, std=0.2)
    return net.eval().requires_grad_(False)


def holed(top=32, left=32, side=16, size=96):
    hole = torch.zeros(1, 1, size, size)
    hole[..., top : top + side, left : left + side] = 1.0
    return hole


def test_latents_are_four_times_smaller_and_pictures_come_back(tiny):
    x = torch.rand(2, 3, 32, 24) * 2 - 1
    e = tiny.encode(x)
    assert e.shape == (2, 3, 8, 6)
    assert tiny.decode(e).shape == x.shape
    assert tiny.factor == 4
    with pytest.raises(ValueError, match="sides that divide by 4"):
        tiny.encode(torch.zeros(1, 3, 30, 32))
    with pytest.raises(ValueError, match="3 channels"):
        tiny.encode(torch.zeros(1, 1, 32, 32))


def test_nothing_of_the_hole_gets_in(tiny):
    """What lies there may be anything; that it is missing is known, and not taken for grey."""
    x, hole = torch.rand(1, 3, 96, 96) * 2 - 1, holed()
    other = torch.where(hole > 0, torch.rand_like(x), x)
    assert torch.equal(tiny.encode(x, hole), tiny.encode(other, hole))
    grey = torch.where(hole > 0, 0.0, x)
    assert not torch.allclose(tiny.encode(x, hole), tiny.encode(grey))
    assert torch.equal(tiny.encode(x, 0.5 * hole), tiny.encode(x, hole))
    assert torch.equal(tiny.encode(x, torch.zeros_like(hole)), tiny.encode(x))


def test_far_from_the_hole_nothing_changes_at_all(tiny):
    """By its convolutions alone: no statistic of the whole picture comes in. Near the hole an untrained one changes."""
    x, hole = torch.rand(1, 3, 96, 96) * 2 - 1, holed(0, 0, 16)
    change = (tiny.encode(x, hole) - tiny.encode(x)).abs().amax(1)[0]
    reach = (1 + 2) + 2 * 2 + 4 * 2 + 4  # of a token in pixels, by the convolutions of one block a scale
    first = (16 + reach) // 4 + 1
    assert (change[first:] == 0).all()
    assert (change[:, first:] == 0).all()
    assert change[4:first, :4].max() > 1e-4
    e = tiny.encode(x)
    q = tiny.codebook(e).q
    changed = (tiny.decoded(q, hole) - tiny.decoded(q)).abs().amax(1)[0]
    assert (changed[64:, 64:] == 0).all()
    assert changed[:16, :16].max() > 1e-4


def test_codes_are_the_nearest_and_gradients_pass_them(generator, monkeypatch):
    monkeypatch.setattr("asyncpatch.models.autoencoder._AT_ONCE", 7)
    book = Codebook(32, 3)
    e = torch.randn(2, 3, 4, 5, generator=generator, requires_grad=True)
    out = book(e)
    flat = e.detach().permute(0, 2, 3, 1).reshape(-1, 3)
    wanted = torch.cdist(flat, book.codes.detach()).argmin(1)
    assert torch.equal(out.numbers.flatten(), wanted)
    assert torch.allclose(out.q.detach().permute(0, 2, 3, 1).reshape(-1, 3), book.codes.detach()[wanted], atol=1e-6)
    (pull,) = torch.autograd.grad(out.q.sum(), e, retain_graph=True)
    assert torch.allclose(pull, torch.ones_like(e))
    off = flat - book.codes.detach()[wanted]
    assert out.codebook.item() == pytest.approx(off.square().mean().item(), rel=1e-5)
    assert out.codebook.item() == pytest.approx(out.commitment.item())
    to_codes = torch.autograd.grad(out.codebook, (book.codes, e), retain_graph=True, allow_unused=True)
    assert to_codes[1] is None
    assert bool(to_codes[0].any())
    to_latents = torch.autograd.grad(out.commitment, (book.codes, e), allow_unused=True)
    assert to_latents[0] is None
    assert torch.allclose(to_latents[1].permute(0, 2, 3, 1).reshape(-1, 3), 2 * off / off.numel(), atol=1e-6)


def test_dead_codes_are_revived_where_something_is(generator):
    book = Codebook(16, 3)
    e = torch.randn(4, 3, 8, 8, generator=generator).clamp(-1, 1)
    seen = e.permute(0, 2, 3, 1).reshape(-1, 3)
    assert book.revive(seen[:16]).all()  # none was used yet
    assert torch.equal(book.codes.detach(), seen[:16])
    with torch.no_grad():
        book.codes[8:] = 100.0  # nobody will ever be near
    for _ in range(600):
        numbers = book(e).numbers
        book.note(book.shares(numbers, torch.ones(numbers.shape)), torch.zeros(3, 3))
    assert book.usage.mean() == pytest.approx(1.0, abs=0.01)
    assert (book.usage[8:] < 0.01).all()
    assert 2 < float(book.perplexity()) < 8.1
    living = book.codes[:8].detach().clone()
    dead = book.revive(seen[100:116])
    assert dead.tolist() == [False] * 8 + [True] * 8
    assert torch.equal(book.codes.detach()[8:], seen[108:116])
    assert torch.equal(book.codes.detach()[:8], living)
    assert len(book(e).numbers.unique()) > 12
    for _ in range(300):
        numbers = book(e).numbers
        book.note(book.shares(numbers, torch.ones(numbers.shape)), torch.zeros(3, 3))
    assert int(book.revive(seen[:16]).sum()) < 4


def test_the_moments_are_those_of_what_was_encoded(generator):
    """Of the tokens that count, from the first batch on."""
    book = Codebook(4, 3)
    assert book.moments() == ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    mean, std = torch.tensor([1.0, -2.0, 0.0]).view(3, 1, 1), torch.tensor([0.1, 1.0, 3.0]).view(3, 1, 1)
    e = mean + std * torch.randn(50, 3, 16, 16, generator=generator)
    known = (torch.rand(50, 1, 16, 16, generator=generator) < 0.3).float()
    sizes = book.sizes(torch.where(known > 0, e, 99.0), known)
    for _ in range(3):
        book.note(torch.zeros(4), sizes)
        for found, wanted in zip(book.moments(), (mean, std), strict=True):
            assert torch.allclose(torch.tensor(found), wanted.flatten(), atol=0.05)


def test_shares_are_counted():
    book = Codebook(4, 3)
    numbers = torch.tensor([[[0, 0], [0, 2]]])
    assert book.shares(numbers, torch.ones(1, 2, 2)).tolist() == [3.0, 0.0, 1.0, 0.0]
    assert book.shares(numbers, torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])).tolist() == [2.0, 0.0, 2.0, 0.0]
    book.usage.fill_(1.0)
    assert float(book.perplexity()) == pytest.approx(4.0)
    book.note(torch.tensor([2.0, 0.0, 2.0, 0.0]), torch.zeros(3, 3), usage_decay=0.0)
    assert float(book.perplexity()) == pytest.approx(2.0)


def test_the_nearest_code_is_found_in_full_precision(generator):
    """Under autocast too: codes lie nearer to each other than bfloat16 tells apart."""
    book = Codebook(4096, 3)
    e = torch.rand(1, 3, 16, 16, generator=generator) * 2 - 1
    wanted = book(e).numbers
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(book(e).numbers, wanted)


def test_there_and_back_in_one(tiny):
    x, hole = torch.rand(2, 3, 32, 32) * 2 - 1, holed(size=32, top=8, left=8)
    out = tiny(x, hole)
    assert torch.allclose(out.e, tiny.encode(x, hole))
    assert torch.allclose(out.x, tiny.decode(out.e, hole), atol=1e-6)
    assert torch.allclose(out.x, tiny.decoder.conv_out(out.last), atol=1e-6)


def test_layers_may_be_computed_twice():
    torch.manual_seed(0)
    net = Autoencoder(width=8, multipliers=(1, 2), blocks=1, codes=16)
    x, gradients, calls = torch.rand(1, 3, 8, 8), [], []
    for block in (net.encoder.scales[0][0], net.decoder.scales[0][0]):
        block.register_forward_pre_hook(lambda *args: calls.append(1))
    for k in range(2):
        out = net(x)
        (out.x.square().sum() + out.quantized.codebook).backward()
        gradients.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
        assert len(calls) == (2, 6)[k]
        net.zero_grad()
        net.enable_gradient_checkpointing()
    assert torch.allclose(*gradients)


def test_sizes_and_files(tmp_path, tiny):
    million = []
    for make in (recipes.imagenet256_vq, recipes.default128_vq, recipes.default256_vq):
        told = make()
        net = Autoencoder(
            width=told.width, multipliers=told.multipliers, blocks=told.blocks, codes=told.codes,
            latent_channels=told.latent_channels,
        )  # fmt: skip
        assert (net.factor, net.codebook.codes.shape) == (4, (8192, 3))
        million.append(sum(p.numel() for p in net.parameters()) / 1e6)
    assert million == pytest.approx([25.1, 6.3, 6.3], abs=0.05)
    tiny.save(tmp_path / "model")
    assert {path.name for path in (tmp_path / "model/vae").iterdir()} == {
        "config.json", "diffusion_pytorch_model.safetensors",
    }  # fmt: skip
    assert Autoencoder.alone(tmp_path / "model")
    assert not Autoencoder.alone(tmp_path)
    with pytest.raises(FileNotFoundError, match="holds no autoencoder"):
        Autoencoder.load(tmp_path)
    back = Autoencoder.load(tmp_path / "model").eval()
    x = torch.rand(1, 3, 16, 16)
    assert torch.equal(back.decode(back.encode(x)), tiny.decode(tiny.encode(x)))
    assert torch.equal(back.codebook.usage, tiny.codebook.usage)
