"""A discriminator of patches: says of every part of a picture whether it is real, and so where a made one is not.

    (1)  what D learns     1/2 mean max(0, 1 - D(x)) + 1/2 mean max(0, 1 + D(x-hat))         the hinge loss
    (2)  how to fool it    -mean D(x-hat)
    (3)  how much (2) counts beside another loss R of x-hat:   w |dR/dW| / |d(2)/dW|, at most ``MOST``

In (3) W are the weights of the last layer before x-hat: what both losses ask of it is made equal, and then weighed by w
(Esser et al. 2021). D is the convolutional one of Isola et al. 2017, with receptive fields of 70 pixels. Its norm is
over groups of the channels of one picture, not over the batch: so it answers the same whatever else is in the batch,
and however a batch is shared among processes.
"""

from __future__ import annotations

import itertools

from torch import Tensor, nn
from torch.nn import functional

MOST = 10.0
"""A discriminator that has nothing to say has small gradients: they must not be made large."""
SMALLEST = 24
"""Pixels below which a picture has no patches left."""


class Discriminator(nn.Module):
    """D: from pictures [B, C, H, W] to a map of numbers, positive where they look real."""

    def __init__(self, channels: int = 3, width: int = 64) -> None:
        super().__init__()
        wide = [width, 2 * width, 4 * width, 8 * width]
        self.conv_in = nn.Conv2d(channels, wide[0], 4, stride=2, padding=1)
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 4, stride=1 if b == wide[-1] else 2, padding=1, bias=False)
            for a, b in itertools.pairwise(wide)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(each // 8, each) for each in wide[1:])
        self.conv_out = nn.Conv2d(wide[-1], 1, 4, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.leaky_relu(self.conv_in(x), 0.2)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = functional.leaky_relu(norm(conv(h)), 0.2)
        return self.conv_out(h).float()


def hinge(real: Tensor, made: Tensor) -> Tensor:
    """Equation (1), of what D says of real pictures and of made ones."""
    return 0.5 * (functional.relu(1.0 - real).mean() + functional.relu(1.0 + made).mean())


def balance(pull: Tensor, push: Tensor) -> Tensor:
    """Equation (3) for w = 1, of the gradients of R (``pull``) and of (2) (``push``)."""
    return (pull.norm() / (push.norm() + 1e-6)).clamp(max=MOST)
