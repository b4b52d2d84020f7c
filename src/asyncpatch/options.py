"""Dataclasses that are set on a command line: fields with a line of help, checked and read from text by their types.

It needs nothing but the standard library, so that the command line can list fields at once.
"""

from __future__ import annotations

import types
import typing
from dataclasses import field
from typing import Any, Literal


def setting(default: Any, help: str) -> Any:
    """A field of such a dataclass."""
    return field(default=default, metadata={"help": help})


def types_of(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def choices(kind: Any) -> tuple[str, ...]:
    """The words that a field may hold, if they are limited."""
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def check(name: str, value: object, kind: Any) -> None:
    """``value`` is what the field's type says."""
    if words := choices(kind):
        good, want = value in words, f"one of {', '.join(words)}"
    elif typing.get_origin(kind) in (typing.Union, types.UnionType):
        good, want = value == "auto" or (isinstance(value, int) and not isinstance(value, bool)), "an integer or 'auto'"
    elif typing.get_origin(kind) is tuple:
        of = typing.get_args(kind)[0]
        numbers = (int,) if of is int else (int, float)
        good = isinstance(value, tuple) and bool(value) and all(isinstance(each, numbers) for each in value)
        want = "numbers such as 1,2,4"
    elif kind is float:
        good, want = isinstance(value, int | float) and not isinstance(value, bool), "a number"
    else:
        good, want = (
            isinstance(value, kind) and (kind is bool or not isinstance(value, bool)),
            f"of type {kind.__name__}",
        )
    if not good:
        raise ValueError(f"{name} must be {want}, got {value!r}")


def parse(name: str, text: str, kind: Any) -> Any:
    """A field's value from the text of a command line."""
    text = text.strip()
    try:
        if kind is str or choices(kind):
            return text
        if text == "auto":
            return text
        if typing.get_origin(kind) is tuple:
            of = typing.get_args(kind)[0]
            return tuple(of(each) for each in text.strip("()[] ").split(",") if each.strip())
        if kind is bool:
            return {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}[text.lower()]
        return float(text) if kind is float else int(text.replace("_", ""))
    except (ValueError, KeyError) as error:
        raise ValueError(f"{name}: cannot read {text!r}") from error
