"""Normalise, modulate by a field of times, activate: the one place where a network learns the noise levels.

With h the features at a pixel, C channels, and phi the K features of its time:

    (1)  n = h / sqrt(mean(h^2) + eps)                                                 RMS norm over the channels
    (2)  scale = phi W_scale + g_scale,   shift = phi W_shift + g_shift                 linear in phi; g from the label
    (3)  y = SiLU(n (1 + scale) + shift)

Usual networks embed the time in some hundred numbers and run an MLP, once per picture. Once per *pixel* that would
slow training down. But scale and shift are smooth functions of one number, so a short fixed basis spans
them:

    (4)  phi(t) = (1, cos(pi t), ..., cos(7 pi t), cos(pi u), ..., cos(8 pi u)),   u = t^(1/4) / (t^(1/4) + (1-t)^(1/4))

where u resolves both ends of time, as the log-SNR does. W then holds cosine series over time, one per channel, and
(1) to (3) are one pass over the activations: a fused kernel on CUDA (``film_triton``), a part of the pixels at a time
where a CPU is only asked (``film_cpu``), plain torch elsewhere.

At the inner scales of a UNet phi is averaged over the pixels that were pooled together. The mean of phi says more
than phi of the mean time: half clean, half noise is not the same as all half noisy.
"""

from __future__ import annotations

import math
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn import functional

from asyncpatch.models import film_cpu

COSINES_T, COSINES_U = 7, 8
TIME_FEATURES = 1 + COSINES_T + COSINES_U
EPS = 1e-6
_TRITON = find_spec("triton") is not None  # not to be had on every system; plain torch then does


def time_features(t: Tensor) -> Tensor:
    """Equation (4): from times [B, 1, H, W] to [B, TIME_FEATURES, H, W], float32."""
    t = t.detach().float().clamp(0.0, 1.0)
    a, b = t.sqrt().sqrt(), (1.0 - t).sqrt().sqrt()
    k_t = torch.arange(0, COSINES_T + 1, device=t.device, dtype=torch.float32).view(1, -1, 1, 1)
    k_u = torch.arange(1, COSINES_U + 1, device=t.device, dtype=torch.float32).view(1, -1, 1, 1)
    return torch.cat([(math.pi * k_t * t).cos(), (math.pi * k_u * (a / (a + b))).cos()], 1)


def pooled_features(t: Tensor, scales: int, dtype: torch.dtype) -> list[Tensor]:
    """Equation (4) at every scale, the finest first, each half as large as the one before; for one time per picture
    [B, 1, 1, 1] the same at all."""
    phi = [time_features(t).to(dtype, memory_format=torch.channels_last)]
    for _ in range(scales - 1):
        phi.append(functional.avg_pool2d(phi[-1], 2) if phi[-1].shape[2:] != (1, 1) else phi[-1])
    return phi


def rms_norm(h: Tensor) -> Tensor:
    """Equation (1) for [B, C, H, W], in float32."""
    h = h.float()
    return h * (h.square().mean(1, keepdim=True) + EPS).rsqrt()


def normalise(h: Tensor, gain: Tensor, *, activate: bool) -> Tensor:
    """Equation (1), times a gain [C]; and a SiLU of it."""
    if film_cpu.apt(h):
        return film_cpu.norm_in_parts(h, gain, EPS, activate=activate)
    h = (rms_norm(h) * gain.float()[:, None, None]).to(h.dtype)
    return functional.silu(h) if activate else h


def modulate(h: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Equations (1) and (3), for scale and shift that broadcast to [B, C, H, W]."""
    return functional.silu(rms_norm(h) * (1.0 + scale.float()) + shift.float()).to(h.dtype)


def modulate_by_field(h: Tensor, phi: Tensor, weight: Tensor, label: Tensor) -> Tensor:
    """Equations (1) to (3) with phi [B, K, H, W], weight [2, K, C] and label [B, 2, C]: scale first, then shift."""
    fits = h.dtype != torch.float64 and h.shape[1] * h.element_size() <= 2048  # wider, its tiles would be too large
    if h.is_cuda and _TRITON and fits:
        from asyncpatch.models.film_triton import fused_film

        return fused_film(h, phi, weight.to(h.dtype), label.to(h.dtype))
    if film_cpu.apt(h):
        return film_cpu.film_in_parts(h, phi.to(h.dtype), weight.to(h.dtype), label.to(h.dtype), EPS)
    with torch.autocast(h.device.type, enabled=False):  # scale and shift are summed in float32, as in the kernel
        table = weight.to(h.dtype).float().transpose(0, 1).flatten(1)  # [K, 2 C]
        field = (
            phi.to(h.dtype).float().permute(0, 2, 3, 1) @ table + label.to(h.dtype).float().flatten(1)[:, None, None]
        )
    scale, shift = field.permute(0, 3, 1, 2).chunk(2, 1)
    return modulate(h, scale, shift)


class FiLM(nn.Module):
    """Equations (1) to (3) as a layer."""

    def __init__(self, channels: int, label_features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(2, TIME_FEATURES, channels))
        self.label = nn.Linear(label_features, 2 * channels) if label_features else None
        if self.label is not None:
            nn.init.zeros_(self.label.bias)

    def forward(self, h: Tensor, phi: Tensor, label: Tensor | None = None) -> Tensor:
        """``phi`` [B, K, H, W], or [B, K, 1, 1] for one time per picture; ``label`` [B, label_features], or none."""
        if (self.label is None) != (label is None):
            raise ValueError("a label must be told where there are features for it, and nowhere else")
        g = h.new_zeros(len(h), 2, h.shape[1])
        if self.label is not None:
            g = self.label(label).unflatten(1, (2, h.shape[1]))
        if phi.shape[2:] == (1, 1):
            series = phi.to(h.dtype).float().view(len(h), 1, -1, 1) * self.weight.to(h.dtype).float()  # [B, 2, K, C]
            scale, shift = (series.sum(2) + g.to(h.dtype).float()).unbind(1)
            return modulate(h, scale[..., None, None], shift[..., None, None])
        return modulate_by_field(h, phi, self.weight, g)
