"""Jobs that wait their turn: one works, the others queue, and whatever happens to one happens to it alone.

A job is known by an id that cannot be guessed, and by nothing else: who has the id may watch it, fetch what it made and
break it off, and nobody can list the jobs of others. All is kept in memory: no file is read or written.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from asyncpatch.images import Picture, picture_from, png_of
from asyncpatch.machine import is_out_of_memory
from asyncpatch.pipelines import Glimpse, Made
from asyncpatch.plans import Plan
from asyncpatch.progress import Work, spoken
from asyncpatch.request import KEY, NAMES, NOTHING, Given, Request
from asyncpatch.serving.limits import Limits
from asyncpatch.serving.preview import Preview
from asyncpatch.settings import Settings
from asyncpatch.shelf import Chosen, Shelf

State = Literal["waiting", "running", "done", "failed", "cancelled"]
OVER: tuple[State, ...] = ("done", "failed", "cancelled")

MARGIN = 128
"""Pixels by which a mask may be grown or faded."""
HELD = 24
"""All jobs together hold no more than so many of the largest pictures."""

_log = logging.getLogger(__name__)


class Full(Exception):
    """There is no room for another job now."""


class Unknown(Exception):
    """There is no such job: there never was, or it was dropped."""


class _Cancelled(Exception):
    pass


class _TooLong(Exception):
    pass


class Job:
    """A request on its way. Others read it; only its workshop changes it."""

    def __init__(self, request: Request, given: Given, chosen: Chosen, work: Work, preview: Preview) -> None:
        self.id = secrets.token_urlsafe(18)
        self.request = request
        self.pipeline, plan = chosen.pipeline, chosen.plan
        self.plan: Plan | None = plan
        self.given = given
        self.names = Given(*(name if each is not None else None for name, each in zip(NAMES, given, strict=True)))
        self.before = plan.tasks[0].picture
        self.work, self.preview = work, preview
        self.pixels = plan.tasks[0].hole.numel() * (len(plan.tasks[0].seeds) + 1)
        self.state: State = "waiting"
        self.error = ""
        self.made: Made | None = None
        self.ended = 0.0
        self.stopping = False

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def inputs(self) -> list[str]:
        """The pictures that were given, by name."""
        return [name for name, each in self.given._asdict().items() if each is not None]

    def input_png(self, name: str) -> bytes:
        if name not in self.inputs:
            raise Unknown(f"there is no {name} of this job")
        return png_of(picture_from(getattr(self.given, name)))

    def picture(self, number: int) -> Picture:
        """A picture that was made."""
        if self.made is None or not 0 <= number < len(self.made.pictures):
            raise Unknown(f"there is no picture {number} of this job")
        return self.made.pictures[number]

    def png(self, number: int) -> bytes:
        """A picture that was made, with its own request among its notes."""
        picture = self.picture(number)
        assert self.made is not None
        return png_of(picture, {KEY: self.request.one(self.made.seeds[number]).text()})


class Workshop:
    """Takes requests, and a thread of its own that works through them with the models of a shelf."""

    def __init__(self, shelf: Shelf, limits: Limits | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self.shelf, self.limits = shelf, limits or Limits()
        self.speeds = {name: shelf[name].speed() for name in shelf.about}
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._queue: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="asyncpatch workshop", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Breaks off what is running, and takes nothing more."""
        with self._changed:
            self._closed = True
            for job in self._jobs.values():
                job.stopping = True
            self._changed.notify_all()
        self._thread.join()

    # ---- What clients can do

    def choose(self, request: Request, given: Given = NOTHING) -> Chosen:
        """What a request comes to, within the limits, and with which model."""
        if any(isinstance(each, bytes) and len(each) > self.limits.bytes for each in given):
            raise ValueError(f"a picture may have {self.limits.megabytes} megabytes: use a smaller one")
        how = Settings.of(request.settings)
        for name, value, most in (
            ("steps", how.steps, self.limits.steps), ("batch", how.batch, Settings.batch),
            ("grow", abs(request.grow), MARGIN), ("feather", request.feather, MARGIN),
        ):  # fmt: skip
            if value > most:
                raise ValueError(f"{name} may be {most} at most here, got {value}")
        picture, order = (self._picture(each) for each in (given.picture, given.order))
        wanted = request.n * self._pixels_of(request, picture)
        if wanted > self.limits.pixels:  # said before anything of that size is made
            raise ValueError(
                f"all candidates together may have {self.limits.megapixels:g} million pixels, and would have "
                f"{wanted / 1e6:,.1f}: use a smaller picture, or ask for fewer"
            )
        pictures = Given(picture, given.mask, order)
        return self.shelf.choose(
            lambda pipeline: request.plan(pipeline, pictures), request.label or None, request.model
        )

    def submit(self, request: Request, given: Given = NOTHING, *, doubts: bool = False) -> Job:
        """A job that waits its turn. What is wrong with the request is a ValueError. With ``doubts``, and a model that
        says how sure it is, that can be seen while it runs."""
        self._room(0)
        name, pipeline, plan = self.choose(request, given)
        plan = replace(plan, doubts=doubts and pipeline.uncertainty is not None)
        seeds = plan.tasks[0].seeds
        work = Work(pipeline, plan, self.speeds[name], self._clock)
        if work.left > self.limits.seconds:
            raise ValueError(
                f"this would take about {spoken(work.left)}, and a job may take {spoken(self.limits.seconds)}: use a "
                "smaller hole or picture, fewer steps, or fewer candidates"
            )
        preview = Preview(plan, pipeline.model.resolution)
        asked = replace(request, seed=seeds[0], n=len(seeds), model=self.shelf.noted(name))
        job = Job(asked, given, Chosen(name, pipeline, plan), work, preview)
        with self._changed:
            self._room(job.pixels)
            self._jobs[job.id] = job
            self._queue.append(job)
            self._changed.notify_all()
        return job

    def job(self, id: str) -> Job:
        with self._changed:
            self._forget(0)
            try:
                return self._jobs[id]
            except KeyError:
                raise Unknown("there is no such job; results are kept for a while only") from None

    def place(self, job: Job) -> int:
        """How many are before it."""
        with self._changed:
            ahead = (
                0
                if job.state != "waiting"
                else self._queue.index(job) + any(each.state == "running" for each in self._jobs.values())
            )
        return ahead

    def cancel(self, job: Job) -> None:
        """Takes it from the queue, or stops it at the next visit of the sampling loop."""
        with self._changed:
            job.stopping = True
            if job.state == "waiting":
                self._queue.remove(job)
                self._end(job, "cancelled", "cancelled before it began")

    def status(self, job: Job) -> dict[str, Any]:
        """All there is to say of a job, as JSON has it."""
        waiting = job.state == "waiting"
        return {
            "id": job.id,
            "state": job.state,
            "ahead": self.place(job) if waiting else 0,
            "share": 1.0 if job.state == "done" else round(job.work.share, 4),
            "seconds_left": 0.0 if job.over else round(job.work.left, 1),
            "previews": job.preview.number,
            "error": job.error,
            "seeds": [] if job.made is None else job.made.seeds,
            "notes": [] if job.made is None else list(job.made.notes),
            "request": job.request.flat(),
            "inputs": job.inputs,
        }

    # ---- The work

    def _room(self, pixels: int) -> None:
        with self._changed:
            self._forget(pixels)
            held = sum(job.pixels for job in self._jobs.values())
            if self._closed or len(self._queue) >= self.limits.waiting or held + pixels > HELD * self.limits.pixels:
                raise Full(f"the queue is full ({len(self._queue)} jobs wait): try again in a while")

    def _forget(self, pixels: int) -> None:
        """Drops results that have been kept long enough, and the oldest where room is needed."""
        over = sorted((job for job in self._jobs.values() if job.over), key=lambda job: job.ended)
        held = sum(job.pixels for job in self._jobs.values())
        for job in over:
            old = self._clock() - job.ended > 60 * self.limits.minutes
            if old or held + pixels > HELD * self.limits.pixels:
                del self._jobs[job.id]
                held -= job.pixels

    def _picture(self, source: object | None) -> Picture | None:
        return None if source is None else picture_from(source, limit=self.limits.pixels)

    def _pixels_of(self, request: Request, picture: Picture | None) -> int:
        """Of one candidate."""
        if picture is None:
            height, width = request.size or (max(each.resolution for each in self.shelf.about.values()),) * 2
            return height * width
        height, width = request.size or (0, 0)
        return max(height, picture.height + request.top + request.bottom) * max(
            width, picture.width + request.left + request.right
        )

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
                job = self._queue.popleft()
                job.state = "running"
                job.work.begin()
            state, error = self._done(job)
            with self._changed:
                self._end(job, state, error)

    def _end(self, job: Job, state: State, error: str) -> None:
        job.state, job.error, job.plan, job.ended = state, error, None, self._clock()

    def _done(self, job: Job) -> tuple[State, str]:
        """How the job went, and what there is to say if it did not go well."""
        assert job.plan is not None

        def watch(glimpse: Glimpse) -> None:
            if job.stopping:
                raise _Cancelled
            if job.work.taken > self.limits.seconds:
                raise _TooLong
            job.preview(glimpse)
            job.work.advance(glimpse.windows)

        try:
            (job.made,) = job.pipeline.run(job.plan, watch)
            return "done", ""
        except _Cancelled:
            return "cancelled", "cancelled"
        except _TooLong:
            return "failed", f"it took longer than a job may, {spoken(self.limits.seconds)}, and was stopped"
        except (ValueError, FloatingPointError) as error:
            return "failed", str(error)
        except Exception as error:  # the others must go on
            if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and is_out_of_memory(error)):
                return "failed", "out of memory: use a smaller picture, or fewer candidates"
            _log.exception("job failed")
            return "failed", "something went wrong here that is not your fault; the log of the server says more"
