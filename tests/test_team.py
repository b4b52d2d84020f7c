"""Processes that share work: who does what, and what each is told."""

import subprocess
import sys

import pytest

from asyncpatch.processes import Team, together

SAID = """
import torch
from asyncpatch.processes import together

with together() as team:
    assert (team.world, torch.distributed.get_world_size(), team.main) == (3, 3, team.rank == 0)
    found = team.gathered([team.rank, *team.part(7)])
    assert found == ([[0, 0, 1], [1, 2, 3], [2, 4, 5, 6]] if team.main else None)
    assert team.told(f"from {team.rank}") == "from 0"
    with team.main_first():
        print("in turn", flush=True) if team.main else print("after", flush=True)
assert not torch.distributed.is_initialized()
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


def test_several_processes_agree(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    file = tmp_path / "said.py"
    file.write_text(SAID)
    call = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3", str(file)]
    ended = subprocess.run(call, capture_output=True, text=True, timeout=600, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split("\n") == ["in turn", "after", "after", ""]
