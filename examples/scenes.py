"""Pictures that the examples start from, drawn by the program: a mountain lake, an orange, and some surfaces.

    python examples/scenes.py [FOLDER]          saves each of them

All are numpy arrays [H, W, 3] of uint8, and depend on their seed alone.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

Array = NDArray[np.float64]
Pixels = NDArray[np.uint8]


def value_noise(height: int, width: int, cell: float, random: np.random.Generator) -> Array:
    """Smooth noise in [0, 1] whose bumps are ``cell`` pixels wide."""
    rows, columns = int(height / cell) + 3, int(width / cell) + 3
    grid = random.random((rows, columns))
    y, x = np.arange(height)[:, None] / cell, np.arange(width)[None] / cell
    j, i = y.astype(int), x.astype(int)
    v, u = (each - each.astype(int) for each in (y, x))
    v, u = v * v * (3 - 2 * v), u * u * (3 - 2 * u)
    top = grid[j, i] * (1 - u) + grid[j, i + 1] * u
    bottom = grid[j + 1, i] * (1 - u) + grid[j + 1, i + 1] * u
    return top * (1 - v) + bottom * v


def clouds(height: int, width: int, cell: float, random: np.random.Generator, octaves: int = 5) -> Array:
    """Noise at several scales, about 0.5 on average."""
    layers = [value_noise(height, width, max(cell / 2**k, 1.0), random) / 2**k for k in range(octaves)]
    return sum(layers) / sum(0.5**k for k in range(octaves))


def mix(a: Array, b: Array, share: Array) -> Array:
    """Colours between a and b, by a share [H, W]."""
    return a * (1 - share[..., None]) + b * share[..., None]


def colour(code: str) -> Array:
    return np.array([int(code[k : k + 2], 16) for k in (1, 3, 5)], np.float64) / 255


def pixels(picture: Array) -> Pixels:
    """Colours in [0, 1] as levels, softened a little, as a lens would show them."""
    levels = Image.fromarray((picture.clip(0, 1) * 255).round().astype(np.uint8))
    return np.asarray(levels.filter(ImageFilter.GaussianBlur(0.6)))


def lake(height: int = 192, width: int = 256, seed: int = 2) -> Pixels:
    """Mountains behind a lake that mirrors them."""
    random = np.random.default_rng(seed)
    shore = round(height * 0.62)
    y = np.linspace(0, 1, shore)[:, None]
    haze = clouds(shore, width, width / 3, random)
    sky = mix(mix(colour("#3f78bf"), colour("#cfe0ea"), y + 0 * haze), np.ones(3), ((haze - 0.52) * 3).clip(0, 0.85))
    land = sky
    ranges = (
        (0.30, 0.34, 0.42, "#6d84a3", "#e9eef5"),
        (0.12, 0.56, 0.36, "#46566a", "#b9c1c4"),
        (0.00, 0.82, 0.22, "#27391f", "#6c8044"),
    )
    for distance, base, rough, dark, light in ranges:
        ridge = shore * (base + rough * (0.5 - clouds(1, width, width / 3.2, random, 7)[0]))
        inside = 1 / (1 + np.exp(ridge[None] - np.arange(shore)[:, None]))
        relief = clouds(shore, width, width / 12, random, 6)
        lit = np.gradient(relief, axis=1) * 9 + relief
        depth = ((np.arange(shore)[:, None] - ridge[None]) / shore).clip(0, 1)
        rock = mix(colour(dark), colour(light), (lit * 1.5 - 0.45 - depth * 1.2).clip(0, 1))
        land = mix(land, mix(rock, colour("#b7cbe0"), np.full_like(relief, distance)), inside)
    below = height - shore
    ripple = (value_noise(below, width, 5, random) - 0.5) * np.linspace(1, 7, below)[:, None]
    rows = (shore - 1 - np.arange(below)[:, None] * 1.5 + ripple).clip(0, shore - 1).astype(int)
    depth = np.broadcast_to(np.linspace(0.15, 0.6, below)[:, None], ripple.shape)
    water = mix(land[rows, np.arange(width)[None]] * 0.8, colour("#1f4a5c"), depth)
    return pixels(np.concatenate([land, water]))


def orange(side: int = 128, seed: int = 0) -> Pixels:
    """An orange on a cloth, lit from the upper left."""
    random = np.random.default_rng(seed)
    y, x = np.mgrid[0:side, 0:side] / side
    cloth = mix(colour("#8f9aa6"), colour("#d9dfe4"), clouds(side, side, side / 6, random))
    cloth *= (0.9 + 0.1 * np.sin(x * side * 1.2) * np.sin(y * side * 1.2))[..., None]
    shadow = np.exp(-((((x - 0.62) / 0.36) ** 2 + ((y - 0.80) / 0.12) ** 2) ** 2))
    cloth = cloth * (1 - 0.6 * shadow[..., None])
    radius, cx, cy = 0.33, 0.5, 0.5
    u, v = (x - cx) / radius, (y - cy) / radius
    inside = 1 / (1 + np.exp((np.hypot(u, v) - 1) * side * radius))
    w = np.sqrt((1 - u**2 - v**2).clip(0))
    pores = value_noise(side, side, 2.2, random) - 0.5
    shade = (-0.55 * u - 0.6 * v + 0.58 * w + 0.12 * pores).clip(0)
    gloss = np.exp(-((u + 0.42) ** 2 + (v + 0.45) ** 2) / 0.02)
    skin = mix(colour("#7a2c00"), colour("#ff9a1c"), (0.15 + 0.95 * shade).clip(0, 1)) + 0.5 * gloss[..., None]
    return pixels(mix(cloth, skin, inside))


def _cells(height: int, width: int, size: float, random: np.random.Generator) -> tuple[Array, Array, NDArray[np.int64]]:
    """Distance to the nearest and second nearest of points strewn ``size`` apart, and which is nearest."""
    rows, columns = int(height / size) + 3, int(width / size) + 3
    grid = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij"), -1).reshape(-1, 2)
    points = (grid - 1 + 0.15 + 0.7 * random.random(grid.shape)) * size
    at = np.stack(np.mgrid[0:height, 0:width], -1)[:, :, None]
    distance = np.hypot(*np.moveaxis(at - points, -1, 0))
    order = np.argpartition(distance, 1, axis=2)[:, :, :2]
    two = np.take_along_axis(distance, order, 2)
    return two.min(2), two.max(2), np.take_along_axis(order, two.argmin(2)[..., None], 2)[..., 0]


def pebbles(height: int = 96, width: int = 96, seed: int = 0, size: float = 13.0) -> Pixels:
    """Round stones, each of its own grey or brown."""
    random = np.random.default_rng(seed)
    first, second, which = _cells(height, width, size, random)
    gap = ((second - first) / size).clip(0, 1)
    hue = random.random((which.max() + 1, 1))
    stones = colour("#6f7c86") * (1 - hue) + colour("#b79a7c") * hue
    stones *= 0.7 + 0.6 * random.random((len(hue), 1))
    dome = 1 - ((1 - gap * 1.4).clip(0)) ** 2
    slope = np.gradient(dome, axis=0) + np.gradient(dome, axis=1)
    grain = clouds(height, width, 5, random, 3) - 0.5
    return pixels(stones[which] * (0.25 + 0.75 * dome + 1.1 * slope + 0.25 * grain)[..., None])


def cracked(height: int = 96, width: int = 96, seed: int = 0, size: float = 22.0) -> Pixels:
    """Dried mud."""
    random = np.random.default_rng(seed)
    wobble = [8 * (clouds(height, width, 12, random, 4) - 0.5) for _ in range(2)]
    first, second, which = _cells(height + 16, width + 16, size, random)
    y, x = (np.mgrid[0:height, 0:width] + 8 + np.round(wobble)).astype(int)
    gap, which = (second - first)[y, x], which[y, x]
    tone = 0.85 + 0.25 * random.random(which.max() + 1)
    mud = mix(colour("#8d7558"), colour("#b9a07d"), clouds(height, width, 9, random, 5)) * tone[which][..., None]
    return pixels(mud * (0.22 + 0.78 * (gap / 3.0).clip(0, 1))[..., None])


SCENES = {"lake": lake, "orange": orange, "pebbles": pebbles, "cracked": cracked}


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in SCENES.items():
        Image.fromarray(draw()).save(folder / f"{name}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path("out") / "scenes")
