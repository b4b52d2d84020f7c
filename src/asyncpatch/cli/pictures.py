"""Commands that make pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asyncpatch.cli.common import field_options, option, said_plainly, shard_from, size_from, with_options
from asyncpatch.cli.models import MACHINE, found_model, open_shelf
from asyncpatch.options import parse, types_of
from asyncpatch.settings import INPUT_GUIDANCE, LABEL_GUIDANCE, QUALITIES, STEPS_BY, Settings, solver_for_new

if TYPE_CHECKING:
    from asyncpatch.pipelines import AsyncPatchPipeline, Glimpse, Made
    from asyncpatch.plans import Plan
    from asyncpatch.shelf import Chosen, Shelf

app = typer.Typer()

TILE = 512
"""Pixels of a picture's longer side on a sheet, at most."""
LONG = 10.0
"""Seconds: of what takes longer the estimated time is said first."""

_RESULT = "Result"
_QUALITIES = ", ".join(
    f"{name} ({' '.join(f'{value} {what}' for what, value in settings.items())})"
    for name, (settings, _) in QUALITIES.items()
)
_SHARED = [
    option("n", int, 1, typer.Option("-n", help="how many candidates", rich_help_panel=_RESULT)),
    option("output", Path | None, None, typer.Option("-o", "--output", help="file, or folder; several: NAME-1.png, ...",
                                                     rich_help_panel=_RESULT, show_default=False)),
    option("force", bool, False, typer.Option("--force", help="overwrite files that exist", rich_help_panel=_RESULT)),
    option("rank", bool, False, typer.Option("--rank", help="the likeliest candidate first", rich_help_panel=_RESULT)),
    option("grid", bool, False, typer.Option("--grid", help="all on one sheet, with what was given",
                                             rich_help_panel=_RESULT)),
    option("gif", Path | None, None, typer.Option(help="write the denoising as it ran, as a GIF",
                                                  rich_help_panel=_RESULT, show_default=False)),
    option("label", str | None, None, typer.Option(help="what it shows [default: the model is not told]",
                                                   rich_help_panel="Sampling", show_default=False)),
    option("quality", str | None, None, typer.Option(help=f"{_QUALITIES} [default: balanced]",
                                                     rich_help_panel="Sampling", show_default=False)),
    option("calls", int | None, None, typer.Option(help="so many questions to the network, in place of steps",
                                                   rich_help_panel="Sampling", show_default=False)),
    option("seed", int | None, None, typer.Option(help="the same seed, the same picture [default: a new one]",
                                                  rich_help_panel="Sampling", show_default=False)),
]  # fmt: skip
_NEW_SAMPLING = field_options(
    Settings,
    "Sampling",
    {
        "class_guidance": f"{LABEL_GUIDANCE} with a label",
        "solver": f"{solver_for_new(Settings.eta, Settings.schedule)}; ddim with eta or in an order",
    },
)
_SAMPLING = field_options(Settings, "Sampling", {"input_guidance": INPUT_GUIDANCE})


@dataclass(frozen=True)
class Job:
    """What the shared options say."""

    n: int
    output: Path | None
    force: bool
    rank: bool
    grid: bool
    gif: Path | None
    label: str | None
    seed: int | None
    model: str | None
    device: str
    precision: str
    settings: dict[str, Any]

    @classmethod
    def of(cls, given: dict[str, Any]) -> Job:
        kinds = types_of(Settings)
        settings = {name: given.pop(name) for name in kinds}
        texts = {name: parse(name, value, kinds[name]) for name, value in settings.items() if value is not None}
        texts |= {name: value for name in STEPS_BY if (value := given.pop(name)) is not None}
        Settings.of(texts)  # a mistake is said before anything is read
        if given["model"]:
            found_model(given["model"])
        return cls(**given, settings=texts)

    @property
    def chosen(self) -> dict[str, Any]:
        """For a plan."""
        return {"n": self.n, "label": self.label, "seed": self.seed, **self.settings}

    def shelf(self) -> Shelf:
        return open_shelf(self.model, self.device, self.precision)

    def choose(self, make: Callable[[AsyncPatchPipeline], Plan]) -> Chosen:
        """The model for what is planned."""
        shelf = self.shelf()
        chosen = shelf.choose(make, self.label)
        if len(shelf.about) > 1:
            typer.echo(f"model {chosen.name}", err=True)
        return chosen

    def targets(self, name: str, inputs: Sequence[Path] = ()) -> list[Path]:
        """The files that will be written, of which ``name`` is the default; that they may be is looked at here."""
        from asyncpatch.images import check_target, numbered

        output = self.output or Path(name)
        if is_folder(output):
            output = output / name
        count = 1 if self.grid else self.n
        files = [output] if count == 1 else numbered(output, count)
        check = partial(check_target, force=self.force, inputs=[*inputs, *self.own_inputs], parents=True)
        for file in files:
            check(file)
        if self.gif:
            check(self.gif, suffixes=[".gif"])
        return files

    @property
    def own_inputs(self) -> list[Path]:
        """Files that the shared options name, to be read."""
        schedule = Path(self.settings.get("schedule", "synchronous"))
        return [schedule] if schedule.is_file() else []

    def finish(self, chosen: Chosen, files: list[Path], inputs: Sequence[Path] = ()) -> None:
        """Does the work of one picture, and writes it."""
        from asyncpatch.frames import Frames
        from asyncpatch.images import picture_from, write

        _, pipeline, plan = chosen
        notes = list(plan.notes)
        frames = Frames(plan, pipeline.model.resolution) if self.gif else None
        made = with_progress(pipeline, plan, frames)[0]
        ran, made = made, ranked(pipeline, plan, made) if self.rank else made
        pictures = [picture_from(contact_sheet(plan, made))] if self.grid else made.pictures
        for file in (files[0], *([self.gif] if self.gif else [])):
            file.parent.mkdir(parents=True, exist_ok=True)
        for picture, file in zip(pictures, files, strict=True):
            notes += write(picture, file, force=self.force, inputs=[*inputs, *self.own_inputs])
        if frames is not None and self.gif:
            frames.write(ran, self.gif, force=self.force)
        for note in dict.fromkeys(notes):
            typer.echo(f"note: {note}", err=True)

        def together(seeds: Sequence[int]) -> str:
            return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"

        said = [together(made.seeds)] if self.grid else [together([seed]) for seed in made.seeds]
        for file, its in zip(files, said, strict=True):
            typer.echo(f"wrote {file} ({its})")
        if self.gif:
            typer.echo(f"wrote {self.gif} ({together(ran.seeds)})")


def is_folder(path: Path) -> bool:
    """Whether a path that was given for results means a folder; one that cannot be made is refused."""
    for each in path.parents:
        if each.exists() and not each.is_dir():
            raise ValueError(f"{path}: {each} is a file, not a folder")
    if path.exists():
        return path.is_dir()
    return not path.suffix


def contact_sheet(plan: Plan, made: Made) -> Any:
    """What is given of the picture, and the candidates; of new pictures only these."""
    from PIL import Image

    from asyncpatch.drawing import picture, sheet

    task = plan.tasks[0]
    shown = [each.x for each in made.pictures]
    if bool((task.hole == 0).any()):
        shown = [task.picture.x * (task.hole <= 0), *shown]
    tiles = [picture(x, max(1, 160 // max(x.shape))) for x in shown]
    for tile in tiles:
        tile.thumbnail((TILE, TILE), Image.Resampling.BOX)
    columns = min(len(tiles), max(1, round(len(tiles) ** 0.5 * (tiles[0].height / tiles[0].width) ** 0.5)))
    rows = [tiles[k : k + columns] for k in range(0, len(tiles), columns)]
    rows[-1] += [Image.new("RGB", tiles[0].size, "#d8d8d8")] * (columns - len(rows[-1]))
    return sheet(rows)


def ranked(pipeline: AsyncPatchPipeline, plan: Plan, made: Made) -> Made:
    """The candidates with the likeliest first, by a bound on log p(hole | its surroundings)."""
    from asyncpatch.judging import rank
    from asyncpatch.pipelines import Made

    bounds = rank(pipeline, plan.tasks[0], made.pictures)
    what = "the hole" if pipeline.vae is None else "the hole's latents"
    order = bounds.argsort(descending=True).tolist()
    for place, k in enumerate(order):
        typer.echo(
            f"{place + 1}. seed {made.seeds[k]}: log p of {what} is at least {float(bounds[k]):.1f} nats", err=True
        )
    return Made([made.pictures[k] for k in order], [made.seeds[k] for k in order], made.notes)


def with_progress(pipeline: AsyncPatchPipeline, plan: Plan, watch: Callable[[Glimpse], object] | None) -> list[Made]:
    """Runs a plan under a progress bar; of a long one the time is estimated first."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from asyncpatch.progress import Work, spoken

    console = Console(stderr=True)
    work = Work(pipeline, plan, pipeline.speed(), watched=watch is not None)
    if work.left > LONG:
        console.print(f"about {spoken(work.left)} on {pipeline.where()}: the network sees {work.total:,} windows")
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("denoising", total=work.total)

        def onlooker(glimpse: Glimpse) -> None:
            progress.advance(bar, glimpse.windows)
            if watch is not None:
                watch(glimpse)

        return pipeline.run(plan, onlooker)


@app.command("generate")
@with_options(_SHARED, _NEW_SAMPLING, MACHINE)
def generate(
    size: Annotated[
        str | None, typer.Option(help="WIDTHxHEIGHT, or a side [default: the model's]", show_default=False)
    ] = None,
    **given: Any,
) -> None:
    """Make new pictures.

        asyncpatch generate --label tabby -n 16 --grid -o tabbies.png

    Labels are listed by 'asyncpatch info'.
    """
    with said_plainly():
        job = Job.of(given)
        files = job.targets("generated.png")
        wanted = size_from(size) if size else None
        job.finish(job.choose(lambda pipeline: pipeline.plan_generate(size=wanted, **job.chosen)), files)


@app.command("inpaint")
@with_options(_SHARED, _SAMPLING, MACHINE)
def inpaint(
    picture: Annotated[Path, typer.Argument(help="a picture, or a folder of pictures")],
    mask: Annotated[
        Path | None, typer.Option(help="white where the picture is to be repainted, grey: that much")
    ] = None,
    masks: Annotated[Path | None, typer.Option(help="folder of masks, named like the pictures")] = None,
    invert: Annotated[bool, typer.Option("--invert", help="the mask is white where the picture stays")] = False,
    grow: Annotated[int, typer.Option(help="widen the hole by so many pixels; negative: shrink it")] = 0,
    feather: Annotated[int, typer.Option(help="fade the hole inwards over so many pixels")] = 0,
    shard: Annotated[str | None, typer.Option(help="i/n: of a folder, only the i-th of n parts")] = None,
    **given: Any,
) -> None:
    """Repaint what a mask shows; all else stays as it is, pixel by pixel.

        asyncpatch inpaint photo.jpg --mask mask.png -o out.png -n 4

        asyncpatch inpaint photos/ --masks masks/ -o out/

    A folder's finished pictures are skipped when the command is given again.
    """
    from asyncpatch.cli.folders import inpaint_folder

    with said_plainly():
        job = Job.of(given)
        shape: dict[str, Any] = {"invert": invert, "grow": grow, "feather": feather}
        if picture.is_dir():
            inpaint_folder(job, picture, mask, masks, shard_from(shard) if shard else (0, 1), shape)
            return
        if not picture.exists():
            raise ValueError(f"{picture}: there is no such file or folder")
        if masks is not None or shard is not None:
            raise ValueError("--masks and --shard are for a folder of pictures; for one picture give --mask")
        if mask is None:
            raise ValueError("what shall be repainted? For one picture give --mask")
        files = job.targets(f"{picture.stem}-inpainted.png", [picture, mask])
        chosen = job.choose(lambda pipeline: pipeline.plan_inpaint(picture, mask, **shape, **job.chosen))
        job.finish(chosen, files, [picture, mask])


@app.command("outpaint")
@with_options(_SHARED, _SAMPLING, MACHINE)
def outpaint(
    picture: Annotated[Path, typer.Argument(help="a picture")],
    left: Annotated[int, typer.Option(help="pixels to add there")] = 0,
    top: Annotated[int, typer.Option(help="pixels to add there")] = 0,
    right: Annotated[int, typer.Option(help="pixels to add there")] = 0,
    bottom: Annotated[int, typer.Option(help="pixels to add there")] = 0,
    **given: Any,
) -> None:
    """Extend a picture beyond its edges.

    asyncpatch outpaint photo.jpg --right 64 -o wider.png
    """
    with said_plainly():
        job = Job.of(given)
        files = job.targets(f"{picture.stem}-outpainted.png", [picture])
        sides = {"left": left, "top": top, "right": right, "bottom": bottom}
        chosen = job.choose(lambda pipeline: pipeline.plan_outpaint(picture, **sides, **job.chosen))
        job.finish(chosen, files, [picture])


@app.command("texture")
@with_options(_SHARED, _SAMPLING, MACHINE)
def texture(
    swatch: Annotated[Path, typer.Argument(help="a picture of the texture")],
    size: Annotated[str | None, typer.Option(help="WIDTHxHEIGHT of the texture, or a side", show_default=False)] = None,
    tileable: Annotated[bool, typer.Option("--tileable", help="opposite edges fit together")] = False,
    mask: Annotated[Path | None, typer.Option(help="white where the swatch is to be filled in")] = None,
    invert: Annotated[bool, typer.Option("--invert", help="the mask is white where the swatch stays")] = False,
    **given: Any,
) -> None:
    """Grow a texture from a swatch.

    The swatch stays in its middle.

    asyncpatch texture swatch.png --size 512x512 -o large.png

    asyncpatch texture swatch.png --tileable -o tile.png

    asyncpatch texture half.png --mask missing.png -o whole.png
    """
    with said_plainly():
        job = Job.of(given)
        inputs = [swatch, *([mask] if mask else [])]
        files = job.targets(f"{swatch.stem}-texture.png", inputs)
        wanted = size_from(size) if size else None
        how: dict[str, Any] = {"tileable": tileable, "hole": mask, "invert": invert, **job.chosen}
        job.finish(job.choose(lambda pipeline: pipeline.plan_texture(swatch, wanted, **how)), files, inputs)


@app.command("info")
@with_options(MACHINE)
def info(**given: Any) -> None:
    """Versions, device, the models and their labels."""
    import platform

    import diffusers
    import torch

    from asyncpatch import __version__

    with said_plainly():
        typer.echo(f"asyncpatch {__version__}, torch {torch.__version__}, diffusers {diffusers.__version__}, "
                   f"Python {platform.python_version()}")  # fmt: skip
        from asyncpatch.models.placing import choose_device
        from asyncpatch.shipped import shipped_model

        if given["model"] is None:
            try:
                shipped_model()
            except FileNotFoundError as error:
                typer.echo(f"device {choose_device(given['device'])}")
                typer.echo(f"no model: {error}")
                return
        shelf = open_shelf(**given)
        if len(shelf.about) > 1:
            typer.echo(f"{len(shelf.about)} models, of which one is chosen for each picture; {shelf.usual} where "
                       "nothing speaks for another")  # fmt: skip
        for name in shelf.about:
            pipeline = shelf[name]
            chosen, size = pipeline.model, sum(each.numel() for each in pipeline.unet.parameters())
            typer.echo(f"model {name} ({pipeline.name_or_path}): {size / 1e6:.1f}M parameters, {chosen.resolution} "
                       f"pixels, {chosen.process_name}, predicts {chosen.prediction}")  # fmt: skip
            if pipeline.vae is not None:
                size = sum(each.numel() for each in pipeline.vae.parameters())
                typer.echo(f"works on the latents of an autoencoder: {size / 1e6:.1f}M parameters, one for every "
                           f"{chosen.codec.factor}x{chosen.codec.factor} pixels")  # fmt: skip
            if pipeline.uncertainty is not None:
                typer.echo("says how sure it is, for the schedules that go by that")
            typer.echo(f"runs on {pipeline.where()}, {1 / pipeline.speed().asking:.1f} windows a second")
            if chosen.labels:
                typer.echo(f"{len(chosen.labels)} labels: {', '.join(chosen.labels)}")
