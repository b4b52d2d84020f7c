"""Cost of inpainting: against RePaint, by the size of the photo, and by precision.

    python benchmarks/inpaint.py [--model FOLDER] [--device cuda]

- RePaint is diffusers' scheduler (250 steps, jumps of 10, 10 times) on the same network, asked with one time per
  picture through the change of variables between its noise and ours.
- A hole of fixed size, in photos from 256x256 to 4000x3000: seconds from the photo in memory to the filled photo in
  memory. The curve should be flat.
- The network's time for one window and for eight: as it comes from the file (fp32, rows of pixels, norms of all pixels
  at once), as ``prepare`` sets it up, and, on a CPU, so without ``models.film_cpu``. And a picture's, with the CPU's.

Without --model it is the network of the recipe default64_23m, untrained: its time does not depend on its weights.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from diffusers import RePaintScheduler

from asyncpatch import recipes
from asyncpatch.models import film_cpu
from asyncpatch.models.unet import UNet
from asyncpatch.pipelines import AsyncPatchPipeline
from timing import medians

HOW = {"steps": 32, "input_guidance": 0.0}  # as many questions as 16 steps with guidance, the default
PHOTOS = ((256, 256), (512, 512), (1024, 1024), (2048, 2048), (3000, 4000))


def untrained() -> AsyncPatchPipeline:
    recipe = recipes.default64_23m()
    names = ("width", "multipliers", "blocks", "middle_blocks", "attention")
    return AsyncPatchPipeline(UNet(labels=112, **{name: getattr(recipe, name) for name in names}))


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Seconds, and seconds of the CPU's cores together."""
    began = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - began[0], time.process_time() - began[1]


def photo(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)


def square(height: int, width: int, side: int) -> torch.Tensor:
    hole = torch.zeros(1, height, width)
    top, left = (height - side) // 2, (width - side) // 2
    hole[:, top : top + side, left : left + side] = 1
    return hole


@torch.no_grad()
def seconds_of_the_network(chosen: UNet, plain: UNet, z: torch.Tensor) -> dict[str, float]:
    """As chosen, so with the norms of all pixels at once, and plain."""
    t = z[:, :1]
    calls = {
        "chosen": lambda: chosen(z, t),
        "whole": at_once(lambda: chosen(z, t)),
        "fp32": at_once(lambda: plain(z, t)),
    }
    return medians(calls, 20, z.device)


def at_once(work: Callable[[], object]) -> Callable[[], object]:
    """The same, with the norms of all pixels at once."""

    def whole() -> object:
        with patch.object(film_cpu, "AT_ONCE", sys.maxsize):
            return work()

    return whole


@torch.no_grad()
def repaint(pipeline: AsyncPatchPipeline, x: torch.Tensor, hole: torch.Tensor) -> tuple[torch.Tensor, int]:
    """RePaint's filling, and how often it asked the network.

    z = alpha x + sigma eps becomes ours, (1 - t) x + t eps with t = sigma / (alpha + sigma), divided by alpha + sigma.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler = RePaintScheduler(num_train_timesteps=1000, clip_sample=False)
    scheduler.set_timesteps(250, jump_length=10, jump_n_sample=10)
    known, denoiser, calls = 1 - hole, pipeline.model.denoiser, 0
    z, last = torch.randn_like(x), scheduler.timesteps[0] + 1
    for t in scheduler.timesteps:
        if t < last:
            alpha, sigma = scheduler.alphas_cumprod[t].sqrt(), (1 - scheduler.alphas_cumprod[t]).sqrt()
            field = (sigma / (alpha + sigma)).to(x.device).expand(len(x), 1, *x.shape[2:])
            clean = denoiser(z / (alpha + sigma), field, None).x
            z = scheduler.step((z - alpha * clean) / sigma, t, z, x, known).prev_sample
            calls += 1
        else:
            z = scheduler.undo_step(z, last)
        last = t
    return z, calls


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--model", type=Path)
    options.add_argument("--device", default="auto")
    given = options.parse_args()

    def load() -> AsyncPatchPipeline:
        return AsyncPatchPipeline.from_pretrained(given.model) if given.model else untrained()

    pipeline = load().prepare(given.device)
    device = pipeline.unet.device
    plain = load().to(device)
    side = pipeline.model.resolution
    print(f"{pipeline.where()}, torch {torch.__version__}, {torch.get_num_threads()} threads\n", flush=True)

    print("| windows at a time | fp32, ms | as chosen, ms | times as fast | without film_cpu, ms |")
    print("|---|---|---|---|---|", flush=True)
    for batch in (1, 8):
        taken = seconds_of_the_network(pipeline.unet, plain.unet, torch.zeros(batch, 3, side, side, device=device))
        print(f"| {batch} | {taken['fp32'] * 1000:.0f} | {taken['chosen'] * 1000:.0f} | "
              f"{taken['fp32'] / taken['chosen']:.2f} | {taken['whole'] * 1000:.0f} |", flush=True)  # fmt: skip
    small, gap = photo(side, side), square(side, side, side // 2)
    ours = pipeline.plan_inpaint(small, gap, seed=0, **HOW)
    works = {"fp32": at_once(lambda: plain.run(ours)), "as chosen": lambda: pipeline.run(ours)}
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(4):  # taking turns
        for name, work in works.items():
            took[name].append(timed(work))
    print(f"\n| a picture, {pipeline.work(ours)} windows | seconds | CPU seconds |\n|---|---|---|", flush=True)
    for name, each in took.items():
        wall, cpu = (min(values) for values in zip(*each, strict=True))
        print(f"| {name} | {wall:.2f} | {cpu:.2f} |", flush=True)
    print()

    print("| photo | hole | windows asked | seconds | of the smallest photo's |")
    print("|---|---|---|---|---|", flush=True)
    for hole_side, photos, rounds in ((side // 2, PHOTOS, 5), (2 * side, (PHOTOS[0], PHOTOS[-1]), 2)):
        plans = {size: pipeline.plan_inpaint(photo(*size), square(*size, hole_side), seed=0, **HOW) for size in photos}
        seconds = dict.fromkeys(photos, float("inf"))
        for _ in range(rounds):  # taking turns, so that a slow spell hits all of them
            for size, plan in plans.items():
                seconds[size] = min(seconds[size], timed(lambda plan=plan: pipeline.run(plan))[0])
        for (height, width), plan in plans.items():
            taken_here = seconds[height, width]
            print(f"| {width}x{height} | {hole_side}x{hole_side} | {pipeline.work(plan):,} | {taken_here:.2f} | "
                  f"{taken_here / seconds[photos[0]]:.2f} |", flush=True)  # fmt: skip

    picture = torch.from_numpy(small).permute(2, 0, 1)[None].to(device) / 127.5 - 1
    began = time.perf_counter()
    _, asked = repaint(pipeline, picture, gap[None].to(device))
    slow = time.perf_counter() - began
    print("\n| method | network calls | seconds |\n|---|---|---|")
    quick = min(wall for wall, _ in took["as chosen"])
    print(f"| ours, {ours.settings.steps} steps | {pipeline.work(ours)} | {quick:.2f} |")
    print(f"| RePaint, 250 steps with jumps | {asked:,} | {slow:.1f} |")
    print(f"\n{asked / pipeline.work(ours):.0f} times fewer calls, {slow / quick:.0f} times as fast")


if __name__ == "__main__":
    main()
