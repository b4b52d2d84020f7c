"""Bits per dimension on a held-out set, for paths of every patch size.

    python benchmarks/likelihood.py --model FOLDER --data cifar10/ [--calls 32] [--device cuda] -o OUT

The bound is that of ``likelihood.elbo`` on the probability of 8-bit levels, without labels, seeded by the number of
the picture; the error is the standard error of the mean over the set, which holds both the spread of pictures (that a
larger set would lessen) and that of the estimate. Writes OUT/likelihood.json and prints a table.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import torch

from asyncpatch.data.sources import open_sources
from asyncpatch.data.store import open_store
from asyncpatch.likelihood import elbo, random_path, synchronous_path
from asyncpatch.models.placing import choose_device
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.sampling import generators


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--model", type=Path, required=True)
    options.add_argument("--data", action="append", required=True)
    options.add_argument("--calls", type=int, default=32)
    options.add_argument("--count", type=int, default=1_000_000, help="pictures, at most")
    options.add_argument("--batch", type=int, default=500)
    options.add_argument("--device", default="auto")
    options.add_argument("--precision", default="fp32")
    options.add_argument("--cache", type=Path)
    options.add_argument("-o", "--output", type=Path, default=Path("out/likelihood"))
    given = options.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    pipeline, device = AsyncPatchPipeline.from_pretrained(given.model), choose_device(given.device)
    pipeline.prepare(given.device, given.precision, compiled=device.type == "cuda")
    model, denoiser = pipeline.model, pipeline.denoiser(given.batch)
    store = open_store(open_sources(given.data, "validation"), model.resolution, cache=given.cache)
    chosen = torch.arange(len(store))[:: max(1, len(store) // given.count)][: given.count]
    sizes = [2**k for k in reversed(range(int(math.log2(model.resolution)) + 1))]
    print(f"{pipeline.where()}, {len(chosen):,} pictures, {given.calls} calls each\n")
    print("| patch | bits per dimension | of it prior | reconstruction | error of the estimate | seconds |")
    print("|---|---|---|---|---|---|", flush=True)
    rows = []
    for size in sizes:
        path = synchronous_path() if size == model.resolution else random_path(size)
        began, parts = time.perf_counter(), []
        for some in chosen.split(given.batch):
            x = torch.from_numpy(store.pictures[some.numpy()]).to(device).permute(0, 3, 1, 2).float() / 127.5 - 1
            parts.append(
                elbo(denoiser, x, process=model.process, path=path, calls=given.calls,
                     generator=generators([int(k) for k in some], device))
            )  # fmt: skip
        bits = torch.cat([part.bits_per_dim for part in parts])
        unit = parts[0].numbers[0] * math.log(2)
        row = {
            "patch": size, "bits": float(bits.mean()), "error": float(bits.std() / len(bits) ** 0.5),
            "prior": float(-torch.cat([part.prior for part in parts]).mean() / unit),
            "reconstruction": float(-torch.cat([part.reconstruction for part in parts]).mean() / unit),
            "estimate": float(torch.cat([part.bits_error for part in parts]).square().mean().sqrt() / len(bits) ** 0.5),
            "seconds": time.perf_counter() - began,
        }  # fmt: skip
        rows.append(row)
        print(f"| {size} | {row['bits']:.4f} ± {row['error']:.4f} | {row['prior']:.4f} | {row['reconstruction']:.4f} | "
              f"{row['estimate']:.4f} | {row['seconds']:.0f} |", flush=True)  # fmt: skip
    about = {"model": given.model.name, "pictures": len(chosen), "calls": given.calls, "ran on": pipeline.where()}
    (given.output / "likelihood.json").write_text(json.dumps({**about, "paths": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
