"""The store: decoded once, whole or not there, and what could not be read is known."""

import io
import os

import numpy as np
import pytest
from PIL import Image

from asyncpatch import machine
from asyncpatch.data import decoders
from asyncpatch.data.sources import DataError, open_sources
from asyncpatch.data.store import open_store


@pytest.fixture
def pictures(tmp_path):
    """200 pictures of 8x8 with levels 0 to 199, in two classes."""
    folder = tmp_path / "pictures"
    for k in range(200):
        path = folder / ("even" if k % 2 == 0 else "odd") / f"{k:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (k, k, k)).save(path)
    return folder


def opened(folder, tmp_path, **options):
    return open_store(open_sources([str(folder)]), 4, cache=tmp_path / "cache", **options)


def test_the_store_holds_every_picture_with_its_label(pictures, tmp_path):
    told = []
    found = opened(pictures, tmp_path, progress=lambda done, of: told.append((done, of)))
    assert found.pictures.shape == (200, 4, 4, 3)
    assert sorted(found.pictures[:, 0, 0, 0]) == list(range(200))
    assert (found.pictures == found.pictures[:, :1, :1, :1]).all()
    assert (found.pictures[:, 0, 0, 0] % 2 == found.labels).all()
    assert found.names == ("even", "odd")
    assert told[-1] == (200, 200)


def test_it_is_decoded_once(pictures, tmp_path, monkeypatch):
    first = opened(pictures, tmp_path)

    def refuse(*args, **kwargs):
        raise AssertionError("decoded again")

    monkeypatch.setattr(decoders, "read_views", refuse)
    assert (opened(pictures, tmp_path).pictures == first.pictures).all()
    with pytest.raises(AssertionError, match="decoded again"):  # another size is another store
        open_store(open_sources([str(pictures)]), 2, cache=tmp_path / "cache")
    Image.new("RGB", (9, 9)).save(pictures / "odd/001.png")
    with pytest.raises(AssertionError, match="decoded again"):  # and so are other files
        opened(pictures, tmp_path)


def test_a_broken_file_is_named_counted_and_skipped(pictures, tmp_path):
    for name in ("000", "002"):
        (pictures / f"even/{name}.png").write_bytes(b"no picture")
    for _ in range(2):  # also when it comes from the cache
        found = opened(pictures, tmp_path)
        assert len(found) == len(found.labels) == 198
        assert len(found.broken) == 2
        assert "000.png" in found.broken[0]


def test_too_many_broken_files_stop_it(pictures, tmp_path):
    whole = (pictures / "even/000.png").read_bytes()
    for name in ("000", "002", "004"):
        (pictures / f"even/{name}.png").write_bytes(whole[:40])
    for _ in range(2):
        with pytest.raises(DataError, match=r"(?s)3 of 200 .*000\.png.*004\.png"):
            opened(pictures, tmp_path)


def test_a_build_that_fails_leaves_nothing(pictures, tmp_path, monkeypatch):
    calls = []

    def die(item, *args):
        calls.append(item)
        if len(calls) > 100:
            raise KeyboardInterrupt
        return [np.zeros((4, 4, 3), np.uint8)]

    monkeypatch.setattr(decoders, "read_views", die)
    with pytest.raises(KeyboardInterrupt):
        opened(pictures, tmp_path)
    assert not list((tmp_path / "cache").iterdir())


def test_large_pictures_give_crops_that_do_not_depend_on_the_order_of_decoding(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for k in range(3):
        Image.effect_noise((16, 16), 60).save(folder / f"{k}.png")
    first = opened(folder, tmp_path, crops=1.0)
    again = open_store(open_sources([str(folder)]), 4, crops=1.0, cache=tmp_path / "other")
    assert len(first) == len(first.labels) == 3 * 10
    assert (first.pictures == again.pictures).all()
    assert len(np.unique(first.pictures.reshape(30, -1), axis=0)) > 25


def test_the_cache_folder_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("ASYNCPATCH_CACHE", str(tmp_path / "mine"))
    assert machine.cache_folder() == tmp_path / "mine"
    monkeypatch.delenv("ASYNCPATCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "theirs"))
    assert machine.cache_folder() == tmp_path / "theirs/asyncpatch"


def test_a_picture_is_what_its_file_holds(tmp_path):
    """Through the whole path once: a file, its bytes in memory, the store's levels."""
    file = io.BytesIO()
    levels = np.random.default_rng(0).integers(0, 256, (4, 4, 3), np.uint8)
    Image.fromarray(levels).save(file, "PNG")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.png").write_bytes(file.getvalue())
    assert (opened(tmp_path / "in", tmp_path).pictures[0] == levels).all()


def test_every_picture_has_crops_of_its_own_and_the_cache_knows_how_many(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    ramp = np.arange(64 * 64, dtype=np.uint16).reshape(64, 64)
    image = Image.fromarray(np.stack([ramp % 256, ramp // 256, ramp % 7], -1).astype(np.uint8))
    for name in ("a", "b"):
        image.save(folder / f"{name}.png")
    plain = opened(folder, tmp_path)
    cropped = opened(folder, tmp_path, crops=0.1)
    assert len(plain) == 2
    first, second = cropped.pictures[: len(cropped) // 2], cropped.pictures[len(cropped) // 2 :]
    assert (first[0] == second[0]).all()
    assert (first[1:] != second[1:]).any((1, 2, 3)).all()


def test_a_reduced_jpeg_looks_like_the_whole_one(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    y, x = np.mgrid[:256, :256]
    levels = (127 + 60 * np.sin(x / 20) + 60 * np.sin(y / 33)).astype(np.uint8)
    Image.fromarray(levels).convert("RGB").save(folder / "a.jpg", quality=95)
    found = opened(folder, tmp_path).pictures[0].astype(float)
    means = levels.reshape(4, 64, 4, 64).mean((1, 3))
    assert np.abs(found[..., 0] - means).max() < 4


def test_data_that_were_refused_are_looked_at_again(pictures, tmp_path):
    whole = {}
    for name in ("000", "002", "004"):
        path = pictures / f"even/{name}.png"
        stat = path.stat()
        whole[path] = path.read_bytes()
        path.write_bytes(b"x" * stat.st_size)
    with pytest.raises(DataError, match="3 of 200"):
        opened(pictures, tmp_path)
    for path, content in whole.items():
        stat = path.stat()
        path.write_bytes(content)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # as if only the access had been forbidden
    assert len(opened(pictures, tmp_path)) == 200
