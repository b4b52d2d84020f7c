"""Decoding by several processes.

Decoders work without Python's lock, but for small pictures what is around them takes as long: threads gain nothing.
So each thread here has a process of its own (``worker``). They are started as commands, not forked: nothing of a
program that uses a GPU, or that has no ``if __name__ == "__main__"``, can be in the way. A file on which a decoder
crashes takes its worker with it, and no more.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice

from asyncpatch import checks
from asyncpatch.data.pictures import Pixels, quietly
from asyncpatch.data.sources import DataError, Item
from asyncpatch.data.worker import READY, read_views
from asyncpatch.machine import cores

Job = list[tuple[bytes, int, float, int]]
Views = list[Pixels] | str
"""A picture's squares, or what is wrong with it."""

PART = 32
"""Pictures handed to a worker at a time; one by one would cost more than decoding."""


class Decoders:
    """Turns items into squares of ``side`` pixels, with ``crops`` (see ``pictures.views``), in their order.

    ``workers`` is the number of processes: by default one per core; 0 decodes in this process.
    """

    command = (sys.executable, "-P", "-m", "asyncpatch.data.worker")

    def __init__(self, side: int, crops: float = 0.0, workers: int | None = None) -> None:
        if workers is None:  # the cores are shared with others of a run
            workers = max(1, min(32, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
        checks.at_least("workers", workers, 0)
        self.side, self.crops = side, crops
        self.workers = workers if sys.executable else 0
        self.processes: list[subprocess.Popen[bytes]] = []
        self._own = threading.local()
        self._closing = False
        self._pool = ThreadPoolExecutor(max(self.workers, 1))
        self._ended = weakref.finalize(self, _end_all, self.processes)

    def map(self, items: Iterable[Item]) -> Iterator[tuple[Item, Views]]:
        """Each item with its squares, or with what is wrong with it."""
        numbered, size = enumerate(items), PART
        if isinstance(items, list) and self.workers:  # of few, each worker gets some
            size = max(1, min(PART, -(-len(items) // self.workers)))
        if not self.workers:
            while part := list(islice(numbered, PART)):
                with quietly():
                    results = self._decode(part)
                yield from self._named(part, results)
            return
        coming: deque[tuple[list[tuple[int, Item]], Future[list[Views]]]] = deque()
        while True:
            while len(coming) < 2 * self.workers and (part := list(islice(numbered, size))):
                coming.append((part, self._pool.submit(self._decode, part)))
            if not coming:
                return
            part, done = coming.popleft()
            yield from self._named(part, done.result())

    @staticmethod
    def _named(part: list[tuple[int, Item]], results: list[Views]) -> Iterator[tuple[Item, Views]]:
        for (_, item), result in zip(part, results, strict=True):
            yield item, f"{item.name}: {result}" if isinstance(result, str) else result

    def close(self) -> None:
        """End the workers, whatever they are at."""
        self._closing = True
        for process in list(self.processes):  # their pipes are closed when no thread reads from them any more
            process.kill()
        self._pool.shutdown(cancel_futures=True)
        self._ended()

    def _decode(self, part: list[tuple[int, Item]]) -> list[Views]:
        results: list[Views] = [""] * len(part)
        job: Job = []
        places = []
        for place, (number, item) in enumerate(part):
            try:
                job.append((item.read(), self.side, self.crops, number))
                places.append(place)
            except Exception as error:  # files can go away, or be out of reach
                results[place] = str(error) or type(error).__name__
        for place, result in zip(places, self._done(job), strict=True):
            results[place] = result
        return results

    def _done(self, job: Job) -> list[Views]:
        if not self.workers:
            return [read_views(*each) for each in job]
        try:
            return self._asked(job)
        except (OSError, EOFError, pickle.UnpicklingError):
            if self._closing:
                return ["decoding was broken off"] * len(job)
            if len(job) == 1:
                return ["it made the decoder crash"]
            return [result for each in job for result in self._done([each])]  # one of them is to blame

    def _started(self, environment: dict[str, str]) -> subprocess.Popen[bytes]:
        """A new worker. One that does not come up is nobody's fault but the machine's."""
        process = None
        try:
            process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
            self.processes.append(process)
            assert process.stdout is not None
            if pickle.load(process.stdout) == READY:
                return process
            said = "it answered something else"
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            said = str(error) or type(error).__name__
        if process is not None:
            _end(process)
        if self._closing:
            raise EOFError
        raise DataError(f"pictures are decoded by processes of their own, but none can be started ({said})")

    def _asked(self, job: Job) -> list[Views]:
        """What this thread's worker makes of a job; a worker that is gone is replaced."""
        process: subprocess.Popen[bytes] | None = getattr(self._own, "process", None)
        if process is None or process.poll() is not None:
            there = os.pathsep.join(path for path in sys.path if path)  # where this process found the package
            process = self._started({**os.environ, "PYTHONPATH": there})
            self._own.process = process
            if self._closing:  # and it was too late to be ended with the others
                raise EOFError
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump(job, process.stdin, pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            results: list[Views] = pickle.load(process.stdout)
            return results
        except (OSError, EOFError, pickle.UnpicklingError):
            _end(process)
            raise


def _end_all(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """A worker holds nothing that could be lost."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        try:
            if pipe is not None:
                pipe.close()
        except OSError:  # something was left unsent
            pass
