"""The command line: exit status, one line for an error, lines out as lines in."""

import functools
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command import refused, transduce
from corpora import SMALL, reversals

from transduce import train
from transduce.config import validate
from transduce.decode.search import SearchOptions
from transduce.decode.stream import translate_stream
from transduce.decode.translator import Translator
from transduce.progress import Stage
from transduce.train.config import TrainConfig


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose model reverses letters, more or less."""
    folder = tmp_path_factory.mktemp("cli")
    source, target = reversals(folder, pairs=600)
    tree = SMALL | {"source": str(source), "target": str(target), "out": str(folder / "run")}
    tree["train"] = SMALL["train"] | {"max_steps": 150, "validate_every": 150, "warmup": 50}
    tree["train"] |= {"save_every": 150, "learning_rate_scale": 2.0}
    tree["model"] = SMALL["model"] | {"dropout": 0.0, "max_length": 64}
    tree["data"] = {"max_length": 63}
    train(validate(TrainConfig, tree))
    return folder / "run"


def started(
    *words: str | Path, text: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """The program in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "transduce", *map(str, words)],
        input=text,
        capture_output=True,
        timeout=120,
        env={**os.environ, **(env or {})},
    )


def test_version_and_help():
    assert transduce("--version").text.startswith("transduce 0.")
    for verb in ("demo", "train", "translate", "evaluate", "score"):
        assert verb in transduce("--help").text
    assert "[transduce-run]" in transduce("train", "--help").text  # not taken for markup


@pytest.mark.parametrize("words", [["translate"], ["translate", "--oops", "x"], ["fly"]])
def test_wrong_usage_is_one_line_and_status_2(words: list[str]):
    refused(*words)


def test_a_process_ends_with_the_status_of_its_error():
    found = started("translate")
    assert found.returncode == 2
    assert found.stdout == b""
    assert found.stderr.startswith(b"error: ")
    assert found.stderr.count(b"\n") == 1


def test_no_verb_shows_the_help():
    found = transduce()
    assert found.status == 0
    assert "translate" in found.text


def test_as_many_lines_out_as_in_and_blanks_in_place(model: Path):
    text = b"\na b\n\n \t \r\nc d e\n\xe2\x80\xa8\nf g\n\n"
    found = transduce("translate", model, text=text)
    assert found.status == 0
    out = found.lines
    assert len(out) == 8
    assert [out[i] for i in (0, 2, 3, 5, 7)] == [""] * 5
    assert any(out)


@pytest.mark.parametrize(("text", "count"), [(b"", 0), (b"\n", 1), (b"\xef\xbb\xbf", 0), (b"a", 1)])
def test_the_smallest_inputs(model: Path, text: bytes, count: int):
    found = transduce("translate", model, text=text)
    assert found.status == 0
    assert len(found.lines) == count


def test_bad_bytes_lose_no_line_and_are_named(model: Path):
    found = transduce("translate", model, text=b"a b\nc \xff d\ne f\n")
    assert found.status == 0
    assert len(found.lines) == 3
    assert "line 2" in found.errors


def test_a_long_line_is_cut_named_and_harms_no_other(model: Path):
    short = [b"a b c", b"d e"]
    long = b"a b c d " * 200
    alone = transduce("translate", model, text=b"\n".join(short)).lines
    found = transduce("translate", model, text=b"\n".join([short[0], long, short[1]]))
    assert found.status == 0
    assert "line 2" in found.errors
    assert "63" in found.errors
    first, _, last = found.lines
    assert [first, last] == alone


def test_json_lines_flag_what_was_cut(model: Path):
    text = b"a b c\n\n" + b"a b c d " * 200
    found = transduce("translate", model, "--format", "jsonl", "--n-best", "2", text=text)
    records = [json.loads(line) for line in found.lines]
    assert [record["line"] for record in records] == [1, 2, 3]
    assert [record["source_cut"] for record in records] == [False, False, True]
    first, empty, _ = records
    assert len(first["token_log_probs"]) == len(first["tokens"]) + 1  # and the end's
    assert first["log_prob"] == pytest.approx(sum(first["token_log_probs"]), abs=1e-4)
    assert first["score"] >= first["alternatives"][0]["score"]
    assert empty["text"] == ""
    assert empty["alternatives"] == []


def test_n_best_as_text_is_numbered(model: Path):
    found = transduce("translate", model, "--n-best", "3", "--beam", "3", text=b"a b\nc d\n")
    rows = [line.split(" ||| ") for line in found.lines]
    assert [row[0] for row in rows] == ["1", "1", "1", "2", "2", "2"]
    scores = [float(row[2]) for row in rows[:3]]
    assert scores == sorted(scores, reverse=True)


def test_samples_are_those_of_seed_and_line(model: Path):
    text = b"a b c d\n\n" + b"a b c d e\n" * 6
    options = ["--sample", "--temperature", "3", "--top-k", "40", "--max-length", "12"]

    def run(*more: str) -> list[str]:
        found = transduce("translate", model, *options, *more, text=text)
        assert found.status == 0, found
        return found.lines

    first = run("--seed", "4")
    assert len(set(first)) > 5  # one text, and each line its own
    assert first[1] == ""
    assert run("--seed", "4", "--batch-tokens", "1") == first
    assert run("--seed", "5") != first
    assert run() == run("--seed", "0")
    several = [row.split(" ||| ") for row in run("--seed", "4", "--n-best", "3")]
    assert [row[0] for row in several if row[0] != "2"] == [n for n in "1345678" for _ in range(3)]
    assert [row[1] for row in several if row[0] != "2"][::3] == [first[0], *first[2:]]


def test_a_sample_among_one_is_greedy_search(model: Path):
    text = b"a b c\nd e f g\nb b\n"
    greedy = transduce("translate", model, "--beam", "1", text=text)
    assert transduce("translate", model, "--sample", "--top-k", "1", text=text).out == (greedy.out)


def test_an_ensemble_of_a_model_and_itself_translates_as_it_does(model: Path):
    text = b"a b c\nd e f g\nb b\n"
    alone = transduce("translate", model, text=text)
    twice = transduce("translate", model, "--ensemble", model, "--ensemble", model, text=text)
    assert twice.out == alone.out
    assert twice.status == 0


def test_the_help_tells_the_defaults():
    text = " ".join(transduce("translate", "--help", env={"COLUMNS": "200"}).text.split())
    plain = SearchOptions()
    for option, default in (
        ("beam", plain.beam),
        ("alpha", plain.alpha),
        ("n-best", plain.n_best),
        ("temperature", plain.temperature),
        ("seed", plain.seed),
        ("max-length", f"source + {plain.extra_length}"),
    ):
        told = text.partition(f"--{option} ")[2].partition("]")[0].rpartition("[")[2]
        assert told == str(default).removesuffix(".0"), option


@pytest.mark.parametrize("beam", [1, 5])
def test_a_trained_model_translates_a_line_alike_in_any_batch(model: Path, beam: int):
    texts = ["a b c d", "h", "a b c d e f g h " * 5, "g g", "", "e f", "h g f e d c", "¿?", "b a"]
    translator = Translator.load(model)
    options = SearchOptions(beam=beam)
    everything = translator.translate_lines(texts, options)
    for size in (1, 2, 9):
        for order in (1, -1):
            given = texts[::order]
            found = [
                one
                for i in range(0, 9, size)
                for one in translator.translate_lines(given[i : i + size], options)
            ][::order]
            assert [one.text for one in found] == [one.text for one in everything]
            assert [one.score for one in found] == pytest.approx(
                [one.score for one in everything], abs=1e-4
            )


def test_a_file_to_a_file(model: Path, tmp_path: Path):
    (tmp_path / "in").write_bytes(b"a b\nc d e\n")
    found = transduce("translate", model, tmp_path / "in", "--output", tmp_path / "out")
    assert found.status == 0
    assert found.out == b""
    expected = transduce("translate", model, text=b"a b\nc d e\n").out
    assert (tmp_path / "out").read_bytes() == expected
    assert {path.name for path in tmp_path.iterdir()} == {"in", "out"}


@pytest.mark.parametrize("link", [None, "symlink", "link"])
def test_an_output_never_replaces_what_is_read(model: Path, tmp_path: Path, link: str | None):
    text, out = tmp_path / "in", tmp_path / "in"
    text.write_bytes(b"a b\nc d e\n")
    if link:
        out = tmp_path / "out"
        getattr(os, link)(text, out)
    assert "would replace" in refused("translate", model, text, "--output", out)
    (tmp_path / "other").write_bytes(b"a\nb\n")
    for one, other in (("in", "other"), ("other", "in")):
        words = ("--source", tmp_path / one, "--reference", tmp_path / other)
        error = refused("evaluate", model, *words, "--output", out)
        assert f"would replace {text}; name another file" in error
    assert text.read_bytes() == b"a b\nc d e\n"
    with text.open("rb") as given:
        words = [sys.executable, "-m", "transduce", "translate", str(model), "--output", str(out)]
        found = subprocess.run(words, stdin=given, capture_output=True, timeout=120)
    assert found.returncode == 2
    assert b"would replace the input" in found.stderr
    assert text.read_bytes() == b"a b\nc d e\n"


def test_gzip_is_read_from_a_file_of_any_name_and_from_standard_input(model: Path, tmp_path: Path):
    (tmp_path / "in").write_bytes(gzip.compress(b"a b\nc d e\n"))
    expected = transduce("translate", model, text=b"a b\nc d e\n").out
    assert transduce("translate", model, tmp_path / "in").out == expected
    assert transduce("translate", model, text=(tmp_path / "in").read_bytes()).out == expected


def test_a_device_that_is_not_here_is_told_with_those_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    source, target = reversals(tmp_path, pairs=60)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: True)
    words = ("--source", source, "--target", target, "--out", tmp_path / "run")
    error = refused("train", *words, "--device", "abacus")
    assert error.endswith("here there are: auto, cpu, mps")
    assert not (tmp_path / "run").exists()


def test_the_locale_changes_nothing(model: Path):
    text = "é ü 日本\na b\n".encode()
    poor = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": ""}
    found = started("translate", model, "--format", "jsonl", text=text, env=poor)
    assert found.returncode == 0
    assert not found.stdout.isascii()  # or it would say nothing
    records = [json.loads(line) for line in found.stdout.decode("utf-8").splitlines()]
    expected = Translator.load(model).translate(text.decode().splitlines())
    assert [record["text"] for record in records] == [one.text for one in expected]
    assert [tuple(record["tokens"]) for record in records] == [one.tokens for one in expected]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    "words",
    [
        "evaluate --hypothesis {text} --reference {text}",
        "info {model}",
        "info --json {model}",
        "check --source {text} --target {text} --out {text}.run",
    ],
)
def test_what_cannot_be_printed_is_one_line(model: Path, tmp_path: Path, words: str):
    (tmp_path / "text").write_text("a b c d\n")
    words = words.format(model=model, text=tmp_path / "text") + " > /dev/full"
    found = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m transduce -q {words}"],
        capture_output=True,
        timeout=120,
        env={**os.environ, "PYTHONUNBUFFERED": ""},  # or each write fails for itself
    )
    assert found.returncode == 2
    assert found.stderr == b"error: standard output: No space left on device\n"


def test_standard_error_may_be_closed(model: Path, tmp_path: Path):
    command = f"echo a b | {sys.executable} -m transduce translate {model} > {tmp_path}/out 2>&-"
    assert subprocess.run(["bash", "-c", command], timeout=120).returncode == 0
    assert (tmp_path / "out").read_bytes() == transduce("translate", model, text=b"a b\n").out


def test_an_output_may_be_a_pipe_by_any_name(model: Path, tmp_path: Path):
    (tmp_path / "text").write_text("a b\n")
    text = str(tmp_path / "text")
    found = started("translate", model, text, "--output", "/dev/stdout")
    assert (found.returncode, found.stdout) == (0, transduce("translate", model, text).out)
    words = ["--source", text, "--reference", text, "--output", "/dev/stdout"]
    found = started("evaluate", model, *words)
    assert found.returncode == 0
    assert found.stdout.startswith(transduce("translate", model, text).out)


@pytest.mark.parametrize(
    "words",
    [
        "translate NAME",
        "translate MODEL NAME",
        "translate MODEL TEXT --output NAME",
        "evaluate --hypothesis TEXT --reference NAME",
        "evaluate MODEL --source TEXT --reference TEXT --output NAME",
        "score MODEL --source TEXT --target NAME",
        "info NAME",
        "average NAME --out OUT",
        "average MODEL --out NAME",
        "check --source NAME --target TEXT",
        "check --source TEXT --target TEXT --out NAME",
        "train --source NAME --target TEXT --out OUT",
        "train --source TEXT --target TEXT --out NAME",
        "train NAME",
    ],
)
@pytest.mark.parametrize("kind", ["too long", "circle"])
def test_a_name_that_cannot_be_is_told_in_a_line(
    model: Path, tmp_path: Path, words: str, kind: str
):
    """All verbs, and of each every place for a name."""
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "text").write_text("a b\n")
    name = tmp_path / ("x" * 300 if kind == "too long" else "circle")
    places = {"NAME": name, "MODEL": model, "TEXT": tmp_path / "text", "OUT": tmp_path / "out"}
    found = transduce(*(places.get(word, word) for word in words.split()))
    assert found.status == 2
    errors = [line for line in found.errors.splitlines() if line.startswith("error: ")]
    assert str(name) in errors[0]
    assert "cannot be written" not in errors[0] or "--out NAME" in words
    assert "Traceback" not in found.errors
    assert words.startswith("check") or len(errors) == 1
    assert (tmp_path / "circle").is_symlink()


def test_names_of_files_do_nothing_to_a_terminal(tmp_path: Path):
    name = tmp_path / "a\x1b[31m\nb"
    name.write_text("a b , c\n")
    (tmp_path / "ref").write_text("a b c d\n")
    found = transduce("evaluate", "--hypothesis", name, "--reference", tmp_path / "ref")
    assert found.status == 0
    assert "looks tokenised" in found.errors
    for text in (found.text, found.errors):
        assert "a\\x1b[31m\\x0ab" in text
        assert "\x1b" not in text


@pytest.mark.parametrize("verb", ["translate", "evaluate", "score"])
@pytest.mark.parametrize("where", ["loading", "working"])
def test_memory_that_runs_out_is_one_line_of_every_verb(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, where: str
):
    (tmp_path / "text").write_text("a b\n")

    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    name = "bundle.load" if where == "loading" else "model.transformer.Transformer.encode"
    monkeypatch.setattr(f"transduce.{name}", fail)
    text = tmp_path / "text"
    words = {
        "translate": (model, text),
        "evaluate": (model, "--source", text, "--reference", text),
        "score": (model, "--source", text, "--target", text),
    }[verb]
    error = refused(verb, *words)
    assert error.startswith("error: memory ran out")
    assert ("--batch-tokens 4096" in error) is (where == "working")


def test_a_text_in_windows_tells_how_far_it_is(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    told = []

    class Watched(Stage):
        def advance(self, units: int) -> None:
            super().advance(units)
            told.append((self._done, self._share))

    monkeypatch.setattr("transduce.cli.translate.Stage", Watched)
    small = functools.partial(translate_stream, window=4)
    monkeypatch.setattr("transduce.cli.translate.translate_stream", small)
    (tmp_path / "text").write_text("a b\n" * 6 + "a b c d\n" * 3 + "é\n" * 2, encoding="utf-8")
    words = ("translate", model, tmp_path / "text", "--beam", "1", "--output", tmp_path / "out")
    assert transduce(*words).status == 0
    assert told == [(4, 16 / 54), (8, 40 / 54), (11, 1.0)]
    told.clear()
    assert transduce("translate", model, "--beam", "1", text=b"a\n" * 6).status == 0
    assert told == [(4, 0.0), (6, 0.0)]


def test_a_pipe_that_closes_early_is_no_error(model: Path):
    command = (
        f"yes 'a b c' | head -5000 | {sys.executable} -m transduce translate {model} | head -1"
    )
    found = subprocess.run(["bash", "-c", command], capture_output=True, timeout=120)
    assert found.stdout.count(b"\n") == 1
    assert b"Traceback" not in found.stderr
    assert b"Fatal" not in found.stderr


def test_errors_are_one_line_and_exit_with_2(model: Path, tmp_path: Path):
    one_line = [
        (("translate", tmp_path / "none"), "no such model"),
        (("translate", tmp_path), "no model.safetensors"),
        (("translate", model, tmp_path / "none.txt"), "cannot be read"),
        (
            ("translate", __file__, "columns"),
            "is a file, not a model: MODEL, a folder, comes first",
        ),
        (("translate", model, "--beam", "0"), "beam = 0"),
        (("translate", model, "--n-best", "9"), "n_best=9"),
        (("translate", model, "--top-k", "9"), "add sample (--sample)"),
        (("translate", model, "--sample", "--beam", "4"), "beam=4"),
        (("translate", model, "--ensemble", tmp_path), "no model.safetensors"),
        (("translate", model, "--device", "abacus"), "abacus"),
        (("train",), "no text to learn from"),
        (("train", "--source", "a"), "--source needs --target"),
        (("train", "--source", tmp_path / "a", "--target", tmp_path / "b"), "cannot be read"),
        (("train", tmp_path / "none.toml"), "none.toml"),
        (("train", "--tsv", "a", "--set", "model.head=3"), "did you mean 'model.heads'?"),
        (("train", "--tsv", "a", "--set", "max_steps=9"), "did you mean 'train.max_steps'?"),
        (("train", "--tsv", "a", "--precision", "fp8"), "precision"),
        (("train", "--tsv", "a", "--set", "train.max_steps=0"), "train.max_steps"),
    ]
    for words, expected in one_line:
        more = ("--out", tmp_path / "run") if words[0] == "train" else ()
        assert expected in refused(*words, *more), words


def test_typos_of_options_exit_with_2():
    assert "--sourse" in refused("train", "--sourse", "x")
    assert "trian" in refused("trian")


def test_a_wrong_usage_tells_what_may_have_been_meant(tmp_path: Path):
    (tmp_path / "some.de").touch()
    for words, expected in (
        (("score", "m"), "Missing option '--source'. (see transduce score --help)"),
        (("evaluate", "--hypotheses"), "; possible options: --hypothesis (see transduce evaluate"),
        (("translate", "m", "--helpp"), "No such option: --helpp (see transduce translate --help)"),
        (("train", "--max-steps", "9"), "--max-steps; did you mean --set train.max_steps=...? (s"),
        (
            ("translate", "m", "--max-steps", "9"),
            "--max-steps; possible options: --max-length (see transduce tr",
        ),
        (("train", "--seed", "x"), "Invalid value for '--seed': Input should be a valid integer"),
        (("check", "a", tmp_path / "some.de"), "); text is given with --source and --target, or"),
        (("check", "a", "b"), "(b) (see transduce check --help)"),
        (("fly",), "No such command 'fly'. (see transduce --help)"),
    ):
        assert expected in refused(*words), words


def test_quiet_trains_without_a_word(tmp_path: Path):
    source, target = reversals(tmp_path, pairs=60)
    options = ["--set", "train.max_steps=4", "--set", "model.d_model=32", "--precision", "fp32"]
    options += ["--set", "tokenizer.vocab_size=270", "--out", str(tmp_path / "run")]
    found = transduce("-q", "train", "--source", source, "--target", target, *options)
    assert found.status == 0, found
    assert found.out == b""
    assert found.errors == ""


def test_a_recipe_finds_its_files_beside_it_or_under_the_data_root(tmp_path: Path):
    (tmp_path / "text").mkdir()
    (tmp_path / "recipes").mkdir()
    source, target = reversals(tmp_path / "text", pairs=60)
    recipe = tmp_path / "recipes" / "r.toml"
    body = "[train]\nmax_steps = 4\n[model]\nd_model = 32\n[tokenizer]\nvocab_size = 270\n"
    recipe.write_text(f'source = "{source.name}"\ntarget = "{target.name}"\n{body}')
    text = refused("train", recipe, "--out", tmp_path / "run")
    assert str(tmp_path / "recipes" / source.name) in text
    found = transduce("train", recipe, "--out", tmp_path / "a", "--data-root", tmp_path / "text")
    assert found.status == 0, found
    env = {"TRANSDUCE_DATA": str(tmp_path / "text")}
    assert transduce("train", recipe, "--out", tmp_path / "b", env=env).status == 0
