"""What one client may ask for. It needs nothing, so that the command line can list it at once."""

from __future__ import annotations

from dataclasses import dataclass, fields

from asyncpatch.options import check, setting, types_of


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one client may ask for."""

    megabytes: int = setting(32, "of a picture file")
    megapixels: float = setting(16.0, "of a picture, all candidates together")
    waiting: int = setting(64, "jobs in the queue")
    steps: int = setting(1000, "that a picture may take")
    seconds: float = setting(600.0, "that a job may take")
    minutes: float = setting(60.0, "for which results are kept")

    def __post_init__(self) -> None:
        kinds = types_of(type(self))
        for each in fields(self):
            check(each.name, getattr(self, each.name), kinds[each.name])
            if not getattr(self, each.name) > 0:
                raise ValueError(f"{each.name} must be more than 0, got {getattr(self, each.name)}")

    @property
    def bytes(self) -> int:
        return self.megabytes << 20

    @property
    def pixels(self) -> int:
        return round(self.megapixels * 1e6)
