"""What is wanted, as one object: the web page, the HTTP interface and the notes in a PNG all say it with this.

A request becomes a plan of the pipeline, as the command line's options do; and it can be said as a command line or as
Python that make the same pictures.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple, get_args

from asyncpatch.options import check, parse, setting, types_of
from asyncpatch.pipelines import AsyncPatchPipeline
from asyncpatch.plans import Plan, is_schedule
from asyncpatch.settings import PAINTED, SYNCHRONOUS, Settings, settings_of

Tool = Literal["generate", "inpaint", "outpaint", "texture"]
TOOLS: tuple[Tool, ...] = get_args(Tool)

KEY = "asyncpatch"
"""Under which a request stands among the notes of a PNG."""

_OWN: dict[Tool, tuple[str, ...]] = {
    "generate": ("width", "height"),
    "inpaint": ("invert", "grow", "feather"),
    "outpaint": ("left", "top", "right", "bottom"),
    "texture": ("width", "height", "tileable", "invert"),
}
_SHARED = ("n", "label", "seed", "model")


class Given(NamedTuple):
    """The pictures that go with a request, as the pipeline takes them; or their names."""

    picture: object | None = None
    mask: object | None = None
    """White where the picture is to be repainted, grey: that much."""
    order: object | None = None
    """Dark pixels come first."""


NOTHING = Given()
NAMES = Given("photo.png", "mask.png", "order.png")
"""What the pictures are called in a command line."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A tool, and how it is used. ``settings`` are those of `Settings` that were given; the others are the tool's own
    defaults."""

    tool: Tool
    n: int = setting(1, "how many candidates")
    label: str = setting("", "what it shows; empty: the model is not told")
    seed: int = setting(-1, "the same seed, the same picture; -1: a new one")
    model: str = setting("", "which is to make it, by name; empty: chosen for the picture")
    width: int = setting(0, "of a new picture or a texture; 0: the model's, or the swatch's")
    height: int = setting(0, "likewise")
    left: int = setting(0, "outpaint: pixels to add there")
    top: int = setting(0, "outpaint: pixels to add there")
    right: int = setting(0, "outpaint: pixels to add there")
    bottom: int = setting(0, "outpaint: pixels to add there")
    tileable: bool = setting(False, "texture: opposite edges fit together")
    invert: bool = setting(False, "the mask is white where the picture stays")
    grow: int = setting(0, "inpaint: widen the hole by so many pixels; negative: shrink it")
    feather: int = setting(0, "inpaint: fade the hole inwards over so many pixels")
    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        kinds = types_of(type(self))
        for each in fields(self)[:-1]:
            value = getattr(self, each.name)
            check(each.name, value, kinds[each.name])
            if each.name not in ("tool", *_SHARED, *_OWN[self.tool]) and value != each.default:
                whose = ", ".join(tool for tool in TOOLS if each.name in _OWN[tool])
                raise ValueError(f"{each.name} is for {whose}, not for {self.tool}")
        for name in ("width", "height", "left", "top", "right", "bottom", "feather"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, got {getattr(self, name)}")
        schedule = Settings.of(self.settings).schedule
        if schedule != PAINTED and not is_schedule(schedule):
            raise ValueError(f"there is no schedule {schedule!r}; an order of your own is given as a picture")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Request:
        """From names and values, of which each may be a text; ``quality`` and ``calls`` are as in `Settings.of`."""
        own, more = types_of(cls), types_of(Settings) | {"calls": int}
        del own["settings"]
        given = dict(given)
        found, settings = dict[str, Any](), dict[str, Any]()
        if (quality := given.pop("quality", None)) is not None:
            settings |= settings_of(quality)
        for name, value in given.items():
            kind = own.get(name, more.get(name))
            if kind is None:
                raise ValueError(f"there is no {name!r}; there are {', '.join((*own, *more))}")
            read = parse(name, value, kind) if isinstance(value, str) and kind is not str else value
            (found if name in own else settings)[name] = read
        if "tool" not in found:
            raise ValueError(f"tool is missing: one of {', '.join(TOOLS)}")
        return cls(**found, settings=settings)

    def flat(self) -> dict[str, Any]:
        """What `of` takes: all that is not as usual."""
        usual = {each.name: each.default for each in fields(self)}
        own = {name: value for name, value in asdict(self).items() if name != "settings" and value != usual[name]}
        return {**own, **self.settings}

    def text(self) -> str:
        """As a note in a PNG."""
        return json.dumps(self.flat())

    @classmethod
    def from_text(cls, text: str) -> Request:
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError("the notes of this PNG are damaged") from error
        if not isinstance(found, dict):
            raise ValueError("the notes of this PNG are of another kind")
        return cls.of(found)

    def one(self, seed: int) -> Request:
        """For one of the candidates alone."""
        return replace(self, n=1, seed=seed)

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width that were asked for; of one that is missing the other is taken."""
        if not self.width and not self.height:
            return None
        return self.height or self.width, self.width or self.height

    def plan(self, pipeline: AsyncPatchPipeline, given: Given = NOTHING) -> Plan:
        """What the pipeline is to do."""
        options: dict[str, Any] = {"n": self.n, "label": self.label or None, **self.settings}
        if self.seed >= 0:
            options["seed"] = self.seed
        if given.order is not None:
            options["schedule"] = given.order
        elif options.get("schedule") == PAINTED:
            raise ValueError("the order is painted: give it as a picture, dark where it comes first")
        if self.tool != "generate" and given.picture is None:
            raise ValueError(f"{self.tool} needs a picture")
        match self.tool:
            case "generate":
                return pipeline.plan_generate(size=self.size, **options)
            case "inpaint":
                if given.mask is None:
                    raise ValueError("what shall be repainted? Paint over it, or give a mask")
                return pipeline.plan_inpaint(
                    given.picture, given.mask, **self._own("invert", "grow", "feather"), **options
                )
            case "outpaint":
                return pipeline.plan_outpaint(given.picture, **self._own("left", "top", "right", "bottom"), **options)
            case "texture":
                own = self._own("tileable", "invert")
                return pipeline.plan_texture(given.picture, self.size, hole=given.mask, **own, **options)

    def _own(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names}

    def command(self, names: Given = NAMES) -> str:
        """As a command line, for pictures of these names."""
        words = ["asyncpatch", self.tool]
        if self.tool != "generate":
            words.append(str(names.picture))
        if self._masked(names):
            words += ["--mask", str(names.mask)]
        if self.size:
            words += ["--size", f"{self.size[1]}x{self.size[0]}"]
        for name, value in self._said(names).items():
            option = "-n" if name == "n" else "--" + name.replace("_", "-")
            words += [option] if value is True else [option, str(value)]
        return shlex.join([*words, "-o", "out.png"])

    def python(self, names: Given = NAMES) -> str:
        """As Python, for pictures of these names."""
        values = [] if self.tool == "generate" else [repr(names.picture)]
        if self._masked(names):
            values.append(repr(names.mask) if self.tool == "inpaint" else f"hole={names.mask!r}")
        if self.size:
            values.append(f"size={self.size}")
        opened = f"from_pretrained({self.model!r}).prepare()" if self.model else "default()"
        values += [f"{name}={value!r}" for name, value in self._said(names).items() if name != "model"]
        return (
            "from asyncpatch.pipelines import AsyncPatchPipeline\n\n"
            f"pipe = AsyncPatchPipeline.{opened}\n"
            f"pipe.{self.tool}({', '.join(values)}).save('out.png')\n"
        )

    def _masked(self, names: Given) -> bool:
        return self.tool == "inpaint" or (self.tool == "texture" and names.mask is not None)

    def _said(self, names: Given) -> dict[str, Any]:
        said = {name: value for name, value in self.flat().items() if name not in ("tool", "width", "height")}
        if said.get("schedule", SYNCHRONOUS) == PAINTED:
            said["schedule"] = names.order
        return said
