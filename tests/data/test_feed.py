"""Feeds: a step's pictures depend on the seed and the step alone, and processes share them."""

import io
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from asyncpatch.data.feed import Order, Share, StoredFeed, StreamedFeed, seed_for
from asyncpatch.data.sources import DataError, Shards, open_sources
from asyncpatch.data.store import Store

CPU = torch.device("cpu")


def test_each_epoch_is_a_permutation_of_its_own():
    order = Order(10, seed=3)
    epochs = [order(10 * k, 10 * k + 10).tolist() for k in range(4)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4
    assert order(7, 25).tolist() == (epochs[0] + epochs[1] + epochs[2])[7:25]  # and going back gives the same
    assert Order(10, seed=4)(0, 10).tolist() != epochs[0]
    assert Order(3, seed=0)(0, 11).bincount().tolist() in ([4, 4, 3], [4, 3, 4], [3, 4, 4])  # batch above the set


def test_seeds_differ_in_every_part():
    assert len({seed_for(a, b, c) for a in (0, 1) for b in ("step", "epoch") for c in range(100)}) == 400
    assert seed_for(1, 11) != seed_for(11, 1)
    assert 0 <= seed_for("anything") < 2**63


@pytest.fixture
def store():
    levels = np.arange(10, dtype=np.uint8)[:, None, None, None].repeat(2, 1).repeat(2, 2).repeat(3, 3)
    return Store(levels, np.arange(10) % 3, ("a", "b", "c"))


def test_processes_share_a_batch_without_overlap(store):
    whole = StoredFeed(store, 6, 0, CPU)
    parts = [StoredFeed(store, 6, 0, CPU, Share(rank, 3)) for rank in range(3)]
    for step in (0, 1, 2, 7, 3):  # in any order
        together = torch.cat([part.batch(step).levels for part in parts])
        assert torch.equal(whole.batch(step).levels, together)
        assert torch.equal(whole.batch(step).label, whole.batch(step).levels[:, 0, 0, 0].long() % 3)
    with pytest.raises(ValueError, match="divide among 4"):
        StoredFeed(store, 6, 0, CPU, Share(0, 4))
    for feed in (whole, *parts):
        feed.close()


def png(value):
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (value, value, value)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def shards(tmp_path):
    """Five shards of eight pictures, the grey levels 0 to 39, each labelled with its shard."""
    for k in range(5):
        with tarfile.open(tmp_path / f"{k}.tar", "w") as tar:
            for value in range(8 * k, 8 * k + 8):
                for ending, content in (("png", png(value)), ("cls", str(k).encode())):
                    info = tarfile.TarInfo(f"{value:03d}.{ending}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    (tmp_path / "classes.txt").write_text("\n".join("abcde"))
    return open_sources([str(tmp_path)])


def levels(feed, steps):
    found = []
    for step in range(steps):
        pictures = feed.batch(step)
        assert torch.equal(pictures.label, pictures.levels[:, 0, 0, 0].long() // 8)
        found += pictures.levels[:, 0, 0, 0].tolist()
    return found


def test_a_stream_sees_every_picture_once_an_epoch(shards):
    feed = StreamedFeed(shards, 4, 10, 0, CPU, group=16)
    epochs = [levels(feed, 4) for _ in range(3)]
    assert all(sorted(epoch) == list(range(40)) for epoch in epochs)
    assert epochs[0] != epochs[1]
    assert [value // 8 for value in epochs[0][:16]] != sorted(value // 8 for value in epochs[0][:16])  # mixed
    feed.close()


def test_a_stream_goes_on_where_it_was_left(shards):
    feed = StreamedFeed(shards, 4, 6, 0, CPU, group=16)
    for _ in range(12):  # batches of 6 from groups of 16, 16 and 8: every kind of boundary
        state = feed.state()
        again = StreamedFeed(shards, 4, 6, 0, CPU, group=16)
        again.restore(state)
        assert levels(again, 2)[:6] == levels(feed, 1)
        again.close()
    feed.close()


def test_processes_stream_different_shards(shards):
    feeds = [StreamedFeed(shards, 4, 10, 0, CPU, Share(rank, 2), group=8) for rank in range(2)]
    first = levels(feeds[0], 3)[:16]  # of five shards the first process has three, the second two
    second = levels(feeds[1], 3)[:16]
    assert not set(first) & set(second)
    for feed in feeds:
        feed.close()
    with pytest.raises(DataError, match="5 shards cannot feed 6"):
        StreamedFeed(shards, 4, 12, 0, CPU, Share(0, 6))


def broken_shard(path, good, bad):
    with tarfile.open(path, "w") as tar:
        for k in range(good + bad):
            content = png(k % 200) if k >= bad else b"broken"
            info = tarfile.TarInfo(f"{k:04d}.png")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return Shards((str(path),))


def test_broken_pictures_in_a_stream_are_skipped_or_stop_it(tmp_path):
    feed = StreamedFeed(broken_shard(tmp_path / "a.tar", 199, 1), 4, 50, 0, CPU)
    assert len(levels_only(feed, 4)) == 200
    assert len(feed.broken) >= 1
    feed.close()
    with pytest.raises(DataError, match="3 of 200"):
        StreamedFeed(broken_shard(tmp_path / "b.tar", 197, 3), 4, 50, 0, CPU)
    with pytest.raises(DataError, match="no pictures"):
        StreamedFeed(broken_shard(tmp_path / "c.tar", 0, 0), 4, 50, 0, CPU)


def levels_only(feed, steps):
    return [value for step in range(steps) for value in feed.batch(step).levels[:, 0, 0, 0].tolist()]
