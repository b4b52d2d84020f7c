"""Pictures from the command line: files, notes and seeds; errors in one line, exit code 2, and nothing half written."""

import os
import re
import subprocess
import sys
from dataclasses import fields, replace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from asyncpatch.cli import app
from asyncpatch.cli.common import shard_from, size_from
from asyncpatch.pipelines import AsyncPatchPipeline, Speed
from asyncpatch.progress import spoken
from asyncpatch.settings import Settings


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a photo and a mask, to work in."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    Image.fromarray(random.integers(0, 256, (40, 60, 3), np.uint8)).save("photo.png")
    hole = np.zeros((40, 60), np.uint8)
    hole[10:20, 20:30] = 255
    Image.fromarray(hole).save("mask.png")
    return tmp_path


@pytest.fixture
def run(tiny_model):
    def command(name, *arguments, quick=True):
        machine = ["--model", str(tiny_model), "--device", "cpu", "--precision", "fp32"]
        steps = ["--steps", "2"] if quick and name != "info" else []
        return CliRunner().invoke(app, [name, *map(str, arguments), *machine, *steps], env={"COLUMNS": "200"})

    return command


def size_of(name):
    with Image.open(name) as image:
        return image.size


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_help_is_instant_and_lists_all_settings():
    code = (
        "import sys; from asyncpatch.cli import app\n"
        "try: app(['inpaint', '--help'])\n"
        "finally: assert not {'torch', 'diffusers', 'PIL', 'numpy'} & set(sys.modules)"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"COLUMNS": "200", "PATH": ""}
    ).stdout
    shown = " ".join(shown.split())  # wherever lines are broken
    for each in fields(Settings):
        assert f"--{each.name.replace('_', '-')} " in shown
        assert f"[default: {each.default}]" in shown
    for name in ("--mask", "--invert", "--grow", "--feather", "--seed", "--device", "--gif", "--grid", "--shard"):
        assert name in shown


def test_inpainting_keeps_all_but_the_hole(here, run):
    done = run("inpaint", "photo.png", "--mask", "mask.png", "-o", "out.png", "-n", 2, "--seed", 4)
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == ["wrote out-1.png (seed 4)", "wrote out-2.png (seed 5)"]
    x, hole = (np.asarray(Image.open(name)) for name in ("photo.png", "mask.png"))
    for k in (1, 2):
        made = np.asarray(Image.open(f"out-{k}.png"))
        assert np.array_equal(made[hole == 0], x[hole == 0])
        assert not np.array_equal(made[hole > 0], x[hole > 0])
    assert names(here) == ["mask.png", "out-1.png", "out-2.png", "photo.png"]


def test_quality_in_a_word(here, run):
    made = []
    words = (
        [],
        ["--quality", "balanced"],
        ["--steps", "16"],
        ["--calls", "32"],
        ["--quality", "fast"],
        ["--steps", "8"],
    )
    for word in words:
        name = f"{len(made)}.png"
        result = run("inpaint", "photo.png", "--mask", "mask.png", "--seed", 3, "-o", name, *word, quick=False)
        assert result.exit_code == 0, result.output
        made.append((here / name).read_bytes())
    assert made[0] == made[1] == made[2] == made[3] != made[4] == made[5]
    result = run("generate", "--calls", 8, "--steps", 4, quick=False)
    assert result.exit_code == 2
    assert "leave out steps" in result.output


def test_results_have_a_name_of_their_own_where_none_is_given(here, run):
    assert run("inpaint", "photo.png", "--mask", "mask.png").exit_code == 0
    assert run("outpaint", "photo.png", "--right", 8, "-o", "some/folder").exit_code == 0
    assert run("generate").exit_code == 0
    assert names(here) == [
        "generated.png", "mask.png", "photo-inpainted.png", "photo.png", "some/folder/photo-outpainted.png",
    ]  # fmt: skip
    assert size_of("some/folder/photo-outpainted.png") == (68, 40)


def test_generating_by_label_on_one_sheet_with_an_animation(here, run):
    done = run("generate", "--label", "tabby", "-n", 5, "--grid", "-o", "sheet.png", "--gif", "run.gif")
    assert done.exit_code == 0, done.output
    assert size_of("sheet.png")[0] > 300
    with Image.open("run.gif") as gif:
        assert gif.n_frames == 3  # two visits, and what was made of them
        gif.seek(gif.n_frames - 1)
        assert gif.info["duration"] >= 1000
    assert run("generate", "--size", "24x40", "-o", "tall.png").exit_code == 0
    assert size_of("tall.png") == (24, 40)


def test_candidates_keep_their_places_in_a_gif_whatever_their_rank(here, run, monkeypatch):
    monkeypatch.setattr(
        "asyncpatch.cli.pictures.ranked",
        lambda pipeline, plan, made: replace(made, pictures=made.pictures[::-1], seeds=made.seeds[::-1]),
    )
    drawn = []
    monkeypatch.setattr("asyncpatch.frames.Frames.write", lambda self, made, *rest, **how: drawn.append(made.seeds))
    done = run("generate", "--label", "tabby", "-n", 3, "--seed", 3, "--rank", "-o", "best.png", "--gif", "best.gif")
    assert done.exit_code == 0, done.output
    assert re.findall(r"seeds? ([\d, ]+)", done.output) == ["5", "4", "3", "3, 4, 5"]
    assert drawn == [[3, 4, 5]]


def test_the_animation_ends_with_the_result(here, run):
    assert run("inpaint", "photo.png", "--mask", "mask.png", "-o", "out.png", "--gif", "run.gif").exit_code == 0
    out = np.asarray(Image.open("out.png")).astype(int)
    with Image.open("run.gif") as gif:
        first = np.asarray(gif.convert("RGB")).astype(int)
        gif.seek(gif.n_frames - 1)
        last = np.asarray(gif.convert("RGB")).astype(int)
    scale = last.shape[0] // 16
    assert last.shape == (16 * scale, 16 * scale, 3)  # the surroundings of the hole
    shown = last[::scale, ::scale]
    assert np.abs(shown - out[7:23, 17:33]).mean() < 12  # a palette of 256 colours
    assert np.abs(first[::scale, ::scale] - shown).mean() > 1


def test_textures_grow_and_tile(here, run):
    Image.open("photo.png").crop((0, 0, 24, 24)).save("swatch.png")
    assert run("texture", "swatch.png", "--size", "40x32", "-o", "large.png").exit_code == 0
    assert size_of("large.png") == (40, 32)
    assert run("texture", "swatch.png", "--tileable", "-o", "tile.png").exit_code == 0
    assert size_of("tile.png") == (24, 24)


def test_what_a_file_carries_survives(here, run):
    random = np.random.default_rng(1)
    levels = random.integers(0, 65536, (40, 60), np.uint16)
    Image.fromarray(levels).save("deep.png", dpi=(300, 300), icc_profile=b"\0" * 16 + b"GRAY" + b"\0" * 108)
    assert run("inpaint", "deep.png", "--mask", "mask.png", "-o", "out.png").exit_code == 0
    with Image.open("out.png") as out:
        assert out.mode == "I;16"
        assert out.info["icc_profile"][16:20] == b"GRAY"
        assert out.info["dpi"][0] == pytest.approx(300, abs=1)
        hole = np.asarray(Image.open("mask.png")) > 0
        assert np.array_equal(np.asarray(out)[~hole], levels[~hole])


def test_notes_are_said(here, run):
    Image.open("mask.png").save("mask.jpg", quality=60)
    done = run("inpaint", "photo.png", "--mask", "mask.jpg", "-o", "out.jpg")
    assert done.exit_code == 0
    assert "note: the mask is a lossy file" in done.stderr
    assert "note: JPEG is lossy" in done.stderr


def test_info_says_so_where_no_model_ships(monkeypatch, tmp_path):
    monkeypatch.setattr("asyncpatch.shipped.__file__", str(tmp_path / "src/asyncpatch/shipped.py"))
    done = CliRunner().invoke(app, ["info", "--device", "cpu"])
    assert done.exit_code == 0
    assert "device cpu" in done.stdout
    assert "carries no trained model" in done.stdout


def test_the_model_is_chosen_for_the_hole_or_said(here, two_ship):
    def made(name, *said):
        command = ["inpaint", "photo.png", "--mask", "mask.png", "-o", name, "--seed", "1", "--steps", "2"]
        done = CliRunner().invoke(app, [*command, "--device", "cpu", "--precision", "fp32", *said])
        assert done.exit_code == 0, done.output
        told.append(done.stderr.split("\n")[0])
        return np.asarray(Image.open(name))

    pictures, told = {}, []
    for name in ("small", "large"):
        pipe = AsyncPatchPipeline.from_pretrained(name).prepare("cpu", "fp32")
        for grow in (0, 3):  # a hole of 10 pixels, which a window of 16 sees across, and one of 16
            pictures[name, grow] = np.asarray(
                pipe.inpaint("photo.png", "mask.png", seed=1, steps=2, grow=grow).images[0]
            )
            said = made(f"{name}-{grow}.png", "--model", name, "--grow", str(grow))
            assert np.array_equal(said, pictures[name, grow])
    for name, other, grow in (("small", "large", 0), ("large", "small", 3)):
        assert np.array_equal(made(f"{grow}.png", "--grow", str(grow)), pictures[name, grow])
        assert told[-1] == f"model {name}"
        assert not np.array_equal(pictures[name, grow], pictures[other, grow])


def test_a_model_that_is_neither_folder_nor_name_is_refused(two_ship, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["generate", "--model", "medium"])
    assert done.exit_code == 2
    assert "no model folder medium, and no model of that name ships; here there is small, large" in done.stderr
    # as in a wheel, which has not all
    monkeypatch.setattr("asyncpatch.shipped.SHIPPED", ("small", "large", "medium"))
    done = CliRunner().invoke(app, ["generate", "--model", "medium"])
    assert done.exit_code == 2
    assert "medium is not part of this copy of asyncpatch: a checkout" in done.stderr


def test_info_lists_all_that_ship(two_ship):
    shown = CliRunner().invoke(app, ["info", "--device", "cpu"], env={"COLUMNS": "200"}).stdout
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("model ")] == ["small", "large"]
    assert "one for every 2x2 pixels" in shown
    assert "2 models, of which one is chosen for each picture; small where nothing speaks for another" in shown
    shown = CliRunner().invoke(app, ["info", "--device", "cpu", "--model", "small"], env={"COLUMNS": "200"}).stdout
    assert "model small" in shown
    assert "large" not in shown


def test_a_textures_help_states_its_own_defaults():
    shown = " ".join(CliRunner().invoke(app, ["texture", "--help"], env={"COLUMNS": "200"}).stdout.split())
    assert "[default: 1.0]" in shown.split("--input-guidance")[1].split("--refine")[0]


def test_info_says_what_there_is(run, tiny_model):
    shown = run("info").stdout
    assert str(tiny_model) in shown
    assert "3 labels: tabby, cat, Golden retriever" in shown
    assert "16 pixels" in shown
    assert "cpu (fp32)" in shown


def test_a_long_job_says_first_how_long(here, run, monkeypatch):
    monkeypatch.setattr("asyncpatch.pipelines.AsyncPatchPipeline.speed", lambda self: Speed(50.0))
    done = run("generate")
    assert "about 1.7 minutes on cpu (fp32): the network sees 2 windows" in done.stderr
    monkeypatch.undo()
    assert spoken(5) == "5 seconds"
    assert spoken(100) == "1.7 minutes"
    assert spoken(9000) == "2.5 hours"


BOMB = bytes.fromhex("89504e470d0a1a0a0000000d49484452000186a0000186a0080200000088e62e95")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["inpaint", "none.png", "--mask", "mask.png"], "there is no such file or folder"),
        (["inpaint", "phots", "--masks", "masks", "-o", "out"], "there is no such file or folder"),
        (["texture", "photo.png", "--mask", "black.png"], "use --invert"),
        (["inpaint", "photo.png"], "give --mask"),
        (["inpaint", "photo.png", "--mask", "none.png"], "there is no such file"),
        (["inpaint", "photo.png", "--mask", "wide.png"], "the shapes differ"),
        (["inpaint", "photo.png", "--mask", "black.png"], "nothing to repaint"),
        (["inpaint", "svg.png", "--mask", "mask.png"], "not a picture that can be read"),
        (["inpaint", "cut.png", "--mask", "mask.png"], "damaged or cut short"),
        (["inpaint", "bomb.png", "--mask", "mask.png"], "bomb"),
        (["inpaint", "photo.png", "--mask", "mask.png", "-o", "photo.png", "--force"], "inputs are never overwritten"),
        (["inpaint", "photo.png", "--mask", "mask.png", "-o", "mask.png", "--force"], "inputs are never overwritten"),
        (["inpaint", "photo.png", "--mask", "mask.png", "-o", "black.png"], "exists already"),
        (["inpaint", "photo.png", "--mask", "mask.png", "-o", "out.xyz"], "suffix"),
        (["inpaint", "photo.png", "--mask", "mask.png", "--gif", "out.png"], "what can be written is .gif"),
        (["inpaint", "photo.png", "--mask", "mask.png", "--shard", "1/2"], "for a folder"),
        (["inpaint", "photo.png", "--mask", "mask.png", "--label", "taby"], "did you mean 'tabby'"),
        (["inpaint", "photo.png", "--mask", "mask.png", "--eta", "x"], "eta: cannot read 'x'"),
        (["inpaint", "photo.png", "--mask", "mask.png", "--refine", "3"], r"refine must lie in [0, 1]"),
        (["inpaint", "photo.png", "--mask", "mask.png", "--schedule", "none"], "there is no file 'none'"),
        (["outpaint", "photo.png"], "nothing to extend"),
        (["outpaint", "photo.png", "--right", "-5"], "right must be"),
        (["outpaint", "photo.png", "--right", "99999999"], "more than the"),
        (["texture", "photo.png"], "nothing to grow"),
        (["texture", "photo.png", "--size", "big"], "WIDTHxHEIGHT"),
        (["generate", "--size", "99999x99999"], "pixels"),
        (["generate", "-n", "0"], "n must be"),
        (["generate", "--class-guidance", "2"], "give one"),
        (["generate", "--device", "cuda:77"], "device"),
        (["generate", "--model", "nowhere"], "there is no model folder nowhere"),
        (["generate", "--model", "."], "is no model folder"),
        (["generate", "--model", "run"], "did you mean run/model?"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(here, run, arguments, said, tiny_model):
    (here / "svg.png").write_text("<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>")
    (here / "cut.png").write_bytes((here / "photo.png").read_bytes()[:3000])
    (here / "bomb.png").write_bytes(BOMB)
    Image.new("L", (60, 40)).save("black.png")
    Image.new("L", (99, 40), 255).save("wide.png")
    (here / "run").mkdir()
    (here / "run/model").symlink_to(tiny_model)
    before = names(here)
    if "--model" in arguments or "--device" in arguments:
        more = [] if "--model" in arguments else ["--model", str(tiny_model)]
        done = CliRunner().invoke(app, [*arguments, *more])
    else:
        done = run(*arguments, quick=True)
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert names(here) == before


def test_force_overwrites(here, run):
    Image.new("RGB", (5, 5)).save("out.png")
    assert run("generate", "-o", "out.png").exit_code == 2
    assert size_of("out.png") == (5, 5)
    assert run("generate", "-o", "out.png", "--force").exit_code == 0
    assert size_of("out.png") == (16, 16)


def test_names_are_padded_and_a_sheet_shows_what_was_given(here, run):
    assert run("generate", "-n", 10, "-o", "many.png").exit_code == 0
    assert {"many-01.png", "many-10.png"} <= set(names(here))
    assert run("inpaint", "photo.png", "--mask", "mask.png", "-n", 2, "--grid", "-o", "sheet.png").exit_code == 0
    with Image.open("sheet.png") as sheet:
        width, height = sheet.size
        shown = np.asarray(sheet.convert("RGB")).astype(int)
    assert width * height > 3 * 120 * 80  # three tiles, enlarged twice
    x = np.asarray(Image.open("photo.png")).astype(int)
    given = shown[4:84:2, 4:124:2]
    assert np.array_equal(given[:10], x[:10])
    assert (np.abs(given[10:20, 20:30] - 128) <= 1).all()


def test_the_masks_options_reach_the_hole(here, run):
    x, hole = (np.asarray(Image.open(name)) for name in ("photo.png", "mask.png"))

    def changed(*how):
        assert run("inpaint", "photo.png", "--mask", "mask.png", "-o", "out.png", "--force", *how).exit_code == 0
        return (np.asarray(Image.open("out.png")) != x).any(-1)

    assert not changed("--invert")[hole > 0].any()
    assert changed("--grow", 3)[8, 25]
    assert not changed("--feather", 3)[hole == 0].any()
    Image.open("photo.png").crop((0, 0, 40, 40)).save("half.png")
    Image.fromarray(hole[:, 10:50]).save("missing.png")
    assert run("texture", "half.png", "--mask", "missing.png", "-o", "whole.png").exit_code == 0
    off = (np.asarray(Image.open("whole.png")) != np.asarray(Image.open("half.png"))).any(-1)
    assert not off[hole[:, 10:50] == 0].any()
    assert off.any()
    assert run("outpaint", "photo.png", "--left", 8, "--bottom", 4, "-o", "larger.png").exit_code == 0
    assert np.array_equal(np.asarray(Image.open("larger.png"))[:40, 8:], x)


def test_no_input_is_overwritten_and_targets_are_checked_before_the_work(here, run, monkeypatch):
    Image.open("mask.png").save("order.png")

    def refuse(self, *args):
        raise AssertionError("the work was begun")

    monkeypatch.setattr("asyncpatch.pipelines.AsyncPatchPipeline.run", refuse)
    for arguments in (
        ["inpaint", "photo.png", "--mask", "mask.png", "--schedule", "order.png", "-o", "order.png"],
        ["outpaint", "photo.png", "--right", "4", "-o", "photo.png"],
        ["texture", "photo.png", "--mask", "mask.png", "-o", "mask.png"],
    ):
        done = run(*arguments, "--force")
        assert done.exit_code == 2
        assert "inputs are never overwritten" in done.stderr


@pytest.mark.parametrize(
    ("output", "code", "made"),
    [
        ("dir.v2", 0, "dir.v2/generated.png"),  # a folder that is there, whatever its name
        ("new/deep", 0, "new/deep/generated.png"),
        ("plain", 2, "a file"),
        ("photo.png/sub", 2, "is a file, not a folder"),
        ("nowhere/out.png", 0, "nowhere/out.png"),
    ],
)
def test_what_an_output_means(here, run, output, code, made):
    (here / "dir.v2").mkdir()
    (here / "plain").write_text("a file")
    done = run("generate", "-o", output)
    assert done.exit_code == code, done.output
    if code:
        assert names(here) == ["mask.png", "photo.png", "plain"]
        assert "Traceback" not in done.stderr
    else:
        assert (here / made).is_file()


def test_a_command_that_fails_leaves_no_folder(here, run):
    assert run("outpaint", "photo.png", "-o", "new/folder").exit_code == 2
    assert not (here / "new").exists()


def test_broken_models_and_a_lack_of_memory_are_said(here, run, tiny_model, monkeypatch):
    import shutil

    import torch

    broken = here / "broken"
    for damage in ("weights", "index", "process"):
        shutil.copytree(tiny_model, broken)
        if damage == "weights":
            next((broken / "unet").glob("*.safetensors")).write_bytes(b"no weights")
        elif damage == "index":
            (broken / "model_index.json").write_text("{")
        else:
            index = (broken / "model_index.json").read_text()
            (broken / "model_index.json").write_text(index.replace("rectified_flow", "odd"))
        done = CliRunner().invoke(app, ["generate", "--model", "broken", "--device", "cpu"])
        assert done.exit_code == 2, damage
        assert "cannot be read as a model" in done.stderr
        shutil.rmtree(broken)

    def full(self, *args):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("asyncpatch.pipelines.AsyncPatchPipeline.run", full)
    done = run("generate")
    assert done.exit_code == 2
    assert "out of memory: use a smaller picture" in done.stderr


def test_sizes_and_shards_are_read():
    assert size_from("640x480") == (480, 640)
    assert size_from(" 64 ") == (64, 64)
    assert shard_from("2/8") == (1, 8)
    for wrong in ("0/8", "9/8", "1", "a/b", "1/0"):
        with pytest.raises(ValueError, match="i from 1 to n"):
            shard_from(wrong)


@pytest.mark.parametrize(("given", "wanted"), [({}, "10000"), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_threads_do_not_spin_long_unless_they_are_told_to(given, wanted):
    code = "import asyncpatch.cli, os, sys; assert 'torch' not in sys.modules; print(os.environ['GOMP_SPINCOUNT'])"
    plain = {name: value for name, value in os.environ.items() if name != "GOMP_SPINCOUNT"}
    said = subprocess.run(
        [sys.executable, "-c", code], env={**plain, **given}, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == wanted
