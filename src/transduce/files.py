"""Files that are whole or not there, and files of strangers: no link, pipe or size gets past.

Written beside, flushed, renamed. A folder that somebody else made may hold links; nothing here
reads or writes through one that leads out of its folder.
"""

import errno
import hashlib
import json
import logging
import os
import secrets
import shutil
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TextIO

log = logging.getLogger(__name__)

_LARGEST_JSON = 1 << 20
_DEEPEST_JSON = 16
_LARGEST_RECORD = 1 << 20
_LARGEST_RECORDS = 10**9
_END_OF_RECORDS = 1 << 16
"""Bytes in which the last record is looked for; that of a training has some two hundred."""


@contextmanager
def whole_folder(folder: Path, *, replace: bool = True) -> Generator[Path]:
    """Yield a folder beside `folder` to fill; at the end it takes that name, on disk and complete.

    An error or a kill leaves nothing under the final name. To replace what is there, and what an
    earlier kill left beside, the place has to be ours alone, as a run is while it is locked.
    Without `replace` nothing is touched that was there, or came meanwhile (an empty folder may go).

    Raises:
        OSError: it cannot be written; without `replace`, something has taken its name.
    """
    unique = "" if replace else f".{secrets.token_hex(4)}"
    beside = folder.with_name(f".{folder.name}{unique}.part")
    gone = folder.with_name(f".{folder.name}{unique}.old.part")
    remove(beside)
    remove(gone)
    beside.mkdir(parents=True)
    try:
        yield beside
        for path in [*beside.rglob("*"), beside]:
            flush(path)
        if replace and os.path.lexists(
            folder
        ):  # removed under its name, a kill might leave half of it
            folder.rename(gone)
        beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        if os.path.lexists(gone) and not os.path.lexists(folder):  # the new could not take its name
            gone.rename(folder)
        remove(gone)
    flush(folder.parent)


@contextmanager
def whole_file(path: Path, *, follow: bool = True) -> Generator[TextIO]:
    """Yield a text file to write; its name only ever shows all of the old or all of the new.

    A device or a pipe is written to directly. A link is followed; or else it is replaced, as is
    what an earlier kill left beside: the place has to be ours alone.

    Raises:
        OSError: it cannot be written; a link leads round in a circle.
    """
    if follow and path.exists() and not path.is_file():  # as named: a pipe may have no other name
        with path.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    path = followed(path) if follow else path
    unique = f".{secrets.token_hex(4)}" if follow else ""
    beside = path.with_name(f".{path.name}{unique}.part")
    if not follow:
        beside.unlink(missing_ok=True)
    made = beside.open("x", encoding="utf-8", newline="\n")  # never through a link
    try:
        with made as file:
            if follow and path.exists():
                shutil.copymode(path, beside)  # what is private stays so
            yield file
        flush(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    flush(path.parent)


def write_whole(path: Path, text: str) -> None:
    """Write a small text file, whole; a link in its place is replaced, not followed."""
    with whole_file(path, follow=False) as file:
        file.write(text)


def followed(path: Path) -> Path:
    """Return where a path leads, whether there is something or not.

    Raises:
        OSError: round in a circle.
    """
    real = Path(os.path.realpath(path))
    if real.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return real


def remove(path: Path) -> None:
    """Remove a folder or a file if it is there; of a link, the link and not what it leads to."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def plain(path: Path) -> Path:
    """Return the path of a regular file that lies, links followed, in the folder it is named in.

    Raises:
        OSError: it leads out of its folder, is no file, or is not there; strerror says which.
    """
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(path.parent)):
        raise OSError(errno.EPERM, "it is a link that leads out of its folder", str(path))
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise OSError(errno.EPERM, f"it is {what}, not a file", str(path))
    return path


def not_own(folder: Path, files: Sequence[str], folders: Sequence[str]) -> str | None:
    """Return the first of these names in a folder at which there is no file, or no folder, itself.

    For a folder to be written into: a link is none, even one that stays in the folder, as what is
    written there would lie elsewhere. A name at which there is nothing is not counted.
    """
    for is_kind, names in ((stat.S_ISREG, files), (stat.S_ISDIR, folders)):
        for name in names:
            if os.path.lexists(folder / name) and not is_kind((folder / name).lstat().st_mode):
                return name
    return None


def read_plain(path: Path, at_most: int) -> bytes:
    """Read a stranger's file as `plain` allows it, if it has at most so many bytes.

    Raises:
        OSError: it has more, or see `plain`.
    """
    with plain(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(min(size, at_most) + 1)  # so much memory is taken, read or not
    if len(data) > at_most:
        raise OSError(errno.EFBIG, f"it has more than {at_most:,} bytes", str(path))
    return data


def read_json(path: Path) -> dict[str, Any]:
    """Read a stranger's JSON object of at most a megabyte.

    Raises:
        OSError: see `read_plain`.
        ValueError: not JSON, not an object, a name twice, nested too deeply, too many digits.
    """
    data = read_plain(path, _LARGEST_JSON)
    try:
        tree = json.loads(data.decode("utf-8"), object_pairs_hook=_object)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(tree, dict):
        raise ValueError("it is no JSON object")
    level = [tree]
    for _ in range(_DEEPEST_JSON):
        below = [value.values() if isinstance(value, dict) else value for value in level]
        level = [v for values in below for v in values if isinstance(v, dict | list)]
        if not level:
            return tree
    raise ValueError("it is nested too deeply")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise ValueError("a name is in it twice")
    return tree


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file, one a line; a line that is none is left out and warned of.

    Raises:
        OSError: it has more than a gigabyte, or see `plain`.
    """
    with plain(path).open("rb") as file:
        if os.fstat(file.fileno()).st_size > _LARGEST_RECORDS:
            raise OSError(errno.EFBIG, f"it has more than {_LARGEST_RECORDS:,} bytes", str(path))
        for number, line in enumerate(_lines(file), start=1):
            try:
                tree = json.loads(line)
                if not isinstance(tree, dict):
                    raise ValueError
            except (ValueError, RecursionError):  # a kill has cut it short, or somebody was here
                log.warning("%s, line %d is no record and is left out", path, number)
            else:
                yield tree


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file; of one that is too long for a record, the beginning."""
    while line := file.readline(_LARGEST_RECORD):
        rest = line
        while len(rest) == _LARGEST_RECORD and not rest.endswith(b"\n"):
            rest = file.readline(_LARGEST_RECORD)
        yield line


def last_json_line(path: Path, key: str) -> dict[str, Any]:
    """Return the last JSON object with a whole number as `key`; empty: none near the file's end.

    Raises:
        OSError: see `plain`.
    """
    with plain(path).open("rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _END_OF_RECORDS))
        lines = file.read(_END_OF_RECORDS).split(b"\n")
    for line in reversed(lines):
        try:
            tree = json.loads(line)
        except (ValueError, RecursionError):  # a kill has cut it short, or somebody was here
            continue
        if isinstance(tree, dict) and isinstance(tree.get(key), int):
            return tree
    return {}


def lock(file: IO, *, exclusive: bool = True) -> bool:
    """Hold an open file until it is closed, or the process killed; False: another process has it.

    On Windows, where one only translates, and on file systems without locks nothing is held.
    """
    if os.name == "nt":
        return True
    import fcntl

    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # some network file systems
        log.warning("%s cannot be locked (%s): let nothing else use it", file.name, error.strerror)
    return True


def link_whole(link: Path, target: str) -> None:
    """Point a relative symbolic link elsewhere in one move."""
    beside = link.with_name(f".{link.name}.part")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    beside.replace(link)
    flush(link.parent)


def sha256(path: Path, *, follow: bool = True) -> str:
    """Name a file's bytes; a stranger's file without following links, see `plain`.

    Raises:
        OSError: it cannot be read, or `plain` refuses it.
    """
    with (path if follow else plain(path)).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_sums(path: Path) -> dict[str, str]:
    """Read the digests that a stranger's `sha256sum` wrote, by the name of the file.

    Raises:
        OSError: it cannot be read, or `plain` refuses it.
        ValueError: it is no text.
    """
    lines = read_plain(path, 1 << 16).decode("utf-8").splitlines()
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def flush(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on disk."""
    if os.name == "nt":  # cannot do it this way, and only translates
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def printable(text: str) -> str:
    """Return a text, such as a stranger's, that does nothing to a terminal and stays on its line.

    A byte of a file's name that is not Unicode stays too.
    """
    return "".join(
        c if c.isprintable() or "\udc80" <= c <= "\udcff" else f"\\x{ord(c):02x}" for c in text
    )
