"""The command line. Heavy imports stand inside the commands, so that ``--help`` is instant."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from asyncpatch import __version__
from asyncpatch.cli import judging, pictures, serving, training

# Before torch is imported: threads that wait for each other spin, by default for so long that on a machine with other
# work they keep each other from it. As briefly as this costs nothing where the cores are theirs.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

app = typer.Typer(
    name="asyncpatch", no_args_is_help=True, pretty_exceptions_show_locals=False, rich_markup_mode=None,
    help="Asynchronous diffusion: image models in which every pixel has its own noise level.",
)  # fmt: skip
app.add_typer(pictures.app)
app.add_typer(serving.app)
app.add_typer(judging.app)
app.add_typer(training.app)


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit
