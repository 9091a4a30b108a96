"""Reads parallel text line by line, says where a file is wrong, and judges pairs while counting.

A record ends at LF (CRLF is read as LF) and nowhere else, in every reader of this package. Files
whose name ends in `.gz`, or that begin as gzip does, are decompressed. Everything streams: the
filters know eight bytes of a pair, no text.
"""

import gzip
import hashlib
import io
import logging
import sys
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, count, islice, repeat, starmap
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, UInt64
from pydantic import Field

from transduce.config import Settings
from transduce.errors import DataError
from transduce.text.tokenizer import normalize

log = logging.getLogger(__name__)

UTF16 = (b"\xff\xfe", b"\xfe\xff")
"""Its byte order marks: no text in UTF-8 begins with one."""
_BOM, _GZIP = b"\xef\xbb\xbf", b"\x1f\x8b"
_LARGEST_BLOCK = 1 << 22
"""Bytes: how much is read at a time when lines are long, once that is known."""


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
    return _decode_all(path, 1, read_records(path))


def _decode_all(path: Path | None, first: int, records: Iterable[bytes]) -> Iterator[str]:
    return map(decode, repeat(path), count(first), records)


def decode(path: Path | None, number: int, record: bytes) -> str:
    """Return the text of a file's record.

    Raises:
        DataError: it is not UTF-8.
    """
    try:
        return record.decode("utf-8")
    except UnicodeDecodeError as error:
        if number == 1 and record.startswith(UTF16):
            raise DataError(
                f"{_name(path)}: the file looks like UTF-16; convert it to UTF-8, e.g. "
                "iconv -f utf-16 -t utf-8"
            ) from None
        raise DataError(
            f"{_name(path)}, line {number}: byte {error.start + 1} is not UTF-8"
            f" (0x{record[error.start]:02X}); convert the file to UTF-8 or mend the line"
        ) from None


def read_lines_leniently(
    path: Path | None, opened: io.BufferedReader | None = None, *, skip: int = 0
) -> Iterator[Line]:
    """Yield every record of a file, `None` being standard input; what is not UTF-8 becomes U+FFFD.

    Each such line is logged as a warning that names it. The first `skip` lines are left out.
    `opened` is that file where the caller wants to know how far it is read.

    Raises:
        DataError: the file cannot be read, or is UTF-16.
    """
    for number, record in islice(enumerate(read_records(path, opened), start=1), skip, None):
        try:
            yield Line(number, record.decode("utf-8"))
        except UnicodeDecodeError:
            if number == 1 and record.startswith(UTF16):
                decode(path, number, record)
            log.warning(
                "%s, line %d: not UTF-8; the bad bytes are read as U+FFFD", _name(path), number
            )
            yield Line(number, record.decode("utf-8", errors="replace"))


def read_pairs(source: Path, target: Path) -> Iterator[Pair]:
    """Yield line k of one file with line k of the other.

    Raises:
        DataError: a file cannot be read, or their numbers of lines differ (found at the end).
    """
    for _, block in read_blocks((source, target), 1_000):
        yield from starmap(Pair, block_lines((source, target), *block))


def unequal(source: Path, target: Path, counts: tuple[int, int]) -> DataError:
    """The error of two files that cannot be a text and its translation."""
    return DataError(
        f"{source} has {counts[0]} lines and {target} has {counts[1]};"
        " line k of one must be the translation of line k of the other"
    )


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
        DataError: the file cannot be read, or a line (named) has no reference.
    """
    return map(reference_columns, repeat(path), count(1), read_lines(path))


def reference_columns(path: Path, number: int, line: str) -> tuple[str, ...]:
    """Return the columns of a validation file's line; empty ones at its end are no references.

    Raises:
        DataError: it has no column but the source.
    """
    columns = line.split("\t")
    if len(columns) < 2:
        raise DataError(
            f"{path}, line {number}: {_columns(columns)};"
            " a validation file has a source and one reference or more, source TAB reference"
        )
    while len(columns) > 2 and not columns[-1].strip():  # as tables of unequal rows are exported
        columns.pop()
    return tuple(columns)


class DataConfig(Settings):
    """Which training pairs are used; a pair is dropped whole, never cut on one side.

    `max_length` is in subword pieces a side, `max_ratio` in pieces of the longer side for each
    piece of the shorter. What the `drop_` switches do not drop is still counted. Leaked pairs are
    those that the validation set holds too.
    """

    max_length: int = Field(250, ge=1, le=100_000)
    max_ratio: float = Field(9.0, ge=1, le=1e9)
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
    validation: int = 0
    references: int = 0
    """Of a validation pair, at most."""
    validation_empty: int = 0
    held_out: bool = False
    subwords: int = 0
    """Of the pairs to learn from, both sides."""
    single_bytes: int = 0
    """Those of them that are one byte of a character which the vocabulary lacks."""
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_REASONS, 0))
    noticed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_REASONS, 0))

    @property
    def kept(self) -> int:
        """Pairs that no filter has dropped."""
        return self.read - sum(self.dropped.values())

    def lines(self) -> list[str]:
        """The report for people, one fact a line."""
        lines = [f"{many(self.read, 'pair')} read, {self.kept:,} kept"]
        for what, numbers in (("dropped", self.dropped), ("noticed", self.noticed)):
            lines += [f"{n:,} {what}: {_REASONS[reason]}" for reason, n in numbers.items() if n]
        if self.subwords and (share := self.single_bytes / self.subwords) >= 0.01:
            what = "single bytes, of characters that the vocabulary lacks"
            lines.append(f"{share:.0%} of the subwords are {what}")
        if self.validation:
            origin = "held out of them by a hash of the pair" if self.held_out else "read"
            lines.append(f"{many(self.validation, 'validation pair')} {origin}")
            if self.references > 1:
                lines[-1] += f", each with up to {self.references} references"
        if self.validation_empty:
            dropped = many(self.validation_empty, "validation pair")
            lines.append(f"{dropped} dropped: a side is empty")
        return lines


def key(source: str, target: str) -> bytes:
    """Eight bytes that stand for a pair in normal form."""
    # The normal form holds no LF, so the two sides cannot run into each other.
    return hashlib.blake2b(f"{source}\n{target}".encode(), digest_size=8).digest()


def digest(pair: Pair) -> int:
    """The `key` of a pair's normal form as a number: equal pairs have equal digests."""
    return int.from_bytes(key(normalize(pair.source), normalize(pair.target)))


def judge(
    digests: UInt64[np.ndarray, " n"],
    leaked: Bool[np.ndarray, " n"],
    equal: Bool[np.ndarray, " n"],
    config: DataConfig,
    report: Report,
) -> Bool[np.ndarray, " n"]:
    """Decide which pairs with text on both sides are worth encoding, and count the others."""
    found = {
        "leaked": (leaked, config.drop_leaked),
        "duplicates": (_seen_before(digests), config.drop_duplicates),
        "equal": (equal, config.drop_equal),
    }
    kept = np.ones(len(digests), np.bool_)
    for reason, (holds, fatal) in found.items():
        if fatal:
            report.dropped[reason] += int(np.count_nonzero(kept & holds))
            kept &= ~holds
    for reason, (holds, fatal) in found.items():
        if not fatal:
            report.noticed[reason] += int(np.count_nonzero(kept & holds))
    return kept


def _seen_before(digests: UInt64[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    order = np.argsort(digests, kind="stable")  # equal ones stay in the order of the text
    ordered = digests[order]
    repeated = np.zeros(len(digests), np.bool_)
    repeated[order[1:]] = ordered[1:] == ordered[:-1]
    return repeated


def unfit(
    lengths: Int32[np.ndarray, "n 2"], config: DataConfig
) -> tuple[Bool[np.ndarray, " n"], Bool[np.ndarray, " n"]]:
    """Return which pairs of so many pieces are too long, and which others too uneven."""
    longer = lengths.max(axis=1)
    too_long = longer > config.max_length
    return too_long, ~too_long & (longer > config.max_ratio * lengths.min(axis=1))


Block = tuple[int, tuple[bytes, ...]]
"""The number of its first line, from 1, and the same lines of each file, raw, joined by LF."""


def read_blocks(paths: Sequence[Path], lines: int) -> Iterator[tuple[float, Block]]:
    """Yield the share of the files that is read, and the block of at most so many lines just read.

    Raises:
        DataError: a file cannot be read, or two of them differ in their numbers of lines.
    """
    with ExitStack() as stack:
        try:
            size = max(1, sum(path.stat().st_size for path in paths))
            files = [stack.enter_context(path.open("rb")) for path in paths]
        except OSError as error:
            raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from None
        records = [read_records(path, file) for path, file in zip(paths, files, strict=True)]
        number, most = 1, lines
        while any(lists := [list(islice(each, most)) for each in records]):
            if common := min(map(len, lists)):
                block = tuple(b"\n".join(each[:common]) for each in lists)
                yield sum(file.tell() for file in files) / size, (number, block)
                most = min(lines, max(1, common * _LARGEST_BLOCK // (1 + sum(map(len, block)))))
                number += common
            if any(len(each) > common for each in lists):
                rests = map(chain, (each[common:] for each in lists), records)
                texts = map(_decode_all, paths, repeat(number), rests)
                source, target = (number - 1 + sum(1 for _ in each) for each in texts)
                raise unequal(paths[0], paths[1], (source, target))


def block_lines(paths: Sequence[Path], first: int, files: Sequence[bytes]) -> Iterator[tuple]:
    """Yield the texts of line k of each file of a block.

    Raises:
        DataError: a line (named) is not UTF-8.
    """
    records = (file.split(b"\n") for file in files)
    return zip(*map(_decode_all, paths, repeat(first), records), strict=True)


def read_records(path: Path | None, opened: io.BufferedReader | None = None) -> Iterator[bytes]:
    """Yield a file's records as bytes, without line ends and without the file's byte order mark.

    `opened` is that file where the caller wants to know how far it is read.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        if opened is None:
            with path.open("rb") if path else _standard_input() as file:
                yield from read_records(path, file)
        elif (path and path.suffix == ".gz") or opened.peek(2).startswith(_GZIP):
            yield from _split(gzip.GzipFile(fileobj=opened))
        else:
            yield from _split(opened)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"{_name(path)}: cannot be read ({reason})") from None


def _standard_input() -> io.BufferedReader:
    """Standard input under a handle of our own.

    A thread that waits in sys.stdin.buffer when the program ends makes Python abort.
    """
    if sys.stdin is None:
        raise DataError("standard input is closed; name a file")
    try:
        return open(sys.stdin.fileno(), "rb", closefd=False)
    except io.UnsupportedOperation:  # a program has put something else in its place
        return io.BufferedReader(io.BytesIO(sys.stdin.buffer.read()))  # and holds it in memory


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


def many(number: int, what: str) -> str:
    """A number of things, in words."""
    return f"{number:,} {what}{'s' if number != 1 else ''}"


def _columns(columns: Sequence[str]) -> str:
    return "the line is empty" if tuple(columns) == ("",) else many(len(columns), "column")
