"""Judging pictures: by the model's own bound, in windows where they are large, and holes given the rest."""

import numpy as np
import pytest
import torch

from asyncpatch.images import picture_from
from asyncpatch.judging import heat_map, judge, path_by_name, rank
from asyncpatch.likelihood import elbo, synchronous_path
from asyncpatch.oracle import gaussian_field
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.plans import Task
from asyncpatch.protocols import Denoised
from asyncpatch.sampling import generators


@pytest.fixture(scope="module")
def pipe(tiny_model):
    return AsyncPatchPipeline.from_pretrained(tiny_model).prepare("cpu", "fp32")


def photo(height=16, width=16, seed=0):
    return picture_from(np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8))


def test_it_is_the_bound_of_the_models_denoiser(pipe):
    picture, model = photo(), pipe.model
    terms = judge(pipe, picture, synchronous_path(), calls=8, seed=3)
    wanted = elbo(
        model.denoiser, picture.x[None], process=model.process, path=synchronous_path(), calls=8,
        generator=generators([3]),
    )  # fmt: skip
    assert torch.allclose(terms.total, wanted.total, rtol=1e-5)
    other = judge(pipe, picture, synchronous_path(), calls=8, seed=3, label=1)
    assert not torch.allclose(terms.total, other.total)


def test_large_and_deep_pictures_are_judged_too(pipe):
    terms = judge(pipe, photo(40, 24), path_by_name("4"), calls=2)
    assert terms.map.shape == (1, 1, 40, 24)
    deep = picture_from(np.random.default_rng(0).integers(0, 65536, (16, 16), np.uint16))
    assert judge(pipe, deep, synchronous_path(), calls=2).total.isfinite()


def test_a_hole_is_judged_alone(pipe):
    hole = torch.zeros(1, 16, 16)
    hole[:, 4:8, 4:9] = 0.5
    terms = judge(pipe, photo(), synchronous_path(), calls=4, hole=hole)
    assert float(terms.numbers) == 3 * 20
    assert not terms.map[0][hole == 0].any()


def test_candidates_are_ranked_by_what_an_exact_model_says(pipe, monkeypatch):
    """With an exact denoiser of smooth pictures in the place of the network, rough fillings come last."""
    exact = gaussian_field(pipe.model.process, 16, 16, length=3.0)

    def denoiser(self, z, t, cond=None):
        return Denoised(torch.cat([exact(z[:, k : k + 1], t).x for k in range(3)], 1))

    monkeypatch.setattr(type(pipe.model.denoiser), "__call__", denoiser)
    smooth = exact.draw(1, generator=torch.Generator().manual_seed(0))[0].clamp(-1, 1).expand(3, -1, -1)
    hole = torch.zeros(1, 16, 16)
    hole[:, 5:11, 5:11] = 1
    random = torch.Generator().manual_seed(1)
    candidates = []
    for rough in (0.4, 0.0, 0.15):
        x = smooth + rough * hole * torch.randn(3, 16, 16, generator=random)
        candidates.append(picture_from(x.clamp(-1, 1)))
    bounds = rank(pipe, Task(candidates[0], hole, (0,)), candidates, calls=32)
    assert bounds.argsort(descending=True).tolist() == [1, 2, 0]


def test_a_heat_map_is_bright_where_it_surprises(pipe):
    terms = judge(pipe, photo(), synchronous_path(), calls=2)
    there = terms._replace(map=-torch.arange(256.0).view(1, 1, 16, 16))
    image = np.asarray(heat_map(there, 2)).astype(int)
    assert image.shape == (32, 32, 3)
    assert (np.diff(image[::2, ::2].sum(-1).flatten()) >= -3).all()
    assert image[0, 0].sum() < 60
    assert image[-1, -1].sum() > 600
    flat = np.asarray(heat_map(terms._replace(map=torch.zeros(1, 1, 16, 16))))
    assert (flat == flat[0, 0]).all()


def test_paths_have_names():
    for name in ("synchronous", "1", "8"):
        assert callable(path_by_name(name))
    for wrong in ("0", "x", "-1"):
        with pytest.raises(ValueError, match="a path is"):
            path_by_name(wrong)


def test_candidates_are_compared_alike(pipe):
    """The same noise for all; all holes count; labels and deep pictures too."""
    hole = torch.zeros(1, 60, 60)
    hole[:, 4:9, 4:9] = 1
    hole[:, 45:50, 45:50] = 1
    picture = photo(60, 60)
    both = rank(pipe, Task(picture, hole, (0, 1)), [picture, picture], calls=4)
    assert both[0] == both[1]
    parts = []
    for rows in (slice(0, 30), slice(30, 60)):
        one = torch.zeros_like(hole)
        one[:, rows] = hole[:, rows]
        parts.append(rank(pipe, Task(picture, one, (0,)), [picture], calls=4))
    assert torch.allclose(both[:1], parts[0] + parts[1], rtol=1e-4)
    assert rank(pipe, Task(picture, hole, (0,), 1), [picture], calls=4) != both[0]
    deep = picture_from(np.random.default_rng(0).integers(0, 65536, (60, 60), np.uint16))
    assert rank(pipe, Task(deep, hole, (0,)), [deep], calls=2).isfinite().all()


def test_only_the_windows_of_a_hole_are_asked(pipe, monkeypatch):
    seen = []
    forward = pipe.unet.forward
    monkeypatch.setattr(pipe.unet, "forward", lambda z, *rest: seen.append(len(z)) or forward(z, *rest))
    hole = torch.zeros(1, 80, 80)
    hole[:, 4:8, 4:8] = 1
    judge(pipe, photo(80, 80), synchronous_path(), calls=2, hole=hole)
    assert sum(seen) <= 2 * 4


def test_a_heat_map_of_a_hole_uses_all_its_colours(pipe):
    terms = judge(pipe, photo(), synchronous_path(), calls=2)
    field = torch.zeros(1, 1, 200, 200)
    field[..., :8, :8] = -torch.linspace(1, 40, 64).view(8, 8)
    shown = np.asarray(heat_map(terms._replace(map=field)))[:8, :8].reshape(-1, 3)
    assert len(np.unique(shown, axis=0)) > 30
