"""The inputs of the known faults (shared/requirements/cases.md), by the whole program.

Each test names its case. The kinds of fault, by generated input, are in the other test files; which
test notices which fault is in docs/cases.md.
"""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from corpora import SMALL, reversals
from program import Outcome, transduce
from sacrebleu.metrics import BLEU

from transduce import Translator, bundle, train
from transduce.config import validate
from transduce.data.batching import collate, pad
from transduce.decode.constraints import Constraints
from transduce.decode.greedy import hypothesis, length_penalty
from transduce.decode.search import SearchOptions, search
from transduce.decode.stepper import ModelStepper
from transduce.decode.stream import translate_stream
from transduce.decode.translator import Translation
from transduce.errors import DataError, Stopped
from transduce.evaluate import Score, bleu
from transduce.files import whole_folder
from transduce.ids import BOS, EOS, UNK
from transduce.model.loss import smoothed_loss
from transduce.text.corpus import read_lines, read_lines_leniently, read_pairs
from transduce.text.tokenizer import TokenizerConfig, normalize, train_tokenizer
from transduce.train import checkpoint
from transduce.train import loop as loop_module
from transduce.train.config import TrainConfig
from transduce.train.monitor import read_metrics
from transduce.train.prepare import Data, open_data
from transduce.train.validate import Validation

CASES = Path(__file__).parents[2] / "shared" / "requirements" / "cases"


def case(name: str) -> Path:
    """An input of a case; without them the test is skipped."""
    if not CASES.exists():
        pytest.skip(f"the inputs of the cases are not there ({CASES})")
    return CASES / name


def options(tree: dict = SMALL) -> list[str]:
    words = ["--precision", "fp32", "--threads", "1"]
    for section in ("model", "tokenizer", "data", "train"):
        for key, value in tree.get(section, {}).items():
            words += ["--set", f"{section}.{key}={value}"]
    return words


FEW = SMALL | {"train": SMALL["train"] | {"max_steps": 1, "validate_every": 1, "save_every": 1}}


def train_on(
    source: Path, target: Path, out: Path, *more: str | Path, tree: dict | None = None
) -> Outcome:
    return transduce(
        *("train", "--source", source, "--target", target, "--out", out),
        *options(tree or FEW),
        *more,
    )


def every_pair(data: Data) -> list[tuple[str, str]]:
    """All pairs of a data folder, decoded: those to learn from and those held out."""
    learnt = [
        (data.source_tokenizer.decode(source), data.target_tokenizer.decode(target))
        for source, target in (data.train[row] for row in range(len(data.train)))
    ]
    return learnt + [(example.source, example.references[0]) for example in data.valid]


def number(text: str) -> str:
    """The number that both sides of a pair of these corpora bear."""
    found = re.search(r"\d{4}", text)
    assert found, text
    return found[0]


def assert_aligned(pairs: list[tuple[str, str]], expected: list[str]):
    assert sorted(number(source) for source, _ in pairs) == sorted(expected)
    for source, target in pairs:
        assert number(source) == number(target), (source, target)


def numbers(last: int, *without: int) -> list[str]:
    return [f"{n:04}" for n in range(1, last + 1) if n not in without]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learnt something of the toy corpus; it reads at most 383 pieces."""
    run = tmp_path_factory.mktemp("cases") / "run"
    tree = {
        "model": SMALL["model"] | {"dropout": 0.0, "max_length": 384},
        "tokenizer": {"vocab_size": 400},
        "data": {"max_length": 100},
        "train": SMALL["train"]
        | {"max_steps": 150, "batch_tokens": 1024, "validate_every": 150, "save_every": 150}
        | {"warmup": 50, "learning_rate_scale": 0.7},
    }
    found = train_on(
        *(case("toy.train.src"), case("toy.train.tgt"), run),
        *("--valid-source", case("toy.valid.src"), "--valid-target", case("toy.valid.tgt")),
        tree=tree,
    )
    assert found.status == 0, found.errors
    return run


# corpus


def test_r01_separators_inside_a_line_shift_no_pair(model: Path, tmp_path: Path):
    source, target = case("R01.train.src"), case("R01.train.tgt")
    assert_aligned(list(read_pairs(source, target)), numbers(60))
    found = train_on(source, target, tmp_path / "run", "--valid-source", source,
                     "--valid-target", target, "--set", "data.drop_leaked=false")  # fmt: skip
    assert found.status == 0, found.errors
    data = open_data(tmp_path / "run" / "data")
    assert (data.report["read"], data.report["kept"], len(data.valid)) == (60, 60, 60)
    assert_aligned(every_pair(data), 2 * numbers(60))
    assert ("item 0007 the red child follows a dog", "ding 0007 de rood kind volgt een hond") in [
        (data.source_tokenizer.decode(s), data.target_tokenizer.decode(t)) for s, t in data.train
    ]
    found = transduce("translate", model, source, "--beam", "1", "--threads", "1")
    assert (found.status, len(found.lines)) == (0, 60)


@pytest.mark.parametrize(("name", "counts"), [("short", (50, 49)), ("blankend", (50, 51))])
def test_r03_unequal_counts_stop_before_training(name: str, counts: tuple, tmp_path: Path):
    source, target = case(f"R03.{name}.src"), case(f"R03.{name}.tgt")
    found = train_on(source, target, tmp_path / "run")
    assert found.status == 2
    assert f"{source} has {counts[0]} lines and {target} has {counts[1]};" in found.errors
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_r03_a_missing_last_line_end_is_no_missing_line(tmp_path: Path):
    found = train_on(case("R03.nofinal.src"), case("R03.nofinal.tgt"), tmp_path / "run")
    assert found.status == 0, found.errors
    data = open_data(tmp_path / "run" / "data")
    assert data.report["read"] == 50
    assert_aligned(every_pair(data), numbers(50))


def test_r04_a_mark_at_the_start_is_dropped_and_one_inside_moves_nothing(
    model: Path, tmp_path: Path
):
    source, target = case("R04.train.src"), case("R04.train.tgt")
    assert train_on(source, target, tmp_path / "run").status == 0
    data = open_data(tmp_path / "run" / "data")
    assert_aligned(every_pair(data), numbers(30))
    marked = [number(source) for source, _ in every_pair(data) if "\ufeff" in source]
    assert marked == ["0005"]
    words = ("translate", model, "--beam", "2", "--threads", "1")
    with_mark, without = (
        transduce(*words, text=case(f"R04.{name}.in").read_bytes())
        for name in ("translate", "nobom")
    )
    assert with_mark.out == without.out
    assert len(with_mark.lines) == 3
    only = transduce(*words, text=case("R04.bomonly.in").read_bytes())
    assert (only.status, only.out) == (0, b"")
    for reader in (read_lines, read_lines_leniently):
        assert list(reader(case("R04.bomonly.in"))) == []


def test_r05_bad_bytes_stop_training_at_their_line_and_translating_never(
    model: Path, tmp_path: Path
):
    source = case("R05.train.src")
    found = train_on(source, case("R05.train.tgt"), tmp_path / "run")
    assert found.status == 2
    assert f"{source}, line 12: " in found.errors
    assert found.errors.rstrip().count("\n") == found.errors.count("reading and encoding")
    words = ("translate", model, case("R05.translate.in"), "--beam", "1", "--threads", "1")
    found = transduce(*words)
    assert (found.status, len(found.lines)) == (0, 7)
    assert re.findall(r"line (\d+): not UTF-8", found.errors) == ["3", "5", "6"]
    clean = transduce(*words[:2], *words[3:], text=b"ok one\nok two\nok four\nok seven")
    assert [found.lines[i] for i in (0, 1, 3, 6)] == clean.lines


def test_r05_the_locale_changes_nothing(model: Path):
    outs = []
    for locale in ({"LC_ALL": "C", "PYTHONUTF8": "0"}, {"LC_ALL": "C.UTF-8"}):
        found = subprocess.run(
            [sys.executable, "-m", "transduce", "translate", str(model), "--threads", "1"],
            input=case("R05.locale.in").read_bytes(),
            capture_output=True,
            check=True,
            timeout=120,
            env={**os.environ, **locale},
        )
        outs.append(found.stdout)
    assert outs[0] == outs[1]
    assert outs[0].count(b"\n") == 3


def test_r06_a_pair_with_a_blank_side_is_dropped_whole_and_counted(tmp_path: Path):
    found = train_on(case("R06.train.src"), case("R06.train.tgt"), tmp_path / "run")
    assert found.status == 0, found.errors
    assert "40 pairs read, 35 kept" in found.errors
    assert "5 dropped: a side is empty" in found.errors
    assert_aligned(every_pair(open_data(tmp_path / "run" / "data")), numbers(40, 5, 6, 18, 30, 35))


def test_r07_overlong_pairs_are_dropped_whole_and_told_with_the_copied_ones(tmp_path: Path):
    found = train_on(
        *(case("R07.train.src"), case("R07.train.tgt"), tmp_path / "run"),
        *("--valid-source", case("toy.valid.src"), "--valid-target", case("toy.valid.tgt")),
        *("--set", "data.max_length=100"),
    )
    assert found.status == 0, found.errors
    assert "50 pairs read, 47 kept" in found.errors
    assert "3 dropped: a side has more pieces than max_length" in found.errors
    assert "5 noticed: source and target are equal" in found.errors
    data = open_data(tmp_path / "run" / "data")
    assert len(data.train) == 47
    assert_aligned(every_pair(data)[:47], numbers(50, 10, 20, 30))
    assert data.train.lengths.max() <= 100


@pytest.mark.parametrize("name", ["R10", "R14"])
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_r10_r14_joiners_selectors_and_white_space_survive(name: str, kind: str):
    texts = [*read_lines(case(f"{name}.train.src")), *read_lines(case(f"{name}.train.tgt"))]
    tokenizer = train_tokenizer(texts, TokenizerConfig(kind=kind), vocab_size=500)
    lines = list(read_lines(case(f"{name}.roundtrip.txt")))
    assert len(lines) == (8 if name == "R10" else 10)
    for line in lines:
        back = tokenizer.decode(tokenizer.encode(line))
        # The normal form is NFC here: none of these characters is one that becomes a space.
        assert back == normalize(line) == normalize(back)
        for kept in "\u200b\u200c\u200d\ufe0f\t\u00a0\u3000\u2009\u202f ":
            assert back.count(kept) == line.count(kept)


# subwords


def test_r12_what_spells_a_reserved_token_is_text(model: Path, tmp_path: Path):
    lines = list(read_lines(case("R12.translate.in")))
    found = transduce("translate", model, case("R12.translate.in"), "--threads", "1")
    assert (found.status, len(found.lines)) == (0, 10)
    source, target = case("R12.train.src"), case("R12.train.tgt")
    found = train_on(source, target, tmp_path / "run", "--set", "tokenizer.vocab_size=400")
    assert found.status == 0, found.errors
    data = open_data(tmp_path / "run" / "data")
    assert_aligned(every_pair(data), numbers(60))
    pairs = [data.train[row] for row in range(len(data.train))]
    batch = collate(pairs)
    assert (batch.labels == EOS).sum(1).tolist() == [1] * len(pairs)
    assert (batch.source == EOS).sum(1).tolist() == [1] * len(pairs)
    for line in lines:
        ids = data.source_tokenizer.encode(line)
        assert min(ids) > UNK
        assert data.source_tokenizer.decode(ids) == line


def test_r13_a_vocabulary_that_cannot_be_is_told_and_one_size_is_kept(tmp_path: Path):
    found = train_on(
        *(case("R13.tiny.src"), case("R13.tiny.tgt"), tmp_path / "tiny"),
        *("--set", "tokenizer.vocab_size=8000"),
    )
    assert found.status == 0, found.errors
    warned = re.search(r"cannot fill a vocabulary of 8000; it has (\d+) entries", found.errors)
    assert warned
    size = int(warned[1])
    loaded = bundle.load(tmp_path / "tiny")
    assert loaded.source_tokenizer.size == size
    assert loaded.model.output.weight.shape[0] == size
    config = json.loads((tmp_path / "tiny" / "best" / "config.json").read_text())
    assert config["architecture"]["source_vocab_size"] == size
    assert config["architecture"]["target_vocab_size"] == size

    files = case("R13.alphabet.src"), case("R13.alphabet.tgt")
    found = train_on(*files, tmp_path / "alphabet", "--set", "tokenizer.vocab_size=100")
    assert found.status == 2
    smallest = re.search(r"vocab_size must be at least (\d+)", found.errors)
    assert smallest
    found = train_on(*files, tmp_path / "alphabet", "--set", f"tokenizer.vocab_size={smallest[1]}")
    assert found.status == 0, found.errors
    assert bundle.load(tmp_path / "alphabet").target_tokenizer.size == int(smallest[1])


# training


def test_r25_a_resumed_run_has_the_same_pairs_rates_and_patience(tmp_path: Path):
    reversals(tmp_path)

    def run(name: str, *, stop_at: int | None) -> tuple[list, list, dict]:
        steps, script = [], iter([1.0, 5.0, 4.0, 3.0, 2.0, 9.0])

        def watch(model, optimizer, batches, chosen, **named):
            result = real_step(model, optimizer, batches, chosen, **named)
            labels = [batch.labels.tolist() for batch in batches]
            steps.append((labels, named["learning_rate"], named["seed"], result.loss))
            return result

        def scripted(_, examples, *__, interval=False):
            score = Score(0.0 if interval else next(script), "scripted")
            return Validation(1.0, score, [""] * len(examples))

        def save(training, score):
            real_save(training, score)
            if training.state.step == stop_at:
                raise Stopped

        tree = SMALL | {"source": str(tmp_path / "text.src"), "target": str(tmp_path / "text.tgt")}
        tree["train"] = SMALL["train"] | {"max_steps": 30, "patience": 3, "log_every": 1}
        tree["train"] |= {"save_every": 1, "accumulate": 2, "batch_tokens": 128}
        config = validate(TrainConfig, tree | {"out": str(tmp_path / name)})
        real_step, real_save = loop_module.train_step, loop_module._save
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(loop_module, "train_step", watch)
            patch.setattr(loop_module, "validate", scripted)
            if stop_at:
                patch.setattr(loop_module, "_save", save)
                with pytest.raises(Stopped):
                    train(config)
                patch.setattr(loop_module, "_save", real_save)
            train(config)
        records = [
            r["step"] for r in read_metrics(tmp_path / name / "metrics.jsonl") if "loss" in r
        ]
        state = json.loads(
            (checkpoint.path(tmp_path / name, records[-1]) / "training.json").read_text()
        )
        return steps, records, state

    whole, records, state = run("whole", stop_at=None)
    assert len(whole) == 25  # the best is step 10, and patience lasts for three more
    assert records == list(range(1, 26))
    assert (state["best_step"], state["stale"]) == (10, 3)
    assert state["position"] != 25  # more than one pass over the text
    for stop_at in (3, 17):  # in the first pass, and in a later one with patience half used
        assert run(f"stopped-{stop_at}", stop_at=stop_at) == (whole, records, state)


def fill_half(folder: Path) -> None:
    with whole_folder(folder) as beside:
        (beside / "a").write_text("half of it")
        raise OSError("the disk is full")


def test_r27_a_final_name_shows_all_of_the_old_or_all_of_the_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "step-1"

    def seen() -> dict[str, str]:
        return {path.name: path.read_text() for path in folder.glob("*")}

    flushed: list[str] = []
    flush = os.fsync

    def watch(handle: int) -> None:
        flushed.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        flush(handle)

    def remove(path: Path, ignore_errors: bool = False) -> None:
        assert path != folder  # a kill in the middle of it would leave half
        rmtree(path, ignore_errors)

    rmtree = shutil.rmtree
    monkeypatch.setattr(os, "fsync", watch)
    monkeypatch.setattr(shutil, "rmtree", remove)
    old: dict[str, str] = {}
    for text in ("one", "two"):
        with whole_folder(folder) as beside:
            (beside / "a").write_text(text)
            (beside / "b").write_text(text)
            assert seen() == old
            flushed.clear()
        assert flushed[:2] in (["a", "b"], ["b", "a"])  # before the name is given
        assert flushed[-1] == tmp_path.name  # and the name itself
        old = {"a": text, "b": text}
        assert seen() == old
        with pytest.raises(OSError, match="the disk is full"):
            fill_half(folder)
        assert seen() == old
        assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_r31_the_sums_of_the_file():
    given = json.loads(case("R31.smoothing.json").read_text())
    logits, target = torch.tensor([given["logits"]]), torch.tensor([given["target"]])
    loss = smoothed_loss(logits, target, given["epsilon"])
    [expected] = [
        v for k, v in given["sum_over_real_tokens"].items() if k.startswith("uniform over all")
    ]
    assert float(loss.smoothed) == pytest.approx(expected, abs=1e-6)
    assert float(loss.plain) == pytest.approx(given["plain_nll_sum"], abs=1e-6)


# decoding


def of(found: list[Translation]) -> list[str]:
    return [one.text for one in found]


@pytest.mark.parametrize("beam", [1, 5])
def test_r34_a_translation_depends_on_its_line_alone(model: Path, beam: int):
    translator = Translator.load(model)
    lines = list(read_lines(case("R34.translate.in")))
    expected = translator.translate(lines, beam=beam)
    assert len(set(of(expected))) == 9  # or nothing would be compared
    searches = {
        "reversed": translator.translate(lines[::-1], beam=beam)[::-1],
        **{
            size: [
                one
                for start in range(0, 9, size)
                for one in translator.translate(lines[start : start + size], beam=beam)
            ]
            for size in (1, 2)
        },
        **{
            f"{tokens} tokens": translator.translate(lines, beam=beam, batch_tokens=tokens)
            for tokens in (1, 300, 2000)
        },
    }
    for name, found in searches.items():
        assert of(found) == of(expected), name
        assert [one.score for one in found] == pytest.approx(
            [one.score for one in expected], abs=1e-4
        )


def test_r35_empty_lines_stay_where_they_are(model: Path):
    lines = list(read_lines(case("R35.translate.in")))
    blank = [not line for line in lines]
    assert [n for n, empty in enumerate(blank, start=1) if empty] == [1, 4, 5, 6, 10]
    translator = Translator.load(model)
    alone = [translator.translate(line, beam=2).text for line in lines]
    for window in (1, 3, 4, 100):
        for rows in (1, 3, 4, 100):
            found = translate_stream(
                translator, lines, options=SearchOptions(beam=2), window=window,
                batch_tokens=2 * 30 * rows,
            )  # fmt: skip
            assert of(list(found)) == alone
    words = ("translate", model, "--beam", "2", "--threads", "1")
    found = transduce(*words, case("R35.translate.in"))
    assert (found.status, found.lines) == (0, alone)
    assert [line == "" for line in alone] == blank
    found = transduce(*words, case("R35.oneblank.in"))
    assert (found.status, found.out) == (0, b"\n")
    found = transduce(*words, case("R35.nothing.in"))
    assert (found.status, found.out) == (0, b"")


def test_r37_every_row_of_the_table_of_penalties():
    rows = [line.split("\t") for line in read_lines(case("R37.penalty.tsv"))][1:]
    assert len(rows) == 12
    for total, length, alpha, _, expected in rows:
        ids = [5] * (int(length) - 1)
        one = hypothesis(
            *(ids, [float(total) / int(length)] * int(length)),
            **{"log_prob": float(total), "limit": 99, "alpha": float(alpha)},
        )
        assert one.length == int(length)  # the end counts
        assert one.score == pytest.approx(float(expected), abs=1e-6)
        assert float(total) / length_penalty(int(length), float(alpha)) == one.score


class WholeStepper:
    """A Stepper without a cache: each step reads each row's whole prefix again."""

    def __init__(self, model, source, width: int) -> None:
        self.model, self.source = model, source.repeat_interleave(width, 0)
        self.prefixes = torch.empty(len(self.source), 0, dtype=torch.int64)

    @torch.inference_mode()
    def score(self, tokens):
        self.prefixes = torch.cat([self.prefixes, tokens[:, None]], dim=1)
        return self.model(self.source, self.prefixes)[:, -1].log_softmax(-1)

    def select(self, rows):
        self.source, self.prefixes = self.source[rows], self.prefixes[rows]


def test_r38_the_same_with_and_without_a_cache(model: Path):
    loaded = bundle.load(model)
    lines = list(read_lines(case("R34.translate.in")))
    sources = [[*loaded.source_tokenizer.encode(line), EOS] for line in lines]
    options = SearchOptions(beam=5, n_best=5)
    limits = [min(options.limit(len(ids) - 1), 40) for ids in sources]
    found = [
        search(stepper, Constraints(limits), options)
        for stepper in (
            ModelStepper(loaded.model, pad(sources), width=5, capacity=max(limits)),
            WholeStepper(loaded.model, pad(sources), 5),
        )
    ]
    for ids, hypotheses in zip(sources, found[0], strict=True):
        for one in hypotheses:  # by one pass over what was found: no search
            with torch.inference_mode():
                logits = loaded.model(pad([ids]), torch.tensor([[BOS, *one.tokens]]))[0]
            each = logits.log_softmax(-1)[range(one.length), [*one.tokens, EOS]]
            assert float(each.sum()) / length_penalty(one.length, 0.6) == pytest.approx(
                one.score, abs=1e-4
            )
    for cached, whole in zip(*found, strict=True):
        assert [one.tokens for one in cached] == [one.tokens for one in whole]
        assert [one.score for one in cached] == pytest.approx(
            [one.score for one in whole], abs=1e-4
        )


def test_r39_a_line_that_is_too_long_is_cut_named_and_harms_no_other(model: Path):
    path = case("R39.translate.in")
    words = ("translate", model, "--beam", "2", "--threads", "1", "--format", "jsonl")
    found = transduce(*words, path)
    records = [json.loads(line) for line in found.lines]
    assert (found.status, len(records)) == (0, 7)
    assert re.search(r"warning: line 3: its \d+ pieces .* cut after 383", found.errors)
    assert found.errors.count("\n") == 1
    assert [record["source_cut"] for record in records] == [n == 2 for n in range(7)]
    lines = path.read_bytes().split(b"\n")[:7]
    others = transduce(*words, text=b"\n".join(lines[:2] + lines[3:]))
    alone = [json.loads(line) for line in others.lines]
    assert [r["text"] for r in records if r["line"] != 3] == [r["text"] for r in alone]
    for record in records:
        assert len(record["token_log_probs"]) <= 384  # positions, and so of any output
        assert record["output_cut"] in (False, True)


# evaluation


def read(name: str) -> list[str]:
    return list(read_lines(case(name)))


def test_r43_bleu_is_sacrebleus_with_its_signature():
    hypotheses, references = read("R43.hyp"), [[line] for line in read("R43.ref")]
    score = bleu(hypotheses, references)
    theirs = BLEU()
    expected = theirs.corpus_score(hypotheses, [read("R43.ref")])
    assert score.value == pytest.approx(expected.score, abs=0.01)
    assert score.signature == str(theirs.get_signature())
    for part in ("case:mixed", "tok:13a", "smooth:exp", "nrefs:1", "version:"):
        assert part in score.signature
    tokenized = bleu(read("R43.tok.hyp"), [[line] for line in read("R43.tok.ref")])
    assert abs(tokenized.value - score.value) > 0.01


def test_r43_validation_scores_what_translate_writes(model: Path):
    path = model / "metrics.jsonl"
    [record] = [r for r in read_metrics(path) if "valid_bleu" in r]
    step = checkpoint.path(model, record["step"])
    words = ("translate", step, case("toy.valid.src"), "--beam", "2", "--threads", "1")
    found = transduce(*words)
    score = BLEU().corpus_score(found.lines, [read("toy.valid.tgt")])
    assert 1 < score.score < 100  # or it would say nothing
    assert record["valid_bleu"] == pytest.approx(score.score, abs=0.01)


def test_r44_unequal_numbers_have_no_score():
    with pytest.raises(DataError, match=r"9 translations, but 10 references"):
        bleu(read("R44.hyp"), [[line] for line in read("R44.ref")])


# files


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_r52_a_pickle_is_refused_unopened(model: Path, tmp_path: Path):
    sprung = tmp_path / "sprung"
    trap = pickle.dumps(Trap(sprung))
    (tmp_path / "model.pt").write_bytes(trap)
    found = transduce("translate", tmp_path / "model.pt", text=b"a\n")
    assert (found.status, found.out) == (2, b"")
    assert found.errors.startswith("error: ")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.model"):
        (copy / name).write_bytes((model / "best" / name).read_bytes())
    for name in ("model.safetensors", "tokenizer.model", "config.json"):
        whole = (copy / name).read_bytes()
        for bad in (trap, b"a few words\n"):
            (copy / name).write_bytes(bad)
            found = transduce("translate", copy, text=b"a\n")
            assert (found.status, found.out) == (2, b"")
            assert found.errors.startswith("error: ")
            assert found.errors.count("\n") == 1
            assert name in found.errors
        (copy / name).write_bytes(whole)
    assert not sprung.exists()
    kinds = {path.suffix for path in model.rglob("*") if path.is_file()}
    assert kinds == {".json", ".jsonl", ".safetensors", ".model", ".md", ".bin", ".npy", ""}
