"""How near sets of pictures are to a fixed one."""

from __future__ import annotations

import torch
from torch import Tensor

from asyncpatch.evaluation.cells import Result, spaced
from asyncpatch.metrics import frechet_distance, frechet_error, kernel_distance, precision_and_recall


class AsTheyAre(torch.nn.Module):
    """Features that were computed before, for torchmetrics."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.num_features = number

    def forward(self, features: Tensor) -> Tensor:
        return features


class Likeness:
    """How far sets of pictures are from a fixed one, by their features: [N, d] of the fixed one, [M, d] of others.
    Computed on ``device``, but for the eigenvalues of the Fréchet distance, which are the CPU's."""

    def __init__(self, real: Tensor, device: torch.device | str = "cpu") -> None:
        device = torch.device("cpu") if torch.device(device).type == "mps" else device  # which has no float64
        self.real, self.device, self._given = real.to(device), device, AsTheyAre(real.shape[1])
        self._frechet = frechet_distance(self._given, keep_real=True, alone=True)
        self._frechet.to(device).update(self.real, real=True)

    def frechet(self, made: Tensor) -> float:
        self._frechet.to(self.device).update(made.to(self.device), real=False)
        value = float(self._frechet.cpu().compute())
        self._frechet.reset()
        return value

    def all(self, made: Tensor) -> Result:
        """Fréchet distance, with its error if there are more pictures than features; kernel distance; precision and
        recall."""
        real, made = self.real, made.to(self.device)
        kernel = kernel_distance(min(1000, len(real), len(made)), features=self._given, alone=True)
        kernel.to(self.device).update(real, real=True)
        kernel.update(made, real=False)
        with torch.random.fork_rng():
            torch.manual_seed(0)  # of the subsets
            mean, spread = kernel.compute()
        most = min(len(real), len(made))
        precision, recall = precision_and_recall(real[spaced(len(real), most)], made[spaced(len(made), most)])
        enough = most > real.shape[1]
        return {
            "frechet": self.frechet(made), **({"frechet error": frechet_error(real, made)} if enough else {}),
            "kernel": [float(mean), float(spread)], "precision": precision, "recall": recall,
        }  # fmt: skip
