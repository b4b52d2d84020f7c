"""An autoencoder with local latents: those of what is known of a picture are the same whatever is missing.

    (1)  e = E(x, m)          4 times smaller, 3 numbers for each token; m is the hole, 1 where nothing is known
    (2)  q = the code nearest to e, of a codebook c_1 ... c_K
    (3)  x-hat = D(q, m)

E is never shown what lies in the hole: there x counts as 0, and m says that it is not grey. E and D are residual blocks
of convolutions with an RMS norm per pixel, without attention or any other statistic of the whole picture. The hole
enters every block by FiLM, as times enter the UNet (``film``): its features are pooled for the inner scales, so that a
token knows how much of what it sums up is missing.

By its convolutions a token sees 33 pixels around it, so that a hole could still change the latents near it. That
it does not is learnt: from pictures with holes, of which only what is known has to come out again, and whose known
tokens have to be those of the whole picture.

A folder of it is part of a model's: ``vae/``, as diffusers lays it out. How it is trained: ``train.autoencoder``.

Diffusion goes on e, before (2): what a sampler makes of it need not be a code yet, and D rounds it to one.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import NamedTuple

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn
from torch.nn import functional

from asyncpatch import checks
from asyncpatch.models.film import pooled_features
from asyncpatch.models.layers import Block, Norm, Recomputing, doubled

PART = "vae"
"""The part of a model's folder that holds it."""
_AT_ONCE = 1 << 14
"""Tokens that are compared with the codebook at a time."""


class Quantized(NamedTuple):
    """What a codebook makes of latents e [B, d, h, w]."""

    q: Tensor
    """The nearest codes, of the same shape; gradients go through to e as if it were e itself."""
    numbers: Tensor
    """Which ones, [B, h, w]."""
    codebook: Tensor
    """The mean of |sg[e] - q|^2 over all numbers, which draws codes towards what is encoded (sg: no gradient)."""
    commitment: Tensor
    """The mean of |e - sg[q]|^2, which draws what is encoded towards its code."""


class Codebook(nn.Module):
    """Equation (2), how often each code is used, and of what size the encodings are.

    ``usage`` is an average over training of each code's share of the tokens, times the number of codes: 1 where all are
    used alike, 0 where a code is dead, as all are at first. ``encoded`` is one of 1, e and e^2, [3, d], over the tokens
    that count, and 0 for the others.
    """

    usage: Tensor
    encoded: Tensor

    def __init__(self, codes: int, channels: int) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.empty(codes, channels).uniform_(-1.0, 1.0))
        self.register_buffer("usage", torch.zeros(codes))
        self.register_buffer("encoded", torch.zeros(3, channels))

    @torch.no_grad()
    def nearest(self, e: Tensor) -> Tensor:
        """Numbers of the codes nearest to e [N, d], in parts: the table of all distances would be large."""
        codes = self.codes.float()
        half = 0.5 * codes.square().sum(1)
        parts = [(half - part @ codes.T).argmin(1) for part in e.float().split(_AT_ONCE)]
        return torch.cat(parts)

    def forward(self, e: Tensor) -> Quantized:
        batch, channels, height, width = e.shape
        with torch.autocast(e.device.type, enabled=False):  # in bfloat16 a neighbour would often be taken for nearest
            flat = e.permute(0, 2, 3, 1).reshape(-1, channels).float()
            index = self.nearest(flat)
            q = functional.embedding(index, self.codes).float()
            codebook = (flat.detach() - q).square().mean()
            commitment = (flat - q.detach()).square().mean()
            through = flat + (q - flat).detach()
        shaped = through.view(batch, height, width, channels).permute(0, 3, 1, 2)
        return Quantized(shaped.to(e.dtype), index.view(batch, height, width), codebook, commitment)

    @torch.no_grad()
    def shares(self, numbers: Tensor, weight: Tensor) -> Tensor:
        """What a batch used: ``usage`` as it would be of this batch alone, its tokens counted with a weight each."""
        counts = torch.zeros_like(self.usage).scatter_add_(
            0, numbers.flatten(), weight.flatten()
        )  # bincount would wait
        return counts * len(self.codes) / weight.sum().clamp_min(1e-9)

    @torch.no_grad()
    def sizes(self, e: Tensor, weight: Tensor) -> Tensor:
        """``encoded`` as it would be of a batch alone, its tokens [B, 1, h, w] counted with a weight each."""
        e = e.float()
        return (torch.stack([torch.ones_like(e), e, e.square()]) * weight).mean((1, 3, 4))

    @torch.no_grad()
    def note(self, shares: Tensor, sizes: Tensor, decay: float = 0.99, usage_decay: float = 0.95) -> None:
        """Go on averaging with the ``shares`` and ``sizes`` of a batch. Usage is forgotten sooner: at first encodings
        leave their codes behind, and one that was just moved is dead again for long before a slow average tells."""
        self.usage.lerp_(shares, 1.0 - usage_decay)
        self.encoded.lerp_(sizes, 1.0 - decay)

    @torch.no_grad()
    def spread(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of each channel of what was encoded, [d]; 0 and 1 as long as nothing was."""
        weight, mean, square = self.encoded / self.encoded[0].clamp_min(1e-9)
        return mean, torch.where(weight > 0, (square - mean.square()).clamp_min(1e-6), 1.0)

    def moments(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation of each channel of what was encoded."""
        mean, variance = self.spread()
        return tuple(mean.tolist()), tuple(variance.sqrt().tolist())

    def perplexity(self) -> Tensor:
        """How many codes, used alike, would be as hard to guess as those in use."""
        share = self.usage / self.usage.sum()
        return (-torch.xlogy(share, share).sum()).exp()

    @torch.no_grad()
    def revive(self, places: Tensor, where: Tensor | bool = True, least: float = 0.01) -> Tensor:
        """Move codes that are hardly used to ``places`` [codes, d], at which something was encoded, ``where`` it was;
        returns which."""
        dead = (self.usage < least) & where
        self.codes.copy_(torch.where(dead[:, None], places, self.codes))
        self.usage.masked_fill_(dead, 1.0)
        return dead


class Encoder(nn.Module, Recomputing):
    """Equation (1)."""

    def __init__(
        self, in_channels: int, latent_channels: int, width: int, multipliers: tuple[int, ...], blocks: int
    ) -> None:
        super().__init__()
        wide = [width * each for each in multipliers]
        self.conv_in = nn.Conv2d(in_channels, wide[0], 3, padding=1)
        self.scales = nn.ModuleList(
            nn.ModuleList(Block(each if k else before, each) for k in range(blocks))
            for before, each in zip([wide[0], *wide], wide, strict=False)
        )
        self.norm = Norm(wide[-1], activate=True)
        self.conv_out = nn.Conv2d(wide[-1], latent_channels, 3, padding=1)

    def forward(self, x: Tensor, hole: Tensor) -> Tensor:
        h = self.conv_in(torch.where(hole > 0, 0.0, x).to(self.conv_in.weight.dtype, memory_format=torch.channels_last))
        phis = pooled_features(hole, len(self.scales), h.dtype)
        for scale, (blocks, phi) in enumerate(zip(self.scales, phis, strict=True)):
            h = functional.avg_pool2d(h, 2) if scale else h
            for block in blocks:
                h = self.run(block, h, phi)
        return self.conv_out(self.norm(h))


class Decoder(nn.Module, Recomputing):
    """Equation (3)."""

    def __init__(
        self, out_channels: int, latent_channels: int, width: int, multipliers: tuple[int, ...], blocks: int
    ) -> None:
        super().__init__()
        wide = [width * each for each in reversed(multipliers)]
        self.conv_in = nn.Conv2d(latent_channels, wide[0], 3, padding=1)
        self.scales = nn.ModuleList(nn.ModuleList(Block(each, each) for _ in range(blocks)) for each in wide)
        self.enlarge = nn.ModuleList(nn.Conv2d(*pair, 3, padding=1) for pair in itertools.pairwise(wide))
        self.norm = Norm(wide[-1], activate=True)
        self.conv_out = nn.Conv2d(wide[-1], out_channels, 3, padding=1)

    def forward(self, q: Tensor, hole: Tensor) -> Tensor:
        return self.conv_out(self.features(q, hole))

    def features(self, q: Tensor, hole: Tensor) -> Tensor:
        """What the last layer makes a picture of. ``hole`` is that of the picture, so 4 times as large as q."""
        h = self.conv_in(q.to(self.conv_in.weight.dtype, memory_format=torch.channels_last))
        phis = pooled_features(hole, len(self.scales), h.dtype)[::-1]
        for scale, (blocks, phi) in enumerate(zip(self.scales, phis, strict=True)):
            h = self.enlarge[scale - 1](doubled(h)) if scale else h
            for block in blocks:
                h = self.run(block, h, phi)
        return self.norm(h)


class Coded(NamedTuple):
    """What an autoencoder makes of pictures, with all that its training looks at."""

    x: Tensor
    """Pictures again."""
    last: Tensor
    """What the last layer made them of; without gradients."""
    e: Tensor
    """Latents, before they were rounded to codes."""
    quantized: Quantized


class Autoencoder(ModelMixin, ConfigMixin):  # type: ignore[misc]
    """Equations (1) to (3).

    Args:
        channels, latent_channels: of pictures and of latents.
        width: channels at full size; ``multipliers`` of it at each scale, each half as large as the one before.
        blocks: residual blocks at each scale.
        codes: size of the codebook.
    """

    _supports_gradient_checkpointing = True

    @register_to_config
    def __init__(
        self,
        channels: int = 3,
        latent_channels: int = 3,
        width: int = 128,
        multipliers: tuple[int, ...] = (1, 2, 4),
        blocks: int = 2,
        codes: int = 8192,
    ) -> None:
        super().__init__()
        self.encoder = Encoder(channels, latent_channels, width, multipliers, blocks)
        self.codebook = Codebook(codes, latent_channels)
        self.decoder = Decoder(channels, latent_channels, width, multipliers, blocks)

    @property
    def factor(self) -> int:
        """By which latents are smaller than pictures."""
        return int(2 ** (len(self.config.multipliers) - 1))

    @property
    def reach(self) -> int:
        """Pixels beyond a token's own, at most, that change it or that it changes: by two convolutions a block, and one
        between scales and at either end."""
        scales = [2**scale for scale in range(len(self.config.multipliers))]
        blocks = sum(2 * self.config.blocks * each for each in scales)
        return max(1 + blocks + scales[-1], scales[-1] + blocks + sum(scales[:-1]) + 1)

    def encode(self, x: Tensor, hole: Tensor | None = None) -> Tensor:
        """Latents [B, d, h, w] of pictures [B, C, H, W] in [-1, 1], before they are rounded to codes."""
        checks.canvas("x", x)
        if x.shape[1] != self.config.channels or any(side % self.factor for side in x.shape[2:]):
            raise ValueError(
                f"x must have {self.config.channels} channels, and sides that divide by {self.factor}; got "
                f"{checks.shape_of(x)}"
            )
        return self.encoder(x, self._hole(hole, x)).to(x.dtype).contiguous()

    def decode(self, e: Tensor, hole: Tensor | None = None) -> Tensor:
        """Pictures of latents, which are rounded to codes first."""
        checks.canvas("e", e)
        return self.decoded(self.codebook(e).q, hole)

    def decoded(self, q: Tensor, hole: Tensor | None = None) -> Tensor:
        """Pictures of codes."""
        batch, _, height, width = q.shape
        like = q.new_zeros(batch, 1, height * self.factor, width * self.factor)
        return self.decoder(q, self._hole(hole, like)).to(q.dtype).contiguous()

    def forward(self, x: Tensor, hole: Tensor | None = None) -> Coded:
        """There and back, for training."""
        hole = self._hole(hole, x)
        e = self.encode(x, hole)
        quantized = self.codebook(e)
        last = self.decoder.features(quantized.q, hole)
        return Coded(self.decoder.conv_out(last).to(x.dtype), last.detach(), e, quantized)

    def save(self, folder: Path | str, *, max_shard_size: str = "5GB") -> None:
        """As a part of a model's folder."""
        self.save_pretrained(Path(folder) / PART, max_shard_size=max_shard_size)

    @classmethod
    def load(cls, folder: Path | str, *, dtype: torch.dtype = torch.float32) -> Autoencoder:
        """That of a folder that ``save`` wrote into."""
        if not (Path(folder) / PART / "config.json").is_file():
            raise FileNotFoundError(f"{folder} holds no autoencoder: it has no {PART}/config.json")
        return cls.from_pretrained(
            Path(folder) / PART, torch_dtype=dtype, use_safetensors=True, low_cpu_mem_usage=False
        )

    @staticmethod
    def alone(folder: Path) -> bool:
        """Whether a folder holds an autoencoder and nothing else, as its training leaves it."""
        return [each.name for each in folder.glob("*")] == [PART]

    @staticmethod
    def _hole(hole: Tensor | None, like: Tensor) -> Tensor:
        if hole is None:
            return torch.zeros_like(like[:, :1])
        checks.times("hole", hole, like)
        return (hole > 0).to(like.dtype).expand(len(like), 1, *like.shape[2:])
