"""A training run's folder: whose it is, what was decided for it, and that one process has it.

RUN/  config.json  metrics.jsonl  lock  data/  checkpoints/step-N/  snapshots/step-N/  best -> ...
"""

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from pydantic import Field

from transduce.bundle import check_name
from transduce.config import Settings, differences, leaves, validate
from transduce.errors import RunError, SettingsError
from transduce.files import lock, not_own, read_json, read_plain, write_whole
from transduce.model.config import TransformerConfig
from transduce.train.config import TrainConfig
from transduce.train.defaults import Chosen
from transduce.train.prepare import fingerprints

FORMAT = 1
_FILES = ("lock", "config.json", "metrics.jsonl")
_FOLDERS = ("data", "checkpoints", "snapshots", "tensorboard")
_SIGNATURE = "a training run of transduce; locked while one is at work\n"


class Record(Settings):
    """What a run is: its settings and text files, and what was decided for it."""

    format: int = FORMAT
    settings: dict[str, Any]
    files: dict[str, dict[str, str]]
    architecture: TransformerConfig
    chosen: Chosen
    about: dict[str, str] = Field(default_factory=dict)
    """What its models say of themselves in words; runs of older versions took it from settings."""
    bf16: bool
    threads: int = Field(gt=0, le=1024)


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Hold a run's folder for this process; a process that is killed leaves no lock behind.

    Raises:
        RunError: the folder is something else, or another process trains in it.
    """
    path = folder / "lock"
    try:
        check_usable(folder)
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise RunError(f"--out {folder} cannot be used: {error.strerror}") from None
    with file:
        check_free(folder, file, exclusive=True)
        if not path.stat().st_size:
            file.write(_SIGNATURE)
            file.flush()
        yield


def check_usable(folder: Path) -> None:
    """Check that a folder is a run, or can become one.

    Raises:
        RunError, BundleError: it is something else; its name is not UTF-8.
        OSError: it cannot be looked into.
    """
    check_name(folder)
    if os.path.lexists(folder) and not folder.is_dir():  # links that lead nowhere too
        raise RunError(f"--out {folder} is not a folder; name one")
    if folder.exists() and any(folder.iterdir()) and not _is_ours(folder / "lock"):
        raise RunError(f"--out {folder} exists and is not a training run; name another folder")
    checkpoints = [path.relative_to(folder) for path in (folder / "checkpoints").glob("step-*")]
    if found := not_own(folder, _FILES, (*_FOLDERS, *map(str, checkpoints))):
        raise RunError(
            f"--out {folder}: {found} is a link, or none of a run's; remove it, or name another"
        )


def check_free(folder: Path, file: TextIO, *, exclusive: bool) -> None:
    """Take a run's lock, or just look whether somebody has it.

    Raises:
        RunError: another process has it.
    """
    if not lock(file, exclusive=exclusive):
        raise RunError(f"--out {folder}: another process trains in it now")


def _is_ours(path: Path) -> bool:
    """Whether a lock file is one that this module has made: what says that a folder is a run."""
    try:
        text = read_plain(path, len(_SIGNATURE))
    except OSError:
        return False
    # Empty: it was killed in its first moment, with nothing else there yet.
    return text == _SIGNATURE.encode("utf-8") or (
        not text and len(list(path.parent.iterdir())) == 1
    )


def check(record: Record, config: TrainConfig, folder: Path) -> None:
    """Check that a run's record is of this configuration and of these very text files.

    Raises:
        RunError: it is the run of other settings, or its text files have changed since.
    """
    plain = TrainConfig(tsv=Path()).identity()  # a setting that came later was as it is by default
    had = dict(leaves(plain)) | dict(leaves(record.settings))
    changed = differences(had, config.identity())
    before, now = record.files, fingerprints(config)
    for name in sorted(before.keys() | now.keys()):
        old, new = before.get(name, {}), now.get(name, {})
        if old.get("sha256") != new.get("sha256"):
            changed.append(f"{name} was {old.get('name')}, is {new.get('name')} with other bytes")
    if changed:
        raise RunError(
            f"--out {folder} is the run of other settings: {'; '.join(changed)}. "
            "Name another folder, or give the settings it had"
        )


def read(folder: Path) -> Record | None:
    """Return what a run has recorded about itself; None before its data is ready.

    Raises:
        RunError: its config.json is damaged, of another format, or gone from beside checkpoints.
    """
    path = folder / "config.json"
    if not path.exists():
        if (folder / "checkpoints").exists():
            raise RunError(
                f"{folder} has checkpoints, but its config.json is gone; name another --out"
            )
        return None
    try:
        tree = read_json(path)
        if (found := tree.get("format")) != FORMAT:
            raise RunError(f"{path} has format {found!r:.60}; this version reads {FORMAT}")
        return validate(Record, tree)
    except SettingsError as error:
        raise RunError(
            f"{path} was made by another version of transduce, or is damaged ({error}); "
            "name another --out"
        ) from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged ({error}); name another --out") from None


def write(folder: Path, record: Record) -> None:
    """Record what a run is."""
    text = json.dumps(record.model_dump(mode="json"), indent=2, ensure_ascii=False)
    write_whole(folder / "config.json", text + "\n")
