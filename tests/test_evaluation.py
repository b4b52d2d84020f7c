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
from asyncpatch.images import ImageError
from asyncpatch.metrics import FEATURES
from asyncpatch.models.uncertainty import UncertaintyHead
from asyncpatch.models.unet import UNet
from asyncpatch.pipelines import AsyncPatchPipeline
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


@pytest.mark.parametrize(("method", "calls"), [("replacement", 250), ("ddrm", 20), ("ddnm", 100)])
def test_rivals_see_the_same_pictures_and_holes(method, calls, pipe, tmp_path):
    work = evaluation(pipe, tmp_path)
    ours, theirs = (work.result(Cell("noise", "square", name, QUICK, 2)) for name in (OURS, method))
    assert theirs["calls"] == calls
    assert theirs["seam of the original"] == ours["seam of the original"]
    assert theirs["psnr"][0] != ours["psnr"][0]


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
    assert torch.allclose(seen[0][:2], torch.cat([x * (1 - hole), hole], 1), atol=1e-6)
    assert torch.equal(seen[0][2:, 3], torch.ones(2, 16, 16))
    for pipeline, method in ((shown, OURS), (pipe, "supervised")):
        with pytest.raises(ValueError, match=f"--methods {method} needs a network that is"):
            evaluation(pipeline, tmp_path).result(Cell("noise", "square", method, QUICK, 2))
    with pytest.raises(ValueError, match="is shown what is known beside its canvas"):
        shown.inpaint(store().pictures[0], hole[0])
    assert shown.generate(steps=1).images[0].size == (16, 16)


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
