"""Checkpoints: a model directory plus what training needs to go on as if nothing had happened.

checkpoints/step-N/  the model directory + training.safetensors + training.json
checkpoints/average/ the model directory of the mean of the last ones, made at the end
"""

import json
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor
from torch.optim import Optimizer

from transduce import bundle
from transduce.bundle import Bundle
from transduce.errors import BundleError, RunError
from transduce.files import link_whole, whole_folder


@dataclass
class State:
    """Where a training stands, weights aside; the order of data and dropout follow from it."""

    step: int = 0
    epoch: int = 0
    position: int = 0
    """Steps of this epoch that are done."""
    best_step: int = 0
    best_bleu: float = -1.0
    stale: int = 0
    """Validations since the best one."""
    validated: list[int] = field(default_factory=list)
    """Steps at which the last `average_last` validations were made."""
    skipped: int = 0
    """Updates in a row that were not applied, their loss or gradient not being finite."""
    stopped_early: bool = False


def save(run: Path, state: State, model: Bundle, optimizer: Optimizer, card: str) -> Path:
    """Write the checkpoint of a state under its final name, whole."""
    folder = path(run, state.step)
    with whole_folder(folder) as beside:
        bundle.save(beside, model, card)
        save_file(_moments(model, optimizer), beside / "training.safetensors")
        text = json.dumps({"format": bundle.FORMAT, **asdict(state)}, indent=2)
        (beside / "training.json").write_text(text + "\n", encoding="utf-8")
    return folder


def path(run: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return run / "checkpoints" / f"step-{step}"


def steps(run: Path) -> list[int]:
    """The steps of a run's checkpoints, in the order of numbers (9000 before 10000)."""
    found = (re.fullmatch(r"step-(\d+)", folder.name) for folder in (run / "checkpoints").glob("*"))
    return sorted(int(match[1]) for match in found if match)


def restore(run: Path, model: Bundle, optimizer: Optimizer) -> State:
    """Put the newest checkpoint of a run into model and optimizer; without one, start at step 0.

    Raises:
        RunError: the newest checkpoint is damaged.
    """
    done = steps(run)
    if not done:
        return State()
    folder = path(run, done[-1])
    try:
        tensors = bundle.read_tensors(folder / "model.safetensors")
        bundle.load_weights(model.model, tensors, folder / "model.safetensors")
        moments = bundle.read_tensors(folder / "training.safetensors")
        record = json.loads((folder / "training.json").read_text(encoding="utf-8"))
        if record.pop("format") != bundle.FORMAT:
            raise RunError(f"{folder} has another format; this version reads {bundle.FORMAT}")
        state = State(**record)
        _load_moments(model, optimizer, moments)
    except (BundleError, OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(
            f"{folder} is damaged ({error}); remove it to go on from the checkpoint before"
        ) from None
    return state


def point_best(run: Path, folder: Path) -> None:
    """Make `best` name a checkpoint, in one move."""
    link_whole(run / "best", str(folder.relative_to(run)))


def prune(run: Path, state: State) -> None:
    """Remove the checkpoints that are neither the newest, the best, nor to be averaged."""
    kept = {state.step, state.best_step, *state.validated}
    for step in steps(run):
        if step not in kept:
            shutil.rmtree(path(run, step))


def _moments(model: Bundle, optimizer: Optimizer) -> dict[str, Tensor]:
    """Adam's two moments and its count of updates, by the parameter's name."""
    tensors = {}
    for name, parameter in model.model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            tensors[f"{key}.{name}"] = value.detach().cpu().clone()
    return tensors


def _load_moments(model: Bundle, optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
    for name, parameter in model.model.named_parameters():
        found = {
            key: tensors[f"{key}.{name}"].to(parameter.device)
            for key in ("step", "exp_avg", "exp_avg_sq")
            if f"{key}.{name}" in tensors  # nothing yet, if no update has been applied
        }
        optimizer.state[parameter].update(found)


def average(run: Path, model: Bundle, state: State, card: str) -> Path:
    """Write the mean of the last validated checkpoints (section 6.1); load it into the model."""
    folders = [path(run, step) for step in state.validated]
    folder = run / "checkpoints" / "average"
    bundle.load_weights(model.model, bundle.average(folders), folder)
    with whole_folder(folder) as beside:
        bundle.save(beside, model, card)
    return folder
