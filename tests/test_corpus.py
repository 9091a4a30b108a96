"""The readers keep lines where they are and name what is wrong; the filters count."""

import gzip
import io
import logging
import sys

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
    filter_lengths,
    filter_text,
    read_lines,
    read_lines_leniently,
    read_pairs,
    read_references,
    read_tsv,
)

BOM = b"\xef\xbb\xbf"


@pytest.fixture
def file(tmp_path):
    def write(content, name="text"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def filtered(pairs, config=None, validation=()):
    report = Report()
    config = config or DataConfig()
    kept = list(filter_text(pairs, config, report=report, validation=set(validation)))
    return kept, report


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
        for read in (read_lines, read_lines_leniently, read_tsv, read_references):
            with pytest.raises(DataError, match=f"{path.name}: cannot be read"):
                list(read(path))


def test_a_training_table_has_two_columns(file):
    assert list(read_tsv(file("a b\tc\n\td\n"))) == [("a b", "c"), ("", "d")]
    with pytest.raises(DataError, match=r"text, line 2: 3 columns; .* exactly two"):
        list(read_tsv(file("a\tb\na\tb\tc\n")))
    with pytest.raises(DataError, match="text, line 1: 1 column;"):
        list(read_tsv(file("a b\n")))


def test_a_validation_table_has_references(file):
    assert list(read_references(file("s\tr\nt\tq\n"))) == [("s", "r"), ("t", "q")]
    assert list(read_references(file("s\tr\tq\n"))) == [("s", "r", "q")]
    with pytest.raises(DataError, match="text, line 1: 1 column instead of 2"):
        list(read_references(file("s\n")))
    with pytest.raises(DataError, match="text, line 2: 3 columns instead of 2"):
        list(read_references(file("s\tr\ns\tr\tq\n")))


def test_a_pair_with_an_empty_side_is_dropped_whole_and_counted():
    blanks = ["", " ", "\t", "\u00a0", "\u3000 \u2003", "\u2028", "\u2581"]
    pairs = [Pair(f"{n}", f"{n}.") for n in range(20)]
    for n, blank in enumerate(blanks):
        pairs[2 * n] = Pair(blank, "x") if n % 2 else Pair("x", blank)
    kept, report = filtered(pairs)
    assert (report.read, report.kept) == (20, 20 - len(blanks))
    assert counts(report.dropped) == {"empty": len(blanks)}
    assert all(pair.target == pair.source + "." for pair in kept)


def test_equal_sides_are_noticed_or_dropped():
    pairs = [Pair("a", "a"), Pair("caf\u00e9", "cafe\u0301"), Pair("a", "b")]
    kept, report = filtered(pairs)
    assert kept == [Pair("a", "a"), Pair("caf\u00e9", "caf\u00e9"), Pair("a", "b")]
    assert (counts(report.noticed), counts(report.dropped)) == ({"equal": 2}, {})
    kept, report = filtered(pairs, DataConfig(drop_equal=True))
    assert kept == [Pair("a", "b")]
    assert (counts(report.noticed), counts(report.dropped)) == ({}, {"equal": 2})


def test_duplicates_are_noticed_or_dropped():
    pairs = [Pair("a", "b"), Pair("a", "b"), Pair("a", "c"), Pair("a", "b"), Pair("b", "a")]
    kept, report = filtered(pairs)
    assert kept == pairs
    assert counts(report.noticed) == {"duplicates": 2}
    kept, report = filtered(pairs, DataConfig(drop_duplicates=True))
    assert kept == [Pair("a", "b"), Pair("a", "c"), Pair("b", "a")]
    assert counts(report.dropped) == {"duplicates": 2}


def test_leaked_pairs_are_dropped_or_noticed():
    pairs = [Pair("a", "b"), Pair("a", "c"), Pair("x\u2028y", "z")]
    validation = [digest(Pair("a", "b")), digest(Pair("x y", "z"))]
    kept, report = filtered(pairs, validation=validation)
    assert kept == [Pair("a", "c")]
    assert counts(report.dropped) == {"leaked": 2}
    kept, report = filtered(pairs, DataConfig(drop_leaked=False), validation)
    assert kept == [Pair("a", "b"), Pair("a", "c"), Pair("x y", "z")]
    assert counts(report.noticed) == {"leaked": 2}


def test_a_dropped_pair_counts_once():
    twice = [Pair("a", "a"), Pair("a", "a"), Pair("b", "b")]
    config = DataConfig(drop_equal=True, drop_duplicates=True)
    kept, report = filtered(twice, config, [digest(Pair("b", "b"))])
    assert kept == []
    assert counts(report.dropped) == {"leaked": 1, "duplicates": 1, "equal": 1}
    assert report.kept == 0


@given(st.text(), st.text(), st.text(), st.text())
def test_a_digest_tells_pairs_apart(a, b, c, d):
    assert (digest(Pair(a, b)) == digest(Pair(c, d))) == (
        [digest(Pair(a, "")), digest(Pair("", b))] == [digest(Pair(c, "")), digest(Pair("", d))]
    )


def test_a_digest_knows_where_the_source_ends():
    assert digest(Pair("a b", "c")) != digest(Pair("a", "b c"))
    assert digest(Pair("a\nb", "c")) != digest(Pair("a", "b\nc"))
    assert 0 <= digest(Pair("a", "b")) < 2**64


def test_long_and_uneven_pairs_are_dropped_whole_and_counted():
    report = Report(read=6)
    rows = {"edge": ([1] * 10, [1] * 10), "even": ([1] * 9, [1]), "too long": ([1] * 11, [1] * 10)}
    rows |= {"too long too": ([1] * 3, [1] * 11), "uneven": ([1], [1] * 10), "none": ([], [1])}
    kept = filter_lengths(rows.values(), DataConfig(max_length=10, max_ratio=9.0), report=report)
    assert list(kept) == [rows["edge"], rows["even"]]
    assert counts(report.dropped) == {"too_long": 2, "bad_ratio": 2}
    assert report.kept == 2


def test_filters_stream():
    def endless():
        while True:
            yield Pair("a", "b")

    report = Report()
    pairs = filter_text(endless(), DataConfig(), report=report, validation=())
    assert [next(pairs) for _ in range(3)] == [Pair("a", "b")] * 3
    assert report.read == 3


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
    assert report.as_dict()["kept"] == 1047
    assert counts(report.as_dict()["dropped"]) == {"too_long": 3}
    assert counts(report.as_dict()["noticed"]) == {"equal": 5}


@pytest.mark.parametrize("setting", [{"max_length": 0}, {"max_ratio": 0.5}])
def test_limits_that_let_nothing_pass_are_refused(setting):
    with pytest.raises(SettingsError, match=next(iter(setting))):
        validate(DataConfig, setting)
