"""A network as a denoiser, and compiled."""

from functools import partial

import pytest
import torch

from asyncpatch.models.denoiser import Compiled, NetworkDenoiser
from asyncpatch.models.placing import place
from asyncpatch.models.uncertainty import UncertaintyHead
from asyncpatch.models.unet import UNet
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.process import RectifiedFlow
from asyncpatch.protocols import Cond

pytestmark = pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own doing


def network(given=False):
    torch.manual_seed(0)
    net = UNet(width=16, multipliers=(1, 4), blocks=(1, 1), middle_blocks=0, attention=1, labels=4, given=given)
    for each in net.parameters():
        torch.nn.init.normal_(each, std=0.1)
    place(net, torch.device("cpu"), torch.float32)
    return net


@pytest.fixture
def traced(monkeypatch):
    """Sizes that were asked. Compiling stops at the graph here: what cannot be one is refused all the same."""
    sizes, real = [], torch.compile

    def compiled(call, **options):
        assert options == {"fullgraph": True, "dynamic": False}
        return real(call, backend=partial(record, sizes), **options)

    def record(sizes, graph, inputs):
        def run(*values):
            sizes.append({len(each) for each in values if each.dim() == 4 and each.shape[-1] >= 8})  # no kernels
            return graph(*values)

        return run

    torch.compiler.reset()
    monkeypatch.setattr(torch, "compile", compiled)
    yield sizes
    torch.compiler.reset()


@pytest.mark.parametrize("kind", ["plain", "head", "given"])
@torch.no_grad()
def test_compiled_answers_are_the_same_whatever_the_number(kind, traced):
    net = network(given=kind == "given")
    head = UncertaintyHead.beside(net) if kind == "head" else None
    plain = NetworkDenoiser(net, RectifiedFlow(), "v", head)
    compiled = Compiled(plain, 4)
    for count in (3, 4, 9):
        z, t = torch.randn(count, 3, 8, 8), torch.rand(count, 1, 8, 8)
        cond = Cond(label=torch.arange(count) % 4, wanted=t > 0)
        if kind == "given":
            cond = cond._replace(picture=torch.randn(count, 3, 8, 8), hole=(torch.rand(count, 1, 8, 8) > 0.5).float())
        for time in (t, torch.tensor(0.3)):
            wanted, found = plain(z, time, cond), compiled(z, time, cond)
            assert torch.allclose(found.x, wanted.x, atol=1e-5)
            assert (found.logvar is None) == (head is None)
            if head is not None:
                assert torch.allclose(found.logvar, wanted.logvar, atol=1e-5)
    assert len(traced) == 2 * (1 + 1 + 3)
    assert all(sizes == {4} for sizes in traced)


def test_a_pipeline_is_compiled_once_if_at_all(traced, tiny_model):
    pipe = AsyncPatchPipeline.from_pretrained(tiny_model).prepare("cpu", "fp32")
    assert isinstance(pipe.denoiser(8), NetworkDenoiser)
    plain = pipe.generate(n=3, seed=1, steps=2)
    pipe.prepare("cpu", "fp32", compiled=True)
    assert pipe.denoiser(8) is pipe.denoiser(8) is not pipe.denoiser(4)
    made = pipe.generate(n=3, seed=1, steps=2, batch=4)
    assert len(traced) == 2
    for one, other in zip(plain.pictures, made.pictures, strict=True):
        assert (one.x - other.x).abs().max() < 0.02


def test_compiled_asks_fewer_at_a_time_where_memory_is_short(traced):
    compiled = Compiled(NetworkDenoiser(network(), RectifiedFlow()), 8)
    real, sizes = compiled._answer, []

    def small(z, t, cond):
        sizes.append(len(z))
        if len(z) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return real(z, t, cond)

    compiled._answer = small
    z, t = torch.randn(5, 3, 8, 8), torch.rand(5, 1, 8, 8)
    with torch.no_grad():
        found = compiled(z, t)
        assert torch.allclose(found.x, compiled.denoiser(z, t).x, atol=1e-5)
    assert sizes == [8, 4, 2, 2, 2]
    assert compiled(z[:0], t[:0]).x.shape == (0, 3, 8, 8)


@torch.no_grad()
def test_many_sizes_can_be_compiled(traced):
    net = network()
    for side in range(8, 30, 2):
        z = torch.randn(1, 3, side, side)
        assert Compiled(NetworkDenoiser(net, RectifiedFlow()), 1)(z, z[:, :1].sigmoid()).x.shape == z.shape
