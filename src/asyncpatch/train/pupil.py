"""A network under Adam, in one process or in several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from asyncpatch.train.config import Training
from asyncpatch.train.sharded import fill

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Pupil:
    """A network's weights and Adam's numbers for them."""

    def __init__(self, recipe: Training, net: Any, accelerator: Accelerator) -> None:
        self.recipe, self.accelerator = recipe, accelerator
        self.names = [name for name, _ in net.named_parameters()]
        adam = torch.optim.Adam(
            net.parameters(), recipe.rate, betas=(recipe.betas[0], recipe.betas[1]), eps=recipe.epsilon,
            fused=accelerator.device.type == "cuda",
        )  # fmt: skip
        self.net, self.adam = accelerator.prepare(net, adam)
        self.parameters = list(self.bare.parameters())
        self.steps = 0

    @property
    def bare(self) -> Any:
        """The network as it is inside what accelerate made of it."""
        return self.accelerator.unwrap_model(self.net)

    @property
    def named(self) -> list[tuple[str, Tensor]]:
        return list(zip(self.names, self.parameters, strict=True))

    def advance(self, rate: float) -> Tensor:
        """One step of Adam along the gradients, which are then gone; returns their norm before it was clipped."""
        for group in self.adam.param_groups:
            group["lr"] = rate
        norm = self.accelerator.clip_grad_norm_(self.net.parameters(), self.recipe.clip)
        self.adam.step()
        self.forget()
        self.steps += 1
        whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return whole

    def forget(self) -> None:
        """No gradients."""
        self.adam.zero_grad(set_to_none=True)

    def state(self) -> dict[str, Tensor]:
        """Weights, buffers and Adam's numbers: what this process has of them."""
        found = {f"weights/{name}": p for name, p in self.named}
        found |= {f"buffers/{name}": value for name, value in self._buffers()}
        if self.steps:
            found |= {f"adam/{key}/{name}": self.adam.state[p][key] for name, p in self.named for key in _MOMENTS}
        return found

    def restore(self, tensor: Callable[[str], Tensor], steps: int) -> None:
        """Take up a state after that many steps of Adam, one tensor after the other."""
        self.steps = steps
        counter = torch.tensor(float(steps))
        for name, p in self.named:
            fill(p, tensor(f"weights/{name}"))
            if not steps:
                continue
            state = self.adam.state[p]
            state["step"] = counter.to(p.device) if p.device.type == "cuda" else counter.clone()
            for key in _MOMENTS:
                state[key] = torch.zeros_like(p)
                fill(state[key], tensor(f"adam/{key}/{name}"))
        for name, value in self._buffers():
            fill(value, tensor(f"buffers/{name}"))

    def _buffers(self) -> list[tuple[str, Tensor]]:
        kept = self.bare.state_dict().keys()
        return [(name, value) for name, value in self.bare.named_buffers() if name in kept]
