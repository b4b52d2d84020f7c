"""Sources: every layout is recognised, and labels mean what the names say."""

import io
import json
import tarfile

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from asyncpatch.data.pictures import decode
from asyncpatch.data.sources import DataError, Joined, Shapes, Shards, open_sources


def png(value):
    file = io.BytesIO()
    Image.new("RGB", (4, 4), (value, value, value)).save(file, "PNG")
    return file.getvalue()


def write(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(value))


def seen(source):
    """(grey level, name of the class) of every picture."""
    names = (*source.names, None)
    return [(int(np.asarray(decode(item.read()))[0, 0, 0]), names[item.label]) for item in source]


def parquet(path, values, labels=None, names=None):
    columns = {"image": [{"bytes": png(value), "path": None} for value in values]}
    if labels is not None:
        columns["label"] = labels
    table = pa.table(columns)
    if names:
        about = {"info": {"features": {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def test_a_folder_of_classes(tmp_path):
    write(tmp_path / "dog/x/2.PNG", 20)
    write(tmp_path / "cat/1.png", 10)
    write(tmp_path / "loose.png", 30)
    write(tmp_path / ".thumbnails/1.png", 99)
    (tmp_path / "cat/notes.txt").write_text("no picture")
    source = open_sources([str(tmp_path)])
    assert source.names == ("cat", "dog")
    assert sorted(seen(source)) == [(10, "cat"), (20, "dog"), (30, None)]
    assert len(source) == 3
    assert open_sources([str(tmp_path)], "validation") is None


def test_a_plain_folder_has_no_classes(tmp_path):
    write(tmp_path / "1.png", 10)
    source = open_sources([str(tmp_path)])
    assert source.names == ()
    assert seen(source) == [(10, None)]


def test_a_folder_with_splits(tmp_path):
    for split, value in (("train", 10), ("val", 20)):
        write(tmp_path / split / "cat/1.png", value)
    assert seen(open_sources([str(tmp_path)])) == [(10, "cat")]
    assert seen(open_sources([str(tmp_path)], "validation")) == [(20, "cat")]


def test_a_split_without_its_counterpart_is_no_class(tmp_path):
    write(tmp_path / "train/cat/1.png", 10)
    assert seen(open_sources([str(tmp_path)])) == [(10, "cat")]
    assert open_sources([str(tmp_path)], "validation") is None


def test_train_may_be_the_name_of_a_class(tmp_path):
    for name in ("bus", "train"):
        write(tmp_path / name / "1.png", 10)
    assert open_sources([str(tmp_path)]).names == ("bus", "train")


def test_parquet(tmp_path):
    parquet(tmp_path / "train-0.parquet", [1, 2], [0, 1], ["a", "b"])
    parquet(tmp_path / "train-1.parquet", [3], [None], ["a", "b"])
    parquet(tmp_path / "validation-0.parquet", [4], [1], ["a", "b"])
    assert seen(open_sources([str(tmp_path)])) == [(1, "a"), (2, "b"), (3, None)]
    assert seen(open_sources([str(tmp_path)], "validation")) == [(4, "b")]
    assert seen(open_sources([str(tmp_path / "validation-0.parquet")])) == [(4, "b")]


def test_parquet_without_names_or_labels(tmp_path):
    parquet(tmp_path / "a/x.parquet", [1, 2], [0, 2])
    parquet(tmp_path / "b/x.parquet", [3])
    assert seen(open_sources([str(tmp_path / "a")])) == [(1, "0"), (2, "2")]
    assert seen(open_sources([str(tmp_path / "b")])) == [(3, None)]


def test_parquet_may_name_files(tmp_path):
    write(tmp_path / "elsewhere.png", 7)
    columns = {"image": [{"bytes": None, "path": str(tmp_path / "elsewhere.png")}, None]}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet")
    first, second = open_sources([str(tmp_path / "x.parquet")])
    assert np.asarray(decode(first.read()))[0, 0, 0] == 7
    with pytest.raises(OSError, match="neither"):
        second.read()


@pytest.mark.parametrize("split_up", [True, False])
def test_a_saved_hugging_face_data_set(tmp_path, split_up):
    features = datasets.Features({"picture": datasets.Image(), "kind": datasets.ClassLabel(names=["a", "b"])})
    rows = {"picture": [Image.new("RGB", (4, 4), (9, 9, 9))], "kind": [1]}
    data = datasets.Dataset.from_dict(rows, features=features)
    (datasets.DatasetDict(train=data) if split_up else data).save_to_disk(str(tmp_path / "saved"))
    source = open_sources([str(tmp_path / "saved")])
    assert seen(source) == [(9, "b")]
    assert len(source) == 1
    assert source.fingerprint()
    assert open_sources([str(tmp_path / "saved")], "validation") is None


def test_joined_sources_share_the_classes_they_both_name(tmp_path):
    write(tmp_path / "one/cat/1.png", 10)
    write(tmp_path / "one/dog/1.png", 20)
    write(tmp_path / "two/ape/1.png", 30)
    write(tmp_path / "two/dog/1.png", 40)
    source = open_sources([str(tmp_path / "one"), str(tmp_path / "two")])
    assert source.names == ("cat", "dog", "ape")
    assert seen(source) == [(10, "cat"), (20, "dog"), (30, "ape"), (40, "dog")]


def test_a_label_without_a_name_is_an_error(tmp_path):
    parquet(tmp_path / "x.parquet", [1], [5], ["a", "b"])
    with pytest.raises(DataError, match=r"label 5.* only 2"):
        list(open_sources([str(tmp_path / "x.parquet")]))


def test_a_changed_file_changes_the_fingerprint(tmp_path):
    write(tmp_path / "1.png", 10)
    before = open_sources([str(tmp_path)]).fingerprint()
    assert open_sources([str(tmp_path)]).fingerprint() == before
    (tmp_path / "1.png").write_bytes(png(11) + b" ")
    assert open_sources([str(tmp_path)]).fingerprint() != before


def test_shapes_are_drawn_alike_every_time():
    one, two = list(Shapes(6)), list(Shapes(6))
    assert [item.read() for item in one] == [item.read() for item in two]
    assert [item.label for item in one] == [0, 1, 2, 0, 1, 2]
    assert one[0].read() != next(iter(Shapes(6, seed=1))).read()
    assert isinstance(open_sources(["shapes"], "validation"), Joined)


def shard(path, entries):
    with tarfile.open(path, "w") as tar:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def test_shards(tmp_path):
    shard(tmp_path / "x-0.tar", [("a/1.png", png(1)), ("a/1.cls", b"1"), ("a/2.seg.txt", b""), ("a/2.PNG", png(2))])
    shard(tmp_path / "x-1.tar", [("3.json", b'{"label": 0}'), ("3.jpg", png(3)), ("4.txt", b"no picture")])
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    found = open_sources([str(tmp_path)])
    assert isinstance(found, Shards)
    assert found.names == ("cat", "dog")
    assert found.paths == open_sources([str(tmp_path / "x-{0..1}.tar")]).paths
    items = [item for path in found.paths for item in found.read(path)]
    assert [(decode(item.read()).getpixel((0, 0))[0], item.label) for item in items] == [(1, 1), (2, -1), (3, 0)]
    assert open_sources([str(tmp_path)], "validation") is None
    with pytest.raises(DataError, match="alone"):
        open_sources([str(tmp_path), "shapes"])
    with pytest.raises(DataError, match=r"000\.\.127"):
        open_sources([str(tmp_path / "x-{a}.tar")])


def test_what_is_no_data_is_said(tmp_path):
    with pytest.raises(DataError, match="no folder"):
        open_sources([str(tmp_path / "missing")])
    with pytest.raises(DataError, match="no pictures"):
        open_sources([str(tmp_path)])
    pq.write_table(pa.table({"text": ["a"]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="column 'image'"):
        open_sources([str(tmp_path)])


def test_a_mixture_of_kinds_is_refused(tmp_path):
    write(tmp_path / "1.png", 10)
    shard(tmp_path / "backup.tar", [("a.png", png(1))])
    with pytest.raises(DataError, match="1 pictures, 0 parquet files and 1 tar files"):
        open_sources([str(tmp_path)])


def test_links_are_followed_and_dead_ones_left_out(tmp_path):
    write(tmp_path / "elsewhere/1.png", 10)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/cat").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data/dead.png").symlink_to(tmp_path / "missing.png")
    (tmp_path / "data/folder.png").mkdir()
    source = open_sources([str(tmp_path / "data")])
    assert seen(source) == [(10, "cat")]
    assert source.fingerprint()


def test_a_cut_shard_and_words_as_labels_are_said(tmp_path):
    shard(tmp_path / "a.tar", [("1.png", png(1)), ("2.png", png(2))])
    cut = (tmp_path / "a.tar").read_bytes()[:700]
    (tmp_path / "a.tar").write_bytes(cut)
    with pytest.raises(DataError, match=r"a\.tar cannot be read"):
        list(Shards((str(tmp_path / "a.tar"),)).read(str(tmp_path / "a.tar")))
    with pytest.raises(DataError, match="cannot read"):
        open_sources(["nonsense://bucket/a.tar"])
    parquet(tmp_path / "words.parquet", [1], ["cat"])
    with pytest.raises(DataError, match="must hold integers"):
        open_sources([str(tmp_path / "words.parquet")])


def test_splits_of_a_hub_data_set_by_whatever_name(tmp_path):
    for split, value in (("train", 10), ("test", 20)):
        write(tmp_path / "set" / split / "cat/1.png", value)
        write(tmp_path / "set" / split / "dog/1.png", value + 1)
    where = f"hf:{tmp_path / 'set'}"
    assert seen(open_sources([where])) == [(10, "cat"), (11, "dog")]
    assert seen(open_sources([where], "validation")) == [(20, "cat"), (21, "dog")]
    only = tmp_path / "only"
    write(only / "train/cat/1.png", 10)
    assert open_sources([f"hf:{only}"], "validation") is None
