"""How far off a network will be: a small head on what a frozen one knows.

It predicts, for every token, the logarithm of the expected squared error of x-hat, averaged over channels, as an offset
to that of pictures without any structure:

    (1)  logvar = head(trunk) + log(v sigma^2 / (v alpha^2 + sigma^2)),   v = 1/4

the second term (``parameterization.structureless``) being the posterior variance of independent pixels with variance v.
So the head has to learn little more than how much structure there is. What it is trained with,
``loss.uncertainty_loss``, is least where (1) is right.
"""

from __future__ import annotations

import itertools

from diffusers import ConfigMixin, ModelMixin
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from asyncpatch.models.layers import Block, Norm, zeroed
from asyncpatch.models.unet import Trunk, UNet


class UncertaintyHead(ModelMixin, ConfigMixin):  # type: ignore[misc]
    """Equation (1) without its second term.

    Args:
        features: channels of the network's last features (those of its first scale).
        label_features: of its label's features (4 times its ``width``).
        width: channels of the head.
        depth: residual blocks.
    """

    @register_to_config
    def __init__(self, features: int = 64, label_features: int = 256, width: int = 64, depth: int = 2) -> None:
        super().__init__()
        channels = [features, *[width] * depth]
        self.layers = nn.ModuleList(Block(a, b, label_features) for a, b in itertools.pairwise(channels))
        self.norm = Norm(channels[-1], activate=True)
        self.out = zeroed(nn.Conv2d(channels[-1], 1, 3, padding=1))

    @classmethod
    def beside(cls, net: UNet) -> UncertaintyHead:
        """A new one, of the network's width."""
        width = int(net.config["width"])
        return cls(width * int(net.config["multipliers"][0]), 4 * width, max(16, width))

    def forward(self, trunk: Trunk) -> Tensor:
        """The offset, [B, 1, H, W], float32."""
        h = trunk.h
        for layer in self.layers:
            h = layer(h, trunk.phi, trunk.label)
        return trunk.cut(self.out(self.norm(h))).float().contiguous()
