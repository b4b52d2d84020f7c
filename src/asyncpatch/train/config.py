"""What a training run is told: one flat, frozen dataclass for each kind of network.

It needs nothing but the standard library, so that the command line can list its fields at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, Self

from asyncpatch.options import check, parse, setting, types_of

MIXED = "0.8 asyncpatch + 0.2 perlin-picture"
"""Time fields of which a fifth are like those of inpainting: what the shipped model was chosen to be trained with."""

NEEDED = "FOLDER"
"""Stands in recipes for an autoencoder that has to be named."""


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
        for name, least in (("steps", 0), ("batch", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, got {getattr(self, name)}")
        if not self.rate > 0:
            raise ValueError(f"rate must be positive, got {self.rate}")
        if self.precision == "fp16":
            raise ValueError("precision must be auto, fp32 or bf16 here, got 'fp16'")


@dataclass(frozen=True, kw_only=True)
class Training:
    """What any training of ``train.run`` is told. ``asyncpatch.recipes`` returns what inherits from this;
    ``dataclasses.replace`` changes it."""

    # what it is shown
    resolution: int = setting(64, "side of the training pictures, in pixels")
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
    seed: int = setting(0, "of weights, order, and all that is drawn for a picture")

    # on what machine
    device: Literal["auto", "cuda", "mps", "cpu"] = setting("auto", "where to compute")
    precision: Literal["auto", "bf16", "fp32"] = setting("auto", "of the network's arithmetic; weights are fp32")
    compile: Literal["auto", "on", "off"] = setting("auto", "torch.compile; auto: on a GPU")
    checkpointing: bool = setting(False, "compute activations twice, to save memory")

    # what one sees of it
    log_every: int = setting(50, "steps between lines of the log")
    save_every: int = setting(1000, "steps between checkpoints")
    keep: int = setting(2, "checkpoints kept")
    picture_every: int = setting(2000, "steps between grids of pictures")

    # the network; each kind says how large by default
    width: int = setting(64, "channels at the first scale")
    multipliers: tuple[int, ...] = setting((1, 2, 3, 4), "channels at each scale, in widths")

    shard = False  # no setting but where weights may be spread over the processes

    def __post_init__(self) -> None:
        kinds = types_of(type(self))
        for each in fields(self):
            check(each.name, getattr(self, each.name), kinds[each.name])
        self._hold(
            ("resolution", "width", "steps", "batch", "log_every", "save_every", "keep", "picture_every"),
            lambda value: value >= 1, "be at least 1",
        )  # fmt: skip
        self._hold(("crops", "warmup", "snapshot_every"), lambda value: value >= 0, "not be negative")
        if self.accumulate != "auto" and self.accumulate < 1:
            raise ValueError(f"accumulate must be at least 1, or auto; got {self.accumulate}")
        self._hold(("rate", "clip", "epsilon"), lambda value: value > 0, "be positive")
        self._hold(("decay", "ema"), lambda value: 0 <= value <= 1, "lie in [0, 1]")
        if len(self.betas) != 2:
            raise ValueError(f"betas must be two numbers, got {self.betas}")

    def _hold(self, names: Sequence[str], good: Callable[[Any], bool], said: str) -> None:
        """These fields are as they must be."""
        for name in names:
            if not good(getattr(self, name)):
                raise ValueError(f"{name} must {said}, got {getattr(self, name)}")

    def rate_at(self, step: int) -> float:
        """The learning rate of a step (counted from 0): up over ``warmup``, level, down over the last ``decay``."""
        up = (step + 1) / (self.warmup + 1)
        down = (self.steps - step) / (self.decay * self.steps) if self.decay else 1.0
        return self.rate * min(up, down, 1.0)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        strange = values.keys() - {each.name for each in fields(cls)}
        if strange:
            raise ValueError(f"these settings are those of another kind of network: there is no {min(strange)} here")
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        return cls(**values)

    def changed(self, given: dict[str, str | int | float | bool | None]) -> Self:
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


@dataclass(frozen=True, kw_only=True)
class Recipe(Training):
    """How to train a denoising network."""

    # the network
    blocks: tuple[int, ...] = setting((2, 2, 2, 2), "residual blocks at each scale")
    middle_blocks: int = setting(2, "residual blocks in the middle")
    attention: int = setting(2, "at how many of the lowest scales there is self-attention")
    fourier: int = setting(0, "octaves of finest detail that the network is shown as waves; for likelihood")
    shard: bool = setting(False, "spread the weights over the processes (FSDP2)")

    # what it learns
    autoencoder: str = setting("", "folder of an autoencoder (train-autoencoder), to train on its latents")
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

    def __post_init__(self) -> None:
        super().__post_init__()
        self._hold(("middle_blocks", "attention", "fourier"), lambda value: value >= 0, "not be negative")
        self._hold(("label_dropout", "picture_dropout"), lambda value: 0 <= value <= 1, "lie in [0, 1]")


@dataclass(frozen=True, kw_only=True)
class AutoencoderRecipe(Training):
    """How to train an autoencoder, by the losses of ``train.autoencoder``."""

    # the network
    resolution: int = setting(128, "side of the training pictures, in pixels")
    width: int = setting(64, "channels at full size")
    multipliers: tuple[int, ...] = setting((1, 2, 4), "channels at each scale, in widths; each is half as large")
    blocks: int = setting(2, "residual blocks at each scale")
    latent_channels: int = setting(3, "numbers for each token")
    codes: int = setting(8192, "size of the codebook")

    # what it learns
    holes: str = setting("extrema,square,thin,medium,wide", "kinds of holes in the pictures, at equal shares")
    whole: float = setting(0.5, "share of the pictures that have no hole")
    locality: float = setting(
        5.0, "weight of known tokens being those of the whole picture, whatever the hole; 0 for none"
    )
    perceptual: float = setting(1.0, "weight of LPIPS; 0 for none")
    commitment: float = setting(0.25, "weight of what draws encodings to their codes (beta)")
    adversary: float = setting(0.1, "weight of the discriminator, as a ratio of gradients; 0 for none")
    adversary_start: int = setting(10_000, "steps before there is a discriminator")
    adversary_lead: int = setting(500, "steps more in which it learns alone, before it counts")
    adversary_width: int = setting(64, "channels of the discriminator's first layer")
    betas: tuple[float, ...] = setting((0.5, 0.9), "Adam's two decay rates")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._hold(("blocks", "latent_channels", "codes"), lambda value: value >= 1, "be at least 1")
        weights = ("locality", "perceptual", "commitment", "adversary", "adversary_start", "adversary_lead")
        self._hold(weights, lambda value: value >= 0, "not be negative")
        self._hold(("whole",), lambda value: 0 <= value <= 1, "lie in [0, 1]")
        self._hold(("adversary_width",), lambda value: value >= 8 and value % 8 == 0, "be a multiple of 8")
        factor = 2 ** (len(self.multipliers) - 1)
        self._hold(("resolution",), lambda value: value % factor == 0, f"divide by {factor}")
