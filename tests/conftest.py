import hypothesis
import pytest
import torch

from asyncpatch.process import CosineVP, RectifiedFlow

# the same examples on every machine, and no time limit: a busy core is no error
hypothesis.settings.register_profile("suite", derandomize=True, deadline=None)
hypothesis.settings.load_profile("suite")

PROCESSES = [RectifiedFlow(), CosineVP()]


@pytest.fixture(params=PROCESSES, ids=lambda process: type(process).__name__)
def process(request):
    return request.param


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """A folder with a network of 16 pixels and three labels. It is not trained, but it says something of everything."""
    from asyncpatch.models.folder import Model
    from asyncpatch.models.unet import UNet

    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = UNet(labels=3, width=16, multipliers=(1, 2), blocks=(1, 1), middle_blocks=1, attention=0)
        for weight in net.parameters():
            if weight.dim() > 1 and not weight.any():  # layers that start at 0
                torch.nn.init.normal_(weight, std=0.1)
    folder = tmp_path_factory.mktemp("tiny") / "model"
    Model(net, RectifiedFlow(), "v", 16, ("tabby", "cat", "Golden retriever")).save(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_latent_model(tmp_path_factory):
    """The same for 32 pixels, on the latents of an autoencoder, each of 2 pixels across."""
    from asyncpatch.codecs import Latents
    from asyncpatch.models.autoencoder import Autoencoder
    from asyncpatch.models.folder import Model
    from asyncpatch.models.unet import UNet

    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = UNet(labels=3, width=16, multipliers=(1, 2), blocks=(1, 1), middle_blocks=1, attention=0)
        coder = Autoencoder(width=8, multipliers=(1, 2), blocks=1, codes=64)
        for weight in (*net.parameters(), *coder.parameters()):
            if weight.dim() > 1 and not weight.any():
                torch.nn.init.normal_(weight, std=0.1)
        x = torch.rand(4, 3, 32, 32) * 2 - 1
        coder.codebook.note(
            torch.rand(64), coder.codebook.sizes(coder.encode(x), x[:, :1, ::2, ::2] * 0 + 1), decay=0.0
        )
    folder = tmp_path_factory.mktemp("tiny-latent") / "model"
    codec = Latents(coder, *coder.codebook.moments())
    Model(net, RectifiedFlow(), "v", 32, ("tabby", "cat", "Golden retriever"), codec=codec).save(folder)
    return folder


@pytest.fixture
def two_ship(tiny_model, tiny_latent_model, tmp_path_factory, monkeypatch):
    """As if both came with the package: "small", which sees 16 pixels, and "large", which sees 32."""
    root = tmp_path_factory.mktemp("package")
    (root / "weights").mkdir()
    (root / "weights" / "small").symlink_to(tiny_model)
    (root / "weights" / "large").symlink_to(tiny_latent_model)
    monkeypatch.setattr("asyncpatch.shipped.__file__", str(root / "src" / "asyncpatch" / "shipped.py"))
    monkeypatch.setattr("asyncpatch.shipped.SHIPPED", ("small", "large"))
