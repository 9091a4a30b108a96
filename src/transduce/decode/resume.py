"""A translation into a file that outlives a kill: the part that is done, and a record of its work.

Beside OUT, until it is complete:

.OUT.unfinished         the translations so far
.OUT.unfinished.json    what is translated, with what and how; how many lines and bytes are done

What is not in the record is not done: a resume cuts the part there and makes the rest again. The
record is written at ends of windows, so that a resumed translation has the windows, and with them
the batches, of one that was never stopped: its bytes are the same, scores included.
"""

import hashlib
import json
import logging
import os
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from transduce.config import differences
from transduce.errors import DataError
from transduce.files import flush, sha256, write_whole

log = logging.getLogger(__name__)

FORMAT = 1
EVERY = 1.0
"""Seconds between records at least: to wait for the disk costs some milliseconds."""

_NOTHING = {"lines": 0, "bytes": 0}
_MODEL_FILES = ("config.json", "model.safetensors")
_TOKENIZERS = ("tokenizer.model", "source.model", "target.model")


def describe(
    models: Sequence[Path], file: Path, how: Mapping[str, Any], *, device: torch.device
) -> dict[str, Any]:
    """Describe a translation: models and text by their bytes, `how` by name.

    All that has to be the same at a resume is in "work"; what may change the last digits of a
    score, and is only warned of, in "place".

    Raises:
        DataError: the text cannot be read.
    """
    try:
        text = sha256(file)[:16]
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from None
    work = {"model": " + ".join(map(_fingerprint, models)), "text": text, **how}
    place = {"device": str(device), "threads": torch.get_num_threads(), "torch": torch.__version__}
    # As it comes back from a record: tuples are lists.
    return json.loads(json.dumps({"work": work, "place": place}))


class Part:
    """The part of a translation that is done: `lines` of the text."""

    def __init__(
        self, record: Path, file: IO[bytes], about: dict[str, Any], done: dict[str, Any]
    ) -> None:
        """Cut a file to what is done of it."""
        self.lines = done["lines"]
        self._record = record
        self._file = file
        self._about = about
        if not self.lines:  # before the part changes: a kill must not leave a record that lies
            record.unlink(missing_ok=True)
        file.truncate(done["bytes"])
        file.seek(done["bytes"])
        self.record()

    def add(self, text: str, lines: int) -> None:
        """Append the translations of the next lines, a window; from time to time record them."""
        self._file.write(text.encode("utf-8"))
        self.lines += lines
        if time.monotonic() - self._recorded >= EVERY:
            self.record()

    def record(self) -> None:
        """Note what is done, once it is on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        done = {"lines": self.lines, "bytes": self._file.tell()}
        write_whole(self._record, json.dumps({"format": FORMAT, **done, **self._about}) + "\n")
        self._recorded = time.monotonic()


@contextmanager
def unfinished(path: Path, about: dict[str, Any], *, resume: bool) -> Generator[Part]:
    """Yield where to add translations; at the end it becomes `path`, complete and on disk.

    An error or a kill leaves what is recorded; with `resume` the next call goes on from there, and
    without it starts afresh and says so. There may be nothing to go on with, but no `path` either.

    Raises:
        DataError: what is there is of another translation, damaged, or being written; or it is
            complete, so that there is nothing to resume.
        OSError: it cannot be written.
    """
    path = path.resolve()
    beside = path.with_name(f".{path.name}.unfinished")
    record = path.with_name(f".{path.name}.unfinished.json")
    if not beside.exists():  # then the record, if any, was left by a kill in the last moment
        record.unlink(missing_ok=True)
        if resume and path.exists():
            raise DataError(
                f"--output {path} exists, and nothing of it is unfinished; "
                "to translate again leave out --resume"
            )
    with beside.open("ab") as file:
        _lock(file, path)
        done = _read(record) if resume else _NOTHING
        if done["lines"]:
            _check(done, about, path, file.tell())
        elif record.exists() and not resume:
            log.warning("--output %s: starting afresh what was unfinished, without --resume", path)
        try:
            part = Part(record, file, about, done)
            yield part
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            _leave(beside, record, path)
            raise
    beside.replace(path)
    record.unlink()
    flush(path.parent)


def _leave(beside: Path, record: Path, path: Path) -> None:
    """Say what is kept of a translation that ends here; of nothing, keep nothing."""
    if done := _read(record)["lines"]:
        log.warning("--output %s: %d lines are done and kept; go on with --resume", path, done)
    else:
        beside.unlink(missing_ok=True)
        record.unlink(missing_ok=True)


def _read(record: Path) -> dict[str, Any]:
    """Return a record, where there is one."""
    if not record.exists():
        return _NOTHING
    try:
        done = json.loads(record.read_text(encoding="utf-8"))
        if done["format"] != FORMAT:
            raise DataError(f"{record} has format {done['format']}; this version reads {FORMAT}")
        if min(done["lines"], done["bytes"]) < 0 or not (done["work"] and done["place"]):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise DataError(f"{record} is damaged; leave out --resume to start afresh") from None
    return done


def _check(done: dict[str, Any], about: dict[str, Any], path: Path, size: int) -> None:
    if changed := differences(done["work"], about["work"]):
        raise DataError(
            f"--output {path} is unfinished with another text, model or options: "
            f"{'; '.join(changed)}. Give what it had, or leave out --resume to start afresh"
        )
    if size < done["bytes"]:
        raise DataError(
            f"--output {path}: of what was done {done['bytes'] - size} bytes are gone; "
            "leave out --resume to start afresh"
        )
    if changed := differences(done["place"], about["place"]):
        log.warning("%s: scores may differ in their last digits", "; ".join(changed))


def _lock(file: IO[bytes], path: Path) -> None:
    """Hold a file until it is closed; a process that is killed leaves no lock behind."""
    if os.name == "nt":  # has no such lock
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise DataError(f"--output {path}: another process is translating into it") from None


def _fingerprint(folder: Path) -> str:
    """Name a model directory by the bytes that shape its translations."""
    files = [folder / name for name in (*_MODEL_FILES, *_TOKENIZERS)]
    together = "".join(sha256(file) if file.exists() else "-" for file in files)
    return hashlib.sha256(together.encode("utf-8")).hexdigest()[:16]
