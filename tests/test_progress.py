"""What is told of a long translation, on a terminal and elsewhere."""

import gzip
import io
from pathlib import Path

import pytest
from rich.console import Console

from transduce.cli import progress as module
from transduce.cli.progress import count_lines, progress


class Clock:
    """Stands for the time module: it goes when it is told to."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def lines_of(file: Path | None, clock: Clock, *, done: int, shown: bool = True) -> list[str]:
    """Translate a window of 2000 lines every 4 seconds, 6 of them."""
    out = io.StringIO()
    console = Console(file=out, width=40)
    with progress(console, file, done=done, shown=shown) as shows:
        for _ in range(6):
            clock.now += 4
            shows.add(2000)
    return out.getvalue().splitlines()


def test_elsewhere_a_line_comes_every_ten_seconds(clock: Clock, tmp_path: Path):
    (tmp_path / "text").write_text("a\n" * 40_000)
    assert lines_of(tmp_path / "text", clock, done=20_000) == [
        "translated 26,000 of 40,000 lines (65%)  500.0 lines/s  0:00:28 left",
        "translated 32,000 of 40,000 lines (80%)  500.0 lines/s  0:00:16 left",
    ]
    assert lines_of(None, clock, done=0) == [
        "translated 6,000 lines  500.0 lines/s",
        "translated 12,000 lines  500.0 lines/s",
    ]
    assert lines_of(None, clock, done=0, shown=False) == []


def test_a_small_job_is_silent(clock: Clock):
    out = io.StringIO()
    with progress(Console(file=out), None, done=0, shown=True) as shows:
        clock.now += 9.9
        shows.add(5)
    assert out.getvalue() == ""


def test_on_a_terminal_a_line_moves_and_goes(clock: Clock, tmp_path: Path):
    (tmp_path / "text").write_text("a\n" * 8)
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100)
    with progress(console, tmp_path / "text", done=0, shown=True) as shows:
        clock.now += 2
        shows.add(2)
        console.print(end="")  # what else is printed stands above
    assert "translated 2 of 8 lines (25%)  1.0 lines/s  0:00:06 left" in out.getvalue()
    assert out.getvalue().endswith("\x1b[2K")  # erased


@pytest.mark.parametrize(
    ("text", "count"),
    [(b"", 0), (b"a", 1), (b"a\n", 1), (b"\n\nb", 3), (b"x\r\n" * 700_000, 700_000)],
)
def test_lines_are_counted(tmp_path: Path, text: bytes, count: int):
    (tmp_path / "plain").write_bytes(text)
    (tmp_path / "zipped").write_bytes(gzip.compress(text))
    assert count_lines(tmp_path / "plain") == count
    assert count_lines(tmp_path / "zipped") == count


def test_what_cannot_be_counted_is_not(tmp_path: Path):
    (tmp_path / "cut").write_bytes(gzip.compress(b"abc" * 99)[:-12])
    assert count_lines(tmp_path / "cut") is None
    assert count_lines(tmp_path / "none") is None
    assert count_lines(Path("/dev/null")) is None
