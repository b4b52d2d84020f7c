"""Which model serves which picture, on a shelf of two: tiny (16 pixels), and one of latents (32 pixels)."""

import json
import shutil

import numpy as np
import pytest

from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.shelf import Shelf
from asyncpatch.shipped import shipped_models

GREY = np.full((96, 96, 3), 128, np.uint8)


def folder_of(model, target, **said):
    """A copy whose index says something else."""
    shutil.copytree(model, target)
    index = json.loads((target / "model_index.json").read_text())
    (target / "model_index.json").write_text(json.dumps({**index, **said}))
    return target


@pytest.fixture(scope="module")
def read():
    """Folders that were read, in their order."""
    return []


@pytest.fixture(scope="module")
def shelf(tiny_model, tiny_latent_model, tmp_path_factory, read):
    labels = ["cat", "Brick", "tabby"]
    large = folder_of(tiny_latent_model, tmp_path_factory.mktemp("shelf") / "large", labels=labels)

    def opened(folder):
        read.append(folder.name)
        return AsyncPatchPipeline.from_pretrained(folder).prepare("cpu", "fp32")

    return Shelf({"small": tiny_model, "large": large}, opened)


def square(side):
    hole = np.zeros(GREY.shape[:2], np.uint8)
    hole[20 : 20 + side, 30 : 30 + side] = 255
    return hole


def test_models_are_read_when_they_are_wanted(shelf, read):
    assert read == []
    assert (shelf.usual, shelf.resolution) == ("small", 16)
    assert shelf.labels == ["tabby", "cat", "Golden retriever", "Brick"]
    assert [about.says_how_sure for about in shelf.about.values()] == [False, False]
    for _ in range(2):
        assert shelf["small"].model.resolution == 16
    assert read == ["model"]
    with pytest.raises(ValueError, match="no model 'huge' here, only small, large"):
        shelf["huge"]


@pytest.mark.parametrize(("side", "name"), [(7, "small"), (14, "large"), (28, "large")])
def test_the_window_that_sees_across_the_hole(side, name, shelf):
    found = shelf.choose(lambda pipeline: pipeline.plan_inpaint(GREY, square(side), seed=5))
    assert found.name == name
    assert found.pipeline is shelf[name]
    assert found.plan.tasks[0].seeds == (5,)
    assert shelf.choose(lambda pipeline: pipeline.plan_inpaint(GREY, square(side)), name="small").name == "small"


def test_a_picture_is_read_once_whichever_model_is_for_it(shelf):
    """It may be large, or come through a pipe."""
    planned = []

    def make(pipeline):
        planned.append(pipeline.model.resolution)
        return pipeline.plan_inpaint(GREY, square(28), label="tabby", class_guidance=1.0, seed=0)

    found = shelf.choose(make, "tabby")
    assert (found.name, planned) == ("large", [16])
    assert found.plan.tasks[0].label == 2 != shelf["small"].label("tabby")


def test_the_largest_hole_decides(shelf):
    both = square(14)
    both[80:83, 80:83] = 255
    assert shelf.choose(lambda pipeline: pipeline.plan_inpaint(GREY, both)).name == "large"


@pytest.mark.parametrize(
    ("label", "size", "name"),
    [
        (None, None, "small"), (None, (16, 16), "small"), (None, (32, 32), "large"), ("CAT", (32, 32), "large"),
        ("cat", (16, 16), "small"), ("golden retriever", (32, 32), "small"), ("Brick", (16, 16), "large"),
        ("2", (32, 32), "small"),
    ],
)  # fmt: skip
def test_who_knows_the_label(label, size, name, shelf):
    found = shelf.choose(lambda pipeline: pipeline.plan_generate(label, size=size, seed=0), label)
    assert found.name == name
    task = found.plan.tasks[0]
    said = shelf.about[name].labels[task.label].lower() if task.label >= 0 else None
    assert said == ("golden retriever" if label == "2" else label and label.lower())
    assert task.hole.shape[1:] == (size or (16, 16))


@pytest.mark.parametrize(
    ("label", "name", "side"), [(None, "", 16), ("brick", "", 32), ("cat", "", 16), ("cat", "large", 32), ("2", "", 16)]
)
def test_the_side_of_a_new_picture_is_that_of_the_model_that_makes_it(label, name, side, shelf):
    assert shelf.side(label, name) == side
    found = shelf.choose(lambda pipeline: pipeline.plan_generate(label), label, name)
    assert found.plan.tasks[0].hole.shape[1:] == (side, side)


def test_a_name_is_noted_where_it_means_something(shelf, two_ship, tiny_model):
    assert shelf.noted("small") == "small"  # there is another here
    assert Shelf({"model": tiny_model}, AsyncPatchPipeline.from_pretrained).noted("model") == ""
    shipped = {"small": shipped_models()["small"]}  # others may ship later
    assert Shelf(shipped, AsyncPatchPipeline.from_pretrained).noted("small") == "small"


def test_a_label_that_none_knows_is_explained(shelf):
    with pytest.raises(ValueError, match="did you mean 'tabby'"):
        shelf.choose(lambda pipeline: pipeline.plan_generate("tabi"), "tabi")


def test_a_label_that_another_model_knows_is_said_to_be_its(shelf):
    with pytest.raises(ValueError, match="'brick' is no label of small, but of large"):
        shelf.choose(lambda pipeline: pipeline.plan_generate("brick"), "brick", "small")
    with pytest.raises(ValueError, match="no label 'bricks'; did you mean"):
        shelf.choose(lambda pipeline: pipeline.plan_generate("bricks"), "bricks", "large")


def test_a_texture_is_for_the_first_that_knows_its_label(shelf):
    def grown(label):
        return shelf.choose(lambda pipeline: pipeline.plan_texture(GREY, (200, 200), label=label), label).name

    assert (grown(None), grown("brick")) == ("small", "large")


def test_who_says_how_sure_it_is(shelf, tmp_path, tiny_model, tiny_latent_model):
    head = ["asyncpatch.models.uncertainty", "UncertaintyHead"]
    sure = folder_of(tiny_model, tmp_path / "sure", uncertainty=head)
    pipes = {"small": shelf["small"], "sure": shelf["small"], "large": shelf["large"]}
    folders = {"large": tiny_latent_model, "small": tiny_model, "sure": sure}
    asking = Shelf(folders, lambda folder: pipes.get(folder.name, pipes["large"]))
    for schedule, name in (("synchronous", "large"), ("paced", "sure")):
        plan = asking.choose(lambda pipeline, how=schedule: pipeline.plan_generate(schedule=how, size=(16, 16)))
        assert plan.name == name
    nobody = shelf.choose(lambda pipeline: pipeline.plan_generate(schedule="paced"))
    assert nobody.name == "small"  # which says what it lacks when it is run
    with pytest.raises(ValueError, match="no head"):
        nobody.pipeline.run(nobody.plan)


def test_what_is_chosen_does_the_work(shelf):
    found = shelf.choose(lambda pipeline: pipeline.plan_inpaint(GREY, square(14), steps=1, seed=0))
    (made,) = found.pipeline.run(found.plan)
    assert (made.pictures[0].levels[square(14) == 0] == 128).all()
    assert (made.pictures[0].levels[square(14) > 0] != 128).any()


def test_a_shelf_needs_models_that_can_be_read(tmp_path):
    with pytest.raises(ValueError, match="no model on the shelf"):
        Shelf({}, AsyncPatchPipeline.from_pretrained)
    with pytest.raises(FileNotFoundError, match="no model folder"):
        Shelf({"none": tmp_path}, AsyncPatchPipeline.from_pretrained)
    (tmp_path / "model_index.json").write_text('{"labels": []}')
    with pytest.raises(ValueError, match="index is damaged"):
        Shelf({"none": tmp_path}, AsyncPatchPipeline.from_pretrained)
