"""Evaluation: figures that can be checked by hand, the same pictures for every method, and cells that are kept."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from asyncpatch import baselines
from asyncpatch.cli import app
from asyncpatch.data.masks import holes
from asyncpatch.data.store import Store
from asyncpatch.evaluation import (
    OURS,
    RIVALS,
    SAMPLES,
    Cell,
    Evaluation,
    Likeness,
    guidance_plot,
    markdown,
    paired,
    spaced,
)
from asyncpatch.guidance import Guided, drop_label
from asyncpatch.images import ImageError
from asyncpatch.metrics import FEATURES, psnr_in_hole, ssim_in_hole
from asyncpatch.models.uncertainty import UncertaintyHead
from asyncpatch.models.unet import UNet
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.protocols import NULL_LABEL, Cond
from asyncpatch.sampling import Ahead, generators
from asyncpatch.settings import Settings


@pytest.fixture(scope="module")
def pipe(tiny_model):
    return AsyncPatchPipeline.from_pretrained(tiny_model).prepare("cpu", "fp32")


def store(count=12, seed=0, side=16):
    levels = np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), np.uint8)
    return Store(levels, np.arange(count) % 3, ("tabby", "cat", "Golden retriever"))


def evaluation(pipe, tmp_path, **more):
    return Evaluation(pipe, tmp_path, {"noise": store()}, **more)


QUICK = Settings(steps=2, input_guidance=1.0, batch=8)


@pytest.fixture
def made(monkeypatch):
    """All pictures that are measured, some after the other."""
    seen = []

    def measured(made, x, hole):
        seen.append(made)
        return psnr_in_hole(made, x, hole)

    monkeypatch.setattr("asyncpatch.evaluation.computing.psnr_in_hole", measured)
    return seen


def in_range(levels):
    return torch.from_numpy(levels.copy()).permute(0, 3, 1, 2) / 127.5 - 1.0


def shown_pictures(pipe):
    """The same with a network that is shown what is known, and says something of it."""
    torch.manual_seed(0)
    net = UNet.from_config({**pipe.unet.config, "given": True})
    for weight in net.parameters():
        if weight.dim() > 1 and not weight.any():
            torch.nn.init.normal_(weight, std=0.1)
    return AsyncPatchPipeline(net, "rectified_flow", "v", 16, list(pipe.model.labels)).prepare("cpu", "fp32")


def test_a_cell_holds_what_the_tool_makes(pipe, tmp_path):
    """The figures of pictures that were filled one by one through the pipeline, computed by hand."""
    found = evaluation(pipe, tmp_path).result(Cell("noise", "square", OURS, QUICK, 6))
    chosen, levels = range(0, 12, 2), store().pictures
    hole = holes("square", list(chosen), 16, 16)
    psnr = []
    for k, gap in zip(chosen, hole, strict=True):
        made = pipe.inpaint(levels[k], gap, seed=k, steps=2, input_guidance=1.0).pictures[0].levels
        inside = gap[0].numpy() > 0
        error = ((made.astype(float) - levels[k])[inside] / 127.5) ** 2
        psnr.append(10 * math.log10(4 / error.mean()))
        assert np.array_equal(made[~inside], levels[k][~inside])
    assert found["psnr"][0] == pytest.approx(np.mean(psnr), abs=0.05)
    assert found["psnr"][1] == pytest.approx(np.std(psnr, ddof=1) / 6**0.5, rel=0.05)
    assert (found["pictures"], found["calls"]) == (6, 4)  # two steps, each with a weaker question beside it
    assert "lpips" not in found


def test_figures_are_means_of_what_is_finite_and_medians(pipe, tmp_path, monkeypatch):
    known = {
        "psnr_in_hole": [1.0, 2.0, math.inf, 6.0, 3.0],  # a picture that came back exactly
        "ssim_in_hole": [0.1, 0.2, 0.3, 0.4, 0.5],
        "seam_ratio": [1.0, 100.0, math.nan, 2.0, math.nan],  # holes without a border
    }
    for name, values in known.items():
        monkeypatch.setattr(f"asyncpatch.evaluation.computing.{name}", lambda *of, values=values: torch.tensor(values))
    found = evaluation(pipe, tmp_path).result(Cell("noise", "square", OURS, QUICK, 5))
    assert found["psnr"] == pytest.approx([3.0, (14 / 3 / 4) ** 0.5])
    assert found["ssim"] == pytest.approx([0.3, (0.1 / 4 / 5) ** 0.5])
    assert found["seam"] == found["seam of the original"] == 2.0


def test_similarity_and_seams_are_those_of_the_hole(pipe, tmp_path, made):
    found = evaluation(pipe, tmp_path).result(Cell("noise", "square", OURS, QUICK, 5))
    chosen = [0, 2, 4, 7, 9]
    x, hole = in_range(store().pictures[chosen]), holes("square", chosen, 16, 16)
    assert found["ssim"][0] == pytest.approx(float(ssim_in_hole(made[0], x, hole).mean()), rel=1e-4)
    assert found["ssim"][0] < 0.9 * float(ssim_in_hole(made[0], x, torch.ones_like(hole)).mean())
    for name, pictures in (("seam", made[0]), ("seam of the original", x)):
        ratios = []
        for picture, gap in zip(pictures.double().numpy(), hole.numpy()[:, 0], strict=True):
            steps = {"across": [], "inside": []}
            for i, j in np.ndindex(16, 16):
                for k, n in ((i + 1, j), (i, j + 1)):
                    if max(k, n) < 16 and max(gap[i, j], gap[k, n]):
                        where = "across" if gap[i, j] != gap[k, n] else "inside"
                        steps[where].append(np.abs(picture[:, i, j] - picture[:, k, n]).mean())
            ratios.append(np.mean(steps["across"]) / np.mean(steps["inside"]))
        assert found[name] == pytest.approx(np.median(ratios), rel=1e-4)
        assert found[name] != pytest.approx(np.mean(ratios), rel=1e-4)


def test_pictures_of_another_size_than_the_models(pipe, tmp_path):
    """Are filled as the tool fills them, and made likewise."""
    large = store(4, side=40)
    work = Evaluation(pipe, tmp_path, {"large": large}, large)
    found = work.result(Cell("large", "square", OURS, QUICK, 4))
    hole, psnr, windows = holes("square", [0, 1, 2, 3], 40, 40), [], 0
    for k, gap in enumerate(hole):
        plan = pipe.plan_inpaint(large.pictures[k], gap, seed=k, steps=2, input_guidance=1.0)
        (made,) = pipe.run(plan)
        windows += pipe.work(plan)
        inside = gap[0].numpy() > 0
        error = ((made.pictures[0].levels.astype(float) - large.pictures[k])[inside] / 127.5) ** 2
        psnr.append(10 * math.log10(4 / error.mean()))
    assert found["psnr"][0] == pytest.approx(np.mean(psnr), abs=0.05)
    assert found["calls"] == windows / 4 > 4  # more than one window
    assert work.result(Cell("large", SAMPLES, OURS, QUICK, 10))["calls"] > 4
    with pytest.raises(ValueError, match="fills pictures of the model's 16 pixels, not 40"):
        work.check(Cell("large", "square", "repaint", QUICK, 4))


def test_cells_of_the_same_pictures_are_compared_one_by_one(generator):
    """Of differences that are known: twice as much, with a spread that both share and noise of its own."""
    common = 0.5 + 1.5 * torch.rand(4000, generator=generator)
    own = 0.05 * torch.randn(4000, generator=generator)

    def cell(values, what="thin", data="a"):
        return {"data": data, "what": what, "each": {"lpips": values.tolist()}}

    found, error = paired(cell(2.0 * common + own), cell(common))
    assert found == pytest.approx(1.0, abs=4 * error)
    assert error == pytest.approx(0.05 / 4000**0.5 / 1.25, rel=0.05)
    for other in (cell(common, "wide"), cell(common[:9]), cell(common, data="b")):
        with pytest.raises(ValueError, match="the same pictures and holes"):
            paired(cell(common), other)


def test_a_cell_is_computed_once(pipe, tmp_path, monkeypatch):
    work, cell = evaluation(pipe, tmp_path), Cell("noise", "thin", OURS, QUICK, 3)
    first = work.result(cell)
    assert [file.name for file in (tmp_path / "cells").iterdir()] == [f"{work.name(cell)}.json"]
    monkeypatch.setattr(AsyncPatchPipeline, "run", None)
    assert evaluation(pipe, tmp_path).result(cell) == first
    with pytest.raises(TypeError):  # and another setting is another cell
        work.result(Cell("noise", "thin", OURS, Settings(steps=3, batch=8), 3))


def test_pictures_are_made_some_at_a_time(pipe, tmp_path, monkeypatch):
    """Of which no figure depends but by rounding, and no sheet."""
    works = [evaluation(pipe, tmp_path / name, training=store(40, 1), references=20) for name in ("whole", "parts")]
    cells = Cell("noise", "wide", OURS, QUICK, 7), Cell("noise", SAMPLES, OURS, replace(QUICK, batch=3), 11)
    whole = [works[0].result(cell) for cell in cells]
    sizes, run = [], AsyncPatchPipeline.run

    def counted(self, plan, *rest):
        sizes.append(len(plan.tasks))
        return run(self, plan, *rest)

    monkeypatch.setattr(AsyncPatchPipeline, "run", counted)
    monkeypatch.setattr("asyncpatch.evaluation.computing._AT_ONCE", 4)
    parts = [works[1].result(replace(cell, settings=replace(cell.settings, batch=3))) for cell in cells]
    assert sizes == [3, 3, 1, 3, 3, 3, 2]
    same(whole, parts)
    for cell in cells:
        sheets = [Image.open(work.folder / "sheets" / f"{work.name(cell)}.png") for work in works]
        assert np.abs(np.subtract(*(np.array(sheet, int) for sheet in sheets))).max() <= 2


def same(these, those):
    """Results, but for the time they took, and rounding."""
    for one, other in zip(these, those, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() - {"seconds", "settings"}:
            if isinstance(one[name], str):
                assert one[name] == other[name]
            else:
                assert one[name] == pytest.approx(other[name], rel=2e-3, abs=1e-5), name


def test_another_model_or_other_pictures_are_another_cell(pipe, tiny_model, tmp_path):
    cell = Cell("noise", "thin", OURS, QUICK, 3)
    changed = AsyncPatchPipeline.from_pretrained(tiny_model).prepare("cpu", "fp32")
    with torch.no_grad():
        changed.unet.conv_out.weight.mul_(1.5)
    works = [
        evaluation(pipe, tmp_path), evaluation(changed, tmp_path), evaluation(pipe, tmp_path, training=store(9)),
        Evaluation(pipe, tmp_path, {"noise": store(seed=3)}), Evaluation(pipe, tmp_path, {"noise": store(11)}),
    ]  # fmt: skip
    assert len({work.name(cell) for work in works}) == len(works)
    assert evaluation(pipe, tmp_path / "elsewhere").name(cell) == works[0].name(cell)
    assert evaluation(pipe, tmp_path, lpips=torch.nn.Identity()).name(cell) != works[0].name(cell)


@pytest.mark.parametrize(("method", "calls"), [("replacement", 250), ("ddrm", 20), ("ddnm", 100)])
def test_rivals_see_the_same_pictures_and_holes(method, calls, pipe, tmp_path):
    work = evaluation(pipe, tmp_path)
    ours, theirs = (work.result(Cell("noise", "square", name, QUICK, 2)) for name in (OURS, method))
    assert theirs["calls"] == calls
    assert theirs["seam of the original"] == ours["seam of the original"]
    assert theirs["psnr"][0] != ours["psnr"][0]


def test_a_rivals_picture_is_its_own_whatever_is_made_beside_it(pipe, tmp_path, made):
    """Of noise that goes by the picture's number, not by its place among those that are made."""
    for count, batch in ((12, 5), (6, 8)):
        cell = Cell("noise", "square", "ddrm", Settings(batch=batch), count)
        evaluation(pipe, tmp_path).result(cell)
    all_of_them, every_other = made
    assert torch.allclose(all_of_them[::2], every_other, atol=0.01)  # rounded to levels
    apart = [(all_of_them[k] - all_of_them[0]).abs().mean() for k in range(1, 12)]
    assert min(apart) > 0.1


@pytest.mark.parametrize("weight", [0.0, 1.5])
@pytest.mark.parametrize("method", [OURS, "ddrm", "supervised"])
def test_each_picture_is_filled_under_its_own_label(method, weight, pipe, tmp_path):
    """That of the model with the name that the set has for it, and only where class guidance asks for it."""
    pipeline, seen = shown_pictures(pipe) if method == "supervised" else pipe, []
    labels = np.array([0, 1, 2, 2, 1, 1, 0])
    named = Store(store(7).pictures, labels, ("Golden retriever", "tabby", "cat"))
    settings = Settings(steps=2, class_guidance=weight, batch=4)
    with pipeline.unet.register_forward_hook(lambda _, told, __: seen.append(told[2])):
        Evaluation(pipeline, tmp_path, {"noise": named}).result(Cell("noise", "square", method, settings, 7))
    asked = torch.cat(seen).tolist()
    steps = 20 if method == "ddrm" else 2
    if not weight:
        assert asked == [NULL_LABEL] * 7 * steps
        return
    own = [label for label in asked if label != NULL_LABEL]
    assert asked.count(NULL_LABEL) == len(own) == 7 * steps
    assert own == [2, 0, 1, 1] * steps + [0, 0, 2] * steps


def test_a_supervised_network_is_told_what_is_known(pipe, tmp_path):
    """And goes by the settings, at twice the questions with guidance; nothing else fills holes with it."""
    net = UNet.from_config({**pipe.unet.config, "given": True})
    shown = AsyncPatchPipeline(net, "rectified_flow", "v", 16, list(pipe.model.labels)).prepare("cpu", "fp32")
    seen = []
    net.register_forward_hook(lambda _, told, __: seen.append(told[3]))
    found = evaluation(shown, tmp_path).result(Cell("noise", "square", "supervised", QUICK, 2))
    assert found["calls"] == 4
    assert "supervised, steps 2, input guidance 1.0" in markdown([found])
    hole = holes("square", spaced(12, 2), 16, 16)
    x = torch.from_numpy(store().pictures[spaced(12, 2)]).permute(0, 3, 1, 2) / 127.5 - 1.0
    assert torch.allclose(seen[0], torch.cat([x * (1 - hole), hole], 1), atol=1e-6)
    assert torch.equal(seen[1][:, 3], torch.ones(2, 16, 16))
    for pipeline, method in ((shown, OURS), (pipe, "supervised")):
        with pytest.raises(ValueError, match=f"--methods {method} needs a network that is"):
            evaluation(pipeline, tmp_path).result(Cell("noise", "square", method, QUICK, 2))
    with pytest.raises(ValueError, match="is shown what is known beside its canvas"):
        shown.inpaint(store().pictures[0], hole[0])
    assert shown.generate(steps=1).images[0].size == (16, 16)


@pytest.mark.parametrize("change", [{}, {"eta": 1.0}, {"class_guidance": 1.5}, {"input_guidance": 2.0}, {"steps": 3}])
def test_a_supervised_network_goes_by_all_settings(change, pipe, tmp_path, made):
    """And what is known is put back exactly, which it does not do by itself."""
    shown, settings = shown_pictures(pipe), Settings(**{"steps": 2, "batch": 8, **change})
    evaluation(shown, tmp_path).result(Cell("noise", "square", "supervised", settings, 3))
    chosen = [0, 4, 8]
    x, hole = in_range(store().pictures[chosen]), holes("square", chosen, 16, 16)
    method = baselines.supervised(
        shown.model.process, x, hole, settings.steps, eta=settings.eta, input_guidance=settings.input_guidance
    )
    with torch.no_grad():
        told = Cond(label=torch.tensor([0, 1, 2]) if settings.class_guidance else None)
        network = Guided(shown.model.denoiser, settings.class_guidance, drop_label)
        wanted = method.run(network, x, cond=told, generator=Ahead(generators(chosen))).clamp(-1.0, 1.0)
    assert torch.allclose((made[0] - wanted) * hole, torch.zeros_like(x), atol=0.01)  # rounded to levels
    known = (hole == 0).expand_as(x)
    assert torch.allclose(made[0][known], x[known], atol=1e-6)
    assert (wanted - x)[known].abs().max() > 0.05


@pytest.mark.parametrize("paste", [False, True])
@pytest.mark.parametrize("method", [OURS, "ddnm"])
def test_what_lies_in_the_hole_does_not_reach_latents(method, paste, tiny_latent_model, tmp_path, made):
    pipe = AsyncPatchPipeline.from_pretrained(tiny_latent_model).prepare("cpu", "fp32")
    plain, hole = store(2, side=32), holes("square", [0, 1], 32, 32)[:, 0, :, :, None].numpy() > 0
    other = np.where(hole, 255 - plain.pictures, plain.pictures)
    for pictures in (plain.pictures, other):
        sets = {"noise": Store(pictures, plain.labels, plain.names)}
        Evaluation(pipe, tmp_path, sets, paste=paste).result(Cell("noise", "square", method, Settings(steps=2), 2))
    assert torch.equal(*made)


@pytest.mark.parametrize(("length", "count"), [(57_040, 20_000), (57_040, 10_000), (10, 3), (5, 9), (64, 64)])
def test_pictures_are_taken_from_all_over_a_set(length, count):
    """Sets are sorted: a beginning of one would be some classes alone."""
    found = spaced(length, count)
    assert len(found) == len(set(found)) == min(length, count)
    assert found[0] == 0
    assert length - found[-1] <= length / len(found) + 1
    assert np.ptp(np.diff(found)) <= 1


def test_every_rival_is_there():
    assert set(RIVALS) == {"replacement", "repaint", "mcg", "ddrm", "ddnm", "deqir", "supervised"}
    with pytest.raises(ValueError, match="method must be one of asyncpatch, replacement"):
        Cell("noise", "square", "magic")


def test_distances_of_known_laws(generator):
    """Two Gaussians that differ by a shift: |m - m'|^2 apart."""
    a, b = (torch.randn(4000, 8, generator=generator) for _ in range(2))
    like = Likeness(a)
    near, far = like.all(b), like.all(b + 0.5)
    assert near["frechet"] < 0.05
    assert far["frechet"] == pytest.approx(8 * 0.25, rel=0.1)
    assert abs(near["kernel"][0]) < 5e-3 < far["kernel"][0]
    assert min(near["precision"], near["recall"]) > 0.8
    assert far["precision"] < near["precision"]
    assert like.all(b) == near == Likeness(a).all(b)
    assert far["frechet error"] == pytest.approx((4 * 8 * 0.25 / 4000) ** 0.5, rel=0.1)  # |m - m'| = 0.5 in 8 features
    assert "frechet error" not in like.all(b[:8])


def test_samples_are_compared_with_the_training_set(pipe, tmp_path):
    work = evaluation(pipe, tmp_path, training=store(40, 1), references=20)
    found = work.result(Cell("noise", SAMPLES, OURS, Settings(steps=1, class_guidance=1.5, batch=8), 10))
    assert (found["pictures"], found["references"], found["calls"]) == (10, 20, 2)
    assert found["frechet"] > 0
    assert len(list(tmp_path.glob("reference-*.safetensors"))) == 1
    assert "EfficientNet-Lite0 (this is no FID)" in markdown([found])
    with pytest.raises(ValueError, match="there are none"):
        evaluation(pipe, tmp_path).result(Cell("noise", SAMPLES, OURS, QUICK, 10))


def test_a_distance_is_called_fid_in_the_features_of_inception_alone(pipe, tmp_path, monkeypatch):
    class Inception(torch.nn.Module):
        title = "Inception"

        def forward(self, levels):
            return levels.float().mean((2, 3))

    monkeypatch.setitem(FEATURES, "inception", Inception)
    thin, new = (Cell("noise", what, OURS, QUICK, 10) for what in ("thin", SAMPLES))
    works = [evaluation(pipe, tmp_path, training=store(40, 1), features=name) for name in ("lite", "inception")]
    (a, b), (c, d) = ([work.result(cell) for cell in (thin, new)] for work in works)
    assert len({work.name(thin) for work in works}) == len(list(tmp_path.glob("reference-*"))) == 2
    assert "FID |" not in markdown([a, b])
    assert "| Fréchet |" not in markdown([c, d])
    assert markdown([c, d]).count("| FID |") == 2
    both = markdown([a, b, c, d])
    assert "| FID | Fréchet | PSNR" in both
    assert "EfficientNet-Lite0 (this is no FID)" in both
    assert "In the features of Inception, against 40" in both


def test_filled_pictures_are_compared_with_the_training_set_too(pipe, tmp_path):
    """The same hole filled with nothing but the original, nearly: near to its set, and farther from another."""
    own, other = (evaluation(pipe, tmp_path / str(seed), training=store(12, seed), references=12) for seed in (0, 7))
    faint = Cell("noise", "thin", OURS, Settings(steps=1, batch=8), 12)
    near, far = (work.result(faint)["frechet"] for work in (own, other))
    assert 0 < near < far


def test_guidance_is_plotted_where_it_was_swept(tmp_path):
    def row(i, c):
        settings = {"input_guidance": i, "class_guidance": c}
        return {
            "set": "a",
            "what": "wide",
            "method": OURS,
            "features": "some",
            "settings": settings,
            "lpips": [0.1 + i, 0.01],
            "frechet": 5 - c,
        }

    file = tmp_path / "guidance.png"
    assert not guidance_plot([row(0, 0), row(1, 0)], file)
    assert not file.exists()
    assert guidance_plot([row(i, c) for i in (0, 1) for c in (0, 2)], file)
    with Image.open(file) as image:
        assert image.width > 300


# ---- The command


@pytest.fixture
def folder(tmp_path):
    for k, levels in enumerate(store(6).pictures):
        place = tmp_path / "photos" / ("cat", "tabby")[k % 2]
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(levels).save(place / f"{k}.png")
    return tmp_path / "photos"


def run(*args):
    return CliRunner().invoke(app, ["evaluate", *map(str, args)])


def test_tables_are_written_and_cells_shared(tiny_model, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCPATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ASYNCPATCH_LPIPS", raising=False)
    common = ("--data", folder, "-o", tmp_path / "out", "--model", tiny_model, "--holes", "square,wide", "--count", 2,
              "--steps", 1, "--input-guidance", "0,1", "--device", "cpu", "--precision", "fp32")  # fmt: skip
    half = run(*common, "--shard", "1/2")
    assert half.exit_code == 0, half.output
    assert "2 of 4 cells are there so far" in half.output
    whole = run(*common)
    assert whole.exit_code == 0, whole.output
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    assert [(each["what"], each["settings"]["input_guidance"]) for each in table] == [
        ("square", 0.0), ("square", 1.0), ("wide", 0.0), ("wide", 1.0),
    ]  # fmt: skip
    assert (tmp_path / "out" / "table.md").read_text().strip() in whole.output
    assert len((tmp_path / "out" / "table.csv").read_text().splitlines()) == 5
    assert len(list((tmp_path / "out" / "sheets").glob("*.png"))) == 4
    assert run(*common, "--size", 40, "--input-guidance", "0").exit_code == 0
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    assert [each["set"] for each in table] == ["photos at 40"] * 2
    assert max(each["calls"] for each in table) > 1  # windows


def test_processes_share_each_cell(tiny_model, folder, tmp_path, monkeypatch):
    """And come to what one does. One writes and speaks."""
    monkeypatch.setenv("ASYNCPATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("ASYNCPATCH_LPIPS", raising=False)
    start, told = [sys.executable, "-m"], []
    several = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
    for name, how in (("alone", []), ("both", several)):
        call = ["asyncpatch", "evaluate", "--data", folder, "-o", tmp_path / name, "--model", tiny_model, "--holes",
                "square", "--count", 5, "--samples", 11, "--references", 10, "--steps", 1, "--frechet",
                "--device", "cpu", "--precision", "fp32"]  # fmt: skip
        ended = subprocess.run(
            [*start, *how, *map(str, call)], capture_output=True, text=True, timeout=600, check=False
        )
        assert ended.returncode == 0, ended.stderr
        told.append((json.loads((tmp_path / name / "table.json").read_text()), ended.stdout))
    same(told[0][0], told[1][0])
    assert [row["pictures"] for row in told[1][0]] == [5, 11]
    assert told[1][1].count("| square |") == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("--holes", ""), "nothing to evaluate"),
        (("--steps", "many"), "--steps must be whole numbers"),
        (("--steps", "16.5"), "--steps must be whole numbers"),
        (("--eta", "x"), "--eta must be numbers"),
        (("--references", "3"), "references must be an integer of at least 10"),
        (("--solver", "ddim,magic"), "solver must be one of ddim, multistep"),
        (("--features", "vgg"), "--features must be one of lite, inception"),
        (("--features", "inception"), "changes nothing without"),
        (("--features", "inception", "--frechet"), "FID needs torch-fidelity"),
        (("--methods", "asyncpatch,supervised"), "--methods supervised needs a network that is shown"),
        (("--methods", "magic"), "method must be one of"),
        (("--holes", "square,round"), "holes must be of extrema"),
        (("--count", "1"), "count must be an integer of at least 2"),
        (("--size", "4"), "size must be an integer of at least 8"),
        (("--size", "24", "--methods", "ddnm"), "fills pictures of the model's 16 pixels, not 24"),
        (("--samples", "3"), "count of samples must be an integer of at least 10"),
    ],
)
def test_mistakes_are_one_line(wrong, said, tiny_model, folder, tmp_path, monkeypatch):
    monkeypatch.setenv("ASYNCPATCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "torch_fidelity", None)
    result = run("--data", folder, "-o", tmp_path / "out", "--model", tiny_model, *wrong)
    assert result.exit_code == 2
    assert said in result.output
    assert not (tmp_path / "out" / "cells").exists()  # nothing was computed before


def test_sets_of_one_name_are_refused(tiny_model, folder, tmp_path):
    result = run("--data", folder, "--data", folder, "-o", tmp_path / "out", "--model", tiny_model)
    assert result.exit_code == 2
    assert "two sets have the same name" in result.output


def test_class_guidance_needs_labels(pipe, tmp_path):
    bare = Store(store().pictures, np.full(12, -1), ())
    cell = Cell("noise", "thin", OURS, Settings(steps=1, class_guidance=1.0, batch=8), 3)
    with pytest.raises(ValueError, match="not all pictures of noise have one"):
        Evaluation(pipe, tmp_path, {"noise": bare}).result(cell)


def test_a_cell_is_computed_anew_for_another_head_or_another_painted_order(pipe, tmp_path):
    work = evaluation(pipe, tmp_path)
    order = tmp_path / "order.png"
    names = []
    for grey in (10, 20):
        Image.new("L", (16, 16), grey).save(order)
        names.append(work.name(Cell("noise", "square", OURS, Settings(schedule=str(order)), 4)))
    assert names[0] != names[1]
    head = UncertaintyHead.beside(pipe.unet)
    sure = AsyncPatchPipeline(pipe.unet, "rectified_flow", "v", 16, pipe.config.labels, head).prepare("cpu", "fp32")
    paced, plain = (Cell("noise", "square", OURS, Settings(schedule=name), 4) for name in ("paced", "synchronous"))
    with pytest.raises(ValueError, match="train-uncertainty makes one"):
        work.check(paced)
    work = evaluation(sure, tmp_path)
    before = work.name(paced), work.name(plain)
    torch.nn.init.ones_(head.out.bias)
    assert work.name(paced) != before[0]
    assert work.name(plain) == before[1]
    with pytest.raises(ImageError, match="there is no file 'zigzag'"):
        work.check(Cell("noise", "square", OURS, Settings(schedule="zigzag"), 4))


def test_compiling_is_asked_for_on_the_command_line(tiny_model, tmp_path, monkeypatch):
    asked = []

    def prepare(self, device, precision, *, compiled):
        asked.append(compiled)
        raise ValueError("enough")

    monkeypatch.setattr(AsyncPatchPipeline, "prepare", prepare)
    told = ["evaluate", "--model", str(tiny_model), "--data", "shapes", "-o", str(tmp_path / "out")]
    for more in ([], ["--compile"]):
        assert "enough" in CliRunner().invoke(app, told + more).output
    assert asked == [False, True]


def test_a_rival_is_asked_about_no_more_at_a_time_than_is_said(pipe, tmp_path):
    """Not even by DeqIR, which asks about all its times at once; and no more than there are pictures."""
    seen, found = [], []
    pipe.unet.register_forward_hook(lambda _, told, __: seen.append(len(told[0])))
    for batch, most in ((2, 2), (64, 3)):
        seen.clear()
        cell = Cell("noise", "square", "deqir", replace(QUICK, batch=batch), 3)
        found.append(evaluation(pipe, tmp_path / str(batch)).result(cell))
        assert max(seen) == most
    assert found[0]["psnr"] == pytest.approx(found[1]["psnr"], rel=1e-4)
