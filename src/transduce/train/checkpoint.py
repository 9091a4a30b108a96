"""Checkpoints: a model directory plus what training needs to go on as if nothing had happened.

checkpoints/step-N/  the model directory + training.safetensors + training.json
checkpoints/average/ the model directory of the mean of the last ones, where that is the best
"""

import json
import math
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor
from torch.optim import Optimizer

from transduce.bundle import (
    FORMAT,
    Bundle,
    Shapes,
    average,
    load,
    put_weights,
    read_tensors,
    weights,
)
from transduce.bundle import save as save_bundle
from transduce.errors import RunError, TransduceError
from transduce.files import link_whole, read_json, remove, whole_folder


@dataclass
class State:
    """Where a training stands, weights aside; the order of data and dropout follow from it."""

    step: int = 0
    epoch: int = 0
    position: int = 0
    """Steps of this epoch that are done."""
    best_step: int = 0
    best_bleu: float = -1.0
    best_loss: float = math.inf
    stale: int = 0
    """Validations since the best one."""
    validated: list[int] = field(default_factory=list)
    """Steps of the last `average_last` validations."""


def save(run: Path, state: State, bundle: Bundle, optimizer: Optimizer, card: str) -> Path:
    """Write the checkpoint of a state under its final name, whole."""
    folder = path(run, state.step)
    with whole_folder(folder) as beside:
        save_bundle(beside, bundle, card)
        save_file(_moments(bundle, optimizer), beside / "training.safetensors")
        text = json.dumps({"format": FORMAT, **asdict(state)}, indent=2)
        (beside / "training.json").write_text(text + "\n", encoding="utf-8")
    return folder


def path(run: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return run / "checkpoints" / f"step-{step}"


def steps(run: Path) -> list[int]:
    """The steps of a run's checkpoints, in the order of numbers (9000 before 10000)."""
    found = (re.fullmatch(r"step-(\d+)", folder.name) for folder in (run / "checkpoints").glob("*"))
    return sorted(int(match[1]) for match in found if match)


def restore(run: Path, bundle: Bundle, optimizer: Optimizer) -> State:
    """Put the newest checkpoint of a run into model and optimizer; without one, start at step 0.

    Raises:
        RunError: the newest checkpoint is damaged.
    """
    done = steps(run)
    if not done:
        return State()
    folder = path(run, done[-1])
    try:
        state = _read_state(folder)
        if state.step != done[-1]:
            raise ValueError(f"its training.json is of step {state.step}")
        saved = load(folder)
        for old, new in (
            (saved.source_tokenizer, bundle.source_tokenizer),
            (saved.target_tokenizer, bundle.target_tokenizer),
        ):
            if old.model != new.model:
                raise ValueError("its tokenizer is not the run's")
        put_weights(bundle.model, weights(saved.model), folder)
        moments = read_tensors(folder / "training.safetensors", _moment_shapes(bundle))
        for name, parameter in bundle.model.named_parameters():
            optimizer.state[parameter] = {
                key: moments[f"{key}.{name}"].to(parameter.device)
                for key in ("step", "exp_avg", "exp_avg_sq")
            }
    except (TransduceError, OSError, ValueError, KeyError) as error:
        raise RunError(
            f"{folder} is damaged ({error}); remove it to go on from the checkpoint before"
        ) from None
    # Somebody may have removed newer ones, which had taken the place of these.
    state.validated = [step for step in state.validated if step in done]
    if state.best_step not in done:
        state.best_step, state.best_bleu, state.best_loss, state.stale = 0, -1.0, math.inf, 0
    return state


def _read_state(folder: Path) -> State:
    record = read_json(folder / "training.json")
    expected = {"format": FORMAT, **asdict(State())}
    if record.keys() != expected.keys():
        raise ValueError("its training.json lacks something, or has too much")
    for name, value in expected.items():
        found = record[name]
        if type(found) is not type(value) or (type(found) is int and found < 0) or found != found:
            raise ValueError(f"its training.json has {name} = {record[name]!r}")
    if record.pop("format") != FORMAT:
        raise ValueError(f"it is not of format {FORMAT}")
    return State(**record)


def point_best(run: Path, folder: Path) -> None:
    """Make `best` name a checkpoint, in one move."""
    link_whole(run / "best", str(folder.relative_to(run)))


def prune(run: Path, state: State) -> None:
    """Remove the checkpoints that are neither the newest, the best, nor to be averaged.

    What a kill left of a saving or of a removal goes too.
    """
    kept = {state.step, state.best_step, *state.validated}
    for step in steps(run):
        if step not in kept:
            folder = path(run, step)
            folder.rename(folder.with_name(f".{folder.name}.part"))  # gone at once, or there
    for rest in (run / "checkpoints").glob(".*.part"):
        remove(rest)


def load_average(run: Path, bundle: Bundle, state: State) -> None:
    """Put the mean of the last validated checkpoints into the model (section 6.1)."""
    folders = [path(run, step) for step in state.validated]
    put_weights(bundle.model, average(folders), folders[-1])


def save_average(run: Path, bundle: Bundle, card: str) -> Path:
    """Write the model directory of a mean."""
    folder = run / "checkpoints" / "average"
    with whole_folder(folder) as beside:
        save_bundle(beside, bundle, card)
    return folder


def _moments(bundle: Bundle, optimizer: Optimizer) -> dict[str, Tensor]:
    """Adam's two moments and its count of updates, by the parameter's name."""
    return {
        f"{key}.{name}": value.detach().cpu().clone()
        for name, parameter in bundle.model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }


def _moment_shapes(bundle: Bundle) -> Shapes:
    """What `_moments` has saved; its count of updates is a scalar."""
    return {
        f"{key}.{name}": () if key == "step" else tuple(parameter.shape)
        for name, parameter in bundle.model.named_parameters()
        for key in ("step", "exp_avg", "exp_avg_sq")
    }
