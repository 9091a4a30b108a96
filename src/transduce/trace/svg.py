"""One attention map as an SVG picture, written by hand: for papers, and where no script runs."""

import base64
import re
from html import escape
from typing import Any

import numpy as np
from numpy import ndarray

_CELL, _CHARACTER, _GAP, _TITLE = 18, 7, 6, 22  # pixels
_PAPER, _INK = (251, 250, 247), (90, 30, 92)
_STYLE = "font: 11px ui-monospace, 'DejaVu Sans Mono', monospace"
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def svg(trace: dict[str, Any], attention: str, head: int | None) -> str:
    """Draw who attends to whom in one block: a row a query, a column a key.

    Args:
        trace: of a document, `Trace.to_json()["traces"][0]`.
        attention: the block, such as "decoder.1.cross_attention".
        head: from 0; None is the mean of the heads.
    """
    weights = _values(trace["tensors"][f"{attention}.weights"])  # [h, q, k]
    weights = weights.mean(axis=0) if head is None else weights[head]
    target, source = trace["target"]["input"], trace["source"]["tokens"]
    encoder, cross = attention.startswith("encoder"), attention.endswith("cross_attention")
    queries = _pieces(source if encoder else target)
    keys = _pieces(source if encoder or cross else target)
    # The words and the numbers are of one pass, or there is no picture.
    assert weights.shape == (len(queries), len(keys)), (weights.shape, len(queries), len(keys))
    left = _TITLE + _CHARACTER * max(map(len, queries)) + _GAP
    top = 2 * _TITLE + _CHARACTER * max(map(len, keys)) + _GAP
    width, height = left + _CELL * len(keys) + _GAP, top + _CELL * len(queries) + _GAP
    title = f"{attention}, {'mean of the heads' if head is None else f'head {head}'}"
    width = max(width, _CHARACTER * len(title) + 2 * _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" style="{_STYLE}" role="img" aria-label="{escape(title)}">',
        f'<rect width="{width}" height="{height}" fill="{_color(0.0)}"/>',
        f'<text x="{_GAP}" y="15" font-weight="bold">{escape(title)}</text>',
        _text(left, _TITLE + 15, f"key ({'source' if encoder or cross else 'target'})"),
        _text(15, top, f"query ({'source' if encoder else 'target'})", turned=True, end=True),
    ]
    for j, key in enumerate(keys):
        parts.append(_text(left + _CELL * j + 13, top - _GAP, key, turned=True))
    for i, query in enumerate(queries):
        parts.append(_text(left - _GAP, top + _CELL * i + 13, query, end=True))
        for j, key in enumerate(keys):
            weight = float(weights[i, j])
            parts.append(
                f'<rect x="{left + _CELL * j}" y="{top + _CELL * i}" width="{_CELL - 1}" '
                f'height="{_CELL - 1}" fill="{_color(weight)}" stroke="#d9d5ca" stroke-width="0.5">'
                f"<title>{query} attends to {key}: {weight:.4f}</title></rect>"
            )
    return "\n".join((*parts, "</svg>\n"))


def _values(tensor: dict[str, Any]) -> ndarray:
    numbers = np.frombuffer(base64.b64decode(tensor["f32"]), dtype="<f4")
    return numbers.reshape(tensor["shape"]).astype(np.float64)


def _pieces(tokens: list[dict[str, Any]]) -> list[str]:
    """What stands on an axis; a vocabulary is a stranger's, and XML cannot hold every character."""
    return [escape(_NO_XML.sub("\ufffd", token["piece"])) for token in tokens]


def _text(x: int, y: int, text: str, *, turned: bool = False, end: bool = False) -> str:
    turn = f' transform="rotate(-90 {x} {y})"' if turned else ""
    anchor = ' text-anchor="end"' if end else ""
    return f'<text x="{x}" y="{y}"{turn}{anchor}>{text}</text>'


def _color(weight: float) -> str:
    """Between paper and ink."""
    share = min(1.0, max(0.0, weight))
    mixed = (round(p + share * (i - p)) for p, i in zip(_PAPER, _INK, strict=True))
    return "#" + "".join(f"{part:02x}" for part in mixed)
