"""Where a verb writes its result: standard output, or a file that has its name once complete."""

import io
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO, cast

from transduce.decode.resume import unfinished
from transduce.errors import DataError
from transduce.files import whole_file


def check_apart(output: Path | None, *inputs: Path | None) -> None:
    """See that an output is none of the inputs, which it would replace; None is a standard stream.

    Raises:
        DataError: it is one of them, or a link to it.
    """
    if output is None:
        return
    for path in inputs:
        with suppress(OSError, AttributeError):  # what is not there is not replaced
            there = sys.stdin.fileno() if path is None else path
            if output.is_file() and os.path.samefile(output, there):
                name = "the input" if path is None else path
                raise DataError(f"--output {output} would replace {name}; name another file")


@contextmanager
def opened(path: Path | None, option: str = "--output") -> Generator[TextIO]:
    """Yield where to write; None is standard output. `option` has named the path.

    Raises:
        DataError: it is closed, or cannot be written.
    """
    if path is not None:
        try:
            with whole_file(path) as file:
                yield file
        except OSError as error:
            raise DataError(f"{option} {path}: {error.strerror}") from None
        return
    if sys.stdout is None:
        raise DataError("standard output is closed: there is nowhere to write")
    out = cast(io.TextIOWrapper, sys.stdout)
    # Whatever the locale says; bytes of a file's name that are no Unicode stay as they are.
    out.reconfigure(encoding="utf-8", errors="surrogateescape", newline="\n")
    try:
        yield out
        out.flush()  # here, where an error can be told
    except BrokenPipeError:
        raise
    except OSError as error:
        # Or what is left would be flushed again at the end.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        raise DataError(f"standard output: {error.strerror}") from None


@contextmanager
def opened_at(
    path: Path | None, about: dict[str, Any] | None, *, resume: bool
) -> Generator[tuple[int, Callable[[str, int], None]]]:
    """Yield how many lines are done, and what writes the translations of so many next ones.

    With `about`, see `decode.resume.describe`, what is done outlives a kill.

    Raises:
        DataError: it cannot be written, or not be resumed.
    """
    if path is None or about is None:
        with opened(path) as file:

            def add(text: str, _: int) -> None:
                file.write(text)
                file.flush()  # who reads a pipe waits for it

            yield 0, add
        return
    try:
        with unfinished(path, about, resume=resume) as part:
            yield part.lines, part.add
    except OSError as error:
        raise DataError(f"--output {path}: {error.strerror}") from None
