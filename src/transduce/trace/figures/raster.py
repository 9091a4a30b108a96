"""A figure as PNG: the one module that knows resvg."""

import re
from types import ModuleType

from transduce.errors import SettingsError

_MOST = 10**8  # pixels


def png(svg: str, scale: float) -> bytes:
    """Draw a figure's pixels.

    Args:
        svg: of `canvas.figure`.
        scale: pixels of the image for one of the figure.

    Raises:
        SettingsError: resvg is not installed, this machine has no letters, the image is too large.
    """
    resvg = library()
    w, h = (float(found) for found in re.findall(r'(?:width|height)="([\d.]+)"', svg)[:2])
    if w * h * scale**2 > _MOST:
        raise SettingsError(
            f"the picture would have {w * scale:,.0f} x {h * scale:,.0f} pixels, "
            f"more than {_MOST:,}; lower --scale, or write .svg"
        )
    return resvg.svg_to_bytes(svg_string=svg, zoom=scale)


def library() -> ModuleType:
    """Import resvg, and see that it finds letters.

    Raises:
        SettingsError: it is not installed, or there are none.
    """
    try:
        import resvg_py
    except ImportError:
        raise SettingsError(
            ".png needs pip install 'transduce[figures]'; .svg needs nothing"
        ) from None
    from transduce.trace.figures.canvas import figure, text

    # Without a font it draws everything else, and says nothing.
    empty, written = (
        resvg_py.svg_to_bytes(svg_string=figure(20, 60, "", "", [text(2, 50, word)]))
        for word in ("", "M")
    )
    if empty == written:
        raise SettingsError(
            "this machine has no font to write a PNG with (on Debian: "
            "apt install fonts-dejavu-core); .svg needs none here"
        )
    return resvg_py
