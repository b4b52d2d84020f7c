"""How pictures are made from a model: what the pipeline's methods and the command line have in common."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from asyncpatch.options import check, setting, types_of

Solver = Literal["ddim", "multistep", "heun"]

SYNCHRONOUS, LOOK_AHEAD, PAINTED = "synchronous", "lookahead", "painted"
"""All pixels together; so, with a look at what comes; and in the order of a picture that was given as one."""

LABEL_GUIDANCE = 1.0
"""Class guidance of new pictures of a label, unless something else is said."""

INPUT_GUIDANCE = 1.0
"""Input guidance where a part of the picture is known, unless something else is said."""


QUALITIES: dict[str, tuple[dict[str, Any], str]] = {
    "fast": ({"steps": 8}, "a first look"),
    "balanced": ({"steps": 16}, "the usual"),
    "best": ({"steps": 32}, "twice the time"),
}
"""Settings that go by one word, and what there is to say of each (docs/adaptive.md has the figures)."""

STEPS_BY = ("quality", "calls")
"""What may be given in place of steps."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a picture is sampled."""

    steps: int = setting(
        16, "from noise to picture; each asks the network once, twice as often for each guidance, heun and lookahead"
    )
    solver: Solver = setting("ddim", "what a step makes of its answer (ddim), the last two (multistep), or of two "
                             "that it asks for (heun)")  # fmt: skip
    eta: float = setting(0.0, "randomness of DDIM's steps: 0 is none, 1 ancestral sampling")
    class_guidance: float = setting(0.0, "push towards the label; 0 is off")
    input_guidance: float = setting(0.0, "push towards what the picture shows; 0 is off")
    refine: float = setting(0.5, "time from which large fills are refined: more invents more detail")
    schedule: str = setting(SYNCHRONOUS, "synchronous, raster or spiral (or raster:16, in patches of 16 pixels), a "
                            "picture file (dark comes first); paced, dual, sequential or lookahead (what is sure "
                            "leads; the model needs a head that says so)")  # fmt: skip
    pace: float = setting(0.5, "where there is an order, the share of the steps that each pixel takes for itself")
    batch: int = setting(64, "windows that the network sees at a time (fewer where memory is short)")

    def __post_init__(self) -> None:
        kinds = types_of(type(self))
        for each in fields(self):
            check(each.name, getattr(self, each.name), kinds[each.name])
        for name in ("steps", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("eta", "refine"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], got {getattr(self, name)}")
        if not 0 < self.pace <= 1:
            raise ValueError(f"pace must lie in (0, 1], got {self.pace}")
        if self.eta and self.solver != "ddim":
            raise ValueError(f"eta is DDIM's, and the solver {self.solver}: give solver ddim with it")
        for name in ("class_guidance", "input_guidance"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or more, and finite, got {getattr(self, name)}")

    @classmethod
    def of(cls, given: dict[str, Any]) -> Settings:
        """From keyword arguments; an unknown one is named. In place of steps there may be ``quality``, a word of
        QUALITIES, or ``calls``: as many steps as these questions to the network do for."""
        known = [each.name for each in fields(cls)]
        if given.get("calls") is not None:
            check("calls", given["calls"], int)
        for name in given:
            if name not in (*known, *STEPS_BY):
                raise TypeError(f"unknown setting {name!r}; there are {', '.join(known)}, and {' and '.join(STEPS_BY)}")
        given = dict(given)
        quality, calls = (given.pop(name, None) for name in STEPS_BY)
        if calls is None:
            return cls(**given) if quality is None else cls(**{**settings_of(quality), **given})
        if quality is not None or "steps" in given:
            raise ValueError("calls say how many steps there are: leave out steps and quality")
        made = cls(**given)
        if calls < made.questions:
            raise ValueError(f"calls must be at least {made.questions}, of one step with these settings; got {calls}")
        return replace(made, steps=calls // made.questions)

    @property
    def questions(self) -> int:
        """How often the network is asked for a step."""
        twice = (self.class_guidance > 0, self.input_guidance > 0, self.solver == "heun", self.schedule == LOOK_AHEAD)
        return int(2 ** sum(twice))


def settings_of(quality: str) -> dict[str, Any]:
    """What a word of QUALITIES stands for."""
    if not isinstance(quality, str) or quality not in QUALITIES:
        raise ValueError(f"quality must be {', '.join(QUALITIES)}; got {quality!r}")
    return QUALITIES[quality][0]


def solver_for_new(eta: float, schedule: str) -> Solver:
    """How new pictures are made, unless something else is said. Multistep draws no noise; and in an order, with fewer
    steps for each pixel, it may speckle."""
    together = schedule == SYNCHRONOUS or schedule.partition(":")[0] == "paced"
    return "multistep" if together and not eta else "ddim"
