"""What a training run is told: one flat, frozen dataclass.

It needs nothing but the standard library, so that the command line can list its fields at once.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from asyncpatch.options import check, parse, setting, types_of

MIXED = "0.8 asyncpatch + 0.2 perlin-picture"
"""Time fields of which a fifth are like those of inpainting: what the shipped model was chosen to be trained with."""


@dataclass(frozen=True, kw_only=True)
class HeadRecipe:
    """How to train the head that says how sure a network is, by ``train.uncertainty``."""

    steps: int = 2000
    batch: int = 128
    rate: float = 2e-3
    times: str = MIXED
    seed: int = 0
    device: str = "auto"
    precision: str = "auto"

    def __post_init__(self) -> None:
        for name in ("steps", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not self.rate > 0:
            raise ValueError(f"rate must be positive, got {self.rate}")
        if self.precision == "fp16":
            raise ValueError("precision must be auto, fp32 or bf16 here, got 'fp16'")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to train. ``asyncpatch.recipes`` returns these; ``dataclasses.replace`` changes them."""

    # the network
    resolution: int = setting(64, "side of the training pictures, in pixels")
    width: int = setting(64, "channels at the first scale")
    multipliers: tuple[int, ...] = setting((1, 2, 3, 4), "channels at each scale, in widths")
    blocks: tuple[int, ...] = setting((2, 2, 2, 2), "residual blocks at each scale")
    middle_blocks: int = setting(2, "residual blocks in the middle")
    attention: int = setting(2, "at how many of the lowest scales there is self-attention")
    fourier: int = setting(0, "octaves of finest detail that the network is shown as waves; for likelihood")

    # what it learns
    process: Literal["rectified_flow", "cosine"] = setting("rectified_flow", "how pictures are noised")
    prediction: Literal["v", "x", "eps"] = setting("v", "what the network predicts")
    weighting: Literal["sigmoid", "elbo"] = setting(
        "sigmoid", "of the loss: sigmoid for good pictures, elbo for likelihood alone (times even in log-SNR)"
    )
    bias: float = setting(2.0, "log-SNR that the sigmoid weighting weighs most (SiD2's b)")
    times: str = setting("asyncpatch", "training time fields: global, independent, patchwise, perlin, perlin-picture, "
                         "asyncpatch, patch-forcing, mean-beta, or a mixture such as "
                         "'0.8 asyncpatch + 0.2 perlin-picture'")  # fmt: skip
    label_dropout: float = setting(0.1, "share of the pictures whose class is not told")
    holes: str = setting("", "kinds of holes, such as 'square,thin,wide': the network is shown the rest of a picture "
                         "beside its canvas and learns to fill these (a rival; with --times global)")  # fmt: skip
    picture_dropout: float = setting(0.1, "with --holes, share of the pictures of which nothing is shown")
    flips: bool = setting(True, "mirror half of the pictures")
    crops: float = setting(0.0, "random squares of large pictures besides the whole: this many per further area")

    # how it learns
    steps: int = setting(100_000, "optimizer steps in all")
    batch: int = setting(256, "pictures per step, of all processes together; 'auto' keeps it and finds --accumulate")
    accumulate: int | Literal["auto"] = setting(1, "pieces in which a process takes its part; 'auto': as few as fit")
    rate: float = setting(3e-4, "learning rate")
    warmup: int = setting(1000, "steps over which the rate rises")
    decay: float = setting(0.0, "share of the steps, at the end, over which the rate falls to 0")
    betas: tuple[float, ...] = setting((0.9, 0.99), "Adam's two decay rates")
    epsilon: float = setting(1e-12, "Adam's epsilon")
    clip: float = setting(1.0, "largest norm of a gradient")
    ema: float = setting(0.999, "decay of the averaged weights, which are what is kept")
    snapshot_every: int = setting(0, "steps between snapshots for averages chosen afterwards; 0 for none")
    seed: int = setting(0, "of weights, order, noise and time fields")

    # on what machine
    device: Literal["auto", "cuda", "mps", "cpu"] = setting("auto", "where to compute")
    precision: Literal["auto", "bf16", "fp32"] = setting("auto", "of the network's arithmetic; weights are fp32")
    compile: Literal["auto", "on", "off"] = setting("auto", "torch.compile; auto: on a GPU")
    checkpointing: bool = setting(False, "compute activations twice, to save memory")
    shard: bool = setting(False, "spread the weights over the processes (FSDP2)")

    # what one sees of it
    log_every: int = setting(50, "steps between lines of the log")
    save_every: int = setting(1000, "steps between checkpoints")
    keep: int = setting(2, "checkpoints kept")
    picture_every: int = setting(2000, "steps between sample and inpainting grids")

    def __post_init__(self) -> None:
        kinds = types_of(type(self))
        for each in fields(self):
            check(each.name, getattr(self, each.name), kinds[each.name])
        whole = ("resolution", "width", "steps", "batch", "log_every", "save_every", "keep", "picture_every")
        for name in whole:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("middle_blocks", "attention", "fourier", "crops", "warmup", "snapshot_every"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        if self.accumulate != "auto" and self.accumulate < 1:
            raise ValueError(f"accumulate must be at least 1, or auto; got {self.accumulate}")
        for name in ("rate", "clip", "epsilon"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("label_dropout", "picture_dropout", "decay", "ema"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        if len(self.betas) != 2:
            raise ValueError(f"betas must be two numbers, got {self.betas}")

    def rate_at(self, step: int) -> float:
        """The learning rate of a step (counted from 0): up over ``warmup``, level, down over the last ``decay``."""
        up = (step + 1) / (self.warmup + 1)
        down = (self.steps - step) / (self.decay * self.steps) if self.decay else 1.0
        return self.rate * min(up, down, 1.0)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Recipe:
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        return cls(**values)

    def changed(self, given: dict[str, str | int | float | bool | None]) -> Recipe:
        """With what was given on a command line; None leaves a field as it is, texts are parsed."""
        kinds = types_of(type(self))
        values: dict[str, Any] = {
            name: parse(name, value, kinds[name]) if isinstance(value, str) else value
            for name, value in given.items()
            if value is not None
        }
        if values.get("batch") == "auto":  # the batch is part of the recipe; what must be found is how to fit it in
            del values["batch"]
            values["accumulate"] = "auto"
        return replace(self, **values)
