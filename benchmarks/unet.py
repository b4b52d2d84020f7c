"""Speed of the UNet: what a time per pixel costs, against one time per picture and against diffusers' UNet2DModel.

    python benchmarks/unet.py --size 23m          23m, 60m or 620m; needs a CUDA GPU

All variants run in one process, compiled alike (fullgraph), channels-last, 64x64. Training: forward in bfloat16
autocast, weighted squared error, backward, clipping and a fused Adam step on float32 weights. Sampling: forward with
bfloat16 weights. Times are medians of CUDA events after warm-up, the variants' rounds interleaved. FLOPs are those of
convolutions and matrix products as torch.utils.flop_counter counts them on the CPU (2 per multiplication and addition;
the products inside attention are not seen), times 3 for a training step. GiB are the most that a call needs, with the
network's own weights and optimizer. The ceiling is an 8192^3 bfloat16 matrix product measured in the same run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from asyncpatch.models.film import modulate_by_field, time_features
from asyncpatch.models.unet import UNet
from asyncpatch.time_sampling import AsyncPatch, Independent
from timing import medians

SIZES = {
    "23m": {"width": 64, "multipliers": (1, 2, 3, 4), "blocks": (2, 2, 2, 2), "middle_blocks": 2},
    "60m": {"width": 128, "multipliers": (1, 2, 3, 3), "blocks": (1, 2, 2, 2), "middle_blocks": 1},
    "620m": {"width": 256, "multipliers": (1, 2, 3, 4), "blocks": (4, 4, 4, 4), "middle_blocks": 3},
}
BATCH = {"23m": 512, "60m": 256, "620m": 64}
LABELS = 1000


def diffusers_unet(size: str) -> torch.nn.Module:
    """UNet2DModel with the same widths; blocks per scale are equal there, so the most frequent number is taken."""
    from diffusers import UNet2DModel

    config = SIZES[size]
    return UNet2DModel(
        sample_size=64,
        in_channels=3,
        out_channels=3,
        layers_per_block=config["blocks"][-1],
        block_out_channels=tuple(config["width"] * each for each in config["multipliers"]),
        down_block_types=("DownBlock2D", "DownBlock2D", "AttnDownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "AttnUpBlock2D", "UpBlock2D", "UpBlock2D"),
        attention_head_dim=64,
        num_class_embeds=LABELS,
        resnet_time_scale_shift="scale_shift",
    )


class Diffusers(torch.nn.Module):
    def __init__(self, size: str) -> None:
        super().__init__()
        self.net = diffusers_unet(size)

    def forward(self, z: Tensor, t: Tensor, label: Tensor) -> Tensor:
        return self.net(z, t[:, 0, 0, 0] * 1000, label, return_dict=False)[0]


def ceiling() -> float:
    """FLOP/s of a large bfloat16 matrix product."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * 8192**3 / medians({"": lambda: a @ b}, 20, torch.device("cuda"))[""]


def check_kernel() -> None:
    """The fused kernel against plain torch, forwards and backwards, in float32 and bfloat16."""
    for dtype in (torch.float32, torch.bfloat16):
        for channels, side in ((64, 24), (192, 16), (512 if dtype == torch.float32 else 1024, 8)):
            torch.manual_seed(0)
            shapes = ((6, channels, side, side), (2, 16, channels), (6, 2, channels))
            values = [(0.5 * torch.randn(shape)).to(dtype).float() for shape in shapes]
            phi = time_features(torch.rand(6, 1, side, side)).to(dtype)
            dy = torch.randn(shapes[0]).to(dtype)
            results = []
            for device, kind in (("cpu", torch.float32), ("cuda", dtype)):
                h, weight, label = (v.to(device, kind, copy=True).requires_grad_() for v in values)
                y = modulate_by_field(h, phi.to(device, kind), weight, label)
                y.backward(dy.to(device, kind))
                results.append([x.detach().float().cpu() for x in (y, h.grad, weight.grad, label.grad)])
            worst = max(((a - b).norm() / a.norm()).item() for a, b in zip(*results, strict=True))
            print(f"fused kernel, {channels} channels, {dtype}: relative error {worst:.1e}", flush=True)
            assert worst < (1e-5 if dtype == torch.float32 else 1e-2)


class Training:
    """One training step of a network, compiled."""

    def __init__(self, net: torch.nn.Module) -> None:
        self.net = net.cuda().to(memory_format=torch.channels_last)
        self.run = torch.compile(self.net, fullgraph=True)
        self.adam = torch.optim.Adam(self.net.parameters(), lr=1e-4, fused=True)

    def __call__(self, z: Tensor, t: Tensor, label: Tensor, target: Tensor) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            out = self.run(z, t, label)
        loss = (t * (1 - t) * (out.float() - target).square()).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.net.parameters(), 1.0, foreach=True)
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)


def measure(size: str, what: list[str], variants: list[str], batch: int, count: int, trace: str | None) -> None:
    top = ceiling()
    machine = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    print(f"\n{machine}, ceiling {top / 1e12:.0f} TFLOP/s, batch {batch}\n")
    z, target = (torch.randn(batch, 3, 64, 64, device="cuda") for _ in range(2))
    label = torch.randint(LABELS, (batch,), device="cuda")
    times = {
        "patch fields": AsyncPatch().sample(batch, 64, 64, device="cuda"),
        "pixel fields": Independent().sample(batch, 64, 64, device="cuda"),
        "one time": torch.rand(batch, 1, 1, 1, device="cuda"),
        "diffusers": torch.rand(batch, 1, 1, 1, device="cuda"),
    }
    times = {name: times[name] for name in variants}
    print("| size | what | variant | parameters | images/s | of one time | GFLOP/image | of the ceiling | GiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for kind in what:
        calls, gib, flops, parameters, others = {}, {}, {}, {}, {}
        nets: dict[str, object] = {}
        for name, t in times.items():
            family = "diffusers" if name == "diffusers" else "ours"
            if family not in nets:
                others[family] = torch.cuda.memory_allocated()
                torch.manual_seed(0)
                net = Diffusers(size) if family == "diffusers" else UNet(**SIZES[size], labels=LABELS)
                parameters[family] = sum(p.numel() for p in net.parameters())
                with torch.no_grad(), FlopCounterMode(display=False) as counter:
                    net(torch.zeros(1, 3, 64, 64), torch.zeros(1, 1, 1, 1), torch.zeros(1, dtype=torch.long))
                flops[family] = counter.get_total_flops() * (3 if kind == "train" else 1)
                if kind == "train":
                    nets[family] = Training(net)
                else:
                    net = net.cuda().to(torch.bfloat16, memory_format=torch.channels_last).eval()
                    nets[family] = torch.compile(net, fullgraph=True)
            run = nets[family]
            if kind == "train":
                calls[name] = lambda run=run, t=t: run(z, t, label, target)
            else:
                calls[name] = torch.inference_mode()(lambda run=run, t=t: run(z.bfloat16(), t, label))
            began = time.monotonic()
            torch.cuda.reset_peak_memory_stats()
            calls[name]()
            torch.cuda.synchronize()
            print(f"<!-- {name}: compiled in {time.monotonic() - began:.0f} s -->", flush=True)
            torch.cuda.reset_peak_memory_stats()
            calls[name]()
            gib[name] = (torch.cuda.max_memory_allocated() - others[family]) / 2**30
        taken = medians(calls, count, z.device)
        if trace:
            profile({name: call for name, call in calls.items() if name != "diffusers"}, trace)
        for name, seconds in taken.items():
            family = "diffusers" if name == "diffusers" else "ours"
            speed = batch / seconds
            ratio = f"{taken['one time'] / seconds:.3f}" if "one time" in taken else ""
            print(
                f"| {size} | {kind} | {name} | {parameters[family] / 1e6:.1f}M | {speed:,.0f} | {ratio} "
                f"| {flops[family] / 1e9:.1f} | {speed * flops[family] / top:.1%} | {gib[name]:.1f} |",
                flush=True,
            )


def profile(calls: dict[str, Callable[[], object]], path: str) -> None:
    """The longest kernels of each variant, as a text file."""
    with open(path, "w") as file:
        for name, call in calls.items():
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
                call()
                torch.cuda.synchronize()
            table = found.key_averages().table(sort_by="cuda_time_total", row_limit=60, max_name_column_width=90)
            file.write(f"=== {name}\n{table}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="23m")
    parser.add_argument("--what", default="train,sample", help="train, sample, or both")
    parser.add_argument("--variants", default="patch fields,pixel fields,one time,diffusers")
    parser.add_argument("--batch", type=int, help="pictures per step; by default as fits the size")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--profile", help="write the longest kernels into this file")
    args = parser.parse_args()
    check_kernel()
    batch = args.batch or BATCH[args.size]
    measure(args.size, args.what.split(","), args.variants.split(","), batch, args.rounds, args.profile)


if __name__ == "__main__":
    main()
