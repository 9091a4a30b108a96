"""The program in this process, as several tests call it."""

import io
import logging
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import jaxtyping
import pytest

from transduce.cli.app import main


class Outcome(NamedTuple):
    status: int
    out: bytes
    errors: str

    @property
    def lines(self) -> list[str]:
        assert self.out.endswith(b"\n") or not self.out
        return self.out.decode("utf-8").split("\n")[:-1]


def transduce(*words: str | Path, text: bytes = b"") -> Outcome:
    """The program in this process (a new one costs seconds), with streams of its own."""
    log = logging.getLogger("transduce")
    errors = io.StringIO()
    with (
        tempfile.TemporaryFile() as file,  # the program asks standard output what it is
        pytest.MonkeyPatch.context() as patch,
    ):
        out = io.TextIOWrapper(file, encoding="ascii")
        patch.setattr(sys, "argv", ["transduce", *map(str, words)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="ascii"))
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", errors)
        patch.setattr(log, "handlers", [])
        level = log.level
        # The checker of types knows typer's context by another name.
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        with pytest.raises(SystemExit) as end:
            main()
        log.setLevel(level)
        out.flush()
        file.seek(0)
        return Outcome(int(end.value.code or 0), file.read(), errors.getvalue())
