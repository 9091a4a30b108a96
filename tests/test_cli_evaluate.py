"""The verbs evaluate and score on the command line: what they print, what they refuse."""

import gzip
import json
import math
import random
import subprocess
import sys
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from command import Outcome, refused, transduce
from corpora import SMALL, reversals
from sacrebleu.metrics import BLEU

from transduce import train
from transduce.config import validate
from transduce.train import checkpoint
from transduce.train.config import TrainConfig
from transduce.train.monitor import read_metrics

CASES = Path(__file__).parents[2] / "shared" / "requirements" / "cases"
needs_cases = pytest.mark.skipif(not CASES.exists(), reason=f"needs the files in {CASES}")


def works(*words: str | Path) -> Outcome:
    found = transduce(*words)
    assert found.status == 0, found
    return found


def sacrebleu(*words: str | Path) -> Any:
    """What sacreBLEU's own command prints."""
    command = [sys.executable, "-m", "sacrebleu", *map(str, words)]
    printed = subprocess.run(command, capture_output=True, check=True, encoding="utf-8").stdout
    return json.loads(printed)


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose model reverses letters, more or less; its validation text; texts to score."""
    folder = tmp_path_factory.mktemp("evaluate")
    source, target = reversals(folder, pairs=700)
    for path, side in ((source, "src"), (target, "tgt")):
        lines = path.read_text(encoding="utf-8").splitlines()
        write(path, lines[:600])
        write(folder / f"valid.{side}", lines[600:])
    tree = SMALL | {"source": str(source), "target": str(target), "out": str(folder / "run")}
    tree |= {f"valid_{side}": str(folder / f"valid.{side[:1]}{'rc' if side == 'source' else 'gt'}")
             for side in ("source", "target")}  # fmt: skip
    tree["train"] = SMALL["train"] | {"max_steps": 200, "validate_every": 100, "warmup": 50}
    tree["train"] |= {"save_every": 100, "learning_rate_scale": 2.0, "batch_tokens": 1024}
    tree["model"] = SMALL["model"] | {"dropout": 0.0, "max_length": 64}
    tree["data"] = {"max_length": 63}
    train(validate(TrainConfig, tree))
    draw = random.Random(5)
    words = ["The", "a", "dog,", "cat", "runs", "slowly.", "over", "old", "house!"]
    lines = [" ".join(draw.choices(words, k=draw.randint(3, 9))) for _ in range(40)]
    write(folder / "ref", lines)
    write(folder / "ref2", [line.replace("dog", "hound") for line in lines])
    write(folder / "hyp", [line.replace("old", "young") for line in lines])
    write(folder / "bad", [" ".join(sorted(line.split())) for line in lines])
    return folder


def scores(*words: str | Path) -> dict:
    return json.loads(works("evaluate", "--json", *words).text)


def test_the_number_in_training_is_that_of_evaluate_and_of_sacrebleu_on_translate(folder: Path):
    records = [r for r in read_metrics(folder / "run" / "metrics.jsonl") if "valid_bleu" in r]
    assert [record["step"] for record in records] == [100, 200]
    assert records[0]["valid_bleu"] != records[1]["valid_bleu"] > 0
    for record in records:
        model = checkpoint.path(folder / "run", record["step"])
        source, target = folder / "valid.src", folder / "valid.tgt"
        found = scores(
            *(model, "--source", source, "--reference", target, "--beam", "2"),
            *("--output", folder / "kept"),
        )
        [system] = found["systems"]
        assert round(system["scores"]["BLEU"]["value"], 4) == record["valid_bleu"]
        translated = works("translate", model, source, "--beam", "2").text
        assert (folder / "kept").read_text(encoding="utf-8") == translated
        write(folder / "out", translated.splitlines())
        theirs = sacrebleu(target, "-i", folder / "out", "-w", "4")
        assert theirs["score"] == record["valid_bleu"]
        assert theirs["signature"] == record["signature"]
        again = scores("--hypothesis", folder / "kept", "--reference", target)["systems"][0]
        assert again["scores"] == system["scores"]
        assert (system["source_cut"], system["beam"], system["alpha"]) == (0, 2, 0.6)


def test_the_loss_in_training_is_that_of_score(folder: Path):
    record = [r for r in read_metrics(folder / "run" / "metrics.jsonl") if "valid_loss" in r][-1]
    model = checkpoint.path(folder / "run", record["step"])
    found = works(
        "score", model, "--source", folder / "valid.src", "--target", folder / "valid.tgt"
    )
    rows = [line.split("\t") for line in found.text.splitlines()]
    assert len(rows) == 100
    loss = -sum(float(row[0]) for row in rows) / sum(int(row[1]) for row in rows)
    assert loss == pytest.approx(record["valid_loss"], abs=1e-5)
    assert f"perplexity {record['valid_perplexity']:.3f}" in found.errors
    for log_prob, tokens, perplexity in rows:
        expected = math.exp(-float(log_prob) / int(tokens))
        assert float(perplexity) == pytest.approx(expected, abs=1e-3)


def test_the_table_is_sacrebleu_s_numbers_with_interval_and_signature(folder: Path):
    files = ("--hypothesis", folder / "hyp", "--reference", folder / "ref")
    found = works("-q", "evaluate", *files)
    theirs = sacrebleu(
        *(folder / "ref", "-i", folder / "hyp", "-m", "bleu", "chrf", "ter"),
        *("--chrf-word-order", "2", "-w", "2", "--confidence"),
    )
    assert found.errors == ""
    for record in theirs:
        [line] = [line for line in found.text.splitlines() if f"  {record['name']} " in line]
        assert f" {record['score']:.2f} ± {record['confidence_var']:.2f}" in line
        assert record["signature"] in line
    assert "40 sentences, 1 reference\n" in found.text


def test_systems_are_compared_with_the_baseline(folder: Path):
    hyp, bad, ref = folder / "hyp", folder / "bad", folder / "ref"
    found = works("evaluate", "--hypothesis", hyp, "--baseline", bad, "--reference", ref).text
    assert f"{hyp} against {bad}" in found
    assert "10,000 trials, seed 12345" in found
    assert found.count("better, p = 0.0001") == 3  # exact match: next to nothing is right in either
    first = scores("--hypothesis", bad, "--hypothesis", hyp, "--reference", ref)
    other = scores("--baseline", bad, "--hypothesis", hyp, "--reference", ref)
    assert first == other
    assert other["test"] == {
        "method": "approximate randomisation",
        "baseline": str(bad),
        "trials": 10_000,
        "seed": 12345,
    }
    assert other["systems"][0]["differences"] == {}
    assert other["systems"][1]["differences"]["BLEU"]["significant"]
    worse = works("evaluate", "--hypothesis", bad, "--baseline", hyp, "--reference", ref).text
    assert worse.count("worse, p = 0.0001") == 3
    same = works("evaluate", "--hypothesis", hyp, "--baseline", hyp, "--reference", ref).text
    assert same.count("no difference that this test set shows, p = 1.0000") == 4


def test_a_model_is_compared_with_another_system(folder: Path):
    valid = ("--source", folder / "valid.src", "--reference", folder / "valid.tgt")
    found = scores(folder / "run", *valid, "--baseline", folder / "valid.tgt", "--beam", "1")
    assert [system["name"] for system in found["systems"]] == [
        str(folder / "valid.tgt"),
        str(folder / "run"),
    ]
    assert found["systems"][0]["scores"]["exact match"]["value"] == 100
    assert found["systems"][1]["differences"]["BLEU"]["better"] is False
    assert found["sentences"] == 100
    assert set(found["versions"]) == {"transduce", "sacrebleu", "torch", "python"}


def test_several_references_come_from_files_or_columns(folder: Path, tmp_path: Path):
    source = (folder / "valid.src").read_text(encoding="utf-8").splitlines()[:40]
    one, other = ((folder / n).read_text(encoding="utf-8").splitlines() for n in ("ref", "ref2"))
    rows = ["\t".join(row) for row in zip(source, one, other, strict=True)]
    tsv = tmp_path / "test.tsv.gz"
    tsv.write_bytes(gzip.compress("".join(row + "\n" for row in rows).encode()))
    files = ("--reference", folder / "ref", "--reference", folder / "ref2")
    expected = scores("--hypothesis", folder / "hyp", *files)["systems"]
    assert "nrefs:2" in expected[0]["scores"]["BLEU"]["signature"]
    assert scores("--hypothesis", folder / "hyp", "--tsv", tsv)["systems"] == expected
    translated = scores(folder / "run", "--tsv", tsv)
    assert translated["references"] == [f"{tsv}, column 2", f"{tsv}, column 3"]
    write(tmp_path / "source", source)
    again = scores(folder / "run", "--source", tmp_path / "source", *files)
    assert translated["systems"] == again["systems"]
    three = scores("--hypothesis", folder / "hyp", "--tsv", tsv, "--reference", folder / "ref")
    assert "nrefs:3" in three["systems"][0]["scores"]["BLEU"]["signature"]


def test_lines_may_have_different_numbers_of_references(folder: Path, tmp_path: Path):
    one, other = ((folder / n).read_text(encoding="utf-8").splitlines() for n in ("ref", "ref2"))
    half = len(one) // 2
    rows = [f"source\t{a}" for a in one[:half]]  # and a spreadsheet fills up what is shorter
    rows += [f"source\t{a}\t{b}\t" for a, b in zip(one[half:], other[half:], strict=True)]
    tsv = write(tmp_path / "test.tsv", rows)
    done = transduce("evaluate", "--hypothesis", folder / "hyp", "--tsv", tsv)
    assert f"{len(one)} sentences, 1 to 2 references" in done.text
    assert done.errors == ""
    found = scores("--hypothesis", folder / "hyp", "--tsv", tsv)
    assert found["references"] == [f"{tsv}, column 2", f"{tsv}, column 3"]
    translations = (folder / "hyp").read_text(encoding="utf-8").splitlines()
    theirs = BLEU().corpus_score(translations, [one, [None] * half + other[half:]])
    assert found["systems"][0]["scores"]["BLEU"]["value"] == pytest.approx(theirs.score, abs=1e-9)


def test_a_training_validates_by_all_the_references_that_a_line_has(tmp_path: Path):
    source, target = reversals(tmp_path, pairs=320)
    sides = (path.read_text(encoding="utf-8").splitlines()[300:] for path in (source, target))
    rows = [
        f"{a}\t{b}" if i % 3 else f"{a}\ta b\t{b}"
        for i, (a, b) in enumerate(zip(*sides, strict=True))
    ]
    tsv, out = write(tmp_path / "valid.tsv", rows), tmp_path / "run"
    tree = {"source": str(source), "target": str(target), "valid_tsv": str(tsv), "out": str(out)}
    tree["train"] = SMALL["train"] | {"max_steps": 150, "validate_every": 150}
    score = train(validate(TrainConfig, SMALL | tree)).bleu
    assert "nrefs:var" in score.signature
    assert score.value > 1
    evaluated = scores(out, "--tsv", tsv, "--beam", "2", "--threads", "1")
    assert evaluated["systems"][0]["scores"]["BLEU"]["value"] == pytest.approx(score.value)
    report = json.loads((out / "data" / "report.json").read_text(encoding="utf-8"))
    assert "20 validation pairs read, each with up to 2 references" in report["lines"]


def test_tokenizer_and_case_are_sacrebleu_s(folder: Path, tmp_path: Path):
    lines = (folder / "hyp").read_text(encoding="utf-8").upper().splitlines()
    hyp = write(tmp_path / "hyp", lines)
    files = ("--hypothesis", hyp, "--reference", folder / "ref")
    plain = scores(*files)["systems"][0]["scores"]
    lower = scores(*files, "--lowercase", "--tokenize", "char")["systems"][0]["scores"]
    assert "case:lc" in lower["BLEU"]["signature"]
    assert "tok:char" in lower["BLEU"]["signature"]
    assert lower["BLEU"]["value"] > plain["BLEU"]["value"] + 30
    assert lower["TER"] == plain["TER"]


@needs_cases
def test_tokenised_text_gives_another_number_and_a_warning_for_each_file():
    raw = ("--hypothesis", CASES / "R43.hyp", "--reference", CASES / "R43.ref")
    split = ("--hypothesis", CASES / "R43.tok.hyp", "--reference", CASES / "R43.tok.ref")
    one, other = works("-q", "evaluate", *raw), works("-q", "evaluate", *split)
    assert one.errors == ""
    warnings = other.errors.splitlines()
    assert len(warnings) == 2
    for warning, name in zip(warnings, ("R43.tok.hyp", "R43.tok.ref"), strict=True):
        assert name in warning
        assert "looks tokenised (100 % of its lines" in warning
        assert "detokenise" in warning
    assert one.text.split("±")[0].split()[-1] != other.text.split("±")[0].split()[-1]
    assert works("-q", "evaluate", *split, "--tokenize", "none").errors == ""


def test_letters_and_accents_apart_are_told(tmp_path: Path):
    composed = ["L\u2019\u00e9t\u00e9.", "A house."] * 10
    apart = [unicodedata.normalize("NFD", line) for line in composed]
    files = ("--hypothesis", write(tmp_path / "hyp", composed), "--reference", tmp_path / "ref")
    write(tmp_path / "ref", composed)
    assert works("-q", "evaluate", *files).errors == ""
    write(tmp_path / "ref", apart)
    (warning,) = works("-q", "evaluate", *files, "--tokenize", "none").errors.splitlines()
    assert "ref: 10 of 20 lines are not in Unicode NFC" in warning


@needs_cases
def test_a_missing_line_gives_no_score():
    text = refused("evaluate", "--hypothesis", CASES / "R44.hyp", "--reference", CASES / "R44.ref")
    for part in ("R44.ref has 10 lines", "R44.hyp has 9"):
        assert part in text


def test_files_of_unequal_length_are_refused_whichever_they_are(folder: Path, tmp_path: Path):
    lines = (folder / "ref").read_text(encoding="utf-8").splitlines()
    hyp, ref, source = folder / "hyp", folder / "ref", folder / "ref2"
    for drop in (0, 17, 39):
        for more in (lines[:drop] + lines[drop + 1 :], [*lines, ""]):
            odd = write(tmp_path / "odd", more)
            for words in (
                ("--hypothesis", odd, "--reference", ref),
                ("--hypothesis", hyp, "--reference", odd),
                ("--hypothesis", hyp, "--reference", ref, "--reference", odd),
                ("--hypothesis", hyp, "--reference", ref, "--baseline", odd),
                (folder / "run", "--source", odd, "--reference", ref),
                (folder / "run", "--source", source, "--reference", odd),
            )[: 6 if drop == 17 else 1]:
                text = refused("evaluate", *words)
                assert f"{odd} has {len(more)}" in text
                assert "has 40" in text
    score = ("score", folder / "run", "--source", ref, "--target", odd)
    assert f"{ref} has 40 lines and {odd} has 41" in refused(*score)


def test_empty_lines_are_told_and_stay_in_place(folder: Path, tmp_path: Path):
    lines = (folder / "ref").read_text(encoding="utf-8").splitlines()
    hyp = write(tmp_path / "hyp", ["", *lines[1:7], " ", *lines[8:]])
    found = works("-q", "evaluate", "--hypothesis", hyp, "--reference", folder / "ref", "--json")
    assert found.errors == f"warning: {hyp}: 2 of 40 lines are empty, and scored as they are\n"
    [system] = json.loads(found.text)["systems"]
    assert system["empty"] == 2
    assert system["scores"]["exact match"]["value"] == 95
    source = write(tmp_path / "source", ["", "a b c", "c d"])
    ref = write(tmp_path / "ref", ["x", "c b a", "d c"])
    kept = tmp_path / "kept"
    model = (folder / "run", "--source", source, "--reference", ref, "--output", kept)
    found = transduce("evaluate", *model, "--json")
    empty = kept.read_text(encoding="utf-8").split("\n")[:3].count("")
    assert empty >= 1
    assert json.loads(found.text)["systems"][0]["empty"] == empty
    assert f"the output of {folder / 'run'}: {empty} of 3 lines" in found.errors


def test_records_end_at_lf_only_and_marks_are_dropped(folder: Path, tmp_path: Path):
    body = "a\u2028b c\rd e\x85f g\r\nA dog runs.\r\nThe last line"
    (tmp_path / "hyp").write_bytes(b"\xef\xbb\xbf" + body.encode())
    (tmp_path / "ref").write_bytes(body.replace("\r\n", "\n").encode())
    found = scores("--hypothesis", tmp_path / "hyp", "--reference", tmp_path / "ref")
    assert found["sentences"] == 3
    assert found["systems"][0]["scores"]["exact match"]["value"] == 100


def test_what_cannot_be_evaluated_is_one_line(folder: Path, tmp_path: Path):
    hyp, ref, model = folder / "hyp", folder / "ref", folder / "run"
    nothing, blank = write(tmp_path / "nothing", []), write(tmp_path / "blank", ["", " "])
    latin = tmp_path / "latin"
    latin.write_bytes(b"caf\xc3\xa9\ncaf\xe9\n")
    one_column = write(tmp_path / "one.tsv", ["a\tb", "c"])
    files = ("--hypothesis", hyp, "--reference", ref)
    cases = [
        ((), "nothing to score"),
        (("--reference", ref), "nothing to score"),
        ((model, *files), "--hypothesis is translated already"),
        (("--hypothesis", hyp), "nothing to compare with"),
        ((model, "--source", ref), "nothing to compare with"),
        ((model, "--reference", ref), "MODEL has nothing to translate"),
        ((model, "--source", ref, "--tsv", ref), "--tsv has the source in it"),
        ((*files, "--source", ref), "--source is for a MODEL"),
        ((*files, "--output", tmp_path / "x"), "--output is for a MODEL"),
        ((*files, "--beam", "4"), "--beam is for a MODEL"),
        ((*files, "--batch-tokens", "4"), "--batch-tokens is for a MODEL"),
        ((*files, "--tokenize", "14a"), "'14a' is unknown; there are"),
        ((*files, "--tokenize", "spBLEU-1K"), "nothing is fetched"),
        ((*files, "--baseline", tmp_path / "none"), "none: cannot be read"),
        (("--hypothesis", tmp_path, "--reference", ref), "cannot be read"),
        (("--hypothesis", nothing, "--reference", nothing), "has no text to compare with"),
        (("--hypothesis", blank, "--reference", blank), "has no text to compare with"),
        ((model, "--tsv", nothing), "has no text to compare with"),
        (("--hypothesis", latin, "--reference", latin), "latin, line 2"),
        ((model, "--tsv", one_column), "one.tsv, line 2: 1 column; a validation file has"),
        ((hyp, "--source", ref, "--reference", ref), "hyp is a file, not a model"),
        ((tmp_path / "m", "--source", ref, "--reference", ref), "no such model"),
        ((model, "--source", ref, "--reference", ref, "--beam", "0"), "beam = 0"),
        ((model, "--source", ref, "--reference", ref, "--device", "abacus"), "abacus"),
        (
            (model, "--source", ref, "--reference", ref, "--output", tmp_path / "a" / "b"),
            "--output",
        ),
    ]
    for words, expected in cases:
        assert expected in refused("evaluate", *words), words


def test_score_gives_back_what_translate_said(folder: Path, tmp_path: Path):
    """Claim 80, by the command line, shuffled and in small batches too."""
    source = folder / "valid.src"
    written = works("translate", folder / "run", source, "--format", "jsonl").text
    records = [json.loads(line) for line in written.splitlines()]
    target = write(tmp_path / "target", [record["text"] for record in records])
    score = ("score", folder / "run", "--format", "jsonl")
    found = works(*score, "--source", source, "--target", target).text.splitlines()
    assert len(found) == len(records) == 100
    same = 0
    for line, record in zip(found, records, strict=True):
        scored = json.loads(line)
        assert scored["line"] == record["line"]
        if scored["tokens"] == record["tokens"]:
            assert scored["log_prob"] == pytest.approx(record["log_prob"], abs=1e-4)
            same += 1
    assert same > 90
    order = random.Random(1).sample(range(100), 100)
    sources = source.read_text(encoding="utf-8").splitlines()
    write(tmp_path / "s", [sources[i] for i in order])
    write(tmp_path / "t", [records[i]["text"] for i in order])
    shuffled = works(
        *(*score, "--source", tmp_path / "s", "--target", tmp_path / "t", "--batch-tokens", "50")
    ).text.splitlines()
    for i, line in zip(order, shuffled, strict=True):
        one, other = json.loads(found[i]), json.loads(line)
        assert one["tokens"] == other["tokens"]
        assert one["log_prob"] == pytest.approx(other["log_prob"], abs=1e-4)


def test_score_keeps_every_line_in_place(folder: Path, tmp_path: Path):
    source = write(tmp_path / "s", ["a b", "", "", "c d", "a b c d " * 60, ""])
    target = write(tmp_path / "t", ["b a", "", "a", "", "d c", " \u2028"])
    found = works("score", folder / "run", "--source", source, "--target", target)
    rows = [line.split("\t") for line in found.text.splitlines()]
    assert [float(row[0]) == 0 for row in rows] == [False, True, False, False, False, True]
    assert rows[1] == ["0.000000", "0", "1.0000"]
    assert rows[3][1] == "1"  # the end alone
    assert "line 5" in found.errors
    assert "6 translations of" in found.errors
    records = works(
        *("score", folder / "run", "--source", source, "--target", target, "--format", "jsonl")
    ).text.splitlines()
    flags = [json.loads(line)["source_cut"] for line in records]
    assert flags == [False, False, False, False, True, False]
    nothing = write(tmp_path / "n", [])
    assert works("score", folder / "run", "--source", nothing, "--target", nothing).text == ""


def test_what_cannot_be_scored_is_one_line(folder: Path, tmp_path: Path):
    text = write(tmp_path / "text", ["a b", "c"])
    long = write(tmp_path / "long", ["a", "a b c d " * 60])
    latin = tmp_path / "latin"
    latin.write_bytes(b"a\n\xff\n")
    for words, expected in (
        ((folder / "run", "--source", text), "--target"),
        ((tmp_path / "none", "--source", text, "--target", text), "no such model"),
        ((folder / "run", "--source", text, "--target", tmp_path / "none"), "cannot be read"),
        ((folder / "run", "--source", text, "--target", latin), "latin, line 2"),
        ((folder / "run", "--source", text, "--target", text, "--device", "abacus"), "abacus"),
        ((folder / "run", "--source", text, "--target", text, "--format", "xml"), "xml"),
    ):
        assert expected in refused("score", *words), words
    found = transduce("score", folder / "run", "--source", text, "--target", long)
    assert found.status == 2
    assert "error: line 2: the target's" in found.errors
    assert "63 that the model can write" in found.errors
