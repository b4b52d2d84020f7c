"""Where pictures come from: a folder, parquet files, a Hugging Face data set, WebDataset shards, or drawn shapes.

``open_sources`` looks at what it is given and chooses. A source yields undecoded items; ``store`` decodes them once
into a memory map, ``feed`` reads shards as it goes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from asyncpatch.protocols import NULL_LABEL

PICTURES = {
    ".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm",
    ".avif", ".jp2", ".j2k", ".qoi",
}  # fmt: skip
"""Suffixes of picture files."""
SPLITS = {"train": ("train", "training"), "validation": ("validation", "valid", "val", "test")}


class Item(NamedTuple):
    """A picture that is yet to be read: its name for messages, how to read its bytes, its class (-1 for none)."""

    name: str
    read: Callable[[], bytes]
    label: int


class Source(Protocol):
    """Pictures with the names of their classes."""

    names: tuple[str, ...]

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Item]: ...
    def fingerprint(self) -> str:
        """Changes whenever the pictures do."""


class DataError(ValueError):
    """The data are not what they should be; the message says what to do."""


def _files(root: Path, endings: set[str]) -> list[Path]:
    """All files below a folder with such endings, through links too, but for what is hidden."""
    found = []
    for folder, inside, names in os.walk(root, followlinks=True):
        inside[:] = [name for name in inside if not name.startswith(".")]
        paths = (Path(folder, name) for name in names if not name.startswith("."))
        found += [path for path in paths if path.suffix.lower() in endings and path.is_file()]
    return sorted(found)


def _stamp(paths: Sequence[Path]) -> str:
    lines = (f"{path}|{(stat := path.stat()).st_size}|{stat.st_mtime_ns}" for path in paths)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class Folder:
    """Picture files; the subfolder that a file lies in is its class. Without subfolders there are no classes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = _files(root, PICTURES)
        classes = {self._first(path) for path in self.files} - {""}
        self.names = tuple(sorted(classes))

    def _first(self, path: Path) -> str:
        parts = path.relative_to(self.root).parts
        return parts[0] if len(parts) > 1 else ""

    def __len__(self) -> int:
        return len(self.files)

    def __iter__(self) -> Iterator[Item]:
        number = {name: label for label, name in enumerate(self.names)} | {"": NULL_LABEL}
        for path in self.files:
            yield Item(str(path), path.read_bytes, number[self._first(path)])

    def fingerprint(self) -> str:
        return _stamp(self.files)


class Parquet:
    """Files in the layout of the datasets library: ``image`` (bytes, path) and, if there are classes, ``label``."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._pq = _import("pyarrow.parquet", "parquet files")
        self.files = list(files)
        schemas = [self._pq.read_schema(file) for file in self.files]
        for file, schema in zip(self.files, schemas, strict=True):
            if "image" not in schema.names:
                raise DataError(f"{file} must have a column 'image', has {schema.names}")
        self.labelled = all("label" in schema.names for schema in schemas)
        if self.labelled and any(not _integers(schema.field("label").type) for schema in schemas):
            raise DataError(
                f"the column 'label' of {self.files[0]} must hold integers, has {schemas[0].field('label').type}"
            )
        features = json.loads((schemas[0].metadata or {}).get(b"huggingface", b"{}"))
        features = features.get("info", {}).get("features", {})
        self.names = tuple(features.get("label", {}).get("names", ())) if self.labelled else ()
        if self.labelled and not self.names:
            highest = max((label for label in self._labels() if label is not None), default=NULL_LABEL)
            self.names = tuple(str(label) for label in range(highest + 1))
        self._rows = sum(self._pq.read_metadata(file).num_rows for file in self.files)

    def _labels(self) -> Iterator[int | None]:
        for file in self.files:
            yield from self._pq.read_table(file, columns=["label"])["label"].to_pylist()

    def __len__(self) -> int:
        return int(self._rows)

    def __iter__(self) -> Iterator[Item]:
        for file in self.files:
            table = self._pq.ParquetFile(file)
            row = 0
            for part in table.iter_batches(batch_size=1024, columns=["image", *(["label"] if self.labelled else [])]):
                images = part.column("image").to_pylist()
                labels = part.column("label").to_pylist() if self.labelled else [NULL_LABEL] * len(images)
                for image, label in zip(images, labels, strict=True):
                    yield Item(f"{file}, row {row}", _reader(image), NULL_LABEL if label is None else label)
                    row += 1

    def fingerprint(self) -> str:
        return _stamp(self.files)


class HuggingFace:
    """A data set of the datasets library: by name (``hf:NAME`` or ``hf:NAME:CONFIG``), or saved to a folder."""

    def __init__(self, where: str, data) -> None:  # type: ignore[no-untyped-def]
        datasets = _import("datasets", "Hugging Face data sets")
        pictures = [name for name, kind in data.features.items() if isinstance(kind, datasets.Image)]
        classes = [name for name, kind in data.features.items() if isinstance(kind, datasets.ClassLabel)]
        if not pictures:
            raise DataError(f"{where} has no column of pictures; its columns are {sorted(data.features)}")
        self.image, self.label = pictures[0], (classes or [None])[0]
        self.names = tuple(data.features[self.label].names) if self.label else ()
        self.where = where
        self.data = data.cast_column(self.image, datasets.Image(decode=False))

    @classmethod
    def open(cls, where: str, split: str, *, saved: bool) -> HuggingFace | None:
        """The split, whichever of its usual names it has; None where there is none. What has no splits is all train."""
        datasets = _import("datasets", "Hugging Face data sets")
        if saved:
            found = datasets.load_from_disk(where)
            splits = found if isinstance(found, datasets.DatasetDict) else {"train": found}
            name = next((each for each in SPLITS[split] if each in splits), None)
            return None if name is None else cls(where, splits[name])
        name, _, config = where.partition(":")
        splits = datasets.get_dataset_split_names(name, config or None)
        wanted = next((each for each in SPLITS[split] if each in splits), None)
        return None if wanted is None else cls(where, datasets.load_dataset(name, config or None, split=wanted))

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Item]:
        for row, each in enumerate(self.data):
            label = each[self.label] if self.label else NULL_LABEL
            yield Item(f"{self.where}, row {row}", _reader(each[self.image]), NULL_LABEL if label is None else label)

    def fingerprint(self) -> str:
        return str(self.data._fingerprint)


class Shapes:
    """Discs, squares and triangles in random colours, drawn here: pictures to try things with that nobody owns."""

    def __init__(self, count: int = 3000, side: int = 64, seed: int = 0) -> None:
        self.names: tuple[str, ...] = ("disc", "square", "triangle")
        self.count, self.side, self.seed = count, side, seed

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Item]:
        for k in range(self.count):
            yield Item(f"shape {k}", lambda k=k: self._draw(k), k % 3)  # type: ignore[misc]

    def _draw(self, k: int) -> bytes:
        from random import Random

        from PIL import Image, ImageDraw

        random, size = Random(f"{self.seed}/{k}"), 4 * self.side  # drawn large and reduced: smooth edges
        colours = [tuple(random.randrange(256) for _ in range(3)) for _ in range(3)]
        ground = Image.linear_gradient("L").rotate(90 * random.randrange(4)).resize((size, size))
        one, other = (Image.new("RGB", (size, size), colour) for colour in colours[:2])
        image = Image.composite(one, other, ground)
        radius = size * random.uniform(0.15, 0.35)
        x, y = (random.uniform(radius, size - radius) for _ in range(2))
        draw = ImageDraw.Draw(image)
        if k % 3 == 0:
            draw.circle((x, y), radius, colours[2])
        else:
            draw.regular_polygon((x, y, radius), 4 if k % 3 == 1 else 3, random.randrange(360), colours[2])
        file = io.BytesIO()
        image.resize((self.side, self.side), Image.Resampling.BOX).save(file, "PNG")
        return file.getvalue()

    def fingerprint(self) -> str:
        return f"shapes-1-{self.count}-{self.side}-{self.seed}"


class Joined:
    """Several sources as one. A class that several of them name is one class."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self.names = tuple(dict.fromkeys(name for source in sources for name in source.names))

    def __len__(self) -> int:
        return sum(len(source) for source in self.sources)

    def __iter__(self) -> Iterator[Item]:
        for source in self.sources:
            number = [self.names.index(name) for name in source.names]
            for item in source:
                if not NULL_LABEL <= item.label < len(number):
                    raise DataError(f"{item.name} has label {item.label}, but there are only {len(number)} classes")
                yield item if item.label == NULL_LABEL else item._replace(label=number[item.label])

    def fingerprint(self) -> str:
        return "+".join(source.fingerprint() for source in self.sources)


@dataclass(frozen=True)
class Shards:
    """WebDataset shards: tar files in which files of one stem are one picture (``a.jpg``, ``a.cls`` or ``a.json``).

    They are streamed, never unpacked; addresses that fsspec knows (https, s3, ...) go as well as paths. Names of the
    classes stand in ``classes.txt`` beside them, one a line; without it there are no classes.
    """

    paths: tuple[str, ...]
    names: tuple[str, ...] = ()

    def read(self, path: str) -> Iterator[Item]:
        """The pictures of one shard, undecoded, in its order."""
        import fsspec

        try:
            with fsspec.open(path, "rb") as file:
                yield from self._items(path, file)
        except (tarfile.TarError, EOFError) as error:
            raise DataError(f"the shard {path} cannot be read: {error}") from error

    def _items(self, path: str, file: IO[bytes]) -> Iterator[Item]:
        stem, parts = "", dict[str, bytes]()
        with tarfile.open(fileobj=file, mode="r|*") as tar:
            for member in tar:
                if not member.isfile():
                    continue
                folder, _, name = member.name.rpartition("/")
                first, _, ending = name.partition(".")
                if (now := f"{folder}/{first}") != stem:
                    yield from self._item(path, stem, parts)
                    stem, parts = now, {}
                content = tar.extractfile(member)
                parts[ending.lower()] = content.read() if content else b""
        yield from self._item(path, stem, parts)

    def _item(self, path: str, stem: str, parts: dict[str, bytes]) -> Iterator[Item]:
        picture = next((parts[ending] for ending in parts if "." + ending in PICTURES), None)
        if picture is None:
            return
        label = NULL_LABEL
        if self.names:
            if "cls" in parts:
                label = int(parts["cls"])
            elif "json" in parts:
                label = int(json.loads(parts["json"]).get("label", NULL_LABEL))
        if not NULL_LABEL <= label < len(self.names):
            raise DataError(f"{stem} in {path} has label {label}, but classes.txt names only {len(self.names)}")
        yield Item(f"{stem.lstrip('/')} in {path}", lambda: picture, label)


def open_sources(where: Sequence[str], split: str = "train") -> Joined | Shards | None:
    """What ``where`` names, joined; None where there is no such split.

    Each entry is a folder of pictures, a parquet file or a folder of them, ``hf:NAME``, a folder that datasets saved,
    tar shards (a folder of them, or a path or address with ``{000..127}``), or ``shapes``.
    """
    found = [_open(each, split) for each in where]
    sources = [source for source in found if source is not None]
    shards = [source for source in sources if isinstance(source, Shards)]
    if shards and len(sources) > 1:
        raise DataError("WebDataset shards are streamed and cannot be joined with other data; give them alone")
    if shards:
        return shards[0]
    kept = [source for source in sources if not isinstance(source, Shards) and len(source)]
    return Joined(kept) if kept else None


def _open(where: str, split: str) -> Source | Shards | None:
    wanted = SPLITS[split]
    if where == "shapes":
        return Shapes() if split == "train" else Shapes(count=300, seed=1)
    if where.startswith("hf:"):
        return HuggingFace.open(where.removeprefix("hf:"), split, saved=False)
    if where.endswith(".tar") or "://" in where:
        return _shards(_braces(where)) if split == "train" else None
    path = Path(where)
    if path.is_file() and path.suffix == ".parquet":
        return Parquet([path]) if split == "train" else None
    if not path.is_dir():
        raise DataError(
            f"{where} is no folder and no parquet file. Data may be: a folder of pictures (its subfolders are the "
            "classes), a .parquet file or a folder of them, hf:NAME, WebDataset shards (.tar), or the word shapes"
        )
    if (path / "dataset_info.json").exists() or (path / "dataset_dict.json").exists():
        return HuggingFace.open(where, split, saved=True)
    own = next((path / name for name in wanted if (path / name).is_dir()), None)
    split_up = any((path / name).is_dir() for name in SPLITS["train"]) and any(
        (path / name).is_dir() for name in SPLITS["validation"]
    )
    inside = [each.name for each in path.iterdir() if each.is_dir() and not each.name.startswith(".")]
    if len(inside) == 1 and inside[0] in SPLITS["train"]:  # a split without its counterpart is no class
        if split != "train":
            return None
        split_up = True
    folder = own if split_up and own else path
    parquet, shards, pictures = _files(folder, {".parquet"}), sorted(folder.glob("*.tar")), Folder(folder)
    if sum(map(bool, (parquet, shards, len(pictures)))) > 1:
        raise DataError(
            f"{folder} holds {len(pictures)} pictures, {len(parquet)} parquet files and {len(shards)} tar files: "
            "name a folder, or files, of one kind"
        )
    if parquet:
        named = [file for file in parquet if file.name.startswith(wanted)]
        plain = not any(file.name.startswith(sum(SPLITS.values(), ())) for file in parquet)
        files = named or (parquet if plain and (split == "train" or folder == own) else [])
        return Parquet(files) if files else None
    if split != "train" and folder == path:
        return None
    if shards:
        return _shards([str(shard) for shard in shards]) if split == "train" else None
    if not len(pictures):
        raise DataError(f"{folder} holds no pictures: none of its files end in {', '.join(sorted(PICTURES))}")
    return pictures


def _shards(paths: Sequence[str]) -> Shards:
    from fsspec.core import url_to_fs

    try:
        system, path = url_to_fs(paths[0])
    except (ImportError, ValueError) as error:
        raise DataError(f"cannot read {paths[0]}: {error}") from error
    classes = path.rpartition("/")[0] + "/classes.txt"
    lines = system.cat_file(classes).decode().splitlines() if system.exists(classes) else []
    return Shards(tuple(paths), tuple(line.strip() for line in lines if line.strip()))


def _braces(pattern: str) -> list[str]:
    """``a-{000..002}.tar`` written out."""
    head, brace, rest = pattern.partition("{")
    if not brace:
        return [pattern]
    span, _, tail = rest.partition("}")
    first, dots, last = span.partition("..")
    if not dots or not (first + last).isdigit() or int(last) < int(first):
        raise DataError(f"{pattern} must state its shards as in name-{{000..127}}.tar")
    return [f"{head}{k:0{len(first)}d}{tail}" for k in range(int(first), int(last) + 1)]


def _reader(image: dict[str, object] | None) -> Callable[[], bytes]:
    """Bytes where a table holds them, else the file that it names."""

    def read() -> bytes:
        content, path = (image or {}).get("bytes"), (image or {}).get("path")
        if isinstance(content, bytes):
            return content
        if path is None:
            raise OSError("neither bytes nor a path")
        return Path(str(path)).read_bytes()

    return read


def _integers(kind: object) -> bool:
    return str(kind).startswith(("int", "uint", "null"))


def _import(module: str, what: str):  # type: ignore[no-untyped-def]
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        raise DataError(f"{what} need the package {module.split('.')[0]}: pip install 'asyncpatch[train]'") from error
