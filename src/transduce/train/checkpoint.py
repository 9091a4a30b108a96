"""Checkpoints: a model directory plus what training needs to go on as if nothing had happened.

checkpoints/step-N/  the model directory + training.safetensors + training.json + SHA256SUMS
checkpoints/average/ the model directory of the mean of the last ones, where that is the best
"""

import json
import math
import re
from collections.abc import Generator
from contextlib import contextmanager
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
    load_weights,
    put_weights,
    read_tensors,
    weights,
)
from transduce.bundle import save as save_bundle
from transduce.errors import RunError, TransduceError
from transduce.files import link_whole, read_json, remove, sha256, whole_folder
from transduce.model.transformer import Transformer

_SUMS = "SHA256SUMS"
_UNSUMMED = {_SUMS, "model_card.md"}
"""A card may be edited; what training reads again is summed, as `sha256sum --check` wants it."""


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
        save_file(_training_tensors(kept, model, optimizer), beside / "training.safetensors")
        text = json.dumps({"format": FORMAT, **asdict(state)}, indent=2)
        (beside / "training.json").write_text(text + "\n", encoding="utf-8")
        (beside / _SUMS).write_text(_sums(beside), encoding="utf-8")
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
    with _intact(folder, done):
        state = _read_state(folder)
        if state.step != done[-1]:
            raise ValueError(f"its training.json is of step {state.step}")
        saved = load(folder)
        for old, new in (
            (saved.source_tokenizer, kept.source_tokenizer),
            (saved.target_tokenizer, kept.target_tokenizer),
        ):
            if old.model != new.model:
                raise ValueError("its tokenizer is not the run's")
        put_weights(kept.model, weights(saved.model), folder)
        tensors = read_tensors(folder / "training.safetensors", _training_shapes(kept, model))
        for name, parameter in model.named_parameters():
            if model is not kept.model:
                parameter.data.copy_(tensors[f"weights.{name}"])
            optimizer.state[parameter] = {
                key: tensors[f"{key}.{name}"].to(parameter.device)
                for key in ("step", "exp_avg", "exp_avg_sq")
            }
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


def load_model(run: Path, kept: Bundle, step: int) -> None:
    """Put the model of a step into `kept`, if it is as it was saved.

    Raises:
        RunError: the checkpoint is damaged.
    """
    folder = path(run, step)
    with _intact(folder, steps(run)):
        load_weights(kept.model, folder / "model.safetensors")


@contextmanager
def _intact(folder: Path, done: list[int]) -> Generator[None]:
    """See that a checkpoint's files are as they were saved; what is wrong with it tells what to do.

    A bit that has flipped in a weight would show nowhere else: it is a number like any other.
    """
    others = [step for step in done if path(folder.parents[1], step) != folder]
    remedy = f"go on from step {others[-1]:,}" if others else "begin anew"
    try:
        if (folder / _SUMS).read_text(encoding="utf-8") != _sums(folder):
            raise ValueError(f"its files are not those of its {_SUMS}")
        yield
    except (TransduceError, OSError, ValueError, KeyError) as error:
        raise RunError(f"{folder} is damaged ({error}); remove it to {remedy}") from None


def _sums(folder: Path) -> str:
    names = sorted({path.name for path in folder.iterdir()} - _UNSUMMED)
    return "".join(f"{sha256(folder / name)}  {name}\n" for name in names)


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
    folders, done = [path(run, step) for step in state.validated], steps(run)
    for folder in folders:
        with _intact(folder, done):
            read_tensors(folder / "model.safetensors")
    put_weights(bundle.model, average(folders), folders[-1])


def save_average(run: Path, bundle: Bundle, card: str) -> Path:
    """Write the model directory of a mean."""
    folder = run / "checkpoints" / "average"
    with whole_folder(folder) as beside:
        save_bundle(beside, bundle, card)
    return folder


def _training_tensors(kept: Bundle, model: Transformer, optimizer: Optimizer) -> dict[str, Tensor]:
    """By the parameter's name: Adam's moments, its count of updates, the weights if not `kept`."""
    tensors = {
        f"{key}.{name}": value.detach().cpu().clone()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state[parameter].items()
    }
    if model is not kept.model:
        tensors |= {f"weights.{name}": value for name, value in weights(model).items()}
    return tensors


def _training_shapes(kept: Bundle, model: Transformer) -> Shapes:
    """What `_training_tensors` has saved; its count of updates is a scalar."""
    keys = ["step", "exp_avg", "exp_avg_sq", *(["weights"] if model is not kept.model else [])]
    return {
        f"{key}.{name}": () if key == "step" else tuple(parameter.shape)
        for name, parameter in model.named_parameters()
        for key in keys
    }
