"""What a person sees of a run: a progress bar, ``log.jsonl``, TensorBoard, grids of pictures, and the report page."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from asyncpatch.train.errors import TrainingError
from asyncpatch.train.report import write_report

LOG, CONFIG = "log.jsonl", "config.json"


def read_config(run: Path) -> dict[str, Any]:
    """What the run was told."""
    config: dict[str, Any] = json.loads((run / CONFIG).read_text())
    return config


def write_config(run: Path, config: dict[str, Any]) -> None:
    run.mkdir(parents=True, exist_ok=True)
    fresh = run / f".{CONFIG}"
    fresh.write_text(json.dumps(config, indent=2) + "\n")
    os.replace(fresh, run / CONFIG)


def read_log(run: Path) -> list[dict[str, float]]:
    """The lines of a run's log; one that was cut off when the process died is left out."""
    lines = []
    path = run / LOG
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return lines


class Watch:
    """Tells of a run: in the main process alone (``main``), and on its terminal unless told to be ``quiet``."""

    def __init__(self, run: Path, *, main: bool = True, quiet: bool = False) -> None:
        self.run, self.main = run, main
        self.console = Console(stderr=True, quiet=quiet or not main, highlight=False, soft_wrap=True)
        self.progress: Progress | None = None
        self._log: Any = None
        self._board: Any = None
        self._lock: Any = None

    def claim(self) -> None:
        """Lock the run's folder until this process ends, however it does: two would overwrite each other."""
        try:
            import fcntl
        except ImportError:  # Windows
            return
        self.run.mkdir(parents=True, exist_ok=True)
        self._lock = open(self.run / ".lock", "w")  # noqa: SIM115
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            said = f"another process is training in {self.run}: choose another --out, or wait for it"
            raise TrainingError(said) from None
        except OSError:  # a file system without locks
            return

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def start(self, step: int, steps: int, batch: int) -> None:
        """Open the log at a step: what an earlier process logged beyond it is cut off, it will be logged again."""
        if not self.main:
            return
        kept = [line for line in read_log(self.run) if line["step"] <= step]
        fresh = self.run / f".{LOG}"
        fresh.write_text("".join(json.dumps(line) + "\n" for line in kept))
        os.replace(fresh, self.run / LOG)
        self._log = open(self.run / LOG, "a")  # noqa: SIM115
        try:
            from torch.utils.tensorboard import SummaryWriter

            self._board = SummaryWriter(str(self.run / "tensorboard"), purge_step=step + 1)
        except ImportError:
            self.say("TensorBoard is not installed (pip install 'asyncpatch[train]'); going on without it")
        if self.console.is_terminal and not self.console.quiet:
            self.progress = Progress(
                TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[said]}"),
                TextColumn("left"), TimeRemainingColumn(elapsed_when_finished=True), console=self.console,
            )  # fmt: skip
            self.progress.start()
            self._task = self.progress.add_task("training", total=steps, completed=step, said="")
        self._steps, self._batch = steps, batch

    def step(self, step: int) -> None:
        if self.progress is not None:
            self.progress.update(self._task, completed=step)

    def log(self, step: int, values: dict[str, float]) -> None:
        """One line of the log."""
        if not self.main:
            return
        self._log.write(json.dumps({"step": step, **values}) + "\n")
        self._log.flush()
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(name, value, step)
        if "loss" not in values:
            said = ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in values.items())
            self.say(f"step {step}: {said}")
            return
        said = f"loss {values['loss']:.4f}, {values['pictures_per_second']:,.0f} pictures/s"
        if self.progress is not None:
            self.progress.update(self._task, said=said)
        else:
            left = (self._steps - step) * self._batch / values["pictures_per_second"]
            self.say(f"step {step}/{self._steps}, {said}, {left / 60:.1f} minutes left")

    def picture(self, step: int, name: str, image: Image.Image) -> None:
        """A grid, as ``pictures/NAME-STEP.png``."""
        folder = self.run / "pictures"
        folder.mkdir(exist_ok=True)
        image.save(folder / f"{name}-{step:08d}.png")
        if self._board is not None:
            import numpy as np

            self._board.add_image(name, np.asarray(image), step, dataformats="HWC")

    def report(self) -> None:
        """The report page as of now."""
        if self.main:
            write_report(self.run, read_config(self.run), read_log(self.run))

    def close(self) -> None:
        if self.progress is not None:
            self.progress.stop()
        if self._log is not None:
            self._log.close()
        if self._board is not None:
            self._board.close()
        if self._lock is not None:
            self._lock.close()
