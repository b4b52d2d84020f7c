"""What all commands share: how they fail, options made from the fields of a dataclass, and texts that mean numbers."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Annotated, Any

import typer

from asyncpatch.machine import is_out_of_memory  # not when there is no memory left to import it
from asyncpatch.options import choices, types_of


def fail(message: object, code: int = 2) -> typer.Exit:
    typer.secho(f"error: {message}", fg="red", err=True)
    return typer.Exit(code)


@contextmanager
def said_plainly() -> Iterator[None]:
    """What a user can mend is one line and exit code 2."""
    try:
        yield
    except (ValueError, TypeError, OSError, FloatingPointError) as error:
        raise fail(error) from None
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and not is_out_of_memory(error):
            raise
        raise fail("out of memory: use a smaller picture, or fewer candidates (-n)") from None


def option(name: str, kind: Any, default: Any, how: Any) -> inspect.Parameter:
    """A parameter as typer reads it."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, how])


def field_options(kind: type, panel: str, defaults: dict[str, Any] | None = None) -> list[inspect.Parameter]:
    """An option for every field of a dataclass of `options`, None unless it is given.

    With ``defaults`` the help states what holds otherwise: these, or the field's own.
    """
    kinds, made = types_of(kind), []
    for each in fields(kind):
        of, name = kinds[each.name], "--" + each.name.replace("_", "-")
        words = f" [{'|'.join(choices(of))}]" if choices(of) else ""
        default = "" if defaults is None else f" [default: {defaults.get(each.name, each.default)}]"
        how = typer.Option(
            f"{name}/--no{name[1:]}" if of is bool else name, help=each.metadata["help"] + words + default,
            metavar=None if of is bool else of.__name__.upper() if of in (int, float) else "VALUE",
            rich_help_panel=panel, show_default=False,
        )  # fmt: skip
        made.append(option(each.name, (bool if of is bool else str) | None, None, how))
    return made


def with_options(*groups: Sequence[inspect.Parameter]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Puts options in the place of a command's ``**given``."""

    def extended(command: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        more = [each for group in groups for each in group]
        command.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]
        return command

    return extended


def size_from(text: str) -> tuple[int, int]:
    """(height, width) from WIDTHxHEIGHT, or one number for a square."""
    found = re.fullmatch(r"(\d{1,6})(?:\s*[xX*]\s*(\d{1,6}))?", text.strip())
    if not found:
        raise ValueError(f"a size is WIDTHxHEIGHT, such as 512x512, got {text!r}")
    width = int(found[1])
    return int(found[2] or width), width


def shard_from(text: str) -> tuple[int, int]:
    """(i - 1, n) from i/n, i from 1 to n."""
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text.strip())
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise ValueError(f"--shard must be i/n with i from 1 to n, such as 1/8, got {text!r}")
    return int(found[1]) - 1, int(found[2])
