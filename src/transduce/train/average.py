"""The mean of a run's last checkpoints, or of several models, as a model of its own."""

import os
from pathlib import Path
from typing import Any

from transduce import bundle
from transduce.errors import BundleError, RunError, TransduceError
from transduce.files import plain, printable, read_sums, sha256, whole_folder
from transduce.train import checkpoint
from transduce.train.card import SCORES
from transduce.train.describe import read_card, step_of

_LAST = 5
"""Checkpoints of a run, at most, where their number was not said: the paper's, of its base model
(section 6.1)."""


def write_average(models: list[Path], out: Path, last: int | None = None) -> list[dict[str, Any]]:
    """Write the mean of models in a new folder, and return what its config.json says of them.

    Raises:
        BundleError, TokenizerError: there is something in `out`, or what is given cannot be
            averaged.
        RunError: a training removed a checkpoint while it was read.
    """
    if os.path.lexists(out):
        raise BundleError(f"--out {out} exists; remove it, or name another folder")
    bundle.check_name(out)
    if len(models) == 1:
        folders = _last_checkpoints(models[0], last)
    elif last is not None:
        raise BundleError("--last counts the checkpoints of one run; several models are given")
    else:
        folders = [bundle.find(model) for model in models]
    try:
        sources = [_source(folder) for folder in folders]
        mean = bundle.load(folders[-1])
        tensors = bundle.average(folders)
        card = _card(sources, read_card(folders[-1]))
    except (TransduceError, OSError) as error:
        if gone := [folder for folder in folders if not folder.exists()]:
            raise RunError(
                f"{gone[0]} was removed while it was read: a training is at work there; "
                "try again, with a smaller --last if need be"
            ) from None
        if isinstance(error, OSError):
            raise BundleError(f"{error.filename}: {error.strerror}") from None
        raise
    try:
        bundle.put_weights(mean.model, tensors, out)
    except BundleError:
        for folder in folders:  # one of them is not finite: it is told which
            bundle.load_weights(mean.model, folder / "model.safetensors")
        raise
    try:
        with whole_folder(out, replace=False) as beside:
            bundle.save(beside, mean, card, sources=sources)
    except OSError as error:
        why = "something has just taken its name" if os.path.lexists(out) else error.strerror
        raise BundleError(f"--out {out} cannot be written: {why}") from None
    return sources


def _last_checkpoints(run: Path, last: int | None) -> list[Path]:
    if not (run / "checkpoints").is_dir():
        raise BundleError(f"{run} is not a training run; name one, or several models")
    steps = checkpoint.steps(run)
    if not steps:
        raise BundleError(f"{run} has no checkpoint yet")
    if last is not None and len(steps) < last:
        raise BundleError(
            f"{run} has {len(steps)} checkpoints (steps {', '.join(f'{s:,}' for s in steps)}), "
            f"--last asks for {last}; a run keeps its newest, its best and train.average_last"
        )
    folders = [checkpoint.path(run, step) for step in steps[-(last or _LAST) :]]
    for folder in folders:
        if not folder.resolve().is_relative_to(run.resolve()):
            raise BundleError(f"{folder} leads out of the run; remove it")
    return folders


def _source(folder: Path) -> dict[str, Any]:
    """What names a source for good: its step, if it is a checkpoint, and its weights' sha256.

    Raises:
        BundleError: its weights are not those that training has saved.
        OSError: it cannot be read.
    """
    weights = sha256(plain(folder / "model.safetensors"))
    try:
        saved = read_sums(folder / "SHA256SUMS").get("model.safetensors", weights)
    except FileNotFoundError:  # no checkpoint
        saved = weights
    except ValueError:  # no text
        saved = None
    if saved != weights:
        raise BundleError(
            f"{folder} is damaged: its model.safetensors is not that of its SHA256SUMS; remove it"
        )
    return {"name": printable(folder.resolve().name), "step": step_of(folder), "sha256": weights}


def _card(sources: list[dict[str, Any]], last: str) -> str:
    listed = "\n".join(f"- {s['name']}: model.safetensors sha256 {s['sha256']}" for s in sources)
    return f"""# A mean of {len(sources)} models

Each weight is the mean of those of (section 6.1 of the paper):

{listed}

It has not been validated. The card of the last of them follows.

---

{last.replace(f"## {SCORES}", f"## {SCORES} of the last of them")}"""
