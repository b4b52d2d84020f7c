"""Decoding by several processes: the same as by one, in order, and no file takes the run with it."""

import os
import signal
import sys
from threading import Thread
from time import sleep

import numpy as np
import pytest

from asyncpatch.data.decoders import PART, Decoders
from asyncpatch.data.sources import DataError, Item, Shapes

POISONED = """
import os
from asyncpatch.data import worker
whole = worker.read_views
worker.read_views = lambda data, *rest: os._exit(1) if data == b"poison" else whole(data, *rest)
worker.main()
"""


@pytest.fixture
def decoders():
    made = []

    def make(*arguments):
        made.append(Decoders(*arguments))
        return made[-1]

    yield make
    for each in made:
        each.close()
        assert all(process.poll() is not None for process in each.processes)


def test_several_processes_give_what_one_does_in_the_same_order(decoders):
    items = list(Shapes(100))
    own = list(decoders(16, 2.0, 0).map(items))
    several = decoders(16, 2.0, 2)
    for _ in range(2):
        theirs = list(several.map(iter(items)))
        assert [item.name for item, _ in theirs] == [item.name for item in items]
        for (_, a), (_, b) in zip(own, theirs, strict=True):
            assert len(a) == len(b)
            assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
    assert 1 <= len(several.processes) <= 2


@pytest.mark.parametrize("workers", [0, 1])
def test_what_is_wrong_with_a_file_is_said_with_its_name(decoders, workers):
    def gone():
        raise FileNotFoundError("it is gone")

    good = next(iter(Shapes(1)))
    items = [good, Item("b.png", lambda: b"no picture", 0), Item("c.png", gone, 0), good]
    results = [result for _, result in decoders(8, 0.0, workers).map(items)]
    assert results[1] == "b.png: not a picture of any known kind"
    assert results[2] == "c.png: it is gone"
    assert np.array_equal(results[0][0], results[3][0])


def test_a_file_that_crashes_the_decoder_is_named_and_the_rest_go_on(decoders, monkeypatch):
    monkeypatch.setattr(Decoders, "command", (sys.executable, "-c", POISONED))
    items = list(Shapes(2 * PART + 3))
    items[7] = Item("bad.jpg", lambda: b"poison", 0)
    results = [result for _, result in decoders(8, 0.0, 1).map(items)]
    assert results[7] == "bad.jpg: it made the decoder crash"
    assert sum(isinstance(result, str) for result in results) == 1


def test_a_worker_that_was_killed_is_replaced(decoders):
    several = decoders(8, 0.0, 1)
    items = list(Shapes(3))
    first = list(several.map(items))
    os.kill(several.processes[0].pid, signal.SIGKILL)
    again = list(several.map(items))
    assert all(np.array_equal(a[0], b[0]) for (_, a), (_, b) in zip(first, again, strict=True))
    assert len(several.processes) == 2


def test_workers_do_not_outlive_the_decoders():
    several = Decoders(8, 0.0, 2)
    list(several.map(Shapes(80)))
    processes = list(several.processes)
    del several
    assert all(process.poll() is not None for process in processes)


def test_a_worker_needs_no_torch():
    import subprocess

    code = "import sys, asyncpatch.data.worker; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_workers_that_cannot_start_are_not_blamed_on_the_files(decoders, monkeypatch):
    for command in (("/bin/false",), ("/no/such/program",)):
        monkeypatch.setattr(Decoders, "command", command)
        with pytest.raises(DataError, match="none can be started"):
            list(decoders(8, 0.0, 1).map(Shapes(5)))


def test_a_file_called_numpy_where_one_works_does_no_harm(decoders, monkeypatch, tmp_path):
    (tmp_path / "numpy.py").write_text("raise RuntimeError('the wrong one')")
    monkeypatch.chdir(tmp_path)
    assert all(not isinstance(result, str) for _, result in decoders(8, 0.0, 1).map(Shapes(3)))


def test_closing_does_not_wait_for_a_decoder_that_is_stuck(monkeypatch):
    stuck = POISONED.replace("os._exit(1)", "__import__('time').sleep(600)")
    monkeypatch.setattr(Decoders, "command", (sys.executable, "-c", stuck))
    several = Decoders(8, 0.0, 1)
    results = several.map([Item("slow.jpg", lambda: b"poison", 0)])
    waiting = Thread(target=lambda: list(results))
    waiting.start()
    while not several.processes:
        sleep(0.05)
    sleep(0.5)
    several.close()
    waiting.join(20)
    assert not waiting.is_alive()
    assert all(process.poll() is not None for process in several.processes)


def test_a_worker_minds_neither_ctrl_c_nor_what_is_printed(decoders, monkeypatch):
    loud = POISONED.replace('os._exit(1) if data == b"poison" else', 'os.write(1, b"hello") and')
    monkeypatch.setattr(Decoders, "command", (sys.executable, "-c", loud))
    several = decoders(8, 0.0, 1)
    items = list(Shapes(3))
    assert all(not isinstance(result, str) for _, result in several.map(items))
    several.processes[0].send_signal(signal.SIGINT)
    sleep(0.3)
    assert all(not isinstance(result, str) for _, result in several.map(items))
    assert len(several.processes) == 1


def test_few_pictures_are_shared_among_the_workers(decoders):
    several = decoders(8, 0.0, 2)
    for _ in range(4):
        list(several.map(list(Shapes(20))))
    assert len(several.processes) == 2


def test_the_same_picture_twice_has_other_crops(decoders):
    large = next(iter(Shapes(1, side=64)))
    (_, first), (_, second) = decoders(16, 2.0, 0).map([large, large])
    assert any(not np.array_equal(a, b) for a, b in zip(first[1:], second[1:], strict=True))
