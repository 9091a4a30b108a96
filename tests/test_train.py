"""A training stops, goes on, refuses and reports as its contract says (docs/training.md)."""

import inspect
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from corpora import SMALL, SMALL_OPTIONS, reversals
from torch.nn import functional
from torch.optim import Adam

from transduce import Transformer, Translator, bundle, train
from transduce.config import validate
from transduce.data.batching import collate
from transduce.errors import DataError, RunError, SettingsError
from transduce.evaluate import Score
from transduce.ids import PAD
from transduce.model.config import preset
from transduce.model.kernels import Dropout
from transduce.train import checkpoint
from transduce.train import loop as loop_module
from transduce.train.config import TrainConfig
from transduce.train.defaults import Chosen
from transduce.train.loop import train_step
from transduce.train.monitor import read_metrics
from transduce.train.validate import Validation


def settings(folder: Path, out: str, **changes: object) -> TrainConfig:
    source, target = folder / "text.src", folder / "text.tgt"
    tree = SMALL | {"source": str(source), "target": str(target), "out": str(folder / out)}
    for key, value in changes.items():
        section, _, name = key.partition("__")
        tree[section] = {**tree[section], name: value} if name else value
    return validate(TrainConfig, tree)


def command(folder: Path, out: str, *, threads: int = 1) -> list[str]:
    return [
        *(sys.executable, "-m", "transduce", "train"),
        *("--source", str(folder / "text.src"), "--target", str(folder / "text.tgt")),
        *("--out", str(folder / out), "--threads", str(threads)),
        *SMALL_OPTIONS,
    ]


def weights(run: Path) -> bytes:
    return (run / "best" / "model.safetensors").read_bytes()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    reversals(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the corpus and an uninterrupted run `whole`, made by the command line."""
    folder = tmp_path_factory.mktemp("train")
    reversals(folder)
    subprocess.run(command(folder, "whole"), check=True, capture_output=True, timeout=120)
    return folder


def test_a_run_is_a_folder_with_what_the_documentation_says(finished: Path):
    run = finished / "whole"
    assert {path.name for path in run.iterdir()} == {
        *("config.json", "metrics.jsonl", "lock", "data", "checkpoints", "best")
    }
    assert {path.name for path in (run / "best").iterdir()} >= {
        *("config.json", "model.safetensors", "tokenizer.model", "model_card.md")
    }
    assert not os.readlink(run / "best").startswith("/")
    card = (run / "best" / "model_card.md").read_text(encoding="utf-8")
    assert "sha256" in card
    assert "nrefs:1" in card
    assert "300 pairs read" in card


@pytest.mark.parametrize("threads", [1, 2])
def test_killed_without_warning_and_started_again_gives_the_same_bytes(
    finished: Path, threads: int
):
    # At each checkpoint that appears, one kill: right after it, or in the middle of what follows.
    draw = random.Random(3)
    whole, run = finished / "whole", finished / f"killed-{threads}"
    if threads == 2:
        whole = finished / "whole-2"
        subprocess.run(command(finished, "whole-2", threads=2), check=True, capture_output=True)
    kills = 0
    while True:
        process = subprocess.Popen(
            command(finished, run.name, threads=threads),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        before = checkpoint.steps(run)
        while process.poll() is None and checkpoint.steps(run) == before:
            time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.05))
        process.kill()
        _, errors = process.communicate(timeout=120)
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, errors
        kills += 1
        assert kills < 20
    assert kills >= 2
    assert weights(run) == weights(whole)
    assert (run / "best").readlink() == (whole / "best").readlink()

    # Records within a window that a kill cut through average fewer steps; validations are equal.
    validations = [
        [r for r in read_metrics(path / "metrics.jsonl") if "valid_bleu" in r]
        for path in (run, whole)
    ]
    assert validations[0] == validations[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_saves_and_exits_75_and_goes_on(finished: Path, number: signal.Signals):
    name = f"stopped-{number.name}"
    process = subprocess.Popen(
        command(finished, name), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while process.poll() is None and not checkpoint.steps(finished / name):
        time.sleep(0.002)
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 75
    assert "the same command goes on" in errors
    again = subprocess.run(command(finished, name), capture_output=True, text=True, timeout=120)
    assert again.returncode == 0
    assert "going on from step" in again.stderr
    assert weights(finished / name) == weights(finished / "whole")


def test_a_finished_run_says_so(finished: Path):
    before = weights(finished / "whole")
    again = subprocess.run(command(finished, "whole"), capture_output=True, text=True, timeout=120)
    assert again.returncode == 0
    assert "finished" in again.stderr
    assert weights(finished / "whole") == before


def test_bf16_and_accumulation_resume_in_the_middle_of_an_epoch(folder: Path):
    changes = {"precision": "bf16", "train__accumulate": 3, "train__batch_tokens": 128}
    whole = train(settings(folder, "whole", **changes))
    part = settings(folder, "part", **changes)
    steps_seen = []

    class Interrupt(Exception):
        pass

    def save_then_fail(*arguments: object, **named: object) -> Path:
        path = original(*arguments, **named)
        steps_seen.append(arguments[1].step)
        if steps_seen == [5]:
            raise Interrupt
        return path

    original = checkpoint.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save", save_then_fail)
        with pytest.raises(Interrupt):
            train(part)
    resumed = train(part)
    assert resumed.bleu == whole.bleu
    names = ("model.safetensors", "config.json")
    for name in names:
        assert (resumed.folder / name).read_bytes() == (whole.folder / name).read_bytes()
    # The best may be from before the interruption; the last is not.
    last = checkpoint.steps(part.out)[-1]
    for name in ("model.safetensors", "training.safetensors"):
        after, expected = (checkpoint.path(folder / run, last) / name for run in ("part", "whole"))
        assert after.read_bytes() == expected.read_bytes()


def test_a_finished_run_has_the_result_that_its_training_gave(folder: Path):
    config = settings(folder, "run")
    first, again = train(config), train(config)
    assert first == again
    assert first.bleu.low < first.bleu.value < first.bleu.high


def test_other_settings_or_another_text_are_refused_and_named(finished: Path):
    options = [*command(finished, "whole"), "--seed", "9", "--set", "model.dropout=0.2"]
    refused = subprocess.run(options, capture_output=True, text=True, timeout=120)
    assert refused.returncode == 2
    assert "seed was 1, is 9" in refused.stderr
    assert "model.dropout was 0.1, is 0.2" in refused.stderr


def test_a_changed_text_file_is_refused(folder: Path):
    train(settings(folder, "run"))
    with (folder / "text.src").open("a") as file:
        file.write("a b c\n")
    with pytest.raises(RunError, match=r"source was text\.src, is text\.src with other bytes"):
        train(settings(folder, "run"))


def test_a_folder_that_is_no_run_is_not_touched(folder: Path):
    (folder / "mine").mkdir()
    (folder / "mine" / "thesis.txt").write_text("years of work")
    for lock in (None, "", "another program's"):
        if lock is not None:
            (folder / "mine" / "lock").write_text(lock)
        before = sorted(path.name for path in (folder / "mine").iterdir())
        with pytest.raises(RunError, match="not a training run"):
            train(settings(folder, "mine"))
        assert sorted(path.name for path in (folder / "mine").iterdir()) == before


def test_after_a_mended_file_the_same_command_works(folder: Path):
    target = folder / "text.tgt"
    text = target.read_text()
    target.write_text(text + "one line too many\n")
    with pytest.raises(DataError, match=r"300.*301"):
        train(settings(folder, "run"))
    target.write_text(text)
    train(settings(folder, "run"))


def test_two_processes_do_not_train_in_one_folder(folder: Path):
    from transduce.train import run

    with (
        run.locked(folder / "run"),
        pytest.raises(RunError, match="another process"),
        run.locked(folder / "run"),
    ):
        pass


def test_a_loss_that_is_not_finite_is_not_applied_and_ends_the_run(folder: Path):
    changes = {"train__learning_rate_scale": 1e30, "train__max_steps": 100}
    validated_at_once = settings(folder, "at-once", **changes, train__validate_every=1)
    with pytest.raises(RunError, match="validation loss is nan"):
        train(validated_at_once)
    hot = settings(folder, "hot", **changes)
    with pytest.raises(RunError, match="10 updates in a row"):
        train(hot)
    for step in checkpoint.steps(folder / "hot"):
        tensors = bundle.read_tensors(checkpoint.path(folder / "hot", step) / "model.safetensors")
        assert all(tensor.isfinite().all() for tensor in tensors.values())


def small_model(seed: int = 0) -> tuple[Transformer, Adam]:
    torch.manual_seed(seed)
    model = Transformer(preset("tiny", 50, d_model=16, heads=2, dropout=0.0))
    return model, Adam(model.parameters(), lr=0.0)


CHOSEN = validate(
    Chosen,
    {
        "max_steps": 10,
        "batch_tokens": 100,
        "learning_rate_scale": 1.0,
        "warmup": 1,
        "validate_every": 1,
        "save_every": 1,
    },
)


@pytest.mark.parametrize("size", [1, 2, 8])
def test_accumulated_gradients_are_those_of_one_batch(size: int):
    draw = random.Random(0)
    pairs = [
        ([draw.randint(4, 49) for _ in range(n)], [draw.randint(4, 49) for _ in range(n + 2)])
        for n in (1, 2, 3, 5, 8, 13, 21, 34)
    ]
    gradients, losses = [], []
    for groups in ([pairs], [pairs[i : i + size] for i in range(0, 8, size)]):
        model, optimizer = small_model()
        kept: list[torch.Tensor] = []
        optimizer.step = lambda kept=kept, model=model: kept.extend(
            p.grad.clone() for p in model.parameters()
        )
        result = train_step(
            model,
            optimizer,
            [collate(group) for group in groups],
            CHOSEN,
            learning_rate=0.1,
            seed=1,
            working=model,
        )
        gradients.append(kept)
        losses.append(result.loss / result.tokens)
    assert result.tokens == sum(len(target) + 1 for _, target in pairs)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    largest = max(g.abs().max() for g in gradients[0])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=float(1e-5 * largest))


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_the_loss_of_a_step_is_pytorchs_without_smoothing(smoothing: float):
    model, _ = small_model()
    pairs = [([5, 6], [7, 8]), ([9], [10, 11, 12, 13])]
    batch = collate(pairs)
    with torch.no_grad():
        logits = model(batch.source, batch.decoder_input)
        expected = functional.cross_entropy(
            logits.flatten(0, 1), batch.labels.flatten(), ignore_index=PAD, reduction="sum"
        )
    chosen = CHOSEN.model_copy(update={"label_smoothing": smoothing})
    for batches in ([batch], [collate([pair]) for pair in pairs]):
        model, optimizer = small_model()
        result = train_step(
            model, optimizer, batches, chosen, learning_rate=0.1, seed=1, working=model
        )
        assert result.tokens == 3 + 5
        assert result.loss == pytest.approx(float(expected), rel=1e-5)


def test_the_recorded_loss_is_the_sum_over_real_tokens_by_their_number(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    results = []

    def watch(*arguments: object, **named: object) -> loop_module.Step:
        results.append(train_step(*arguments, **named))
        return results[-1]

    monkeypatch.setattr(loop_module, "train_step", watch)
    train(settings(folder, "run", train__log_every=4, train__max_steps=10, train__accumulate=2))
    records = [r for r in read_metrics(folder / "run" / "metrics.jsonl") if "loss" in r]
    assert [record["step"] for record in records] == [4, 8, 10]
    for record, part in zip(records, (results[:4], results[4:8], results[8:]), strict=True):
        mean = sum(each.loss for each in part) / sum(each.tokens for each in part)
        assert record["loss"] == pytest.approx(mean, abs=1e-5)
        assert record["perplexity"] == pytest.approx(2.718281828**mean, rel=1e-4)


def test_an_empty_source_spoils_nothing_beside_it():
    def gradients(*groups: list) -> list[torch.Tensor]:
        model, optimizer = small_model()
        kept: list[torch.Tensor] = []
        optimizer.step = lambda: kept.extend(p.grad.clone() for p in model.parameters())
        batches = [collate(group) for group in groups]
        result = train_step(
            model, optimizer, batches, CHOSEN, learning_rate=0.1, seed=1, working=model
        )
        assert result.applied
        return kept

    empty, full = ([], [5, 6]), ([7, 8, 9, 10], [11])
    for one, other in zip(gradients([empty, full]), gradients([empty], [full]), strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("seen", [False, True])
def test_targets_that_cannot_be_foreseen_are_learnt_only_by_who_sees_them(seen: bool):
    torch.manual_seed(0)
    shape = {"d_model": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
    model = Transformer(preset("tiny", 50, **shape)).train()
    optimizer = Adam(model.parameters())
    draw, losses = random.Random(0), []
    for step in range(80):
        targets = [[draw.randint(4, 49) for _ in range(6)] for _ in range(32)]
        batch = collate([([7], target) for target in targets])
        if seen:  # what a decoder would be given that is not shifted, or not masked
            batch = batch._replace(decoder_input=batch.labels)
        result = train_step(
            model, optimizer, [batch], CHOSEN, learning_rate=0.01, seed=step, working=model
        )
        losses.append(result.loss / result.tokens)
    # Six tokens of 46 that are equally likely, and an end whose place is known.
    least = 6 / 7 * math.log(46)
    assert (sum(losses[-10:]) / 10 < 0.5 * least) == seen
    assert seen or min(losses[-10:]) > least - 0.05


def test_a_step_that_is_not_finite_leaves_the_weights_alone():
    model, optimizer = small_model()
    before = [p.clone() for p in model.parameters()]
    with torch.no_grad():
        model.encoder[0].feed_forward.inner.weight[0, 0] = float("nan")
    before = [p.clone() for p in model.parameters()]
    batch = collate([([5, 6], [7, 8])])
    result = train_step(model, optimizer, [batch], CHOSEN, learning_rate=0.1, seed=1, working=model)
    assert not result.applied
    assert not optimizer.state
    for old, new in zip(before, model.parameters(), strict=True):
        torch.testing.assert_close(old, new, equal_nan=True)


def test_a_gradient_that_is_not_finite_under_a_loss_that_is_leaves_the_weights_alone():
    model, optimizer = small_model()
    before = [p.clone() for p in model.parameters()]
    model.decoder[0].feed_forward.inner.weight.register_hook(lambda gradient: gradient / 0)
    batch = collate([([5, 6], [7, 8])])
    result = train_step(model, optimizer, [batch], CHOSEN, learning_rate=0.1, seed=1, working=model)
    assert math.isfinite(result.loss)
    assert not result.applied
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())


def test_checkpoints_are_counted_as_numbers_and_the_best_and_last_stay(tmp_path: Path):
    for step in (900, 1000, 9000, 10_000, 5):
        checkpoint.path(tmp_path, step).mkdir(parents=True)
    assert checkpoint.steps(tmp_path) == [5, 900, 1000, 9000, 10_000]
    state = checkpoint.State(step=10_000, best_step=900, validated=[9000, 10_000])
    checkpoint.prune(tmp_path, state)
    assert checkpoint.steps(tmp_path) == [900, 9000, 10_000]


def test_the_average_is_the_mean_of_the_last_ones(folder: Path):
    train(settings(folder, "run", train__average_last=3))
    run = folder / "run"
    last = json.loads((checkpoint.path(run, 20) / "training.json").read_text())
    assert last["validated"] == [10, 15, 20]
    tensors = [
        bundle.read_tensors(checkpoint.path(run, step) / "model.safetensors")
        for step in (10, 15, 20)
    ]
    loaded = bundle.load(checkpoint.path(run, 20))
    checkpoint.load_average(run, loaded, checkpoint.State(validated=[10, 15, 20]))
    for name, tensor in bundle.weights(loaded.model).items():
        expected = torch.stack([each[name].double() for each in tensors]).mean(0).float()
        torch.testing.assert_close(tensor, expected)


def test_the_recorded_bleu_is_that_of_translate_and_sacrebleu(finished: Path):
    from sacrebleu.metrics import BLEU

    run = finished / "whole"
    records = [r for r in read_metrics(run / "metrics.jsonl") if "valid_bleu" in r]
    step = checkpoint.steps(run)[-1]
    lines = (run / "data" / "valid.jsonl").read_text(encoding="utf-8").splitlines()
    examples = [json.loads(line) for line in lines]
    found = Translator.load(checkpoint.path(run, step)).translate(
        [example["source"] for example in examples], beam=2
    )
    score = BLEU().corpus_score(
        [translation.text for translation in found],
        [[example["references"][0] for example in examples]],
    )
    assert records[-1]["step"] == step
    assert records[-1]["valid_bleu"] == pytest.approx(score.score, abs=1e-3)


@pytest.mark.parametrize(
    ("scores", "best", "last"),
    [
        ([0, 0, 0, 5, 4, 4], 20, 30),  # no patience is lost before the first right words
        ([5, 6, 6, 5], 10, 20),  # of equals the earlier
        ([0, 0, 0, 0, 0, 0], 30, 30),  # while no word is right, the lower loss
        ([1, 2, 1, 3, 2, 9], 30, 30),
    ],
)
def test_the_best_bleu_is_kept_and_patience_counts_from_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, scores: list[int], best: int, last: int
):
    script, losses = iter(scores), [1.0]

    def scripted(_: object, examples: list, *__: object, interval: bool = False) -> Validation:
        losses[0] /= 2
        value = 0.0 if interval else float(next(script))
        return Validation(losses[0], Score(value, "scripted"), [""] * len(examples))

    monkeypatch.setattr(loop_module, "validate", scripted)
    train(settings(folder, "run", train__max_steps=30, train__patience=2))
    assert (folder / "run" / "best").readlink() == Path(f"checkpoints/step-{best}")
    assert checkpoint.steps(folder / "run")[-1] == last


def test_a_pair_of_files_is_needed(tmp_path: Path):
    with pytest.raises(SettingsError, match="--source needs --target"):
        validate(TrainConfig, {"source": "a"})
    with pytest.raises(SettingsError, match="no text"):
        validate(TrainConfig, {})


def test_reversal_is_learnt_from_files_to_text(tmp_path: Path):
    source, target = reversals(tmp_path, pairs=5000)
    tree = SMALL | {
        "source": str(source),
        "target": str(target),
        "out": str(tmp_path / "run"),
        "seed": int(torch.randint(2**31, ()).item()),  # any seed will do
        "model": {
            "preset": "tiny",
            "d_model": 64,
            "d_ff": 128,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "dropout": 0.0,
        },
        "train": {
            "max_steps": 800,
            "batch_tokens": 1024,
            "warmup": 150,
            "validate_every": 400,
            "learning_rate_scale": 0.4,
        },
    }
    train(validate(TrainConfig, tree))
    translator = Translator.load(tmp_path / "run")
    draw = random.Random(9)
    lines = [[draw.choice("abcdefgh") for _ in range(draw.randint(2, 6))] for _ in range(100)]
    found = translator.translate([" ".join(line) for line in lines])
    right = sum(t.text == " ".join(line[::-1]) for t, line in zip(found, lines, strict=True))
    assert right >= 95


def test_dropout_of_a_step_follows_from_its_seed_alone():
    drop = Dropout(0.3)
    x = torch.ones(1000)
    torch.manual_seed(5)
    first = drop(x)
    torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(first, drop(x))


def test_settings_of_another_kind_are_refused_in_a_line():
    with pytest.raises(SettingsError, match=r"^train takes a TrainConfig, not NoneType$"):
        inspect.unwrap(train)(None)
