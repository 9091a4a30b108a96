"""Crashes that are really made: afterwards the same command goes on, to the same bytes."""

import errno
import io
import json
import logging
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from corpora import SMALL, SMALL_OPTIONS, reversals
from rich.console import Console

from transduce import Translator, train
from transduce.config import validate
from transduce.errors import DataError, RunError, Stopped
from transduce.train import checkpoint, start
from transduce.train import loop as loop_module
from transduce.train import monitor as monitor_module
from transduce.train.config import TrainConfig
from transduce.train.monitor import read_metrics

ROOT = Path(__file__).parents[1]


def settings(folder: Path, out: str = "run", **changes: object) -> TrainConfig:
    text = {"source": str(folder / "text.src"), "target": str(folder / "text.tgt")}
    return validate(TrainConfig, SMALL | text | {"out": str(folder / out)} | changes)


def words(folder: Path, out: str = "run") -> list[str]:
    text = ["--source", str(folder / "text.src"), "--target", str(folder / "text.tgt")]
    return ["-q", "train", *text, "--out", str(folder / out), "--threads", "1", *SMALL_OPTIONS]


def run(folder: Path, **named: object) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "transduce", *words(folder)]
    named = {"capture_output": True, "text": True, "timeout": 200, "check": False} | named
    return subprocess.run(call, **named)


def refused(found: subprocess.CompletedProcess[str], told: str) -> None:
    """The last line is the error; what may stand before it are warnings of ours."""
    assert found.returncode == 2, found.stderr
    *before, last = found.stderr.splitlines()
    assert re.search(told, last), found.stderr
    assert last.startswith("error: ")
    assert all(line.startswith("warning: ") for line in before), found.stderr


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus, a run `whole` that went through, and `run`, stopped at step 10 of 20."""
    folder = tmp_path_factory.mktemp("crash")
    reversals(folder, seed=2)  # one that ends in `average`

    def save(training: object, score: object) -> None:
        original(training, score)
        if training.state.step == 10 and training.config.out.name == "run":
            raise Stopped

    original = loop_module._save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_module, "_save", save)
        train(settings(folder, "whole"))
        with pytest.raises(Stopped):
            train(settings(folder))
    assert checkpoint.steps(folder / "run") == [5, 10]
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy", symlinks=True))


def outcome(run: Path) -> list[object]:
    last = checkpoint.path(run, checkpoint.steps(run)[-1])
    return [
        (run / "best").readlink(),
        (run / "best" / "model.safetensors").read_bytes(),
        (last / "training.safetensors").read_bytes(),
        sorted(str(path.relative_to(run)) for path in run.rglob("*") if path.name != "lock"),
    ]


def goes_on_to_the_same_end(folder: Path, run: Path | None = None) -> None:
    run = run or folder / "run"
    train(settings(folder).model_copy(update={"out": run}))
    assert outcome(run) == outcome(folder / "whole")


def sound(run: Path, steps: list[int]) -> None:
    assert checkpoint.steps(run) == steps
    for step in steps:
        Translator.load(checkpoint.path(run, step)).translate("a b")
    Translator.load(run)
    assert not list(run.rglob(".*.part"))


# A disk that is full


@pytest.mark.parametrize("limit", [1_500, 100_000, 250_000])
def test_a_file_that_may_not_grow_ends_in_a_line(folder: Path, limit: int):
    # Even the smallest file; model.safetensors; training.safetensors: Python's and native writes.
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    sizes = [p.stat().st_size for p in (folder / "whole" / "best").glob("model.safetensors")]
    assert 100_000 < sizes[0] < 250_000
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    refused(run(folder, preexec_fn=limited, env=environment), "cannot be written: .*too large")
    sound(folder / "run", [5, 10])
    goes_on_to_the_same_end(folder)


def test_text_that_does_not_fit_on_the_disk_ends_in_a_line(folder: Path):
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, 3_000))

    shutil.rmtree(folder / "run")
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    refused(run(folder, preexec_fn=limited, env=environment), "cannot be written: .*too large")
    assert {path.name for path in (folder / "run").iterdir()} == {"lock"}
    goes_on_to_the_same_end(folder)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    call = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(place)]
    if subprocess.run(call, capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def remount(disk: Path, option: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{option}", str(disk)], check=True)


@pytest.mark.parametrize("spare", [0, 40_000, 300_000])
def test_a_full_disk_ends_in_a_line_and_room_is_enough_to_go_on(
    folder: Path, disk: Path, spare: int
):
    run = Path(shutil.copytree(folder / "run", disk / "run", symlinks=True))
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    (disk / "others").write_bytes(b"x" * (free - spare))
    with pytest.raises(RunError, match="No space left"):
        train(settings(folder).model_copy(update={"out": run}))
    sound(run, [5, 10])
    (disk / "others").unlink()
    goes_on_to_the_same_end(folder, run)


def test_a_disk_on_which_nothing_fits_is_told_at_the_very_start(folder: Path, disk: Path):
    free = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    (disk / "others").write_bytes(b"x" * free)
    with pytest.raises(RunError, match="No space left"):
        train(settings(folder).model_copy(update={"out": disk / "run"}))
    (disk / "others").unlink()
    goes_on_to_the_same_end(folder, disk / "run")


# A disk that may not be written


def test_a_read_only_folder_is_told_and_translates(folder: Path, disk: Path):
    run = Path(shutil.copytree(folder / "run", disk / "run", symlinks=True))
    remount(disk, "ro")
    with pytest.raises(RunError, match="cannot be used: Read-only file system"):
        train(settings(folder).model_copy(update={"out": run}))
    with pytest.raises(RunError, match="cannot be used: Read-only file system"):
        train(settings(folder).model_copy(update={"out": disk / "new"}))
    Translator.load(run).translate("a b")
    remount(disk, "rw")
    goes_on_to_the_same_end(folder, run)


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("call", ["rename", "replace", "fsync", "symlink"])
def test_a_disk_that_fails_while_training_ends_in_a_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
):
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(RunError, match=os.strerror(number)):
            train(settings(folder))
    assert checkpoint.steps(folder / "run")[:2] == [5, 10]
    Translator.load(folder / "run").translate("a b")
    goes_on_to_the_same_end(folder)


# Text that changes


@pytest.mark.parametrize("name", ["valid_source", "valid_target", "source"])
def test_a_file_that_changed_between_runs_is_named(folder: Path, name: str):
    shutil.rmtree(folder / "run")
    (folder / "valid").mkdir()
    source, target = reversals(folder / "valid", pairs=20, seed=2)
    config = settings(folder, valid_source=str(source), valid_target=str(target))
    train(config)
    changed = getattr(config, name)
    text = changed.read_text()
    changed.write_text(text.replace("a", "b", 1))
    with pytest.raises(RunError, match=rf"{name} was {changed.name}, is .* with other bytes"):
        train(config)
    changed.write_text(text)
    train(config)


def test_a_file_that_changes_while_it_is_read_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def read_while_somebody_writes(*arguments: object) -> object:
        (folder / "text.src").write_text(text.replace("a", "b", 1))
        return original(*arguments)

    text, original = (folder / "text.src").read_text(), start.prepare
    shutil.rmtree(folder / "run")
    with monkeypatch.context() as patch:
        patch.setattr(start, "prepare", read_while_somebody_writes)
        with pytest.raises(DataError, match=r"text\.src changed while it was read"):
            train(settings(folder))
    assert not (folder / "run" / "config.json").exists()
    (folder / "text.src").write_text(text)
    goes_on_to_the_same_end(folder)


# A checkpoint that is no longer what it was


def flip(path: Path, *, bit: int = 0) -> None:
    """Flip one bit in the last number of a file: it stays a number."""
    data = bytearray(path.read_bytes())
    data[-4] ^= 1 << bit
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors"])
def test_a_flipped_bit_in_the_newest_checkpoint_is_noticed(folder: Path, name: str):
    newest = checkpoint.path(folder / "run", 10)
    flip(newest / name)
    told = r"step-10 is damaged .*SHA256SUMS.*remove it to go on from step 5"
    with pytest.raises(RunError, match=told):
        train(settings(folder))
    shutil.rmtree(newest)
    goes_on_to_the_same_end(folder)


def test_a_changed_digit_of_the_state_is_noticed(folder: Path):
    path = checkpoint.path(folder / "run", 10) / "training.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps(state | {"position": state["position"] + 1}, indent=2) + "\n")
    with pytest.raises(RunError, match=r"step-10 is damaged"):
        train(settings(folder))


@pytest.mark.parametrize("step", [15, 20])
def test_a_flipped_bit_in_what_is_averaged_is_noticed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, step: int
):
    def damage(training: object, stop: object, monitor: object) -> object:
        flip(checkpoint.path(folder / "run", step) / "model.safetensors")
        return original(training, stop, monitor)

    original = loop_module._finish
    monkeypatch.setattr(loop_module, "_finish", damage)
    with pytest.raises(RunError, match=rf"step-{step} is damaged .*remove it"):
        train(settings(folder))


def test_without_the_best_one_the_newest_is_compared(folder: Path):
    (folder / "whole" / "metrics.jsonl").unlink()  # it does not know any more that it is finished
    state = json.loads((checkpoint.path(folder / "whole", 20) / "training.json").read_text())
    for step in checkpoint.steps(folder / "whole")[:-1]:
        shutil.rmtree(checkpoint.path(folder / "whole", step))
    result = train(settings(folder, "whole"))
    assert (result.folder / "model.safetensors").exists()
    assert state["step"] == 20


def test_the_sums_are_those_of_sha256sum_and_a_card_may_be_edited(folder: Path):
    newest = checkpoint.path(folder / "run", 10)
    (newest / "model_card.md").write_text("mine")
    call = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(call, cwd=newest, capture_output=True, check=False).returncode == 0
    goes_on_to_the_same_end(folder)


# Two at once


def test_a_second_process_is_refused_and_the_first_is_unharmed(folder: Path):
    call = [sys.executable, "-m", "transduce", *words(folder)]
    with subprocess.Popen(call, stderr=subprocess.PIPE) as first:
        records = len(list(read_metrics(folder / "run" / "metrics.jsonl")))
        while len(list(read_metrics(folder / "run" / "metrics.jsonl"))) <= records:
            assert first.poll() is None
            time.sleep(0.005)
        first.send_signal(signal.SIGSTOP)
        refused(run(folder), "another process trains in it now")
        first.send_signal(signal.SIGCONT)
        _, errors = first.communicate(timeout=200)
        assert first.returncode == 0, errors
    assert outcome(folder / "run") == outcome(folder / "whole")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_told_and_used(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
):
    def none(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", none)
    with caplog.at_level(logging.WARNING, logger="transduce"):
        goes_on_to_the_same_end(folder)
    assert "let nothing else use it" in caplog.text


# Clocks


@pytest.mark.parametrize("jump", [0.0, -1e6, 1e9])
def test_no_clock_is_trusted(folder: Path, monkeypatch: pytest.MonkeyPatch, jump: float):
    def clock() -> float:
        now[0] += jump * (1 if len(now) % 2 else -0.5)
        now.append(0.0)
        return now[0]

    now = [1e6]
    false = SimpleNamespace(monotonic=clock, time=clock, perf_counter=clock)
    monkeypatch.setattr(monitor_module, "time", false)
    monkeypatch.setattr(time, "time", clock)
    shown = io.StringIO()
    config = settings(folder, train=SMALL["train"] | {"log_every": 1})
    record = json.loads((folder / "run" / "config.json").read_text())
    record["settings"]["train"]["log_every"] = record["chosen"]["log_every"] = 1
    (folder / "run" / "config.json").write_text(json.dumps(record))
    train(config, console=Console(file=shown, width=200))
    records = list(read_metrics(folder / "run" / "metrics.jsonl"))
    assert all(record.get("tokens_per_second", 0) >= 0 for record in records)
    assert not re.search(r"-\d+:|-[\d,]+ tokens", shown.getvalue())
    assert outcome(folder / "run") == outcome(folder / "whole")


# Kills at chosen moments

KILLED = """
import importlib, os, re, signal, sys
from pathlib import Path
from transduce.cli.app import main

module, _, name = "{where}".partition(":")
module = importlib.import_module(module)
original = getattr(module, name)
def fatal(*arguments, **named):
    path = str(arguments[0])
    if re.search("{named}", path) and ("{named}" != ".step-" or Path(path).exists()):
        for _ in range({times}):
            os.kill(os.getpid(), signal.{signal})
    return original(*arguments, **named)
setattr(module, name, fatal)
sys.argv[0] = "transduce"
main()
"""


def killed(folder: Path, where: str, named: str = "", *, number: str = "SIGKILL", times: int = 1):
    script = KILLED.format(where=where, named=named, signal=number, times=times)
    call = [sys.executable, "-c", script, *words(folder)]
    return subprocess.run(call, capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize(
    ("where", "named", "left"),
    [
        ("transduce.files:flush", ".data.part", ".data.part"),  # in preparing the text
        ("transduce.files:flush", ".config.json.part", ".config.json.part"),
        ("transduce.files:flush", ".step-5.part", ".step-5.part"),  # in the first saving
        ("transduce.train.checkpoint:link_whole", "", "step-5"),  # between checkpoint and link
        ("transduce.files:flush", "/run/checkpoints$", "step-5"),  # named, but not flushed
        ("shutil:rmtree", ".step-", ".step-*.part"),  # in removing an old one
        ("transduce.files:flush", ".average.part", ".average.part"),
    ],
)
def test_killed_at_a_moment_it_leaves_nothing_behind(
    folder: Path, where: str, named: str, left: str
):
    shutil.rmtree(folder / "run")
    assert killed(folder, where, named).returncode == -signal.SIGKILL
    assert list((folder / "run").rglob(left)), "the moment that was meant"
    goes_on_to_the_same_end(folder)


@pytest.mark.parametrize(("times", "status"), [(1, 75), (2, -signal.SIGTERM)])
def test_asked_to_stop_in_a_validation(folder: Path, times: int, status: int):
    shutil.rmtree(folder / "run")
    found = killed(folder, "transduce.train.loop:validate", number="SIGTERM", times=times)
    assert found.returncode == status, found.stderr
    # Asked once it ends the validation and saves it; asked twice it ends as if nobody listened.
    assert checkpoint.steps(folder / "run") == ([5] if times == 1 else [])
    validated = [r for r in read_metrics(folder / "run" / "metrics.jsonl") if "valid_bleu" in r]
    assert len(validated) == (times == 1)
    goes_on_to_the_same_end(folder)


def test_killed_at_random_moments_it_ends_with_the_same_bytes():
    call = [sys.executable, str(ROOT / "benchmarks" / "kill.py"), "--kills", "2", "--steps", "20"]
    call += ["--threads", "1", "--ema", "0.9"]
    found = subprocess.run(call, capture_output=True, text=True, timeout=280, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    rows = [line.split("|") for line in found.stdout.splitlines() if "p32" in line or "f16" in line]
    assert [int(row[3]) for row in rows] == [1, 1]
