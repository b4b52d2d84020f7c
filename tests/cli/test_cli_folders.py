"""Folders in, folders out."""

import os
import re

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from asyncpatch.cli import app


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Photos of two sizes, one in a subfolder, with masks of the same names."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for k, name in enumerate(["a.png", "b.jpg", "deep/c.png", "d.png", "e.webp"]):
        height, width = (40, 60) if k % 2 else (24, 30)
        for folder in ("photos", "masks"):
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (height, width, 3), np.uint8)).save(tmp_path / "photos" / name)
        hole = np.zeros((height, width), np.uint8)
        hole[8:16, 8:18] = 255
        Image.fromarray(hole).save((tmp_path / "masks" / name).with_suffix(".png"))
    return tmp_path


@pytest.fixture
def run(tiny_model):
    def command(*arguments):
        machine = ["--model", str(tiny_model), "--device", "cpu", "--precision", "fp32", "--steps", "2"]
        return CliRunner().invoke(app, ["inpaint", *map(str, arguments), *machine], env={"COLUMNS": "200"})

    return command


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_every_picture_is_filled_and_keeps_its_place(here, run):
    done = run("photos", "--masks", "masks", "-o", "out", "--seed", 3)
    assert done.exit_code == 0, done.output
    assert names(here / "out") == ["a.png", "b.png", "d.png", "deep/c.png", "e.png"]
    for path in (here / "photos").rglob("*.*"):
        inside = path.relative_to(here / "photos").with_suffix(".png")
        files = (path, here / "masks" / inside, here / "out" / inside)
        x, hole, made = (np.asarray(Image.open(each)) for each in files)
        assert np.array_equal(made[hole == 0], x[hole == 0])
        assert not np.array_equal(made[hole > 0], x[hole > 0])


def test_where_nothing_can_be_written_nothing_is_done(here, run, monkeypatch):
    (here / "out").mkdir()
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "out" not in str(path) and may(path, mode))
    done = run("photos", "--masks", "masks", "-o", "out/deeper")
    assert done.exit_code == 2
    assert "may not write into out" in done.output
    assert names(here / "out") == []


def test_one_of_them_alone_comes_out_the_same(here, run):
    assert run("photos", "--masks", "masks", "-o", "out", "--seed", 3).exit_code == 0
    assert run("photos/a.png", "--mask", "masks/a.png", "-o", "alone.png", "--seed", 3).exit_code == 0
    alone, together = (np.asarray(Image.open(name), np.int16) for name in ("alone.png", "out/a.png"))
    assert np.abs(alone - together).max() <= 1


def test_what_is_done_is_not_done_again(here, run):
    assert run("photos", "--masks", "masks", "-o", "out", "--seed", 3).exit_code == 0
    (here / "out/d.png").unlink()
    before = (here / "out/a.png").stat().st_mtime_ns
    done = run("photos", "--masks", "masks", "-o", "out", "--seed", 3)
    assert done.exit_code == 0
    assert "4 of 5 pictures are there already" in done.stderr
    assert "wrote 1 pictures" in done.stdout
    assert (here / "out/a.png").stat().st_mtime_ns == before
    assert run("photos", "--masks", "masks", "-o", "out", "--seed", 3, "--force").exit_code == 0
    assert (here / "out/a.png").stat().st_mtime_ns != before


def test_a_broken_picture_or_mask_does_not_stop_the_rest(here, run):
    (here / "photos/b.jpg").write_bytes(b"no picture")
    (here / "masks/d.png").unlink()
    Image.new("L", (7, 7), 255).save(here / "masks/a.png")
    done = run("photos", "--masks", "masks", "-o", "out")
    assert done.exit_code == 1
    assert names(here / "out") == ["deep/c.png", "e.png"]
    assert "3 of 5 pictures could not be done" in done.stderr
    said = " ".join(done.stderr.split())
    for part in ("b.jpg: not a picture", "d.png: its mask must be masks/d with any suffix", "the shapes differ"):
        assert part in said


def test_shards_share_the_work(here, run):
    done = []
    for k in (1, 2, 3):
        assert run("photos", "--masks", "masks", "-o", f"out{k}", "--shard", f"{k}/3").exit_code == 0
        done += names(here / f"out{k}")
    assert sorted(done) == ["a.png", "b.png", "d.png", "deep/c.png", "e.png"]


def test_one_mask_for_all_and_several_candidates(here, run):
    for name in ("photos/a.png", "photos/deep/c.png", "photos/e.webp"):
        (here / name).unlink()
    done = run("photos", "--mask", "masks/b.png", "-o", "out", "-n", 2)
    assert done.exit_code == 0, done.output
    assert names(here / "out") == ["b-1.png", "b-2.png", "d-1.png", "d-2.png"]


def test_pictures_of_one_name_do_not_overwrite_each_other(here, run):
    Image.open(here / "photos/a.png").save(here / "photos/a.bmp")
    assert run("photos", "--masks", "masks", "-o", "out").exit_code == 0
    assert {"a.bmp.png", "a.png.png"} <= set(names(here / "out"))


def test_names_never_clash(here, run):
    for name in ("a.jpg", "a.jpg.png"):
        Image.open(here / "photos/a.png").convert("RGB").save(here / "photos" / name)
    Image.open(here / "masks/a.png").save(here / "masks/a.jpg.png")
    done = run("photos", "--masks", "masks", "-o", "out")
    assert done.exit_code == 0, done.output
    assert len(names(here / "out")) == 7
    assert "wrote 7 pictures" in done.stdout


def test_results_and_masks_inside_the_folder_are_not_taken_for_photos(here, run):
    (here / "masks").rename(here / "photos/masks")
    (here / "photos/.thumbs").mkdir()
    Image.new("RGB", (9, 9)).save(here / "photos/.thumbs/x.png")
    for _ in range(2):
        assert run("photos", "--masks", "photos/masks", "-o", "photos/out").exit_code == 0
    assert names(here / "photos/out") == ["a.png", "b.png", "d.png", "deep/c.png", "e.png"]


def test_a_missing_candidate_alone_is_made_again(here, run):
    assert run("photos", "--masks", "masks", "-o", "out", "-n", 2, "--seed", 1).exit_code == 0
    before = {name: (here / "out" / name).stat().st_mtime_ns for name in names(here / "out")}
    (here / "out/a-2.png").unlink()
    assert run("photos", "--masks", "masks", "-o", "out", "-n", 2, "--seed", 1).exit_code == 0
    after = {name: (here / "out" / name).stat().st_mtime_ns for name in names(here / "out")}
    assert {name for name in after if after[name] != before[name]} == {"a-2.png"}


def test_the_seed_that_was_drawn_is_told_and_shared(here, run):
    done = run("photos", "--masks", "masks", "-o", "out")
    seed = done.stderr.split("seed ")[1].split()[0]
    assert run("photos/d.png", "--mask", "masks/d.png", "-o", "alone.png", "--seed", seed).exit_code == 0
    alone, together = (np.asarray(Image.open(name), np.int16) for name in ("alone.png", "out/d.png"))
    assert np.abs(alone - together).max() <= 1


def test_the_mask_of_the_same_full_name_comes_first(here, run):
    Image.new("L", (30, 24), 255).save(here / "masks/a.bmp")
    assert run("photos", "--masks", "masks", "-o", "out").exit_code == 0
    (here / "photos/a.png").rename(here / "photos/a.webp")  # now neither is
    Image.open(here / "photos/d.png").save(here / "photos/a.webp")
    done = run("photos", "--masks", "masks", "-o", "other")
    assert done.exit_code == 1
    assert "there are several" in done.stderr


def test_mask_options_and_notes_reach_folders(here, run):
    assert run("photos", "--masks", "masks", "-o", "out", "--invert").exit_code == 0
    x, made, hole = (np.asarray(Image.open(here / name)) for name in ("photos/a.png", "out/a.png", "masks/a.png"))
    assert np.array_equal(made[hole > 0], x[hole > 0])
    for path in (here / "masks").rglob("*.png"):
        Image.open(path).save(path.with_suffix(".jpg"), quality=50)
        path.unlink()
    done = run("photos", "--masks", "masks", "-o", "more")
    assert "note: the mask is a lossy file" in done.stderr


def test_one_that_fails_at_work_does_not_stop_the_rest(here, run, monkeypatch):
    from asyncpatch.pipelines import AsyncPatchPipeline

    whole = AsyncPatchPipeline.run

    def sometimes(self, plan, watch=None):
        if any(task.picture.name.endswith("d.png") for task in plan.tasks):
            raise FloatingPointError("sampling broke down")
        return whole(self, plan, watch)

    monkeypatch.setattr(AsyncPatchPipeline, "run", sometimes)
    done = run("photos", "--masks", "masks", "-o", "out")
    assert done.exit_code == 1
    assert "d.png: sampling broke down" in " ".join(done.stderr.split())
    assert names(here / "out") == ["a.png", "b.png", "deep/c.png", "e.png"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["photos", "-o", "out"], "give --masks"),
        (["photos", "--masks", "masks", "--mask", "masks/a.png", "-o", "out"], "give --masks"),
        (["photos", "--masks", "masks/a.png", "-o", "out"], "for one mask use --mask"),
        (["photos", "--masks", "nope", "-o", "out"], "there is none of that name"),
        (["photos", "--masks", "masks"], "give -o, a folder"),
        (["photos", "--masks", "masks", "-o", "out.png"], "give -o, a folder"),
        (["photos", "--masks", "masks", "-o", "photos"], "inputs are never overwritten"),
        (["photos", "--masks", "masks", "-o", "masks"], "inputs are never overwritten"),
        (["photos", "--masks", "masks", "-o", "out", "--shard", "3/2"], "i from 1 to n"),
        (["empty", "--masks", "masks", "-o", "out"], "no pictures"),
        (["photos", "--mask", "masks/a.png", "-o", "masks", "--force"], "inputs are never overwritten"),
        (["photos", "--masks", "masks", "-o", "photos/a.png"], "give -o, a folder"),
        (["photos", "--masks", "masks", "-o", "out", "--class-guidance", "2"], "give one"),
        (["photos", "--masks", "masks", "-o", "out", "--schedule", "zigzag"], "no file 'zigzag'"),
    ],
)
def test_mistakes_are_said_before_anything_is_done(here, run, arguments, said):
    (here / "empty").mkdir()
    before = names(here)
    done = run(*arguments)
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
    assert names(here) == before


def test_each_picture_gets_its_model(here, two_ship):
    for name, side in (("a", 6), ("d", 14)):
        mask = here / "masks" / f"{name}.png"
        hole = np.zeros(np.asarray(Image.open(mask)).shape, np.uint8)
        hole[6 : 6 + side, 8 : 8 + side] = 255
        Image.fromarray(hole).save(mask)
    command = ["inpaint", "photos", "--masks", "masks", "--device", "cpu", "--precision", "fp32"]
    command += ["--seed", "1", "--steps", "2"]
    for more in (["-o", "out"], ["-o", "small", "--model", "small"], ["-o", "large", "--model", "large"]):
        done = CliRunner().invoke(app, [*command, *more])
        assert done.exit_code == 0
        assert ("models: " in done.stderr) == ("--model" not in more)
        assert "--model" in more or {"small", "large"} == set(re.findall(r"(\w+) for \d", done.stderr))
    for name, right, wrong in (("a.png", "small", "large"), ("d.png", "large", "small")):
        made = {folder: np.asarray(Image.open(here / folder / name)).astype(int) for folder in ("out", right, wrong)}
        assert np.abs(made["out"] - made[right]).max() <= 1  # in other batches, other rounding
        assert np.abs(made["out"] - made[wrong]).max() > 10


def test_a_mask_is_never_overwritten(here, run):
    for folder in ("photos", "masks"):
        (here / folder / "masks").mkdir()
        Image.new("L", (60, 40), 255).save(here / folder / "masks/d.png")
    for output in (".", "masks/new"):  # ./masks/d.png would be a mask; in the other folder results would become masks
        done = run("photos", "--masks", "masks", "-o", output, "--force")
        assert done.exit_code == 2
        assert "inputs are never overwritten" in done.stderr
    assert np.asarray(Image.open(here / "masks/masks/d.png")).min() == 255


def test_results_may_go_around_the_photos(here, run):
    done = run("photos", "--masks", "masks", "-o", ".")
    assert done.exit_code == 0, done.output
    assert (here / "a.png").is_file()
    assert (here / "deep/c.png").is_file()


def test_a_mask_beside_the_photos_is_no_photo(here, run):
    Image.new("L", (30, 24), 255).save(here / "photos/mask.png")
    run("photos", "--mask", "photos/mask.png", "-o", "out")
    assert "mask.png" not in names(here / "out")
    assert "a.png" in names(here / "out")


def test_all_kinds_of_pictures_are_found(here, run):
    levels = np.asarray(Image.open(here / "photos/a.png").convert("L"))
    Image.fromarray(levels).save(here / "photos/grey.pgm")
    Image.open(here / "masks/a.png").save(here / "masks/grey.pgm")
    assert run("photos", "--masks", "masks", "-o", "out").exit_code == 0
    assert "grey.png" in names(here / "out")


def test_one_that_needs_too_much_memory_does_not_stop_the_rest(here, run, monkeypatch):
    from asyncpatch.pipelines import AsyncPatchPipeline

    whole = AsyncPatchPipeline.plan_inpaint

    def sometimes(self, picture, **options):
        if str(picture).endswith("d.png"):
            raise MemoryError
        return whole(self, picture=picture, **options)

    monkeypatch.setattr(AsyncPatchPipeline, "plan_inpaint", sometimes)
    done = run("photos", "--masks", "masks", "-o", "out")
    assert done.exit_code == 1
    assert "d.png: there is not enough memory" in " ".join(done.stderr.split())
    assert names(here / "out") == ["a.png", "b.png", "deep/c.png", "e.png"]


def test_large_pictures_are_worked_on_fewer_at_a_time(here, run, monkeypatch):
    from asyncpatch.cli import folders
    from asyncpatch.pipelines import AsyncPatchPipeline

    whole, together = AsyncPatchPipeline.run, []

    def counted(self, plan, watch=None):
        together.append(len(plan.tasks))
        return whole(self, plan, watch)

    monkeypatch.setattr(AsyncPatchPipeline, "run", counted)
    monkeypatch.setattr(folders, "PIXELS_AT_ONCE", 24 * 30 + 40 * 60)
    assert run("photos", "--masks", "masks", "-o", "out").exit_code == 0
    assert together == [2, 2, 1]  # a and b, c and d, e


def test_notes_of_writing_are_told_and_counted_once(here, run):
    profile = bytearray(128)
    profile[16:20] = b"CMYK"
    for path in (here / "photos").rglob("*.png"):
        Image.open(path).save(path, icc_profile=bytes(profile))
    done = run("photos", "--masks", "masks", "-o", "out")
    assert "was left out (3 of 5 pictures)" in " ".join(done.stderr.split())


def test_a_shard_of_nothing_says_so(here, run):
    done = run("photos", "--masks", "masks", "-o", "out", "--shard", "6/7")
    assert done.exit_code == 0
    assert "none of the 5 pictures" in done.stderr


def test_how_long_it_takes_is_said_first(here, run, monkeypatch):
    from asyncpatch.cli import folders
    from asyncpatch.pipelines import AsyncPatchPipeline, Speed

    monkeypatch.setattr(AsyncPatchPipeline, "speed", lambda self: Speed(1.0))
    monkeypatch.setattr(AsyncPatchPipeline, "work", lambda self, plan: 50 * len(plan.tasks))
    monkeypatch.setattr(folders, "AT_ONCE", 2)
    done = run("photos", "--masks", "masks", "-o", "out")
    said = " ".join(done.stderr.split())  # 50 seconds for each of 5
    assert "about 4.2 minutes for 5 pictures on cpu (fp32), if they all are like the first 2" in said
    monkeypatch.setattr(AsyncPatchPipeline, "speed", lambda self: Speed(0.01))
    assert "about" not in run("photos", "--masks", "masks", "-o", "more").stderr
