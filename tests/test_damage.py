"""What disks, people and closed terminals do to a run is told in a line and made no worse."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from corpora import SMALL, SMALL_OPTIONS, reversals, stop_after

from transduce import train
from transduce.config import validate
from transduce.errors import DataError, RunError, SettingsError
from transduce.train import checkpoint
from transduce.train.config import TrainConfig
from transduce.train.monitor import read_metrics


def settings(folder: Path, **changes: object) -> TrainConfig:
    tree = SMALL | {"source": str(folder / "text.src"), "target": str(folder / "text.tgt")}
    return validate(TrainConfig, tree | {"out": str(folder / "run")} | changes)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a corpus and a run that was stopped at step 10 of 20."""
    folder = tmp_path_factory.mktemp("damage")
    reversals(folder)
    stop_after(10, settings(folder))
    assert checkpoint.steps(folder / "run") == [5, 10]
    return folder


@pytest.fixture
def folder(stopped: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped, tmp_path / "copy", symlinks=True))


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "[1]", "null", '"x"', '{"format": 1}'])
def test_a_damaged_record_is_refused(folder: Path, text: str):
    (folder / "run" / "config.json").write_text(text)
    with pytest.raises(RunError, match=r"config\.json"):
        train(settings(folder))


def test_checkpoints_without_a_record_are_not_trained_on(folder: Path):
    (folder / "run" / "config.json").unlink()
    with pytest.raises(RunError, match=r"config\.json is gone"):
        train(settings(folder))


FILES = ("config.json", "model.safetensors", "tokenizer.model", "training.safetensors")


@pytest.mark.parametrize("name", [*FILES, "training.json"])
def test_a_damaged_newest_checkpoint_is_named_and_the_one_before_goes_on(folder: Path, name: str):
    newest = folder / "run" / "checkpoints" / "step-10"
    whole = (newest / name).read_bytes()
    for bad in (None, b"", whole[: len(whole) // 2], b"null", b"{}"):
        (newest / name).unlink() if bad is None else (newest / name).write_bytes(bad)
        with pytest.raises(RunError, match=r"step-10 is damaged .*remove it"):
            train(settings(folder))
        (newest / name).write_bytes(whole)
    shutil.rmtree(newest)
    result = train(settings(folder))
    assert (result.folder / "model.safetensors").exists()
    assert checkpoint.steps(folder / "run")[-1] == 20


@pytest.mark.parametrize(
    "change", [('"step": 10', '"step": 5'), ('"step": 10', '"step": "x"'), ('"epoch"', '"epoche"')]
)
def test_a_state_that_does_not_fit_is_refused(folder: Path, change: tuple[str, str]):
    path = folder / "run" / "checkpoints" / "step-10" / "training.json"
    text = path.read_text()
    assert change[0] in text
    path.write_text(text.replace(*change))
    with pytest.raises(RunError, match="step-10 is damaged"):
        train(settings(folder))


@pytest.mark.parametrize("garbage", [b"garbage\n", b"[]\n{}\n3\n", b"\xff\n", b'{"step": '])
def test_metrics_that_are_none_do_not_stop_a_run(folder: Path, garbage: bytes):
    path = folder / "run" / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + garbage)
    train(settings(folder))
    records = list(read_metrics(path))
    assert records[-1]["finished"]
    assert [r["step"] for r in records if "valid_bleu" in r] == [5, 10, 15, 20]


@pytest.mark.parametrize("name", ["report.json", "valid.jsonl", "tokenizer.model", "train/ids.bin"])
def test_damaged_data_is_refused(folder: Path, name: str):
    path = folder / "run" / "data" / name
    for bad in (b"garbage", b"", b"{}"):
        path.write_bytes(bad)
        with pytest.raises(RunError, match=r"data is damaged"):
            train(settings(folder))
    path.unlink()
    with pytest.raises(RunError, match=r"data is damaged"):
        train(settings(folder))


def command(folder: Path) -> str:
    words = [sys.executable, "-m", "transduce", "train", "--threads", "1", *SMALL_OPTIONS]
    words += ["--source", f"{folder}/text.src", "--target", f"{folder}/text.tgt"]
    return " ".join([*words, "--out", f"{folder}/run"])


@pytest.mark.parametrize("display", ["2>&1 | head -2", "2>/dev/full", "2>&-"])
def test_a_training_outlives_its_display(tmp_path: Path, display: str):
    reversals(tmp_path)
    script = f"set -o pipefail; {command(tmp_path)} {display}"
    subprocess.run(["bash", "-c", script], capture_output=True, timeout=120)
    assert list(read_metrics(tmp_path / "run" / "metrics.jsonl"))[-1]["finished"]


@pytest.mark.parametrize("streams", ["<&-", ">&- </dev/null", ">/dev/full <<< 'a b'"])
def test_closed_or_full_streams_are_told_in_a_line(folder: Path, streams: str):
    script = f"{sys.executable} -m transduce translate {folder}/run {streams}"
    found = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert found.returncode == 2
    assert found.stderr.startswith("error: standard ")
    assert found.stderr.count("\n") == 1


def test_nothing_left_says_why(tmp_path: Path):
    source, target = reversals(tmp_path, pairs=30)
    leaked = {"valid_source": str(source), "valid_target": str(target)}
    with pytest.raises(DataError, match="30 dropped: also in the validation set"):
        train(settings(tmp_path, **leaked))
    source.write_text("\n" * 30)
    with pytest.raises(DataError, match="30 dropped: a side is empty"):
        train(settings(tmp_path))
    source.write_text("a b\n" * 30)
    target.write_text("b a\n" * 30)
    with pytest.raises(DataError, match="too few different pairs"):
        train(settings(tmp_path))


def test_one_table_for_two_vocabularies_is_refused(tmp_path: Path):
    reversals(tmp_path, pairs=30)
    changes = {"tokenizer": {"shared": False}, "model": {"tie": "all"}}
    with pytest.raises(SettingsError, match="one table, one vocabulary"):
        train(settings(tmp_path, **changes))


def test_what_is_read_more_than_once_has_to_be_a_file(tmp_path: Path):
    reversals(tmp_path, pairs=30)
    (tmp_path / "text.src").unlink()
    (tmp_path / "text.src").mkdir()
    with pytest.raises(DataError, match="is a folder, not a text file"):
        train(settings(tmp_path))
    (tmp_path / "text.src").rmdir()
    os.mkfifo(tmp_path / "text.src")
    with pytest.raises(DataError, match="not a regular file"):
        train(settings(tmp_path))
