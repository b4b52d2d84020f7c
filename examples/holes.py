"""Eight holes of each kind, with the mean share of the picture that they cover.

python examples/holes.py [OUT.png]
"""

from __future__ import annotations

import sys
from pathlib import Path

from asyncpatch.data.masks import KINDS, holes
from asyncpatch.drawing import picture, sheet


def main(path: Path) -> None:
    drawn = {kind: holes(kind, range(1000), 96, 96) for kind in KINDS}
    names = [f"{kind}\n{float(hole.mean()):.0%}" for kind, hole in drawn.items()]
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet([[picture(2 * each - 1) for each in hole[:8]] for hole in drawn.values()], names=names).save(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("out") / "holes.png")
