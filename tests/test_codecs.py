"""Tokens that are no pixels: the same law, the same promises; what is at an edge is as it should be there."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from asyncpatch import codecs
from asyncpatch.codecs import PIXELS, Latents, Pixels
from asyncpatch.completion import Completion
from asyncpatch.data.masks import holes
from asyncpatch.metrics import psnr_in_hole, seam_ratio
from asyncpatch.models.autoencoder import Autoencoder
from asyncpatch.process import RectifiedFlow
from asyncpatch.protocols import Denoised
from asyncpatch.steps import ddim
from oracle import Law, conditional, law_of, random_gaussian

PROCESS = RectifiedFlow()


class Shuffled:
    """A coder that loses nothing: the pixels of a square are the channels of its token."""

    factor, reach = 2, 0

    def encode(self, x, hole):
        return functional.pixel_unshuffle(torch.where(hole > 0, 0.0, x), 2)

    def decode(self, e):
        return functional.pixel_shuffle(e, 2)


def shuffled(channels=1, **how):
    return Latents(Shuffled(), (0.1,) * 4 * channels, (0.15,) * 4 * channels, **{"border": 0, **how})


@pytest.fixture(scope="module")
def coder():
    torch.manual_seed(0)
    return Autoencoder(width=8, codes=64).eval()


def square(height, width, top, left, side, value=1.0):
    hole = torch.zeros(1, 1, height, width)
    hole[..., top : top + side, left : left + side] = value
    return hole


def test_a_hole_has_the_conditional_law_given_the_tokens_that_are_known():
    exact, codec, many = random_gaussian(PROCESS, (4, 4, 4)), shuffled(), 3000
    e = exact.draw(1, generator=torch.Generator().manual_seed(5)).float()
    x = codec.decode(e, (8, 8))
    assert x.abs().max() < 1
    hole = square(8, 8, 3, 3, 2)  # which four tokens see
    filling = Completion(
        denoiser=exact, process=PROCESS, step=ddim(PROCESS), codec=codec, window=8, steps=50
    )  # fmt: skip
    open_hole = codec.pixels(codec.tokens(hole), (8, 8))
    made = filling(x.expand(many, -1, -1, -1), open_hole, range(many))
    found = codec.encode(made, torch.zeros(1, 1, 8, 8)).double().flatten(1)
    inside = codec.tokens(hole).expand(1, 4, 4, 4).flatten() > 0
    assert inside.sum() == 16
    wanted = conditional(law_of(exact), ~inside, e.double().flatten())
    law = Law(found.mean(0), found.T.cov())
    spread = wanted.covariance.diagonal()[inside].sqrt()
    assert ((law.mean - wanted.mean)[inside].abs() / spread).max() < 0.1
    off = (law.covariance - wanted.covariance)[inside][:, inside].norm()
    assert off / wanted.covariance[inside][:, inside].norm() < 0.08
    some = filling(x.expand(50, -1, -1, -1), hole, range(50))  # a hole within tokens: the rest of them stays
    assert torch.equal(some[..., hole[0, 0] == 0], x.expand(50, -1, -1, -1)[..., hole[0, 0] == 0])
    bare = replace(filling, paste=False)(x.expand(50, -1, -1, -1), hole, range(50))
    assert torch.allclose(bare, made[:50], atol=1e-6)


def test_a_token_is_as_much_a_hole_as_the_most_of_what_it_sees():
    t = square(12, 10, 4, 2, 1, 0.5) + square(12, 10, 11, 9, 1)
    bare = shuffled().tokens(t)
    assert bare.shape == (1, 1, 6, 5)
    assert bare.nonzero()[:, 2:].tolist() == [[2, 1], [5, 4]]
    assert bare[0, 0, 2, 1] == 0.5
    wide = shuffled(border=1).tokens(t)
    assert torch.equal(wide[0, 0, 1:4, 0:3], torch.full((3, 3), 0.5))
    assert (wide == 0.5).sum() == 9
    assert (wide == 1).sum() == 4  # in the corner
    assert (shuffled(border=1).tokens(t, wrap=True) == 1).sum() == 9
    assert torch.equal(Pixels().tokens(t), t)


def test_the_mean_and_deviation_are_taken_away_and_given_back():
    x = torch.rand(2, 1, 8, 8) * 0.5 - 0.1
    codec = Latents(Shuffled(), (0.1, 0.2, 0.3, 0.4), (0.5, 0.25, 1.0, 2.0))
    e = codec.encode(x, torch.zeros(2, 1, 8, 8))
    assert torch.allclose(e[:, 1], (x[:, 0, ::2, 1::2] - 0.2) / 0.25, atol=1e-6)
    assert torch.allclose(codec.decode(e, (8, 8)), x, atol=1e-6)
    for mean, std in (((0.0,), (1.0, 1.0)), ((0.0,), (0.0,))):
        with pytest.raises(ValueError, match="one for each channel"):
            Latents(Shuffled(), mean, std)


@pytest.mark.parametrize("size", [(16, 24), (17, 22), (19, 33)])
def test_any_size_goes_there_and_back(size, coder):
    x = torch.rand(2, 3, *size) - 0.5
    codec = shuffled(3)
    e = codec.encode(x, torch.zeros(2, 1, *size))
    assert e.shape[2:] == tuple(-(-side // 2) for side in size)
    assert torch.allclose(codec.decode(e, size), x, atol=1e-6)
    real = Latents(coder, (0.0,) * 3, (1.0,) * 3)
    e = real.encode(x, torch.zeros(2, 1, *size))
    assert e.shape == (2, 3, *(-(-side // 4) for side in size))
    assert real.decode(e, size).shape == x.shape
    assert real.pixels(e[:, :1], size).shape == (2, 1, *size)


@torch.no_grad()
def test_edges_that_meet_are_no_edges(coder):
    """Whatever is done to a picture that goes round, it does not matter where it is cut."""
    codec = Latents(coder, (0.1, 0.0, 0.2), (0.5, 1.0, 2.0))
    x, hole = torch.rand(1, 3, 48, 40) * 2 - 1, square(48, 40, 0, 36, 9)
    moved = [each.roll((12, 20), (2, 3)) for each in (x, hole)]
    e, there = codec.encode(x, hole, wrap=True), codec.encode(*moved, wrap=True)
    assert torch.allclose(e.roll((3, 5), (2, 3)), there, atol=1e-4)
    assert not torch.allclose(codec.encode(x, hole).roll((3, 5), (2, 3)), codec.encode(*moved), atol=1e-2)
    numbers = coder.codebook.codes[torch.randint(64, (1, 12, 10))].permute(0, 3, 1, 2).contiguous()
    q = (numbers - torch.tensor([0.1, 0.0, 0.2]).view(1, 3, 1, 1)) / torch.tensor([0.5, 1.0, 2.0]).view(1, 3, 1, 1)
    shown, there = codec.decode(q, (48, 40), wrap=True), codec.decode(q.roll((3, 5), (2, 3)), (48, 40), wrap=True)
    assert torch.allclose(shown.roll((12, 20), (2, 3)), there, atol=1e-4)
    with pytest.raises(ValueError, match="sides must divide by 4; got 42x48"):
        codec.encode(torch.zeros(1, 3, 48, 42), torch.zeros(1, 1, 48, 42), wrap=True)


@torch.no_grad()
@pytest.mark.parametrize(("blocks", "multipliers"), [(2, (1, 2, 4)), (1, (1, 2)), (1, (1, 2, 2))])
def test_what_a_token_sees_and_changes_is_within_reach(blocks, multipliers):
    """By derivatives, which find every path: the farthest pixel is just as far as is said, one way or the other."""
    torch.manual_seed(0)
    net = Autoencoder(width=4, blocks=blocks, multipliers=multipliers, codes=16).eval().double()
    for weight in net.parameters():
        torch.nn.init.uniform_(weight, 0.1, 0.2)  # nothing is taken out by a 0
    factor, side = net.factor, 128
    middle, nothing = side // factor // 2, torch.zeros(1, 1, side, side, dtype=torch.float64)
    first, last = middle * factor, middle * factor + factor - 1  # a token's own pixels
    x = torch.rand(1, 3, side, side, dtype=torch.float64, requires_grad=True)
    q = torch.rand(1, 3, side // factor, side // factor, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        seen = torch.autograd.grad(net.encoder(x, nothing)[..., middle, middle].sum(), x)[0]
        shown = net.decoder(q, nothing)
        by = [torch.autograd.grad(shown[..., k, k].sum(), q, retain_graph=True)[0] for k in range(first, last + 1)]
    found = seen.abs().sum((0, 1)).nonzero()
    far = [int(first - found.min()), int(found.max() - last)]
    for pixel, gradient in enumerate(by, first):
        found = gradient.abs().sum((0, 1)).nonzero()
        far += [int(pixel - (found.min() * factor + factor - 1)), int(found.max() * factor - pixel)]
    assert max(far) == net.reach


@torch.no_grad()
@pytest.mark.parametrize(("size", "wrap"), [((150, 209), False), ((160, 104), True)])
def test_large_pictures_are_coded_by_parts_and_none_is_seen(size, wrap, coder, monkeypatch):
    codec = Latents(coder, (0.1, 0.0, 0.2), (0.5, 1.0, 2.0))
    x, hole = torch.rand(3, 3, *size) * 2 - 1, square(*size, 30, 40, 50).expand(3, -1, -1, -1)
    asked = []

    def found():
        e = codec.encode(x, hole, wrap=wrap)
        return e, codec.decode(coder.codebook(e).q, size, wrap=wrap)

    def counting(code):
        def run(*given):
            asked.append(given[0].shape)
            return code(*given)

        return run

    whole = found()
    monkeypatch.setattr(coder, "encode", counting(coder.encode))
    monkeypatch.setattr(coder, "decode", counting(coder.decode))
    monkeypatch.setattr("asyncpatch.codecs.TILE", 48)
    monkeypatch.setitem(codecs._AT_ONCE, "cpu", 2 * 48 * 48)
    for one, other in zip(found(), whole, strict=True):
        assert torch.allclose(one, other, atol=1e-4)
    assert max(shape[0] for shape in asked) == 2  # of three pictures
    assert max(max(shape[2:]) for shape in asked) <= 48 + 2 * 36


def test_nothing_of_the_hole_gets_in(coder):
    codec = Latents(coder, (0.0,) * 3, (1.0,) * 3)
    x, hole = torch.rand(1, 3, 32, 32), square(32, 32, 5, 9, 14)
    other = torch.where(hole > 0, torch.rand_like(x), x)
    assert torch.equal(codec.encode(x, hole), codec.encode(other, hole))


class Grey:
    def __call__(self, z, t, cond=None):
        return Denoised(torch.zeros_like(z))


@pytest.mark.parametrize(
    ("rings", "wrap", "size"), [(False, False, (37, 51)), (True, False, (30, 41)), (True, True, (40, 32))]
)
def test_filling_goes_by_tokens_and_leaves_the_rest_alone(rings, wrap, size):
    """With a denoiser that knows but one answer, the hole is filled with what that decodes to."""
    codec, moments = shuffled(3, border=1), []
    x, hole = torch.rand(2, 3, *size) * 2 - 1, square(*size, 3, 5, 20)
    filling = Completion(
        denoiser=Grey(), process=PROCESS, step=ddim(PROCESS), codec=codec, window=16, steps=4, rings=rings, wrap=wrap,
        callback=moments.append,
    )  # fmt: skip
    order = torch.arange(float(size[1])).expand(1, 1, *size)
    made = filling(x, hole, [1, 2], order=order)
    assert torch.equal(made[hole.expand_as(x) == 0], x[hole.expand_as(x) == 0])
    deep = (hole > 0) & (functional.avg_pool2d(1 - hole, 17, stride=1, padding=8) == 0)  # where no seam is smoothed
    assert deep.any()
    assert torch.allclose(made[deep.expand_as(x)], torch.tensor(0.1), atol=1e-6)
    if not rings:
        bare = replace(filling, paste=False)(x, hole, [1, 2], order=order)
        assert torch.allclose(bare[hole.expand_as(x) > 0], torch.tensor(0.1), atol=1e-6)
        moments = moments[: len(moments) // 2]
    assert sum(each.windows for each in moments) == filling.work(hole.expand(2, -1, -1, -1), order)
    for moment in moments:
        height, width = moment.stage.start.shape[2:]
        assert moment.visit.z.shape[2:] == (-(-height // 2), -(-width // 2))
        assert moment.pictures(moment.visit.z).shape == (2, 3, height, width)
        assert moment.pixels(moment.visit.t).shape == (2, 1, height, width)
        assert 0 <= moment.visit.t.min() <= moment.visit.t.max() <= 1


def test_a_window_holds_whole_tokens():
    with pytest.raises(ValueError, match="window must divide by 2, got 17"):
        Completion(denoiser=Grey(), process=PROCESS, step=ddim(PROCESS), codec=shuffled(), window=17)


class Blurred(Shuffled):
    """Pixels are means over their neighbours."""

    def decode(self, e):
        return functional.avg_pool2d(functional.pad(super().decode(e), [2] * 4, mode="replicate"), 5, stride=1)


def test_noise_that_waits_is_not_decoded_into_what_is_done():
    codec, hole = Latents(Blurred(), (0.1,) * 4, (0.15,) * 4, border=0), torch.ones(1, 1, 48, 48)
    hole[..., 20:28, 20:28] = 0
    filling = Completion(
        denoiser=Grey(), process=PROCESS, step=ddim(PROCESS), codec=codec, window=16, steps=3, rings=True
    )  # fmt: skip
    assert len(list(filling.stages(hole))) > 2
    made = filling(torch.full((1, 1, 48, 48), 0.1), hole, [0])
    assert torch.allclose(made, torch.tensor(0.1), atol=1e-5)


@torch.no_grad()
def test_what_was_in_the_hole_does_not_matter(coder):
    class Near:
        def __call__(self, z, t, cond=None):
            return Denoised(functional.avg_pool2d(z, 3, stride=1, padding=1))

    codec = Latents(coder, (0.0,) * 3, (1.0,) * 3, border=0)
    x, hole = torch.rand(1, 3, 32, 32) * 2 - 1, square(32, 32, 6, 10, 12)
    other = torch.where(hole > 0, torch.rand_like(x), x)
    filling = Completion(denoiser=Near(), process=PROCESS, step=ddim(PROCESS), codec=codec, window=32, steps=3)
    assert torch.equal(filling(x, hole, [3]), filling(other, hole, [3]))


@pytest.mark.parametrize("kind", ["extrema", "square", "thin", "wide"])
def test_a_coder_that_blurs_leaves_hardly_a_seam(kind, generator):
    """Pictures whose detail is half lost, and which are off by something smooth besides."""

    def cloudy(roughness):
        f = torch.fft.fftfreq(64)
        shape = (f[:, None].square() + f.square()).sqrt().clamp_min(1 / 64) ** -roughness
        made = torch.fft.ifft2(torch.fft.fft2(torch.randn(24, 3, 64, 64, generator=generator)) * shape).real
        return 0.4 * made / made.std((2, 3), keepdim=True)

    x, hole = cloudy(1.3).clamp(-1, 1), holes(kind, range(24), 64, 64)
    soft = functional.avg_pool2d(functional.pad(x, [2] * 4, mode="replicate"), 5, stride=1)
    decoded = (0.5 * (x + soft) + 0.1 * cloudy(2.0)).clamp(-1, 1)
    joined = shuffled(4).join(decoded, x, hole)
    original, pasted, seam = (
        float(seam_ratio(each, hole).nanmedian()) for each in (x, torch.where(hole > 0, decoded, x), joined)
    )
    assert seam - original < 0.5 * (pasted - original)
    assert psnr_in_hole(joined, x, hole).mean() > psnr_in_hole(decoded, x, hole).mean()


def test_what_decoding_misses_leaves_no_edge():
    """A coder that is too light everywhere: beside what is known that is made up for, far in the hole it cannot be."""
    codec, x = shuffled(3), torch.rand(1, 3, 40, 40) - 0.7
    hole = square(40, 40, 8, 8, 24)
    joined = codec.join(x + 0.2, x, hole)
    assert torch.equal(joined[hole.expand_as(x) == 0], x[hole.expand_as(x) == 0])
    off = (joined - x).mean(1)[0]
    assert off[8:32, 8].abs().max() < 0.04
    assert off[20, 20] == pytest.approx(0.2, abs=1e-5)
    assert (off[20, 8:20].diff() > -1e-5).all()
    exact = codec.join(torch.where(hole > 0, 0.3, x), x, hole)
    assert torch.allclose(exact, torch.where(hole > 0, 0.3, x), atol=1e-6)  # nothing missed, nothing changed
    rolled = [each.roll((16, 20), (2, 3)) for each in (x + 0.2, x, hole)]
    assert torch.allclose(
        codec.join(*rolled, wrap=True), codec.join(x + 0.2, x, hole, wrap=True).roll((16, 20), (2, 3))
    )
    assert torch.equal(PIXELS.join(x + 0.2, x, hole), torch.where(hole > 0, x + 0.2, x))
