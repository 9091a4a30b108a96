"""How a training went: loss, learning rate and BLEU over its steps."""

import math
from collections.abc import Sequence
from typing import Any

from transduce.errors import DataError
from transduce.trace.figures.canvas import (
    INK,
    KEY,
    LINE,
    MARGIN,
    QUERY,
    SOFT,
    TOP,
    VALUE,
    WEIGHT,
    figure,
    group,
    line,
    text,
)

_WIDTH, _LEFT = 640, 62
_HEIGHTS = (200, 90, 110)  # of the panels
_LARGEST = 10**15

Series = Sequence[tuple[int, float]]
"""Steps and values."""


def loss(records: Sequence[dict[str, Any]], name: str) -> str:
    """Draw what a run has recorded.

    Args:
        records: of its metrics.jsonl, in order; numbers that cannot be drawn are left out.
        name: what the run is called.

    Raises:
        DataError: none of them has a loss.
    """
    training, validation, rate, bleu = (
        [
            (one["step"], float(one[key]))
            for one in records
            if isinstance(one.get(key), int | float) and abs(one[key]) <= _LARGEST  # nor NaN
        ]
        for key in ("loss", "valid_loss", "learning_rate", "valid_bleu")
    )
    if not (training or validation):
        raise DataError(f"{name}: no loss is recorded; give the folder of a training run")
    last = max(1, *(step for step, _ in [*training, *validation]))
    y, parts = float(TOP + 6), []
    panels = [
        ("loss (nats a piece)", [("training", training, QUERY), ("validation", validation, KEY)]),
        ("learning rate", [("", rate, VALUE)]),
        ("BLEU on validation", [("", bleu, WEIGHT)]),
    ]
    for (title, series), height in zip(panels, _HEIGHTS, strict=True):
        if any(points for _, points, _ in series):
            parts += _panel(title, series, y, height, last)
            y += height + 48
    told = [
        f"{title} {name}: {_told(points)}" for title, s in panels for name, points, _ in s if points
    ]
    parts.append(text(_LEFT + _WIDTH / 2, y - 2, "step", anchor="middle", family="sans"))
    title = f"Training of {name}, {last:,} steps"
    return figure(_LEFT + _WIDTH + 150, y + MARGIN, title, f"{title}. {'; '.join(told)}.", parts)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers from low to high, `most` or fewer."""
    if high <= low:
        return [low]
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * k for k in (1, 2, 5, 10) if power * k >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _told(points: Series) -> str:
    (first, start), (last, end) = points[0], points[-1]
    low = min(points, key=lambda point: point[1])
    high = max(points, key=lambda point: point[1])
    return (
        f"{start:.4g} at step {first:,}, {end:.4g} at step {last:,}, "
        f"least {low[1]:.4g} at step {low[0]:,}, greatest {high[1]:.4g} at step {high[0]:,}"
    )


def _panel(
    title: str, series: Sequence[tuple[str, Series, str]], y: float, height: int, last: int
) -> list[str]:
    """Draw curves above a common axis of steps; of the last value of each the number is written."""
    highest = max(value for _, points, _ in series for _, value in points)
    highest = max(ticks(0.0, highest * 1.1)[-1], highest) or 1.0
    bottom = y + 20 + height
    parts = [text(MARGIN, y + 8, title, family="sans", style="bold")]
    grid = []
    for tick in ticks(0.0, highest):
        at = bottom - height * tick / highest
        grid.append(line([(_LEFT, at), (_LEFT + _WIDTH, at)], LINE))
        parts.append(text(_LEFT - 6, at + 4, f"{tick:.4g}", anchor="end", fill=SOFT))
    for tick in ticks(0.0, float(last), 8):
        if tick == int(tick):
            at = _LEFT + _WIDTH * tick / last
            grid.append(line([(at, bottom), (at, bottom + 4)], SOFT))
            parts.append(text(at, bottom + 16, f"{int(tick):,}", anchor="middle", fill=SOFT))
    parts.append(group(grid, 'stroke-width="0.8"'))
    ends = []
    for name, points, ink in series:
        if not points:
            continue
        placed = [
            (_LEFT + _WIDTH * step / last, bottom - height * min(value, highest) / highest)
            for step, value in points
        ]
        dashes = ' stroke-dasharray="6 3"' if name == "validation" else ""
        parts.append(line(placed, ink, style=f'stroke-width="1.6"{dashes}'))
        if len(points) <= 200:
            marks = [
                f'<circle cx="{x:.1f}" cy="{at:.1f}" r="2.4"><title>step {step:,}: '
                f"{f'{name} ' if name else ''}{title.split(' (')[0]} {value:.5g}</title></circle>"
                for (x, at), (step, value) in zip(placed, points, strict=True)
            ]
            parts.append(group(marks, f'fill="{ink}"'))
        ends.append((placed[-1][1], f"{points[-1][1]:.4g} {name}".strip(), ink))
    at = -math.inf
    for wanted, words, ink in sorted(ends):  # below each other where they would overlap
        at = max(wanted + 4, at + 14)
        parts.append(text(_LEFT + _WIDTH + 8, at, words, fill=ink or INK))
    return parts
