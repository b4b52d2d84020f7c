"""Commands that judge pictures, and models."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from asyncpatch.cli.common import said_plainly, shard_from, with_options
from asyncpatch.cli.models import MACHINE, open_pipeline
from asyncpatch.settings import INPUT_GUIDANCE, Settings, solver_for_new

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
        codec = pipeline.model.codec
        of = "dimension" if codec.levels else "number of the latents, whose density this is"
        table = Table(title=f"bits per {of}, at most (standard error)")
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
                        image = heat_map(terms, max(1, 256 // side) * codec.factor)
                        maps[file].parent.mkdir(parents=True, exist_ok=True)
                        write(picture_from(image), maps[file], force=force, inputs=files)
                table.add_row(str(file), *shown)
        Console().print(table)
        for said in failed:
            typer.secho(f"error: {said}", fg="red", err=True)
        if failed:
            raise typer.Exit(1)


@app.command("evaluate")
@with_options(MACHINE)
def evaluate(
    data: Annotated[list[str], typer.Option(help="pictures, as for training; of a set that is split, those held out")],
    output: Annotated[Path, typer.Option("-o", "--output", help="folder for tables, sheets and finished cells")],
    holes: Annotated[str, typer.Option(help="kinds of holes, of square, extrema, thin, medium and wide; '' for none")
                     ] = "square,extrema,thin,wide",
    methods: Annotated[str, typer.Option(help="how they are filled: asyncpatch, replacement, repaint, mcg, ddrm, ddnm, "
                                         "deqir; supervised, of a network trained with --holes")] = "asyncpatch",
    count: Annotated[int, typer.Option(help="pictures of each set")] = 100,
    samples: Annotated[int, typer.Option(help="new pictures, to compare with the training set")] = 0,
    frechet: Annotated[bool, typer.Option("--frechet", help="compare filled pictures with the training set")] = False,
    steps: Annotated[str, typer.Option(help="of asyncpatch, and supervised; several: a row for each"
                                       )] = str(Settings.steps),
    solver: Annotated[str | None, typer.Option(help="likewise: ddim, multistep, heun [default: multistep for samples "
                                               "without eta or order, else ddim]", show_default=False)] = None,
    schedule: Annotated[str, typer.Option(help="likewise: synchronous, raster, spiral (or raster:16, in patches of 16 "
                                          "pixels), paced, dual, sequential, lookahead")] = Settings.schedule,
    pace: Annotated[str, typer.Option(help="likewise, of raster and spiral: the share of the steps that each pixel "
                                      "takes")] = str(Settings.pace),
    eta: Annotated[str, typer.Option(help="likewise")] = str(Settings.eta),
    input_guidance: Annotated[str, typer.Option(help="likewise, of filled holes")] = str(INPUT_GUIDANCE),
    class_guidance: Annotated[str, typer.Option(help="likewise; filled holes are told their label for it")] = "0.0",
    lpips: Annotated[str | None, typer.Option(help="weights of LPIPS-Alex, a safetensors file, or 'download' (233 MB, "
                                              "once) [default: $ASYNCPATCH_LPIPS, or those downloaded before, or "
                                              "without LPIPS]", show_default=False)] = None,
    features: Annotated[str, typer.Option(help="in which sets are compared: lite (EfficientNet-Lite0), or inception "
                                          "(FID; needs torch-fidelity)")] = "lite",
    references: Annotated[int, typer.Option(help="training pictures to compare with, at most")] = 20_000,
    size: Annotated[int | None, typer.Option(help="side of the pictures; a model takes any [default: its own]",
                                             show_default=False)] = None,
    paste: Annotated[bool, typer.Option("--paste", help="for models of latents: outside of holes the original pixels, "
                                        "as the tool gives them, not decoded ones")] = False,
    batch: Annotated[int, typer.Option(help="pictures that the network sees at a time")] = 256,
    cache: Annotated[Path | None, typer.Option(help="where decoded data are kept [default: user's cache folder]",
                                               show_default=False)] = None,
    shard: Annotated[str | None, typer.Option(help="i/n: only the i-th of n parts of the cells")] = None,
    compiled: Annotated[bool, typer.Option("--compile", help="compile the network, for much work on a GPU")] = False,
    **given: Any,
) -> None:  # fmt: skip
    """A table of a model's figures: filled holes by kind and method, and new pictures.

        asyncpatch evaluate --data set/ -o out/ --count 1000 --samples 10000

        asyncpatch evaluate --data set/ -o out/ --holes square --methods asyncpatch,repaint,ddnm

        asyncpatch evaluate --data set/ -o out/ --input-guidance 0,0.5,1,2 --class-guidance 0,1,2

    Given again, it goes on where it was stopped. The sheets show pictures of the data: mind their terms.

    On several GPUs: python -m torch.distributed.run --nproc-per-node 8 -m asyncpatch evaluate ...
    """
    from asyncpatch.processes import together

    with said_plainly(), together() as team:
        import itertools
        from dataclasses import replace

        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        from asyncpatch import checks
        from asyncpatch.data.store import Store, open_split
        from asyncpatch.evaluation import FREE, OURS, SAMPLES, SUPERVISED, Cell, Evaluation, guidance_plot
        from asyncpatch.metrics import FEATURES, LPIPS, download_lpips, lpips_file
        from asyncpatch.plans import ORDERS

        if find_spec("torchmetrics") is None:
            raise ValueError("this needs a few packages more: pip install 'asyncpatch[evaluate]'")
        part, parts = shard_from(shard) if shard else (0, 1)
        checks.at_least("references", references, 10)
        if features not in FEATURES:
            raise ValueError(f"--features must be one of {', '.join(FEATURES)}, got {features!r}")

        console = Console(stderr=True, quiet=not team.main)

        def opened(name: str, side: int, cache: Path | None) -> Store:
            found = open_split([name], "validation", side, cache) or open_split([name], "train", side, cache)
            if found is None:
                raise ValueError(f"there are no pictures in {name}")
            return found

        def numbers(name: str, text: str, kind: type = float) -> list[Any]:
            try:
                return [kind(each) for each in text.split(",")]
            except ValueError:
                what = "whole numbers" if kind is int else "numbers"
                raise ValueError(f"--{name} must be {what} with commas between them, got {text!r}") from None

        def ways(guidances: list[tuple[float, float]], new: bool) -> list[Settings]:
            solvers: list[Any] = solver.split(",") if solver else [None]
            every = itertools.product(schedule.split(","), paces, solvers, numbers("steps", steps, int),
                                      numbers("eta", eta), guidances)  # fmt: skip
            return [
                Settings(steps=a, solver=s or (solver_for_new(b, o) if new else Settings.solver), eta=b,
                         input_guidance=i, class_guidance=c, schedule=o, pace=p, batch=batch)
                for o, p, s, a, b, (i, c) in every
                if o.partition(":")[0] in ORDERS or Path(o).is_file() or p == paces[0]  # others know no pace
            ]  # fmt: skip

        paces = numbers("pace", pace)
        classes, inputs = numbers("class-guidance", class_guidance), numbers("input-guidance", input_guidance)
        filling = ways(list(itertools.product(inputs, classes)), new=False)
        if size is not None:
            checks.at_least("size", size, 8)
        names = [Path(each).name + (f" at {size}" if size else "") for each in data]
        if len(set(names)) < len(names):
            raise ValueError("two sets have the same name: evaluate them into folders of their own")
        cells = [
            Cell(name, kind, method, settings, count)
            for name in names
            for kind in holes.split(",") if kind
            for method in methods.split(",")
            for settings in (filling if method in FREE else [Settings(batch=batch)])
        ]  # fmt: skip
        if not cells and not samples:
            raise ValueError("nothing to evaluate: name --holes, or a number of --samples")
        if features != "lite" and not (samples or frechet):
            raise ValueError(f"--features {features} changes nothing without --samples or --frechet")
        how = ways([(0.0, c) for c in classes], new=True) if samples else []
        new = [Cell("+".join(names), SAMPLES, OURS, each, samples) for each in how]
        pipeline = open_pipeline(**given, compiled=compiled)
        cells += [replace(each, method=SUPERVISED) if pipeline.unet.config["given"] else each for each in new]

        side = size or pipeline.model.resolution
        with team.main_first():  # it decodes and downloads, the others find that
            sets = dict(zip(names, (opened(each, side, cache) for each in data), strict=True))
            training = open_split(data, "train", side, cache) if samples or frechet else None
            weights = lpips or lpips_file()
            if lpips == "download":
                columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
                with Progress(*columns, console=console, transient=True) as fetching:
                    task = fetching.add_task("LPIPS")
                    weights = download_lpips(progress=lambda done, of: fetching.update(task, completed=done, total=of))
        scored = LPIPS.load(weights).to(pipeline.unet.device) if weights else None
        work = Evaluation(pipeline, output, sets, training, scored, references, features, paste, team)
        for cell in cells:
            work.check(cell)
        output.mkdir(parents=True, exist_ok=True)
        mine = cells[part::parts]
        shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*shown, console=console, transient=True) as progress:
            bar = progress.add_task("evaluating", total=len(mine))
            for cell in mine:
                progress.update(bar, description=f"{cell.set}, {cell.what}, {cell.method}")
                work.result(cell)
                progress.advance(bar)
        if not team.main:
            return
        done = [found for cell in cells if (found := work.kept(cell)) is not None]
        typer.echo(work.write(done))
        guidance_plot(done, output / "guidance.png")
        if len(done) < len(cells):
            typer.echo(f"{len(done)} of {len(cells)} cells are there so far", err=True)
