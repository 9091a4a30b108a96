"""Runs the program in this process: to start another one costs seconds."""

import io
import logging
import sys
from pathlib import Path
from typing import NamedTuple

import jaxtyping
import pytest

from transduce.cli.app import main


class Outcome(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def transduce(*words: str | Path) -> Outcome:
    """The command of these words, with streams of its own, as on a terminal's UTF-8 locale."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="\n")
    errors = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    log = logging.getLogger("transduce")
    level = log.level
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["transduce", *map(str, words)])
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", errors)
        patch.setattr(log, "handlers", [])
        # The checker of types knows typer's context by another name.
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        with pytest.raises(SystemExit) as end:
            main()
    log.setLevel(level)
    texts = []
    for stream in (out, errors):
        stream.flush()
        texts.append(stream.buffer.getvalue().decode("utf-8", "surrogateescape"))
    return Outcome(int(end.value.code or 0), *texts)
