"""A model as a folder, laid out as a diffusers pipeline: ``unet/``, ``vae/`` where it works on latents, and what it
takes to use it in one JSON file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import diffusers
import torch

from asyncpatch.codecs import PIXELS, Codec, Latents
from asyncpatch.models.autoencoder import PART, Autoencoder
from asyncpatch.models.denoiser import NetworkDenoiser
from asyncpatch.models.uncertainty import UncertaintyHead
from asyncpatch.models.unet import UNet
from asyncpatch.parameterization import Prediction
from asyncpatch.process import PROCESSES, Process

INDEX = "model_index.json"
HEAD = "uncertainty"
"""The part of a folder, and of a pipeline, that says how sure the network is."""
LATENTS = "latents"
"""The place in the index for what ``codecs.Latents.told`` tells."""


@dataclass(frozen=True)
class Model:
    """A network, and what it was trained for."""

    net: UNet
    process: Process
    prediction: Prediction
    resolution: int
    """Pixels across a window."""
    labels: tuple[str, ...] = ()
    head: UncertaintyHead | None = None
    """Says how sure the network is, where it was trained to."""
    codec: Codec = PIXELS
    """What the network's tokens are to pictures."""

    @property
    def tokens(self) -> int:
        """Across a window."""
        return self.resolution // self.codec.factor

    @property
    def denoiser(self) -> NetworkDenoiser:
        return NetworkDenoiser(self.net, self.process, self.prediction)

    @property
    def doubting(self) -> NetworkDenoiser:
        """The denoiser that also says how sure it is, which takes a little longer."""
        if self.head is None:
            raise ValueError("this model has no head that says how sure it is: asyncpatch train-uncertainty makes one")
        return NetworkDenoiser(self.net, self.process, self.prediction, self.head)

    @property
    def process_name(self) -> str:
        return next(name for name, kind in PROCESSES.items() if isinstance(self.process, kind))

    def save(self, folder: Path | str, *, max_shard_size: str = "5GB") -> None:
        """Write the folder. Weights are safetensors, of the network's own precision."""
        folder = Path(folder)
        self.net.save_pretrained(folder / "unet", max_shard_size=max_shard_size)
        if self.head is not None:
            self.head.save_pretrained(folder / HEAD)
        if isinstance(self.codec, Latents):
            assert isinstance(self.codec.coder, Autoencoder)
            self.codec.coder.save(folder, max_shard_size=max_shard_size)
        self.write_index(folder, head=self.head is not None)

    def write_index(self, folder: Path, *, head: bool) -> None:
        """What a pipeline reads first: which parts there are, and how they are used."""
        index: dict[str, object] = {
            "_class_name": "AsyncPatchPipeline",
            "_diffusers_version": diffusers.__version__,
            "unet": [UNet.__module__, UNet.__name__],
            "process": self.process_name,
            "prediction": self.prediction,
            "resolution": self.resolution,
            "labels": list(self.labels),
        }
        if head:
            index[HEAD] = [UncertaintyHead.__module__, UncertaintyHead.__name__]
        if isinstance(self.codec, Latents):
            index |= {PART: [Autoencoder.__module__, Autoencoder.__name__], LATENTS: self.codec.told()}
        temporary = folder / f".writing-{INDEX}"
        temporary.write_text(json.dumps(index, indent=2) + "\n")
        os.replace(temporary, folder / INDEX)

    @classmethod
    def load(cls, folder: Path | str, *, dtype: torch.dtype = torch.float32, head: bool = True) -> Model:
        """Read a folder that ``save`` wrote, with its head if it has one and it is wanted."""
        folder = Path(folder)
        index = index_of(folder)
        if index.get("process") not in PROCESSES:
            raise ValueError(f"{folder / INDEX}: process must be one of {', '.join(PROCESSES)}")
        net = UNet.from_pretrained(folder / "unet", torch_dtype=dtype, use_safetensors=True, low_cpu_mem_usage=False)
        found = None
        if head and any(index.get(HEAD, ())):  # a pipeline without one writes nulls
            found = UncertaintyHead.from_pretrained(
                folder / HEAD, torch_dtype=dtype, use_safetensors=True, low_cpu_mem_usage=False
            )
        process, labels = PROCESSES[index["process"]](), tuple(index["labels"])
        coder = Autoencoder.load(folder, dtype=dtype) if any(index.get(PART, ())) else None
        codec = codec_of(coder, index.get(LATENTS))
        return cls(net, process, index["prediction"], index["resolution"], labels, found, codec)


def index_of(folder: Path) -> dict[str, Any]:
    """What a model folder says of itself."""
    if not (folder / INDEX).is_file():
        raise FileNotFoundError(f"{folder} is no model folder: it has no {INDEX}")
    found: dict[str, Any] = json.loads((folder / INDEX).read_text())
    return found


def codec_of(coder: Autoencoder | None, told: dict[str, Any] | None) -> Codec:
    """Pixels, or the latents of an autoencoder as ``Latents.told`` told them."""
    if coder is None or told is None:
        return PIXELS
    return Latents(coder, tuple(told["mean"]), tuple(told["std"]), told["border"])


def relabelled(net: UNet, old: tuple[str, ...], new: tuple[str, ...]) -> UNet:
    """The network for other classes: a name it knows keeps its embedding, a new one starts as the null class."""
    config = {**net.config, "labels": len(new)}
    made = UNet.from_config(config)
    weights = net.state_dict()
    table = weights["label.weight"]
    rows = [old.index(name) if name in old else len(old) for name in new]
    weights["label.weight"] = table[[*rows, len(old)]]
    made.load_state_dict(weights)
    return made.to(next(net.parameters()).dtype)
