"""The program in this process (a new one costs seconds), with streams of its own."""

import logging
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import jaxtyping
import pytest

from transduce.cli.app import main


class Outcome(NamedTuple):
    """How a command ended, and what it has written."""

    status: int
    out: bytes
    errors: str

    @property
    def text(self) -> str:
        return self.out.decode("utf-8", "surrogateescape")

    @property
    def lines(self) -> list[str]:
        assert self.out.endswith(b"\n") or not self.out
        return self.text.split("\n")[:-1]


def transduce(
    *words: str | Path, text: bytes = b"", env: Mapping[str, str] | None = None
) -> Outcome:
    """Run a command line; its streams are files, in the poorest of encodings."""
    log = logging.getLogger("transduce")
    with (
        tempfile.TemporaryFile("w+", encoding="ascii") as given,
        tempfile.TemporaryFile("w+", encoding="ascii") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="backslashreplace") as errors,
        pytest.MonkeyPatch.context() as patch,
    ):
        given.buffer.write(text)
        given.buffer.seek(0)
        patch.setattr(sys, "argv", ["transduce", *map(str, words)])
        patch.setattr(sys, "stdin", given)
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", errors)
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        patch.setattr(log, "handlers", [])
        level = log.level
        # The checker of types knows typer's context by another name.
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        with pytest.raises(SystemExit) as end:
            main()
        log.setLevel(level)
        written = []
        for stream in (out, errors):
            stream.flush()
            stream.buffer.seek(0)
            written.append(stream.buffer.read())
    return Outcome(int(end.value.code or 0), written[0], written[1].decode("utf-8"))


def refused(*words: str | Path) -> str:
    """The one line that the program has against a command."""
    found = transduce(*words)
    assert found.status == 2, found
    assert found.out == b""
    lines = [line for line in found.errors.splitlines() if not line.startswith("warning: ")]
    assert len(lines) == 1, found.errors
    assert lines[0].startswith("error: ")
    return lines[0]
