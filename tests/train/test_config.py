"""Recipes: checked when made, written and read back, changed from a command line."""

import dataclasses
import json

import pytest
from torch.distributed.run import get_args_parser

from asyncpatch import recipes
from asyncpatch.train.config import AutoencoderRecipe, Recipe


@pytest.mark.parametrize(
    "recipe",
    [make() for make in (recipes.ALL | recipes.AUTOENCODERS).values()],
    ids=[*recipes.ALL, *recipes.AUTOENCODERS],
)
def test_a_recipe_survives_being_written(recipe):
    assert type(recipe).from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_a_recipe_of_another_kind_is_not_taken_for_one():
    with pytest.raises(ValueError, match="another kind of network: there is no adversary here"):
        Recipe.from_dict(recipes.smoke_vq().to_dict())
    with pytest.raises(ValueError, match="there is no attention here"):
        AutoencoderRecipe.from_dict(recipes.smoke().to_dict())


def test_a_misspelt_recipe_gets_a_suggestion():
    with pytest.raises(ValueError, match="did you mean smoke"):
        recipes.named("smok", recipes.ALL)
    assert recipes.named("smoke_vq", recipes.AUTOENCODERS) == recipes.smoke_vq()


def test_the_paper_states_these():
    for recipe in (recipes.imagenet64_60m(), recipes.imagenet64_620m()):
        assert (recipe.process, recipe.prediction, recipe.times) == ("rectified_flow", "v", "asyncpatch")
        assert recipe.ema == 0.999
    assert (recipes.imagenet64_60m().steps, recipes.imagenet64_60m().batch) == (1_000_000, 512)
    coder = recipes.imagenet256_vq()
    assert (coder.resolution, coder.width, coder.multipliers, coder.blocks) == (256, 128, (1, 2, 4), 2)
    assert (coder.codes, coder.latent_channels) == (8192, 3)


def test_the_rate_rises_stays_and_falls():
    recipe = Recipe(steps=100, rate=1.0, warmup=9, decay=0.5)
    rates = [recipe.rate_at(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert rates[4] == pytest.approx(0.5)
    assert rates[9:50] == [1.0] * 41
    assert rates[75] == pytest.approx(0.5)
    assert rates[99] == pytest.approx(0.02)
    assert Recipe(steps=10, rate=0.3, warmup=0).rate_at(9) == 0.3


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"batch": 0}, "batch must be at least 1"),
        ({"batch": 2.5}, "batch must be of type int"),
        ({"steps": True}, "steps must be of type int"),
        ({"prediction": "score"}, "prediction must be one of v, x, eps"),
        ({"compile": "yes"}, "compile must be one of auto, on, off"),
        ({"rate": -1.0}, "rate must be positive"),
        ({"rate": float("nan")}, "rate must be positive"),
        ({"ema": 1.5}, r"ema must lie in \[0, 1\]"),
        ({"multipliers": ()}, "multipliers must be numbers"),
        ({"multipliers": (1, 1.5)}, "multipliers must be numbers"),
        ({"betas": (0.9,)}, "betas must be two"),
        ({"accumulate": 0}, "accumulate must be at least 1"),
        ({"accumulate": "some"}, "accumulate must be an integer or 'auto'"),
        ({"crops": -1.0}, "crops must not be negative"),
        ({"flips": 1}, "flips must be of type bool"),
    ],
)
def test_what_is_wrong_is_said(wrong, said):
    with pytest.raises(ValueError, match=said):
        Recipe(**wrong)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"codes": 0}, "codes must be at least 1"),
        ({"blocks": (1, 1)}, "blocks must be of type int"),
        ({"commitment": -0.1}, "commitment must not be negative"),
        ({"whole": 1.1}, r"whole must lie in \[0, 1\]"),
        ({"adversary_width": 12}, "adversary_width must be a multiple of 8"),
        ({"resolution": 30}, "resolution must divide by 4"),
        ({"shard": True}, "unexpected keyword"),
    ],
)
def test_what_is_wrong_with_an_autoencoder_is_said(wrong, said):
    with pytest.raises((ValueError, TypeError), match=said):
        AutoencoderRecipe(**wrong)


def test_every_field_can_be_set_from_text():
    base = recipes.smoke()
    for each in dataclasses.fields(Recipe):
        value = getattr(recipes.imagenet64_620m(), each.name)
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        assert getattr(base.changed({each.name: text}), each.name) == value
    assert base.changed({"steps": None}) == base
    with pytest.raises(ValueError, match="steps: cannot read 'many'"):
        base.changed({"steps": "many"})
    with pytest.raises(ValueError, match="resolution: cannot read"):
        base.changed({"resolution": "6.5"})


def test_batch_auto_keeps_the_batch_and_finds_the_pieces():
    changed = recipes.smoke().changed({"batch": "auto"})
    assert changed.batch == recipes.smoke().batch
    assert changed.accumulate == "auto"


@pytest.mark.parametrize("kind", [Recipe, AutoencoderRecipe])
def test_no_option_is_taken_for_one_of_torchrun(kind):
    """It looks at all options that begin like one of its own, even after the name of what it runs."""
    theirs = list(get_args_parser()._option_string_actions)
    for each in dataclasses.fields(kind):
        mine = "--" + each.name.replace("_", "-")
        assert not [other for other in theirs if other.startswith(mine)], mine
