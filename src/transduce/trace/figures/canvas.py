"""What every figure is drawn with: the page's colours, letters, and the few shapes of SVG."""

import re
from collections.abc import Iterable, Sequence
from html import escape

from rich.cells import cell_len

Number = int | float

PAPER, RAISED, SUNK, LINE, INK, SOFT = (
    "#fbfaf7",
    "#ffffff",
    "#f1efe8",
    "#d9d5ca",
    "#1d2026",
    "#565b66",
)
QUERY, KEY, VALUE, WEIGHT = "#1565c0", "#b4500b", "#007a5e", "#5a1e5c"
STREAM, ENCODER, DECODER, BAD = "#4a5160", "#eef3f8", "#f8f2ea", "#b3261e"
NEGATIVE, POSITIVE = "#2166ac", "#9a5b0f"
"""The roles of the page's light side; a picture brings its own paper, also into the dark."""

_FAMILIES = {
    "mono": "'DejaVu Sans Mono', 'Liberation Mono', Menlo, Consolas, monospace",
    "serif": "Charter, Georgia, 'DejaVu Serif', 'Liberation Serif', serif",
    "sans": "'DejaVu Sans', 'Liberation Sans', Helvetica, Arial, sans-serif",
}
_WIDTHS = {"mono": 0.61, "serif": 0.62, "sans": 0.6}  # of a character, in sizes; bold fits too
_TITLE, _NOTE = 15, 11
_HATCHES = {  # causal leans forward, padding backward, as on the page
    "causal": "M-2 2L2 -2M0 8L8 0M6 10L10 6",
    "padding": "M-2 6L2 10M0 0L8 8M6 -2L10 2",
}
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

MARGIN = 12
"""Pixels around a figure."""
TOP = MARGIN + _TITLE + 10
"""Where a figure's own shapes begin, below its title."""


def clean(text: str) -> str:
    """Escape a text, which may be a stranger's; XML cannot hold every character."""
    return escape(_NO_XML.sub("\ufffd", text))


def width(text: str, size: Number = 11, family: str = "mono") -> float:
    """Pixels that a text takes at most, nearly: letters differ from machine to machine."""
    return cell_len(text) * size * _WIDTHS[family]


def text(
    x: Number,
    y: Number,
    words: str,
    *,
    size: Number = 11,
    anchor: str = "start",
    fill: str = INK,
    family: str = "mono",
    style: str = "",
) -> str:
    """Write a line; `style` is further attributes, `turned` for upwards, `bold` among them."""
    more = style.replace("bold", 'font-weight="bold"')
    more = more.replace("turned", f'transform="rotate(-90 {_n(x)} {_n(y)})"')
    return (
        f'<text x="{_n(x)}" y="{_n(y)}"'
        + (f' font-size="{_n(size)}"' if size != _NOTE else "")
        + (f' text-anchor="{anchor}"' if anchor != "start" else "")
        + (f' fill="{fill}"' if fill != INK else "")
        + (f' font-family="{_FAMILIES[family]}"' if family != "mono" else "")
        + (f" {more}" if more else "")
        + f">{clean(words)}</text>"
    )


def rect(
    x: Number,
    y: Number,
    w: Number,
    h: Number,
    fill: str = "none",
    *,
    stroke: str = "",
    title: str = "",
    style: str = "",
) -> str:
    """Draw a rectangle; `title` is what a pointer over it is told; `style`: further attributes."""
    start = f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(w)}" height="{_n(h)}"'
    start += (f' fill="{fill}"' if fill else "") + (f' stroke="{stroke}"' if stroke else "")
    start += f" {style}" if style else ""
    return f"{start}/>" if not title else f"{start}><title>{clean(title)}</title></rect>"


def line(points: Sequence[tuple[Number, Number]], stroke: str = LINE, *, style: str = "") -> str:
    """Draw a line through points."""
    path = "M" + "L".join(f"{_n(x)} {_n(y)}" for x, y in points)
    more = f" {style}" if style else ""
    return f'<path d="{path}" fill="none" stroke="{stroke}"{more}/>'


def arrow(x: Number, y: Number, x2: Number, y2: Number, stroke: str = STREAM) -> str:
    """Draw a straight line with a head, along an axis."""
    length = max(abs(x2 - x), abs(y2 - y)) or 1
    across, down = (x2 - x) / length, (y2 - y) / length
    head = [
        (x2 - 6 * across - 3 * down, y2 - 6 * down - 3 * across),
        (x2, y2),
        (x2 - 6 * across + 3 * down, y2 - 6 * down + 3 * across),
    ]
    return line([(x, y), (x2, y2)], stroke, style='stroke-width="1.5"') + line(
        head, stroke, style='stroke-width="1.5" stroke-linejoin="round"'
    )


def group(parts: Iterable[str], attributes: str) -> str:
    """Give parts attributes that they share."""
    return f"<g {attributes}>\n" + "\n".join(parts) + "\n</g>"


def shade(weight: Number, ink: str = WEIGHT) -> str:
    """Between paper, at 0, and ink, at 1."""
    share = min(1.0, max(0.0, float(weight)))
    ends = ((int(PAPER[k : k + 2], 16), int(ink[k : k + 2], 16)) for k in (1, 3, 5))
    return "#" + "".join(f"{round(paper + share * (full - paper)):02x}" for paper, full in ends)


def signed(value: Number, limit: Number) -> str:
    """From blue at -limit over paper to brown at limit."""
    return shade(abs(value) / (limit or 1), NEGATIVE if value < 0 else POSITIVE)


def figure(w: Number, h: Number, title: str, told: str, parts: Iterable[str]) -> str:
    """Put parts on paper, below a title; `told` is the picture in words, for who cannot see it."""
    w = max(w, width(title, _TITLE, "serif") + 2 * MARGIN)
    body = "\n".join(parts)
    hatches = "".join(
        f'<pattern id="{name}" width="8" height="8" patternUnits="userSpaceOnUse">'
        f'<rect width="8" height="8" fill="{SUNK}"/>'
        f'<path d="{path}" stroke="#989a9e" fill="none"/></pattern>\n'
        for name, path in _HATCHES.items()
        if f"url(#{name})" in body
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(w)}" height="{_n(h)}" '
        f'viewBox="0 0 {_n(w)} {_n(h)}" role="img" aria-label="{clean(title)}" '
        f'font-family="{_FAMILIES["mono"]}" font-size="{_NOTE}" fill="{INK}">\n'
        f"<title>{clean(title)}</title>\n<desc>{clean(told)}</desc>\n"
        + (f"<defs>\n{hatches}</defs>\n" if hatches else "")
        + rect(0, 0, w, h, PAPER)
        + "\n"
        + text(MARGIN, MARGIN + _TITLE - 2, title, size=_TITLE, family="serif", style="bold")
        + f"\n{body}\n</svg>\n"
    )


def _n(number: Number) -> str:
    return f"{round(float(number), 1):g}"
