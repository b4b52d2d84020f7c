"""Which model serves which picture. Models stand on a shelf, and are read when they are first wanted.

Unless one is named, it is chosen

    (1)  among those that know the label, and say how sure they are where the schedule asks for it;
    (2)  for its window: the one for which the picture is reduced least before a window sees across its holes
         (a texture grows ring by ring, whatever the window);
    (3)  and, of equals, for its place on the shelf.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from asyncpatch.models.folder import HEAD, index_of
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.plans import Plan, doubts
from asyncpatch.regions import boxes, halvings
from asyncpatch.shipped import shipped_models


class About(NamedTuple):
    """What can be said of a model before it is read."""

    resolution: int
    labels: tuple[str, ...]
    says_how_sure: bool

    def knows(self, label: str) -> bool:
        return label.lower() in (each.lower() for each in self.labels)


class Chosen(NamedTuple):
    """A model, and what it is to do."""

    name: str
    pipeline: AsyncPatchPipeline
    plan: Plan


class Shelf:
    """Models by name, the usual one first. ``read`` makes a pipeline of a folder."""

    def __init__(self, folders: Mapping[str, Path], read: Callable[[Path], AsyncPatchPipeline]) -> None:
        if not folders:
            raise ValueError("there is no model on the shelf")
        self.about = {name: _about(folder) for name, folder in folders.items()}
        self._folders, self._read = dict(folders), read
        self._open: dict[str, AsyncPatchPipeline] = {}
        self._reading = threading.Lock()

    def __getitem__(self, name: str) -> AsyncPatchPipeline:
        if name not in self._folders:
            raise ValueError(f"there is no model {name!r} here, only {', '.join(self._folders)}")
        with self._reading:
            if name not in self._open:
                self._open[name] = self._read(self._folders[name])
            return self._open[name]

    @property
    def usual(self) -> str:
        """The name of the first."""
        return next(iter(self._folders))

    @property
    def resolution(self) -> int:
        """Of the usual one."""
        return self.about[self.usual].resolution

    @property
    def labels(self) -> list[str]:
        """That any of them knows."""
        return list(dict.fromkeys(label for each in self.about.values() for label in each.labels))

    def side(self, label: str | None = None, name: str = "") -> int:
        """Of a new picture whose size is not said."""
        return self.about[name if name in self.about else self._able(label)[0]].resolution

    def noted(self, name: str) -> str:
        """A model's name where it means something elsewhere too: not that of a folder of one's own, which is the only
        one here."""
        return name if len(self.about) > 1 or shipped_models().get(name) == self._folders[name] else ""

    def _able(self, label: str | None) -> list[str]:
        """Those that know a label. One that none knows may be a number, of the usual model's; else that model says what
        is wrong with it."""
        return [each for each, of in self.about.items() if label is None or of.knows(label)] or [self.usual]

    def choose(self, make: Callable[[AsyncPatchPipeline], Plan], label: str | None = None, name: str = "") -> Chosen:
        """The model for what ``make`` plans, which is to show ``label``; or the one of that name."""
        if name:
            others = self._able(label)
            if name in self.about and label is not None and name not in others and self.about[others[0]].knows(label):
                raise ValueError(f"{label!r} is no label of {name}, but of {' and '.join(others)}")
            return Chosen(name, self[name], make(self[name]))
        able = self._able(label)
        first, plan = able[0], make(self[able[0]])
        if doubts(plan.settings.schedule):
            able = [each for each in able if self.about[each].says_how_sure] or [first]
            if first not in able:
                first, plan = able[0], make(self[able[0]])
        if plan.rings or len(able) == 1:
            return Chosen(first, self[first], plan)
        best = min(able, key=lambda each: _reductions(plan, self.about[each].resolution))
        if best != first:  # the same pictures, which may be large, or readable once; the label has another number
            number = self[best].label(label)
            plan = replace(plan, tasks=[task._replace(label=number) for task in plan.tasks])
        return Chosen(best, self[best], plan)


def _about(folder: Path) -> About:
    try:
        said = index_of(folder)
        return About(int(said["resolution"]), tuple(said["labels"]), any(said.get(HEAD) or ()))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder}: cannot be read as a model: its index is damaged ({error})") from error


def _reductions(plan: Plan, window: int) -> int:
    """How often the plan's pictures are halved at most, until a window sees across their holes."""
    parts = [box.of(task.hole[0]) for task in plan.tasks for box in boxes(task.hole[0], window)]
    return max((halvings(part[None, None], max(part.shape), window) for part in parts), default=0)
