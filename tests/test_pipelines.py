"""The pipeline: what is known stays exactly, seeds and batches mean what they say, folders are read both ways."""

import numpy as np
import pytest
import torch
from PIL import Image

from asyncpatch import images, pipelines, shipped
from asyncpatch.images import ImageError, picture_from
from asyncpatch.models import placing
from asyncpatch.models.folder import Model
from asyncpatch.models.uncertainty import UncertaintyHead
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.plans import Plan, Task
from asyncpatch.process import RectifiedFlow
from asyncpatch.regions import boxes
from asyncpatch.sampling import draw_noise, generators, sample
from asyncpatch.schedules import synchronous
from asyncpatch.settings import Settings
from asyncpatch.shipped import shipped_model, shipped_models
from asyncpatch.steps import multistep


@pytest.fixture(scope="module")
def pipe(tiny_model):
    return AsyncPatchPipeline.from_pretrained(tiny_model).prepare("cpu", "fp32")


def photo(height=40, width=60, bits=8, seed=0):
    kind = np.uint8 if bits == 8 else np.uint16
    return np.random.default_rng(seed).integers(0, np.iinfo(kind).max, (height, width, 3), kind, endpoint=True)


def mask(height=40, width=60, top=10, left=20, side=8):
    hole = np.zeros((height, width), np.uint8)
    hole[top : top + side, left : left + side] = 255
    return hole


# ---- Folders


def test_what_training_saves_the_pipeline_reads_and_the_other_way_round(tiny_model, pipe, tmp_path):
    pipe.save_pretrained(tmp_path / "copy")
    first, second = Model.load(tiny_model), Model.load(tmp_path / "copy")
    assert (first.labels, first.process, first.prediction, first.resolution) == (
        second.labels, second.process, second.prediction, second.resolution,
    )  # fmt: skip
    again = AsyncPatchPipeline.from_pretrained(tmp_path / "copy")
    z, t = torch.randn(2, 3, 16, 16), torch.rand(2, 1, 16, 16)
    for net in (first.net, second.net, again.unet):
        assert torch.equal(net(z, t), pipe.unet(z, t))


def test_weights_come_from_safetensors_alone(tiny_model, tmp_path):
    with pytest.raises(ValueError, match="safetensors alone"):
        AsyncPatchPipeline.from_pretrained(tiny_model, use_safetensors=False)
    folder = tmp_path / "pickled"
    AsyncPatchPipeline.from_pretrained(tiny_model).save_pretrained(folder)
    weights = next((folder / "unet").glob("*.safetensors"))
    torch.save({"anything": torch.zeros(1)}, folder / "unet" / "diffusion_pytorch_model.bin")
    weights.unlink()
    with pytest.raises(OSError, match="safetensors"):
        AsyncPatchPipeline.from_pretrained(folder)
    with pytest.raises(FileNotFoundError, match="no model folder"):
        AsyncPatchPipeline.from_pretrained(tmp_path)


def test_the_shipped_model_is_found_in_a_checkout_and_in_a_wheel(tiny_model, tmp_path, monkeypatch):
    package = tmp_path / "src" / "asyncpatch"
    package.mkdir(parents=True)
    monkeypatch.setattr(shipped, "__file__", str(package / "shipped.py"))
    monkeypatch.setattr(shipped, "SHIPPED", ("small", "missing", "large"))
    with pytest.raises(FileNotFoundError, match="--model"):
        shipped_model()
    for place in (tmp_path / "weights", package / "weights"):
        place.mkdir()
        for name in ("small", "large"):
            (place / name).symlink_to(tiny_model)
        assert shipped_model() == place / "small"
        assert list(shipped_models().items()) == [("small", place / "small"), ("large", place / "large")]
    for found in (AsyncPatchPipeline.from_pretrained("large"), AsyncPatchPipeline.default("cpu", "fp32")):
        assert found.model.labels == ("tabby", "cat", "Golden retriever")
    monkeypatch.setattr("huggingface_hub.hf_hub_download", None)
    with pytest.raises(FileNotFoundError, match=r"missing is not part of this copy.*here there is small, large"):
        AsyncPatchPipeline.from_pretrained("missing")  # and no stranger's model of that name is fetched
    monkeypatch.chdir(tmp_path)
    (tmp_path / "large").mkdir()  # a folder goes before a name
    with pytest.raises(FileNotFoundError, match="no model folder"):
        AsyncPatchPipeline.from_pretrained("large")


# ---- Labels


def test_labels_go_by_name_and_number(pipe):
    assert pipe.label("TABBY") == 0
    assert pipe.label("golden retriever") == 2
    assert pipe.label(1) == 1
    assert pipe.label(None) == -1


@pytest.mark.parametrize(
    ("name", "said"),
    [("taby", "did you mean 'tabby'"), ("retriever", "'Golden retriever'"), ("xyz", "info lists"), (3, "below 3")],
)
def test_a_wrong_label_is_met_with_a_suggestion(pipe, name, said):
    with pytest.raises(ValueError, match=said):
        pipe.generate(name)


# ---- Generating


def test_pictures_depend_on_their_seed_alone(pipe):
    several = pipe.generate("cat", n=3, seed=5, steps=3)
    assert several.seeds == [5, 6, 7]
    alone = pipe.generate("cat", seed=6, steps=3)
    a, b = (np.asarray(each, np.int16) for each in (several.images[1], alone.images[0]))
    assert a.shape == (16, 16, 3)
    assert np.abs(a - b).max() <= 1
    assert np.abs(a - np.asarray(several.images[0], np.int16)).max() > 10
    assert np.abs(a - np.asarray(pipe.generate("tabby", seed=6, steps=3).images[0], np.int16)).max() > 2


def test_without_a_seed_pictures_differ_and_the_seed_is_told(pipe):
    first, second = pipe(steps=1), pipe(steps=1)
    assert first.seeds != second.seeds
    again = pipe.generate(seed=first.seeds[0], steps=1)
    assert np.array_equal(np.asarray(again.images[0]), np.asarray(first.images[0]))


def test_larger_pictures_are_made_from_coarse_to_fine(pipe):
    (image,) = pipe.generate(size=(40, 24), seed=0, steps=2).images
    assert image.size == (24, 40)


@pytest.mark.parametrize("schedule", ["raster", "spiral"])
def test_an_order_changes_the_picture_and_keeps_its_start(pipe, schedule):
    times = []
    made = pipe.generate(seed=1, steps=8, schedule=schedule, watch=lambda g: times.append(g.moment.visit.t.clone()))
    assert times[4].unique().numel() > 2
    assert not np.array_equal(np.asarray(made.images[0]), np.asarray(pipe.generate(seed=1, steps=8).images[0]))


def test_a_painted_order_is_followed_dark_first(pipe, tmp_path):
    Image.fromarray(np.linspace(0, 255, 60).astype(np.uint8)[None].repeat(40, 0)).save(tmp_path / "order.png")
    times = []
    pipe.inpaint(
        photo(), mask(side=12), steps=8, schedule=str(tmp_path / "order.png"),
        watch=lambda glimpse: times.append(glimpse.moment.visit.t[0, 0]),
    )  # fmt: skip
    (box,) = boxes(torch.from_numpy(mask(side=12) / 255.0), 16)
    row = times[4][14 - box.top, 20 - box.left : 32 - box.left]
    assert row[0] < row[6] < row[11]
    Image.new("L", (5, 5)).save(tmp_path / "small.png")
    with pytest.raises(ImageError, match="they must be the same"):
        pipe.inpaint(photo(), mask(), schedule=str(tmp_path / "small.png"))
    for name in ("zigzag", "raster:0", "raster:", "raster:x", "spiral:-1"):
        with pytest.raises(ImageError, match=f"raster:16 .* there is no file '{name}'"):
            pipe.generate(schedule=name)
    assert pipe.generate(schedule="raster:1000", seed=0, steps=2).images[0].size == (16, 16)
    faint = Plan([Task(images.blank(16, 16), torch.full((1, 16, 16), 1e-5), (0,))], Settings(schedule="raster"))
    assert pipe.work(faint) == 0


# ---- Inpainting


@pytest.mark.parametrize("bits", [8, 16])
def test_outside_the_hole_every_pixel_stays(pipe, bits):
    x, hole = photo(bits=bits), mask()
    made = pipe.inpaint(x, hole, n=2, seed=0, steps=2)
    for picture in made.pictures:
        assert picture.bits == bits
        assert np.array_equal(picture.levels[hole == 0], x[hole == 0])
        assert (picture.levels[hole > 0] != x[hole > 0]).mean() > 0.9
    assert not np.array_equal(made.pictures[0].levels, made.pictures[1].levels)


@pytest.mark.parametrize("kind", ["path", "pillow", "tensor"])
def test_pictures_and_masks_come_in_any_form(pipe, kind, tmp_path):
    x, hole = photo(), mask()
    wanted = pipe.inpaint(x, hole, seed=0, steps=2).pictures[0].levels
    if kind == "path":
        Image.fromarray(x).save(tmp_path / "x.png")
        Image.fromarray(hole).save(tmp_path / "hole.png")
        given = tmp_path / "x.png", str(tmp_path / "hole.png")
    elif kind == "pillow":
        given = Image.fromarray(x), Image.fromarray(hole)
    else:
        given = torch.from_numpy(x).permute(2, 0, 1) / 127.5 - 1, torch.from_numpy(hole > 0)
    assert np.array_equal(pipe.inpaint(*given, seed=0, steps=2).pictures[0].levels, wanted)


def test_the_mask_can_be_inverted_grown_and_feathered(pipe):
    x, hole = photo(), mask()
    assert np.array_equal(
        pipe.plan_inpaint(x, 255 - hole, invert=True).tasks[0].hole, pipe.plan_inpaint(x, hole).tasks[0].hole
    )
    wide = pipe.plan_inpaint(x, hole, grow=3).tasks[0].hole
    assert wide.sum() > 1.5 * (hole > 0).sum()
    faded = pipe.plan_inpaint(x, hole, feather=2).tasks[0].hole[0]
    assert (faded[torch.from_numpy(hole == 0)] == 0).all()
    assert 0 < faded[10, 24] < 1
    assert faded[14, 24] == 1
    with pytest.raises(ImageError, match="shrank away"):
        pipe.plan_inpaint(x, hole, grow=-20)


def test_two_holes_are_filled_differently(pipe):
    x = np.full((120, 200, 3), 90, np.uint8)
    hole = mask(120, 200, 10, 10) | mask(120, 200, 90, 160)
    made = pipe.inpaint(x, hole, seed=0, steps=2).pictures[0].levels
    assert not np.array_equal(made[10:18, 10:18], made[90:98, 160:168])
    assert np.array_equal(made[hole == 0], x[hole == 0])


def test_pictures_in_a_batch_come_out_as_they_do_alone(pipe):
    tasks = []
    for seed, (side, value) in enumerate([(8, 1.0), (8, 1.0), (8, 0.5), (14, 1.0), (8, 1.0)]):
        hole = torch.from_numpy(mask(side=side) / 255.0).float()[None] * value
        tasks.append(Task(picture_from(photo(seed=seed)), hole, (seed, seed + 100)))
    together = pipe.run(Plan(tasks, Settings(steps=3)))
    for task, made in zip(tasks, together, strict=True):
        (alone,) = pipe.run(Plan([task], Settings(steps=3)))
        for a, b in zip(made.pictures, alone.pictures, strict=True):
            assert np.abs(a.levels.astype(int) - b.levels).max() <= 1


def test_guidance_changes_the_answer_and_nothing_is_off(pipe):
    x, hole = photo(), mask()

    def made(**how):
        return pipe.inpaint(x, hole, seed=0, steps=2, **how).pictures[0].levels

    assert np.array_equal(made(), made(input_guidance=1.0))  # the default where something is known
    assert not np.array_equal(made(), made(input_guidance=0.0))
    new = [pipe.generate("cat", seed=0, steps=2, **how).pictures[0].levels for how in ({}, {"class_guidance": 1.0})]
    assert np.array_equal(*new)  # the default of new pictures with a label
    assert not np.array_equal(made(label="cat"), made(label="cat", class_guidance=3.0))
    with pytest.raises(ValueError, match="give one"):
        made(class_guidance=1.0)


def test_a_word_stands_for_settings_and_what_is_said_beside_it_counts_more(pipe):
    assert pipe.plan_generate(quality="fast").settings == pipe.plan_generate(steps=8).settings
    assert pipe.plan_generate(quality="balanced").settings == pipe.plan_generate().settings
    assert pipe.plan_inpaint(photo(), mask(), quality="best").settings.steps == 32
    assert pipe.plan_inpaint(photo(), mask(), quality="best", steps=5).settings.steps == 5
    with pytest.raises(ValueError, match="quality must be fast, balanced, best; got 'good'"):
        pipe.generate(quality="good")


def test_a_budget_of_calls_is_kept(pipe):
    """Guidance, Heun and look-ahead double what a step costs."""
    for calls in (2, 7, 32):
        assert pipe.plan_generate(calls=calls).settings.steps == calls
        assert pipe.plan_generate(calls=calls, solver="heun").settings.steps == calls // 2
        assert pipe.plan_generate(calls=calls, schedule="lookahead").settings.steps == calls // 2
        assert pipe.plan_inpaint(photo(), mask(), calls=calls).settings.steps == calls // 2
        assert pipe.plan_inpaint(photo(), mask(), calls=calls, input_guidance=0.0).settings.steps == calls
    with pytest.raises(ValueError, match="calls must be at least 2, of one step with these settings; got 1"):
        pipe.inpaint(photo(), mask(), calls=1)
    with pytest.raises(ValueError, match="leave out steps and quality"):
        pipe.generate(calls=8, steps=4)


def test_new_pictures_are_made_by_multistep_where_pixels_go_together(pipe):
    assert [pipe.plan_generate(schedule=each).settings.solver for each in ("synchronous", "paced", "paced:3")] == [
        "multistep"
    ] * 3
    assert [pipe.plan_generate(schedule=each).settings.solver for each in ("raster", "dual", "sequential")] == [
        "ddim"
    ] * 3
    assert pipe.plan_generate(schedule="paced", eta=0.5).settings.solver == "ddim"


def test_wrong_settings_are_named(pipe):
    with pytest.raises(TypeError, match="unknown setting 'step'; there are steps"):
        pipe.generate(step=3)
    for wrong in ({"steps": 0}, {"eta": 2.0}, {"input_guidance": -1.0}, {"refine": 1.5}, {"steps": 2.5}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            pipe.generate(**wrong)
    for wrong in ({"n": 0}, {"seed": -1}, {"size": (4, 40)}):
        with pytest.raises(ValueError, match="at least"):
            pipe.generate(**wrong)


# ---- Outpainting and textures


def test_outpainting_keeps_the_picture_and_adds_to_it(pipe):
    x = photo()
    made = pipe.outpaint(x, left=3, top=2, right=10, bottom=1, seed=0, steps=2).pictures[0]
    assert made.size == (43, 73)
    assert np.array_equal(made.levels[2:42, 3:63], x)
    assert made.levels[:, 63:].std() > 5
    with pytest.raises(ImageError, match="nothing to extend"):
        pipe.outpaint(x)


def test_a_texture_grows_around_its_swatch(pipe):
    swatch = photo(24, 24)
    plan = pipe.plan_texture(swatch, (50, 40))
    assert plan.rings
    assert plan.settings.input_guidance > 0
    made = pipe.texture(swatch, (50, 40), seed=0, steps=2).pictures[0]
    assert made.size == (50, 40)
    assert np.array_equal(made.levels[13:37, 8:32], swatch)


def test_a_tileable_texture_opens_its_rim(pipe):
    swatch = photo(24, 30)
    plan = pipe.plan_texture(swatch, tileable=True)
    hole = plan.tasks[0].hole[0]
    assert plan.wrap
    assert (hole[2:-2, 2:-2] == 0).all()
    assert hole[:2].all()
    assert hole[:, -2:].all()
    wider = pipe.plan_texture(swatch, (24, 60), tileable=True).tasks[0].hole[0]
    assert (wider[2:-2, 15:45] == 0).all()
    made = pipe.texture(swatch, tileable=True, seed=0, steps=2).pictures[0]
    assert np.array_equal(made.levels[2:-2, 2:-2], swatch[2:-2, 2:-2])


def test_a_half_given_texture_is_completed(pipe):
    swatch, hole = photo(32, 32), mask(32, 32, 0, 0, 16)
    made = pipe.texture(swatch, hole=hole, seed=0, steps=2).pictures[0]
    assert np.array_equal(made.levels[hole == 0], swatch[hole == 0])
    assert (made.levels[hole > 0] != swatch[hole > 0]).mean() > 0.9


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({}, "nothing to grow"),
        ({"size": (20, 40)}, "at least as large as the swatch"),
        ({"hole": np.full((24, 24), 255, np.uint8)}, "nothing of the swatch is left"),
    ],
)
def test_textures_that_cannot_be_are_refused(pipe, how, said):
    with pytest.raises(ImageError, match=said):
        pipe.texture(photo(24, 24), **how)


def test_a_swatch_too_small_to_tile_is_refused(pipe):
    with pytest.raises(ImageError, match="at least 12 pixels"):
        pipe.texture(photo(8, 40), tileable=True)


# ---- The work


@pytest.mark.parametrize(
    "plan",
    [
        lambda pipe: pipe.plan_generate(n=3, size=(40, 24), steps=4),
        lambda pipe: pipe.plan_inpaint(photo(), mask(side=20), n=2, steps=4, input_guidance=1.0),
        lambda pipe: pipe.plan_inpaint(photo(), mask(), label="cat", steps=4, input_guidance=1.0, class_guidance=1.0),
        lambda pipe: pipe.plan_texture(photo(20, 20), (40, 40), steps=3),
        lambda pipe: pipe.plan_generate(n=2, size=(40, 24), steps=4, solver="heun", class_guidance=1.0, label="cat"),
        lambda pipe: pipe.plan_outpaint(photo(64, 20), right=8, steps=8, schedule="raster:8", pace=0.125, n=2),
    ],
)
def test_the_work_is_what_was_said(pipe, plan, monkeypatch):
    """Counted by the network itself."""
    seen, planned = [], plan(pipe)
    forward = pipe.unet.forward
    monkeypatch.setattr(pipe.unet, "forward", lambda z, *rest: seen.append(len(z)) or forward(z, *rest))
    glimpses = []
    pipe.run(planned, glimpses.append)
    assert sum(seen) == pipe.work(planned) == sum(glimpse.windows for glimpse in glimpses)


def test_a_watcher_breaks_the_work_off_by_raising(pipe):
    class Enough(Exception):
        pass

    def stop(glimpse):
        raise Enough

    with pytest.raises(Enough):
        pipe.generate(watch=stop)


def test_no_more_windows_than_allowed_are_asked_at_a_time(pipe, monkeypatch):
    seen = []
    forward = pipe.unet.forward
    monkeypatch.setattr(pipe.unet, "forward", lambda z, *rest: seen.append(len(z)) or forward(z, *rest))
    pipe.generate(n=7, steps=1, batch=3)
    assert max(seen) <= 3
    assert sum(seen) == 7


# ---- The machine


def test_devices_and_precisions_are_chosen_or_refused(tiny_model):
    pipe = AsyncPatchPipeline.from_pretrained(tiny_model).prepare("cpu", "bf16")
    assert pipe.unet.dtype == torch.bfloat16
    assert pipe.where() == "cpu (bf16)"
    speed = pipe.speed()
    assert speed.asking > speed.encoding == speed.decoding == 0
    assert pipe.generate(seed=0, steps=2).images[0].size == (16, 16)
    with pytest.raises(ValueError, match="device must be"):
        pipe.prepare("tpu")
    with pytest.raises(ValueError, match="precision must be"):
        pipe.prepare("cpu", "int3")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="there is none here"):
            pipe.prepare("cuda")


def test_the_cpu_gets_bf16_only_where_that_is_quicker(monkeypatch):
    cpu = torch.device("cpu")
    threads = torch.get_num_threads()
    assert placing._speed_of_bf16() > 0
    assert torch.get_num_threads() == threads
    for speed, wanted in ((2.0, torch.bfloat16), (1.1, torch.float32), (0.3, torch.float32)):
        monkeypatch.setattr(placing, "_speed_of_bf16", lambda speed=speed: speed)
        assert placing.choose_precision(cpu) == wanted


def test_threads_are_no_more_than_the_cores_one_may_use(monkeypatch, tiny_model):
    before = torch.get_num_threads()
    monkeypatch.setattr(placing, "cores", lambda: 1)
    try:
        AsyncPatchPipeline.from_pretrained(tiny_model).prepare("cpu", "fp32")
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


# ---- What a review found


def levels_of(made):
    return [each.levels.astype(int) for each in made.pictures]


@pytest.mark.parametrize("how", [{"input_guidance": 1.0}, {"input_guidance": 1.0, "class_guidance": 1.0}, {"eta": 1.0}])
def test_a_batch_changes_nothing_with_guidance_and_random_steps(pipe, how):
    """One picture is all hole, one loses what is known of it at the coarse scale, one keeps it; labels differ."""
    holes = [torch.ones(1, 32, 32), torch.ones(1, 32, 32), torch.ones(1, 32, 32)]
    holes[1][:, 0] = 0
    holes[2][:, :16] = 0
    tasks = [Task(picture_from(photo(32, 32, seed=k)), hole, (k,), k) for k, hole in enumerate(holes)]
    settings = Settings(steps=3, **how)
    together = pipe.run(Plan(tasks, settings))
    assert pipe.work(Plan(tasks, settings)) == sum(pipe.work(Plan([task], settings)) for task in tasks)
    for task, made in zip(tasks, together, strict=True):
        (alone,) = pipe.run(Plan([task], settings))
        assert np.abs(levels_of(made)[0] - levels_of(alone)[0]).max() <= 1


def test_boxes_that_need_other_stages_are_not_filled_together(pipe):
    """The same shape and the same start, but one hole must be halved more often than the other."""
    wide, thin = torch.zeros(1, 64, 64), torch.zeros(1, 64, 64)
    wide[:, 4:60, 4:60] = 1
    thin[:, 4:60, 30:33] = 1
    thin[:, 30:33, 4:60] = 1
    tasks = [Task(picture_from(photo(64, 64, seed=k)), hole, (k,)) for k, hole in enumerate((wide, thin))]
    together = pipe.run(Plan(tasks, Settings(steps=2)))
    for task, made in zip(tasks, together, strict=True):
        (alone,) = pipe.run(Plan([task], Settings(steps=2)))
        assert np.abs(levels_of(made)[0] - levels_of(alone)[0]).max() <= 1


def test_settings_reach_the_sampler(pipe):
    def made(**how):
        return pipe.inpaint(photo(64, 64), mask(64, 64, 8, 8, 48), seed=0, steps=4, **how).pictures[0].levels

    plain = made()
    for how in ({"eta": 1.0}, {"refine": 0.0}, {"refine": 0.9}, {"label": "cat"}):
        assert not np.array_equal(plain, made(**how)), how
    assert pipe._completion(pipe.plan_texture(photo(32, 32), tileable=True)).wrap


def test_labels_reach_every_plan(pipe):
    assert pipe.plan_outpaint(photo(), right=4, label="cat").tasks[0].label == 1
    assert pipe.plan_texture(photo(), (60, 80), label="cat").tasks[0].label == 1
    assert pipe.plan_inpaint(photo(), mask(), label="1").tasks[0].label == 1


def test_every_hole_is_painted_by_every_seed(pipe):
    x = np.full((120, 200, 3), 90, np.uint8)
    hole = mask(120, 200, 10, 10) | mask(120, 200, 90, 160)
    one, other = (pipe.inpaint(x, hole, seed=seed, steps=2).pictures[0].levels for seed in (0, 1))
    for part in (np.s_[10:18, 10:18], np.s_[90:98, 160:168]):
        assert (one[part] != 90).mean() > 0.5
        assert not np.array_equal(one[part], other[part])


def test_grey_is_repainted_a_little(pipe):
    x, hole = photo(), mask() // 4
    made = pipe.inpaint(x, hole, seed=0, steps=8).pictures[0].levels.astype(int)
    off = np.abs(made - x)
    assert not off[hole == 0].any()
    assert 0 < off[hole > 0].mean() < 60


def test_textures_take_what_they_are_told(pipe):
    assert pipe.plan_texture(photo(24, 24), (40, 40), input_guidance=0.0).settings.input_guidance == 0
    both = pipe.plan_texture(photo(24, 24), (40, 40), hole=mask(24, 24, 4, 4, 6)).tasks[0].hole[0]
    assert both[12:18, 12:18].all()  # the mask, moved with its swatch
    assert not both[8:12, 8:32].any()
    turned = pipe.plan_texture(photo(24, 24), hole=255 - mask(24, 24), invert=True).tasks[0].hole
    assert torch.equal(turned, pipe.plan_texture(photo(24, 24), hole=mask(24, 24)).tasks[0].hole)
    barely = pipe.plan_texture(photo(24, 24), (26, 26), tileable=True).tasks[0].hole[0]
    assert barely[:2].all()
    coloured = np.zeros((24, 24, 3), np.uint8)
    coloured[5:9, 5:9] = (255, 0, 0)
    assert any("coloured" in note for note in pipe.plan_texture(photo(24, 24), hole=coloured).notes)


def test_large_boxes_are_filled_one_after_the_other(pipe, monkeypatch):
    monkeypatch.setattr(pipelines, "_PIXELS_AT_ONCE", 40 * 60 * 2)
    plan = pipe.plan_inpaint(photo(), np.full((40, 60), 255, np.uint8), n=5)
    assert [len(rows) for rows in pipe._batches(plan)] == [2, 2, 1]


def test_mistakes_are_said_in_the_words_of_the_caller(pipe):
    with pytest.raises(ValueError, match="feather"):
        pipe.inpaint(photo(), mask(), feather=-3)
    with pytest.raises(ValueError, match="seed must be below"):
        pipe.generate(seed=1 << 64)
    with pytest.raises(ValueError, match="process must be one of"):
        AsyncPatchPipeline(pipe.unet, process="odd")


def test_network_and_head_compute_in_one_precision_however_busy_the_machine_is(tiny_model, monkeypatch):
    """Which one is quicker is measured, and may come out otherwise the next time."""
    unet = AsyncPatchPipeline.from_pretrained(tiny_model).unet
    found = iter([torch.float32, torch.bfloat16])
    monkeypatch.setattr("asyncpatch.pipelines.choose_precision", lambda device, name: next(found))
    pipe = AsyncPatchPipeline(unet, "rectified_flow", "v", 16, (), UncertaintyHead(16, 64, 16)).prepare("cpu")
    assert {each.dtype for part in (pipe.unet, pipe.uncertainty) for each in part.parameters()} == {torch.float32}


def test_the_surest_parts_lead_where_the_model_says_so(tiny_model, monkeypatch):
    pipe = AsyncPatchPipeline.from_pretrained(tiny_model).prepare("cpu", "fp32")
    with pytest.raises(ValueError, match="train-uncertainty makes one"):
        pipe.generate(schedule="paced")
    head = UncertaintyHead(16, 64, 16)
    torch.nn.init.normal_(head.out.weight, std=1.0, generator=torch.Generator().manual_seed(0))
    sure = AsyncPatchPipeline(pipe.unet, "rectified_flow", "v", 16, pipe.config.labels, head).prepare("cpu", "fp32")
    photo = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    hole = np.zeros((40, 40), bool)
    hole[2:38, 2:20] = True
    times = []

    def watch(glimpse):
        times.append(glimpse.moment.visit.t)

    made = sure.inpaint(photo, hole, seed=1, steps=6, schedule="paced", watch=watch)
    levels = made.pictures[0].levels
    assert np.array_equal(levels[~hole], photo[~hole])
    coarse = [t for t in times if t.shape == times[0].shape][:6]
    even = [(1 - k / 6) * coarse[0] for k in range(6)]
    assert all((t <= other + 1e-5).all() for t, other in zip(coarse, even, strict=True))
    assert any((t < other - 0.05).any() for t, other in zip(coarse, even, strict=True))
    plain = sure.inpaint(photo, hole, seed=1, steps=6)
    assert not np.array_equal(plain.pictures[0].levels, levels)
    assert np.array_equal(plain.pictures[0].levels, pipe.inpaint(photo, hole, seed=1, steps=6).pictures[0].levels)
    seen, trunk = [], sure.unet.trunk
    monkeypatch.setattr(sure.unet, "trunk", lambda z, *rest: seen.append(len(z)) or trunk(z, *rest))
    last = sure.texture(photo[:24, :24], (48, 48), seed=1, steps=5).pictures[0].levels
    for schedule in ("paced", "dual", "sequential", "lookahead"):
        plan, glimpses = sure.plan_texture(photo[:24, :24], (48, 48), seed=1, steps=5, schedule=schedule), []
        seen.clear()
        grown = sure.run(plan, glimpses.append)[0].pictures[0].levels
        assert np.array_equal(grown[12:36, 12:36], photo[:24, :24])
        assert not np.array_equal(grown, last)
        last = grown
        assert sum(seen) == sum(glimpse.windows for glimpse in glimpses) <= sure.work(plan)


def test_new_pictures_are_made_by_the_multistep_solver(tiny_model):
    pipe = AsyncPatchPipeline.from_pretrained(tiny_model).prepare("cpu", "fp32")
    assert pipe.plan_generate("tabby").settings.solver == "multistep"
    assert pipe.plan_generate(eta=0.5).settings.solver == "ddim"
    assert pipe.plan_generate(schedule="raster").settings.solver == "ddim"
    assert pipe.plan_generate(solver="ddim").settings.solver == "ddim"
    assert pipe.plan_inpaint(np.zeros((20, 20, 3), np.uint8), np.ones((20, 20))).settings.solver == "ddim"
    with pytest.raises(ValueError, match="eta is DDIM's"):
        pipe.plan_generate(eta=0.5, solver="multistep")
    assert pipe.plan_generate(solver="heun").settings.questions == 2
    with pytest.raises(ValueError, match="solver must be one of ddim, multistep, heun"):
        pipe.plan_generate(solver="magic")
    noise = draw_noise(torch.empty(1, 3, 16, 16), generators([5]))  # the only noise that is drawn
    wanted = sample(pipe.model.denoiser, synchronous(4), noise, step=multistep(RectifiedFlow()))
    made = pipe.generate(seed=5, steps=4).pictures[0].x
    assert torch.allclose(made, wanted[0].clamp(-1, 1), atol=1 / 127)
