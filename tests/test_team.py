"""Processes that share work: who does what, and what each is told."""

import subprocess
import sys

import pytest

from asyncpatch.processes import Team, together

SAID = """
import sys
import torch
from asyncpatch.processes import together

with together() as team:
    assert (team.world, torch.distributed.get_world_size(), team.main) == (3, 3, team.rank == 0)
    found = team.gathered([team.rank, *team.part(7)])
    assert found == ([[0, 0, 1], [1, 2, 3], [2, 4, 5, 6]] if team.main else None)
    assert team.told(f"from {team.rank}") == "from 0"
    with team.main_first():
        sys.stdout.write("in turn\\n" if team.main else "after\\n")  # print would write the end of a line apart
assert not torch.distributed.is_initialized()
"""
LEFT = """
import os
from asyncpatch.processes import together

with together() as team:
    import asyncpatch.pipelines
    team.told(team.rank)
threads = [open(f"/proc/self/task/{each}/comm").read() for each in os.listdir("/proc/self/task")]
assert not any("gloo" in each for each in threads), threads
"""


@pytest.mark.parametrize(("count", "world"), [(10, 1), (10, 3), (2, 4), (0, 2), (1000, 8)])
def test_every_picture_is_somebodys(count, world):
    parts = [Team(rank, world).part(count) for rank in range(world)]
    assert [each for part in parts for each in part] == list(range(count))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_one_process_is_a_team():
    with together() as team:
        assert (team, team.main) == (Team(), True)
        assert team.gathered("mine") == ["mine"]
        assert team.told("mine") == "mine"
        with team.main_first():
            pass


def processes(script, count, folder, monkeypatch):
    """What so many of them print."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    file = folder / "script.py"
    file.write_text(script)
    call = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), str(file)]
    ended = subprocess.run(call, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_several_processes_agree(tmp_path, monkeypatch):
    assert processes(SAID, 3, tmp_path, monkeypatch).split("\n") == ["in turn", "after", "after", ""]


@pytest.mark.skipif(sys.platform != "linux", reason="threads are listed as Linux has them")
def test_no_thread_of_the_group_is_left(tmp_path, monkeypatch):
    """One that still runs at exit may abort the process."""
    processes(LEFT, 2, tmp_path, monkeypatch)
