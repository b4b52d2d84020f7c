"""A lower bound on log p(x), along any path of time fields from clean to noise (paper, theorem 1).

    (1)  log p(x) >= E log p(x | z_0)                                                        reconstruction
                     - KL(q(z_1 | x) || p(z_1))                                              prior
                     - 1/2 int sum_i E ||x_i - xhat_i(z; y)||^2 SNR(y_i) (-dlogsnr(y_i))     diffusion

where the fields y(w), w from 0 to 1, take every token from the highest log-SNR to the lowest, never back. (As printed,
the theorem has the wrong sign; docs/deviations.md.) It is a line integral: for the exact denoiser it has the same value
along every path, and is log p(x); for another one it is less, and differs from path to path.

Tokens that are known (a schedule with tau(0) = 0) stand at time 0 and are conditioned on: the bound is then one on
log p(rest | known).

    (2)  prior            p(z_1) = N(0, alpha^2 + sigma^2) for every token
    (3)  reconstruction   with ``bits``, p(x | z) over the 2^bits levels in proportion to q(z | x), for each number by
                          itself; without, the density N(z / alpha, sigma^2 / alpha^2)

**The estimator.** w is drawn twice in each of calls / 2 strata, with fresh noise and, for random paths, a fresh
environment each time. The clock is such that a token of average pace goes evenly in log-SNR; that of random paths also
has a long tail, for tokens that are slow. Where there is
little noise, xhat is nearly z / alpha and the squared error nearly that of the noise, whose mean is known: (4) takes
the place of SNR ||x_i - xhat_i||^2. That is unbiased, and the two draws of a stratum tell its variance:

    (4)  SNR ||x_i - xhat_i||^2 - c (||eps_i||^2 - channels),      c = (SNR / (SNR + 100))^2
    (5)  diffusion = mean over strata of (a + b) / 2,     error^2 = mean over strata of (a - b)^2 / 4, over their number
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from asyncpatch import checks, environment
from asyncpatch.fields import patch_grid, spread
from asyncpatch.process import Process, check_process
from asyncpatch.protocols import Cond, Denoiser, check_answer
from asyncpatch.sampling import Generators, draw_noise, draw_uniform
from asyncpatch.schedules import OpenLoop, Pace

SPAN = (13.3, -5.0)
"""Log-SNR at the clean and at the noisy end of a path, unless something else is said: what VDM ends up with."""

_DRAWS = 4  # of z_0, for the reconstruction: they cost no network call

Curve = Callable[[Tensor], Tensor]
"""From the clock w, [B, 1, 1, 1] or one for each token, to a field of times [B, 1, H, W], float64, that is smooth in w.
Known tokens stand at 0."""

Uniform = Callable[[Tensor], Tensor]
"""Random numbers in [0, 1) of a tensor's shape, each picture's from its own generator."""


class Path(Protocol):
    """Makes a curve for the pictures x, from the time of the highest log-SNR to that of the lowest."""

    def __call__(self, x: Tensor, process: Process, span: tuple[float, float], uniform: Uniform, /) -> Curve: ...


class ElboTerms(NamedTuple):
    """The bound, term by term, in nats for each picture, [B]."""

    prior: Tensor
    diffusion: Tensor
    reconstruction: Tensor
    error: Tensor
    """Standard error of ``total``."""
    map: Tensor
    """What each token adds to ``total``, [B, 1, H, W]."""
    numbers: Tensor
    """How many numbers (tokens times channels) the bound is on: not those that are known."""

    @property
    def total(self) -> Tensor:
        """The lower bound on log p(x)."""
        return self.prior + self.diffusion + self.reconstruction

    @property
    def bits_per_dim(self) -> Tensor:
        """The bound as a code length: bits for each number, an upper bound."""
        return -self.total / (self.numbers * math.log(2.0))

    @property
    def bits_error(self) -> Tensor:
        """Standard error of ``bits_per_dim``."""
        return self.error / (self.numbers * math.log(2.0))


def synchronous_path() -> Path:
    """All tokens together: the bound of ordinary diffusion models (VDM)."""

    def path(x: Tensor, process: Process, span: tuple[float, float], uniform: Uniform) -> Curve:
        return lambda w: _clock(process, span, w).expand(len(x), 1, *x.shape[2:])

    return path


def random_path(patch: int = 1) -> Path:
    """The theorem's paths: patches of ``patch`` pixels a side, each at its own pace, drawn from Exp(1).

    A patch as large as the picture gives the synchronous path.
    """
    checks.at_least("patch", patch)

    def path(x: Tensor, process: Process, span: tuple[float, float], uniform: Uniform) -> Curve:
        height, width = x.shape[2:]
        rows, columns = patch_grid(height, width, patch)
        if rows * columns == 1:
            return synchronous_path()(x, process, span, uniform)
        low, high = (float(process.time_of(torch.tensor(each, dtype=torch.float64))) for each in span)
        like = torch.empty(len(x), 1, rows, columns, dtype=torch.float64, device=x.device)
        alpha = spread(-torch.log1p(-uniform(like)), patch, height, width)

        def curve(w: Tensor) -> Tensor:
            return environment.fluid(alpha, _auxiliary(w, low / (high - low)), low, high)

        return curve

    return path


def schedule_path(schedule: OpenLoop) -> Path:
    """The way that a schedule goes, backwards: synchronous, inpainting, in an order, or by any map. Its tau is taken as
    a share of the log-SNR, not as a time; so where tokens of a map go together, each at its own pace, the fields are
    not quite those that a sampler would visit.

    Tokens that it holds at 0 are known. One that starts anywhere but at 0 or 1 has no likelihood to speak of, and is
    refused; so is a schedule that goes up, that jumps, or that does not end at 0.
    """
    if not isinstance(schedule, OpenLoop):
        raise TypeError(
            f"a likelihood needs a schedule that is known beforehand, as asyncpatch.schedules makes them; got "
            f"{type(schedule).__name__}"
        )

    checked = False

    def path(x: Tensor, process: Process, span: tuple[float, float], uniform: Uniform) -> Curve:
        nonlocal checked
        shape = (len(x), 1, *x.shape[2:])
        start = schedule.start(x)
        if not checked:  # once, not at every call
            if not bool(((start == 0) | (start == 1)).all()):
                raise ValueError("every token must start at 0 (known) or 1 (to be judged); got times in between")
            if not isinstance(schedule.tau, Pace):  # which goes down steadily, by its formula
                _check_descent(schedule, x)
            checked = True

        def curve(w: Tensor) -> Tensor:
            tau = schedule.tau(1.0 - w).double().expand(shape)
            t = process.time_of(span[0] + (span[1] - span[0]) * tau)
            return torch.where(start > 0, t, 0.0)

        return curve

    return path


def _check_descent(schedule: OpenLoop, x: Tensor, places: int = 512) -> None:
    """Any function of u could go up, jump, or end early; then the integral along its path would miss something."""
    start = before = schedule.start(x)
    fallen = torch.zeros_like(start)
    for k in range(places):
        u = torch.full_like(start, (k + 0.5) / places).requires_grad_()
        with torch.enable_grad():
            tau = schedule.tau(u).expand_as(start)
            slope = torch.autograd.grad(tau.sum(), u)[0] if tau.requires_grad else torch.zeros_like(start)
        if bool((tau > before + 1e-6).any()):
            raise ValueError("a path must never go back, but this schedule raises a time")
        fallen, before = fallen - slope / places, tau.detach()
    if bool((schedule.at(1.0, x) > 1e-6).any()):
        raise ValueError("a path must end clean, but this schedule does not reach 0")
    if bool(((fallen - start).abs() > 0.05).any()):
        raise ValueError("a path must be continuous, but this schedule jumps: give one that goes down smoothly")


@torch.no_grad()
def elbo(
    denoiser: Denoiser,
    x: Tensor,
    *,
    process: Process,
    path: Path,
    calls: int,
    bits: int | None = 8,
    cond: Cond | None = None,
    generator: Generators = None,
    span: tuple[float, float] = SPAN,
    progress: Callable[[int, int], object] | None = None,
) -> ElboTerms:
    """Equation (1) for the pictures x [B, C, H, W] in [-1, 1], estimated with ``calls`` questions to the denoiser.

    Args:
        denoiser: any callable ``(z, t, cond) -> Denoised``.
        path: ``synchronous_path()``, ``random_path(patch)`` or ``schedule_path(schedule)``.
        calls: how often it is asked, an even number; the standard error falls faster than 1 / sqrt(calls) while the
            integrand's shape matters, and like it when noise and random paths are all that is left.
        bits: x holds levels of so many bits, and the bound is on their probability; None: x is continuous, and it is
            on their density.
        generator: one, or one per picture (``generators(seeds)``); with these a picture's bound does not depend on what
            else is in its batch.
        span: log-SNR at the clean and at the noisy end.
        progress: told (done, of) after every call.
    """
    checks.canvas("x", x)
    check_process(process)
    checks.at_least("calls", calls, 2)
    if calls % 2:
        raise ValueError(f"calls must be even, two for each stratum; got {calls}")
    if not span[0] > span[1]:
        raise ValueError(f"span must go from a higher to a lower log-SNR, got {span}")
    if x.device.type == "mps":
        raise ValueError("the bound is computed in float64, which MPS has not: move model and pictures to the CPU")
    if bits is not None:
        _check_levels(x, bits)
    x = x if x.dtype == torch.float64 else x.float()
    size = (len(x), 1, *x.shape[2:])

    def uniform(like: Tensor) -> Tensor:
        return draw_uniform(like, generator)

    clock = torch.empty(len(x), 1, 1, 1, dtype=torch.float64, device=x.device)
    known = path(x, process, span, uniform)(torch.full_like(clock, 0.5)) == 0
    strata = calls // 2
    added = torch.zeros(size, dtype=torch.float64, device=x.device)
    variance = torch.zeros(len(x), dtype=torch.float64, device=x.device)
    for k in range(strata):
        pair = []
        for half in range(2):
            w = (k + uniform(clock)) / strata
            t, rate = _place(path(x, process, span, uniform), process, w, known)
            noise = draw_noise(x, generator)
            z = process.diffuse(x, t.to(x.dtype), noise)
            out = check_answer(denoiser(z, t.float(), cond), z)
            error = (x.double() - out.x.double()).square().sum(1, keepdim=True)
            surplus = (noise.double().square() - 1.0).sum(1, keepdim=True)
            pair.append(torch.where(known, 0.0, _density(error, surplus, process.logsnr(t), rate)))
            if progress is not None:
                progress(2 * k + half + 1, calls)
        added += (pair[0] + pair[1]) / (2 * strata)
        variance += (pair[0] - pair[1]).flatten(1).sum(1).square() / 4 / strata**2
    prior = -_prior(x.double(), span[1]) * ~known
    said = [_reconstruction(x, span[0], bits, draw_noise(x, generator)) * ~known for _ in range(_DRAWS)]
    reconstruction = torch.stack(said).mean(0)
    variance += torch.stack([each.flatten(1).sum(1) for each in said]).var(0) / _DRAWS
    return ElboTerms(
        prior=prior.flatten(1).sum(1),
        diffusion=-added.flatten(1).sum(1),
        reconstruction=reconstruction.flatten(1).sum(1),
        error=variance.sqrt(),
        map=prior - added + reconstruction,
        numbers=x.shape[1] * (~known).flatten(1).sum(1).double(),
    )


def _clock(process: Process, span: tuple[float, float], w: Tensor) -> Tensor:
    """The time of a token that goes evenly in log-SNR."""
    return process.time_of(span[0] + (span[1] - span[0]) * w)


def _auxiliary(w: Tensor, first: float) -> Tensor:
    """The clock of a random environment: its auxiliary time sigma in [0, inf).

    It is spent in proportion to 1 / (sigma + first) up to 1, where most tokens become noisy, evenly in log-SNR from
    ``first`` on; and to sigma^(-3/2) beyond, where some are still to come. (A token of pace alpha becomes noisy until
    sigma is a few times 1 / alpha. With a tail like sigma^-2 the estimate would have an infinite variance, with an
    exponential one it would miss the slow ones and come out too high.)
    """
    spread = math.log((1.0 + first) / first)
    share = spread / (spread + 2.0)  # of the clock, below 1
    below = first * torch.expm1(spread * (w / share).clamp(max=1.0))
    beyond = (1.0 - ((w - share) / (1.0 - share)).clamp(min=0.0)) ** -2.0
    return torch.where(w < share, below, beyond)


def _place(curve: Curve, process: Process, w: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """The times at w, rounded as the denoiser will see them, and how fast the log-SNR falls there, -dlogsnr/dw."""
    own = w.expand_as(known).clone().requires_grad_()  # a clock for each token, so that each has its own derivative
    with torch.enable_grad():
        t = curve(own)
        logsnr = process.logsnr(torch.where(known, 0.5, t))
        rate = torch.autograd.grad(logsnr.sum(), own)[0]
    return t.detach().float().double(), -rate


def _density(error: Tensor, surplus: Tensor, logsnr: Tensor, rate: Tensor) -> Tensor:
    """What a token adds to the diffusion term per unit of w, equations (1) and (4)."""
    snr = logsnr.exp()
    return 0.5 * rate * (snr * error - (snr / (snr + 100.0)).square() * surplus)


def _prior(x: Tensor, logsnr: float) -> Tensor:
    """KL(q(z_1 | x) || p(z_1)) of each token, equation (2), [B, 1, H, W]."""
    signal = 1.0 / (1.0 + math.exp(-logsnr))  # of a variance of 1 in all
    noise = 1.0 / (1.0 + math.exp(logsnr))
    return 0.5 * (noise + signal * x.square() - 1.0 - math.log(noise)).sum(1, keepdim=True)


def _reconstruction(x: Tensor, logsnr: float, bits: int | None, noise: Tensor) -> Tensor:
    """log p(x | z_0) of each token, equation (3), [B, 1, H, W]."""
    scale = math.exp(-0.5 * logsnr)  # sigma / alpha
    x, noise = x.double(), noise.double()
    if bits is None:  # the squared noise at its mean, 1
        return torch.full_like(x, -0.5 * math.log(2 * math.pi * scale**2) - 0.5).sum(1, keepdim=True)
    step = 2.0 / (2**bits - 1)
    seen = x + scale * noise  # z_0 / alpha
    nearest = ((seen + 1.0) / step).round()
    reach = min(2**bits, math.ceil(10.0 * scale / step) + 1)
    total = torch.full_like(x, -torch.inf)
    for offset in range(-reach, reach + 1):
        level = nearest + offset
        there = (level >= 0) & (level < 2**bits)
        term = -0.5 * ((seen - (level * step - 1.0)) / scale).square()
        total = torch.where(there, torch.logaddexp(total, term), total)
    return (-0.5 * noise.square() - total).sum(1, keepdim=True)


def _check_levels(x: Tensor, bits: int) -> None:
    checks.at_least("bits", bits)
    level = (x.double() + 1.0) * ((2**bits - 1) / 2)
    rounding = max(1e-3, 2**bits * torch.finfo(x.dtype).eps)
    if bool(((level - level.round()).abs() > rounding).any()) or bool((x.abs() > 1.0 + 1e-6).any()):
        raise ValueError(
            f"x must hold levels of {bits} bits, 2 k / {2**bits - 1} - 1 for whole k; of continuous data say bits=None"
        )
