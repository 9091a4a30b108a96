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
import stat
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import torch

from transduce.config import differences
from transduce.errors import BundleError, DataError
from transduce.files import flush, followed, lock, plain, read_json, sha256, write_whole

log = logging.getLogger(__name__)

FORMAT = 1
SECONDS_BETWEEN_RECORDS = 1.0
"""At least: to wait for the disk costs some milliseconds."""

_NOTHING = {"lines": 0, "bytes": 0}
_MODEL_FILES = ("config.json", "model.safetensors")
_TOKENIZERS = ("tokenizer.model", "source.model", "target.model")


def describe(
    models: Sequence[Path],
    file: Path,
    how: Mapping[str, Any],
    *,
    device: torch.device,
    version: str,
) -> dict[str, Any]:
    """Describe a translation: models and text by their bytes, `how` by name; `version` is ours.

    All that has to be the same at a resume is in "work"; what may change the last digits of a
    score, and is only warned of, in "place".

    Raises:
        BundleError: a file of a model cannot be read, or leads out of its folder.
        DataError: the text cannot be read.
    """
    try:
        text = sha256(file.resolve())[:16]
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror})") from None
    work = {"model": " + ".join(map(_fingerprint, models)), "text": text, **how}
    place = {
        "device": str(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transduce": version,
    }
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
        file.seek(done["bytes"])
        self.record()  # before the part changes: a kill must not leave a record that lies, or none
        file.truncate(done["bytes"])

    def add(self, text: str, lines: int) -> None:
        """Append the translations of the next lines, a window; from time to time record them."""
        self._file.write(text.encode("utf-8"))
        self.lines += lines
        if time.monotonic() - self._recorded >= SECONDS_BETWEEN_RECORDS:
            self.record()

    def record(self) -> None:
        """Note what is done, once it is on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        done = {"lines": self.lines, "bytes": self._file.tell()}
        write_whole(self._record, json.dumps({"format": FORMAT, **done, **self._about}) + "\n")
        self._recorded = time.monotonic()


def complete(path: Path) -> bool:
    """Whether an output is there and nothing of it is unfinished: there is nothing to resume."""
    path = path.resolve()
    if not path.exists() or os.path.lexists(path.with_name(f".{path.name}.unfinished")):
        return False
    with suppress(OSError):  # a record was left by a kill at the very end
        path.with_name(f".{path.name}.unfinished.json").unlink()
    return True


@contextmanager
def unfinished(path: Path, about: dict[str, Any], *, resume: bool) -> Generator[Part]:
    """Yield where to add translations; at the end it becomes `path`, complete and on disk.

    An error or a kill leaves what is recorded. With `resume` the next call goes on from there (or
    from the first line, where nothing was recorded); without it, it starts afresh and says so.

    Raises:
        DataError: what is there is of another translation, damaged, or being written; or with
            `resume` it is complete, see `complete`.
        OSError: it cannot be written.
    """
    path = followed(path)
    beside = path.with_name(f".{path.name}.unfinished")
    record = path.with_name(f".{path.name}.unfinished.json")
    if not os.path.lexists(beside):  # then the record, if any, was left by a kill at the very end
        _read(record)  # is it one?
        record.unlink(missing_ok=True)
        if resume and path.exists():
            raise DataError(f"--output {path}: another process has just completed it")
    with _open(beside, path) as file:
        _hold(file, beside, path)
        done = _read(record)
        if file.tell() and done is _NOTHING:
            raise DataError(f"{beside} is of no translation: it has no record beside; remove it")
        done = done if resume else _NOTHING
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
        if os.name == "nt":  # where no open file is renamed
            file.close()
        # Still under the lock: who takes it next finds that its file is this output now.
        beside.replace(path)
        record.unlink(missing_ok=True)
    flush(path.parent)


def _open(beside: Path, path: Path) -> IO[bytes]:
    """Open a part, or make one: never through a link put there, nor waiting for a pipe.

    Raises:
        DataError: it is a link, a pipe or a folder.
        OSError: it cannot be opened.
    """
    if os.path.lexists(beside) and not stat.S_ISREG(beside.lstat().st_mode):
        raise DataError(f"{beside} is a link, or no file; remove it")
    own = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    # What is private stays so; the owner has to be able to go on.
    mode = path.stat().st_mode & 0o666 | 0o200 if path.is_file() else 0o666
    return open(beside, "ab", opener=lambda name, flags: os.open(name, flags | own, mode))


def _hold(file: IO[bytes], beside: Path, path: Path) -> None:
    """Take a part for this process, until it is closed.

    Raises:
        DataError: another process has it, or has just made its output of it.
    """
    if not lock(file):
        raise DataError(f"--output {path}: another process is translating into it")
    try:
        same = os.path.samestat(os.fstat(file.fileno()), beside.lstat())
    except FileNotFoundError:
        same = False
    if not same:
        raise DataError(f"--output {path}: another process has just completed it")


def _leave(beside: Path, record: Path, path: Path) -> None:
    """Say what is kept of a translation that ends here; of nothing, keep nothing."""
    if done := _read(record)["lines"]:
        log.warning("--output %s: %d lines are done and kept; go on with --resume", path, done)
    else:
        beside.unlink(missing_ok=True)
        record.unlink(missing_ok=True)


def _read(record: Path) -> dict[str, Any]:
    """Return a record, where there is one."""
    try:
        done = read_json(record)
    except FileNotFoundError:
        return _NOTHING
    except OSError as error:
        raise DataError(f"{record} cannot be read: {error.strerror}") from None
    except ValueError:
        done = {}
    if "format" in done and done["format"] != FORMAT:
        raise DataError(f"{record} has format {done['format']!r:.60}; this version reads {FORMAT}")
    lines, size = done.get("lines"), done.get("bytes")
    counts = type(lines) is int and type(size) is int and 0 <= lines <= size  # each has an LF
    parts = [done.get("work"), done.get("place")]
    if not counts or not all(part and isinstance(part, dict) for part in parts):
        raise DataError(f"{record} is damaged; remove it and {record.stem} to start afresh")
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


def _fingerprint(folder: Path) -> str:
    """Name a model directory by the bytes that shape its translations."""
    files = [folder / name for name in (*_MODEL_FILES, *_TOKENIZERS)]
    try:
        sums = [sha256(plain(file)) if file.exists() else "-" for file in files]
    except OSError as error:
        raise BundleError(f"{error.filename}: cannot be read ({error.strerror})") from None
    return hashlib.sha256("".join(sums).encode("utf-8")).hexdigest()[:16]
