"""Which model a command works with, and where."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from asyncpatch.cli.common import option

if TYPE_CHECKING:
    from asyncpatch.pipelines import AsyncPatchPipeline
    from asyncpatch.shelf import Shelf

MACHINE = [
    option("model", str | None, None, typer.Option(help="folder, or name of one that ships: see 'asyncpatch info' "
                                                        "[default: chosen of these]", metavar="FOLDER|NAME",
                                                   rich_help_panel="Machine", show_default=False)),
    option("device", str, "auto", typer.Option(help="auto, cuda, mps or cpu", rich_help_panel="Machine")),
    option("precision", str, "auto", typer.Option(help="auto, fp32, bf16 or fp16", rich_help_panel="Machine")),
]  # fmt: skip


def open_shelf(model: str | None, device: str, precision: str, compiled: bool = False) -> Shelf:
    """The model that was said, or all that ship."""
    import diffusers

    from asyncpatch.pipelines import AsyncPatchPipeline
    from asyncpatch.shelf import Shelf
    from asyncpatch.shipped import shipped_model, shipped_models

    diffusers.utils.logging.set_verbosity_error()
    diffusers.utils.logging.disable_progress_bar()

    def read(folder: Path) -> AsyncPatchPipeline:
        try:
            pipeline = AsyncPatchPipeline.from_pretrained(folder)
        except FileNotFoundError:
            raise
        except Exception as error:  # broken weights, or an index that is none, raise all kinds
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(f"{folder}: cannot be read as a model: {said}") from error
        return pipeline.prepare(device, precision, compiled=compiled)

    if model is not None:
        folder = found_model(model)
        return Shelf({folder.absolute().name: folder}, read)
    shipped_model()  # that there is one
    return Shelf(shipped_models(), read)


def open_pipeline(model: str | None, device: str, precision: str, compiled: bool = False) -> AsyncPatchPipeline:
    """The model that was said, or the usual one."""
    shelf = open_shelf(model, device, precision, compiled)
    if len(shelf.about) > 1:
        typer.echo(f"model {shelf.usual}", err=True)
    return shelf[shelf.usual]


def found_model(model: str) -> Path:
    """The folder that is meant: by its path, or by the name of a model that ships."""
    from asyncpatch.shipped import shipped

    folder = Path(model)
    if not folder.exists():
        return shipped(model)
    if not (folder / "model_index.json").is_file() and (folder / "model/model_index.json").is_file():
        raise FileNotFoundError(f"{folder} is no model folder; did you mean {folder / 'model'}?")
    return folder
