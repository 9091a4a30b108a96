"""The page with traces in it: one HTML file that needs no network, and what a notebook shows."""

import base64
import hashlib
import json
import re
import zlib
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from transduce.trace.figures.attention import attention

_BUILT = Path(__file__).with_name("page.html")  # of viewer/, by `make page`
_SLOT = '<script type="application/json" id="payload">null</script>'
_SCRIPT = re.compile(r'<script type="module"[^>]*>(.*?)</script>', flags=re.DOTALL)
_PIECES = 24
"""Of each side, that a notebook's line of text shows."""

_MOST_PACKED = 3_000_000
"""Characters of data that are deflated. More are numbers, which shrink little, and slowly."""

# The script and the data are stored deflated, in elements that no browser runs, four bytes as five
# digits to the base 85: ( to |, but ~ for the <, which could end a script. First comes the size.
_UNPACK = """
const unpack = async (text) => {
  const words = new DataView(new ArrayBuffer((text.length / 5) * 4));
  for (let i = 0; i < text.length; ) {
    let word = 0;
    for (const end = i + 5; i < end; i++) {
      const digit = text.charCodeAt(i) - 40;
      word = word * 85 + (digit === 86 ? 20 : digit);
    }
    words.setUint32((i / 5 - 1) * 4, word);
  }
  const bytes = new Blob([new Uint8Array(words.buffer, 4, words.getUint32(0))]);
  return new Response(bytes.stream().pipeThrough(new DecompressionStream("deflate"))).text();
};
const start = async () => {
  const [data, code] = ["payload", "code"].map((id) => document.getElementById(id));
  // Large data are there as they are.
  if (!data.textContent.startsWith("{")) data.textContent = await unpack(data.textContent);
  const script = document.createElement("script");
  script.type = "module";
  script.textContent = await unpack(code.textContent);
  document.head.append(script);
};
const tell = (text) => { document.getElementById("app").textContent = text; };
if (typeof DecompressionStream === "undefined") tell("This page needs a browser of 2024 or later.");
else start().catch((error) => tell(`This file is damaged. ${error}`));
"""


def html(payload: dict[str, Any] | None) -> str:
    """Return the page of a document, `Trace.to_json()`; None: of a server, which it will ask.

    Nothing of the payload can act: it is data, and no script runs but the page's own two.
    """
    page = _BUILT.read_text(encoding="utf-8")
    assert page.count(_SLOT) == page.count("<head>") == 1
    [code] = _SCRIPT.findall(page)
    data = json.dumps(payload, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    policy = _policy(_UNPACK, code, live=payload is None)
    page = _SCRIPT.sub("", page).replace(
        "<head>", f'<head>\n    <meta http-equiv="Content-Security-Policy" content="{policy}" />'
    )
    # Left as it is, a `<` in it could end the script, or begin a comment that swallows its end.
    data = _packed(data) if len(data) <= _MOST_PACKED else data.replace("<", "\\u003c")
    return page.replace(
        _SLOT,
        f'<script type="text/plain" id="code">{_packed(code)}</script>\n    '
        f'<script type="application/json" id="payload">{data}</script>\n    '
        f'<script type="module">{_UNPACK}</script>',
    )


def _packed(text: str) -> str:
    data = zlib.compress(text.encode())
    words = np.frombuffer(len(data).to_bytes(4) + data + bytes(-len(data) % 4), ">u4")
    digits = words[:, None] // 85 ** np.arange(4, -1, -1) % 85
    return (np.where(digits == 20, 86, digits) + 40).astype(np.uint8).tobytes().decode("ascii")


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
        shown["image/svg+xml"] = attention(trace, [(maps[-1].removesuffix(".weights"), None)])
    return shown


def _policy(*scripts: str, live: bool) -> str:
    """Only these scripts run; where the page is live it may ask the server that it is from."""
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
