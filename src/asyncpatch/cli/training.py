"""Commands that make models."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from asyncpatch import recipes
from asyncpatch.cli.common import fail, field_options, with_options
from asyncpatch.train.config import AutoencoderRecipe, HeadRecipe, Recipe, Training

app = typer.Typer()
Told = TypeVar("Told", bound=Training)


Data = Annotated[list[str] | None, typer.Option(help="pictures to train on; may be given several times")]
RunFolder = Annotated[Path, typer.Option("-o", "--out", help="folder of the run")]
Init = Annotated[str | None, typer.Option(help="a model folder to start from (fine-tuning)")]
Resume = Annotated[bool, typer.Option("--resume", help="go on from the newest checkpoint")]
Cache = Annotated[Path | None, typer.Option(help="where decoded data are kept [default: user's cache folder]")]
Minutes = Annotated[float | None, typer.Option(help="save and stop after so many minutes")]


@app.command("train")
@with_options(field_options(Recipe, "Recipe"))
def train(
    recipe: Annotated[str | None, typer.Option(help=f"one of {', '.join(recipes.ALL)}")] = None,
    data: Data = None,
    run: RunFolder = Path("runs/default"),
    init: Init = None,
    resume: Resume = False,
    cache: Cache = None,
    minutes: Minutes = None,
    **given: Any,
) -> None:
    """Train a model on your pictures.

    Start with a recipe and change what you like:

        asyncpatch train --recipe smoke --data shapes --out runs/first

        asyncpatch train --recipe default64_23m --data photos/ --out runs/photos --batch 256

        asyncpatch train --out runs/photos --resume

    On several GPUs: python -m torch.distributed.run --nproc-per-node 8 -m asyncpatch train ...
    """
    _train(Recipe, recipes.ALL, recipe, data, run, init, resume, cache, minutes, given)


@app.command("train-autoencoder")
@with_options(field_options(AutoencoderRecipe, "Recipe"))
def train_autoencoder(
    recipe: Annotated[str | None, typer.Option(help=f"one of {', '.join(recipes.AUTOENCODERS)}")] = None,
    data: Data = None,
    run: RunFolder = Path("runs/autoencoder"),
    init: Init = None,
    resume: Resume = False,
    cache: Cache = None,
    minutes: Minutes = None,
    **given: Any,
) -> None:
    """Train the autoencoder of a latent model on your pictures.

    As with train, every field of a recipe is an option:

        asyncpatch train-autoencoder --recipe smoke_vq --data shapes --out runs/first-autoencoder

        asyncpatch train-autoencoder --recipe default128_vq --data photos/ --out runs/autoencoder

        asyncpatch train-autoencoder --out runs/autoencoder --resume

    LPIPS is part of the loss where its weights are found ($ASYNCPATCH_LPIPS names the file).
    """
    _train(AutoencoderRecipe, recipes.AUTOENCODERS, recipe, data, run, init, resume, cache, minutes, given)


def _train(
    kind: type[Told],
    among: dict[str, Callable[[], Told]],
    recipe: str | None,
    data: list[str] | None,
    run: Path,
    init: str | None,
    resume: bool,
    cache: Path | None,
    minutes: float | None,
    given: dict[str, Any],
) -> None:
    from asyncpatch.data.sources import DataError
    from asyncpatch.processes import leave
    from asyncpatch.train import run as running
    from asyncpatch.train.errors import Stopped, TrainingError
    from asyncpatch.train.watch import CONFIG, read_config

    try:
        known = read_config(run) if resume and (run / CONFIG).exists() else None
        if known is not None and recipe is None:
            base, data, init = kind.from_dict(known["recipe"]), data or known["data"], init or known["init"]
            cache = cache or (Path(known["cache"]) if known["cache"] else None)
        elif recipe is None:
            what = f"{run} has no run to go on with" if resume else "what should be trained?"
            raise ValueError(f"{what}: give --recipe, one of {', '.join(among)}")
        else:
            base = recipes.named(recipe, among)
        if not data:
            raise ValueError(
                "--data is missing: a folder of pictures, parquet files, hf:NAME, .tar shards, or 'shapes'"
            )
        chosen = base.changed(given)
        model = running.train(chosen, data, run, init=init, resume=resume, cache=cache, minutes=minutes)
        leave()
    except Stopped as stopped:
        leave()
        typer.secho(str(stopped), err=True)
        raise typer.Exit(stopped.code) from None
    except (DataError, ValueError, OSError) as error:
        raise fail(error) from None
    except TrainingError as error:
        raise fail(error, 1) from None
    if int(os.environ.get("RANK", "0")) == 0:
        typer.echo(f"done: the model is in {model}, the report in {run / 'report.html'}")


@app.command("train-uncertainty")
def train_uncertainty(
    model: Annotated[Path, typer.Argument(help="folder of a trained model; the head is put there")],
    data: Annotated[list[str], typer.Option(help="pictures, as for training; may be given several times")],
    steps: Annotated[int, typer.Option(help="of Adam; 0: only measure the head that is there")] = HeadRecipe.steps,
    batch: Annotated[int, typer.Option(help="pictures per step")] = HeadRecipe.batch,
    rate: Annotated[float, typer.Option(help="learning rate; it falls to 0")] = HeadRecipe.rate,
    times: Annotated[str, typer.Option(help="time fields, as for training")] = HeadRecipe.times,
    seed: Annotated[int, typer.Option(help="of everything random")] = HeadRecipe.seed,
    device: Annotated[str, typer.Option(help="auto, cuda, mps or cpu")] = "auto",
    precision: Annotated[str, typer.Option(help="of the network, which stays as it is: auto, fp32 or bf16")] = "auto",
    cache: Cache = None,
    force: Annotated[bool, typer.Option("--force", help="replace a head that is there")] = False,
) -> None:
    """Teach a trained model to say how sure it is.

    A small head is trained beside the network, which does not change: it predicts the error of every pixel, at any
    noise levels. Minutes on a GPU.

        asyncpatch train-uncertainty runs/photos/model --data photos/
    """
    from asyncpatch.data.sources import DataError
    from asyncpatch.models.folder import HEAD
    from asyncpatch.train.uncertainty import train_uncertainty as work

    if steps and (model / HEAD).exists() and not force:
        raise fail(f"{model / HEAD} exists already: add --force to replace it")
    try:
        recipe = HeadRecipe(
            steps=steps, batch=batch, rate=rate, times=times, seed=seed, device=device, precision=precision
        )
        found = work(model, data, recipe, cache=cache, say=typer.echo)
    except (DataError, ValueError, OSError) as error:
        raise fail(error) from None
    whose = "held-out" if found["held out"] else "training"
    typer.echo(f"mean squared error of {whose} pictures, predicted and real, by time:")
    for row in found["by time"]:
        typer.echo(f"  from {row['from']:.1f}: {row['predicted']:.5f} {row['real']:.5f}")
    typer.echo("and by detail, from even to busy regions:")
    for row in found["by detail"]:
        typer.echo(f"  deviation {row['deviation']:.3f}: {row['predicted']:.5f} {row['real']:.5f}")
    typer.echo(
        f"real over predicted {found['ratio']:.3f}, correlation over patches {found['correlation']:.3f}; "
        f"the head is in {model / HEAD}"
    )


@app.command("recipes")
def show_recipes() -> None:
    """What each recipe sets, beside the defaults; the last are for train-autoencoder."""
    for name, make in (recipes.ALL | recipes.AUTOENCODERS).items():
        recipe = make()
        first = (make.__doc__ or "").strip().splitlines()[0]
        typer.secho(name, bold=True)
        typer.echo(f"  {first}")
        for each in fields(recipe):
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
    from asyncpatch.models.autoencoder import Autoencoder
    from asyncpatch.models.folder import Model
    from asyncpatch.train.average import rebuild

    if output.exists():
        raise fail(f"{output} exists already")
    try:
        model: Model | Autoencoder
        if Autoencoder.alone(run / "model"):
            model = net = Autoencoder.load(run / "model")
        else:
            model = Model.load(run / "model", head=False)  # a head knows these weights alone
            net = model.net
        net.load_state_dict({**net.state_dict(), **rebuild(run / "snapshots", sigma, step)})
    except (FileNotFoundError, ValueError) as error:
        raise fail(error) from None
    model.save(output)
    typer.echo(f"wrote {output}")
