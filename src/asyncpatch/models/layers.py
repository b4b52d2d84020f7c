"""Layers of convolutional networks whose every pixel is told a number of its own."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from asyncpatch.models.film import FiLM, normalise


class Norm(nn.Module):
    """RMS norm over the channels of each pixel, with a learned gain; and a SiLU, where it is to ``activate``."""

    def __init__(self, channels: int, *, activate: bool = False) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(channels))
        self.activate = activate

    def forward(self, h: Tensor) -> Tensor:
        return normalise(h, self.gain, activate=self.activate)


def zeroed(layer: nn.Module) -> nn.Module:
    """A layer that starts by adding nothing."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


class Recomputing:
    """A network whose layers may be computed twice in training, to save memory (diffusers sets it)."""

    gradient_checkpointing = False

    def run(self, layer: nn.Module, *args: Tensor) -> Tensor:
        if torch.is_grad_enabled() and self.gradient_checkpointing:
            return checkpoint(layer, *args, use_reentrant=False)
        return layer(*args)


class Block(nn.Module):
    """x + conv(SiLU(FiLM(norm(conv(SiLU(norm(x)))))))."""

    def __init__(self, channels_in: int, channels: int, label_features: int = 0) -> None:
        super().__init__()
        self.norm = Norm(channels_in, activate=True)
        self.conv_in = nn.Conv2d(channels_in, channels, 3, padding=1, bias=False)  # FiLM follows, which has a shift
        self.film = FiLM(channels, label_features)
        self.conv_out = zeroed(nn.Conv2d(channels, channels, 3, padding=1))
        self.skip = nn.Conv2d(channels_in, channels, 1, bias=False) if channels_in != channels else nn.Identity()

    def forward(self, x: Tensor, phi: Tensor, label: Tensor | None = None) -> Tensor:
        h = self.conv_in(self.norm(x))
        return self.skip(x) + self.conv_out(self.film(h, phi, label))


def doubled(h: Tensor) -> Tensor:
    """Nearest neighbour, twice as large. (Compiled, ``interpolate`` has a scatter for its gradient, this a sum.)"""
    batch, channels, height, width = h.shape
    cells = h.permute(0, 2, 3, 1)[:, :, None, :, None].expand(-1, -1, 2, -1, 2, -1)
    return cells.reshape(batch, 2 * height, 2 * width, channels).permute(0, 3, 1, 2)
