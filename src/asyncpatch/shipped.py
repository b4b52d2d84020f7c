"""The models that come with this package: in a checkout, or installed."""

from __future__ import annotations

from pathlib import Path

from asyncpatch.models.folder import INDEX

SHIPPED = ("asyncpatch-64",)
"""The models that come with this package, the usual one first."""


def shipped_models() -> dict[str, Path]:
    """The folders of the models that come with this package, by name, the usual one first: in a checkout, or
    installed."""
    here = Path(__file__).resolve().parent
    places = here / "weights", here.parents[1] / "weights"
    found = {name: [place / name for place in places if (place / name / INDEX).is_file()] for name in SHIPPED}
    return {name: folders[0] for name, folders in found.items() if folders}


def shipped(name: str) -> Path:
    """The folder of the one of that name."""
    found = shipped_models()
    if name in found:
        return found[name]
    here = f"here there is {', '.join(found)}" if found else "here there is none"
    if name in SHIPPED:
        raise FileNotFoundError(
            f"{name} is not part of this copy of asyncpatch: a checkout of its repository has it, in weights/{name}; "
            + here
        )
    raise FileNotFoundError(f"there is no model folder {name}, and no model of that name ships; {here}")


def shipped_model() -> Path:
    """The folder of the usual one of them."""
    for folder in shipped_models().values():
        return folder
    raise FileNotFoundError(
        "this copy of asyncpatch carries no trained model. Name the folder of one (--model, or from_pretrained): "
        "'asyncpatch train' leaves one in the run's folder, under model"
    )
