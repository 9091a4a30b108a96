"""Reads parallel text line by line, says where a file is wrong, and filters pairs while counting.

A record ends at LF (CRLF is read as LF) and nowhere else, in every reader of this package. Files
whose name ends in `.gz` are decompressed. Everything streams: the filters keep eight bytes a pair,
no text.
"""

import gzip
import hashlib
import io
import logging
import sys
import zlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from transduce.config import Settings
from transduce.errors import DataError
from transduce.text.tokenizer import normalize

log = logging.getLogger(__name__)

Ids = Sequence[int]
_BOM = b"\xef\xbb\xbf"


class Pair(NamedTuple):
    """A sentence and its translation."""

    source: str
    target: str


class Line(NamedTuple):
    """One record of a stream that must not lose any: its number, from 1, and its text."""

    number: int
    text: str


def read_lines(path: Path | None) -> Iterator[str]:
    """Yield the records of a UTF-8 file, without their line ends; `None` is standard input.

    A byte order mark at the start of the file is dropped; a last record without LF counts.

    Raises:
        DataError: the file cannot be read, or a line (named) is not UTF-8.
    """
    for number, record in enumerate(read_records(path), start=1):
        yield decode(path, number, record)


def decode(path: Path | None, number: int, record: bytes) -> str:
    """Return the text of a file's record.

    Raises:
        DataError: it is not UTF-8.
    """
    try:
        return record.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{_name(path)}, line {number}: byte {error.start + 1} is not UTF-8"
            f" (0x{record[error.start]:02X}); convert the file to UTF-8 or mend the line"
        ) from None


def read_lines_leniently(path: Path | None) -> Iterator[Line]:
    """Yield every record of a file, `None` being standard input; what is not UTF-8 becomes U+FFFD.

    Each such line is logged as a warning that names it.

    Raises:
        DataError: the file cannot be read.
    """
    for number, record in enumerate(read_records(path), start=1):
        try:
            yield Line(number, record.decode("utf-8"))
        except UnicodeDecodeError:
            log.warning(
                "%s, line %d: not UTF-8; the bad bytes are read as U+FFFD", _name(path), number
            )
            yield Line(number, record.decode("utf-8", errors="replace"))


def read_pairs(source: Path, target: Path) -> Iterator[Pair]:
    """Yield line k of one file with line k of the other.

    Raises:
        DataError: a file cannot be read, or their numbers of lines differ (found at the end).
    """
    sources, targets = read_lines(source), read_lines(target)
    for shorter, (left, right) in enumerate(zip_longest(sources, targets)):
        if left is None or right is None:
            longer = shorter + 1 + sum(1 for _ in (targets if left is None else sources))
            counts = (shorter, longer) if left is None else (longer, shorter)
            raise unequal(source, target, counts)
        yield Pair(left, right)


def unequal(source: Path, target: Path, counts: tuple[int, int]) -> DataError:
    """The error of two files that cannot be a text and its translation."""
    return DataError(
        f"{source} has {counts[0]} lines and {target} has {counts[1]};"
        " line k of one must be the translation of line k of the other"
    )


def read_tsv(path: Path) -> Iterator[Pair]:
    """Yield the pairs of a training file of two columns, source TAB target.

    Raises:
        DataError: the file cannot be read, or a line (named) has not exactly two columns.
    """
    for number, line in enumerate(read_lines(path), start=1):
        yield two_columns(path, number, line)


def two_columns(path: Path, number: int, line: str) -> Pair:
    """Return the pair of a training file's line.

    Raises:
        DataError: it has not exactly two columns.
    """
    columns = line.split("\t")
    if len(columns) != 2:
        raise DataError(
            f"{path}, line {number}: {_columns(columns)}; a training file has exactly two,"
            " source TAB target"
        )
    return Pair(*columns)


def read_references(path: Path) -> Iterator[tuple[str, ...]]:
    """Yield (source, reference, further references ...) from the columns of a validation file.

    Raises:
        DataError: the file cannot be read, or a line (named) has one column or another number of
            them than the first line.
    """
    expected = 0
    for number, line in enumerate(read_lines(path), start=1):
        columns = reference_columns(path, number, line, expected)
        expected = len(columns)
        yield columns


def reference_columns(path: Path, number: int, line: str, expected: int) -> tuple[str, ...]:
    """Return the columns of a validation file's line; 0 expects any number but one.

    Raises:
        DataError: it has one, or not as many as expected.
    """
    columns = tuple(line.split("\t"))
    expected = expected or max(2, len(columns))
    if len(columns) != expected:
        raise DataError(
            f"{path}, line {number}: {_columns(columns)} instead of {expected};"
            " a validation file has a source and the same number of references on each line"
        )
    return columns


class DataConfig(Settings):
    """Which training pairs are used; a pair is dropped whole, never cut on one side.

    `max_length` is in subword pieces a side, `max_ratio` in pieces of the longer side for each
    piece of the shorter. What the `drop_` switches do not drop is still counted. Leaked pairs are
    those that the validation set holds too.
    """

    max_length: int = Field(250, ge=1, le=100_000)
    max_ratio: float = Field(9.0, ge=1)
    drop_equal: bool = False
    drop_duplicates: bool = False
    drop_leaked: bool = True


_REASONS = {
    "empty": "a side is empty",
    "leaked": "also in the validation set",
    "duplicates": "seen before",
    "equal": "source and target are equal",
    "too_long": "a side has more pieces than max_length",
    "bad_ratio": "the sides differ in length by more than max_ratio",
}


@dataclass
class Report:
    """What became of the pairs that were read: how many were dropped, or only noticed, and why.

    A dropped pair counts once, for the first reason found; a noticed one for each reason that the
    settings let pass.
    """

    read: int = 0
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_REASONS, 0))
    noticed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_REASONS, 0))

    @property
    def kept(self) -> int:
        """Pairs that no filter has dropped."""
        return self.read - sum(self.dropped.values())

    def lines(self) -> list[str]:
        """The report for people, one fact a line."""
        return [
            f"{self.read:,} pairs read, {self.kept:,} kept",
            *(f"{self.dropped[r]:,} dropped: {_REASONS[r]}" for r in _REASONS if self.dropped[r]),
            *(f"{self.noticed[r]:,} noticed: {_REASONS[r]}" for r in _REASONS if self.noticed[r]),
        ]

    def as_dict(self) -> dict[str, int | dict[str, int]]:
        """The report for a model card, as plain JSON values."""
        return {"kept": self.kept, **asdict(self)}


def digest(pair: Pair) -> int:
    """Eight bytes that stand for the pair's normal form: equal pairs have equal digests."""
    # The normal form holds no LF, so the two sides cannot run into each other.
    text = f"{normalize(pair.source)}\n{normalize(pair.target)}"
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest())


def filter_text(
    pairs: Iterable[Pair], config: DataConfig, *, report: Report, validation: Collection[int]
) -> Iterator[Pair]:
    """Yield the pairs that are worth encoding, in normal form, and count the others in `report`.

    White space only is empty. `validation` holds the `digest` of each validation pair.
    """
    seen: set[int] = set()
    for raw in pairs:
        report.read += 1
        pair = Pair(normalize(raw.source), normalize(raw.target))
        if not pair.source.strip() or not pair.target.strip():
            report.dropped["empty"] += 1
            continue
        key = digest(pair)
        found = {
            "leaked": (key in validation, config.drop_leaked),
            "duplicates": (key in seen, config.drop_duplicates),
            "equal": (pair.source == pair.target, config.drop_equal),
        }
        seen.add(key)
        reasons = [reason for reason, (holds, _) in found.items() if holds]
        fatal = [reason for reason in reasons if found[reason][1]]
        if fatal:
            report.dropped[fatal[0]] += 1
            continue
        for reason in reasons:
            report.noticed[reason] += 1
        yield pair


def filter_lengths(
    pairs: Iterable[tuple[Ids, Ids]], config: DataConfig, *, report: Report
) -> Iterator[tuple[Ids, Ids]]:
    """Yield the encoded pairs that are short and even enough, and count the others in `report`."""
    for source, target in pairs:
        shorter, longer = sorted((len(source), len(target)))
        if longer > config.max_length:
            report.dropped["too_long"] += 1
        elif longer > config.max_ratio * shorter:
            report.dropped["bad_ratio"] += 1
        else:
            yield source, target


def read_records(path: Path | None) -> Iterator[bytes]:
    """Yield a file's records as bytes, without line ends and without the file's byte order mark.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        if path is None:
            yield from _split(_standard_input())
        elif path.suffix == ".gz" or _is_gzip(path):
            with gzip.open(path, "rb") as file:
                yield from _split(file)
        else:
            with path.open("rb") as file:
                yield from _split(file)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{_name(path)}: cannot be read ({reason})") from None


def _is_gzip(path: Path) -> bool:
    with path.open("rb") as file:
        return path.is_file() and file.read(2) == b"\x1f\x8b"


def _standard_input() -> Iterable[bytes]:
    """Standard input under a handle of our own.

    A thread that waits in sys.stdin.buffer when the program ends makes Python abort.
    """
    if sys.stdin is None:
        raise DataError("standard input is closed; name a file")
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # a program has put something else in its place
        return sys.stdin.buffer


def _split(file: Iterable[bytes]) -> Iterator[bytes]:
    first = True
    for record in file:
        if first and record.startswith(_BOM):
            record = record[len(_BOM) :]
            if not record:  # the file is nothing but the mark
                return
        first = False
        yield record.rstrip(b"\r\n")


def _name(path: Path | None) -> str:
    return "standard input" if path is None else str(path)


def _columns(columns: Sequence[str]) -> str:
    return f"{len(columns)} column{'s' if len(columns) != 1 else ''}"
