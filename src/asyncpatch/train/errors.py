"""What stops a training run."""

from __future__ import annotations


class TrainingError(Exception):
    """The run cannot go on; the message says why, what is safe, and what to do."""


class Stopped(Exception):
    """The run was asked to stop, and has saved its state. ``code`` is what the process should exit with."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code
