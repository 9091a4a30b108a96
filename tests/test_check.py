"""The verb check: all problems at once, the choices of a real training, and nothing written."""

import gzip
import os
import re
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from command import transduce
from corpora import SMALL, SMALL_OPTIONS, reversals
from rich.console import Console

from transduce import bundle, train
from transduce.config import validate
from transduce.errors import BundleError
from transduce.train import check as check_module
from transduce.train import defaults
from transduce.train.check import Findings, check
from transduce.train.config import TrainConfig

QUIET = Console(quiet=True)
ONE_THREAD = ["--threads", "1"]


def examine(folder: Path, **changes: object) -> Findings:
    text = {"source": str(folder / "text.src"), "target": str(folder / "text.tgt")}
    tree = SMALL | text | {"out": str(folder / "run")} | changes
    tree = {name: value for name, value in tree.items() if value is not None}
    before = snapshot(folder)
    findings = check(validate(TrainConfig, tree), QUIET)
    assert snapshot(folder) == before
    assert all("\n" not in line for line in (*findings.lines, *findings.problems))
    return findings


def snapshot(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path.relative_to(folder)): (path.lstat().st_mtime_ns, path.lstat().st_size)
        for path in [folder, *folder.rglob("*")]
    }


def test_what_would_run_is_told_as_the_training_does(tmp_path: Path):
    source, target = reversals(tmp_path)
    words = [
        "--source",
        source,
        "--target",
        target,
        "--out",
        tmp_path / "run",
        *SMALL_OPTIONS,
        *ONE_THREAD,
    ]
    checked = transduce("check", *words)
    assert checked.status == 0
    assert checked.text.endswith("this training would run\n")
    assert not (tmp_path / "run").exists()
    trained = transduce("train", *words)
    told = [line.strip() for line in trained.errors.splitlines() if line.startswith("  ")]
    facts = [line for line in told if any(word in line for word in ("pairs", "vocab", "param"))]
    assert len(facts) >= 4
    for line in facts:
        assert line in checked.text.splitlines()
    again = transduce("check", *words)
    assert again.status == 0
    assert "is finished" in again.text


def test_all_problems_are_listed(tmp_path: Path):
    reversals(tmp_path, pairs=30)
    lines = (tmp_path / "text.src").read_bytes().split(b"\n")
    lines[3], lines[7] = b"a \xff b", b"\xc3"
    (tmp_path / "text.src").write_bytes(b"\n".join(lines[:-3]) + b"\n")
    (tmp_path / "valid.tsv").write_text("a\tb\nc\na\tb\tc\n\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").touch()
    found = examine(tmp_path, valid_tsv=str(tmp_path / "valid.tsv"), device="tpu")
    expected = [
        "device 'tpu' cannot be used",
        "text.src, line 4: byte 3 is not UTF-8 (0xFF)",
        "text.src, line 8: byte 1 is not UTF-8 (0xC3)",
        "text.src has 28 lines and ",
        "valid.tsv, line 2: 1 column; a validation file has a source and one reference or more",
        "valid.tsv, line 4: the line is empty; a validation file",
        "exists and is not a training run",
    ]
    assert len(found.problems) == len(expected)
    for problem, words in zip(found.problems, expected, strict=True):
        assert words in problem


def test_every_file_is_looked_for(tmp_path: Path):
    reversals(tmp_path, pairs=30)
    (tmp_path / "dir").mkdir()
    names = {"source": "no", "target": "dir", "valid_source": "text.src", "valid_target": "nope"}
    found = examine(tmp_path, **{key: str(tmp_path / name) for key, name in names.items()})
    assert len(found.problems) == 3
    for problem, name in zip(found.problems, ("no", "dir", "nope"), strict=True):
        assert str(tmp_path / name) in problem
    assert found.problems[1].endswith("dir is a folder, not a text file")


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_one_problem(tmp_path: Path, encoding: str):
    source, _ = reversals(tmp_path, pairs=30)
    source.write_bytes(("\ufeff" + source.read_text()).encode(encoding))
    (problem,) = examine(tmp_path).problems
    assert problem == (
        f"{source}: the file looks like UTF-16; convert it to UTF-8, e.g. iconv -f utf-16 -t utf-8"
    )


def test_many_problems_are_counted(tmp_path: Path):
    reversals(tmp_path, pairs=30)
    (tmp_path / "text.tsv").write_text("one column\n" * 5000 + "a\tb\n")
    found = examine(tmp_path, source=None, target=None, tsv=str(tmp_path / "text.tsv"))
    assert len(found.problems) == 21
    assert found.problems[-1].endswith("and 4,980 more lines like these")


@pytest.mark.parametrize("data", [b"", b"\n\n\n", b"\xef\xbb\xbf"])
def test_nothing_to_learn_from_is_a_problem(tmp_path: Path, data: bytes):
    for name in ("text.src", "text.tgt"):
        (tmp_path / name).write_bytes(data)
    assert len(examine(tmp_path).problems) == 1


@pytest.mark.parametrize("data", [b"", b"\n\n", b"a b\t\n\tb\n"])
def test_nothing_to_validate_with_is_a_problem_beside_others(tmp_path: Path, data: bytes):
    reversals(tmp_path, pairs=30)
    (tmp_path / "valid.tsv").write_bytes(data)
    found = examine(tmp_path, valid_tsv=str(tmp_path / "valid.tsv"), source=str(tmp_path / "no"))
    assert "no: cannot be read" in found.problems[0]
    assert str(tmp_path / "valid.tsv") in found.problems[-1]


def test_the_disk_is_for_bytes_not_for_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reversals(tmp_path)
    needed = []
    monkeypatch.setattr(check_module, "_check_disk", lambda out, size, found: needed.append(size))
    examine(tmp_path)
    text = "".join(f"{chr(0x10000 + i)}\n" for i in range(8))
    for name in ("text.src", "text.tgt"):
        with (tmp_path / name).open("a", encoding="utf-8") as file:
            file.write(text * 10_000)
    examine(tmp_path)
    assert needed[1] - needed[0] > 2 * 2 * 5 * 8 * 10_000


def test_a_damaged_gz_is_a_problem(tmp_path: Path):
    source, _ = reversals(tmp_path)
    packed = gzip.compress(source.read_bytes())
    (tmp_path / "text.src.gz").write_bytes(packed)
    assert not examine(tmp_path, source=str(tmp_path / "text.src.gz")).problems
    (tmp_path / "text.src.gz").write_bytes(packed[: len(packed) // 2])
    (problem,) = examine(tmp_path, source=str(tmp_path / "text.src.gz")).problems
    assert "cannot be read" in problem


def test_a_run_is_gone_on_with_or_refused(tmp_path: Path):
    reversals(tmp_path)
    text = {"source": str(tmp_path / "text.src"), "target": str(tmp_path / "text.tgt")}
    train(validate(TrainConfig, SMALL | text | {"out": str(tmp_path / "run")}))
    assert any("is finished" in line for line in examine(tmp_path).lines)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "run" / "metrics.jsonl").write_text("".join(lines[:-1]))
    assert any("would go on, from step 20" in line for line in examine(tmp_path).lines)
    (problem,) = examine(tmp_path, seed=2).problems
    assert "seed was 1, is 2" in problem
    (tmp_path / "text.src").write_text((tmp_path / "text.src").read_text()[:-2] + "x\n")
    (problem,) = examine(tmp_path).problems
    assert "with other bytes" in problem


def test_a_long_text_is_tried_by_a_sample_from_first_to_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    reversals(tmp_path, pairs=5000)
    whole = examine(tmp_path)
    monkeypatch.setattr(check_module, "_SAMPLE", 300)
    found = examine(tmp_path)
    (line,) = (line for line in found.lines if "in a sample of" in line)
    assert line == "in a sample of 313 of 5,000 pairs, evenly taken:"
    # 5,000 is 313 taken every 16th.
    assert not found.problems

    def parameters(findings: Findings) -> str:
        return next(line.split(",")[0] for line in findings.lines if "parameters" in line)

    assert abs(len(parameters(found)) - len(parameters(whole))) <= 1


def test_a_bad_line_outside_the_sample_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reversals(tmp_path, pairs=5000)
    lines = (tmp_path / "text.tgt").read_bytes().split(b"\n")
    lines[4321] = b"\xfe"
    (tmp_path / "text.tgt").write_bytes(b"\n".join(lines))
    monkeypatch.setattr(check_module, "_SAMPLE", 300)
    (problem,) = examine(tmp_path).problems
    assert "text.tgt, line 4322: byte 1 is not UTF-8" in problem


def test_a_model_that_cannot_fit_is_told_before_it_is_made(tmp_path: Path):
    source, target = reversals(tmp_path)
    huge = {"d_model": 2**16, "d_ff": 2**20, "heads": 8, "encoder_layers": 20}
    (problem,) = examine(tmp_path, model=SMALL["model"] | huge).problems
    assert "GB of memory at least, and cpu has" in problem
    words = [f"model.{name}={value}" for name, value in huge.items()]
    options = [part for word in words for part in ("--set", word)]
    for verb in ("check", "train"):
        found = transduce(
            verb, "--source", source, "--target", target, "--out", tmp_path / "o", *options
        )
        assert found.status == 2
        assert found.errors.count("\n") == 1
        assert "GB of memory at least" in found.errors


@pytest.mark.parametrize(
    "setting", ["model.d_ff=10**9", "model.d_model=10000000", "model.max_length=1000000000"]
)
def test_absurd_settings_are_told_in_a_line(tmp_path: Path, setting: str):
    source, target = reversals(tmp_path, pairs=30)
    found = transduce("check", "--source", source, "--target", target, "--set", setting)
    assert found.status == 2
    assert found.errors.count("\n") == 1


def test_a_batch_that_cannot_fit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A batch never has more than the whole text; here the machine is small instead."""
    reversals(tmp_path)
    monkeypatch.setattr(defaults, "machine_memory", lambda device: 2_000_000)
    changes = {"train": SMALL["train"] | {"batch_tokens": 10**15}}
    (problem,) = examine(tmp_path, **changes).problems
    assert "lower model.d_model, d_ff or the layers, or train.batch_tokens" in problem
    assert not examine(tmp_path).problems


def test_a_full_disk_is_foreseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    reversals(tmp_path)
    monkeypatch.setattr(
        check_module.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 100_000})
    )
    (problem,) = examine(tmp_path).problems
    assert "GB of disk" in problem


def test_a_name_that_is_no_unicode_is_checked_and_trained(tmp_path: Path):
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    source, target = reversals(folder)
    source = source.rename(folder / os.fsdecode(b"t\xe9xt.src"))
    words = [
        "--source",
        source,
        "--target",
        target,
        "--out",
        tmp_path / "run",
        *SMALL_OPTIONS,
        *ONE_THREAD,
    ]
    for verb in ("check", "train", "train"):
        found = transduce(verb, *words)
        assert found.status == 0, found.errors
        assert str(source) in found.text or verb == "train"
    assert "t\ufffdxt.src" in (tmp_path / "run" / "best" / "model_card.md").read_text()
    shutil.copytree(tmp_path / "run", folder / "run", symlinks=True)
    with pytest.raises(BundleError, match="UTF-8"):
        bundle.load(folder / "run")
    files = {"source": str(source), "target": str(target), "out": str(folder / "new")}
    (problem,) = examine(tmp_path, **files).problems
    assert "only where names are UTF-8" in problem


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
):
    reversals(tmp_path)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))

    def interrupted(*_: object) -> None:
        assert list((tmp_path / "temporary").glob("transduce-check-*"))
        signal.raise_signal(number)

    monkeypatch.setattr(check_module, "measure_steps", interrupted)
    with pytest.raises(KeyboardInterrupt):  # as while it reads: no training was stopped
        examine(tmp_path)
    assert not list((tmp_path / "temporary").glob("transduce-check-*"))


def test_a_validation_line_may_lack_its_first_reference(tmp_path: Path):
    reversals(tmp_path)
    (tmp_path / "valid.tsv").write_text("a b\t\tb a\n")
    table = {"valid_tsv": str(tmp_path / "valid.tsv")}
    assert not examine(tmp_path, **table).problems
    (tmp_path / "valid.tsv").write_text("a b\t\t \n")
    (problem,) = examine(tmp_path, **table).problems
    assert "the validation set has no pair with text on both sides" in problem


def test_what_takes_long_is_told(tmp_path: Path):
    source, target = reversals(tmp_path)
    words = ["--source", source, "--target", target, "--out", tmp_path / "run"]
    checked = transduce("check", *words, *SMALL_OPTIONS, *ONE_THREAD)
    [told] = re.findall(r"timing some steps of a model of ([\d,]+) parameters", checked.errors)
    assert f"{told} parameters, fp32" in checked.text
