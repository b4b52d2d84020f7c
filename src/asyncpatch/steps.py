"""Steps: from the times t to the times s, token by token.

With x-hat the denoiser's answer at (z, t), eps-hat = (z - alpha(t) x-hat) / sigma(t), n fresh noise, and

    (1)  r = alpha(t) sigma(s) / (alpha(s) sigma(t))            0 <= r < 1 for s < t

a DDIM step leaves a share ``std`` of the noise at s to chance:

    (2)  z_s = alpha(s) x-hat + sqrt(sigma(s)^2 - std^2) eps-hat + std n

    (3)  ddim(eta):             std = eta sigma(s) sqrt(1 - r^2)                  eta = 1 is ancestral sampling
    (4)  churned_ddim(churn):   std = sigma(s) sqrt(1 - (churn r + 1 - churn)^2)  the paper's "stochastic coefficient"

    (5)  heun: the probability-flow ODE, second order, in rectified-flow coordinates (which any process has:
         y = z / (alpha + sigma), h = sigma / (alpha + sigma), dy/dh = (y - x-hat) / h).

    (6)  multistep: the same equation, solved exactly for an x-hat that goes on as it went from the last question to
         this one, in a straight line of slope c = (x-hat - x-hat') / (h - h'); with one question a step, second order:

             y_s = u y + (1 - u) x-hat - c h (u log u + 1 - u),    u = h(s) / h(t)

         c is 0 for a token that did not move before, and for its last step, where a line would be guesswork; h' - h
         counts as at least (h - h(s)) / 1.5, so that no line is continued far from a short beginning.

These hold where s < t. Where s = t a token comes back bit for bit, and where s > t it is noised forward, in every step.
A step that draws noise draws one canvas of it, for all tokens, so that nothing has to be looked at first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from asyncpatch import checks
from asyncpatch.parameterization import from_x
from asyncpatch.process import Process, check_process, divide
from asyncpatch.protocols import Ask, Noise, Step, Visit

_STRETCH = 1.5
"""How many times as far as it was seen a line may be continued: a token may have begun just before a visit."""


@dataclass(frozen=True)
class Noiseless:
    """A step that needs noise only where a time rises. Under a schedule that never raises one the loop draws none: that
    of generators on the CPU takes long beside a network on a GPU."""

    step: Step

    def __call__(self, denoise: Ask, now: Visit, s: Tensor, noise: Noise, last: Visit | None, /) -> Tensor:
        return self.step(denoise, now, s, noise, last)


def ddim(process: Process, *, eta: float = 0.0) -> Step:
    """Equations (2) and (3). ``eta`` 0 is deterministic, 1 is ancestral sampling (DDPM)."""
    checks.fraction("eta", eta)
    step = _ddim(process, lambda r: eta * (1.0 - r.square()).clamp_min(0.0).sqrt())
    return step if eta else Noiseless(step)


def churned_ddim(process: Process, *, churn: float = 0.25) -> Step:
    """Equations (2) and (4): the "stochastic coefficient" of the paper, which is not eta (0.25 is near eta = 0.5)."""
    checks.fraction("churn", churn)
    return _ddim(process, lambda r: (1.0 - (churn * r + 1.0 - churn).square()).clamp_min(0.0).sqrt())


def _ddim(process: Process, share: Callable[[Tensor], Tensor]) -> Step:
    """Equation (2), with std = share(r) sigma(s)."""
    check_process(process)

    def step(denoise: Ask, now: Visit, s: Tensor, noise: Noise, last: Visit | None, /) -> Tensor:
        z, t, out = now
        if out is None:
            return _unasked(process, now, s, noise)
        alpha_s, sigma_s = process.alpha(s), process.sigma(s)
        r = divide(process.alpha(t) * sigma_s, alpha_s * process.sigma(t)).clamp_max(1.0)  # equation (1)
        random = share(r)
        eps = from_x(process, "eps", out.x, z, t)
        n = noise()
        down = alpha_s * out.x + sigma_s * ((1.0 - random.square()).clamp_min(0.0).sqrt() * eps + random * n)
        return torch.where(s < t, down, process.transition(z, t, s, n))

    return step


def _flow(process: Process, t: Tensor) -> tuple[Tensor, Tensor]:
    """The coordinates of equation (5): the scale of y, and h."""
    alpha, sigma = process.alpha(t), process.sigma(t)
    return alpha + sigma, sigma / (alpha + sigma)


def multistep(process: Process) -> Step:
    """Equation (6): as many questions as DDIM, and better answers from few of them."""
    check_process(process)

    def step(denoise: Ask, now: Visit, s: Tensor, noise: Noise, last: Visit | None, /) -> Tensor:
        z, t, out = now
        if out is None:
            return _unasked(process, now, s, noise)
        (scale_t, h_t), (scale_s, h_s) = (_flow(process, time) for time in (t, s))
        u = divide(h_s, h_t)
        down = u * z / scale_t + (1.0 - u) * out.x
        if last is not None and last.out is not None:
            gap = torch.maximum(_flow(process, last.t)[1] - h_t, (h_t - h_s) / _STRETCH)
            slope = divide(last.out.x - out.x, gap)
            bend = h_t * (torch.xlogy(u, u) + 1.0 - u)
            down = down - torch.where((last.t > t) & (s > 0), slope * bend, 0.0)
        return torch.where(s < t, scale_s * down, process.transition(z, t, s, noise()))

    return Noiseless(step)


def heun(process: Process) -> Step:
    """Equation (5). Asks twice per step: at t, and again where the first answer leads.

    At s = 0 the slope (y - x-hat) / h is not determined. A token that arrives there is asked half way instead (the
    midpoint rule), so that the second call is never wasted and the order is two for every token.
    """
    check_process(process)

    def step(denoise: Ask, now: Visit, s: Tensor, noise: Noise, last: Visit | None, /) -> Tensor:
        z, t, out = now
        if out is None:
            return _unasked(process, now, s, noise)
        still = process.transition(z, t, s, noise())  # held or noised: what tokens with s >= t become
        final = s <= 0
        q = torch.where((s < t) & final, 0.5 * t, s)  # where the second question is asked
        (scale_t, h_t), (scale_q, h_q), (scale_s, h_s) = (_flow(process, time) for time in (t, q, s))
        y = z / scale_t
        slope = divide(y - out.x, h_t)
        z_q = torch.where(s < t, scale_q * (y + (h_q - h_t) * slope), still)
        slope_q = divide(z_q / scale_q - denoise(z_q, q).x, h_q)
        slope = torch.where(final, slope_q, 0.5 * (slope + slope_q))
        return torch.where(s < t, scale_s * (y + (h_s - h_t) * slope), still)

    return Noiseless(step)


def _unasked(process: Process, now: Visit, s: Tensor, noise: Noise) -> Tensor:
    """A move without an answer can hold or add noise, not denoise: s < t gives NaN, which the loop reports."""
    return torch.where(s < now.t, torch.nan, process.transition(now.z, now.t, s, noise()))
