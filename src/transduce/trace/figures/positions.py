"""The positions of a model: what is added to an embedding for its place."""

import base64
import struct
import zlib

import numpy as np
from numpy import ndarray

from transduce.trace.figures.canvas import (
    LINE,
    MARGIN,
    NEGATIVE,
    PAPER,
    POSITIVE,
    SOFT,
    TOP,
    Number,
    figure,
    rect,
    text,
    width,
)
from transduce.trace.figures.loss import ticks

_LARGEST, _LEFT = 640, 60
_ROWS, _FIRST = 4, 6
"""Positions and dimensions whose numbers are written."""


def positions(table: ndarray, told: str) -> str:
    """Draw positions over dimensions as a heat map, and write the first numbers.

    Args:
        table: [position, dimension]
        told: what they are: "sinusoidal", "learned".
    """
    length, dimensions = table.shape
    cell = max(1, min(10, _LARGEST // dimensions, _LARGEST // length))
    w, h = cell * dimensions, cell * length
    limit = float(np.abs(table).max()) or 1.0
    y = TOP + 26
    parts = [
        text(_LEFT, TOP + 4, f"dimension (0 to {dimensions - 1})", family="sans"),
        text(MARGIN + 12, y + h, f"position (0 to {length - 1})", family="sans", style="turned"),
        _image(table, limit, _LEFT, y, w, h),
        rect(_LEFT, y, w, h, stroke=LINE),
    ]
    parts += [
        text(_LEFT + cell * (k + 0.5), y - 6, f"{k:.0f}", anchor="middle", fill=SOFT, size=9)
        for k in ticks(0.0, dimensions - 1.0, max(2, w // 60))
        if k == int(k)
    ]
    parts += [
        text(_LEFT - 6, y + cell * (k + 0.5) + 4, f"{k:.0f}", anchor="end", fill=SOFT, size=9)
        for k in ticks(0.0, length - 1.0, max(2, h // 30))
        if k == int(k)
    ]
    parts += _scale(limit, _LEFT + w + 2 * MARGIN, y)
    rows = _numbers(table)
    parts += [text(MARGIN, y + h + 24 + 15 * k, row) for k, row in enumerate(rows)]
    across = max(_LEFT + w + 2 * MARGIN + 70, max(map(width, rows)) + 2 * MARGIN)
    title = f"Positions, {told}: {length} positions, {dimensions} dimensions"
    words = f"{title}. Values from {table.min():.4f} to {table.max():.4f}. " + "; ".join(rows)
    return figure(across, y + h + 24 + 15 * len(rows), title, words, parts)


def png(colours: ndarray) -> bytes:
    """Encode an image: colours [rows, columns, 3], uint8."""
    assert colours.dtype == np.uint8
    rows, columns, _ = colours.shape
    lines = b"".join(b"\0" + row.tobytes() for row in colours)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    data = zlib.compress(lines, 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def _image(table: ndarray, limit: Number, x: int, y: int, w: int, h: int) -> str:
    """A pixel a number: from blue over paper to brown."""
    share = np.clip(np.abs(table) / limit, 0.0, 1.0)[..., None]
    paper, below, above = (
        np.array([int(colour[k : k + 2], 16) for k in (1, 3, 5)])
        for colour in (PAPER, NEGATIVE, POSITIVE)
    )
    full = np.where(table[..., None] < 0, below, above)
    image = png(np.rint(paper + share * (full - paper)).astype(np.uint8))
    data = base64.b64encode(image).decode("ascii")
    return (
        f'<image x="{x}" y="{y}" width="{w}" height="{h}" preserveAspectRatio="none" '
        f'image-rendering="optimizeSpeed" style="image-rendering:pixelated" '
        f'href="data:image/png;base64,{data}"/>'
    )


def _scale(limit: Number, x: Number, y: Number) -> list[str]:
    steps = np.linspace(limit, -limit, 11)
    parts = [_image(steps[:, None], limit, int(x), int(y), 14, 110)]
    for k, value in ((0, limit), (5, 0.0), (10, -limit)):
        parts.append(text(x + 20, y + 10 * k + 9, f"{value:.3g}", fill=SOFT))
    return parts


def _numbers(table: ndarray) -> list[str]:
    first = min(_FIRST, table.shape[1])
    return [
        f"position {p}: "
        + " ".join(f"{value:9.6f}" for value in table[p, :first])
        + (" ..." if table.shape[1] > first else "")
        for p in range(min(_ROWS, table.shape[0]))
    ]
