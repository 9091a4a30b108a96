"""The readers keep lines where they are and name what is wrong; the filters count."""

import gzip
import io
import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from transduce.config import validate
from transduce.errors import DataError, SettingsError
from transduce.text.corpus import (
    DataConfig,
    Line,
    Pair,
    Report,
    digest,
    read_blocks,
    read_lines,
    read_lines_leniently,
    read_pairs,
    read_references,
    two_columns,
    unfit,
)

BOM = b"\xef\xbb\xbf"


@pytest.fixture
def file(tmp_path):
    def write(content, name="text"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def counts(numbers):
    return {reason: count for reason, count in numbers.items() if count}


@pytest.mark.parametrize(
    "inner",
    [
        "\u2028",
        "\u2029",
        "\x85",
        "\v",
        "\f",
        "\x1c",
        "\x1d",
        "\x1e",
        "\r",
        "\u2028\u2029",
        "\t",
        "\0",
    ],
)
def test_a_record_ends_at_lf_and_nowhere_else(file, inner):
    path = file(f"one{inner}1\ntwo\n")
    assert list(read_lines(path)) == [f"one{inner}1", "two"]
    assert [line.text for line in read_lines_leniently(path)] == [f"one{inner}1", "two"]
    assert list(read_pairs(path, file("1\n2\n", "other"))) == [(f"one{inner}1", "1"), ("two", "2")]


@pytest.mark.parametrize(
    ("content", "records"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\n", ["a", ""]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"\r\n\r\n", ["", ""]),
        (b"a\r", ["a"]),
        (b" a \n\t\n", [" a ", "\t"]),
        (BOM, []),
        (BOM + b"\n", [""]),
        (BOM + b"a\nb", ["a", "b"]),
        (b"a\n" + BOM + b"b", ["a", "\ufeffb"]),
        (BOM + BOM + b"a", ["\ufeffa"]),
    ],
)
def test_records_of(file, content, records):
    assert list(read_lines(file(content))) == records
    assert [line.text for line in read_lines_leniently(file(content))] == records
    assert list(read_lines(file(gzip.compress(content), "text.gz"))) == records


@given(
    st.lists(st.text(st.characters(exclude_characters="\n\r", exclude_categories=["Cs"]))),
    st.sampled_from(["\n", "\r\n"]),
)
def test_what_is_written_is_read(tmp_path_factory, lines, end):
    path = tmp_path_factory.mktemp("lines") / "text"
    path.write_bytes(BOM + "".join(line + end for line in lines).encode())
    assert list(read_lines(path)) == lines


def test_standard_input_is_read_as_utf8_bytes(monkeypatch):
    content = BOM + "Жук и ёж\r\ncaf\u00e9".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))
    assert list(read_lines(None)) == ["Жук и ёж", "café"]


@pytest.mark.parametrize(
    "bad",
    [b"caf\xe9", b"cut \xe2\x82 short", b"\xed\xa0\x80", b"overlong \xc0\xaf", b"\xff\xfeh\0i\0"],
)
def test_bad_bytes_stop_training_with_file_and_line(file, bad):
    path = file(b"fine\n" * 11 + bad + b"\nfine\n")
    with pytest.raises(DataError, match=r"text, line 12: byte \d+ is not UTF-8"):
        list(read_lines(path))
    with pytest.raises(DataError, match="line 12"):
        list(read_pairs(file("x\n" * 13, "other"), path))


@pytest.mark.parametrize("mark", [b"\xff\xfe", b"\xfe\xff"])
def test_utf_16_is_told_by_its_mark(file, mark):
    with pytest.raises(DataError, match="text: the file looks like UTF-16; convert it to UTF-8"):
        list(read_lines(file(mark + b"a\0\nb\0")))
    with pytest.raises(DataError, match="line 2: byte 1 is not UTF-8"):
        list(read_lines(file(b"a\n" + mark)))


def test_bad_bytes_never_cost_a_line_where_none_may_be_lost(file, caplog):
    path = file(b"one\ncut \xe2\x82 short\nthree\n\xed\xa0\x80\n\xc0\xaf\nsix")
    with caplog.at_level(logging.WARNING):
        lines = list(read_lines_leniently(path))
    assert lines[0] == Line(1, "one")
    assert lines[1].text == "cut \ufffd short"
    assert [lines[i].text for i in (0, 2, 5)] == ["one", "three", "six"]
    assert [
        f"line {n}: not UTF-8" in r.getMessage()
        for n, r in zip((2, 4, 5), caplog.records, strict=True)
    ] == [True] * 3


@pytest.mark.parametrize(("sources", "targets"), [(50, 49), (50, 51), (0, 3), (3, 0), (4, 40)])
def test_unequal_counts_name_both_files_and_both_counts(file, sources, targets):
    source, target = file("s\n" * sources, "a.src"), file("t\n" * targets, "a.tgt")
    with pytest.raises(DataError) as error:
        list(read_pairs(source, target))
    assert f"{source} has {sources} lines and {target} has {targets};" in str(error.value)


def test_a_missing_last_line_end_is_no_missing_line(file):
    pairs = read_pairs(file("1\n2\n3", "a"), file("1\n2\n3\n", "b"))
    assert list(pairs) == [("1", "1"), ("2", "2"), ("3", "3")]


def test_files_that_cannot_be_read_are_named(file, tmp_path):
    for path in (
        tmp_path / "missing",
        tmp_path,
        file(b"plain text", "plain.gz"),
        file(gzip.compress(b"a\tb\n" * 1000)[:-9], "cut.gz"),
        file(gzip.compress(b"a\tb\n" * 1000)[:20] + b"\xff" * 20, "bad.gz"),
    ):
        for read in (read_lines, read_lines_leniently, read_references):
            with pytest.raises(DataError, match=f"{path.name}: cannot be read"):
                list(read(path))


def test_a_training_table_has_two_columns():
    path = Path("text")
    assert two_columns(path, 1, "a b\tc") == ("a b", "c")
    assert two_columns(path, 1, "\td") == ("", "d")
    with pytest.raises(DataError, match=r"text, line 2: 3 columns; .* exactly two"):
        two_columns(path, 2, "a\tb\tc")
    with pytest.raises(DataError, match="text, line 1: 1 column;"):
        two_columns(path, 1, "a b")


def test_blocks_of_long_lines_have_fewer_of_them(file):
    line = b"x" * 10_000
    blocks = [block for _, block in read_blocks([file(line + b"\n"), file(b"y", "other")], 4_000)]
    assert blocks == [(1, (line, b"y"))]
    path = file((line + b"\n") * 2_000 + b"a\n" * 9_000)
    blocks = [block for _, block in read_blocks([path, path], 1_000)]
    counts = [files[0].count(b"\n") + 1 for _, files in blocks]
    assert sum(counts) == 11_000
    assert [number for number, _ in blocks] == [1 + sum(counts[:n]) for n in range(len(counts))]
    # From the second block on, which is when the length of a line is known.
    assert max(sum(map(len, files)) for _, files in blocks[1:]) <= 1 << 22
    assert max(counts) == 1_000


def test_a_validation_table_has_references(file):
    assert list(read_references(file("s\tr\nt\tq\n"))) == [("s", "r"), ("t", "q")]
    assert list(read_references(file("s\tr\tq\n"))) == [("s", "r", "q")]
    unequal = file("s\tr\nt\tq\tp\nu\tv\t\t \n")
    assert list(read_references(unequal)) == [("s", "r"), ("t", "q", "p"), ("u", "v")]
    assert list(read_references(file("s\t\tq\nt\t\n"))) == [("s", "", "q"), ("t", "")]
    with pytest.raises(DataError, match="text, line 1: 1 column; a validation file has a source"):
        list(read_references(file("s\n")))
    with pytest.raises(DataError, match="text, line 2: the line is empty; a validation file"):
        list(read_references(file("s\tr\n\n")))


@given(st.text(), st.text(), st.text(), st.text())
def test_a_digest_tells_pairs_apart(a, b, c, d):
    assert (digest(Pair(a, b)) == digest(Pair(c, d))) == (
        [digest(Pair(a, "")), digest(Pair("", b))] == [digest(Pair(c, "")), digest(Pair("", d))]
    )


def test_a_digest_knows_where_the_source_ends():
    assert digest(Pair("a b", "c")) != digest(Pair("a", "b c"))
    assert digest(Pair("a\nb", "c")) != digest(Pair("a", "b\nc"))
    assert 0 <= digest(Pair("a", "b")) < 2**64


def test_long_and_uneven_pairs_are_told_apart():
    rows = {"edge": (10, 10), "even": (9, 1), "too long": (11, 10), "too long too": (3, 11)}
    rows |= {"uneven": (1, 10), "none": (0, 1), "both": (1, 11), "nothing": (0, 0)}
    lengths = np.array(list(rows.values()), np.int32)
    found = unfit(lengths, DataConfig(max_length=10, max_ratio=9.0))
    too_long, bad_ratio = (
        [name for name, is_ in zip(rows, each, strict=True) if is_] for each in found
    )
    assert too_long == ["too long", "too long too", "both"]
    assert bad_ratio == ["uneven", "none"]


def test_the_report_says_how_many_and_why():
    report = Report(read=1050)
    assert report.lines() == ["1,050 pairs read, 1,050 kept"]
    report.dropped["too_long"] = 3
    report.noticed["equal"] = 5
    assert report.lines() == [
        "1,050 pairs read, 1,047 kept",
        "3 dropped: a side has more pieces than max_length",
        "5 noticed: source and target are equal",
    ]
    report.validation, report.validation_empty = 1000, 2
    assert report.lines()[3:] == [
        "1,000 validation pairs read",
        "2 validation pairs dropped: a side is empty",
    ]
    report.validation, report.validation_empty = 1, 1
    assert report.lines()[3:] == [
        "1 validation pair read",
        "1 validation pair dropped: a side is empty",
    ]
    report.validation, report.held_out = 1000, True
    assert report.lines()[3] == "1,000 validation pairs held out of them by a hash of the pair"


@pytest.mark.parametrize("setting", [{"max_length": 0}, {"max_ratio": 0.5}])
def test_limits_that_let_nothing_pass_are_refused(setting):
    with pytest.raises(SettingsError, match=next(iter(setting))):
        validate(DataConfig, setting)
