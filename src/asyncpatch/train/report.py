"""The report page of a run: one HTML file with the loss curve, the newest grids and all settings, readable offline."""

from __future__ import annotations

import base64
import html
import math
from pathlib import Path
from typing import Any

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
       color: #222; background: #fff; }
table { border-collapse: collapse; } td { padding: .1rem 1rem .1rem 0; vertical-align: top; }
td:first-child { color: #666; } img { max-width: 100%; image-rendering: pixelated; }
svg text { fill: #666; font-size: 12px; } .axis { stroke: #bbb; } .train { stroke: #2a6fdb; } .held { stroke: #d9541e; }
polyline { fill: none; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818; } td:first-child { color: #999; } }
"""
WIDTH, HEIGHT, LEFT, BELOW = 880, 320, 60, 30


def write_report(run: Path, config: dict[str, Any], log: list[dict[str, float]]) -> None:
    """Write ``report.html`` into the run's folder."""
    train = [(line["step"], line["loss"]) for line in log if "loss" in line]
    held = [(line["step"], line["held_out_loss"]) for line in log if "held_out_loss" in line]
    last = next((line for line in reversed(log) if "loss" in line), None)
    facts = {}
    if last:
        facts = {
            "steps": f"{last['step']:,.0f} of {config['recipe']['steps']:,}",
            "pictures seen": f"{last['step'] * config['recipe']['batch']:,.0f}",
            "loss": f"{last['loss']:.4f}",
            "pictures per second": f"{last['pictures_per_second']:,.0f}",
        }
    if held:
        facts["held-out loss"] = f"{held[-1][1]:.4f} (best {min(loss for _, loss in held):.4f})"
    parts = [f"<h1>{html.escape(run.resolve().name)}</h1>", _table(facts)]
    if len(train) > 1:
        parts += ["<h2>Loss</h2>", _curve(train, held)]
    for name, title in (("samples", "Samples"), ("inpainting", "Inpainting"), ("decoded", "Decoded")):
        if grids := sorted((run / "pictures").glob(f"{name}-*.png")):
            data = base64.b64encode(grids[-1].read_bytes()).decode()
            step = int(grids[-1].stem.rpartition("-")[2])
            parts.append(f'<h2>{title} at step {step:,}</h2><img src="data:image/png;base64,{data}" alt="{title}">')
    about = {name: value for name, value in config.items() if name != "recipe"}
    parts += ["<h2>Settings</h2>", _table(about | config["recipe"])]
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(run.name)}</title>'
        f"<style>{STYLE}</style>{''.join(parts)}</html>\n"
    )
    (run / "report.html").write_text(page)


def _table(values: dict[str, Any]) -> str:
    def show(value: Any) -> str:
        return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)

    rows = (f"<tr><td>{html.escape(name)}<td>{html.escape(show(value))}" for name, value in values.items())
    return f"<table>{''.join(rows)}</table>"


def _curve(train: list[tuple[float, float]], held: list[tuple[float, float]]) -> str:
    """Loss, on a logarithmic scale, against step."""
    seen = [math.log(max(loss, 1e-12)) for _, loss in train + held]
    margin = 0.05 * (max(seen) - min(seen)) or 1e-3
    low, high = min(seen) - margin, max(seen) + margin
    end = max(step for step, _ in train + held)

    def place(step: float, loss: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT) * step / end
        return x, (HEIGHT - BELOW) * (high - math.log(max(loss, 1e-12))) / (high - low)

    def line(points: list[tuple[float, float]], kind: str) -> str:
        joined = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in points)
        return f'<polyline class="{kind}" points="{joined}"/>'

    parts = [line(_thinned(train), "train"), line(held, "held")]
    parts += ['<circle class="held" cx="{:.1f}" cy="{:.1f}" r="2"/>'.format(*place(*point)) for point in held]
    for k in range(5):
        step, loss = end * k / 4, math.exp(low + (high - low) * k / 4)
        x, y = place(step, loss)
        anchor = "start" if k == 0 else "end" if k == 4 else "middle"
        parts.append(f'<text x="{x:.0f}" y="{HEIGHT - 8}" text-anchor="{anchor}">{step:,.0f}</text>')
        parts.append(
            f'<text x="{LEFT - 6}" y="{min(max(y, 12), HEIGHT - BELOW):.0f}" text-anchor="end">{loss:.4f}</text>'
        )
    parts.append(f'<path class="axis" fill="none" d="M{LEFT} 0V{HEIGHT - BELOW}H{WIDTH}"/>')
    legend = '<text x="{}" y="16" text-anchor="end">blue: training{}</text>'
    parts.append(legend.format(WIDTH - 8, "; orange: held out, averaged weights" if held else ""))
    label = "loss against step"
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="100%" role="img" aria-label="{label}">{"".join(parts)}</svg>'


def _thinned(points: list[tuple[float, float]], most: int = 800) -> list[tuple[float, float]]:
    """Means of neighbours, so that a page of a million steps is still a page."""
    size = -(-len(points) // most)
    groups = [points[k : k + size] for k in range(0, len(points), size)]
    return [(sum(s for s, _ in group) / len(group), sum(v for _, v in group) / len(group)) for group in groups]
