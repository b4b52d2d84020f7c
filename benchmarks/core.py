"""Speed of the parts that need no trained network, as ratios within one run.

    python benchmarks/core.py                  on one CPU thread
    python benchmarks/core.py --device cuda    on a GPU

Fields: how many 64x64 training time fields a second, at batch 256, and that as a share of drawing as many uniform
numbers (one per pixel) and nothing else.

Loop: what a step of ``sample`` costs besides the network. "alone" runs the loop with a denoiser that hands its canvas
back; "whole" runs it with the network, over as many bare calls of the same network. The network stands in for a small
UNet: twelve 3x3 convolutions of 128 channels at 64x64, 14.5 GFLOP per picture; float32 on the CPU, bfloat16 and
channels-last on a GPU. On a GPU the times that the host waited for it are counted too.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import asyncpatch as ap
from asyncpatch.time_sampling import AsyncPatch, Global, Independent, Mixture, Patchwise, Perlin
from timing import medians

SAMPLERS = {
    "Global": Global(),
    "Independent": Independent(),
    "Patchwise": Patchwise(),
    "Perlin": Perlin(),
    "AsyncPatch": AsyncPatch(),
    "AsyncPatch + Perlin": Mixture((AsyncPatch(), Perlin(times="picture")), (0.8, 0.2)),
}


def fields(device: torch.device, batch: int = 256, side: int = 64) -> None:
    generator = torch.Generator(device).manual_seed(0)
    calls: dict[str, Callable[[], object]] = {
        name: partial(sampler.sample, batch, side, side, generator=generator, device=device)
        for name, sampler in SAMPLERS.items()
    }
    calls["bare"] = partial(torch.rand, batch, side, side, generator=generator, device=device)
    taken = medians(calls, 100, device)
    print("| time sampler | fields a second | share of a bare uniform draw |\n|---|---|---|")
    for name in SAMPLERS:
        print(f"| {name} | {batch / taken[name]:,.0f} | {taken['bare'] / taken[name]:.2f} |", flush=True)


class StandIn(nn.Module):
    """A plain convolutional network about as expensive as a small UNet."""

    def __init__(self, width: int = 128, depth: int = 12) -> None:
        super().__init__()
        inner = [layer for _ in range(depth) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.SiLU())]
        self.layers = nn.Sequential(nn.Conv2d(4, width, 3, padding=1), *inner, nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, z: Tensor, t: Tensor, cond: ap.Cond | None = None) -> ap.Denoised:
        kind = self.layers[0].weight.dtype
        joined = torch.cat([z, t], 1).to(kind, memory_format=torch.channels_last)
        return ap.Denoised(self.layers(joined).float())


def echo(z: Tensor, t: Tensor, cond: ap.Cond | None = None) -> ap.Denoised:
    return ap.Denoised(z)


def loop(device: torch.device) -> None:
    torch.manual_seed(0)
    cuda = device.type == "cuda"
    net = StandIn().to(device, torch.bfloat16 if cuda else torch.float32).to(memory_format=torch.channels_last)
    process = ap.RectifiedFlow()
    print("\n| batch | step | generators | ms per bare call | ms per step alone | alone / bare | whole / bare |")
    print("|---|---|---|---|---|---|---|")
    steps, rounds = (32, 15) if cuda else (2, 7)
    for batch in (1, 64) if cuda else (1, 4):
        z = torch.randn(batch, 3, 64, 64, device=device)
        hole = torch.zeros(1, 1, 64, 64, device=device)
        hole[..., 16:48, 16:48] = 1
        schedule, t = ap.inpainting(hole, steps), hole.expand(batch, 1, 64, 64)

        @torch.no_grad()
        def bare(z: Tensor = z, t: Tensor = t) -> None:
            for _ in range(steps):
                net(z, t)

        for name, step, asks in (("ddim", ap.ddim(process, eta=0.5), 1), ("heun", ap.heun(process), 2)):
            sources = {
                "one": torch.Generator(device).manual_seed(0),
                "per sample": ap.generators(range(batch), device),
            }
            for kind, source in sources.items():
                run = partial(ap.sample, schedule=schedule, z=z, step=step, generator=source)
                calls = {"bare": bare, "alone": partial(run, echo), "whole": partial(run, net)}
                one, alone, whole = (each / steps for each in medians(calls, rounds, device).values())
                cells = f"{1e3 * one:.2f} | {1e3 * alone:.3f} | {alone / one:.4f} | {whole / (one * asks):.3f}"
                print(f"| {batch} | {name} | {kind} | {cells} |", flush=True)
    if cuda:
        print(f"\nThe host waited {', '.join(waits(net, process, steps) for steps in (8, 64))}; ", end="")
        print(f"{sampler_waits()} times for 100 batches of each time sampler.")


def waits(net: StandIn, process: ap.RectifiedFlow, steps: int) -> str:
    """How often a whole sampling run makes the host wait for the device, as PyTorch itself reports it."""
    z = torch.randn(2, 3, 64, 64, device="cuda")
    schedule = ap.inpainting(torch.ones(1, 1, 64, 64, device="cuda"), steps)
    step, source = ap.ddim(process, eta=0.5), ap.generators([1, 2], "cuda")
    return f"{_count_waits(lambda: ap.sample(net, schedule, z, step=step, generator=source))} times in {steps} steps"


def sampler_waits() -> int:
    return sum(
        _count_waits(lambda s=sampler: [s.sample(64, 64, 64, device="cuda") for _ in range(100)])
        for sampler in SAMPLERS.values()
    )


def _count_waits(call: Callable[[], object]) -> int:
    call()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(each.message) for each in caught)


def machine(device: torch.device) -> str:
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        name = next((row.split(":")[1].strip() for row in info.read_text().splitlines() if "model name" in row), name)
    where = torch.cuda.get_device_name() if device.type == "cuda" else f"one thread of {name}"
    revision = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return f"{where}, torch {torch.__version__}, commit {revision.stdout.strip() or 'unknown'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    device = torch.device(parser.parse_args().device)
    torch.set_num_threads(1)
    print(machine(device) + "\n")
    fields(device)
    loop(device)


if __name__ == "__main__":
    main()
