"""Text is prepared by blocks and in processes as if it were done a pair at a time in one."""

import gzip
import io
import random
import re
import time
from pathlib import Path

import plain
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from transduce.config import validate
from transduce.data.blocks import read_rows
from transduce.errors import DataError
from transduce.progress import Stage
from transduce.text.corpus import DataConfig, Pair, Report, digest
from transduce.train import prepare as prepare_module
from transduce.train.config import TrainConfig
from transduce.train.prepare import Text, _read_validation, prepare

QUIET = Console(quiet=True)
CASES = Path(__file__).parents[2] / "shared" / "requirements" / "cases"


def write(folder, pairs):
    """Two files of these pairs, as settings name them."""
    paths = {name: folder / f"text.{name}" for name in ("source", "target")}
    for path, side in zip(paths.values(), zip(*pairs, strict=True), strict=True):
        path.write_bytes("".join(f"{line}\n" for line in side).encode())
    return paths


def read(folder, config, validation=(), lines=3, processes=0):
    text, report = Text(config, folder / "kept", processes), Report()
    with Stage(QUIET, "") as stage:
        text.read(set(validation), lines, report, stage)
    return text, report


def rows(text, chosen):
    with text.spool.open("rb") as file:
        blocks = [read_rows(file, block) for block in text.rows(chosen)]
    return [Pair(*pair) for sides in blocks for pair in zip(*sides, strict=True)]


@pytest.fixture
def filtered(tmp_path):
    def run(pairs, config=None, validation=()):
        files = write(tmp_path, pairs)
        text, report = read(tmp_path, TrainConfig(**files, data=config or DataConfig()), validation)
        return rows(text, text.kept), report

    return run


def counts(numbers):
    return {reason: count for reason, count in numbers.items() if count}


def test_a_pair_with_an_empty_side_is_dropped_whole_and_counted(filtered):
    blanks = ["", " ", "\t", "\u00a0", "\u3000 \u2003", "\u2028", "\u2581"]
    pairs = [Pair(f"{n}", f"{n}.") for n in range(20)]
    for n, blank in enumerate(blanks):
        pairs[2 * n] = Pair(blank, "x") if n % 2 else Pair("x", blank)
    kept, report = filtered(pairs)
    assert (report.read, report.kept) == (20, 20 - len(blanks))
    assert counts(report.dropped) == {"empty": len(blanks)}
    assert all(pair.target == pair.source + "." for pair in kept)


def test_equal_sides_are_noticed_or_dropped(filtered):
    pairs = [Pair("a", "a"), Pair("caf\u00e9", "cafe\u0301"), Pair("a", "b")]
    kept, report = filtered(pairs)
    assert kept == [Pair("a", "a"), Pair("caf\u00e9", "caf\u00e9"), Pair("a", "b")]
    assert (counts(report.noticed), counts(report.dropped)) == ({"equal": 2}, {})
    kept, report = filtered(pairs, DataConfig(drop_equal=True))
    assert kept == [Pair("a", "b")]
    assert (counts(report.noticed), counts(report.dropped)) == ({}, {"equal": 2})


def test_duplicates_are_noticed_or_dropped(filtered):
    pairs = [Pair("a", "b"), Pair("a", "b"), Pair("a", "c"), Pair("a", "b"), Pair("b", "a")]
    kept, report = filtered(pairs)
    assert kept == pairs
    assert counts(report.noticed) == {"duplicates": 2}
    kept, report = filtered(pairs, DataConfig(drop_duplicates=True))
    assert kept == [Pair("a", "b"), Pair("a", "c"), Pair("b", "a")]
    assert counts(report.dropped) == {"duplicates": 2}


def test_leaked_pairs_are_dropped_or_noticed(filtered):
    pairs = [Pair("a", "b"), Pair("a", "c"), Pair("x\u2028y", "z")]
    validation = [digest(Pair("a", "b")), digest(Pair("x y", "z"))]
    kept, report = filtered(pairs, validation=validation)
    assert kept == [Pair("a", "c")]
    assert counts(report.dropped) == {"leaked": 2}
    kept, report = filtered(pairs, DataConfig(drop_leaked=False), validation)
    assert kept == [Pair("a", "b"), Pair("a", "c"), Pair("x y", "z")]
    assert counts(report.noticed) == {"leaked": 2}


def test_a_dropped_pair_counts_once(filtered):
    twice = [Pair("a", "a"), Pair("a", "a"), Pair("b", "b")]
    config = DataConfig(drop_equal=True, drop_duplicates=True)
    kept, report = filtered(twice, config, [digest(Pair("b", "b"))])
    assert kept == []
    assert counts(report.dropped) == {"leaked": 1, "duplicates": 1, "equal": 1}
    assert report.kept == 0


ODD = ["a", "b", " ", "\t", "\u00e9", "e", "\u0301", "\u2028", "\x85", "\r", "\x1c", "\ufeff"]
LINE = st.text(st.sampled_from([*ODD, "\u2581", "\u00a0", "\U0001f600", "\0"]), max_size=3)
PAIRS = st.lists(st.tuples(LINE, LINE), min_size=1, max_size=12)
SWITCHES = st.fixed_dictionaries(
    {f"drop_{name}": st.booleans() for name in ("equal", "duplicates", "leaked")}
)


@given(PAIRS, PAIRS, SWITCHES, st.integers(1, 5), st.booleans())
def test_kept_pairs_and_counts_are_those_of_plain_python(
    tmp_path_factory, pairs, known, switches, lines, crlf
):
    # Made here: what checks the types draws random numbers, which hypothesis must not see.
    data = DataConfig(**switches)
    folder = tmp_path_factory.mktemp("text")
    # Some of the text's own pairs are in the validation set.
    known = {digest(Pair(*pair)) for pair in [*known, *pairs[:2]]}
    files = write(folder, pairs)
    if crlf:
        path = files["source"]
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    config = TrainConfig(**files, data=data)
    expected = Report()
    kept = list(plain.filter_text(plain.read(config), data, report=expected, validation=known))
    text, report = read(folder, config, known, lines)
    assert rows(text, text.kept) == kept
    assert report == expected
    assert text.count == len(kept)
    assert text.characters == len(
        {character for pair in kept for side in pair for character in side}
    )


def error_of(call):
    try:
        call()
    except DataError as error:
        return str(error)
    return None


FAULTY = st.lists(
    st.sampled_from([b"a", b"", b"b\xe2\x82", b"\xff", b"a\tb", b"a\tb\tc", b"a\r", b"\tb"]),
    max_size=9,
)


TABLE = st.lists(
    st.sampled_from([*[b"a\tb"] * 4, b"\tb\r", b"a\tb\tc", b"a", b"\xff\tb"]), max_size=9
)


@given(FAULTY, FAULTY, TABLE, st.integers(1, 5), st.booleans())
@example([b"a"] * 3, [b"a"] * 4, [b"a\tb\tc"], 3, False)
@example([b"a"] * 3, [b"a"] * 3 + [b""], [], 2, True)
@example([b"a"] * 4, [b"a"] * 3 + [b"\xff"], [b"a\tb", b"a\tb\tc"], 3, False)
@example([b"a"] * 3, [b"a"] * 6 + [b"\xff"], [b"a\tb\tc", b"a"], 3, False)
def test_faults_are_told_as_by_the_plain_readers(
    tmp_path_factory, source, target, table, lines, last
):
    folder = tmp_path_factory.mktemp("text")
    ends = b"\n" if last else b""
    paths = {name: folder / name for name in ("source", "target", "tsv")}
    paths["source"].write_bytes(b"\n".join(source) + ends)
    paths["target"].write_bytes(b"\n".join(target) + ends)
    paths["tsv"].write_bytes(b"\n".join(table) + ends)
    for names in (["source", "target"], ["tsv"]):
        config = TrainConfig(**{name: paths[name] for name in names})
        expected = error_of(lambda config=config: list(plain.read(config)))
        assert error_of(lambda config=config: read(folder, config, lines=lines)) == expected


@pytest.mark.parametrize("cut", [True, False])
def test_a_fault_late_in_compressed_text_is_told_by_workers_too(tmp_path, cut):
    text = b"a\tb\n" * 1000 + b"\xe9\tb\n" + b"a\tb\n" * 1000
    path = tmp_path / "text.gz"
    path.write_bytes(gzip.compress(b"a\tb\n" * 2000)[:-9] if cut else gzip.compress(text))
    expected = "text.gz: cannot be read" if cut else "text.gz, line 1001: byte 1 is not UTF-8"
    with pytest.raises(DataError, match=expected):
        read(tmp_path, TrainConfig(tsv=path), lines=30, processes=2)


def mixture(pairs=900, seed=0):
    """Pairs of every kind there is a count for, in no order."""
    draw = random.Random(seed)
    words = [
        "ich",
        "gehe",
        "na\u00efve",
        "nai\u0308ve",
        "\u2028",
        "x\r",
        "\u4e2d\u6587",
        "der",
        "\ufeff",
    ]

    def line(most):
        return " ".join(draw.choice(words) for _ in range(draw.randint(0, most)))

    text = [(line(9), line(9)) for _ in range(pairs)]
    text += [(same, same) for same, _ in text[:20]] + text[30:60]
    text += [("kurz", line(60)) for _ in range(20)]
    text[100:105] = [(f"ich {chr(0x3400 + i)}", f"gehe {i}") for i in range(5)]  # spelled in bytes
    text += [(f"{chr(0x3500)} gehe", line(90))]
    draw.shuffle(text)
    return text


def output(folder):
    names = ("valid.jsonl", "tokenizer.model", "source.model", "target.model", "train/ids.bin")
    return {
        Path(name).name: (folder / name).read_bytes() for name in names if (folder / name).exists()
    }


@pytest.mark.parametrize(
    ("kind", "shared", "processes"),
    [
        ("files", True, 0),
        ("files", True, 3),
        ("files", False, 2),
        ("tsv.gz", True, 0),
        ("tsv.gz", True, 1),
        ("held out", True, 0),
        ("held out", True, 2),
    ],
)
def test_bytes_do_not_depend_on_processes(tmp_path, processes, kind, shared):
    pairs = mixture()
    if kind == "tsv.gz":
        pairs = [(s.replace("\t", " "), t.replace("\t", " ")) for s, t in pairs]
        path = tmp_path / "text.tsv.gz"
        path.write_bytes(gzip.compress("".join(f"{s}\t{t}\r\n" for s, t in pairs).encode()))
        files = {"tsv": path}
    else:
        files = write(tmp_path, pairs)
    if kind != "held out":
        (tmp_path / "valid").mkdir()
        valid = write(tmp_path / "valid", [*pairs[5:25], ("neu", "new")])
        files |= {f"valid_{name}": path for name, path in valid.items()}
    tree = {name: str(path) for name, path in files.items()} | {
        "data": {"drop_duplicates": True, "max_length": 60, "max_ratio": 4.0},
        "tokenizer": {"vocab_size": 320, "shared": shared},
    }
    config = validate(TrainConfig, tree)
    expected = plain.prepare(config, tmp_path / "plain", vocab_size=320)
    data = prepare(config, tmp_path / "data", {}, QUIET, processes=processes, lines=37)
    assert output(tmp_path / "data") == output(tmp_path / "plain")
    assert all(expected["dropped"][r] for r in ("empty", "duplicates", "too_long", "bad_ratio"))
    assert expected["single_bytes"]
    assert expected.items() <= data.report.items()


@pytest.mark.skipif(not CASES.exists(), reason="the cases are not here")
@pytest.mark.parametrize("lines", [1, 2, 3, 5, 4000])
def test_the_cases_of_public_bug_reports(tmp_path, lines):
    def of(name):
        files = {
            side: CASES / f"{name}.{end}" for side, end in (("source", "src"), ("target", "tgt"))
        }
        text, report = read(tmp_path, TrainConfig(**files), lines=lines)
        return rows(text, text.kept), report

    for name, kept in (
        ("R01.train", 60),
        ("R03.nofinal", 50),
        ("R04.train", 30),
        ("R07.train", 50),
    ):
        pairs, report = of(name)
        assert (report.read, report.kept) == (kept, kept)
        assert all(len({re.search(r"\d{4}", side)[0] for side in pair}) == 1 for pair in pairs)
    assert counts(report.noticed) == {"equal": 5}
    assert of("R04.train")[0][0].source.startswith("item 0001")
    for name, told in (("R03.short", "has 50 lines and .* has 49"), ("R03.blankend", "50 .* 51")):
        with pytest.raises(DataError, match=told):
            of(name)
    with pytest.raises(DataError, match="line 12"):
        of("R05.train")
    pairs, report = of("R06.train")
    assert (report.kept, counts(report.dropped)) == (35, {"empty": 5})
    assert all(len({re.search(r"\d{4}", side)[0] for side in pair}) == 1 for pair in pairs)


def chosen(tmp_path, pairs, most, monkeypatch):
    monkeypatch.setattr(prepare_module, "LEARNT_FROM", most)
    text, _ = read(tmp_path, TrainConfig(**write(tmp_path, pairs)))
    return rows(text, text.to_learn_subwords())


@pytest.mark.parametrize("most", [1, 2, 50, 99, 100, 101])
def test_subwords_are_learnt_from_at_most_so_many_pairs_chosen_by_digest(
    tmp_path, monkeypatch, most
):
    pairs = [Pair(f"{n}", f"{n}.") for n in range(100)]
    found = chosen(tmp_path, pairs, most, monkeypatch)
    largest = sorted(pairs, key=digest)[-most:]
    assert found == [pair for pair in pairs if pair in largest]
    random.Random(1).shuffle(pairs)
    assert set(chosen(tmp_path, pairs, most, monkeypatch)) == set(found)


def test_copies_of_a_pair_are_no_way_around_that_limit(tmp_path, monkeypatch):
    pairs = [Pair("a", "b")] * 30 + [Pair("c", "d")]
    assert len(chosen(tmp_path, pairs, 10, monkeypatch)) == 10


def test_what_is_learnt_from_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_module, "LEARNT_FROM", 500)
    screen = io.StringIO()
    files = {name: str(path) for name, path in write(tmp_path, mixture()).items()}
    config = validate(TrainConfig, files | {"tokenizer": {"vocab_size": 320}})
    prepare(config, tmp_path / "data", {}, Console(file=screen, width=200), lines=100)
    assert "subwords are learnt from 500 of the 766 pairs" in screen.getvalue()


@pytest.mark.parametrize("copies", [1, 200])
def test_something_is_held_out_and_something_left(tmp_path, copies):
    least, most = sorted([Pair("a", "b"), Pair("c", "d")], key=digest)
    for pairs in ([least] * copies + [most], [least] + [most] * copies):
        text, _ = read(tmp_path, TrainConfig(**write(tmp_path, pairs)))
        assert text.hold_out(Report()) == [(least.source, (least.target,))]
        assert set(rows(text, text.kept)) == {most}


def test_one_pair_is_too_few_to_hold_out(tmp_path):
    text, _ = read(tmp_path, TrainConfig(**write(tmp_path, [Pair("a", "b")] * 3)))
    with pytest.raises(DataError, match="too few different pairs to learn from and validate, of 3"):
        text.hold_out(Report())


def test_validation_text_has_the_normal_form_that_outputs_have(tmp_path):
    rows = [("été", ["l\u2019e\u0301cole", "E\u0301cole"]), ("a", ["", "b"]), ("c", [" ", ""])]
    table = tmp_path / "valid.tsv"
    table.write_text("".join("\t".join((source, *texts)) + "\n" for source, texts in rows))
    files = write(tmp_path, [Pair(f"a {n}", f"b {n}") for n in range(20)])
    config = TrainConfig(**files, valid_tsv=table)
    examples, empty = _read_validation(config)
    assert examples == [("été", ("l\u2019école", "École")), ("a", ("b",))]
    assert empty == 1


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


def staged(clock, seconds, **console):
    """What is shown of a stage of ten parts that each take so long."""
    screen = io.StringIO()
    with Stage(Console(file=screen, width=100, **console), "reading") as stage:
        for part in stage.watch((n / 10, n) for n in range(1, 11)):
            clock[0] += seconds
            stage.advance(1000 * bool(part))
    return screen.getvalue()


def test_a_long_stage_tells_how_far_it_is_every_ten_seconds(clock):
    told = staged(clock, 4.0).splitlines()
    assert told == [
        "  reading: 3,000 pairs, 250/s, 0:00:28 left",
        "  reading: 6,000 pairs, 250/s, 0:00:16 left",
        "  reading: 9,000 pairs, 250/s, 0:00:04 left",
        "  reading: 10,000 pairs, 250/s, took 0:00:40",
    ]


def test_a_short_or_silent_stage_tells_nothing(clock):
    assert staged(clock, 0.1) == ""
    assert staged(clock, 4.0, quiet=True) == ""


def test_a_bar_moves_on_a_terminal():
    screen = io.StringIO()
    console = Console(file=screen, width=100, force_terminal=True)
    with Stage(console, "reading") as stage:
        for _ in stage.watch([(0.5, None)]):
            stage.advance(1234)
            stage._bar.refresh()
    assert "reading: 1,234 pairs" in screen.getvalue()
    assert "━" in screen.getvalue()
