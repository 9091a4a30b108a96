"""Says what is being done: lines that stay, and how far a stage of many pairs has come."""

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

T = TypeVar("T")

_A_LINE_EVERY = 10.0  # seconds, where no bar can move
_WORTH_A_LINE = 2.0  # seconds


def say(console: Console, line: str) -> None:
    """Print a line; that nobody can read it any more is no reason to stop what is being done."""
    with suppress(OSError):
        console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as `0:01:05`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


class Stage:
    """A bar with rate and time left on a terminal, a line now and then elsewhere; a context.

    A stage that took a while leaves a line.
    """

    def __init__(self, console: Console, name: str) -> None:
        self._console, self._name = console, name
        self._share, self._pairs = 0.0, 0
        self._began = self._told = time.monotonic()
        self._bar = Progress(
            TextColumn("  {task.description}"),
            BarColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(name, total=None)

    def watch(self, parts: Iterable[tuple[float, T]]) -> Iterator[T]:
        """Yield the second of each; the first is the share of the stage that is then done."""
        for self._share, part in parts:
            yield part

    def advance(self, pairs: int) -> None:
        """Take in that so many more pairs are done."""
        self._pairs += pairs
        self._bar.update(self._task, description=self._rate(), total=1.0, completed=self._share)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._told >= _A_LINE_EVERY:
            self._told = now
            left = (now - self._began) * (1 / max(self._share, 1e-9) - 1)
            say(self._console, f"  {self._rate()}, {duration(left)} left")

    def _rate(self) -> str:
        if not self._pairs:
            return self._name
        rate = self._pairs / max(1e-9, time.monotonic() - self._began)
        return f"{self._name}: {self._pairs:,} pairs, {rate:,.0f}/s"

    def __enter__(self) -> "Stage":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.stop()
        seconds = time.monotonic() - self._began
        if kind is None and seconds >= _WORTH_A_LINE:
            say(self._console, f"  {self._rate()}, took {duration(seconds)}")
