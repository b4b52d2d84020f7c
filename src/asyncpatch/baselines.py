"""Rivals: how models with one time per picture are made to fill holes.

Each is a schedule and a step for the one loop of ``sampling``: ``sample(denoiser, *method, ...)`` in effect, see
``Method.run``. With y the picture, m = 1 where it is known (hole = 1 - m), q(y, s) the picture noised to time s, and
x-hat, eps-hat the denoiser's answer at t:

    (1)  replacement   step as usual, then z_s <- (1-m) z_s + m q(y, s)                        (Score-SDE)
    (2)  RePaint       replacement with ancestral steps; every ``jump`` steps down, the same way up again by adding
                       noise, ``resample`` times in all: 2,410 questions for 250 steps, 10 and 10
    (3)  MCG           g = grad_z ||m (y - x-hat(z))||, for each picture;  z_s <- (1-m) (z_s - weight g) + m q(y, s)
    (4)  DDRM          z_s = alpha x-hat + sigma (sqrt(1-c^2) eps-hat + c n)     where m = 0,   c = 0.85
                       z_s = alpha (b y + (1-b) x-hat) + sigma n                 where m = 1,   b = 1
    (5)  DDNM          z_s = alpha x' + sigma (sqrt(1-e^2) eps-hat + e n),   x' = m y + (1-m) x-hat,   e = 0.85
    (6)  DeqIR         the whole chain (5), with its noise n_k drawn beforehand, as one fixed point over all its states,
                       found by Anderson acceleration: all times are asked about at once, a few times over. Where m = 0
                       a state is the sum of all moves that lead to it, so that a question moves all of them: with
                       h = sigma / alpha,   z_k / alpha_k = x-hat_1 + h_1 (c eps-hat_1 + e n_1)
                                                          + sum_{j=2..k} (c h_j - h_{j-1}) eps-hat_j + e h_j n_j

None of them draws from the conditional law, even with an exact denoiser (tests/test_baselines.py says how far each is
from it); that is what a time per pixel is for.

The last rival needs a network of its own: ``supervised`` shows it what is known, in channels beside its canvas, and it
was trained to fill holes of such kinds (``asyncpatch train --holes``). An exact one does draw from the conditional law.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncpatch import checks
from asyncpatch.guidance import Guided, drop_picture
from asyncpatch.parameterization import from_x
from asyncpatch.process import Process
from asyncpatch.protocols import Ask, Cond, Denoised, Denoiser, Noise, Schedule, Step, Visit
from asyncpatch.sampling import Ahead, Generators, draw_noise, sample
from asyncpatch.schedules import synchronous
from asyncpatch.steps import ddim

_DAMPING = 1e-3
"""Of Anderson acceleration, added to squared residuals: those that are smaller need not be removed."""


@dataclass(frozen=True)
class Method:
    """A way to fill holes: what to give ``sampling.sample``, and what to put around the denoiser before."""

    schedule: Schedule
    step: Step
    around: Callable[[Denoiser], Denoiser] | None = None

    def run(
        self, denoiser: Denoiser, x: Tensor, *, cond: Cond | None = None, generator: Generators | Ahead = None,
        callback: Callable[[Visit], object] | None = None,
    ) -> Tensor:  # fmt: skip
        """The pictures x with their holes filled, from pure noise."""
        z = draw_noise(x, generator)
        denoiser = denoiser if self.around is None else self.around(denoiser)
        return sample(denoiser, self.schedule, z, step=self.step, cond=cond, generator=generator, callback=callback)


@dataclass(frozen=True)
class Visits:
    """A schedule with one time for all tokens, from a list of times; it asks where it goes down, unless ``silent``."""

    times: tuple[float, ...]
    silent: bool = False
    """The step asks for itself."""

    def _field(self, k: int, like: Tensor) -> Tensor:
        return torch.full((len(like), 1, *like.shape[2:]), self.times[k], device=like.device)

    def start(self, z: Tensor, /) -> Tensor:
        return self._field(0, z)

    def ask(self, k: int, t: Tensor, /) -> bool | None:
        if k + 1 == len(self.times):
            return None
        return self.times[k + 1] < self.times[k] and not self.silent

    def next(self, k: int, t: Tensor, out: Denoised | None, /) -> Tensor:
        return self._field(k + 1, t)


def replacement(process: Process, x: Tensor, hole: Tensor, steps: int = 250, *, eta: float = 0.0) -> Method:
    """Equation (1), with DDIM steps."""
    return Method(synchronous(steps), _replaced(process, x, hole, ddim(process, eta=eta)))


def repaint(
    process: Process, x: Tensor, hole: Tensor, steps: int = 250, *, jump: int = 10, resample: int = 10,
) -> Method:  # fmt: skip
    """Equation (2). The known part is noised to the time that is stepped *to*."""
    checks.at_least("steps", steps)
    checks.at_least("jump", jump)
    checks.at_least("resample", resample)
    # as published: levels steps - 1 to 0, of which 0 is the least noisy; it turns at 0, jump, 2 jump, ...
    left = dict.fromkeys(range(0, steps - jump, jump), resample - 1)
    levels, level = list[int](), steps
    while level > 0:
        level -= 1
        levels.append(level)
        if left.get(level, 0) > 0:
            left[level] -= 1
            for _ in range(jump):
                level += 1
                levels.append(level)
    times = Visits(tuple((each + 1) / steps for each in [*levels, -1]))
    return Method(times, _replaced(process, x, hole, ddim(process, eta=1.0)))


def mcg(
    process: Process, x: Tensor, hole: Tensor, steps: int = 250, *, weight: float = 1.0, eta: float = 1.0,
) -> Method:  # fmt: skip
    """Equation (3). The right weight depends on the size of the picture: tune it."""
    _check(x, hole)
    inner, known = ddim(process, eta=eta), (hole <= 0).to(x.dtype)

    def step(denoise: Ask, now: Visit, s: Tensor, noise: Noise, last: Visit | None) -> Tensor:
        with torch.enable_grad():
            z = now.z.detach().requires_grad_()
            out = denoise(z, now.t)
            distance = (known * (x - out.x)).flatten(1).norm(dim=1).sum()
            gradient = torch.autograd.grad(distance, z)[0]
        fresh = noise()  # one canvas does: each token uses it once, known or not
        moved = inner(denoise, now._replace(out=Denoised(out.x.detach())), s, lambda: fresh, last)
        return torch.where(known > 0, process.diffuse(x, s, fresh), moved - weight * gradient)

    return Method(Visits(_even(steps), silent=True), step)


def ddrm(
    process: Process, x: Tensor, hole: Tensor, steps: int = 20, *, eta: float = 0.85, blend: float = 1.0,
) -> Method:  # fmt: skip
    """Equation (4), for pictures that are known without noise."""
    _check(x, hole)
    checks.fraction("eta", eta)
    checks.fraction("blend", blend)

    def step(denoise: Ask, now: Visit, s: Tensor, noise: Noise, last: Visit | None) -> Tensor:
        clean, eps, fresh = *_answer(process, now), noise()
        alpha, sigma = process.alpha(s), process.sigma(s)
        unknown = alpha * clean + sigma * ((1.0 - eta**2) ** 0.5 * eps + eta * fresh)
        known = alpha * (blend * x + (1.0 - blend) * clean) + sigma * fresh
        return torch.where(hole > 0, unknown, known)

    return Method(synchronous(steps), step)


def ddnm(process: Process, x: Tensor, hole: Tensor, steps: int = 100, *, eta: float = 0.85) -> Method:
    """Equation (5). eps-hat is that of the answer before it is corrected."""
    _check(x, hole)
    checks.fraction("eta", eta)

    def step(denoise: Ask, now: Visit, s: Tensor, noise: Noise, last: Visit | None) -> Tensor:
        clean, eps = _answer(process, now)
        return _ddnm(process, torch.where(hole > 0, clean, x), eta, eps, s, noise())

    return Method(synchronous(steps), step)


def deqir(
    process: Process, x: Tensor, hole: Tensor, steps: int = 15, *, eta: float = 0.85, iterations: int = 15,
    memory: int = 5, tolerance: float = 1e-2,
) -> Method:  # fmt: skip
    """Equation (6): one step from noise to the picture, which asks about all ``steps`` times at once.

    With fewer iterations than steps noise may be left where the hole is large.

    It cannot be given a condition: the loop asks under that of its own batch, which is smaller.
    """
    _check(x, hole)
    checks.fraction("eta", eta)
    times = torch.tensor(_even(steps))

    def step(denoise: Ask, now: Visit, s: Tensor, noise: Noise, last: Visit | None) -> Tensor:
        batch = len(now.z)
        fresh = torch.stack([noise() for _ in range(steps)])  # [steps, B, C, H, W], time after time
        t, to = (each.to(now.t).view(-1, 1, 1, 1, 1) for each in (times[:-1], times[1:]))
        asked = t.expand(steps, batch, 1, *now.t.shape[2:]).flatten(0, 1)
        alpha, h_to = process.alpha(to), process.sigma(to) / process.alpha(to)
        h = torch.cat([torch.zeros_like(h_to[:1]), h_to[:-1]])  # the first move is all that leads to its state

        def chain(states: Tensor) -> Tensor:
            """All states from those before them, at once."""
            before = torch.cat([now.z[None], states[:-1]]).flatten(0, 1)
            clean, eps = (
                each.view_as(states) for each in _answer(process, Visit(before, asked, denoise(before, asked)))
            )
            moves = (h_to * (1.0 - eta**2) ** 0.5 - h) * eps + h_to * eta * fresh
            moves[0] += clean[0]
            return torch.where(hole > 0, alpha * moves.cumsum(0), _ddnm(process, x, eta, eps, to, fresh))

        return _anderson(chain, now.z.expand(steps, *now.z.shape), iterations, memory, tolerance)[-1]

    return Method(Visits((1.0, 0.0), silent=True), step)


def supervised(
    process: Process, x: Tensor, hole: Tensor, steps: int = 16, *, eta: float = 0.0, input_guidance: float = 0.0,
) -> Method:  # fmt: skip
    """Ordinary diffusion by a network that is told ``Cond(picture=x, hole=hole)``, pushed away from what it says when
    it is told nothing. What is known comes back about as it was, not exactly."""
    _check(x, hole)

    def around(denoiser: Denoiser) -> Denoiser:
        guided = Guided(denoiser, input_guidance, drop_picture)

        def told(z: Tensor, t: Tensor, cond: Cond | None, /) -> Denoised:
            known = {"picture": x.expand_as(z), "hole": hole.expand(len(z), 1, *z.shape[2:])}
            return guided(z, t, (cond or Cond())._replace(**known))

        return told

    return Method(synchronous(steps), ddim(process, eta=eta), around)


def _anderson(
    function: Callable[[Tensor], Tensor], start: Tensor, iterations: int, memory: int, tolerance: float
) -> Tensor:
    """A fixed point of a function of states [T, B, ...]: Anderson acceleration, of each state by itself."""
    x = start.clone()
    times, batch = x.shape[:2]
    done = torch.zeros(batch, dtype=torch.bool, device=x.device)
    inputs: list[Tensor] = []
    results: list[Tensor] = []
    for _ in range(iterations):
        result = function(x)
        inputs, results = [*inputs, x][-memory:], [*results, result][-memory:]
        several = torch.stack(results, 2)  # [T, B, memory, ...]
        rest = (several - torch.stack(inputs, 2)).flatten(3).double()
        gram = rest @ rest.mT + _DAMPING * torch.eye(len(inputs), device=x.device)
        ones = torch.ones(times, batch, len(inputs), 1, dtype=gram.dtype, device=x.device)
        weight = torch.linalg.solve(gram, ones)
        weight = (weight / weight.sum(2, keepdim=True)).to(x.dtype)
        better = (weight * several.flatten(3)).sum(2).view_as(x)
        x = torch.where(done.view(1, batch, *[1] * (x.dim() - 2)), x, better)
        moved = (result - inputs[-1]).transpose(0, 1).flatten(1).norm(dim=1)
        done = done | (moved <= tolerance * result.transpose(0, 1).flatten(1).norm(dim=1))
        if bool(done.all()):
            break
    return function(x)


def _ddnm(process: Process, clean: Tensor, eta: float, eps: Tensor, s: Tensor, fresh: Tensor) -> Tensor:
    """Equation (5), for x' ``clean``."""
    z: Tensor = process.alpha(s) * clean + process.sigma(s) * ((1.0 - eta**2) ** 0.5 * eps + eta * fresh)
    return z


def _answer(process: Process, now: Visit) -> tuple[Tensor, Tensor]:
    """x-hat and eps-hat."""
    assert now.out is not None
    return now.out.x, from_x(process, "eps", now.out.x, now.z, now.t)


def _replaced(process: Process, x: Tensor, hole: Tensor, step: Step) -> Step:
    """A step, after which what is known is the picture, noised to where the step went: equation (1)."""
    _check(x, hole)

    def replaced(denoise: Ask, now: Visit, s: Tensor, noise: Noise, last: Visit | None) -> Tensor:
        fresh = noise()  # one canvas does: each token uses it once, known or not
        moved = step(denoise, now, s, lambda: fresh, last)
        return torch.where(hole > 0, moved, process.diffuse(x, s, fresh))

    return replaced


def _even(steps: int) -> tuple[float, ...]:
    checks.at_least("steps", steps)
    return tuple((steps - k) / steps for k in range(steps + 1))


def _check(x: Tensor, hole: Tensor) -> None:
    checks.canvas("x", x)
    checks.times("hole", hole, x, wait=True)
    if not bool(((hole == 0) | (hole == 1)).all()):
        raise ValueError("these methods know holes of 0 and 1 alone, got values in between")
