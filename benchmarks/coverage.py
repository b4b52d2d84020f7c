"""Coverage of inference schedules by the training time samplers.

Writes docs/images/coverage.png and prints the table of docs/time_fields.md:

python benchmarks/coverage.py
"""

from pathlib import Path

from asyncpatch import coverage
from asyncpatch.time_sampling import AsyncPatch, Global, Independent, Mixture, Patchwise, Perlin

SAMPLERS = {
    "Global": Global(),
    "Independent": Independent(),
    "Patchwise": Patchwise(),
    "Perlin": Perlin(),
    "Perlin, one t": Perlin(times="picture"),
    "AsyncPatch": AsyncPatch(),
    "AsyncPatch + Perlin": Mixture((AsyncPatch(), Perlin(times="picture")), (0.8, 0.2)),
}

if __name__ == "__main__":
    images = Path(__file__).parents[1] / "docs" / "images"
    images.mkdir(parents=True, exist_ok=True)
    found = coverage.report(SAMPLERS, 64, 64, count=8192, seed=0)
    found.plot(images / "coverage.png")
    print(found.table())
