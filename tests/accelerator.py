"""A GPU in name only: code runs on it as on a real one, but nothing is computed.

    python tests/accelerator.py

runs what training and sampling do over and over, and prints a line for each thing that it tried. Tensors have a shape
and a device and no values (PyTorch's fake tensors, on a device that is registered for them). So it is found out on any
machine if tensors of CPU and GPU meet, or if a value is read that a GPU would have to be waited for. The device is
registered for the whole process: tests run this as one of its own.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import backend_registration

sys.path.append(str(Path(__file__).parent / "train"))

from asyncpatch import baselines, checks, sampling, schedules, steps
from asyncpatch.codecs import Latents
from asyncpatch.data.feed import Pictures
from asyncpatch.guidance import Guided, drop_label, renoise
from asyncpatch.likelihood import elbo, random_path, synchronous_path
from asyncpatch.models.autoencoder import Autoencoder
from asyncpatch.models.denoiser import NetworkDenoiser
from asyncpatch.models.folder import Model
from asyncpatch.models.unet import UNet
from asyncpatch.process import RectifiedFlow
from asyncpatch.protocols import Cond
from asyncpatch.train.autoencoder import AutoencoderTrainer
from asyncpatch.train.trainer import Trainer
from runs import TINY, TINY_VQ

NAME = "unreal"
TIMES = (
    "global", "independent", "patchwise", "perlin", "patch-forcing", "mean-beta", "0.8 asyncpatch + 0.2 perlin-picture",
)  # fmt: skip
PROCESS = RectifiedFlow()


class Backend(backend_registration._DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


class Generator(torch.Generator):
    """Of the CPU, but it says that it lives where it was asked to."""

    def __new__(cls, device: torch.device | str = "cpu") -> Generator:
        made = super().__new__(cls, "cpu")
        made.where = torch.device(device)
        return made

    def __init__(self, device: torch.device | str = "cpu") -> None:
        pass

    @property
    def device(self) -> torch.device:
        return self.where


def apply(self: nn.Module, fn: Callable, recurse: bool = True) -> nn.Module:
    """As a module moves its tensors; PyTorch's own swaps them, which fake ones do not bear."""
    for child in self.children():
        apply(child, fn)
    with torch.no_grad():
        for name, value in self._parameters.items():
            self._parameters[name] = None if value is None else nn.Parameter(fn(value), value.requires_grad)
        for name, value in self._buffers.items():
            self._buffers[name] = None if value is None else fn(value)
    return self


def register() -> None:
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=Backend())
    library = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    library.fallback(torch.library.fallthrough_kernel)
    Backend.library = library  # it lasts as long as somebody holds it
    torch.Generator = Generator  # type: ignore[misc]
    nn.Module._apply = apply  # type: ignore[assignment]


class Lone:
    """What learners ask of accelerate, of the only process there is."""

    num_processes, is_main_process = 1, True

    def __init__(self) -> None:
        self.device = torch.device(NAME, 0)

    def prepare(self, *parts: object) -> tuple[object, ...]:
        return parts

    def unwrap_model(self, net: nn.Module) -> nn.Module:
        return net

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def clip_grad_norm_(self, parameters: Iterator[nn.Parameter], most: float) -> torch.Tensor:
        return nn.utils.clip_grad_norm_(parameters, most)

    def no_sync(self, net: nn.Module) -> nullcontext[None]:
        return nullcontext()


def batch(recipe) -> Pictures:
    count, side = recipe.batch, recipe.resolution
    levels = torch.zeros(count, side, side, 3, dtype=torch.uint8, device=NAME)
    return Pictures(levels, torch.zeros(count, dtype=torch.long, device=NAME), torch.arange(count, device=NAME))


def two_steps(trainer: AutoencoderTrainer | Trainer) -> None:
    for seed in range(2):
        trainer.update(trainer.draw(batch(trainer.recipe), slice(None), seed))


def autoencoder(**changes: object) -> None:
    recipe = replace(TINY_VQ, compile="off", adversary_start=0, locality=5.0, **changes)
    two_steps(AutoencoderTrainer.new(recipe, None, (), Lone(), print))


def denoiser(latents: bool = False, **changes: object) -> None:
    recipe = replace(TINY, compile="off", **changes)
    net = network(fourier=recipe.fourier, given=bool(recipe.holes))
    more = {}
    if latents:
        coder = Autoencoder(width=8, multipliers=(1, 2), blocks=1, codes=64)
        more["codec"] = Latents(coder, (0.0,) * 3, (1.0,) * 3)
    two_steps(Trainer(recipe, Model(net, PROCESS, "v", recipe.resolution, ("a", "b"), **more), Lone(), print))


def network(**options: object) -> UNet:
    return UNet(labels=2, width=16, multipliers=(1, 2), blocks=(1, 1), middle_blocks=1, attention=0, **options)


def unread(*given: object, **how: object) -> None:
    """In place of what reads values where that is fine."""


@contextmanager
def built() -> Iterator[SimpleNamespace]:
    """A network on the device, pictures with a hole, their labels, and a weaker question. Reading is fine where a
    method or a weaker question is built, and when the loop looks at its result."""
    x, hole = torch.zeros(2, 3, 8, 8, device=NAME), torch.ones(2, 1, 8, 8, device=NAME)
    with patch.object(checks, "unit_values", unread):
        weaken = renoise(PROCESS, 1.0 - hole, torch.zeros_like(x))
    with patch.object(sampling, "_check_result", unread), patch.object(baselines, "_check", unread):
        yield SimpleNamespace(
            ask=NetworkDenoiser(network().to(NAME), PROCESS, "v"), x=x, hole=hole, weaken=weaken,
            cond=Cond(label=torch.zeros(2, dtype=torch.long, device=NAME)),
        )  # fmt: skip


def moved(schedule: schedules.OpenLoop) -> schedules.OpenLoop:
    """Its maps, which were looked at on the CPU, on the device."""
    for each in fields(schedule.tau):
        value = getattr(schedule.tau, each.name)
        if isinstance(value, torch.Tensor):
            object.__setattr__(schedule.tau, each.name, torch.empty(value.shape, device=NAME))
    return schedule


def sample(schedule: schedules.OpenLoop, step: object) -> None:
    with built() as at:
        guided = Guided(Guided(at.ask, 1.0, drop_label), 1.0, at.weaken)
        sampling.sample(guided, moved(schedule), at.x, step=step, cond=at.cond, generator=sampling.generators([0, 1]))


def rival(name: str, **options: object) -> None:
    with built() as at:
        method = getattr(baselines, name)(PROCESS, at.x, at.hole, **options)
        method.run(at.ask, at.x, generator=sampling.Ahead(sampling.generators([0, 1], NAME)))


def bound(path: object) -> None:
    with built() as at:
        elbo(at.ask, at.x, process=PROCESS, path=path, calls=4, bits=None, generator=sampling.generators([0, 1]))


def cases() -> dict[str, Callable[[], None]]:
    """By name; what of them is of the CPU is made here, outside of the fakes."""
    hole = torch.zeros(1, 1, 8, 8)
    hole[..., 2:6, 2:6] = 1.0
    orders = torch.arange(64).view(8, 8) // 16
    ways = {
        "synchronous": schedules.synchronous(3),
        "inpainting": schedules.inpainting(hole, 3),
        "autoregressive": schedules.autoregressive(orders, 2),
    }
    made = {
        "ddim": steps.ddim(PROCESS), "ancestral": steps.ddim(PROCESS, eta=1.0),
        "churned": steps.churned_ddim(PROCESS), "heun": steps.heun(PROCESS), "multistep": steps.multistep(PROCESS),
    }  # fmt: skip
    return {
        "train an autoencoder": autoencoder,
        "train an autoencoder in pieces": lambda: autoencoder(accumulate=2),
        **{f"train with times {name}": lambda name=name: denoiser(times=name) for name in TIMES},
        "train for likelihood": lambda: denoiser(weighting="elbo", fourier=2),
        "train the supervised rival": lambda: denoiser(times="global", holes="square"),
        "train on latents": lambda: denoiser(latents=True, resolution=16),
        "train the supervised rival on latents": lambda: denoiser(
            latents=True, resolution=16, times="global", holes="square"
        ),
        **{f"sample, {way}, {step}": lambda way=way, step=step: sample(ways[way], made[step])
           for way in ways for step in made},
        **{f"fill by {name}": lambda name=name: rival(name, steps=3)
           for name in ("replacement", "mcg", "ddrm", "ddnm")},
        "fill by repaint": lambda: rival("repaint", steps=4, jump=2, resample=2),
        "bound, synchronous": lambda: bound(synchronous_path()),
        "bound, random path": lambda: bound(random_path(2)),
        "a mistake: a number made on the CPU": lambda: torch.zeros(3, device=NAME) + torch.zeros(3),
        "a mistake: a value is read": lambda: float(torch.zeros(3, device=NAME).sum()),
    }  # fmt: skip


def main() -> None:
    every = cases()
    register()
    for name, case in every.items():
        try:
            with FakeTensorMode():
                case()
        except Exception:
            print(f"{name}: {traceback.format_exc(limit=-6)}", flush=True)
        else:
            print(f"{name}: fine", flush=True)


if __name__ == "__main__":
    main()
