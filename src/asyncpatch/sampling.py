"""The sampling loop. There is one: methods differ in their schedule, their step and their denoiser.

    t = schedule.start(z)
    until the schedule is finished:
        x-hat = denoiser(z, t)           unless the schedule moves on without asking
        s     = schedule.next(t, x-hat)
        z, t  = step(z, t, x-hat, s), s

``protocols`` says what each of the three must be able to do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from asyncpatch import checks, steps
from asyncpatch.protocols import Cond, Denoised, Denoiser, Schedule, Step, Visit, check_answer

Generators = torch.Generator | Sequence[torch.Generator] | None


class Ahead:
    """One generator per sample, each asked for the noise of several draws at once. Where thousands of draws are made on
    a GPU, a call for every sample at each of them would take longer than a small network does."""

    def __init__(self, each: Sequence[torch.Generator], draws: int = 16) -> None:
        checks.at_least("draws", draws)
        self.each, self.draws = each, draws
        self._left: list[Tensor] = []

    def __len__(self) -> int:
        return len(self.each)

    def noise(self, like: Tensor) -> Tensor:
        """The next draw, for canvases that are all like this one."""
        if self._left and self._left[0].shape != like.shape:
            raise ValueError(f"noise was drawn ahead for {tuple(self._left[0].shape)}, not for {tuple(like.shape)}")
        if not self._left:
            several = like[:, None].expand(-1, self.draws, *like.shape[1:])
            self._left = list(draw_noise(several, self.each).unbind(1))
        return self._left.pop()


def generators(seeds: Sequence[int], device: torch.device | str = "cpu") -> list[torch.Generator]:
    """One generator per sample. Then a picture depends on its own seed, not on what else is in its batch."""
    return [torch.Generator(device).manual_seed(seed) for seed in seeds]


def draw_noise(like: Tensor, generator: Generators | Ahead = None) -> Tensor:
    """A canvas of standard normal noise with the shape, device and dtype of ``like``.

    With one generator per sample (all of one device), sample i is drawn from generator i alone. Noise is drawn where
    its generator lives and moved: CPU generators give the same picture on every device, at the price of a copy.
    """
    _check_generator(generator, len(like))
    return generator.noise(like) if isinstance(generator, Ahead) else _drawn(like, generator, torch.Tensor.normal_)


def draw_uniform(like: Tensor, generator: Generators = None) -> Tensor:
    """Numbers in [0, 1), as `draw_noise` draws its own."""
    _check_generator(generator, len(like))
    return _drawn(like, generator, torch.Tensor.uniform_)


def _drawn(like: Tensor, generator: Generators, fill: Callable[..., Tensor]) -> Tensor:
    if generator is None or isinstance(generator, torch.Generator):
        source = generator.device if generator is not None else like.device
        return fill(torch.empty(like.shape, device=source, dtype=like.dtype), generator=generator).to(like.device)
    source = generator[0].device if generator else like.device
    drawn = torch.empty(like.shape, device=source, dtype=like.dtype)
    for row, each in zip(drawn, generator, strict=True):
        fill(row, generator=each)
    return drawn.to(like.device)  # all at once: a copy for each row would wait for the device each time


@torch.no_grad()
def sample(
    denoiser: Denoiser,
    schedule: Schedule,
    z: Tensor,
    *,
    step: Step,
    cond: Cond | None = None,
    generator: Generators | Ahead = None,
    callback: Callable[[Visit], object] | None = None,
) -> Tensor:
    """Carry the canvas ``z`` along the schedule and return what it became, [B, C, H, W].

    Args:
        denoiser: any callable ``(z, t, cond) -> Denoised``.
        schedule: which time fields are visited; see ``asyncpatch.schedules``.
        z: the canvas to start from, at the times ``schedule.start(z)``. For a new picture that is noise; to complete
            a picture x it is ``process.diffuse(x, schedule.start(x), noise)``.
        step: how to get from one time field to the next; see ``asyncpatch.steps``.
        cond: what else the denoiser is told, such as a label.
        generator: the randomness of the steps: one, or one per sample (``generators(seeds)``), also ``Ahead``.
        callback: sees every visit (canvas, times, and x-hat as ``visit.out.x``; where the schedule needs no answer
            that may be anything, such as the canvas itself), and stops the loop by returning True; the canvas is then
            returned as it is.

    The canvas is float32 (or float64 if it came so) whatever the denoiser computes in. Nothing in the loop waits
    for the device; whether the result is finite is looked at once, at the end.
    """
    checks.canvas("z", z)
    _check_cond(cond, len(z))
    _check_generator(generator, len(z))
    for make in (steps.ddim, steps.churned_ddim, steps.heun, steps.multistep):
        if step is make:  # type: ignore[comparison-overlap]
            raise TypeError(f"step must be made for a process first: step={make.__name__}(process)")
    if z.dtype not in (torch.float32, torch.float64):
        z = z.float()

    told, needs = cond, getattr(schedule, "needs", None)

    def denoise(z: Tensor, t: Tensor) -> Denoised:
        out = check_answer(denoiser(z, t, told), z)
        return out._replace(x=out.x.to(z.dtype))

    like = z
    needs_none = isinstance(step, steps.Noiseless) and getattr(schedule, "falls", False)

    def noise() -> Tensor:
        return torch.zeros_like(like) if needs_none else draw_noise(like, generator)

    def field(t: Tensor) -> Tensor:
        checks.field("the schedule's time field", t, z)
        return t.expand(z.shape[0], 1, *z.shape[2:])

    t = field(schedule.start(z))
    last: Visit | None = None
    k = 0
    while (ask := schedule.ask(k, t)) is not None:
        wanted = None if needs is None else needs(k, t)
        told = cond if wanted is None else (cond or Cond())._replace(wanted=field(wanted))
        now = Visit(z, t, denoise(z, t) if ask else None)
        if callback is not None and _stops(callback(now)):
            return z
        s = field(schedule.next(k, t, now.out))
        z = step(denoise, now, s, noise, last)
        last, t, k = now, s, k + 1
    _check_result(z)
    return z


def _check_cond(cond: Cond | None, batch: int) -> None:
    if cond is None:
        return
    if not isinstance(cond, Cond):
        raise TypeError(f"cond must be a Cond, such as Cond(label=...), got {type(cond).__name__}")
    for name, value in zip(cond._fields, cond, strict=True):
        if value is not None and (not isinstance(value, Tensor) or value.dim() == 0 or len(value) != batch):
            raise ValueError(
                f"cond.{name} must be a tensor with one row per sample ({batch}), got {checks.shape_of(value)}"
            )


def _check_generator(generator: object, batch: int) -> None:
    if generator is None or isinstance(generator, torch.Generator):
        return
    if not isinstance(generator, Sequence | Ahead):
        raise TypeError(f"generator must be a torch.Generator or a list of them, got {checks.shape_of(generator)}")
    if len(generator) != batch:
        raise ValueError(f"generator must be one, or one per sample ({batch}), got {len(generator)}")


def _stops(said: object) -> bool:
    if said is None or isinstance(said, bool):
        return said is True
    raise TypeError(f"a callback must return True to stop, else None or False; got {type(said).__name__}")


def _check_result(z: Tensor) -> None:
    broken = (~z.isfinite()).flatten(1).any(1)
    if bool(broken.any()):
        raise FloatingPointError(
            f"sampling broke down: NaN or infinity in sample(s) {broken.nonzero().flatten().tolist()} of {len(z)}. "
            "Either the denoiser returned such values (try float32, or less guidance), the canvas or a time held "
            "them, or the schedule lowered a time at a visit where it did not ask the denoiser"
        )
