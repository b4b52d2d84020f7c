"""Asynchronous diffusion: image models in which every pixel has its own noise level.

The most used names can be had from here; they are imported when first used, so that ``import asyncpatch`` is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what type checkers and editors see of _HOME and _MODULES
    from asyncpatch import coverage as coverage
    from asyncpatch import drawing as drawing
    from asyncpatch import fields as fields
    from asyncpatch import oracle as oracle
    from asyncpatch.guidance import Guided as Guided
    from asyncpatch.guidance import drop_label as drop_label
    from asyncpatch.guidance import renoise as renoise
    from asyncpatch.process import CosineVP as CosineVP
    from asyncpatch.process import RectifiedFlow as RectifiedFlow
    from asyncpatch.protocols import Cond as Cond
    from asyncpatch.protocols import Denoised as Denoised
    from asyncpatch.protocols import Denoiser as Denoiser
    from asyncpatch.protocols import Schedule as Schedule
    from asyncpatch.protocols import Step as Step
    from asyncpatch.protocols import Visit as Visit
    from asyncpatch.sampling import draw_noise as draw_noise
    from asyncpatch.sampling import generators as generators
    from asyncpatch.sampling import sample as sample
    from asyncpatch.schedules import autoregressive as autoregressive
    from asyncpatch.schedules import from_function as from_function
    from asyncpatch.schedules import from_map as from_map
    from asyncpatch.schedules import inpainting as inpainting
    from asyncpatch.schedules import synchronous as synchronous
    from asyncpatch.steps import churned_ddim as churned_ddim
    from asyncpatch.steps import ddim as ddim
    from asyncpatch.steps import heun as heun
    from asyncpatch.steps import multistep as multistep
    from asyncpatch.time_sampling import AsyncPatch as AsyncPatch
    from asyncpatch.time_sampling import Global as Global
    from asyncpatch.time_sampling import Independent as Independent
    from asyncpatch.time_sampling import Mixture as Mixture
    from asyncpatch.time_sampling import Patchwise as Patchwise
    from asyncpatch.time_sampling import Perlin as Perlin

__version__ = "0.1.0"

_HOME = {
    "guidance": ("Guided", "drop_label", "renoise"),
    "process": ("CosineVP", "RectifiedFlow"),
    "protocols": ("Cond", "Denoised", "Denoiser", "Schedule", "Step", "Visit"),
    "sampling": ("draw_noise", "generators", "sample"),
    "schedules": ("autoregressive", "from_function", "from_map", "inpainting", "synchronous"),
    "steps": ("churned_ddim", "ddim", "heun", "multistep"),
    "time_sampling": ("AsyncPatch", "Global", "Independent", "Mixture", "Patchwise", "Perlin"),
}
_MODULES = ("coverage", "drawing", "fields", "oracle")
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}


if not TYPE_CHECKING:  # or a checker would believe that there is every name

    def __getattr__(name: str) -> object:
        if name in _MODULES:
            return import_module(f"asyncpatch.{name}")
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'asyncpatch' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"asyncpatch.{_MODULE_OF[name]}"), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF, *_MODULES})
