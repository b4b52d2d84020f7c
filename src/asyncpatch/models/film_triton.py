"""Equations (1) to (3) of ``film`` in one pass over the activations, forwards and backwards, for CUDA.

A program holds a tile of pixels with all their channels, so that the norm is a reduction inside the program. Scale
and shift of a pixel come from its K time features by a small matrix product inside the tile, and are never written
to memory. The backward pass recomputes them; the gradients of the weights are matrix products over the same tile,
summed in registers over all tiles of a program and written once. Nothing is scattered, so the result does not
depend on the order of anything.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from asyncpatch.models.film import EPS, TIME_FEATURES


@triton.jit
def _forward(
    h_ptr,
    phi_ptr,
    weight_ptr,
    label_ptr,
    y_ptr,
    pixels,
    C: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    EPS: tl.constexpr,
):
    image = tl.program_id(1)
    inside = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    channel, feature = tl.arange(0, BLOCK_C), tl.arange(0, K)
    here, have = inside < pixels, channel < C
    ok = here[:, None] & have[None, :]
    pixel = image * pixels + inside.to(tl.int64)
    weight = weight_ptr + feature[:, None] * C + channel[None, :]
    scale_w = tl.load(weight, mask=have[None, :], other=0.0)
    shift_w = tl.load(weight + K * C, mask=have[None, :], other=0.0)
    label = label_ptr + image * 2 * C + channel
    scale_g = tl.load(label, mask=have, other=0.0).to(tl.float32)
    shift_g = tl.load(label + C, mask=have, other=0.0).to(tl.float32)
    phi = tl.load(phi_ptr + pixel[:, None] * K + feature[None, :], mask=here[:, None], other=0.0)
    h = tl.load(h_ptr + pixel[:, None] * C + channel[None, :], mask=ok, other=0.0).to(tl.float32)
    n = h * tl.rsqrt(tl.sum(h * h, 1) / C + EPS)[:, None]
    gain = 1.0 + tl.dot(phi, scale_w, input_precision="ieee") + scale_g[None, :]
    a = n * gain + tl.dot(phi, shift_w, input_precision="ieee") + shift_g[None, :]
    y = a * tl.sigmoid(a)
    tl.store(y_ptr + pixel[:, None] * C + channel[None, :], y.to(y_ptr.dtype.element_ty), mask=ok)


@triton.jit
def _backward(
    h_ptr,
    phi_ptr,
    weight_ptr,
    label_ptr,
    dy_ptr,
    dh_ptr,
    dweight_ptr,
    dlabel_ptr,
    pixels,
    chunk,
    chunks,
    items,
    programs,
    C: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_C: tl.constexpr,
    EPS: tl.constexpr,
):
    program = tl.program_id(0)
    channel, feature = tl.arange(0, BLOCK_C), tl.arange(0, K)
    have = channel < C
    weight = weight_ptr + feature[:, None] * C + channel[None, :]
    scale_w = tl.load(weight, mask=have[None, :], other=0.0)
    shift_w = tl.load(weight + K * C, mask=have[None, :], other=0.0)
    dscale_w = tl.zeros((K, BLOCK_C), tl.float32)
    dshift_w = tl.zeros((K, BLOCK_C), tl.float32)
    for item in range(program, items, programs):  # an item is a chunk of the pixels of one picture
        image = item // chunks
        first = (item % chunks) * chunk
        label = label_ptr + image * 2 * C + channel
        scale_g = tl.load(label, mask=have, other=0.0).to(tl.float32)
        shift_g = tl.load(label + C, mask=have, other=0.0).to(tl.float32)
        dscale_g = tl.zeros((BLOCK_C,), tl.float32)
        dshift_g = tl.zeros((BLOCK_C,), tl.float32)
        for start in range(first, min(first + chunk, pixels), BLOCK_M):
            inside = start + tl.arange(0, BLOCK_M)
            here = inside < min(first + chunk, pixels)
            ok = here[:, None] & have[None, :]
            pixel = image * pixels + inside.to(tl.int64)
            place = pixel[:, None] * C + channel[None, :]
            phi = tl.load(phi_ptr + pixel[:, None] * K + feature[None, :], mask=here[:, None], other=0.0)
            h = tl.load(h_ptr + place, mask=ok, other=0.0).to(tl.float32)
            dy = tl.load(dy_ptr + place, mask=ok, other=0.0).to(tl.float32)
            rstd = tl.rsqrt(tl.sum(h * h, 1) / C + EPS)[:, None]
            n = h * rstd
            gain = 1.0 + tl.dot(phi, scale_w, input_precision="ieee") + scale_g[None, :]
            a = n * gain + tl.dot(phi, shift_w, input_precision="ieee") + shift_g[None, :]
            s = tl.sigmoid(a)
            da = dy * s * (1.0 + a * (1.0 - s))  # 0 where there is no pixel, since dy is
            dscale = da * n
            dn = da * gain
            dh = rstd * (dn - n * (tl.sum(dn * n, 1) / C)[:, None])
            tl.store(dh_ptr + place, dh.to(dh_ptr.dtype.element_ty), mask=ok)
            phi_t = tl.trans(phi)
            dscale_w = tl.dot(phi_t, dscale.to(phi.dtype), dscale_w, input_precision="ieee")
            dshift_w = tl.dot(phi_t, da.to(phi.dtype), dshift_w, input_precision="ieee")
            dscale_g += tl.sum(dscale, 0)
            dshift_g += tl.sum(da, 0)
        out = dlabel_ptr + item * 2 * C + channel
        tl.store(out, dscale_g, mask=have)
        tl.store(out + C, dshift_g, mask=have)
    out = dweight_ptr + program * 2 * K * C + feature[:, None] * C + channel[None, :]
    tl.store(out, dscale_w, mask=have[None, :])
    tl.store(out + K * C, dshift_w, mask=have[None, :])


_PROGRAMS = 528  # four for each multiprocessor of an H100 or H200


def _packed(h: Tensor) -> Tensor:
    """[B, C, H, W] with the channels of a pixel side by side in memory."""
    return h.contiguous(memory_format=torch.channels_last)


@triton_op("asyncpatch::film", mutates_args={})
def _film(h: Tensor, phi: Tensor, weight: Tensor, label: Tensor) -> Tensor:
    h, phi = _packed(h), _packed(phi)
    batch, channels, height, width = h.shape
    block_c = max(16, triton.next_power_of_2(channels))
    block_m = 32 if block_c <= 256 else 16
    y = torch.empty_like(h)
    wrap_triton(_forward)[(triton.cdiv(height * width, block_m), batch)](
        h,
        phi,
        weight.contiguous(),
        label.contiguous(),
        y,
        height * width,
        C=channels,
        K=TIME_FEATURES,
        BLOCK_M=block_m,
        BLOCK_C=block_c,
        EPS=EPS,
        num_warps=4 if block_c <= 512 else 8,
        num_stages=1,
    )
    return y


@triton_op("asyncpatch::film_backward", mutates_args={})
def _film_backward(dy: Tensor, h: Tensor, phi: Tensor, weight: Tensor, label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dy, h, phi = _packed(dy), _packed(h), _packed(phi)
    batch, channels, height, width = h.shape
    pixels = height * width
    block_c = max(16, triton.next_power_of_2(channels))
    block_m = 32 if block_c == 128 else 16
    chunks = max(1, min(_PROGRAMS // batch, triton.cdiv(pixels, block_m)))
    chunk = triton.cdiv(triton.cdiv(pixels, chunks), block_m) * block_m
    chunks = triton.cdiv(pixels, chunk)
    items = batch * chunks
    programs = triton.cdiv(items, triton.cdiv(items, _PROGRAMS))
    dh = torch.empty_like(h)
    dweight = torch.empty(programs, 2, TIME_FEATURES, channels, device=h.device, dtype=torch.float32)
    dlabel = torch.empty(batch, chunks, 2, channels, device=h.device, dtype=torch.float32)
    wrap_triton(_backward)[(programs,)](
        h,
        phi,
        weight.contiguous(),
        label.contiguous(),
        dy,
        dh,
        dweight,
        dlabel,
        pixels,
        chunk,
        chunks,
        items,
        programs,
        C=channels,
        K=TIME_FEATURES,
        BLOCK_M=block_m,
        BLOCK_C=block_c,
        EPS=EPS,
        num_warps=min(16, max(4, block_c // 64)),
        num_stages=1,
    )
    return dh, dweight.sum(0).to(weight.dtype), dlabel.sum(1).to(label.dtype)


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    ctx.save_for_backward(*inputs)


def _gradients(ctx, dy):  # type: ignore[no-untyped-def]
    dh, dweight, dlabel = _film_backward(dy, *ctx.saved_tensors)
    return dh, None, dweight, dlabel  # the features of time are not learned


_film.register_autograd(_gradients, setup_context=_save)


def fused_film(h: Tensor, phi: Tensor, weight: Tensor, label: Tensor) -> Tensor:
    """``film.modulate_by_field`` on CUDA: h [B, C, H, W], phi [B, K, H, W], weight [2, K, C], label [B, 2, C]."""
    if torch.compiler.is_compiling():
        return _film(h, phi.to(h.dtype), weight, label)
    with torch.cuda.device_of(h):  # Triton launches on the current device, whichever its arguments are on
        return _film(h, phi.to(h.dtype), weight, label)
