"""The trainer as people start it: processes that are killed, stopped, started in pairs, or short of disk."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from asyncpatch.cli import app
from asyncpatch.processes import leave
from asyncpatch.train import checkpoint
from asyncpatch.train.config import Recipe
from asyncpatch.train.watch import read_log
from runs import TINY, TINY_VQ, losses, options_of, tensors_of


def command(data, run, *more, processes=1, recipe=TINY):
    start = [sys.executable, "-m"]
    if processes > 1:
        start += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    kind = (
        ["train", "--recipe", "smoke"] if isinstance(recipe, Recipe) else ["train-autoencoder", "--recipe", "smoke_vq"]
    )
    return [*start, "asyncpatch", *kind, "--data", *data, "--out", str(run), *options_of(recipe), *more]


def ran(*args, **options):
    return subprocess.run(command(*args, **options), capture_output=True, text=True, check=False)


def same_end(one, two, step):
    """Two runs have the same weights, Adam state and averages at a step, bit for bit."""
    a, b = tensors_of(one, step), tensors_of(two, step)
    assert a.keys() == b.keys()
    return all(torch.equal(a[name], b[name]) for name in a)


def until(process, condition):
    while not condition():
        assert process.poll() is None, "it ended before it could be stopped"
        time.sleep(0.01)


def test_killed_and_stopped_runs_end_as_if_nothing_had_happened(data, tmp_path):
    """Killed twice (there is always a checkpoint being written, one a step), stopped once, and resumed each time."""
    more = ["--steps", "60", "--save-every", "1"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert ran(data, whole, *more).returncode == 0
    for target, how in ((8, signal.SIGKILL), (25, signal.SIGKILL), (40, signal.SIGTERM)):
        with subprocess.Popen(
            command(data, parts, *more, "--resume"), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            until(process, lambda target=target: len(read_log(parts)) >= target)
            process.send_signal(how)
            _, said = process.communicate()
        if how == signal.SIGTERM:
            assert process.returncode == 128 + signal.SIGTERM
            assert "SIGTERM: saved step" in said
            step = int(said.split("saved step ")[1].split()[0])
            assert checkpoint.all_in(parts / "checkpoints")[-1].name == f"step-{step:08d}"
            assert step < 60
        else:
            assert process.returncode == -signal.SIGKILL
            assert len(read_log(parts)) < 60
    resumed = subprocess.run(  # the run's own folder says all that it takes
        [sys.executable, "-m", "asyncpatch", "train", "--out", str(parts), "--resume"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "going on from" in resumed.stderr
    assert losses(whole) == losses(parts)
    assert same_end(whole, parts, 60)


def test_two_processes_are_one_with_the_batch_of_both(data, tmp_path):
    """By torchrun, with whole weights and with sharded ones (FSDP2); and a run may go on with another number."""
    one, two, sharded = (tmp_path / name for name in ("one", "two", "sharded"))
    assert ran(data, one).returncode == 0
    for run, more in ((two, []), (sharded, ["--shard"])):
        process = ran(data, run, *more, processes=2)
        assert process.returncode == 0, process.stderr
        assert "x 2" in process.stderr
        assert process.stdout.count("done:") == 1
        assert json.loads((run / "config.json").read_text())["processes"] == 2
        assert list(losses(run).values()) == pytest.approx(list(losses(one).values()), rel=1e-5)
        a, b = tensors_of(one, 6), tensors_of(run, 6)
        assert a.keys() == b.keys()
        for name in a:
            assert torch.allclose(a[name], b[name], rtol=1e-3, atol=1e-5), name
    ended = ran(data, sharded, "--steps", "8", "--resume", "--no-shard")
    assert ended.returncode == 0, ended.stderr
    further = ran(data, one, "--steps", "8", "--resume")
    assert further.returncode == 0
    assert losses(sharded)[8] == pytest.approx(losses(one)[8], rel=1e-4)


def test_two_processes_train_an_autoencoder_as_one_does(data, tmp_path):
    """Its discriminator, how much that counts, and which codes are revived where, are those of the whole batch."""
    one, two, local = tmp_path / "one", tmp_path / "two", replace(TINY_VQ, locality=1.0)
    assert ran(data, one, recipe=local).returncode == 0
    process = ran(data, two, recipe=local, processes=2)
    assert process.returncode == 0, process.stderr
    assert "x 2" in process.stderr
    logs = [[line for line in read_log(run) if "loss" in line] for run in (one, two)]
    for a, b in zip(*logs, strict=True):
        for name in a.keys() - {"pictures_per_second"}:
            share = 1e-2 if name == "perplexity" else 1e-3  # rounding may take a token to another code
            assert b[name] == pytest.approx(a[name], rel=share, abs=1e-5), name
    a, b = tensors_of(one, 6), tensors_of(two, 6)
    assert a.keys() == b.keys()
    assert any(name.startswith("adversary/adam/") for name in a)
    for name in a:
        share = 5e-2 if name == "buffers/codebook.usage" else 1e-2  # again, a few tokens that went to other codes
        assert torch.allclose(a[name], b[name], rtol=share, atol=1e-4), name


def test_a_batch_that_cannot_be_shared_is_said(data, tmp_path):
    process = ran(data, tmp_path / "run", "--batch", "7", processes=2)
    assert process.returncode != 0
    assert "divide among 2 processes" in process.stderr


def test_a_full_disk_stops_with_the_last_checkpoint_intact(data, tmp_path):
    run = tmp_path / "run"
    assert ran(data, run, "--steps", "2").returncode == 0

    def small_files():  # no file above 100 kB can be written, as on a disk that is full
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    stopped = subprocess.run(
        command(data, run, "--resume"), capture_output=True, text=True, check=False, preexec_fn=small_files
    )
    assert stopped.returncode == 1
    assert "full" in stopped.stderr
    assert "step-00000002" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000002"]
    assert ran(data, run, "--resume").returncode == 0
    assert list(losses(run)) == [1, 2, 3, 4, 5, 6]


def test_shards_are_streamed_and_resumed(tmp_path):
    import io
    import tarfile

    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    (tmp_path / "shards").mkdir()
    for k in range(3):
        with tarfile.open(tmp_path / f"shards/{k}.tar", "w") as tar:
            for n in range(10):
                file = io.BytesIO()
                Image.fromarray(random.integers(0, 256, (8, 8, 3), np.uint8)).save(file, "PNG")
                info = tarfile.TarInfo(f"{n}.png")
                info.size = file.tell()
                file.seek(0)
                tar.addfile(info, file)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert ran([str(tmp_path / "shards")], whole).returncode == 0
    for _ in range(2):
        ran([str(tmp_path / "shards")], parts, "--minutes", "0", "--resume")
    assert list(losses(parts)) == [1, 2]
    assert ran([str(tmp_path / "shards")], parts, "--resume").returncode == 0
    assert losses(whole) == losses(parts)
    assert same_end(whole, parts, 6)


def test_two_processes_stop_together_and_at_once(data, tmp_path):
    """SIGTERM to torchrun: both stop after the step they are at, whatever the log's interval, and can go on."""
    more = ["--steps", "100000", "--log-every", "1", "--save-every", "100000"]
    run = tmp_path / "run"
    with subprocess.Popen(command(data, run, *more, processes=2), stderr=subprocess.PIPE, text=True) as process:
        until(process, lambda: len(read_log(run)) >= 3)
        process.terminate()
        _, said = process.communicate()
    assert "SIGTERM: saved step" in said
    step = int(said.split("saved step ")[1].split()[0])
    assert checkpoint.all_in(run / "checkpoints")[-1].name == f"step-{step:08d}"
    again = ran(data, run, "--steps", str(step + 1), "--resume", processes=2)
    assert again.returncode == 0, again.stderr
    assert len(losses(run)) == step + 1


def test_processes_part_before_they_exit(data, tmp_path, monkeypatch):
    """Finished or stopped."""
    left = []
    with monkeypatch.context() as there:
        there.setattr("torch.distributed.is_initialized", lambda: True)
        there.setattr("torch.distributed.destroy_process_group", lambda: left.append(True))
        leave()
    monkeypatch.setattr("asyncpatch.processes.leave", lambda: left.append(False))
    for run, more, whole in (("whole", ["--steps", "1"], True), ("part", ["--minutes", "0"], False)):
        call = command(data, tmp_path / run, *more)
        ended = CliRunner().invoke(app, call[call.index("asyncpatch") + 1 :])
        assert ended.exit_code == 0
        assert ended.stdout.startswith("done: ") == whole
    assert left == [True, False, False]


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert "ASYNCPATCH_CACHE" in os.environ
