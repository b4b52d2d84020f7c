import threading

import numpy as np
import pytest

from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.serving.jobs import Limits, Workshop
from asyncpatch.shelf import Shelf
from uploads import png


@pytest.fixture(scope="session")
def pipe(tiny_model):
    return AsyncPatchPipeline.from_pretrained(tiny_model).prepare("cpu", "fp32")


@pytest.fixture(scope="session")
def shelf(tiny_model, pipe):
    return Shelf({"tiny": tiny_model}, lambda folder: pipe)


@pytest.fixture
def make(shelf):
    """Makes workshops, and closes them."""
    made = []

    def workshop(**limits):
        made.append(Workshop(shelf, Limits(**limits)))
        return made[-1]

    yield workshop
    for each in made:
        each.close()


@pytest.fixture
def workshop(make):
    return make()


@pytest.fixture
def gate(monkeypatch):
    """Jobs stop before their first visit until the gate is opened."""
    opened, run = threading.Event(), AsyncPatchPipeline.run

    def held(self, plan, watch=None):
        def onlooker(glimpse):
            opened.wait()
            watch(glimpse)

        return run(self, plan, onlooker)

    monkeypatch.setattr(AsyncPatchPipeline, "run", held)
    yield opened
    opened.set()


@pytest.fixture(scope="session")
def photo():
    return np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)


@pytest.fixture(scope="session")
def hole():
    hole = np.zeros((40, 60), np.uint8)
    hole[10:20, 20:30] = 255
    return hole


@pytest.fixture(scope="session")
def files(photo, hole):
    """A photo and a mask as PNG."""
    return png(photo), png(hole)
