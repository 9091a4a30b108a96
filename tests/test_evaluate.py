"""Scores equal sacreBLEU's own command; the test between systems equals all possible swaps."""

import gzip
import inspect
import itertools
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest

import transduce.evaluate as module
from transduce.demo.grammar import corpus
from transduce.errors import DataError, SettingsError
from transduce.evaluate import bleu, check_tokenizer, evaluate, exact_match, tokenised_lines

DATA = Path(__file__).parents[2] / "shared" / "data"
WORDS = "Der die Hund, läuft schnell. über eine Straße; 3,50 € kosten „nichts“ (oder 日本語) l'eau!"


def text(seed: int, sentences: int = 60) -> list[str]:
    draw = random.Random(seed)
    words = WORDS.split()
    return [" ".join(draw.choices(words, k=draw.randint(3, 14))) for _ in range(sentences)]


def noisy(lines: list[str], seed: int, share: float) -> list[str]:
    """Words replaced, dropped, moved, or written small."""
    draw = random.Random(seed)
    result = []
    for line in lines:
        words = line.split(" ")
        for i in range(len(words)):
            if draw.random() < share:
                words[i] = draw.choice([draw.choice(words), "", words[i].lower()])
        result.append(" ".join(word for word in words if word))
    return result


REFERENCES = text(1)
SECOND = noisy(REFERENCES, 2, 0.2)
SYSTEM = noisy(REFERENCES, 3, 0.3)
OTHER = noisy(REFERENCES, 4, 0.35)


def sacrebleu(folder: Path, systems: list[list[str]], references: list[list[str]], *more: str):
    """What the command prints, as JSON."""
    paths = []
    for number, lines in enumerate([*references, *systems]):
        paths.append(folder / f"{number}.txt")
        paths[-1].write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    count = len(references)
    found = subprocess.run(
        [
            *(sys.executable, "-m", "sacrebleu", *map(str, paths[:count])),
            *("-i", *map(str, paths[count:]), "-m", "bleu", "chrf", "ter"),
            *("--chrf-word-order", "2", "-w", "6", "-f", "json", *more),
        ],
        capture_output=True,
        check=True,
    )
    return json.loads(found.stdout)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, []),
        ({"tokenize": "none"}, ["--tokenize", "none"]),
        ({"tokenize": "intl"}, ["--tokenize", "intl"]),
        ({"tokenize": "char"}, ["--tokenize", "char"]),
        ({"tokenize": "zh"}, ["--tokenize", "zh"]),
        ({"lowercase": True}, ["--lowercase", "--chrf-lowercase"]),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_scores_intervals_and_signatures_are_those_of_sacrebleu_s_command(
    tmp_path: Path, options: dict, words: list[str], count: int
):
    references = [REFERENCES, SECOND][:count]
    theirs = sacrebleu(tmp_path, [SYSTEM], references, "--confidence", *words)
    [ours] = evaluate([SYSTEM], list(zip(*references, strict=True)), **options)
    for record in theirs:
        score = ours.scores[record["name"]]
        assert f"{score.value:.6f}" == f"{record['score']:.6f}"
        assert f"{score.interval:.6f}" == f"{record['confidence_var']:.6f}"
        assert score.signature == record["signature"]
        assert score.low < score.value < score.high
    assert set(ours.scores) == {"BLEU", "chrF2++", "TER", "exact match"}
    values = [score.value for score in ours.scores.values()]
    assert len(set(values)) == 4  # no metric is another


def test_the_environment_s_seed_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    references = [(line,) for line in REFERENCES]
    one = evaluate([SYSTEM, OTHER], references)
    for seed in ("1", "none"):
        monkeypatch.setenv("SACREBLEU_SEED", seed)
        assert evaluate([SYSTEM, OTHER], references) == one
        assert "seed:12345" in one[0].scores["BLEU"].signature


def test_validation_on_tokenised_text_does_not_print_sacrebleu_s_warning(caplog):
    line = "a man sleeps on a sofa ."
    assert bleu([line] * 200, [(line,)] * 200).value == pytest.approx(100)
    assert not caplog.records


def test_the_bleu_of_validation_is_the_bleu_of_evaluate():
    references = list(zip(REFERENCES, SECOND, strict=True))
    [found] = evaluate([SYSTEM], references)
    assert bleu(SYSTEM, references, interval=True) == found.scores["BLEU"]
    plain = bleu(SYSTEM, references)
    assert plain.value == found.scores["BLEU"].value
    assert plain.interval == 0
    assert "bs:" not in plain.signature


def test_the_trials_are_sacrebleu_s(tmp_path: Path):
    """Where no swap of a few sentences gives exactly the same difference again."""
    theirs = PairedTest(
        [("one", SYSTEM), ("other", OTHER)],
        {"BLEU": BLEU(), "chrF2++": CHRF(word_order=2)},
        [REFERENCES],
        test_type="ar",
    )()[1]
    _, found = evaluate([SYSTEM, OTHER], [(line,) for line in REFERENCES])
    for name in ("BLEU", "chrF2++"):
        assert found.differences[name].p_value == theirs[name][1].p_value
        assert 0.0005 < found.differences[name].p_value < 0.5


@pytest.mark.parametrize(
    ("metric", "share"), [("BLEU", 0.15), ("TER", 0.15), ("exact match", 0.04)]
)
def test_the_p_value_is_the_share_of_all_swaps_that_differ_as_much(metric: str, share: float):
    references = REFERENCES[:9]
    systems = [noisy(references, 7, 0.4), noisy(references, 8, share)]
    systems[1][3] = systems[0][3]

    def value(lines: list[str]) -> float:
        if metric == "exact match":
            return 100 * sum(map(str.__eq__, lines, references)) / len(references)
        judge = {"BLEU": BLEU, "TER": TER}[metric]()
        return judge.corpus_score(lines, [references]).score

    differences = []
    for swap in itertools.product([False, True], repeat=len(references)):
        pairs = [pair[::-1] if s else pair for s, *pair in zip(swap, *systems, strict=True)]
        one, other = (list(side) for side in zip(*pairs, strict=True))
        differences.append(abs(value(one) - value(other)))
    expected = np.mean([each >= differences[0] - 1e-9 for each in differences])
    assert 0.01 < expected < 0.9
    found = evaluate(systems, [(line,) for line in references])[1].differences[metric]
    assert found.p_value == pytest.approx(expected, abs=0.02)
    assert found.value == pytest.approx(value(systems[1]) - value(systems[0]), abs=1e-9)
    assert found.better


def test_one_sentence_proves_nothing():
    """sacreBLEU, which counts only greater differences, says p = 0.0001."""
    almost = [*REFERENCES[:-1], "Hund"]
    for systems in ([REFERENCES, almost], [almost, REFERENCES]):
        _, found = evaluate(systems, [(line,) for line in REFERENCES])
        for name, difference in found.differences.items():
            assert difference.value != 0, name
            assert difference.p_value == 1
            assert not difference.significant


def test_equal_systems_do_not_differ_and_better_is_lower_in_ter():
    _, same, better = evaluate([OTHER, OTHER, REFERENCES], [(line,) for line in REFERENCES])
    assert all(d.value == 0 and not d.significant for d in same.differences.values())
    assert all(d.better and d.significant for d in better.differences.values())
    assert better.differences["TER"].value < 0 < better.differences["BLEU"].value


def test_exact_match_is_equality_with_any_reference():
    references = list(zip(REFERENCES, SECOND, strict=True))
    hypotheses = [random.Random(i).choice([*pair, "no"]) for i, pair in enumerate(references)]
    hypotheses[0] = REFERENCES[0].upper()
    expected = sum(h in pair for h, pair in zip(hypotheses, references, strict=True))
    [found] = evaluate([hypotheses], references)
    assert found.scores["exact match"].value == pytest.approx(100 * expected / 60)
    [found] = evaluate([hypotheses], references, lowercase=True)
    assert found.scores["exact match"].value == pytest.approx(100 * (expected + 1) / 60)
    assert "case:lc" in found.scores["exact match"].signature
    assert exact_match(["a", "b", "c"], ["a", "b", "d"]).value == pytest.approx(200 / 3)


def test_other_numbers_of_sentences_and_none_are_refused():
    for call in (
        lambda: bleu(["a"], [("a",), ("b",)]),
        lambda: exact_match(["a", "b"], ["a"]),
        lambda: evaluate([["a", "b"], ["a"]], [("a",), ("b",)]),
    ):
        with pytest.raises(DataError, match=r"\d translations, but \d references"):
            call()
    for call in (lambda: bleu([], []), lambda: exact_match([], []), lambda: evaluate([[]], [])):
        with pytest.raises(DataError, match="no sentence"):
            call()


@pytest.mark.parametrize(
    ("systems", "references"),
    [
        ([["a"]], [[]]),
        ([["a"]], [[None]]),
        ([["a"]], [None]),
        (["a"], ["a"]),
        ([["a"]], ["a"]),
        ([[3]], [["a"]]),
        ([None], [["a"]]),
        (None, [["a"]]),
        ([["a"]], None),
        ([["a", "b"]], [["a"], []]),
    ],
)
def test_what_is_no_list_of_texts_is_refused_in_a_line(
    monkeypatch: pytest.MonkeyPatch, systems: object, references: object
):
    # As outside the tests: types are not checked.
    monkeypatch.setattr(module, "_streams", inspect.unwrap(module._streams))
    with pytest.raises(DataError, match=r"references? .*|translations of a system") as refused:
        inspect.unwrap(evaluate)(systems, references)
    assert "\n" not in str(refused.value)


def test_sentences_may_have_different_numbers_of_references_as_in_sacrebleu():
    references = [pair[: 1 + i % 2] for i, pair in enumerate(zip(REFERENCES, SECOND, strict=True))]
    second = [text if i % 2 else None for i, text in enumerate(SECOND)]
    [found] = evaluate([SYSTEM], references)
    for name, metric in (("BLEU", BLEU()), ("chrF2++", CHRF(word_order=2)), ("TER", TER())):
        theirs = metric.corpus_score(SYSTEM, [REFERENCES, second])
        assert found.scores[name].value == pytest.approx(theirs.score, abs=1e-9)
        assert "nrefs:var" in found.scores[name].signature
        assert found.scores[name].value != metric.corpus_score(SYSTEM, [REFERENCES]).score
    assert bleu(SYSTEM, references).value == found.scores["BLEU"].value


@pytest.mark.parametrize("blank", [[""], ["", "a"], ["a", ""]])
def test_empty_lines_are_scored_as_sacrebleu_scores_them(tmp_path: Path, blank: list[str]):
    hypotheses, references = [*SYSTEM[:9], blank[0]], [*REFERENCES[:9], blank[-1]]
    [found] = evaluate([hypotheses], [(line,) for line in references])
    for record in sacrebleu(tmp_path, [hypotheses], [references]):
        assert f"{found.scores[record['name']].value:.6f}" == f"{record['score']:.6f}"


def test_tokenizers_that_lack_something_say_what(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with pytest.raises(SettingsError, match=r"'13b' is unknown; there are .*13a"):
        evaluate([["a"]], [("a",)], tokenize="13b")
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.delitem(sys.modules, "sacrebleu.tokenizers.tokenizer_ja_mecab", raising=False)
    with pytest.raises(SettingsError, match=re.escape("pip install 'sacrebleu[ja]'")):
        check_tokenizer("ja-mecab")
    monkeypatch.setattr(module, "SACREBLEU_DIR", str(tmp_path))
    with pytest.raises(SettingsError, match="nothing is fetched"):
        check_tokenizer("flores200")
    assert list(tmp_path.iterdir()) == []


def tokenised(line: str) -> str:
    """Split at punctuation, as every tokenizer does in one way or another."""
    return re.sub(r"\s+", " ", re.sub(r"([.,;:!?()\"])", r" \1 ", line)).strip()


WORD = st.text(st.sampled_from("abcdeéüßñАбв日'’-"), min_size=1, max_size=8).map(
    lambda word: "x" + word.strip("'’-") + "x"
)
# Raw text as French writes it: a space before ; : ! ? but none before , and .
SENTENCE = st.tuples(st.lists(WORD, min_size=2), st.sampled_from([".", " !", " ?", "?", ""])).map(
    lambda parts: (" : " if len(parts[0]) > 4 else ", ").join(parts[0]) + parts[1]
)


@given(st.lists(SENTENCE, min_size=1, max_size=30))
def test_raw_text_does_not_look_tokenised(lines: list[str]):
    assert tokenised_lines(lines) == []


@given(st.lists(SENTENCE.filter(lambda s: "," in s or s.endswith(".")), min_size=1, max_size=30))
def test_split_text_looks_tokenised(lines: list[str]):
    assert tokenised_lines([tokenised(line) for line in lines]) == list(range(1, len(lines) + 1))


@pytest.mark.parametrize(
    "line",
    [
        *("Do n't go", "It 's late", "It ' s late", "l' homme est là", "qu' il vienne"),
        *("a well @-@ known dog", "stra@@ ße", "stra@@ ße gut@@", "▁Das ▁Haus", "play ##ing it"),
        *("he said &quot; yes &quot;", "( so it is )", "Yes , I do", "I do ."),
    ],
)
def test_each_sign_of_tokenisation_is_seen(line: str):
    assert tokenised_lines([line]) == [1]
    assert tokenised_lines(["", line, " "]) == [2]


def test_a_few_odd_lines_do_not_make_a_text_tokenised():
    assert tokenised_lines([*["A dog runs."] * 10, "A dog , runs ."]) == []
    assert tokenised_lines([*["A dog runs."] * 7, "A dog , runs ."]) == [8]
    assert tokenised_lines([]) == []
    raw = [
        "Ah bon ? Oui !",
        "J'ai dit : « non » ; c'est tout.",
        "The dogs' owners' 5 p.m. train...",
    ]
    assert tokenised_lines(raw) == []


def gz(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")[:-1]


@pytest.mark.skipif(not DATA.exists(), reason=f"needs the texts in {DATA}")
def test_real_text_looks_what_it_is():
    raw = {path: gz(path) for path in (DATA / "multi30k" / "raw").glob("*.gz")}
    for path in (DATA / "tatoeba.en-fr").glob("*.gz"):
        rows = [line.split("\t") for line in gz(path)]
        raw |= {path / str(side): [row[side] for row in rows] for side in (0, 1)}
    assert len(raw) == 13
    assert [path for path, lines in raw.items() if tokenised_lines(lines)] == []
    split = [*(DATA / "multi30k" / "lc.norm.tok").glob("*.gz")]
    split += [p for p in (DATA / "multi30k" / "bpe10k.en-de").glob("*.gz") if p.stem != "code"]
    assert len(split) == 15
    assert [path for path in split if not tokenised_lines(gz(path))] == []


def test_the_demo_s_text_looks_raw():
    sentences = corpus(1)
    for side in ("source", "target"):
        lines = [getattr(sentence, side) for sentence in sentences.train[:5000]]
        assert tokenised_lines(lines) == []
        assert tokenised_lines([tokenised(line) for line in lines])
