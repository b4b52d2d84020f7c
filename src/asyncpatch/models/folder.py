"""A model as a folder, laid out as a diffusers pipeline: ``unet/``, and what it takes to use it in one JSON file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import diffusers
import torch

from asyncpatch.models.denoiser import NetworkDenoiser
from asyncpatch.models.unet import UNet
from asyncpatch.parameterization import Prediction
from asyncpatch.process import PROCESSES, Process

INDEX = "model_index.json"


@dataclass(frozen=True)
class Model:
    """A network, and what it was trained for."""

    net: UNet
    process: Process
    prediction: Prediction
    resolution: int
    labels: tuple[str, ...] = ()

    @property
    def denoiser(self) -> NetworkDenoiser:
        return NetworkDenoiser(self.net, self.process, self.prediction)

    @property
    def process_name(self) -> str:
        return next(name for name, kind in PROCESSES.items() if isinstance(self.process, kind))

    def save(self, folder: Path | str, *, max_shard_size: str = "5GB") -> None:
        """Write the folder. Weights are safetensors, of the network's own precision."""
        folder = Path(folder)
        self.net.save_pretrained(folder / "unet", max_shard_size=max_shard_size)
        index = {
            "_class_name": "AsyncPatchPipeline",
            "_diffusers_version": diffusers.__version__,
            "unet": [UNet.__module__, UNet.__name__],
            "process": self.process_name,
            "prediction": self.prediction,
            "resolution": self.resolution,
            "labels": list(self.labels),
        }
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path | str, *, dtype: torch.dtype = torch.float32) -> Model:
        """Read a folder that ``save`` wrote."""
        folder = Path(folder)
        if not (folder / INDEX).is_file():
            raise FileNotFoundError(f"{folder} is no model folder: it has no {INDEX}")
        index = json.loads((folder / INDEX).read_text())
        if index.get("process") not in PROCESSES:
            raise ValueError(f"{folder / INDEX}: process must be one of {', '.join(PROCESSES)}")
        net = UNet.from_pretrained(folder / "unet", torch_dtype=dtype, use_safetensors=True, low_cpu_mem_usage=False)
        return cls(net, PROCESSES[index["process"]](), index["prediction"], index["resolution"], tuple(index["labels"]))


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
