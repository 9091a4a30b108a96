"""Says what is being done: lines that stay, and how far a stage of many pairs has come."""

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from transduce.files import printable

T = TypeVar("T")

_SECONDS_BETWEEN_LINES = 10.0  # where no bar can move
_SECONDS_BETWEEN_DRAWINGS = 0.1  # of a bar
_SECONDS_WORTH_A_LINE = 2.0


def say(console: Console, text: str) -> None:
    """Print a line, or several; whatever stands in them does nothing to a terminal.

    That nobody can read it any more is no reason to stop what is being done.
    """
    text = "\n".join(map(printable, text.split("\n")))
    with suppress(OSError):
        console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as `0:01:05`."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


class Stage:
    """A bar with rate and time left on a terminal, a line now and then elsewhere; a context.

    A stage that took a while leaves a line.
    """

    def __init__(
        self,
        console: Console,
        name: str,
        unit: str = "pairs",
        *,
        total: int | None = None,
        done: int = 0,
    ) -> None:
        """Begin with `done` units of `total`; where that is not known, use `watch`."""
        self._console, self._name, self._unit = console, name, unit
        self._total, self._done, self._first = total, done, done
        self._share = 0.0
        self._began = self._told = time.monotonic()
        self._drawn = -math.inf
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

    def advance(self, units: int) -> None:
        """Take in that so many more are done."""
        self._done += units
        if self._total:
            self._share = self._done / self._total
        now = time.monotonic()
        if self._console.is_terminal and now - self._drawn >= _SECONDS_BETWEEN_DRAWINGS:
            self._drawn = now
            whole = 1.0 if self._share else None  # None: nobody knows
            self._bar.update(
                self._task, description=self._rate(), total=whole, completed=self._share
            )
        elif not self._console.is_terminal and now - self._told >= _SECONDS_BETWEEN_LINES:
            self._told = now
            say(self._console, f"  {self._rate()}{self._left(now)}")

    def _rate(self) -> str:
        if self._done == self._first:
            return self._name
        rate = (self._done - self._first) / max(1e-9, time.monotonic() - self._began)
        whole = f" of {self._total:,}" if self._total else ""
        return f"{self._name}: {self._done:,}{whole} {self._unit}, {rate:,.0f}/s"

    def _left(self, now: float) -> str:
        if not self._share or self._done == self._first:
            return ""
        ahead = self._done / self._share - self._done  # units
        seconds = (now - self._began) * ahead / (self._done - self._first)
        return f", {duration(max(0.0, seconds))} left"

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
        if kind is None and seconds >= _SECONDS_WORTH_A_LINE:
            say(self._console, f"  {self._rate()}, took {duration(seconds)}")


class Board:
    """A bar of steps and what stands below it, on a terminal; nothing elsewhere. A context."""

    def __init__(self, console: Console, doing: str, *, total: int, step: int) -> None:
        self.doing, self.step = doing, step
        self.numbers, self.samples = "", ""
        self._shown = console.is_terminal
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("step {task.completed:,} of {task.total:,}, left"),
            TimeRemainingColumn(),
        )
        self._task = self._bar.add_task(doing, total=total, completed=step)
        self._live = Live(get_renderable=self._render, console=console, transient=True)

    def _render(self) -> Group:
        self._bar.update(self._task, description=self.doing, completed=self.step)
        samples = Text(self.samples, style="dim", no_wrap=True, overflow="ellipsis")
        return Group(self._bar, Text(self.numbers), samples)

    def __enter__(self) -> "Board":
        if self._shown:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._shown:
            self._live.stop()
