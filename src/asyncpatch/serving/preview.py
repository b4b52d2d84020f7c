"""What is seen of a job while it runs, and of pictures in a browser."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from PIL import Image

from asyncpatch.drawing import heat, picture, time_field
from asyncpatch.frames import View, beside, fitted
from asyncpatch.images import Picture
from asyncpatch.pipelines import Glimpse
from asyncpatch.plans import Plan

Sight = Literal["picture", "times", "doubt"]
"""The picture that is expected (x-hat), the time field, and how far off the network takes itself to be."""

PAUSE = 0.2
"""Seconds between two looks, at least: more of them nobody sees."""
REST = 4
"""And so many times as long as a look takes, so that they are a fifth of the work at most."""
UNSURE = 0.6
"""The expected error, of levels from -1 to 1, that is drawn brightest."""


class Preview:
    """An onlooker that can be asked, by another thread, what it last saw of all candidates."""

    def __init__(self, plan: Plan, window: int, clock: Callable[[], float] = time.monotonic) -> None:
        count = len(plan.tasks[0].seeds)
        self.view = View(plan, window)
        self.number = 0
        """Of looks so far."""
        self._pictures, self._times = [self.view.given] * count, [self.view.hole] * count
        self._doubt = [torch.zeros_like(self.view.hole)] * count if plan.doubts else None
        self._clock, self._next, self._lock = clock, float("-inf"), threading.Lock()

    def __call__(self, glimpse: Glimpse) -> None:
        began = self._clock()
        if began < self._next:
            return
        moment, visit = glimpse.moment, glimpse.moment.visit
        if visit.out is None:
            return
        with self._lock:
            self.view.lay(self._pictures, glimpse, moment.pictures(visit.out.x))
            self.view.lay(self._times, glimpse, moment.pixels(visit.t))
            if self._doubt is not None and visit.out.logvar is not None:
                expected = torch.where(visit.t > 0, (0.5 * visit.out.logvar).exp(), 0.0)
                self.view.lay(self._doubt, glimpse, moment.pixels(expected))
            self.number += 1
        now = self._clock()
        self._next = now + max(PAUSE, REST * (now - began))

    def drawn(self, what: Sight) -> Image.Image | None:
        """All candidates beside each other; None where the network does not say how sure it is."""
        with self._lock:
            pictures, times, doubt = list(self._pictures), list(self._times), self._doubt and list(self._doubt)
        match what:
            case "picture":
                tiles = [picture(each) for each in pictures]
            case "times":
                tiles = [time_field(each[0]) for each in times]
            case "doubt":
                if doubt is None:
                    return None
                tiles = [heat(each[0], 0.0, UNSURE) for each in doubt]
        return beside([fitted(each) for each in tiles], 4)


def scaled(height: int, width: int, side: int) -> tuple[int, int]:
    """Height and width of the same shape, neither more than ``side``."""
    scale = min(1.0, side / max(height, width))
    return max(1, round(height * scale)), max(1, round(width * scale))


def reduced(picture: Picture, side: int) -> Image.Image:
    """As a browser shows it, of at most so many pixels a side; what is transparent lies over white."""
    image = picture.image()
    if image.mode == "I;16":
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if "A" in image.mode:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    height, width = scaled(*picture.size, side)
    return image.convert("RGB").resize((width, height), Image.Resampling.BOX)


def encoded(image: Image.Image, kind: Literal["PNG", "JPEG"] = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()
