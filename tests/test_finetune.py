"""Fine-tuning: it begins with a model as it is, keeps what is the model's, and is never worse."""

import shutil
from pathlib import Path

import pytest
import torch
from corpora import SMALL, reversals, stop_after
from rich.console import Console
from safetensors.torch import load_file, save_file

from transduce import bundle, train
from transduce.config import validate
from transduce.errors import BundleError, RunError, SettingsError, TransduceError
from transduce.train import checkpoint
from transduce.train.check import check
from transduce.train.config import TrainConfig
from transduce.train.monitor import read_metrics
from transduce.train.prepare import open_data

MADE = {"source_language": "abc", "target_language": "cba", "licence": "CC-BY 4.0", "note": "mine"}


def settings(folder: Path, out: str, **changes: object) -> TrainConfig:
    text = {"source": str(folder / "text.src"), "target": str(folder / "text.tgt")}
    tree = {key: SMALL[key] for key in ("train", "precision", "threads")}
    return validate(TrainConfig, tree | text | {"out": str(folder / out)} | changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained model, `start`, and other text to fine-tune it on."""
    folder = tmp_path_factory.mktemp("finetune")
    reversals(folder)
    own = {key: SMALL[key] for key in ("model", "tokenizer")}
    train(settings(folder, "run", **own, **MADE))
    train(settings(folder, "sides", **own | {"tokenizer": {"vocab_size": 280, "shared": False}}))
    shutil.copytree(folder / "run" / "best", folder / "start")
    reversals(folder, pairs=200, seed=2)
    return folder


@pytest.fixture(scope="module")
def tuned(folder: Path) -> Path:
    train(settings(folder, "tuned", start_from=str(folder / "start")))
    return folder / "tuned"


def files(model: Path, *names: str) -> list[bytes]:
    return [(model / name).read_bytes() for name in names]


def test_step_0_is_the_model_that_it_starts_from(folder: Path, tuned: Path):
    same = ("tokenizer.model", "model.safetensors", "config.json")
    kept = settings(folder, "kept", start_from=str(folder / "start"))
    stop_after(0, kept)
    assert files(checkpoint.path(kept.out, 0), *same) == files(folder / "start", *same)
    first = next(read_metrics(tuned / "metrics.jsonl"))
    assert (first["step"], "valid_bleu" in first) == (0, True)


def test_shape_subwords_and_words_about_it_stay(folder: Path, tuned: Path):
    first, then = (bundle.load(path) for path in (folder / "start", tuned))
    assert then.model.config == first.model.config
    assert then.source_tokenizer.model == first.source_tokenizer.model
    assert then.about == first.about == MADE
    own = settings(folder, "own", start_from=str(folder / "start"), licence="mine alone")
    stop_after(0, own)
    assert bundle.load(checkpoint.path(own.out, 0)).about == MADE | {"licence": "mine alone"}


def test_the_dropout_may_be_another(folder: Path):
    start = str(folder / "start")
    config = settings(folder, "dropout", start_from=start, model={"dropout": 0.25})
    stop_after(0, config)
    assert bundle.load(checkpoint.path(config.out, 0)).model.config.dropout == 0.25


def test_how_much_of_a_text_is_in_letters_that_the_start_does_not_have_is_told(
    folder: Path, tmp_path: Path
):
    config = settings(folder, "dry", start_from=str(folder / "start"))
    assert not any("single bytes" in line for line in check(config, Console(quiet=True)).lines)
    lines = {"source": "\u0434\u0430 a", "target": "a b c"}  # two letters of two bytes
    for name, line in lines.items():
        (tmp_path / name).write_text(f"{line}\n{line}\n", encoding="utf-8")
    own = {"valid_source": config.source, "valid_target": config.target}
    config = config.model_copy(update=own | {name: tmp_path / name for name in lines})
    found = check(config, Console(quiet=True))
    encode = bundle.load(folder / "start").source_tokenizer.encode
    share = 4 / sum(len(encode(line)) for line in lines.values())
    (told,) = [line for line in found.lines if "single bytes" in line]
    assert (
        told
        == f"{share:.0%} of the subwords are single bytes, of characters that the vocabulary lacks"
    )


def test_two_vocabularies_stay_two(folder: Path):
    config = settings(folder, "two", start_from=str(folder / "sides"))
    stop_after(5, config)
    data = open_data(config.out / "data")
    sides = ("source.model", "target.model")
    assert data.source_tokenizer is not data.target_tokenizer
    assert files(config.out / "data", *sides) == files(folder / "sides" / "best", *sides)


@pytest.mark.parametrize("step", [0, 5])
def test_no_stop_shows_in_it(folder: Path, tuned: Path, step: int):
    config = settings(folder, f"stopped-{step}", start_from=str(folder / "start"))
    stop_after(step, config)
    train(config)
    assert files(config.out, "metrics.jsonl")[0].count(b'"valid_bleu"') == 5  # 0, 5, ... 20
    last = ("model.safetensors", "training.safetensors")
    after, whole = (checkpoint.path(run, 20) for run in (config.out, tuned))
    assert files(after, *last) == files(whole, *last)


def test_once_it_has_begun_it_asks_nothing_of_the_start_but_that_its_weights_are_the_same(
    folder: Path, tuned: Path
):
    start = shutil.copytree(folder / "start", folder / "changed")
    config = settings(folder, "about", start_from=str(start))
    stop_after(5, config)
    path = start / "config.json"
    path.write_text(path.read_text(encoding="utf-8").replace("CC-BY 4.0", "CC0"), encoding="utf-8")
    train(config)
    names = ("model.safetensors", "config.json")
    assert files(config.out / "best", *names) == files(tuned / "best", *names)


def test_a_run_that_is_at_work_may_choose_another_best(folder: Path):
    run = shutil.copytree(folder / "run", folder / "at-work", symlinks=True)
    for step in checkpoint.steps(run)[-2:]:
        (run / "best").unlink()
        (run / "best").symlink_to(f"checkpoints/step-{step}")
        config = settings(folder, "moving", start_from=str(run))
        if not config.out.exists():
            stop_after(5, config)
    with pytest.raises(RunError, match=r"start_from was step-\d+, is step-\d+ with other bytes"):
        train(config)


@pytest.mark.parametrize("damage", ["cut", "nan"])
def test_a_damaged_start_is_told_before_anything_is_read(folder: Path, damage: str):
    start = shutil.copytree(folder / "start", folder / damage)
    path = start / "model.safetensors"
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        tensors = load_file(path)
        next(iter(tensors.values())).fill_(torch.nan)
        save_file(tensors, path)
    config = settings(folder, f"from-{damage}", start_from=str(start))
    told = "damaged" if damage == "cut" else "not finite"
    with pytest.raises(BundleError, match=told):
        train(config)
    assert not (config.out / "data").exists()
    assert any(told in problem for problem in check(config, Console(quiet=True)).problems)


def test_a_kill_before_step_0_is_saved_leaves_no_trace(
    folder: Path, tuned: Path, monkeypatch: pytest.MonkeyPatch
):
    class Killed(Exception):
        pass

    def kill(*_: object, **__: object) -> None:
        raise Killed

    config = settings(folder, "killed", start_from=str(folder / "start"))
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", kill)
        with pytest.raises(Killed):
            train(config)
    train(config)
    records = [[r for r in read_metrics(run / "metrics.jsonl") if "valid_bleu" in r]
               for run in (config.out, tuned)]  # fmt: skip
    assert records[0] == records[1]


def test_where_nothing_is_better_the_best_is_what_it_started_from(folder: Path):
    wild = SMALL["train"] | {"learning_rate_scale": 300.0, "average_last": 1, "max_steps": 10}
    result = train(settings(folder, "wild", start_from=str(folder / "start"), train=wild))
    assert (folder / "wild" / "best").readlink() == Path("checkpoints/step-0")
    assert files(result.folder, "model.safetensors") == files(folder / "start", "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "kind", "told"),
    [
        ({"model": {"d_model": 64}}, SettingsError, "model.d_model: the shape and the subwords"),
        ({"model": {"preset": "tiny"}}, SettingsError, "model.preset: the shape"),
        ({"tokenizer": {"vocab_size": 400}}, SettingsError, "tokenizer.vocab_size: the shape"),
        ({"start_from": "nowhere"}, BundleError, "nowhere: no such model"),
        ({"start_from": "a\0b"}, SettingsError, "has no NUL in it"),
        ({"tokenizer": {"shared": True}}, SettingsError, "tokenizer.shared: the shape"),  # as it is
        ({"data": {"max_length": 5000}}, SettingsError, "does not fit into model.max_length=1024"),
    ],
)
def test_what_does_not_go_with_a_start_is_told(
    folder: Path, changes: dict, kind: type[TransduceError], told: str
):
    with pytest.raises(kind) as error:
        train(settings(folder, "wrong", **{"start_from": str(folder / "start")} | changes))
    assert told in str(error.value)


def test_another_start_is_another_run(folder: Path, tuned: Path):
    with pytest.raises(RunError, match=r"start_from was start, is step-\d+ with other bytes"):
        train(settings(folder, "tuned", start_from=str(folder / "sides")))
    moved = shutil.copytree(folder / "start", folder / "moved")
    train(settings(folder, "tuned", start_from=str(moved)))  # finished: the same weights


def test_the_card_says_what_it_was_made_of_and_no_path(folder: Path, tuned: Path):
    card = (tuned / "best" / "model_card.md").read_text(encoding="utf-8")
    assert "- start_from: `start` sha256 " in card
    assert str(folder) not in card
    assert "# A translator, abc to cba" in card
    assert "Licence: CC-BY 4.0." in card


def test_a_dry_run_tells_it_and_what_would_stop_it(folder: Path):
    quiet = Console(quiet=True)
    found = check(settings(folder, "dry", start_from=str(folder / "start")), quiet)
    assert not found.problems
    assert any("subwords and all else of the model" in line for line in found.lines)
    found = check(settings(folder, "dry", start_from=str(folder / "text.src")), quiet)
    assert "is a file, not a model" in found.problems[0]
