"""Shows how far a translation is: a line that moves on a terminal, plain lines elsewhere."""

import gzip
import time
import zlib
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.status import Status

from transduce.train.monitor import duration, say

EVERY = 10.0
"""Seconds between plain lines; a job that takes less has none."""


class Progress:
    """Counts lines, and knows the rate and, where the text is a file, the time left."""

    def __init__(
        self, console: Console, status: Status | None, *, done: int, total: int | None
    ) -> None:
        """Begin at line `done` of `total`."""
        self._console = console
        self._status = status
        self._first = self._done = done
        self._total = total
        self._began = self._said = time.monotonic()

    def add(self, lines: int) -> None:
        """Take in translated lines; show them on a terminal, elsewhere when it is time to."""
        self._done += lines
        now = time.monotonic()
        if self._status is not None:
            self._status.update(self._text(now))
        elif now - self._said >= EVERY:
            self._said = now
            say(self._console, self._text(now))

    def _text(self, now: float) -> str:
        rate = (self._done - self._first) / max(now - self._began, 1e-6)
        if not self._total:
            return f"translated {self._done:,} lines  {rate:,.1f} lines/s"
        left = max(0, self._total - self._done) / max(rate, 1e-6)
        return (
            f"translated {self._done:,} of {self._total:,} lines ({self._done / self._total:.0%})"
            f"  {rate:,.1f} lines/s  {duration(left)} left"
        )


@contextmanager
def progress(console: Console, file: Path | None, *, done: int, shown: bool) -> Generator[Progress]:
    """Yield a Progress; where it is not `shown`, one that is silent."""
    if not shown or console.quiet:
        yield Progress(Console(quiet=True), None, done=done, total=None)
        return
    total = None if file is None else count_lines(file)
    if not console.is_terminal:
        yield Progress(console, None, done=done, total=total)
        return
    with console.status("translating ...") as status:
        yield Progress(console, status, done=done, total=total)


def count_lines(file: Path) -> int | None:
    """Count a regular file's lines, as they will be translated; None where it cannot be done."""
    lines, last = 0, b"\n"
    try:
        if not file.is_file():
            return None
        with file.open("rb") as head:
            zipped = head.read(2) == b"\x1f\x8b"
        with gzip.open(file) if zipped else file.open("rb") as text:
            while block := text.read(1 << 20):
                lines += block.count(b"\n")
                last = block[-1:]
    except (OSError, EOFError, zlib.error):
        return None
    return lines + (last != b"\n")
