"""A dry run: what a training would read, choose and need, and everything that would stop it."""

import logging
import math
import os
import shutil
import tempfile
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console

from transduce.bundle import measure
from transduce.device import choose_device, set_threads
from transduce.errors import DataError, RunError, Stopped, TransduceError
from transduce.progress import Stage, say
from transduce.signals import stop_signals
from transduce.text.corpus import (
    UTF16,
    Pair,
    decode,
    read_records,
    reference_columns,
    two_columns,
    unequal,
)
from transduce.text.tokenizer import normalize
from transduce.train import checkpoint, run
from transduce.train.config import TrainConfig
from transduce.train.defaults import (
    check_memory,
    check_settings,
    choose,
    choose_vocab_size,
    settle_start,
)
from transduce.train.prepare import NOTHING_TO_VALIDATE, check_regular, open_data, prepare
from transduce.train.start import finished, measure_steps

_SAMPLE = 20_000
"""Pairs that are tried in earnest, or up to twice as many; a smaller corpus is tried whole."""
_TOLD = 20
"""Problems of one file that are told one by one."""


class Findings(NamedTuple):
    """What a dry run has found: with problems, a training would not run."""

    lines: list[str]
    problems: list[str]


class _Sample(NamedTuple):
    """Pairs taken evenly from a text of `total` pairs and `bytes` bytes."""

    pairs: list[Pair]
    total: int
    bytes: int


def check(config: TrainConfig, console: Console) -> Findings:
    """Do all that training does before its first step, on a sample if the text is long.

    Nothing is written but a copy of the sample, in the system's folder for temporary files, while
    it is at work. Errors of the text are found in the whole of it, with training's own readers.
    """
    findings = Findings([], [])
    device = torch.device("cpu")
    with _noting(findings):
        device = choose_device(config.device)
    with _noting(findings):
        config = settle_start(config)
        check_settings(config, device)
    with Stage(console, "reading the text") as stage:
        sample = _read_training(config, findings, stage)
    with Stage(console, "reading the validation set") as stage:
        _read_validation(config, findings, stage)
    goes_on = False
    with _noting(findings):
        goes_on = _look_at_out(config, findings, unread=bool(findings.problems))
    if not findings.problems and not goes_on:
        set_threads(config.threads)
        say(console, "trying a sample" if len(sample.pairs) < sample.total else "trying the text")
        try:  # a signal too has to remove the folder
            with (
                stop_signals(),
                _noting(findings),
                tempfile.TemporaryDirectory(prefix="transduce-check-") as folder,
            ):
                _try(config, sample, Path(folder), findings, device, console)
        except Stopped:  # no training began
            raise KeyboardInterrupt from None
    return findings


@contextmanager
def _noting(findings: Findings) -> Generator[None]:
    """Note an error as a problem, and go on after it."""
    try:
        yield
    except TransduceError as error:
        findings.problems.append(str(error))
    except OSError as error:
        where = error.filename or f"{tempfile.gettempdir()}, for temporary files"
        findings.problems.append(f"{where}: {error.strerror}")


class _File:
    """A text file whose problems are all found; the first ones are told, the others counted."""

    def __init__(self, option: str, path: Path, findings: Findings) -> None:
        self.option, self.path, self._findings = option, path, findings
        self.lines, self.bytes, self.problems = 0, 0, 0
        self.readable = True

    def note(self, error: DataError) -> None:
        self.problems += 1
        if self.problems <= _TOLD:
            self._findings.problems.append(str(error))

    def texts(self) -> Iterator[str | None]:
        """The records; None in the place of one that is not UTF-8."""
        try:
            check_regular(self.option, self.path)
            for number, record in enumerate(read_records(self.path), start=1):
                self.lines = number
                self.bytes += len(record) + 1
                try:
                    yield decode(self.path, number, record)
                except DataError as error:
                    self.note(error)
                    if number == 1 and record.startswith(UTF16):  # and so would be each line
                        self.readable = False
                        return
                    yield None
        except DataError as error:
            self.readable = False
            self.note(error)

    def rows(self, *, references: bool) -> Iterator[Pair]:
        """The rows of a file in columns; of a validation file, the source and a reference."""
        for number, text in enumerate(self.texts(), start=1):
            if text is None:
                continue
            try:
                if references:
                    source, *others = reference_columns(self.path, number, text)
                    yield Pair(source, next(filter(str.strip, others), ""))
                else:
                    yield Pair(*two_columns(self.path, number, text))
            except DataError as error:
                self.note(error)

    def close(self) -> None:
        """Tell the file's size, and how many problems were not told."""
        if self.problems > _TOLD:
            more = self.problems - _TOLD
            self._findings.problems.append(f"{self.path}: and {more:,} more lines like these")
        if self.readable:
            size = self.path.stat().st_size
            told = f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size:,} bytes"
            self._findings.lines.append(f"{self.option} {self.path}: {self.lines:,} lines, {told}")


def _pairs(source: _File, target: _File, findings: Findings) -> Iterator[Pair]:
    for left, right in zip_longest(source.texts(), target.texts()):
        if left is not None and right is not None:
            yield Pair(left, right)
    if source.lines != target.lines and source.readable and target.readable:
        error = unequal(source.path, target.path, (source.lines, target.lines))
        findings.problems.append(str(error))


def _read_training(config: TrainConfig, findings: Findings, stage: Stage) -> _Sample:
    files, pairs = _open(config, "", findings)
    kept, total = _take_sample(_counted(pairs, stage))
    for file in files:
        file.close()
    if not total and all(file.readable and not file.problems for file in files):
        findings.problems.append(f"{files[0].path}: there is no text in it")
    return _Sample(kept, total, sum(file.bytes for file in files))


def _read_validation(config: TrainConfig, findings: Findings, stage: Stage) -> None:
    files, pairs = _open(config, "valid_", findings)
    usable = sum(bool(a.strip() and b.strip()) for a, b in _counted(pairs, stage))
    for file in files:
        file.close()
    if files and not usable and all(file.readable and not file.problems for file in files):
        findings.problems.append(f"{files[0].path}: {NOTHING_TO_VALIDATE}")


def _counted(pairs: Iterable[Pair], stage: Stage) -> Iterator[Pair]:
    for number, pair in enumerate(pairs, start=1):
        if number % 1_000 == 0:
            stage.advance(1_000)
        yield pair


def _open(config: TrainConfig, kind: str, findings: Findings) -> tuple[list[_File], Iterator[Pair]]:
    """The files of the text ("") or of the validation set ("valid_"), and the pairs in them."""
    files = [
        _File(f"--{name.replace('_', '-')}", path, findings)
        for name, path in config.text_files().items()
        if name.startswith("valid_") == bool(kind)
    ]
    if not files:
        return [], iter(())
    if len(files) == 1:
        return files, files[0].rows(references=bool(kind))
    source, target = files
    return files, _pairs(source, target, findings)


def _take_sample(pairs: Iterable[Pair]) -> tuple[list[Pair], int]:
    """Take pairs evenly from first to last, and count all; nobody knows yet how many there are."""
    kept: list[Pair] = []
    every, total = 1, 0
    for pair in pairs:
        if total % every == 0:
            kept.append(pair)
            if len(kept) > 2 * _SAMPLE:
                kept, every = kept[::2], every * 2
        total += 1
    return kept, total


def _look_at_out(config: TrainConfig, findings: Findings, *, unread: bool) -> bool:
    """Tell what training would find in --out; True if it would go on, or has finished, there."""
    folder = config.out
    run.check_usable(folder)
    there = _existing(folder)
    if not os.access(there, os.W_OK):
        raise RunError(f"--out {folder} cannot be used: {there} may not be written to")
    if not (folder / "lock").exists():
        findings.lines.append(f"--out {folder}: a new run")
        return False
    with (folder / "lock").open(encoding="utf-8") as lock:
        run.check_free(folder, lock, exclusive=False)
    record = run.read(folder)
    if not record:
        findings.lines.append(f"--out {folder}: a run that had not begun; it would begin anew")
        return False
    if not unread:
        run.check(record, config, folder)
    done, steps = finished(folder), checkpoint.steps(folder)
    if not done:
        open_data(folder / "data")
    if not done and steps:
        with checkpoint.intact(folder, steps[-1]):
            pass
    state = "is finished; train would say so" if done else "is under way; train would go on"
    findings.lines.append(
        f"--out {folder}: this training {state}, from step {max(steps, default=0):,}"
    )
    return True


def _try(
    config: TrainConfig,
    sample: _Sample,
    folder: Path,
    findings: Findings,
    device: torch.device,
    console: Console,
) -> None:
    """Prepare the sample as training would, and infer what the whole would need."""
    whole = len(sample.pairs) == sample.total
    share = sample.total / len(sample.pairs)
    tried = _with_text(config, sample.pairs, folder)
    size = 0
    logger = logging.getLogger("transduce.text.tokenizer")
    if not whole:
        characters = len({c for pair in sample.pairs for side in pair for c in normalize(side)})
        size = choose_vocab_size(config, pairs=sample.total, characters=characters)
        changed = config.tokenizer.model_copy(update={"vocab_size": size})
        tried = tried.model_copy(update={"tokenizer": changed})
        findings.lines.append(
            f"in a sample of {len(sample.pairs):,} of {sample.total:,} pairs, evenly taken:"
        )
        logger.disabled = True  # the sample may not fill the vocabulary of the whole
    sample.pairs.clear()  # a training would not hold them: they are no part of the memory it takes
    try:
        data = prepare(tried, folder / "data", {}, console)
    finally:
        logger.disabled = False
    findings.lines.extend(data.report["lines"])
    pairs = round(share * len(data.train))
    tokens = round(share * max(data.report["training_tokens"].values())) + pairs
    sizes = data.sizes if whole or config.start_from else (size, size)
    architecture, chosen, reasons = choose(config, pairs=pairs, tokens=tokens, vocab_sizes=sizes)
    findings.lines.extend(reasons)
    check_memory(architecture, min(chosen.batch_tokens, tokens), device)
    parameters = sum(map(math.prod, measure(architecture)[0].values()))
    say(console, f"timing some steps of a model of {parameters:,} parameters")
    _, lines = measure_steps(config, data, architecture, chosen, device)
    findings.lines.extend(lines)
    weights = 4 * parameters
    # Checkpoints hold the weights and Adam's two moments: the last ones, the best, one being made.
    checkpoints = 3 * weights * (chosen.average_last + 2) + weights
    encoded = sum(p.stat().st_size for p in (folder / "data").rglob("*") if p.is_file())
    text = round(share * encoded) + 2 * sample.bytes
    _check_disk(config.out, checkpoints + text, findings)


def _with_text(config: TrainConfig, pairs: list[Pair], folder: Path) -> TrainConfig:
    """The same settings for other text."""
    paths = {"source": folder / "source", "target": folder / "target"}
    for name, path in paths.items():
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(getattr(pair, name) + "\n" for pair in pairs)
    return config.model_copy(update={**paths, "tsv": None})


def _existing(folder: Path) -> Path:
    """The folder itself or, where it has yet to be made, the nearest above it."""
    while not folder.exists():
        folder = folder.parent
    return folder


def _check_disk(out: Path, needed: int, findings: Findings) -> None:
    free = shutil.disk_usage(_existing(out.absolute())).free
    line = f"{needed / 1e9:,.1f} GB of disk, of {free / 1e9:,.1f} GB that are free"
    findings.lines.append(f"about {line}")
    if needed > free:
        findings.problems.append(f"--out {out} needs about {line}")
