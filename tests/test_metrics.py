"""Metrics: each against its formula, written out by hand or in other words; LPIPS against published numbers too."""

import hashlib
import math
import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
import torchmetrics
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn import functional

from asyncpatch import metrics
from asyncpatch.data.masks import holes
from asyncpatch.evaluation import Likeness
from asyncpatch.metrics import (
    LPIPS,
    LPIPS_VARIABLE,
    frechet_error,
    kernel_distance,
    precision_and_recall,
    psnr_in_hole,
    seam_ratio,
    ssim_in_hole,
)

SHARED = Path(__file__).parents[2] / "shared" / "weights"  # lies beside the repository where the project is developed
CONVOLUTIONS = {0: (64, 3, 11, 4, 2), 3: (192, 64, 5, 1, 2), 6: (384, 192, 3, 1, 1), 8: (256, 384, 3, 1, 1)}
CONVOLUTIONS[10] = (256, 256, 3, 1, 1)  # number in torchvision: channels out, in, kernel, stride, padding


@pytest.fixture(scope="module")
def weights():
    """Random weights in the file's layout, with heads that are not negative, as the published ones."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for head, (number, (out, into, kernel, _, _)) in enumerate(CONVOLUTIONS.items()):
        scale = (2 / (into * kernel**2)) ** 0.5
        found[f"net.features.{number}.weight"] = scale * torch.randn(out, into, kernel, kernel, generator=generator)
        found[f"net.features.{number}.bias"] = 0.1 * torch.randn(out, generator=generator)
        found[f"lin{head}.model.1.weight"] = torch.rand(1, out, 1, 1, generator=generator)
    return found


@pytest.fixture
def pictures(generator):
    return torch.rand(2, 5, 3, 40, 48, generator=generator) * 2 - 1


def test_lpips_is_zero_for_equal_pictures_symmetric_and_not_negative(weights, pictures):
    distance, (x, y) = LPIPS(weights), pictures
    assert (distance(x, x) == 0).all()
    assert distance(x, y).shape == (5,)
    assert (distance(x, y) > 0).all()
    assert torch.allclose(distance(x, y), distance(y, x))
    near, far = (distance(x, torch.lerp(x, y, amount)) for amount in (0.1, 0.5))
    assert (near < far).all()


def test_lpips_of_a_picture_does_not_depend_on_its_batch(weights, pictures):
    distance, (x, y) = LPIPS(weights), pictures
    for k, value in enumerate(distance(x, y)):
        assert torch.allclose(distance(x[k : k + 1], y[k : k + 1])[0], value, rtol=1e-4)


def test_lpips_by_its_formula(weights, pictures):
    def features(picture):
        red, green, blue = picture
        # (p + 1) / 2 brings a picture to [0, 1], where ImageNet has these means and deviations
        scaled = [
            ((channel + 1) / 2 - mean) / deviation
            for channel, mean, deviation in zip(
                (red, green, blue), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), strict=True
            )
        ]
        h = torch.stack(scaled)[None]
        for number, (_, _, _, stride, padding) in CONVOLUTIONS.items():
            if number in (3, 6):
                h = functional.max_pool2d(h, 3, 2)
            weight, bias = (weights[f"net.features.{number}.{name}"] for name in ("weight", "bias"))
            h = functional.conv2d(h, weight, bias, stride, padding).clamp(min=0)
            yield h[0]

    distance, (x, y) = LPIPS(weights), pictures
    wanted = 0.0
    for head, (f, g) in enumerate(zip(features(x[0]), features(y[0]), strict=True)):
        f, g = (h / h.square().sum(0).sqrt() for h in (f, g))
        per_pixel = torch.einsum("chw,c->hw", (f - g) ** 2, weights[f"lin{head}.model.1.weight"].flatten())
        wanted += float(per_pixel.mean())
    assert float(distance(x, y)[0]) == pytest.approx(wanted, rel=1e-3)


def test_lpips_takes_any_precision_and_has_nothing_to_train(weights, pictures):
    distance, (x, y) = LPIPS(weights), pictures
    assert distance(x.double(), y.double()).dtype == torch.float32
    assert torch.allclose(distance(x.bfloat16(), y.bfloat16()), distance(x, y), rtol=0.02)
    assert not any(parameter.requires_grad for parameter in distance.parameters())


def test_lpips_at_its_smallest_size(weights):
    x, y = torch.zeros(1, 3, 31, 31), torch.ones(1, 3, 31, 31)
    assert LPIPS(weights)(x, y) > 0
    with pytest.raises(
        ValueError, match=r"x must be at least 31 pixels high and wide for LPIPS, got .*\[1, 3, 30, 64\]"
    ):
        LPIPS(weights)(torch.zeros(1, 3, 30, 64), torch.zeros(1, 3, 30, 64))


def test_lpips_reads_its_file_from_a_path_or_the_environment(weights, pictures, tmp_path, monkeypatch):
    path = tmp_path / "lpips.safetensors"
    save_file(weights, path)
    wanted = LPIPS(weights)(*pictures)
    monkeypatch.delenv(LPIPS_VARIABLE, raising=False)
    assert torch.equal(LPIPS.load(path)(*pictures), wanted)
    with pytest.raises(FileNotFoundError, match=r"no path was given and ASYNCPATCH_LPIPS is not set\. Pass the path"):
        LPIPS.load()
    with pytest.raises(FileNotFoundError, match=r"there is no file nowhere\.safetensors"):
        LPIPS.load("nowhere.safetensors")
    monkeypatch.setenv(LPIPS_VARIABLE, str(path))
    assert torch.equal(LPIPS.load()(*pictures), wanted)
    monkeypatch.setenv(LPIPS_VARIABLE, str(tmp_path / "gone"))
    with pytest.raises(FileNotFoundError, match=r"there is no file .*gone"):
        LPIPS.load()


def test_lpips_refuses_other_weights(weights):
    missing = {name: value for name, value in weights.items() if name != "lin3.model.1.weight"}
    with pytest.raises(ValueError, match=r"weights must hold lin3.model.1.weight of shape \[1, 256, 1, 1\].*nothing"):
        LPIPS(missing)
    with pytest.raises(ValueError, match=r"net.features.0.bias of shape \[64\] for LPIPS, got shape \[3\]"):
        LPIPS({**weights, "net.features.0.bias": torch.zeros(3)})


def published():
    """The published weights and the folder of pictures to check them with, or why they are not there."""
    path = Path(os.environ.get(LPIPS_VARIABLE) or SHARED / "lpips-alex.safetensors")
    if not path.is_file():
        pytest.skip(f"no LPIPS weights: {LPIPS_VARIABLE} names no file, and there is no {path}")
    for folder in (path.parent / "lpips-check", SHARED / "lpips-check"):
        if folder.is_dir():
            return path, folder
    pytest.skip(f"no pictures to check LPIPS with: there is no folder lpips-check beside {path}")


def test_lpips_gives_the_published_distances():
    path, folder = published()
    reference, first, second = (
        torch.from_numpy(np.array(Image.open(folder / f"ex_{name}.png").convert("RGB"))).permute(2, 0, 1) / 127.5 - 1
        for name in ("ref", "p0", "p1")
    )
    found = LPIPS.load(path)(torch.stack([reference, reference]), torch.stack([first, second]))
    assert found.tolist() == pytest.approx([0.722, 0.138], abs=5e-4)


def test_psnr_counts_the_hole_alone():
    x = torch.zeros(1, 3, 4, 4)
    hole = torch.zeros(1, 1, 4, 4)
    hole[..., :2] = 1
    y = torch.where(hole == 1, 0.2, 1.0).expand_as(x)
    assert float(psnr_in_hole(x, y, hole)) == pytest.approx(20.0)  # 10 log10(4 / 0.04)
    assert float(psnr_in_hole(x, y, 1 - hole)) == pytest.approx(10 * math.log10(4))


def test_psnr_is_the_mean_over_channels_and_of_each_picture():
    x = torch.zeros(2, 3, 4, 4)
    y = x.clone()
    y[0, 0] = 0.3  # 0.09 / 3 over the channels
    y[1] = -0.4
    found = psnr_in_hole(x, y, torch.ones(1, 1, 1, 1))
    assert found.tolist() == pytest.approx([10 * math.log10(4 / 0.03), 10 * math.log10(4 / 0.16)])


def test_soft_holes_weigh():
    y = torch.tensor([0.4, 0.2, 7.0]).view(1, 1, 1, 3)
    hole = torch.tensor([0.5, 1.0, 0.0]).view(1, 1, 1, 3)
    wanted = 10 * math.log10(4 / ((0.5 * 0.16 + 1.0 * 0.04) / 1.5))
    assert float(psnr_in_hole(torch.zeros(1, 1, 1, 3), y, hole)) == pytest.approx(wanted)


def test_psnr_of_equal_pictures_and_of_empty_holes():
    x, hole = torch.zeros(2, 3, 4, 4), torch.ones(2, 1, 4, 4)
    hole[1] = 0
    same, empty = psnr_in_hole(x, x, hole).tolist()
    assert same == math.inf
    assert math.isnan(empty)


def test_ssim_by_its_formula(generator):
    """Written out at one pixel, with an 11x11 window of Gaussian weights; only the hole's pixels count."""
    x, y = torch.rand(2, 1, 1, 24, 24, generator=generator).double() * 2 - 1
    hole = torch.zeros(1, 1, 24, 24)
    hole[..., 12, 9] = 1
    k = torch.arange(-5, 6)
    weight = torch.exp(-(k[:, None] ** 2 + k**2) / (2 * 1.5**2)).double()
    weight /= weight.sum()
    a, b = ((each[0, 0, 7:18, 4:15] + 1) / 2 for each in (x, y))
    m, n = (weight * a).sum(), (weight * b).sum()
    va, vb, cov = (weight * a * a).sum() - m * m, (weight * b * b).sum() - n * n, (weight * a * b).sum() - m * n
    c, d = 0.01**2, 0.03**2
    wanted = (2 * m * n + c) * (2 * cov + d) / ((m * m + n * n + c) * (va + vb + d))
    assert float(ssim_in_hole(x, y, hole)) == pytest.approx(float(wanted), abs=1e-5)
    assert float(ssim_in_hole(x, x, hole)) == pytest.approx(1.0, abs=1e-6)
    assert ssim_in_hole(x, y, 0 * hole).isnan().all()


def test_ssim_of_colours_is_the_mean_over_channels(generator):
    x, y = torch.rand(2, 2, 3, 16, 16, generator=generator) * 2 - 1
    hole = (torch.rand(2, 1, 16, 16, generator=generator) > 0.5).float()
    each = [ssim_in_hole(x[:, k : k + 1], y[:, k : k + 1], hole) for k in range(3)]
    assert torch.allclose(ssim_in_hole(x, y, hole), torch.stack(each).mean(0), atol=1e-6)
    assert (each[0] - each[1]).abs().min() > 1e-3


@pytest.mark.parametrize("side", [64, 300])
def test_what_the_feature_network_is_shown(side, monkeypatch):
    """A picture as Pillow enlarges or reduces it to 224 pixels, cut to its 256 levels; less 127, over 128."""
    levels = np.random.default_rng(0).integers(0, 256, (side, side, 3), np.uint8)
    levels[: side // 2] = 255 * (levels[: side // 2] > 127)  # edges, which a cubic overshoots
    shown, features = [], metrics.LiteFeatures()
    monkeypatch.setattr(
        features.net, "extract_features", lambda x: (shown.append(x), torch.arange(8.0).view(1, 2, 2, 2))[1]
    )
    assert features(torch.from_numpy(levels).permute(2, 0, 1)[None]).tolist() == [[1.5, 5.5]]  # means over the map
    for channel, seen in enumerate(shown[0][0]):
        whole = Image.fromarray(levels[..., channel].astype(np.float32)).resize((224, 224), Image.Resampling.BICUBIC)
        assert np.allclose(seen * 128 + 127, np.asarray(whole).clip(0, 255), atol=0.01)


def test_precision_and_recall_by_hand():
    """On a line, with one neighbour: real pictures at 0, 1 and 3 reach 1, 1 and 2 far; made ones at 2, 9 and 9.5 reach
    7, 0.5 and 0.5."""
    real, made = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[2.0], [9.0], [9.5]])
    precision, recall = precision_and_recall(real, made, neighbours=1)
    assert precision == pytest.approx(1 / 3)  # 2 is within reach of 1 and 3, nothing else is
    assert recall == pytest.approx(1.0)  # all within 7 of 2
    far = precision_and_recall(real, made + 100.0, neighbours=1)
    assert far == (0.0, 0.0)
    at_the_rim = precision_and_recall(real, torch.tensor([[5.0], [9.0], [9.5]]), neighbours=1)
    assert at_the_rim[0] == pytest.approx(1 / 3)  # 3 reaches 5, and no further


def test_precision_and_recall_of_the_same_law_are_high_and_of_a_narrow_one_differ(generator):
    real, again, narrow = (torch.randn(1500, 4, generator=generator) * width for width in (1.0, 1.0, 0.3))
    same, less = precision_and_recall(real, again), precision_and_recall(real, narrow)
    assert min(same) > 0.75
    assert less[0] > 0.9
    assert less[1] < 0.3


def test_the_error_of_a_frechet_distance_of_gaussians(generator):
    """Of Gaussians with independent features the distance is the sum of (m - m')^2 + (s - s')^2, where the mean of M
    pictures varies by s'^2 / M and their deviation by s'^2 / 2M: the distance by 4 and (s - s')^2 / s'^2 times that."""
    count, deviations = 20_000, torch.tensor([0.5, 1.0, 2.0, 3.0])
    shift, scale = torch.tensor([0.3, 0.0, -0.5, 0.1]), torch.tensor([1.5, 0.8, 1.0, 1.1])
    real = torch.randn(40_000, 4, generator=generator) * deviations + 7.0
    made = torch.randn(count, 4, generator=generator) * deviations * scale + 7.0 + shift
    theirs = deviations * scale
    variance = (4 * shift**2 + 2 * (theirs - deviations) ** 2) * theirs**2 / count
    assert frechet_error(real, made) == pytest.approx(float(variance.sum().sqrt()), rel=0.05)
    still = [torch.cat([each, torch.full((len(each), 1), 0.7)], 1) for each in (real, made)]
    assert frechet_error(*still) == pytest.approx(frechet_error(real, made), rel=1e-6)  # what never varies adds nothing
    for few in ((real, made[:4]), (real[:4], made), (real, made[:, :3])):
        with pytest.raises(ValueError, match="more than d pictures each"):
            frechet_error(*few)


def test_the_error_of_a_frechet_distance_of_few_pictures_with_dependent_features(generator):
    """It is how far the distances of other sets lie from each other, with 16 pictures a feature and no Gaussian."""

    def draw(count):
        z = torch.randn(count, 24, generator=generator)
        return (z + 0.3 * z[:, :1] ** 2) @ mixed

    mixed = torch.randn(24, 24, generator=generator) / 5.0
    real = draw(2000) * 0.5 + 0.05
    like, sets = Likeness(real), [draw(384) for _ in range(150)]
    spread = torch.tensor([like.frechet(made) for made in sets]).std()
    error = torch.tensor([frechet_error(real, made) for made in sets]).mean()
    assert float(error) == pytest.approx(float(spread), rel=0.15)


def test_the_kernel_distance_by_its_formula(generator):
    """Of one subset that is the whole set: the unbiased squared MMD."""
    usual = kernel_distance()
    assert (usual.subset_size, usual.subsets) == (1000, 100)
    metric = kernel_distance(subset=12, subsets=1)
    real, made = (torch.randint(0, 256, (12, 3, 40, 40), generator=generator, dtype=torch.uint8) for _ in range(2))
    made = made // 2
    metric.update(real, real=True)
    metric.update(made, real=False)
    f, g = (metric.inception(each).double() for each in (real, made))

    def kernel(a, b):
        return (a @ b.T / a.shape[1] + 1) ** 3

    def apart(a):
        return (kernel(a, a).sum() - kernel(a, a).diagonal().sum()) / (12 * 11)

    wanted = apart(f) + apart(g) - 2 * kernel(f, g).mean()
    assert float(metric.compute()[0]) == pytest.approx(float(wanted), rel=1e-3)


def test_seam_ratio_by_hand():
    x = torch.tensor([[0.0, 0.0, 0.5, 0.6, 0.7, 0.3], [0.0, 0.0, 0.5, 0.6, 0.7, 0.3]])[None, None]
    hole = torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0, 0.0]).view(1, 1, 1, 6)
    # across: 0.5 and 0.4 in both rows; inside: 0.1 four times, and three pairs one below the other that are equal
    assert float(seam_ratio(x, hole)) == pytest.approx(0.45 / (0.4 / 7), rel=1e-4)
    assert float(seam_ratio(x.transpose(2, 3), hole.transpose(2, 3))) == pytest.approx(0.45 / (0.4 / 7), rel=1e-4)
    assert torch.allclose(seam_ratio(torch.cat([x, x, x], 1), hole), seam_ratio(x, hole))


@pytest.mark.parametrize("kind", ["square", "extrema"])
def test_a_smooth_continuation_has_no_seam(kind):
    """On a ramp every neighbour differs as much as every other, so that nothing shows whatever the hole."""
    y, x = torch.meshgrid(torch.linspace(-1, 0, 32), torch.linspace(0, 1, 32), indexing="ij")
    hole = holes(kind, range(8), 32, 32)
    smooth = (x + y).expand(8, 3, 32, 32)
    assert torch.allclose(seam_ratio(smooth, hole), torch.ones(8), rtol=1e-3)
    assert torch.allclose(seam_ratio(smooth, holes("wide", range(8), 32, 32)), torch.ones(8), rtol=1e-3)
    # a step of 0.5 at the border, on 1/31 from pixel to pixel: 15.5 times that, up or down by the slope itself
    stepped = seam_ratio(smooth + 0.5 * hole, hole)
    assert (stepped > 14).all()
    assert (stepped < 17).all()


def test_noise_that_goes_on_across_the_border_has_no_seam(generator):
    x = torch.randn(16, 3, 64, 64, generator=generator) * 0.2
    hole = holes("square", range(16), 64, 64)
    assert torch.allclose(seam_ratio(x, hole), torch.ones(16), atol=0.1)
    assert (seam_ratio(x + hole, hole) > 3).all()
    assert (seam_ratio(x * (1 - hole), 1 - hole) < 0.9).all()  # noise inside, flat outside: less at the border


def test_a_soft_border_is_weighed_by_its_steps():
    x = torch.tensor([0.0, 0.1, 0.5, 0.7]).view(1, 1, 1, 4)
    hole = torch.tensor([0.0, 0.25, 1.0, 1.0]).view(1, 1, 1, 4)
    across = (0.25 * 0.1 + 0.75 * 0.4) / (0.25 + 0.75)
    inside = (0.25 * 0.4 + 1.0 * 0.2) / (0.25 + 1.0)
    assert float(seam_ratio(x, hole)) == pytest.approx(across / inside)


def test_seam_ratios_that_are_not_determined():
    x = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    pixel = torch.zeros(1, 1, 8, 8)
    pixel[..., 4, 4] = 1
    square = holes("square", [0], 8, 8)
    for picture, hole in ((x, torch.ones(1, 1, 8, 8)), (x, torch.zeros(1, 1, 8, 8)), (x, pixel), (0 * x, square)):
        assert seam_ratio(picture, hole).isnan().all()
    assert seam_ratio(square, square).item() == math.inf


def test_holes_may_be_boolean(generator):
    x, y = torch.rand(2, 3, 3, 16, 16, generator=generator)
    hole = holes("wide", range(3), 16, 16)
    assert torch.equal(psnr_in_hole(x, y, hole.bool()), psnr_in_hole(x, y, hole))
    assert torch.equal(seam_ratio(x, hole.bool()), seam_ratio(x, hole))


X, HOLE = torch.zeros(2, 3, 8, 8), torch.ones(2, 1, 8, 8)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda _: psnr_in_hole(X, X[:1], HOLE),
            r"y must have the shape of x, \[2, 3, 8, 8\], got shape \[1, 3, 8, 8\]",
        ),
        (lambda _: psnr_in_hole(X[0], X, HOLE), "x must be a floating-point tensor"),
        (lambda _: psnr_in_hole(X, X, X), "hole must be one value per token"),
        (lambda _: psnr_in_hole(X, X, 255 * HOLE), r"hole must lie in \[0, 1\]"),
        (lambda _: psnr_in_hole(X, X, HOLE[..., :4]), r"hole must broadcast to \[2, 1, 8, 8\]"),
        (
            lambda _: precision_and_recall(torch.zeros(3, 2), torch.zeros(9, 2)),
            r"real must be features \[N, d\] of more",
        ),
        (lambda _: seam_ratio(X, HOLE[:, 0]), "hole must be a tensor that broadcasts"),
        (lambda _: seam_ratio(X.byte(), HOLE), "x must be a floating-point tensor"),
        (
            lambda lpips: lpips(X[:, :1], X[:, :1]),
            r"x must have 3 channels for LPIPS, got .*; of grey pictures: x.expand",
        ),
        (lambda lpips: lpips(X, X[:1]), "y must have the shape of x"),
        (lambda lpips: lpips(X, X), "x must be at least 31 pixels"),
    ],
)
def test_bad_arguments_are_named(call, words, weights):
    with pytest.raises(ValueError, match=words):
        call(LPIPS(weights))


def test_lpips_is_downloaded_once_and_checked(weights, pictures, tmp_path, monkeypatch):
    """From a file here in the place of torchvision's server, with the checksum of what is in it."""
    monkeypatch.setenv("ASYNCPATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv(LPIPS_VARIABLE, raising=False)
    assert metrics.lpips_file() is None
    heads = torch.load(
        Path(torchmetrics.__file__).parent / "functional/image/lpips_models/alex.pth", map_location="cpu"
    )
    alexnet = {name.removeprefix("net."): value for name, value in weights.items() if name.startswith("net.")}
    source = tmp_path / "alexnet.pth"
    torch.save({**alexnet, "classifier.1.weight": torch.zeros(3)}, source)
    with pytest.raises(ValueError, match="are not the published weights of LPIPS"):
        metrics.download_lpips(source.as_uri())
    (tmp_path / "page.html").write_text("<p>not found</p>")
    with pytest.raises(ValueError, match="is no file of weights"):
        metrics.download_lpips((tmp_path / "page.html").as_uri())
    assert list((tmp_path / "cache").iterdir()) == []

    whole = {f"net.{name}": value for name, value in alexnet.items()} | heads
    total = hashlib.sha256(b"".join(name.encode() + value.numpy().tobytes() for name, value in sorted(whole.items())))
    monkeypatch.setattr(metrics, "_LPIPS_SUM", total.hexdigest())
    told = []
    file = metrics.download_lpips(source.as_uri(), progress=lambda done, of: told.append((done, of)))
    assert told[-1] == (source.stat().st_size, source.stat().st_size)
    assert torch.equal(LPIPS.load()(*pictures), LPIPS(whole)(*pictures))
    assert metrics.download_lpips("file:///nowhere") == file == metrics.lpips_file()


def test_the_checksum_is_that_of_the_published_weights():
    path, _ = published()
    found = sorted(load_file(path).items())
    total = hashlib.sha256(b"".join(name.encode() + value.numpy().tobytes() for name, value in found))
    assert total.hexdigest() == metrics._LPIPS_SUM


def test_inception_is_asked_through_torch_fidelity(monkeypatch):
    class Extractor(torch.nn.Module):
        def __init__(self, name, features_list, feature_extractor_weights_path=None):
            super().__init__()
            self.said = (name, features_list, feature_extractor_weights_path)

        def forward(self, levels):
            assert levels.dtype == torch.uint8
            return (levels.float().mean((2, 3)).repeat(1, 4),)

    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    with pytest.raises(ValueError, match="FID needs torch-fidelity"):
        metrics.InceptionFeatures()
    module = types.ModuleType("torch_fidelity.feature_extractor_inceptionv3")
    module.FeatureExtractorInceptionV3 = Extractor
    monkeypatch.setitem(sys.modules, "torch_fidelity", types.ModuleType("torch_fidelity"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    features = metrics.InceptionFeatures("inception.pth")
    assert features.net.said == ("inception-v3-compat", ["2048"], "inception.pth")
    assert features(torch.full((2, 3, 8, 8), 7, dtype=torch.uint8)).tolist() == [[7.0] * 12] * 2
