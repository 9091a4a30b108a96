"""The files that the verb trace writes: the page, and every number as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transduce.cli.output import opened
from transduce.trace import page
from transduce.trace.alive import alive
from transduce.trace.document import Trace, document


def write_files(
    traces: Sequence[Trace],
    beside: Sequence[Sequence[Trace]],
    more: dict[str, Any],
    html: Path | None,
    as_json: Path | None,
    *,
    inside: bool,
) -> list[str]:
    """Write what was asked for, and return the lines that tell of it.

    `beside` are traces by other models; `more` is what else a document holds; `inside` puts the
    model into the page.
    """
    if as_json is not None:
        found = document(traces, beside) | more
        with opened(as_json, "--json") as file:
            file.write(json.dumps(found, ensure_ascii=False, allow_nan=False) + "\n")
    told = [f"written to {path}" for path in (html, as_json) if path is not None]
    if html is not None:
        found = (alive(traces, beside) if inside else document(traces, beside)) | more
        with opened(html, "--html") as file:
            file.write(page.html(found))
        if inside:
            size = sum(len(each["f16"]) for each in found["weights"]["parameters"].values())
            told.append(
                f"the model is inside the page ({size / 1e6:.1f} MB, rounded to float16): "
                "it can translate other text"
            )
    return told
