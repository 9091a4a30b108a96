"""A training run over its checkpoints: its losses, and one sentence as each of them had it."""

import logging
import math
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from transduce import bundle
from transduce.bundle import Bundle, count_parameters
from transduce.decode.scorer import SCORED_TOKENS, force
from transduce.errors import TraceError, TransduceError
from transduce.files import read_json_lines
from transduce.trace.document import MOST_NUMBERS, Trace, stored, tokens
from transduce.trace.record import heads_off, record
from transduce.trace.search import search_limit, search_tree

log = logging.getLogger(__name__)

Point = dict[str, int | float]
"""Numbers of one step, by name."""

MOST_SNAPSHOTS = 24
"""Of a run with more, so many at even distances are looked at, first and last among them."""

MOST_KEPT = 25_000_000
"""Parameters of all models that `Models` keeps: 100 MB."""

_MOST_POINTS = 1000
_LARGEST = 10**15
"""Of a metric that is drawn; JSON has integers without bound."""


class Snapshot(NamedTuple):
    """What the model of one step did with the sentence."""

    step: int
    text: str
    """Its own translation, by beam search."""
    log_probs: list[float]
    """Nats; of the traced labels, forced."""
    weights: dict[str, Tensor]
    """By attention block, [heads, queries, keys], over the traced target."""


class Learning(NamedTuple):
    """A run, for a person who watches it learn."""

    trace: Trace
    """Of the pair that is looked at."""
    name: str
    finished: bool
    training: list[Point]
    """step, loss in nats a token, learning_rate."""
    validations: list[Point]
    """step, loss in nats a token, bleu."""
    snapshots: list[Snapshot]

    def to_json(self) -> dict[str, Any]:
        """Return the `run` of a document."""
        one = self.trace
        source, target = one.bundle.source_tokenizer, one.bundle.target_tokenizer
        return {
            "name": self.name,
            "finished": self.finished,
            "training": self.training,
            "validations": self.validations,
            "source": tokens(source, one.source),
            "target": tokens(target, one.decoder_input),
            "labels": tokens(target, one.labels),
            "snapshots": [
                each._asdict() | {"weights": {name: stored(x) for name, x in each.weights.items()}}
                for each in self.snapshots
            ],
        }


class Models:
    """Loads models, and keeps those that were used last, for who looks at a run again and again.

    A file of weights that was written anew is read anew. Threads may share it; a model that it
    returns is everybody's.
    """

    def __init__(self, most: int = MOST_KEPT) -> None:
        """Keep models of at most so many parameters together."""
        self._most = most
        self._kept: OrderedDict[tuple[object, ...], tuple[int, Bundle]] = OrderedDict()
        self._turn = threading.Lock()

    def load(self, folder: Path) -> Bundle:
        """Return the model of a folder; raises what `bundle.load` does."""
        try:
            found = (folder / "model.safetensors").stat()
        except OSError:
            return bundle.load(folder)  # which says what is wrong
        key = (str(folder.absolute()), found.st_mtime_ns, found.st_size, found.st_ino)
        with self._turn:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key][1]
            one = bundle.load(folder)
            size = count_parameters(one.model)
            self._kept[key] = (size, one)
            while sum(size for size, _ in self._kept.values()) > self._most:
                self._kept.popitem(last=False)
            return one


def learning(run: Path, trace: Trace, load: Callable[[Path], Bundle] = bundle.load) -> Learning:
    """Look at a traced pair with each model that a run has kept, oldest first.

    The models are those of RUN/checkpoints, and of RUN/snapshots where the training kept them
    (train.snapshots); of a long sentence fewer of them, for their maps to be no more than
    MOST_NUMBERS. Each searches as the trace did, with the same beginning and heads off. `load` may
    be that of `Models`. What lies there and is no folder of the run's own is left out, with a
    warning.

    Raises:
        TraceError: the folder is no run, or keeps no model; a model has another tokenizer; the text
            is blank, or too long for two models.
    """
    if not trace.source:
        raise TraceError("a blank text has nothing to follow over a run")
    size = sum(x.numel() for name, x in trace.tensors.items() if name.endswith(".weights"))
    if (most := min(MOST_SNAPSHOTS, MOST_NUMBERS // size)) < 2:
        raise TraceError(f"{size:,} weights a model are too many for a run; shorten the text")
    folders = models(run, most)
    if not folders:
        raise TraceError(
            f"{run} is not a training run with checkpoints: name the folder that train made"
        )
    training, validations, finished = _metrics(run / "metrics.jsonl")
    return Learning(
        trace=trace,
        name=run.absolute().name,
        finished=finished,
        training=_thinned(training),
        validations=_thinned(validations),
        snapshots=list(_snapshots(folders, trace, load)),
    )


def models(run: Path, most: int = MOST_SNAPSHOTS) -> dict[int, Path]:
    """The model directories that a run has, by step; at even distances where they are many."""
    found = {
        int(match[1]): folder
        for place in ("checkpoints", "snapshots")  # what is in both is about to leave the first
        for folder in (run / place).glob("step-*")
        if (match := re.fullmatch(r"step-(\d{1,10})", folder.name)) and _own(folder)
    }
    steps = sorted(found)
    if len(steps) > most:
        last = len(steps) - 1
        steps = [steps[round(k * last / (most - 1))] for k in range(most)]
    return {step: found[step] for step in steps}


def _own(folder: Path) -> bool:
    """Whether a model may lie here; a link may lead out of the run."""
    try:
        if folder.is_symlink() or folder.parent.is_symlink():
            what = "a link"
        elif not folder.is_dir():
            what = "no folder"
        else:
            if any(folder.iterdir()):
                return True
            what = "empty"
    except FileNotFoundError:  # removed meanwhile
        return False
    log.warning("%s is %s and is left out", folder, what)
    return False


def _snapshots(
    folders: dict[int, Path], trace: Trace, load: Callable[[Path], Bundle]
) -> Iterator[Snapshot]:
    """A model that a training has removed meanwhile is passed over."""
    for step, folder in folders.items():
        try:
            one = load(folder)
        except TransduceError:
            if folder.exists():
                raise
            continue
        for mine, other in zip(one[1:3], trace.bundle[1:3], strict=True):
            if mine.model != other.model:
                raise TraceError(f"{folder} has another tokenizer than the model that is traced")
        yield snapshot(step, one, trace)


@torch.inference_mode()
def snapshot(step: int, one: Bundle, trace: Trace) -> Snapshot:
    """Look at the pair with the model of one step."""
    model, tree = one.model, trace.beam
    prefix = trace.labels[: trace.prefix]
    limit = search_limit(model, trace.source, prefix)
    pair = list(trace.source[:-1]), list(trace.labels[:-1])
    with heads_off(model, trace.off):
        own = search_tree(
            model, trace.source, beam=tree.beam, alpha=tree.alpha, limit=limit, prefix=prefix
        )
        with record(model, "*.weights") as tape:
            (log_probs,) = force(model, [pair], SCORED_TOKENS)
    weights = {name.removesuffix(".weights"): found[0] for name, found in tape.items()}
    text = one.target_tokenizer.decode(own.finished[0][1].tokens)
    return Snapshot(step, text, log_probs, weights)


def _metrics(path: Path) -> tuple[list[Point], list[Point], bool]:
    """What training wrote: steps, validations, and whether it came to its end.

    Raises:
        TraceError: the file cannot be read.
    """
    training, validations, finished = [], [], False
    try:
        lines = list(read_json_lines(path)) if path.exists() else []
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None
    for line in lines:
        if found := _numbers(line, loss="loss", learning_rate="learning_rate"):
            training.append(found)
        if found := _numbers(line, loss="valid_loss", bleu="valid_bleu"):
            validations.append(found)
        finished = finished or line.get("finished") is True
    return training, validations, finished


def _numbers(line: dict[str, Any], **names: str) -> Point | None:
    """The step and the numbers of a line by other names; None: it lacks one."""
    found: Point = {}
    for name, key in {"step": "step", **names}.items():
        number = line.get(key)
        if not isinstance(number, int | float) or not abs(number) <= _LARGEST:  # nor NaN
            return None
        found[name] = int(number) if name == "step" else float(number)
    return found if found["step"] >= 0 else None


def _thinned(points: list[Point]) -> list[Point]:
    """At even distances, the last among them."""
    return points[:: -max(1, math.ceil(len(points) / _MOST_POINTS))][::-1]
