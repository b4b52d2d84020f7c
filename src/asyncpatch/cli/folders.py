"""Folders in, folders out: batched, resumable, and one broken picture does not stop the rest."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from asyncpatch.cli.pictures import LONG, Job, is_folder
from asyncpatch.data.sources import PICTURES
from asyncpatch.images import ImageError, check_target, numbered, write
from asyncpatch.machine import is_out_of_memory
from asyncpatch.pipelines import AsyncPatchPipeline, Glimpse, Watch
from asyncpatch.plans import Plan
from asyncpatch.progress import Work, spoken
from asyncpatch.shelf import Shelf

AT_ONCE, PIXELS_AT_ONCE = 16, 1 << 26
"""Pictures that are worked on together, at most, and after how many pixels no more are added."""


def pictures_in(folder: Path, *but: Path) -> list[Path]:
    """All pictures below a folder, but for what is hidden, and for some files and folders in it."""
    found = (path for path in folder.rglob("*") if path.suffix.lower() in PICTURES and path.is_file())
    seen = (path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))
    left_out = {each.resolve() for each in but} - {folder.resolve(), *folder.resolve().parents}
    return sorted(path for path in seen if not left_out & {path.resolve(), *path.resolve().parents})


def inpaint_folder(
    job: Job, folder: Path, mask: Path | None, masks: Path | None, shard: tuple[int, int], shape: dict[str, Any]
) -> None:
    """Every picture of the folder, with the mask of its name from ``masks``, or with the one ``mask``.

    Results are PNG, in folders of the same names. Those that exist are taken as done. Every picture gets the same
    seeds, so that one of them alone can be made again.
    """
    if (mask is None) == (masks is None):
        raise ValueError("for a folder of pictures give --masks, a folder, or --mask for all of them")
    if masks is not None and not masks.is_dir():
        what = "for one mask use --mask" if masks.exists() else "there is none of that name"
        raise ValueError(f"--masks must be a folder, got {masks}; {what}")
    if job.output is None or not is_folder(job.output) or job.grid or job.gif or job.rank:
        raise ValueError("for a folder of pictures give -o, a folder; --grid, --gif and --rank are for one picture")
    output = job.output.resolve()
    if output == folder.resolve() or (masks is not None and masks.resolve() in (output, *output.parents)):
        raise ValueError(f"{job.output}: is an input, and inputs are never overwritten; choose another folder")
    beside = [*([mask] if mask else []), *job.own_inputs]
    everything = pictures_in(folder, job.output, *([masks] if masks else []), *beside)
    if not everything:
        raise ValueError(f"{folder}: there are no pictures in it")
    targets = _targets(everything, folder, job)
    drawn = _masks_in(masks) if masks is not None else {}
    inputs = {path.resolve() for path in itertools.chain(everything, beside, *drawn.values())}
    if clash := [file for files in targets.values() for file in files if file.resolve() in inputs]:
        raise ValueError(f"{clash[0]}: is an input, and inputs are never overwritten; choose another folder")
    mine = everything[shard[0] :: shard[1]]
    todo = [path for path in mine if job.force or not all(file.is_file() for file in targets[path])]
    if not mine:
        typer.echo(f"none of the {len(everything)} pictures is this shard's", err=True)
    elif len(todo) < len(mine):
        typer.echo(f"{len(mine) - len(todo)} of {len(mine)} pictures are there already", err=True)
    if not todo:
        return
    for path in todo:
        check_target(targets[path][0], force=True, parents=True)
    shelf = job.shelf()
    # a plan of nothing: it draws the seed, which is then the same for all, and refuses what is wrong for all
    nothing = shelf.choose(lambda pipeline: pipeline.plan_generate(**job.chosen), job.label)
    seed = nothing.plan.tasks[0].seeds[0]
    failed, notes, served = dict[Path, str](), Counter[str](), Counter[str]()
    typer.echo(f"seed {seed}", err=True)

    def planned() -> Iterator[tuple[Path, str, Plan]]:
        for path in todo:
            with _stops_no_other(path, failed):
                hole = mask or _mask_of(path.relative_to(folder), drawn, masks)
                how = {**shape, **job.chosen, "seed": seed}
                plan_ = partial(AsyncPatchPipeline.plan_inpaint, picture=path, hole=hole, **how)
                name, _, plan = shelf.choose(plan_, job.label)
                yield path, name, plan

    columns = (TextColumn("inpainting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bar, done = progress.add_task("", total=len(todo)), 0
        for some in _together(planned()):
            ready = {its: {path: plan for path, name, plan in some if name == its} for _, its, _ in some}
            if not done:
                _say_how_long(shelf, ready, len(todo), progress.console)
            for name, plans in ready.items():
                share = len(plans) / max(1, sum(shelf[name].work(plan) for plan in plans.values()))

                def onlooker(glimpse: Glimpse, share: float = share) -> None:
                    progress.advance(bar, share * glimpse.windows)

                _finish(shelf[name], plans, targets, job.force, onlooker, failed, notes)
                served[name] += len(plans)
            done = 1 + todo.index(some[-1][0])
            progress.update(bar, completed=done)
    for note, times in notes.items():
        typer.echo(f"note: {note} ({times} of {len(todo)} pictures)", err=True)
    if len(shelf.about) > 1:
        typer.echo(f"models: {', '.join(f'{name} for {times}' for name, times in served.items())}", err=True)
    typer.echo(f"wrote {len(todo) - len(failed)} pictures to {job.output}")
    if failed:
        for said in failed.values():
            typer.secho(f"error: {said}", fg="red", err=True)
        typer.secho(f"{len(failed)} of {len(todo)} pictures could not be done", fg="red", err=True)
        raise typer.Exit(1)


@contextmanager
def _stops_no_other(path: Path, failed: dict[Path, str]) -> Iterator[None]:
    """What is wrong with a picture is noted, and the rest goes on."""
    try:
        yield
    except (ImageError, OSError) as error:
        failed[path] = str(error) if str(path) in str(error) else f"{path}: {error}"
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not is_out_of_memory(error):
            raise
        failed[path] = f"{path}: there is not enough memory for it; make it smaller first"


def _say_how_long(
    shelf: Shelf, ready: dict[str, dict[Path, Plan]], count: int, console: Console
) -> None:  # fmt: skip
    """By those that come first, if it is long."""
    first = sum(len(plans) for plans in ready.values())
    works = [Work(shelf[name], _joined(plans), shelf[name].speed()) for name, plans in ready.items()]
    seconds = sum(work.left for work in works) * count / first
    if seconds > LONG:
        alike = f", if they all are like the first {first}" if count > first else ""
        console.print(f"about {spoken(seconds)} for {count:,} pictures on {shelf[next(iter(ready))].where()}{alike}")


def _joined(plans: dict[Path, Plan]) -> Plan:
    """One plan for several pictures."""
    return replace(next(iter(plans.values())), tasks=[plan.tasks[0] for plan in plans.values()])


def _together(planned: Iterable[tuple[Path, str, Plan]]) -> Iterator[list[tuple[Path, str, Plan]]]:
    """Some at a time: AT_ONCE, or fewer if they are large."""
    some, pixels = list[tuple[Path, str, Plan]](), 0
    for each in planned:
        some.append(each)
        pixels += each[2].tasks[0].hole.numel()
        if len(some) == AT_ONCE or pixels >= PIXELS_AT_ONCE:
            yield some
            some, pixels = [], 0
    if some:
        yield some


def _finish(
    pipeline: AsyncPatchPipeline, ready: dict[Path, Plan], targets: dict[Path, list[Path]], force: bool, watch: Watch,
    failed: dict[Path, str], notes: Counter[str],
) -> None:  # fmt: skip
    """Fills and writes; what went wrong, by picture, and what there is to say is added to ``failed`` and ``notes``."""
    try:
        results = pipeline.run(_joined(ready), watch)
    except (ValueError, FloatingPointError, RuntimeError, MemoryError) as error:
        if len(ready) == 1:
            failed |= {path: f"{path}: {error or 'there is not enough memory for it'}" for path in ready}
            return
        for path, plan in ready.items():  # one of them is to blame
            _finish(pipeline, {path: plan}, targets, force, watch, failed, notes)
        return
    for (path, plan), made in zip(ready.items(), results, strict=True):
        said = set(plan.notes)
        with _stops_no_other(path, failed):
            for picture, file in zip(made.pictures, targets[path], strict=True):
                file.parent.mkdir(parents=True, exist_ok=True)
                if force or not file.exists():
                    said.update(write(picture, file, force=force, inputs=[path]))
        notes.update(said)


def _targets(everything: list[Path], folder: Path, job: Job) -> dict[Path, list[Path]]:
    """What each picture becomes: a.jpg becomes a.png, or a.jpg.png where there is an a.png too."""
    assert job.output is not None
    full = set[Path]()  # those that keep their suffix
    while True:
        found = {}
        for path in everything:
            inside = path.relative_to(folder)
            file = job.output / inside.parent / f"{inside.name if path in full else inside.stem}.png"
            found[path] = [file] if job.n == 1 else numbered(file, job.n)
        taken = Counter(file for files in found.values() for file in files)
        clash = {path for path, files in found.items() if any(taken[file] > 1 for file in files)}
        if not clash:
            return found
        if clash <= full:
            raise ValueError(f"several pictures would become {next(file for file in taken if taken[file] > 1)}")
        full |= clash


def _masks_in(masks: Path) -> dict[Path, list[Path]]:
    """The masks of a folder, by their names without suffix."""
    found: dict[Path, list[Path]] = {}
    for path in pictures_in(masks):
        found.setdefault(path.relative_to(masks).with_suffix(""), []).append(path)
    return found


def _mask_of(inside: Path, drawn: dict[Path, list[Path]], masks: Path | None) -> Path:
    found = drawn.get(inside.with_suffix(""), [])
    exact = [path for path in found if path.name == inside.name]
    if len(exact or found) != 1:
        several = f"there are several: {', '.join(str(path) for path in found)}" if found else "there is none"
        raise ImageError(f"its mask must be {masks}/{inside.with_suffix('')} with any suffix, but {several}")
    return (exact or found)[0]
