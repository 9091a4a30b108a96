"""What is told of long work, on a terminal and elsewhere."""

import io

import pytest
from rich.console import Console

from transduce import progress
from transduce.progress import Stage, say


class Clock:
    """Stands for the time module: it goes when it is told to."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def lines_of(clock: Clock, *, total: int | None, done: int) -> list[str]:
    """Do 2000 lines every 4 seconds, 6 times."""
    out = io.StringIO()
    with Stage(Console(file=out, width=40), "going", "lines", total=total, done=done) as stage:
        for _ in range(6):
            clock.now += 4
            stage.advance(2000)
    return out.getvalue().splitlines()


def test_elsewhere_a_line_comes_every_ten_seconds_and_one_at_the_end(clock: Clock):
    assert lines_of(clock, total=40_000, done=20_000) == [
        "  going: 26,000 of 40,000 lines, 500/s, 0:00:28 left",
        "  going: 32,000 of 40,000 lines, 500/s, 0:00:16 left",
        "  going: 32,000 of 40,000 lines, 500/s, took 0:00:24",
    ]
    assert lines_of(clock, total=None, done=0) == [
        "  going: 6,000 lines, 500/s",
        "  going: 12,000 lines, 500/s",
        "  going: 12,000 lines, 500/s, took 0:00:24",
    ]


def test_a_share_tells_the_time_left(clock: Clock):
    out = io.StringIO()
    with Stage(Console(file=out, width=40), "going") as stage:
        for _ in stage.watch([(0.25, None), (0.5, None)]):
            clock.now += 6
            stage.advance(600)
    assert out.getvalue().splitlines()[0] == "  going: 1,200 pairs, 100/s, 0:00:12 left"


def test_a_bar_is_drawn_ten_times_a_second_at_most(clock: Clock, monkeypatch: pytest.MonkeyPatch):
    drawn = []
    console = Console(file=io.StringIO(), force_terminal=True)
    with Stage(console, "going", total=1000) as stage:
        monkeypatch.setattr(stage._bar, "update", lambda *_, **named: drawn.append(named))
        for _ in range(1000):
            clock.now += 0.01
            stage.advance(1)
    assert 90 <= len(drawn) <= 101


def test_what_is_said_does_nothing_to_a_terminal():
    out = io.StringIO()
    say(Console(file=out), "a \x1b[2J\x9b b\nand a line more [bold]")
    assert out.getvalue() == "a \\x1b[2J\\x9b b\nand a line more [bold]\n"


def test_a_small_job_is_silent(clock: Clock):
    out = io.StringIO()
    with Stage(Console(file=out), "going") as stage:
        clock.now += 1.9
        stage.advance(5)
    assert out.getvalue() == ""


def test_a_clock_that_jumps_back_harms_nothing(clock: Clock):
    out = io.StringIO()
    with Stage(Console(file=out), "going", total=10) as stage:
        clock.now -= 50
        stage.advance(5)


def test_on_a_terminal_a_line_moves_and_goes(clock: Clock):
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with Stage(console, "going", "lines", total=8) as stage:
        clock.now += 1
        stage.advance(2)
        console.print(end="")  # what else is printed stands above
    assert "going: 2 of 8 lines, 2/s" in out.getvalue()
