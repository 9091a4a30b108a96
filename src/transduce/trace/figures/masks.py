"""The three masks of a sentence: who may attend to whom, and what keeps the others from it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy import ndarray

from transduce.trace.figures.attention import CELL, Drawn, extent, frame, pieces
from transduce.trace.figures.canvas import (
    KEY,
    LINE,
    MARGIN,
    RAISED,
    SOFT,
    TOP,
    Number,
    figure,
    group,
    rect,
    text,
)

_WHY = {"causal": "it comes later", "padding": "it is padding"}


def masks(trace: dict[str, Any]) -> str:
    """Draw the masks of encoder, decoder and cross-attention, and count what they allow.

    The source has the columns of PAD that it gets beside a longer sentence, as recorded.

    Args:
        trace: of a document, `Trace.to_json()["traces"][0]`.
    """
    source, target = pieces(trace["source"]["tokens"]), pieces(trace["target"]["input"])
    columns = trace["padded"]["columns"]
    may = np.array([*trace["masks"]["source"], *[False] * columns], dtype=bool)
    causal = np.array(trace["masks"]["target"], dtype=bool)
    assert causal.shape == (len(target), len(target)), causal.shape
    keys = [*source, *["PAD"] * columns]
    shown = [
        ("encoder self-attention", source, keys, ("source", "source"), may, "padding"),
        ("decoder self-attention", target, target, ("target", "target"), causal, "causal"),
        ("cross-attention", target, keys, ("target", "source"), may, "padding"),
    ]
    x, highest, parts, told = float(MARGIN), 0.0, [], []
    for name, queries, axis, sides, mask, hatch in shown:
        allowed = np.broadcast_to(mask, (len(queries), len(axis)))
        count = f"{allowed.sum():,} allowed, {(~allowed).sum():,} blocked"
        drawn = _panel(name, (queries, axis), sides, allowed, hatch, x)
        parts += drawn.parts
        parts.append(text(x, TOP + drawn.height + 18, count, fill=SOFT, family="sans"))
        told.append(f"{name}, queries {sides[0]}, keys {sides[1]}: {count}, as {_WHY[hatch]}.")
        x, highest = x + drawn.width + 2 * MARGIN, max(highest, drawn.height)
    y = TOP + highest + 30
    parts += _legend(y)
    title = "Masks: a row is a query, a column a key"
    return figure(x - MARGIN, y + 30, title, " ".join(told), parts)


def _panel(
    name: str,
    words: tuple[Sequence[str], Sequence[str]],
    sides: tuple[str, str],
    allowed: ndarray,
    hatch: str,
    x: Number,
) -> Drawn:
    queries, keys = words
    left, top, parts = frame(queries, keys, sides, x, float(TOP), name)
    cells = [
        rect(
            left + CELL * j,
            top + CELL * i,
            CELL - 1,
            CELL - 1,
            "" if may else f"url(#{hatch})",
            title="" if may else f"{queries[i]} may not attend to {keys[j]}: {_WHY[hatch]}",
        )
        for i, row in enumerate(allowed.tolist())
        for j, may in enumerate(row)
    ]
    parts.append(group(cells, f'fill="{RAISED}" stroke="{LINE}" stroke-width="0.7"'))
    right = left + CELL * len(keys) + 6
    parts.append(text(right + 5, top - 6, "reads", fill=KEY, family="sans", style="turned"))
    for i, row in enumerate(allowed):
        parts.append(text(right - 2, top + CELL * i + CELL / 2 + 4, f"{row.sum()}", fill=KEY))
    across, down = extent(queries, keys, left - x, top - TOP, name)
    return Drawn(parts, across + 28, down)


def _legend(y: Number) -> list[str]:
    parts, x = [], float(MARGIN)
    for fill, words in (
        (RAISED, "may attend"),
        ("url(#causal)", "blocked: the key comes later (causal)"),
        ("url(#padding)", "blocked: the key is padding"),
    ):
        parts.append(rect(x, y, 14, 14, fill, stroke=LINE))
        parts.append(text(x + 20, y + 11, words, fill=SOFT, family="sans"))
        x += 40 + 6.2 * len(words)
    return parts
