"""Commands that judge pictures."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from asyncpatch.cli.common import with_options
from asyncpatch.cli.pictures import MACHINE, open_pipeline, said_plainly

app = typer.Typer()


@app.command("elbo")
@with_options(MACHINE)
def elbo(
    pictures: Annotated[list[Path], typer.Argument(help="pictures, or folders of them")],
    path: Annotated[list[str] | None, typer.Option(help="'synchronous', or the side of patches that go each at its own "
                                                   "pace; may be given several times [default: synchronous]")] = None,
    calls: Annotated[int, typer.Option(help="questions to the network for each picture and path")] = 64,
    mask: Annotated[Path | None, typer.Option(help="judge what is white, given the rest")] = None,
    label: Annotated[str | None, typer.Option(help="what it shows [default: the model is not told]")] = None,
    map: Annotated[Path | None, typer.Option(help="folder for pictures of where each surprises (first path)")] = None,
    force: Annotated[bool, typer.Option("--force", help="overwrite files that exist")] = False,
    seed: Annotated[int, typer.Option(help="of the estimate's noise")] = 0,
    **given: Any,
) -> None:  # fmt: skip
    """How likely pictures are to the model.

    In bits per dimension (number): an upper bound, and lower is likelier.

        asyncpatch elbo photos/ --map out/

        asyncpatch elbo photo.png --path synchronous --path 8 --path 1

    Differences between paths tell how consistent the model is: for an exact one there are none.
    """
    with said_plainly():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Table

        from asyncpatch.cli.folders import pictures_in
        from asyncpatch.images import ImageError, check_target, picture_from, read_hole, write
        from asyncpatch.judging import heat_map, judge, path_by_name

        if mask and path:
            raise ValueError("with --mask the path is that of inpainting: leave out --path")
        names = ["inpainting"] if mask else list(dict.fromkeys(path or ["synchronous"]))
        paths = {name: path_by_name("synchronous" if mask else name) for name in names}
        named = {file: file.relative_to(each) if each.is_dir() else Path(file.name)
                 for each in pictures for file in (pictures_in(each) if each.is_dir() else [each])}  # fmt: skip
        files = list(named)
        if not files:
            raise ValueError("there are no pictures to judge")
        maps = {} if map is None else {file: map / f"{name}.png" for file, name in named.items()}
        if len(set(maps.values())) < len(maps):
            raise ValueError("pictures of the same name cannot be mapped at once: give folders one at a time")
        for target in maps.values():
            if target.parent.exists():
                check_target(target, force=force, inputs=files)
        pipeline = open_pipeline(**given)
        told = pipeline.label(label)
        table = Table(title="bits per dimension, at most (standard error)")
        table.add_column("picture")
        for name in names:
            table.add_column(name if not name.isdecimal() else f"patches of {name}", justify="right")
        failed = []
        columns = (TextColumn("judging"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("", total=len(files) * len(paths) * calls)
            for file in files:
                try:
                    picture = picture_from(file)
                    hole = read_hole(mask, picture.size).hole if mask else None
                except ImageError as error:
                    if len(files) == 1:
                        raise
                    failed.append(str(error))
                    continue
                shown = []
                for name, each in paths.items():
                    terms = judge(pipeline, picture, each, calls=calls, hole=hole, label=told, seed=seed,
                                  progress=lambda done, of: progress.advance(bar))  # fmt: skip
                    shown.append(f"{float(terms.bits_per_dim):.3f} ({float(terms.bits_error):.3f})")
                    if map is not None and name == names[0]:
                        side = max(picture.size)
                        image = heat_map(terms, max(1, 256 // side))
                        maps[file].parent.mkdir(parents=True, exist_ok=True)
                        write(picture_from(image), maps[file], force=force, inputs=files)
                table.add_row(str(file), *shown)
        Console().print(table)
        for said in failed:
            typer.secho(f"error: {said}", fg="red", err=True)
        if failed:
            raise typer.Exit(1)
