"""Files that are whole or not there: written beside, flushed, renamed."""

import hashlib
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def whole_folder(folder: Path) -> Generator[Path]:
    """Yield a folder beside `folder` to fill; at the end it takes that name, on disk and complete.

    An error or a kill leaves nothing under the final name; what an earlier kill left is replaced.
    """
    beside = folder.with_name(f".{folder.name}.part")
    gone = folder.with_name(f".{folder.name}.old.part")
    shutil.rmtree(beside, ignore_errors=True)
    shutil.rmtree(gone, ignore_errors=True)
    beside.mkdir(parents=True)
    try:
        yield beside
        for path in [*beside.rglob("*"), beside]:
            flush(path)
        if folder.exists():  # removed under its name, a kill might leave half of it
            folder.rename(gone)
        beside.rename(folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(gone, ignore_errors=True)
    flush(folder.parent)


@contextmanager
def whole_file(path: Path) -> Generator[TextIO]:
    """Yield a text file to write; its name only ever shows all of the old or all of the new.

    A device or a pipe is written to directly, a link is followed.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        with path.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        return
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("w", encoding="utf-8", newline="\n") as file:
            yield file
        flush(beside)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    flush(path.parent)


def write_whole(path: Path, text: str) -> None:
    """Write a small text file, whole."""
    with whole_file(path) as file:
        file.write(text)


def link_whole(link: Path, target: str) -> None:
    """Point a relative symbolic link elsewhere in one move."""
    beside = link.with_name(f".{link.name}.part")
    beside.unlink(missing_ok=True)
    beside.symlink_to(target)
    beside.replace(link)
    flush(link.parent)


def sha256(path: Path) -> str:
    """Name a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def flush(path: Path) -> None:
    """Wait until a file's bytes, or a folder's names, are on disk."""
    if os.name == "nt":  # cannot do it this way, and only translates
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
