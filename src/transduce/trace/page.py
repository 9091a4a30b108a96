"""The page with traces in it: one HTML file that needs no network, and what a notebook shows."""

import base64
import hashlib
import json
import re
from html import escape
from pathlib import Path
from typing import Any

from transduce.trace.svg import svg

_BUILT = Path(__file__).with_name("page.html")  # of viewer/, by `make page`
_SLOT = '<script type="application/json" id="payload">null</script>'
_PIECES = 24
"""Of each side, that a notebook's line of text shows."""


def html(payload: dict[str, Any] | None) -> str:
    """Return the page of a document, `Trace.to_json()`; None: of a server, which it will ask.

    Nothing of the payload can act: it is data, and no script runs but the page's own.
    """
    page = _BUILT.read_text(encoding="utf-8")
    assert page.count(_SLOT) == page.count("<head>") == 1
    # A `<` in a script's text could end it, or begin a comment that swallows its end.
    data = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    data = data.replace("<", "\\u003c")
    policy = _policy(page, live=payload is None)
    policy = f'<meta http-equiv="Content-Security-Policy" content="{policy}" />'
    return page.replace("<head>", f"<head>\n    {policy}").replace(
        _SLOT, _SLOT.replace("null", data)
    )


def mimebundle(payload: dict[str, Any]) -> dict[str, str]:
    """Return what a notebook shows: the page in a frame of its own, a picture, a line of text."""
    trace = payload["traces"][0]
    frame = (
        '<iframe sandbox="allow-scripts" style="width: 100%; height: 45rem; border: 0" '
        f'title="transduce: inside a translation" srcdoc="{escape(html(payload))}"></iframe>'
    )
    shown = {"text/html": frame, "text/plain": _line(trace)}
    maps = [name for name in trace["tensors"] if name.endswith(".cross_attention.weights")]
    if maps:
        shown["image/svg+xml"] = svg(trace, maps[-1].removesuffix(".weights"), None)
    return shown


def _policy(page: str, *, live: bool) -> str:
    """Only the page's own script runs; where it is live it may ask the server that it is from."""
    scripts = re.findall(r'<script type="module"[^>]*>(.*?)</script>', page, flags=re.DOTALL)
    sums = (base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts)
    own = " ".join(f"'sha256-{one}'" for one in sums)
    asks = "connect-src 'self'; " if live else ""
    return (
        f"default-src 'none'; {asks}script-src {own}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _line(trace: dict[str, Any]) -> str:
    sides = (trace["source"]["tokens"], trace["target"]["labels"])
    source, target = (
        " ".join(token["piece"] for token in tokens[:_PIECES])
        + (" ..." if len(tokens) > _PIECES else "")
        for tokens in sides
    )
    held = sum(one["ok"] for one in trace["invariants"])
    return f"Trace: {source} -> {target} ({held} of {len(trace['invariants'])} checks hold)"
