"""What strangers and unlucky users give: a line says what to do; nothing is lost or exposed."""

import errno
import json
import os
import shutil
import stat
from pathlib import Path

import pytest
import torch
from command import refused, transduce
from corpora import SMALL, SMALL_OPTIONS, reversals
from rich.console import Console
from torch.optim import Adam

from transduce import Translator, train
from transduce.config import load, validate
from transduce.errors import BundleError, RunError, SettingsError
from transduce.text.corpus import Pair, digest
from transduce.train import check as check_module
from transduce.train import checkpoint
from transduce.train.check import check
from transduce.train.config import TrainConfig
from transduce.train.prepare import prepare

NO_UNICODE = "caf\udce9"
"""A byte of Latin-1, as Python hands it on from a command line."""


def settings(folder: Path, out: Path, **changes: object) -> TrainConfig:
    files = {"source": str(folder / "text.src"), "target": str(folder / "text.tgt")}
    tree = SMALL | files | {"out": str(out)}
    return validate(TrainConfig, tree | {"train": SMALL["train"] | changes})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("odd")
    reversals(folder)
    train(settings(folder, folder / "run"))
    return folder


@pytest.fixture
def home(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "home", symlinks=True))


def words(home: Path, *more: str) -> list[str]:
    files = ["--source", str(home / "text.src"), "--target", str(home / "text.tgt")]
    return [*files, "--threads", "1", *SMALL_OPTIONS, *more]


def test_weights_that_are_not_finite_are_not_saved(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    step = Adam.step

    def spoil(self: Adam) -> None:
        step(self)
        with torch.no_grad():
            self.param_groups[0]["params"][0][0, 0] = float("nan")

    monkeypatch.setattr(Adam, "step", spoil)
    config = settings(trained, tmp_path / "run", save_every=1, validate_every=10)
    with pytest.raises(RunError, match="step 1: a weight is not finite; what was saved is sound"):
        train(config)
    assert checkpoint.steps(tmp_path / "run") == []


def test_an_epsilon_that_float32_lacks_is_refused(trained: Path):
    assert "adam_epsilon" in refused("train", *words(trained, "--set", "train.adam_epsilon=1e-300"))


def test_copies_of_pairs_that_are_held_out_are_counted(tmp_path: Path):
    pairs = sorted((Pair(f"a {n}", f"b {n}") for n in range(60)), key=digest)
    table = tmp_path / "text.tsv"
    lines = [*pairs[:1] * 70, *pairs[1:]]
    table.write_text("".join(f"{source}\t{target}\n" for source, target in lines))
    config = TrainConfig(tsv=table)
    data = prepare(config, tmp_path / "data", {}, Console(quiet=True))
    assert len(data.train) == 58
    assert [example.source for example in data.valid] == [pair.source for pair in pairs[:2]]
    assert data.report["lines"][:2] == [
        "129 pairs read, 60 kept",
        "69 dropped: also in the validation set",
    ]


def test_a_run_that_lost_its_best_is_mended_by_its_command(home: Path):
    config = settings(home, home / "run")
    (home / "run" / "best").unlink()
    line = refused("translate", home / "run", home / "text.src")
    assert "its link `best` is lost; run its command again" in line
    assert train(config).bleu.value == train(config).bleu.value
    assert (home / "run" / "best" / "model.safetensors").exists()


def test_utf_16_is_not_translated(home: Path):
    (home / "text").write_text("a b\nc d\n", encoding="utf-16")
    assert "looks like UTF-16" in refused("translate", home / "run", home / "text")
    found = transduce("translate", home / "run", text="a b\n".encode("utf-16"))
    assert found.status == 2
    assert "looks like UTF-16" in found.errors


@pytest.mark.parametrize("name", ["note", "source_language", "target_language", "licence"])
def test_settings_that_are_no_unicode_are_refused(trained: Path, name: str):
    line = refused("train", *words(trained, "--set", f"{name}={NO_UNICODE}"))
    assert name in line
    assert "unicode" in line


def test_a_setting_whose_name_is_no_unicode_is_unknown(trained: Path):
    assert "it is not Unicode" in refused("check", *words(trained, "--set", f"{NO_UNICODE}=1"))


def test_a_strangers_note_that_cannot_be_shown_is_refused(home: Path):
    path = home / "run" / "best" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"note": "\ud800"}))
    assert "note is not text" in refused("trace", home / "run", "a", "--json", home / "trace.json")


def test_a_step_without_end_is_no_record(home: Path):
    with (home / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 1' + "0" * 400 + ', "loss": 1}\n')
    found = transduce("figure", "loss", home / "run", "--output", home / "loss.svg")
    assert found.status == 0, found.errors


def test_a_full_folder_for_temporary_files_is_named(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(check_module, "measure_steps", full)
    (problem,) = check(settings(trained, tmp_path / "run"), Console(quiet=True)).problems
    assert problem.endswith(", for temporary files: No space left on device")


@pytest.mark.parametrize("name", ["data/valid.jsonl", "checkpoints/step-20/model.safetensors"])
def test_check_sees_the_damage_that_train_would_find(home: Path, name: str):
    run, config = home / "run", settings(home, home / "run")
    (run / "best").unlink()  # so that it is not finished
    assert not check(config, Console(quiet=True)).problems
    (run / name).write_bytes(b"")
    (problem,) = check(config, Console(quiet=True)).problems
    assert "is damaged" in problem
    with pytest.raises(RunError, match="is damaged"):
        train(config)


def test_the_reason_why_an_output_cannot_be_is_told(home: Path):
    within = refused("translate", home / "run", home / "text.src", "--output", home / "text.tgt/x")
    assert "Not a directory" in within
    name = "o" * 240
    assert "too long" in refused("translate", home / "run", home / "text.src", "--output", name)


def test_models_lie_only_where_names_are_utf_8(home: Path):
    odd = str(home / NO_UNICODE)
    assert "names are UTF-8" in refused("average", home / "run", "--out", odd)
    shutil.copytree(home / "run" / "best", odd)
    with pytest.raises(BundleError, match="names are UTF-8"):
        Translator.load(odd)


@pytest.mark.parametrize("from_a_file", [True, False])
def test_an_output_that_is_private_stays_private(home: Path, from_a_file: bool):
    output = home / "private"
    output.touch(mode=0o600)
    text = [home / "text.src"] if from_a_file else []
    found = transduce("translate", home / "run", *text, "--output", output, text=b"a b\n")
    assert found.status == 0
    assert output.read_text()
    assert stat.S_IMODE(output.stat().st_mode) == 0o600


def test_one_language_is_told_without_the_other(home: Path):
    path = home / "run" / "best" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"target_language": "yo"}))
    assert "(not stated) to yo" in transduce("info", home / "run").text


def test_all_of_a_setting_is_taken():
    note = "first\nseed=3"
    assert load(TrainConfig, None, [f"note={note}", "tsv=a"]).note == note
    changes = ["tsv=a", "model.dropout=0.25", "model={d_model=8}"]
    model = load(TrainConfig, None, changes).model
    assert (model.dropout, model.d_model) == (0.25, 8)
    with pytest.raises(SettingsError, match="max_steps"):
        load(TrainConfig, None, ["tsv=a", "train.max_steps=5\nseed=3"])


def test_a_prefix_longer_than_its_output_is_refused(trained: Path):
    translator = Translator.load(trained / "run")
    with pytest.raises(SettingsError, match="text 2: its prefix is longer than the output may be"):
        translator.translate(["a b", "c d"], prefix=["a", "a b c d e f g h"], max_length=4)


def test_what_is_left_to_learn_is_told_beside_what_is_held_out(trained: Path, tmp_path: Path):
    out = ("--out", str(tmp_path / "run"), "--set", "data.max_length=1")
    found = transduce("train", *words(trained, *out))
    assert found.status == 2
    line = found.errors.splitlines()[-1]
    assert line.startswith("error: no pair is left to learn from; 300 pairs read, 6 kept")
    assert "6 validation pairs held out" in line
