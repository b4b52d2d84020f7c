import math
import re

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.nn import functional

from asyncpatch.guidance import Guided, drop_label
from asyncpatch.models import unet
from asyncpatch.models.denoiser import NetworkDenoiser
from asyncpatch.models.unet import UNet, beside
from asyncpatch.parameterization import PREDICTIONS, to_x
from asyncpatch.process import RectifiedFlow
from asyncpatch.protocols import Cond
from asyncpatch.sampling import sample
from asyncpatch.schedules import inpainting
from asyncpatch.steps import ddim


def tiny(**more):
    """A network of two scales whose every weight matters (as built, the last layers are 0)."""
    torch.manual_seed(0)
    net = UNet(**({"width": 64, "multipliers": (1, 2), "blocks": (1, 1), "middle_blocks": 1, "attention": 1} | more))
    for name, parameter in net.named_parameters():
        if not name.endswith("gain"):
            nn.init.normal_(parameter, std=0.08)
    return net


def ask(label):
    return torch.zeros(2, 3, 8, 8), torch.zeros(()), label


@pytest.fixture
def question(generator):
    z = torch.randn(2, 3, 16, 12, generator=generator)
    t = torch.rand(2, 1, 16, 12, generator=generator)
    return z, t, torch.tensor([3, -1])


@pytest.mark.parametrize(
    ("config", "millions"),
    [
        ({"labels": 112}, 22.8),
        ({"width": 128, "multipliers": (1, 2, 3, 3), "blocks": (1, 2, 2, 2), "middle_blocks": 1, "labels": 1000}, 63.8),
        ({"width": 256, "blocks": (4, 4, 4, 4), "middle_blocks": 3, "labels": 1000}, 621.5),
    ],
)
def test_sizes_are_those_of_the_paper(config, millions):
    with torch.device("meta"):
        net = UNet(**config)
    assert sum(p.numel() for p in net.parameters()) / 1e6 == pytest.approx(millions, abs=0.05)


def test_a_constant_field_is_one_time_per_picture(question):
    z, _, label = question
    net = tiny(labels=5)
    one = torch.tensor([0.2, 0.7]).view(2, 1, 1, 1)
    scalar, field = net(z, one, label), net(z, one.expand(2, 1, 16, 12), label)
    assert torch.allclose(scalar, field, atol=1e-5)
    assert scalar.std() > 0.1
    for short in (torch.tensor(0.2), torch.full((1, 1, 1, 1), 0.2)):
        assert torch.allclose(net(z, short, label)[0], scalar[0], atol=1e-5)


def test_every_pixels_time_counts(question):
    z, t, label = question
    net = tiny(labels=5)
    before = net(z, t, label)
    t = t.clone()
    t[0, 0, 5, 7] = 1 - t[0, 0, 5, 7]
    change = (net(z, t, label) - before).abs()
    assert change[0].max() > 1e-3
    assert change[1].max() == 0


def test_the_features_of_times_are_pooled_not_the_times():
    """Half clean, half noise is not the same as all half noisy, also at a scale too coarse to tell them apart."""
    net = tiny()
    for layers in (net.down[0], net.up[1]):  # blind at the fine scale
        for layer in layers:
            nn.init.zeros_(layer.block.film.weight)
    z = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    checkers = torch.tensor([[0.0, 1.0], [1.0, 0.0]]).repeat(4, 4).view(1, 1, 8, 8)
    assert (net(z, checkers) - net(z, torch.full_like(checkers, 0.5))).abs().max() > 1e-3


def test_labels_count_and_none_is_the_null_label(question):
    z, t, _ = question
    net = tiny(labels=5)
    null = net(z, t)
    assert torch.equal(null, net(z, t, torch.tensor([-1, -1])))
    for label in range(5):
        some = net(z, t, torch.tensor([label, -1]))
        assert (some[0] - null[0]).abs().max() > 1e-2
        assert torch.allclose(some[1], null[1], atol=1e-6)


@pytest.mark.parametrize("shape", [(13, 17), (1, 1), (2, 3), (16, 10), (64, 16)])
def test_any_size_goes(shape, generator):
    net = tiny()
    z, t = torch.randn(1, 3, *shape, generator=generator), torch.rand(1, 1, *shape, generator=generator)
    out = net(z, t)
    assert out.shape == z.shape
    below, beside = -shape[0] % net.divisor, -shape[1] % net.divisor
    rows, columns = (mirror(length, more) for length, more in zip(shape, (below, beside), strict=True))
    padded = [each[:, :, rows][:, :, :, columns] for each in (z, t)]
    assert torch.allclose(out, net(*padded)[..., : shape[0], : shape[1]], atol=1e-5)


def mirror(length, more):
    """0, 1, ..., length - 1, length - 2, ..., 0, 1, ...: walking to and fro."""
    at, step, found = 0, 1, []
    for _ in range(length + more):
        found.append(at)
        if not 0 <= at + step < length:
            step = -step
        at += step if length > 1 else 0
    return found


def test_larger_than_the_table_of_positions():
    rotary = unet.Rotary(length=4)
    assert torch.allclose(rotary(6, 3), unet.Rotary(length=64)(6, 3))


def test_rotary_positions_are_relative(generator):
    """The product of two turned vectors depends on how far apart they are, not on where."""
    q, k = torch.randn(2, unet.HEAD, generator=generator)
    cos, sin = unet.Rotary()(8, 8)
    turned = [unet.Attention._turn(v.expand(64, -1), torch.ones(unet.HEAD), cos, sin) for v in (q, k)]
    product = (turned[0] @ turned[1].T).view(8, 8, 8, 8)
    assert torch.allclose(product[1, 2, 3, 5], product[4, 0, 6, 3], atol=1e-4)
    assert not torch.allclose(product[1, 2, 3, 5], product[1, 2, 5, 3], atol=1e-2)


@pytest.mark.parametrize("batch", [1, 2])
def test_doubling_and_joining_are_the_usual_ones(generator, batch):
    h = torch.randn(batch, 3, 4, 5, generator=generator).to(memory_format=torch.channels_last).requires_grad_()
    dy = torch.randn(batch, 3, 8, 10, generator=generator)
    assert torch.equal(unet.doubled(h), functional.interpolate(h, scale_factor=2, mode="nearest"))
    (ours,) = torch.autograd.grad(unet.doubled(h), h, dy)
    (theirs,) = torch.autograd.grad(functional.interpolate(h, scale_factor=2, mode="nearest"), h, dy)
    assert torch.allclose(ours, theirs, atol=1e-6)
    other = torch.randn(batch, 2, 4, 5, generator=generator).to(memory_format=torch.channels_last)
    joined = unet.join(h, other)
    assert joined.stride() == (5 * 20, 1, 5 * 5, 5)  # channels last
    assert torch.equal(joined, torch.cat([h, other], 1))
    (gradient,) = torch.autograd.grad(joined, h, torch.ones_like(joined))
    assert gradient.is_contiguous(memory_format=torch.channels_last)
    assert (gradient == 1).all()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own doing
@pytest.mark.parametrize("field", [True, False])
def test_it_compiles_whole_and_no_convolution_has_to_copy_its_gradient(question, field):
    """One graph, and the gradient that reaches each convolution is channels-last (but for the last one, of 3)."""
    z, t, label = question
    layouts = []

    def backward(graph, _):
        for node in graph.graph.nodes:
            if node.target == torch.ops.aten.convolution_backward.default:
                gradient = node.args[0].meta["val"]
                layouts.append((gradient.shape[1], gradient.is_contiguous(memory_format=torch.channels_last)))
        return make_boxed_func(graph.forward)

    compiler = aot_autograd(fw_compiler=lambda graph, _: make_boxed_func(graph.forward), bw_compiler=backward)
    net = tiny(labels=5).to(memory_format=torch.channels_last)
    compiled = torch.compile(net, fullgraph=True, backend=compiler)
    with torch.autocast("cpu", torch.bfloat16):
        out = compiled(z, t if field else t[:, :, :1, :1], label)
    out.square().sum().backward()
    assert len(layouts) > 15
    assert all(packed for channels, packed in layouts if channels > 3)


def test_checkpointing_changes_nothing(question):
    gradients = []
    for checkpointing in (False, True):
        net = tiny(labels=5)
        runs = []
        net.up[0][0].block.conv_in.register_forward_hook(lambda *_, runs=runs: runs.append(1))
        if checkpointing:
            net.enable_gradient_checkpointing()
        net(*question).square().sum().backward()
        assert len(runs) == (2 if checkpointing else 1)
        gradients.append(torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None]))
    assert torch.allclose(*gradients, rtol=1e-4, atol=1e-4)


def test_half_precision_is_near(question):
    net = tiny(labels=5)
    exact = net(*question)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = net(*question)
    half = net.to(torch.bfloat16)(*question)
    for near in (mixed, half):
        assert near.dtype == torch.float32
        assert (near - exact).norm() / exact.norm() < 0.05


def test_it_is_saved_and_loaded_as_diffusers_models_are(question, tmp_path):
    net = tiny(labels=5)
    net.save_pretrained(tmp_path / "whole")
    net.save_pretrained(tmp_path / "shards", max_shard_size="1MB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    for folder in ("whole", "shards"):
        again = UNet.from_pretrained(tmp_path / folder)
        assert dict(again.config)["multipliers"] in ((1, 2), [1, 2])
        assert torch.equal(again(*question), net(*question))
    assert UNet.from_pretrained(tmp_path / "whole", torch_dtype=torch.float16).dtype == torch.float16


def test_functional_gradients_work(question):
    z, t, label = question
    net = tiny(labels=5)
    _, pull = torch.func.vjp(lambda z: net(z, t, label), z)
    ours = z.clone().requires_grad_()
    net(ours, t, label).sum().backward()
    assert torch.allclose(pull(torch.ones_like(z))[0], ours.grad, atol=1e-4)


def test_names_in_checkpoints_are_frozen():
    """A renamed module would make every saved model useless."""
    found = sorted({re.sub(r"\.\d+", ".N", name) for name in tiny(labels=5).state_dict()})
    layer = [
        "block.conv_in.weight",
        "block.conv_out.bias",
        "block.conv_out.weight",
        "block.film.label.bias",
        "block.film.label.weight",
        "block.film.weight",
        "block.norm.gain",
    ]
    attention = [f"attention.{name}" for name in ("gain", "norm.gain", "out.bias", "out.weight", "qkv.weight")]
    wanted = [f"{stage}.{name}" for stage in ("down.N.N", "up.N.N", "middle.N") for name in (*layer, *attention)]
    wanted += [f"{stage}.block.skip.weight" for stage in ("down.N.N", "up.N.N")]
    wanted += ["conv_in.bias", "conv_in.weight", "conv_out.bias", "conv_out.weight", "norm_out.gain", "label.weight"]
    wanted += ["enlarge.N.bias", "enlarge.N.weight"]
    assert found == sorted(wanted)


def test_it_learns(generator):
    """A few steps on one batch must bring the loss well below that of predicting nothing."""
    torch.manual_seed(0)
    net = UNet(width=64, multipliers=(1, 2), blocks=(1, 1), middle_blocks=1, attention=1)
    process = RectifiedFlow()
    x, noise = (torch.randn(4, 3, 8, 8, generator=generator) for _ in range(2))
    t = torch.rand(4, 1, 8, 8, generator=generator)
    z = process.diffuse(x, t, noise)
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    losses = []
    for _ in range(40):
        loss = (net(z, t) - (noise - x)).square().mean()
        losses.append(loss.item())
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert losses[0] == pytest.approx((noise - x).square().mean().item(), rel=1e-5)  # it starts from 0
    assert losses[-1] < 0.1 * losses[0], losses


def test_it_is_a_denoiser(question, generator):
    net = NetworkDenoiser(tiny(labels=5).bfloat16(), RectifiedFlow())
    x, _, label = question
    hole = torch.zeros(1, 1, 16, 12)
    hole[..., 4:9] = 1
    schedule = inpainting(hole, 3)
    z = net.process.diffuse(x, schedule.start(x), torch.randn(x.shape, generator=generator))
    guided = Guided(net, 1.5, drop_label)
    out = sample(guided, schedule, z, step=ddim(net.process), cond=Cond(label=label))
    assert torch.equal(out[..., :4], x[..., :4])
    assert (out[..., 4:9] != z[..., 4:9]).all()


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_a_denoiser_knows_what_its_network_predicts(process, prediction, question):
    z, t, label = question
    net = tiny(labels=5)
    answer = NetworkDenoiser(net, process, prediction)(z, t, Cond(label=label))
    assert torch.equal(answer.x, to_x(process, prediction, net(z, t, label), z, t))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: UNet(blocks=(1, 1)), "multipliers and blocks must be equally many, got 4 and 2"),
        (lambda: UNet(width=48), "channels at a scale with attention must be a multiple of 64, got 144"),
        (lambda: tiny()(torch.zeros(1, 4, 8, 8), torch.zeros(())), r"z must have 3 channels, got shape \[1, 4, 8, 8\]"),
        (lambda: tiny()(torch.zeros(1, 3, 8, 8), torch.zeros(1)), r"t must be a tensor that broadcasts"),
        (lambda: tiny()(torch.zeros(1, 3, 8, 8), torch.full((), -1e-3)), r"t must lie in \[0, 1\]"),
        (
            lambda: tiny(labels=5)(*ask(torch.tensor([1]))),
            r"label must be integers \[2\], one per picture; got shape \[1\]",
        ),
        (lambda: tiny(labels=5)(*ask(torch.rand(2))), r"label must be integers \[2\]"),
        (lambda: tiny(labels=5)(*ask(torch.tensor([1, 5]))), r"label must be below 5 \(-1 for none\), got 5"),
    ],
)
def test_bad_arguments_are_named(build, words):
    with pytest.raises(ValueError, match=words):
        build()


def test_waves_show_the_finest_detail(generator):
    """The finest is the same for all levels of 8 bits, and tells what lies between; without waves all is as before."""
    net = UNet(width=16, multipliers=(1, 2), blocks=(1, 1), middle_blocks=1, attention=0, fourier=2)
    z = (torch.randint(0, 256, (1, 3, 8, 8), generator=generator).double() / 127.5 - 1).float()
    clean = torch.zeros(1, 1, 1, 1)
    shown = net._seen(z, clean, None)
    assert shown.shape == (1, 15, 8, 8)
    assert torch.equal(shown[:, :3], z)
    assert torch.allclose(shown[:, 3:6], torch.zeros_like(z), atol=1e-3)
    assert torch.allclose(shown[:, 6:9], -torch.ones_like(z), atol=1e-3)
    quarter = net._seen(z + 0.5 / 255, clean, None)
    assert torch.allclose(quarter[:, 3:6], -torch.ones_like(z), atol=1e-3)
    half = math.pi * 127.5 * z
    assert torch.allclose(shown[:, 9:12], half.sin(), atol=1e-3)
    assert torch.allclose(shown[:, 12:], half.cos(), atol=1e-3)
    assert net(z, torch.rand(1, 1, 8, 8)).shape == z.shape
    plain = UNet(width=16, multipliers=(1, 2), blocks=(1, 1), middle_blocks=1, attention=0)
    assert torch.equal(plain._seen(z, clean, None), z)
    assert plain.conv_in.weight.shape[1] == 3


def test_waves_fade_as_much_as_noise_blurs_them(generator):
    net = UNet(width=16, multipliers=(1, 2), blocks=(1, 1), middle_blocks=1, attention=0, fourier=2)
    x, t = torch.full((1, 3, 1, 1), 0.3), torch.tensor([[[[0.002]]]])
    noised = x + t * torch.randn(100_000, 3, 1, 1, generator=generator)
    blurred = net._seen(noised, torch.zeros_like(t), None).mean(0)
    assert torch.allclose(net._seen(x, t, None)[0], blurred, atol=0.01)
    far = net._seen(x, torch.full_like(t, 0.1), None)
    assert float(far[:, 3:].abs().max()) < 1e-6


def test_what_is_known_can_be_shown_beside_the_canvas(question, generator):
    z, t, label = question
    net, picture = tiny(labels=5, given=True), torch.randn(z.shape, generator=generator)
    hole = (torch.rand(2, 1, 16, 12, generator=generator) < 0.5).float()
    shown = net(z, t, label, beside(picture, hole))
    other = torch.where(hole > 0, picture + 1.0, picture)
    assert torch.equal(shown, net(z, t, label, beside(other, hole)))  # what is not known is not shown
    assert not torch.allclose(shown, net(z, t, label, beside(picture + 0.1, hole)), atol=1e-3)
    nothing = net(z, t, label)
    assert torch.equal(nothing, net(z, t, label, beside(picture, torch.ones_like(hole))))
    assert not torch.allclose(shown, nothing, atol=1e-3)
    odd = net(z[..., :15, :11], t[..., :15, :11], label, beside(picture, hole)[..., :15, :11])
    assert odd.shape == (2, 3, 15, 11)
    asked = NetworkDenoiser(net, RectifiedFlow(), "x")(z, t, Cond(label, picture, hole))
    assert torch.equal(asked.x, shown)
    for half in (Cond(picture=picture), Cond(hole=hole)):
        with pytest.raises(ValueError, match="a picture and its hole, or neither"):
            NetworkDenoiser(net, RectifiedFlow(), "x")(z, t, half)
    with pytest.raises(ValueError, match=r"given must have shape \[2, 4, 16, 12\]"):
        net(z, t, label, picture)
    with pytest.raises(ValueError, match="shown no picture"):
        tiny(labels=5)(z, t, label, beside(picture, hole))
