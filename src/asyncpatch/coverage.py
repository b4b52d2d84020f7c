"""Coverage: how often training sees a state close to those that a schedule will visit.

The paper names three properties that make a distribution of time fields good: the scale over which times are
shared, the mean of the field, and its spread. Here they are measured from where a network stands, at one token. A
token's *circumstances* are three numbers:

    (1)  its own time,   the mean time around it,   the mean time of the whole picture

where "around it" is a square window with a quarter of the picture's longer side. The coverage of a token is the
share of all training tokens whose circumstances differ from its own by at most ``TOLERANCE`` in each of the three.
The coverage of a state is the mean over the tokens that are still to be denoised. As a yardstick: a sampler that
trains on exactly the states of ordinary generation covers them at about 0.25 (five levels of 0.05).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from asyncpatch import checks, fields
from asyncpatch.schedules import OpenLoop, autoregressive, inpainting, synchronous
from asyncpatch.time_sampling import TimeSampler

TOLERANCE = 0.1
_LEVELS = 21  # circumstances are rounded to twentieths,
_REACH = 2  # and compared up to two twentieths


def circumstances(t: Tensor) -> Tensor:
    """Equation (1) for every token of time fields [B, 1, H, W], as [B, 3, H, W]."""
    checks.field("t", t)
    height, width = t.shape[2:]
    reach = max(height, width) // 8
    around = functional.avg_pool2d(t, 2 * reach + 1, stride=1, padding=reach, count_include_pad=False)
    return torch.cat([t, around, t.mean((2, 3), keepdim=True).expand_as(t)], 1)


@dataclass(frozen=True)
class Seen:
    """The circumstances that training shows a network, as a table of probabilities."""

    close: Tensor
    """Share of the training tokens that are close to each cell of the table, [LEVELS, LEVELS, LEVELS]."""
    mean_times: Tensor
    """Mean time of each field drawn."""
    examples: Tensor
    """A few of the fields, [N, 1, H, W]."""

    def __call__(self, t: Tensor) -> Tensor:
        """The coverage of every token of the time fields t, [B, 1, H, W]."""
        return self.close.flatten()[_cell(t)].view(t.shape)


def observe(
    sampler: TimeSampler, height: int, width: int, *, count: int = 4096, generator: torch.Generator | None = None
) -> Seen:
    """What a network trained on ``count`` fields of this sampler sees."""
    checks.at_least("count", count, 9)
    table = torch.zeros(_LEVELS**3, dtype=torch.float64)
    means, examples = [], None
    for first in range(0, count, 512):
        t = sampler.sample(min(512, count - first), height, width, generator=generator, device="cpu")
        table += torch.bincount(_cell(t), minlength=_LEVELS**3)
        means.append(t.mean((1, 2, 3)))
        examples = t[:9] if examples is None else examples
    assert examples is not None
    share = (table / table.sum()).view(1, 1, _LEVELS, _LEVELS, _LEVELS)
    close = functional.avg_pool3d(share, 2 * _REACH + 1, stride=1, padding=_REACH, divisor_override=1)
    return Seen(close[0, 0], torch.cat(means), examples)


def along(seen: Seen, schedule: OpenLoop, height: int, width: int, *, points: int = 33) -> Tensor:
    """Coverage of the states from u = 0 to just short of 1 (mean over the tokens still to be denoised), [points]."""
    canvas = torch.empty(1, 1, height, width)
    values = []
    for k in range(points):
        t = schedule.at(k / points, canvas)
        active = t > 0
        values.append(seen(t)[active].mean() if bool(active.any()) else torch.tensor(torch.nan, dtype=torch.float64))
    return torch.stack(values)


def standard_schedules(height: int, width: int) -> dict[str, OpenLoop]:
    """What such models are used for: generation, four sizes of hole, and two orders."""

    def hole(share: float) -> OpenLoop:
        """A square in the middle that covers this share of the picture."""
        tall, wide = (max(1, round(side * share**0.5)) for side in (height, width))
        field = torch.zeros(1, 1, height, width)
        top, left = (height - tall) // 2, (width - wide) // 2
        field[..., top : top + tall, left : left + wide] = 1
        return inpainting(field, 32)

    half = torch.zeros(1, 1, height, width)
    half[..., width // 2 :] = 1
    patch = max(1, max(height, width) // 8)
    return {
        "generation": synchronous(32),
        "hole of 75 %": hole(0.75),
        "right half": inpainting(half, 32),
        "hole of 25 %": hole(0.25),
        "hole of 5 %": hole(0.05),
        "raster order": autoregressive(fields.raster_order(height, width, patch), 4),
        "random order": autoregressive(
            fields.random_order(height, width, patch, generator=torch.Generator().manual_seed(0)), 4
        ),
    }


@dataclass(frozen=True)
class Report:
    """Coverage of each schedule's states (by name) under each sampler (by name)."""

    seen: dict[str, Seen]
    coverage: dict[str, dict[str, Tensor]]
    """coverage[sampler][schedule], [points] from u = 0 on."""

    def table(self) -> str:
        """Markdown: for each sampler and schedule the lowest coverage along the schedule, and the mean."""
        schedules = list(next(iter(self.coverage.values())))
        lines = ["| sampler | " + " | ".join(schedules) + " |", "|---|" + "---|" * len(schedules)]
        for name, row in self.coverage.items():
            known = (values[~values.isnan()] for values in row.values())  # NaN: nothing is left to denoise
            cells = (f"{float(v.min()):.0g} ({float(v.mean()):.3f})" if len(v) else "" for v in known)
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        return "\n".join(lines)

    def plot(self, path: str | Path) -> None:
        """The paper's figure of sampled fields and of their mean, and below it the coverage along each schedule."""
        try:
            from matplotlib import colormaps
            from matplotlib.figure import Figure
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError("plots need matplotlib: pip install 'asyncpatch[plots]'") from error

        figure = Figure(figsize=(2.9 * len(self.seen), 8.4), layout="constrained")
        axes = figure.subplots(3, len(self.seen), squeeze=False, height_ratios=(3, 2, 3))
        for column, (name, seen) in enumerate(self.seen.items()):
            mosaic, histogram, lines = axes[:, column]
            tiles = functional.pad(seen.examples[:, 0], (1, 1, 1, 1), value=torch.nan)
            grid = torch.cat([torch.cat(list(tiles[first : first + 3]), 1) for first in range(0, len(tiles), 3)], 0)
            mosaic.imshow(grid.numpy(), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
            mosaic.set_title(name)
            mosaic.set_axis_off()
            histogram.hist(seen.mean_times.numpy(), bins=40, range=(0, 1), density=True, color="0.4")
            histogram.set_xlabel("mean time of a field")
            histogram.set_yticks([])
            for index, (schedule, values) in enumerate(self.coverage[name].items()):
                u = torch.arange(len(values)) / len(values)
                color = colormaps["tab10"](index)
                lines.semilogy(u.numpy(), values.clamp_min(1e-6).numpy(), label=schedule, color=color)
            lines.set_ylim(0.7e-6, 1)
            lines.set_xlabel("u along the schedule")
        axes[0, 0].text(
            -0.08, 0.5, "nine fields\n(white: clean)", transform=axes[0, 0].transAxes, ha="right", va="center"
        )
        axes[1, 0].set_ylabel("density")
        axes[2, 0].set_ylabel("coverage (at least 1e-6)")
        handles, labels = axes[2, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, dpi=110)


def report(
    samplers: Mapping[str, TimeSampler],
    height: int = 64,
    width: int = 64,
    *,
    schedules: Mapping[str, OpenLoop] | None = None,
    count: int = 4096,
    seed: int = 0,
) -> Report:
    """Coverage of the schedules (by default the ``standard_schedules``) under each sampler."""
    if not samplers:
        raise ValueError("samplers must name at least one sampler, got none")
    schedules = standard_schedules(height, width) if schedules is None else schedules
    seen = {
        name: observe(sampler, height, width, count=count, generator=torch.Generator().manual_seed(seed))
        for name, sampler in samplers.items()
    }
    coverage = {
        name: {label: along(each, schedule, height, width) for label, schedule in schedules.items()}
        for name, each in seen.items()
    }
    return Report(seen, coverage)


def _cell(t: Tensor) -> Tensor:
    """The number of each token's cell in the table, flattened over all tokens."""
    level = (circumstances(t) * (_LEVELS - 1)).round().long().clamp(0, _LEVELS - 1)
    return ((level[:, 0] * _LEVELS + level[:, 1]) * _LEVELS + level[:, 2]).flatten()
