"""Checkpoints: a model directory plus what training needs to go on as if nothing had happened.

checkpoints/step-N/  the model directory + training.safetensors + training.json + SHA256SUMS
checkpoints/average/ the model directory of the mean of the last ones, where that is the best
snapshots/step-N/    the model directory of a checkpoint that is gone, where these are to be kept
"""

import json
import math
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch
from pydantic import Field
from safetensors.torch import save_file
from torch import Tensor
from torch.optim import Optimizer

from transduce.bundle import (
    FORMAT,
    Bundle,
    average,
    load_tokenizers,
    load_weights,
    put_weights,
    read_config,
    read_tensors,
)
from transduce.bundle import save as save_bundle
from transduce.config import Settings, validate
from transduce.errors import RunError, TransduceError
from transduce.files import link_whole, read_json, read_sums, remove, sha256, whole_folder
from transduce.model.transformer import Transformer

_SUMS = "SHA256SUMS"
_SUMMED = {"config.json", "model.safetensors", "training.safetensors", "training.json"}
"""What training reads again, beside the tokenizers; a card may be edited."""


class State(Settings, frozen=False):
    """Where a training stands, weights aside; the order of data and dropout follow from it."""

    step: int = Field(0, ge=0, le=10**9)
    epoch: int = Field(0, ge=0, le=10**18)
    position: int = Field(0, ge=0, le=10**18)
    """Steps of this epoch that are done."""
    best_step: int = Field(-1, ge=-1, le=10**9)
    """-1: none has been validated; 0: the model that a fine-tuning began from."""
    best_bleu: float = -1.0
    best_loss: float = Field(math.inf, ge=0, allow_inf_nan=True)
    stale: int = Field(0, ge=0, le=10**9)
    """Validations since the best one."""
    validated: list[int] = Field(default_factory=list)
    """Steps of the last `average_last` validations."""


def save(
    run: Path, state: State, kept: Bundle, model: Transformer, optimizer: Optimizer, card: str
) -> Path:
    """Write the checkpoint of a state under its final name, whole.

    `kept` is what is to be used; where it is a moving average, the weights of `model` themselves
    go to training.safetensors, beside Adam's moments.
    """
    folder = path(run, state.step)
    with whole_folder(folder) as beside:
        save_bundle(beside, kept, card)
        tensors = _training_tensors(kept, model, optimizer).items()
        copies = {name: tensor.cpu().contiguous() for name, tensor in tensors}
        save_file(copies, beside / "training.safetensors")
        text = json.dumps({"format": FORMAT, **state.model_dump()}, indent=2)
        (beside / "training.json").write_text(text + "\n", encoding="utf-8")
        names = sorted({file.name for file in beside.iterdir()} - {"model_card.md"})
        sums = "".join(f"{sha256(beside / name)}  {name}\n" for name in names)
        (beside / _SUMS).write_text(sums, encoding="utf-8")  # as `sha256sum --check` wants it
    return folder


def path(run: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return run / "checkpoints" / f"step-{step}"


def steps(run: Path) -> list[int]:
    """The steps of a run's checkpoints, in the order of numbers (9000 before 10000)."""
    found = (re.fullmatch(r"step-(\d+)", folder.name) for folder in (run / "checkpoints").glob("*"))
    return sorted(int(match[1]) for match in found if match)


def restore(run: Path, kept: Bundle, model: Transformer, optimizer: Optimizer) -> State:
    """Put a run's newest checkpoint into what `save` was given; without one, start at step 0.

    Raises:
        RunError: the newest checkpoint is damaged.
    """
    done = steps(run)
    if not done:
        return State()
    folder = path(run, done[-1])
    with intact(run, done[-1]):
        record = read_json(folder / "training.json")
        state = validate(State, {key: value for key, value in record.items() if key != "format"})
        if record != {"format": FORMAT, **state.model_dump()} or state.step != done[-1]:
            raise ValueError(f"its training.json is not of step {done[-1]} in format {FORMAT}")
        if read_config(folder)["architecture"] != kept.model.config:
            raise ValueError("its config.json is not the run's")
        for old, new in zip(load_tokenizers(folder), kept[1:3], strict=True):
            if old.model != new.model:
                raise ValueError("its tokenizer is not the run's")
        load_weights(kept.model, folder / "model.safetensors")
        live = _training_tensors(kept, model, optimizer)
        shapes = {name: tuple(tensor.shape) for name, tensor in live.items()}
        for name, tensor in read_tensors(folder / "training.safetensors", shapes).items():
            live[name].copy_(tensor)
    # Somebody may have removed newer ones, which had taken the place of these.
    state.validated = [step for step in state.validated if step in done]
    if state.best_step not in done:
        state.best_step, state.best_bleu, state.best_loss, state.stale = -1, -1.0, math.inf, 0
    return state


def load_model(run: Path, kept: Bundle, step: int) -> None:
    """Put the model of a step into `kept`, if it is as it was saved.

    Raises:
        RunError: the checkpoint is damaged.
    """
    with intact(run, step):
        load_weights(kept.model, path(run, step) / "model.safetensors")


@contextmanager
def intact(run: Path, step: int) -> Generator[None]:
    """Check the sums of a checkpoint's files; tell that, and any error within, as its damage.

    A bit that has flipped in a weight would show nowhere else: it is a number like any other.

    Raises:
        RunError: the checkpoint is damaged; what to do instead.
    """
    folder, others = path(run, step), [other for other in steps(run) if other != step]
    remedy = f"go on from step {others[-1]:,}" if others else "begin anew"
    try:
        sums = read_sums(folder / _SUMS)
        if lacking := _SUMMED - sums.keys():
            raise ValueError(f"its {_SUMS} lacks {', '.join(sorted(lacking))}")
        for name, digest in sums.items():
            if sha256(folder / Path(name).name, follow=False) != digest:
                raise ValueError(f"{name!r:.60} is not that of its {_SUMS}")
        yield
    except (TransduceError, OSError, ValueError) as error:
        raise RunError(f"{folder} is damaged ({error}); remove it to {remedy}") from None


def point_best(run: Path, folder: Path) -> None:
    """Make `best` name a checkpoint, in one move."""
    link_whole(run / "best", str(folder.relative_to(run)))


def prune(run: Path, state: State, *, snapshots: bool = False) -> None:
    """Remove the checkpoints that are neither the newest, the best, nor to be averaged.

    What a kill left of a saving or of a removal goes too. With `snapshots` their models stay.
    """
    kept = {state.step, state.best_step, *state.validated}
    for folder in (path(run, step) for step in steps(run) if step not in kept):
        if snapshots:  # all but what a training goes on from
            with whole_folder(run / "snapshots" / folder.name) as beside:
                rest = shutil.ignore_patterns("training.*", _SUMS)
                shutil.copytree(folder, beside, ignore=rest, dirs_exist_ok=True)
        folder.rename(folder.with_name(f".{folder.name}.part"))  # gone at once, or there
    for rest in (run / "checkpoints").glob(".*.part"):
        remove(rest)


def load_average(run: Path, bundle: Bundle, state: State) -> None:
    """Put the mean of the last validated checkpoints into the model (section 6.1)."""
    folders = [path(run, step) for step in state.validated]
    for step in state.validated:
        with intact(run, step):
            pass  # the sums are all that can be wrong with it
    put_weights(bundle.model, average(folders), folders[-1])


def save_average(run: Path, bundle: Bundle, card: str) -> Path:
    """Write the model directory of a mean."""
    folder = run / "checkpoints" / "average"
    with whole_folder(folder) as beside:
        save_bundle(beside, bundle, card)
    return folder


def _training_tensors(kept: Bundle, model: Transformer, optimizer: Optimizer) -> dict[str, Tensor]:
    """By the parameter's name: Adam's moments, its count of updates, the weights if not `kept`.

    They are those in use, not copies; of an optimizer that has made no update they are 0.
    """
    tensors = {}
    for name, parameter in model.named_parameters():
        moments = optimizer.state[parameter]
        for key in ("step", "exp_avg", "exp_avg_sq"):
            shape = () if key == "step" else parameter.shape
            moments.setdefault(key, torch.zeros(shape, device=parameter.device))
            tensors[f"{key}.{name}"] = moments[key]
        if model is not kept.model:
            tensors[f"weights.{name}"] = parameter.detach()
    return tensors
