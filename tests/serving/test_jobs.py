"""Jobs: what is made is what the pipeline makes; and what goes wrong with one goes wrong with it alone."""

import io
import threading
import time

import numpy as np
import pytest
from PIL import Image

from asyncpatch.images import png_of, read_text
from asyncpatch.pipelines import AsyncPatchPipeline, Speed
from asyncpatch.progress import Work
from asyncpatch.request import KEY, Given, Request
from asyncpatch.serving import jobs
from asyncpatch.serving.jobs import Full, Limits, Unknown
from asyncpatch.serving.preview import Preview
from asyncpatch.shelf import Shelf
from asyncpatch.shipped import shipped_models

QUICK = {"steps": 2}


def over(job):
    while not job.over:
        time.sleep(0.005)
    return job


def done(job):
    assert over(job).state == "done", job.error
    return job


def levels(data):
    return np.asarray(Image.open(io.BytesIO(data)))


def test_a_job_makes_what_the_pipeline_makes(workshop, pipe, photo, hole, files):
    request = Request(tool="inpaint", n=2, seed=3, settings=QUICK)
    job = done(workshop.submit(request, Given(*files)))
    wanted = pipe.inpaint(photo, hole, n=2, seed=3, **QUICK)
    for k in range(2):
        made = levels(job.png(k))
        assert np.array_equal(made, np.asarray(wanted.images[k]))
        assert np.array_equal(made[hole == 0], photo[hole == 0])
    status = workshop.status(job)
    assert (status["state"], status["share"], status["seeds"]) == ("done", 1.0, [3, 4])


def test_a_picture_says_how_it_was_made(workshop, files):
    job = done(workshop.submit(Request(tool="inpaint", n=2, grow=1, settings=QUICK), Given(*files)))
    alone = Request.from_text(read_text(job.png(1), KEY))
    assert alone == Request(tool="inpaint", grow=1, seed=job.made.seeds[1], settings=QUICK)
    again = done(workshop.submit(alone, Given(*files)))
    assert np.abs(levels(again.png(0)).astype(int) - levels(job.png(1))).max() <= 1  # another batch, other rounding


def test_a_job_has_its_model_and_says_which(two_ship, files):
    def opened(folder):
        return AsyncPatchPipeline.from_pretrained(folder).prepare("cpu", "fp32")

    workshop = jobs.Workshop(Shelf(shipped_models(), opened))
    try:
        how = {"seed": 0, "grow": 3}  # a hole of 16 pixels, which a window of 16 does not see across
        for said, name in (("", "large"), ("small", "small")):
            job = done(workshop.submit(Request(tool="inpaint", model=said, settings=QUICK, **how), Given(*files)))
            wanted = AsyncPatchPipeline.from_pretrained(name).prepare("cpu", "fp32").inpaint(*files, **how, **QUICK)
            assert np.array_equal(levels(job.png(0)), np.asarray(wanted.images[0]))
            assert Request.from_text(read_text(job.png(0), KEY)).model == name
            assert f"--model {name}" in job.request.command()
            assert f"AsyncPatchPipeline.from_pretrained({name!r}).prepare()" in job.request.python()
            assert "model=" not in job.request.python()
        with pytest.raises(ValueError, match="no model 'huge' here, only small, large"):
            workshop.submit(Request(tool="generate", model="huge"))
        workshop.speeds = {"small": Speed(0.0), "large": Speed(1e9)}
        with pytest.raises(ValueError, match="this would take about"):
            workshop.submit(Request(tool="inpaint", settings=QUICK, **how), Given(*files))
        workshop.limits = Limits(megapixels=0.0009)
        with pytest.raises(ValueError, match=r"may have 0.0009 million pixels"):  # if the large one makes it
            workshop.submit(Request(tool="generate"))
    finally:
        workshop.close()


def test_notes_survive_in_16_bits(photo):
    from asyncpatch.images import picture_from

    data = png_of(picture_from(photo.astype(np.uint16) * 257), {KEY: '{"label": "é"}'})
    assert read_text(data, KEY) == '{"label": "é"}'
    assert picture_from(data).bits == 16
    assert read_text(data, "other") is None
    assert read_text(b"no picture", KEY) is None


def test_16_bits_and_profile_survive(workshop, photo, hole):
    from asyncpatch.images import picture_from

    deep = picture_from(photo.astype(np.uint16) * 257 + 3)
    job = workshop.submit(Request(tool="inpaint", settings=QUICK), Given(png_of(deep), png_of(picture_from(hole))))
    made = picture_from(done(job).png(0))
    assert made.bits == 16
    assert np.array_equal(made.levels[hole == 0], deep.levels[hole == 0])


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Request(tool="inpaint"), "needs a picture"),
        (Request(tool="generate", label="taby"), "did you mean 'tabby'"),
        (Request(tool="generate", settings={"schedule": "painted"}), "give it as a picture"),
        (Request(tool="generate", width=100_000), "million pixels"),
        (Request(tool="generate", n=100_000), "million pixels"),
        (Request(tool="generate", settings={"steps": 10**9}), "steps may be 1000"),
        (Request(tool="generate", settings={"batch": 10**9}), "batch may be 64"),
        (Request(tool="generate", width=2), "at least 8"),
    ],
)
def test_what_cannot_be_done_is_said_at_once(workshop, request_, said):
    with pytest.raises(ValueError, match=said):
        workshop.submit(request_)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"grow": 10**6}, "grow may be"), ({"grow": -(10**6)}, "grow may be"), ({"feather": 10**6}, "feather may be")],
)
def test_margins_have_a_limit(workshop, files, options, said):
    with pytest.raises(ValueError, match=said):
        workshop.submit(Request(tool="inpaint", **options), Given(*files))


def test_a_picture_beyond_the_limits_is_not_even_made(make, files):
    small = make(megapixels=0.01)
    for sides in ({"left": 10**9}, {"bottom": 10**6, "left": 10**6}, {"right": 200}):
        with pytest.raises(ValueError, match="million pixels"):
            small.submit(Request(tool="outpaint", **sides), Given(files[0]))
    with pytest.raises(ValueError, match="pixels"):
        make(megapixels=0.001).submit(Request(tool="inpaint"), Given(*files))


def test_decompression_bombs_are_not_unpacked(workshop, files):
    flat = Image.new("L", (12_000, 12_000))
    file = io.BytesIO()
    flat.save(file, "PNG")
    assert len(file.getvalue()) < 1_000_000
    with pytest.raises(ValueError, match="pixels"):
        workshop.submit(Request(tool="outpaint", left=8), Given(file.getvalue()))
    with pytest.raises(ValueError, match="the mask is 12000 x 12000 pixels, the photo 60 x 40"):
        workshop.submit(Request(tool="inpaint"), Given(files[0], file.getvalue()))
    with pytest.raises(ValueError, match="pixels"):
        workshop.submit(Request(tool="inpaint"), Given(*files, file.getvalue()))


def test_what_is_no_picture_is_said(workshop, files):
    with pytest.raises(ValueError, match="not a picture"):
        workshop.submit(Request(tool="inpaint"), Given(b"GIF89a??", files[1]))
    with pytest.raises(ValueError, match="empty"):
        workshop.submit(Request(tool="inpaint"), Given(b"", files[1]))
    with pytest.raises(ValueError, match=r"damaged|not a picture"):
        workshop.submit(Request(tool="inpaint"), Given(files[0][:200], files[1]))


def test_an_order_can_be_painted_but_no_file_is_read(workshop, pipe, photo, hole, files):
    order = np.broadcast_to(np.linspace(0, 255, 60).astype(np.uint8), (40, 60)).copy()
    request = Request(tool="inpaint", seed=1, settings={"schedule": "painted", **QUICK})
    job = done(workshop.submit(request, Given(photo, hole, order)))
    wanted = pipe.inpaint(photo, hole, seed=1, schedule=order, **QUICK)
    assert np.array_equal(levels(job.png(0)), np.asarray(wanted.images[0]))
    with pytest.raises(ValueError, match="no schedule '/etc/hostname'"):
        Request(tool="generate", settings={"schedule": "/etc/hostname"})


def test_jobs_take_turns_and_a_full_queue_says_so(make, gate):
    workshop = make(waiting=2)
    first = workshop.submit(Request(tool="generate", settings=QUICK))
    while first.state == "waiting":
        time.sleep(0.005)
    others = [workshop.submit(Request(tool="generate", settings=QUICK)) for _ in range(2)]
    assert [workshop.place(job) for job in (first, *others)] == [0, 1, 2]
    with pytest.raises(Full, match="2 jobs wait"):
        workshop.submit(Request(tool="generate", settings=QUICK))
    gate.set()
    for job in (first, *others):
        done(job)
    done(workshop.submit(Request(tool="generate", settings=QUICK)))


def test_cancelling_stops_the_work_between_two_visits(make, monkeypatch):
    workshop, seen, run = make(), [], AsyncPatchPipeline.run
    there, go = threading.Event(), threading.Event()

    def slow(self, plan, watch=None):
        def onlooker(glimpse):
            seen.append(glimpse)
            there.set()
            go.wait()
            watch(glimpse)

        return run(self, plan, onlooker)

    monkeypatch.setattr(AsyncPatchPipeline, "run", slow)
    job = workshop.submit(Request(tool="generate", settings={"steps": 50}))
    later = workshop.submit(Request(tool="generate", settings=QUICK))
    there.wait()
    workshop.cancel(job)
    workshop.cancel(later)
    assert later.state == "cancelled"
    go.set()
    assert over(job).state == "cancelled"
    assert len(seen) == 1
    assert job.made is None
    with pytest.raises(Unknown):
        job.png(0)
    workshop.cancel(job)  # once more does no harm


def test_a_job_that_takes_too_long_is_stopped(make, monkeypatch, gate):
    workshop = make(seconds=5.0)
    job = workshop.submit(Request(tool="generate", settings={"steps": 2}))
    monkeypatch.setattr(Work, "taken", 6.0)
    gate.set()
    assert over(job).state == "failed"
    assert "longer than a job may, 5 seconds" in job.error


def test_a_job_that_would_take_too_long_is_refused(make, monkeypatch):
    workshop = make(seconds=5.0)
    workshop.speeds = {"tiny": Speed(1.0)}
    with pytest.raises(ValueError, match="would take about 32 seconds, and a job may take 5 seconds"):
        workshop.submit(Request(tool="generate", settings={"steps": 32}))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FloatingPointError("sampling broke down"), "sampling broke down"),
        (RuntimeError("can't allocate memory"), "out of memory"),
        (MemoryError(), "out of memory"),
        (KeyError("a fault"), "not your fault"),
    ],
)
def test_a_crashed_job_harms_no_other(workshop, monkeypatch, error, said, caplog):
    def crash(self, plan, watch=None):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(AsyncPatchPipeline, "run", crash)
        job = over(workshop.submit(Request(tool="generate", settings=QUICK)))
    assert job.state == "failed"
    assert said in job.error
    done(workshop.submit(Request(tool="generate", settings=QUICK)))


def test_results_are_kept_for_a_while(shelf, monkeypatch):
    now = [0.0]
    workshop = jobs.Workshop(shelf, Limits(minutes=1.0), clock=lambda: now[0])
    job = done(workshop.submit(Request(tool="generate", settings=QUICK)))
    now[0] = 59.0
    assert workshop.job(job.id) is job
    now[0] = 61.0
    with pytest.raises(Unknown, match="kept for a while"):
        workshop.job(job.id)
    workshop.close()
    with pytest.raises(Full):
        workshop.submit(Request(tool="generate"))


def test_where_room_is_short_the_oldest_results_go(make, monkeypatch):
    workshop = make(megapixels=0.0006)  # two pictures
    monkeypatch.setattr(jobs, "HELD", 2)
    made = [done(workshop.submit(Request(tool="generate", settings=QUICK))) for _ in range(5)]
    with pytest.raises(Unknown):
        workshop.job(made[0].id)
    assert workshop.job(made[-1].id).made is not None


def test_previews_show_picture_and_times(workshop, files, monkeypatch):
    for name in ("PAUSE", "REST"):
        monkeypatch.setattr(f"asyncpatch.serving.preview.{name}", 0.0)
    request = Request(tool="inpaint", n=2, settings={"steps": 20})
    job = done(workshop.submit(request, Given(*files)))
    assert job.preview.number == 20
    times = np.asarray(job.preview.drawn("times").convert("L"))
    assert 200 < times[times.shape[0] // 2, times.shape[1] // 4] < 255  # nearly done, white
    assert job.preview.drawn("picture").size == job.preview.drawn("times").size
    assert job.preview.drawn("doubt") is None  # this model has no head


def test_time_left_goes_by_the_work_that_is_done(pipe):
    now = [0.0]
    plan = pipe.plan_generate(steps=8)
    work = Work(pipe, plan, Speed(2.0), clock=lambda: now[0])
    assert (work.total, work.left) == (pipe.work(plan), 2.0 * pipe.work(plan))
    now[0] = 5.0
    work.begin()
    work.advance(2)
    now[0] = 6.0
    assert (work.share, work.left) == (0.25, 3.0)
    work.advance(10 * work.total)
    assert (work.share, work.left) == (1.0, 0.0)


def test_between_two_previews_there_is_a_pause(workshop, files, monkeypatch):
    monkeypatch.setattr("asyncpatch.serving.preview.PAUSE", 1e6)
    job = done(workshop.submit(Request(tool="inpaint", settings={"steps": 20}), Given(*files)))
    assert job.preview.number == 1


def test_looks_take_a_fifth_of_the_time_at_most(pipe, monkeypatch):
    """Where a look takes two seconds, as with an autoencoder, and a step one."""
    now, plan = [0.0], pipe.plan_generate(steps=41, seed=0)
    preview = Preview(plan, 16, clock=lambda: now[0])

    def look(*given):
        now[0] += 1.0  # at the picture, and at the times

    def step(glimpse):
        now[0] += 1.0
        preview(glimpse)

    monkeypatch.setattr(preview.view, "lay", look)
    pipe.run(plan, step)
    assert now[0] == 41 + 2 * preview.number
    assert preview.number == 6  # at the first step, and after every eight seconds of rest
