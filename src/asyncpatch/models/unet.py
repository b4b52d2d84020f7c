"""The UNet of the paper's appendix: ADM-like, with a FiLM from a field of times.

Per scale a number of residual blocks; averaging down, nearest neighbour up; skips concatenated, and one more block
per scale on the way up; self-attention at the low scales. What differs from ADM: the time is a *field*, one number
per pixel, whose features are pooled for the inner scales (``film``); RMS norm per pixel, which knows nothing of the
rest of the picture; attention with normalised queries and keys and rotary positions, so that any size goes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn
from torch.nn import functional

from asyncpatch import checks
from asyncpatch.models.film import pooled_features
from asyncpatch.models.layers import Block, Norm, Recomputing, doubled, zeroed

HEAD = 64


class _PackedGradient(torch.autograd.Function):
    """The identity, whose gradient lies in memory as a channels-last tensor of its own."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x[:]  # ``view_as`` forgets how a batch of one lies in memory

    @staticmethod
    def setup_context(ctx: object, inputs: tuple[Tensor], output: Tensor) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient.contiguous(memory_format=torch.channels_last)


def join(h: Tensor, skip: Tensor) -> Tensor:
    """Both side by side. (Their gradients are slices of one; packed here, or each convolution would copy its slice.)"""
    return torch.cat([_PackedGradient.apply(h), _PackedGradient.apply(skip)], 1)


class Rotary(nn.Module):
    """Rotary positions: half of a head's numbers turn with the row, half with the column. (Sines are slow: a table.)"""

    def __init__(self, length: int = 64) -> None:
        super().__init__()
        self.register_buffer("table", self._table(length, torch.device("cpu")), persistent=False)

    @staticmethod
    def _table(length: int, device: torch.device) -> Tensor:
        """Cosine and sine of each position's angles, [2, length, HEAD / 4]."""
        frequency = 100.0 ** -(torch.arange(HEAD // 4, device=device) / (HEAD // 4))
        angle = torch.arange(length, device=device)[:, None] * frequency
        return torch.stack([angle.cos(), angle.sin()])

    def forward(self, height: int, width: int) -> Tensor:
        """Cosines and sines [2, H*W, HEAD / 2]."""
        longer = max(height, width)
        table = self.table if longer <= self.table.shape[1] else self._table(longer, self.table.device)
        rows, columns = (
            table[:, :height, None].expand(-1, -1, width, -1),
            table[:, None, :width].expand(-1, height, -1, -1),
        )
        return torch.cat([rows, columns], -1).flatten(1, 2).float()


class Attention(nn.Module):
    """Self-attention over the pixels of a scale."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        if channels % HEAD:
            raise ValueError(f"channels at a scale with attention must be a multiple of {HEAD}, got {channels}")
        self.norm = Norm(channels)
        self.rotary = Rotary()
        self.qkv = nn.Linear(channels, 3 * channels, bias=False)
        self.gain = nn.Parameter(torch.ones(2, HEAD))
        self.out = zeroed(nn.Linear(channels, channels))

    def forward(self, x: Tensor) -> Tensor:
        batch, channels, height, width = x.shape
        h = self.norm(x).permute(0, 2, 3, 1).reshape(batch, height * width, channels)
        q, k, v = self.qkv(h).view(batch, height * width, 3, channels // HEAD, HEAD).permute(2, 0, 3, 1, 4)
        cos, sin = self.rotary(height, width)
        q, k = (self._turn(each, gain, cos, sin) for each, gain in zip((q, k), self.gain, strict=True))
        h = functional.scaled_dot_product_attention(q, k, v)
        h = self.out(h.transpose(1, 2).reshape(batch, height, width, channels))
        return x + h.permute(0, 3, 1, 2)

    @staticmethod
    def _turn(q: Tensor, gain: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        n = functional.rms_norm(q.float(), (HEAD,), gain.float())
        a, b = n.chunk(2, -1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1).to(q.dtype)


def mirrored(field: Tensor, below: int, beside: int) -> Tensor:
    """A field [B, C, H, W] continued by so many rows and columns as in a mirror, to and fro where it is small."""
    for dim, more in ((2, below), (3, beside)):
        length = field.shape[dim]
        k = torch.arange(length + more, device=field.device) % max(2 * length - 2, 1)
        field = field.index_select(dim, torch.minimum(k, 2 * length - 2 - k) if length > 1 else k)
    return field


def beside(picture: Tensor, hole: Tensor) -> Tensor:
    """What a network is shown of a picture [B, C, H, W] with a hole [B, 1, H, W]: what is known, 0 elsewhere, and the
    hole. A hole of ones says that nothing is known."""
    return torch.cat([torch.where(hole > 0, 0.0, picture), hole.to(picture).expand(len(picture), -1, -1, -1)], 1)


class Trunk(NamedTuple):
    """All that a UNet knows before it says anything: its last features, those of the times, those of the label, and the
    height and width that it was asked about (the features may be larger)."""

    h: Tensor
    phi: Tensor
    label: Tensor
    size: tuple[int, int]

    def cut(self, field: Tensor) -> Tensor:
        """A field of the features' size, as large as it was asked for."""
        return field[..., : self.size[0], : self.size[1]]


class UNet(ModelMixin, ConfigMixin, Recomputing):  # type: ignore[misc]
    """Predicts x, eps or v (whatever it is trained for) from a canvas and its time field.

    Args:
        in_channels, out_channels: of the canvas and of the prediction.
        width: channels at the first scale; ``multipliers`` of it at each scale.
        blocks: residual blocks at each scale on the way down; on the way up there is one more.
        middle_blocks: blocks between them.
        attention: at how many of the lowest scales there is self-attention.
        labels: number of classes; 0 for none. Besides them there is always the null class, label -1.
        fourier: how many octaves of its canvas the network is also shown as sines and cosines, the finest first (its
            wave is one level of 8 bits long); each fades where there is more noise than it is fine. Likelihood depends
            on such detail; the look of pictures does not.
        given: whether it is also shown what is known of a picture, beside its canvas (see ``beside``).
    """

    _supports_gradient_checkpointing = True

    @register_to_config
    def __init__(
        self,
        in_channels: int = 3,
        out_channels: int = 3,
        width: int = 64,
        multipliers: tuple[int, ...] = (1, 2, 3, 4),
        blocks: tuple[int, ...] = (2, 2, 2, 2),
        middle_blocks: int = 2,
        attention: int = 2,
        labels: int = 0,
        fourier: int = 0,
        given: bool = False,
    ) -> None:
        super().__init__()
        if len(multipliers) != len(blocks):
            raise ValueError(f"multipliers and blocks must be equally many, got {len(multipliers)} and {len(blocks)}")
        channels = [width * each for each in multipliers]
        scales = len(channels)
        attends = [scale >= scales - attention for scale in range(scales)]
        features = 4 * width
        self.label = nn.Embedding(labels + 1, features)
        seen = in_channels * (1 + 2 * fourier) + (in_channels + 1 if given else 0)
        self.conv_in = nn.Conv2d(seen, channels[0], 3, padding=1)
        self.down, self.up, self.enlarge = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        current = channels[0]
        skips = [current]
        for scale, (wide, count) in enumerate(zip(channels, blocks, strict=True)):
            layers = nn.ModuleList()
            for _ in range(count):
                layers.append(Layer(current, wide, features, attends[scale]))
                current = wide
                skips.append(current)
            self.down.append(layers)
            if scale + 1 < scales:
                skips.append(current)
        self.middle = nn.ModuleList(Layer(current, current, features, attention > 0) for _ in range(middle_blocks))
        for scale in reversed(range(scales)):
            layers = nn.ModuleList()
            for _ in range(blocks[scale] + 1):
                layers.append(Layer(current + skips.pop(), channels[scale], features, attends[scale]))
                current = channels[scale]
            self.up.append(layers)
            if scale:
                self.enlarge.append(nn.Conv2d(current, current, 3, padding=1))
        self.norm_out = Norm(current, activate=True)
        self.conv_out = zeroed(nn.Conv2d(current, out_channels, 3, padding=1))

    @property
    def divisor(self) -> int:
        """Height and width that are multiples of this need no padding."""
        return 2 ** (len(self.config.multipliers) - 1)

    def forward(self, z: Tensor, t: Tensor, label: Tensor | None = None, given: Tensor | None = None) -> Tensor:
        """The prediction [B, out_channels, H, W] for z [B, C, H, W].

        ``t`` is [B, 1, H, W], or [B, 1, 1, 1] for one time per picture (the same answer as for a constant field, a
        little faster). ``label`` is [B] integers, -1 for none. ``given`` is what ``beside`` makes of a picture and its
        hole, [B, C + 1, H, W], for a network that is shown such; without it nothing is known. Where height or width do
        not divide by ``divisor``, the canvas is continued as in a mirror, where noise still looks like noise, and
        cropped again.
        """
        return self.said(self.trunk(z, t, label, given), z.dtype)

    def said(self, trunk: Trunk, dtype: torch.dtype) -> Tensor:
        """The prediction, of what the trunk knows."""
        out = self.conv_out(self.norm_out(trunk.h))
        return trunk.cut(out).to(dtype).contiguous()

    def trunk(self, z: Tensor, t: Tensor, label: Tensor | None = None, given: Tensor | None = None) -> Trunk:
        """All but the last layer of ``forward``."""
        checks.canvas("z", z)
        checks.times("t", t, z)
        if z.shape[1] != self.config.in_channels:
            raise ValueError(f"z must have {self.config.in_channels} channels, got {checks.shape_of(z)}")
        height, width = z.shape[2:]
        below, right = -height % self.divisor, -width % self.divisor
        t = t.expand(len(z), 1, *t.shape[2:]) if t.dim() else t.expand(len(z), 1, 1, 1)
        if t.shape[2:] != (1, 1):
            t = t.expand(len(z), 1, height, width)
        seen = self._seen(z, t, given)
        if below or right:
            seen = mirrored(seen, below, right)
            t = t if t.shape[2:] == (1, 1) else mirrored(t, below, right)

        dtype = self.conv_in.weight.dtype
        h = self.conv_in(seen.to(dtype, memory_format=torch.channels_last))
        phi = pooled_features(t, len(self.down), h.dtype)
        names = torch.full((len(z),), -1, device=z.device) if label is None else label
        self._check_label(names, len(z))
        g = self.label(torch.where(names < 0, self.config.labels, names))

        skips = [h]
        for scale, layers in enumerate(self.down):
            if scale:
                h = functional.avg_pool2d(h, 2)
                skips.append(h)
            for layer in layers:
                h = self.run(layer, h, phi[scale], g)
                skips.append(h)
        for layer in self.middle:
            h = self.run(layer, h, phi[-1], g)
        for step, layers in enumerate(self.up):
            if step:
                h = self.enlarge[step - 1](doubled(h))
            for layer in layers:
                h = self.run(layer, join(h, skips.pop()), phi[-1 - step], g)
        return Trunk(h, phi[0], g, (height, width))

    def _seen(self, z: Tensor, t: Tensor, given: Tensor | None) -> Tensor:
        """The canvas, its finest octaves as waves, and what is given beside it."""
        parts = [z]
        if self.config.fourier:
            fine, t = z.float(), t.float()
            parts = [fine]
            for k in range(self.config.fourier):
                waves = 255.0 * math.pi * 2.0**-k  # radians per unit: the first has one wave for each level
                left = torch.exp(-0.5 * (waves * t).square())
                parts += [left * (waves * fine).sin(), left * (waves * fine).cos()]
        if self.config.given:
            shape = (len(z), z.shape[1] + 1, *z.shape[2:])
            if given is not None and given.shape != shape:
                raise ValueError(
                    f"given must have shape {list(shape)} beside this canvas, got {checks.shape_of(given)}"
                )
            parts.append(beside(z, torch.ones_like(z[:, :1])) if given is None else given.to(z))
        elif given is not None:
            raise ValueError("this network finds what is known on its canvas, at time 0: it is shown no picture beside")
        return torch.cat(parts, 1) if len(parts) > 1 else z

    def _check_label(self, label: Tensor, batch: int) -> None:
        if label.shape != (batch,) or label.is_floating_point():
            raise ValueError(f"label must be integers [{batch}], one per picture; got {checks.shape_of(label)}")
        if label.device.type == "cpu" and batch and not torch.compiler.is_compiling():  # elsewhere looking would wait
            highest = int(label.max())
            if highest >= max(self.config.labels, 1):
                raise ValueError(f"label must be below {self.config.labels} (-1 for none), got {highest}")


class Layer(nn.Module):
    """A block, and self-attention where its scale has it."""

    def __init__(self, channels_in: int, channels: int, label_features: int, attends: bool) -> None:
        super().__init__()
        self.block = Block(channels_in, channels, label_features)
        self.attention = Attention(channels) if attends else nn.Identity()

    def forward(self, x: Tensor, phi: Tensor, label: Tensor) -> Tensor:
        return self.attention(self.block(x, phi, label))
