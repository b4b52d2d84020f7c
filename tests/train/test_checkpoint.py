"""Checkpoints: whole or not there."""

import errno
import os

import pytest
import torch

from asyncpatch.train import checkpoint
from asyncpatch.train.errors import TrainingError


def save(folder, step, keep=2):
    return checkpoint.save(folder, step, {"w": torch.full((3,), float(step))}, {"feed": {"epoch": step}}, keep)


def test_a_checkpoint_comes_back(tmp_path):
    path = save(tmp_path, 12)
    tensor, facts = checkpoint.load(path)
    assert torch.equal(tensor("w"), torch.full((3,), 12.0))
    assert facts == {"step": 12, "feed": {"epoch": 12}}
    assert checkpoint.all_in(tmp_path) == [path]


def test_old_ones_go_when_the_new_one_is_there(tmp_path):
    for step in (5, 10, 15, 100):
        save(tmp_path, step)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000015", "step-00000100"]


def test_a_write_that_fails_leaves_the_last_good_one(tmp_path, monkeypatch):
    good = save(tmp_path / "checkpoints", 5, keep=1)

    def full(tensors, path):
        path.write_bytes(b"half of")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(TrainingError, match=r"(?s)full.*step-00000005.*--resume"), checkpoint.explained(tmp_path):
        save(tmp_path / "checkpoints", 10, keep=1)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [good.name]
    checkpoint.load(good)


def test_other_errors_are_not_explained_away(tmp_path):
    with pytest.raises(PermissionError), checkpoint.explained(tmp_path):
        raise PermissionError(errno.EACCES, "no")


@pytest.mark.parametrize("moment", ["fsync", "rename", "rmtree"])
def test_dying_at_any_moment_leaves_a_whole_checkpoint(tmp_path, monkeypatch, moment):
    """The process dies (here: everything after is skipped) at a flush, at a rename, or at a deletion."""

    class Died(BaseException):
        pass

    save(tmp_path, 5, keep=1)
    steps = 0
    owner, real = (checkpoint.shutil, checkpoint.shutil.rmtree) if moment == "rmtree" else (os, getattr(os, moment))
    if moment == "rename":
        owner, real = checkpoint.Path, checkpoint.Path.rename
    while True:
        countdown = [steps]

        def dying(*args, countdown=countdown, **kwargs):
            if countdown[0] == 0:
                monkeypatch.setattr(checkpoint.shutil, "rmtree", lambda *a, **k: None)  # the dead clean nothing up
                raise Died
            countdown[0] -= 1
            return real(*args, **kwargs)

        monkeypatch.setattr(owner, moment, dying)
        try:
            save(tmp_path, 10 + steps, keep=1)
        except Died:
            monkeypatch.undo()
            newest = checkpoint.all_in(tmp_path)[-1]
            tensor, facts = checkpoint.load(newest)
            assert (tensor("w") == facts["step"]).all()
            steps += 1
            continue
        break
    assert steps > 0


def test_what_cannot_be_read_is_set_aside(tmp_path):
    said = []
    for step in (5, 10, 15):
        save(tmp_path, step, keep=3)
    (tmp_path / "step-00000015/state.safetensors").write_bytes(b"cut")
    (tmp_path / "step-00000010/facts.json").unlink()
    assert checkpoint.newest(tmp_path, said.append) == tmp_path / "step-00000005"
    assert len(said) == 2
    assert checkpoint.all_in(tmp_path) == [tmp_path / "step-00000005"]  # or rotation would keep the broken ones
    (tmp_path / "step-00000005/facts.json").write_text("")
    with pytest.raises(TrainingError, match="none of the checkpoints"):
        checkpoint.newest(tmp_path, said.append)
    assert checkpoint.newest(tmp_path / "empty", said.append) is None
