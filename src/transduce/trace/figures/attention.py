"""Attention maps: who attends to whom, a row a query, a column a key."""

import base64
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray

from transduce.trace.figures.canvas import (
    KEY,
    LINE,
    MARGIN,
    PAPER,
    QUERY,
    SOFT,
    TOP,
    WEIGHT,
    Number,
    figure,
    group,
    rect,
    shade,
    text,
    width,
)

CELL = 24
_PRINTED = 0.05
"""Weights from which on a cell has its number in it; all of them are in its title."""


class Map(NamedTuple):
    """The weights of one block, with the pieces of its two sides."""

    block: str
    head: int | None
    """None: the mean of the heads."""
    queries: list[str]
    keys: list[str]
    sides: tuple[str, str]
    """Where queries and keys come from: source or target."""
    weights: ndarray
    """[q, k]"""
    allowed: ndarray
    """[q, k]; False: blocked by the causal mask."""


class Drawn(NamedTuple):
    """A part of a figure, and the pixels that it takes."""

    parts: list[str]
    width: Number
    height: Number


def attention(trace: dict[str, Any], shown: Sequence[tuple[str, int | None]]) -> str:
    """Draw maps beside each other, as many in a row as make about a square.

    Args:
        trace: of a document, `Trace.to_json()["traces"][0]`.
        shown: blocks, such as "decoder.1.cross_attention", and a head, from 0; None is the mean of
            the heads.
    """
    maps = [read(trace, block, head) for block, head in shown]
    blocks = list(dict.fromkeys(one.block for one in maps))
    which = "each head" if len({one.head for one in maps}) > 1 else _head(maps[0])
    title = f"{blocks[0] if len(blocks) == 1 else 'Attention'}, {which}"
    told = f"{title}: weights, of which each row sums to 1. " + " ".join(map(_sentence, maps))
    columns = len(maps) if len(blocks) > 1 else math.ceil(math.sqrt(len(maps)))
    y, widest, parts = float(TOP), 0.0, []
    for start in range(0, len(maps), columns):
        x, highest = float(MARGIN), 0.0
        for one in maps[start : start + columns]:
            name = "" if len(maps) == 1 else one.block if len(blocks) > 1 else _head(one)
            drawn = panel(one, x, y, name)
            parts += drawn.parts
            x, highest = x + drawn.width + 2 * MARGIN, max(highest, drawn.height)
        y, widest = y + highest + MARGIN, max(widest, x - MARGIN)
    return figure(widest, y, title, told, parts)


def read(trace: dict[str, Any], block: str, head: int | None) -> Map:
    """Take the weights of a block out of a document, with the words that they are of."""
    weights = values(trace["tensors"][f"{block}.weights"])  # [h, q, k]
    weights = weights.mean(axis=0) if head is None else weights[head]
    target, source = trace["target"]["input"], trace["source"]["tokens"]
    encoder, cross = block.startswith("encoder"), block.endswith("cross_attention")
    queries = pieces(source if encoder else target)
    keys = pieces(source if encoder or cross else target)
    sides = ("source" if encoder else "target", "source" if encoder or cross else "target")
    # The words and the numbers are of one pass, or there is no picture.
    assert weights.shape == (len(queries), len(keys)), (weights.shape, len(queries), len(keys))
    allowed = np.array(trace["masks"]["target"] if sides[1] == "target" else np.ones_like(weights))
    return Map(block, head, queries, keys, sides, weights, allowed.astype(bool))


def panel(one: Map, x: Number, y: Number, name: str) -> Drawn:
    """Draw a map with its axes; its upper left corner is at x, y."""
    left, top, parts = frame(one.queries, one.keys, one.sides, x, y, name)
    cells, numbers = [], []
    for i, query in enumerate(one.queries):
        for j, key in enumerate(one.keys):
            weight = float(one.weights[i, j])
            fill = shade(weight) if one.allowed[i, j] else "url(#causal)"
            told = f"{query} attends to {key}: {weight:.4f}"
            cells.append(
                rect(left + CELL * j, top + CELL * i, CELL - 1, CELL - 1, fill, title=told)
            )
            if weight >= _PRINTED:
                ink = PAPER if weight > 0.45 else WEIGHT
                at = (left + CELL * j + (CELL - 1) / 2, top + CELL * i + CELL / 2 + 3)
                shown = f"{weight:.2f}".removeprefix("0")
                numbers.append(f'<text x="{at[0]:g}" y="{at[1]:g}" fill="{ink}">{shown}</text>')
    parts.append(group(cells, f'stroke="{LINE}" stroke-width="0.5"'))
    parts.append(group(numbers, 'font-size="9" text-anchor="middle"'))
    return Drawn(parts, *extent(one.queries, one.keys, left - x, top - y, name))


def frame(
    queries: Sequence[str],
    keys: Sequence[str],
    sides: tuple[str, str],
    x: Number,
    y: Number,
    name: str,
) -> tuple[float, float, list[str]]:
    """Write the axes of a map at x, y; return where its cells begin, and the parts."""
    query, key = f"query ({sides[0]})", f"key ({sides[1]})"
    left = x + 20 + max(width(piece) for piece in queries) + 6
    top = y + (18 if name else 0) + 18 + max(width(piece) for piece in keys) + 8
    parts = [text(x, y + 12, name, fill=SOFT, family="sans")] if name else []
    parts.append(text(left, y + (18 if name else 0) + 12, key, fill=KEY, family="sans"))
    parts.append(
        text(
            x + 12,
            top + max(CELL * len(queries), width(query, 11, "sans")),
            query,
            fill=QUERY,
            family="sans",
            style="turned",
        )
    )
    middle = CELL / 2 + 4
    for j, piece in enumerate(keys):
        parts.append(text(left + CELL * j + middle, top - 6, piece, style="turned"))
    for i, piece in enumerate(queries):
        parts.append(text(left - 6, top + CELL * i + middle, piece, anchor="end"))
    return left, top, parts


def extent(
    queries: Sequence[str], keys: Sequence[str], left: Number, top: Number, name: str
) -> tuple[Number, Number]:
    """Return the pixels across and down of a map whose cells begin at left, top."""
    across = max(CELL * len(keys), width("query (source)", 11, "sans"))
    down = max(CELL * len(queries), width("query (source)", 11, "sans"))
    return max(left + across, width(name, 11, "sans")), top + down


def values(tensor: dict[str, Any]) -> ndarray:
    """Read a document's tensor."""
    numbers = np.frombuffer(base64.b64decode(tensor["f32"]), dtype="<f4")
    return numbers.reshape(tensor["shape"]).astype(np.float64)


def pieces(tokens: Sequence[dict[str, Any]]) -> list[str]:
    """What stands on an axis."""
    return [token["piece"] for token in tokens]


def _head(one: Map) -> str:
    return "mean of the heads" if one.head is None else f"head {one.head}"


def _sentence(one: Map) -> str:
    most = one.weights.argmax(axis=1)
    rows = (
        f"{query} to {one.keys[j]} ({one.weights[i, j]:.4f})"
        for i, (query, j) in enumerate(zip(one.queries, most, strict=True))
    )
    return f"{one.block}, {_head(one)}: the most weight goes from {', '.join(rows)}."
