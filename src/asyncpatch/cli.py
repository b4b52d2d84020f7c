"""The command line. Heavy imports stand inside the commands, so that ``--help`` is instant."""

from __future__ import annotations

import inspect
import os
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from asyncpatch import __version__, recipes
from asyncpatch.train.config import Recipe, choices, types_of

app = typer.Typer(
    name="asyncpatch", no_args_is_help=True, pretty_exceptions_show_locals=False, rich_markup_mode=None,
    help="Asynchronous diffusion: image models in which every pixel has its own noise level.",
)  # fmt: skip


@app.callback(invoke_without_command=True)
def main(version: Annotated[bool, typer.Option("--version", help="print the version and exit")] = False) -> None:
    if version:
        typer.echo(__version__)
        raise typer.Exit


def fail(message: object, code: int = 2) -> typer.Exit:
    typer.secho(f"error: {message}", fg="red", err=True)
    return typer.Exit(code)


def _recipe_options() -> list[inspect.Parameter]:
    """An option for every field of ``Recipe``, which leaves the recipe's own value unless it is given."""
    kinds, options = types_of(Recipe), []
    for each in fields(Recipe):
        kind, name = kinds[each.name], "--" + each.name.replace("_", "-")
        words = f" [{'|'.join(choices(kind))}]" if choices(kind) else ""
        option = typer.Option(
            f"{name}/--no{name[1:]}" if kind is bool else name, help=each.metadata["help"] + words,
            metavar=None if kind is bool else kind.__name__.upper() if kind in (int, float) else "VALUE",
            rich_help_panel="Recipe", show_default=False,
        )  # fmt: skip
        given: Any = (bool if kind is bool else str) | None
        options.append(
            inspect.Parameter(
                each.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[given, option]
            )
        )
    return options


def _train(
    recipe: str | None, data: list[str] | None, run: Path, init: str | None, resume: bool, cache: Path | None,
    minutes: float | None, **given: Any,
) -> None:  # fmt: skip
    """Train a model on your pictures.

    Start with a recipe and change what you like:

        asyncpatch train --recipe smoke --data shapes --out runs/first

        asyncpatch train --recipe default64_23m --data photos/ --out runs/photos --batch 256

        asyncpatch train --out runs/photos --resume

    On several GPUs: python -m torch.distributed.run --nproc-per-node 8 -m asyncpatch train ...
    """
    from asyncpatch.data.sources import DataError
    from asyncpatch.train import run as running
    from asyncpatch.train.errors import Stopped, TrainingError
    from asyncpatch.train.watch import CONFIG, read_config

    try:
        known = read_config(run) if resume and (run / CONFIG).exists() else None
        if known is not None and recipe is None:
            base, data, init = Recipe.from_dict(known["recipe"]), data or known["data"], init or known["init"]
        elif recipe is None:
            what = f"{run} has no run to go on with" if resume else "what should be trained?"
            raise ValueError(f"{what}: give --recipe, one of {', '.join(recipes.ALL)}")
        else:
            base = recipes.named(recipe)
        if not data:
            raise ValueError(
                "--data is missing: a folder of pictures, parquet files, hf:NAME, .tar shards, or 'shapes'"
            )
        chosen = base.changed(given)
        model = running.train(chosen, data, run, init=init, resume=resume, cache=cache, minutes=minutes)
    except Stopped as stopped:
        typer.secho(str(stopped), err=True)
        raise typer.Exit(stopped.code) from None
    except (DataError, ValueError, OSError) as error:
        raise fail(error) from None
    except TrainingError as error:
        raise fail(error, 1) from None
    if int(os.environ.get("RANK", "0")) == 0:
        typer.echo(f"done: the model is in {model}, the report in {run / 'report.html'}")


_OWN = [
    ("recipe", str | None, None, typer.Option(help=f"one of {', '.join(recipes.ALL)}")),
    ("data", list[str] | None, None, typer.Option(help="pictures to train on; may be given several times")),
    ("run", Path, Path("runs/default"), typer.Option("--out", help="folder of the run")),
    ("init", str | None, None, typer.Option(help="a model folder to start from (fine-tuning)")),
    ("resume", bool, False, typer.Option("--resume", help="go on from the newest checkpoint")),
    ("cache", Path | None, None, typer.Option(help="where decoded data are kept [default: user's cache folder]")),
    ("minutes", float | None, None, typer.Option(help="save and stop after so many minutes")),
]
_train.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option])
        for name, kind, default, option in _OWN
    ]
    + _recipe_options()
)
app.command("train")(_train)


@app.command("recipes")
def show_recipes() -> None:
    """What each recipe sets, beside the defaults."""
    for name, make in recipes.ALL.items():
        recipe = make()
        first = (make.__doc__ or "").strip().splitlines()[0]
        typer.secho(name, bold=True)
        typer.echo(f"  {first}")
        for each in fields(Recipe):
            if getattr(recipe, each.name) != each.default:
                typer.echo(f"  {each.name} = {getattr(recipe, each.name)}")


@app.command("average")
def average(
    run: Annotated[Path, typer.Argument(help="folder of a run that was trained with --snapshot-every")],
    output: Annotated[Path, typer.Option("-o", "--output", help="model folder to write")],
    sigma: Annotated[float, typer.Option(help="width of the average, as a share of the run")] = 0.1,
    step: Annotated[int | None, typer.Option(help="as if training had ended there [default: the last]")] = None,
) -> None:
    """Average a run's weights over another length, after training."""
    from asyncpatch.models.folder import Model
    from asyncpatch.train.average import rebuild

    if output.exists():
        raise fail(f"{output} exists already")
    try:
        model = Model.load(run / "model")
        model.net.load_state_dict(rebuild(run / "snapshots", sigma, step))
    except (FileNotFoundError, ValueError) as error:
        raise fail(error) from None
    model.save(output)
    typer.echo(f"wrote {output}")
