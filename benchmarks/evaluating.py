"""What the benchmarks that evaluate models have in common."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from asyncpatch.data.store import Store, open_split
from asyncpatch.evaluation import Evaluation
from asyncpatch.metrics import LPIPS, lpips_file
from asyncpatch.pipelines import AsyncPatchPipeline

SET = "held out"
"""What the set of held-out pictures is called."""


def opened(model: Path, folder: Path, given: argparse.Namespace) -> Evaluation:
    """An evaluation of a model on all of ``given.data``, into a folder; with ``given.quick`` of whatever there is."""
    pipeline = AsyncPatchPipeline.from_pretrained(model).prepare(compiled=torch.cuda.is_available())
    side = pipeline.model.resolution
    held, training = (open_split(given.data, split, side, given.cache) for split in ("validation", "train"))
    if training is None or (held is None and not given.quick):
        raise ValueError(f"{', '.join(given.data)} needs a training and a validation split")
    weights = given.lpips or lpips_file()
    if weights is None and not given.quick:
        raise ValueError("LPIPS needs its weights: --lpips FILE, or $ASYNCPATCH_LPIPS")
    lpips = None if weights is None else LPIPS.load(weights).to(pipeline.unet.device)
    sets = {SET: held if held is not None else training}
    return Evaluation(pipeline, folder, sets, training, lpips, 40 if given.quick else 20_000)


def pictures(store: Store, which: list[int], device: torch.device) -> Tensor:
    """Those of a set, [N, 3, H, W] in [-1, 1]."""
    return torch.from_numpy(store.pictures[which].copy()).permute(0, 3, 1, 2).to(device).float() / 127.5 - 1.0


def line(*texts: str) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(texts)} |"
