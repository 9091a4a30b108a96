"""TensorBoard's events are the numbers of metrics.jsonl, each step once, whatever stops a run."""

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from corpora import SMALL, SMALL_OPTIONS, reversals
from tensorboardX.proto.event_pb2 import Event, SessionLog

from transduce import train
from transduce.config import validate
from transduce.errors import RunError, SettingsError, Stopped
from transduce.tensorboard import EventWriter
from transduce.train import checkpoint
from transduce.train import loop as loop_module
from transduce.train.config import TrainConfig
from transduce.train.monitor import read_metrics


def settings(folder: Path, **changes: object) -> TrainConfig:
    text = {"source": str(folder / "text.src"), "target": str(folder / "text.tgt")}
    tree = SMALL | text | {"out": str(folder / "run"), "tensorboard": True}
    tree["train"] = SMALL["train"] | {"log_every": 1}
    return validate(TrainConfig, tree | changes)


def shown(folder: Path) -> dict[tuple[str, int], list[float]]:
    """What TensorBoard shows: files by name; the start of a session voids what is past its step."""
    found: dict[tuple[str, int], list[float]] = {}
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:  # a record: length, its checksum, the event, its checksum
            (length,) = struct.unpack("<Q", data[:8])
            event = Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]
            if event.session_log.status == SessionLog.START:
                found = {key: value for key, value in found.items() if key[1] < event.step}
            for value in event.summary.value:
                found.setdefault((value.tag, event.step), []).append(value.simple_value)
    return found


def recorded(run: Path) -> dict[tuple[str, int], list[float]]:
    return {
        (name, record["step"]): [pytest.approx(value, rel=1e-6)]
        for record in read_metrics(run / "metrics.jsonl")
        if "finished" not in record
        for name, value in record.items()
        if name not in ("step", "signature")
    }


def test_after_stops_each_step_is_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reversals(tmp_path)
    stops = [3, 10, 17]

    def update(training: object, *rest: object) -> object:
        result = original(training, *rest)
        if stops and training.state.step == stops[0]:
            stops.pop(0)
            raise Stopped
        return result

    original = loop_module._update
    monkeypatch.setattr(loop_module, "_update", update)
    for _ in range(3):
        with pytest.raises(Stopped):
            train(settings(tmp_path))
    train(settings(tmp_path))
    found = shown(tmp_path / "run" / "tensorboard")
    assert {step for name, step in found if name == "loss"} == set(range(1, 21))
    assert {step for name, step in found if name == "valid_bleu"} == {5, 10, 15, 20}
    assert found == recorded(tmp_path / "run")


def test_step_0_of_a_fine_tuning_that_was_killed_before_it_was_saved_is_there_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Killed(Exception):
        pass

    def kill(*_: object, **__: object) -> None:
        raise Killed

    reversals(tmp_path)
    train(settings(tmp_path))
    tree = settings(tmp_path).model_dump(exclude={"model", "tokenizer"})
    config = validate(TrainConfig, tree | {"start_from": tree["out"], "out": tmp_path / "tuned"})
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", kill)
        with pytest.raises(Killed):
            train(config)
    train(config)
    found = shown(config.out / "tensorboard")
    assert {step for name, step in found if name == "valid_bleu"} == {0, 5, 10, 15, 20}
    assert found == recorded(config.out)


def test_a_file_that_somebody_removed_does_not_shuffle_the_others(tmp_path: Path):
    for name in ("000001.out", "000010.out", "notes"):
        (tmp_path / name).touch()
    EventWriter(tmp_path, after=5).close()
    (made,) = {path.name for path in tmp_path.iterdir()} - {"000001.out", "000010.out", "notes"}
    assert made.startswith("000011.")


def test_it_is_not_written_through_a_link(tmp_path: Path):
    reversals(tmp_path)
    (tmp_path / "mine").mkdir()
    train(settings(tmp_path, tensorboard=False))
    (tmp_path / "run" / "metrics.jsonl").unlink()  # it has to finish again
    (tmp_path / "run" / "tensorboard").symlink_to(tmp_path / "mine")
    with pytest.raises(RunError, match="tensorboard is a link"):
        train(settings(tmp_path))
    assert not list((tmp_path / "mine").iterdir())


def test_it_is_no_other_run_with_it_or_without(tmp_path: Path):
    reversals(tmp_path)
    train(settings(tmp_path, tensorboard=False))
    assert not (tmp_path / "run" / "tensorboard").exists()
    train(settings(tmp_path))  # it is finished, and no other run


def test_a_full_disk_ends_it_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from tensorboardX.event_file_writer import EventsWriter

    def full(writer: EventsWriter) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        original(writer)

    calls, original = [], EventsWriter.flush

    reversals(tmp_path)
    monkeypatch.setattr(EventsWriter, "flush", full)
    with pytest.raises(RunError, match="No space left"):
        train(settings(tmp_path))


def test_not_installed_is_told_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    reversals(tmp_path)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(SettingsError, match=r"pip install 'transduce\[tensorboard\]'"):
        train(settings(tmp_path))
    assert not (tmp_path / "run").exists()
    train(settings(tmp_path, tensorboard=False))


def test_only_who_asks_for_it_imports_it(tmp_path: Path):
    reversals(tmp_path)
    script = (
        "import sys; from transduce.cli.app import main\n"
        "try: main()\n"
        "finally: print('tensorboardX' in sys.modules)"
    )
    words = ["train", "--source", f"{tmp_path}/text.src", "--target", f"{tmp_path}/text.tgt"]
    words += ["--out", str(tmp_path / "run"), "--threads", "1", *SMALL_OPTIONS]
    for more, expected in ((["--tensorboard"], "True\n"), ([], "False\n")):
        call = [sys.executable, "-c", script, *words, *more]
        found = subprocess.run(call, capture_output=True, text=True, timeout=200, check=False)
        assert found.returncode == 0, found.stderr
        assert found.stdout == expected
