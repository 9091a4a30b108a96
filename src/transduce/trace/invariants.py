"""What must hold of every trace: each invariant as a pure function of what was recorded.

They are written against the model, not with it: NumPy in float64, and none of the model's code.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from torch import Tensor

from transduce.ids import BOS, PAD
from transduce.model.transformer import Transformer
from transduce.trace.observe import Recorded
from transduce.trace.steps import attentions, names, steps

_BROKEN = np.array([np.inf])


class Invariant(NamedTuple):
    """One statement about a trace, and how far the trace is from it."""

    id: str
    label: str
    """The statement, as a sentence."""
    ok: bool
    """The largest deviation is a number and within the tolerance; or there was nothing to check."""
    worst: float | None
    """The largest deviation; None: nothing was checked, or it is not finite."""
    tolerance: float
    checked: int
    """How many numbers, rows or ids were looked at."""


def check(model: Transformer, seen: Recorded) -> list[Invariant]:
    """Compute all invariants; a NaN or a shape that does not fit, anywhere, is never ok.

    Values are compared relative to the largest number of their tensor, where that is over 1.
    """
    missing = set(names(model)) - set(seen.tape)
    assert not missing, missing
    with np.errstate(all="ignore"):
        return [
            _judge(
                "axes",
                "The axes of each map are the tokens that the model was fed.",
                0.0,
                _axes(model, seen),
            ),
            _judge("rows_sum_1", "Each row of a map sums to 1.", 1e-5, _rows(model, seen)),
            _judge(
                "causal_zero",
                "No target position gives weight to a later one.",
                0.0,
                _causal(model, seen),
            ),
            _judge(
                "pad_zero",
                "Beside a longer sentence, padding gets no weight.",
                0.0,
                _padding(model, seen),
            ),
            _judge(
                "batched_equals_single",
                "Beside a longer sentence, maps and logits are those of the sentence alone.",
                1e-4,
                _same(seen.padded, seen.tape),
            ),
            _judge(
                "incremental_equals_teacher",
                "Decoding token by token has the maps and logits of the forced pass.",
                1e-4,
                _same(seen.cached, seen.tape),
            ),
            _judge(
                "replay",
                "Each step, computed again from its inputs by its formula, is what was recorded.",
                1e-5,
                _replay(model, seen),
            ),
            _judge(
                "search_equals_forced",
                "The log-probability of the search is that of the forced pass.",
                1e-4,
                _search(seen),
            ),
        ]


def _judge(id: str, label: str, tolerance: float, deviations: Iterable[np.ndarray]) -> Invariant:
    worst, checked = 0.0, 0
    for each in deviations:
        if each.size:
            worst = float(np.maximum(worst, each.max()))  # unlike max(), keeps a NaN
            checked += each.size
    told = worst if checked and math.isfinite(worst) else None
    return Invariant(id, label, worst <= tolerance, told, tolerance, checked)


def _axes(model: Transformer, seen: Recorded) -> Iterator[np.ndarray]:
    """1 where an id or a length is not what it must be."""

    def differ(one: object, other: object) -> np.ndarray:
        one, other = np.asarray(one), np.asarray(other)
        return (one != other).astype(float) if one.shape == other.shape else _BROKEN

    yield differ(_array(seen.tape["source"]), [seen.source])
    yield differ(_array(seen.tape["decoder_input"]), [seen.decoder_input])
    # The label of a position is the next one's input.
    yield differ([BOS, *seen.labels[:-1]], seen.decoder_input)
    source, target, padding = len(seen.source), len(seen.decoder_input), seen.padding
    for name, pattern in attentions(model).items():
        queries = source if pattern == "encoder_self" else target
        keys = target if pattern == "decoder_self" else source
        shape = (1, model.config.heads, queries, keys)
        longer = (*shape[:2], queries + padding, keys + padding)
        yield differ(seen.tape[f"{name}.weights"].shape, shape)
        yield differ(seen.padded[f"{name}.weights"].shape, longer)
        if pattern != "encoder_self":
            yield differ(seen.cached[f"{name}.weights"].shape, shape)
    yield differ(seen.tape["output"].shape, (1, target, model.config.target_vocab_size))


def _maps(model: Transformer, *tapes: Mapping[str, Tensor]) -> Iterator[tuple[str, np.ndarray]]:
    """Each map with its pattern."""
    for tape in tapes:
        for name, pattern in attentions(model).items():
            if f"{name}.weights" in tape:
                yield pattern, _array(tape[f"{name}.weights"])


def _rows(model: Transformer, seen: Recorded) -> Iterator[np.ndarray]:
    for _, weights in _maps(model, seen.tape, seen.padded, seen.cached):
        yield np.abs(weights.sum(-1) - 1)


def _causal(model: Transformer, seen: Recorded) -> Iterator[np.ndarray]:
    for pattern, weights in _maps(model, seen.tape, seen.padded, seen.cached):
        if pattern == "decoder_self":
            rows, columns = np.triu_indices(weights.shape[-2], 1, weights.shape[-1])
            yield np.abs(weights[..., rows, columns])


def _padding(model: Transformer, seen: Recorded) -> Iterator[np.ndarray]:
    for pattern, weights in _maps(model, seen.padded):
        real = seen.decoder_input if pattern == "decoder_self" else seen.source
        yield np.abs(weights[..., len(real) :])


def _same(others: Mapping[str, Tensor], tape: Mapping[str, Tensor]) -> Iterator[np.ndarray]:
    """How far the values of another pass are, where both have them."""
    for name, tensor in others.items():
        other, one = _array(tensor), _array(tape[name])
        both = other[tuple(map(slice, one.shape))]
        yield _apart(both, one) + (0 * other).sum()  # NaN where any of it is not finite


def _replay(model: Transformer, seen: Recorded) -> Iterator[np.ndarray]:
    # In float64 one step at a time: maps of long sentences are large.
    source, decoder_input = (_array(seen.tape[x]) != PAD for x in ("source", "decoder_input"))
    causal = np.tril(np.ones((decoder_input.shape[-1],) * 2, dtype=bool))
    yield _apart(_array(seen.tape["source_mask"]), source)
    yield _apart(_array(seen.tape["target_mask"]), causal & decoder_input[:, None, :])
    for step in steps(model, seen.off):
        try:
            again = step.replay(*(_array(seen.tape[name]) for name in step.inputs))
        except (ValueError, IndexError):  # shapes that do not go together
            again = np.empty(0)
        yield _apart(_array(seen.tape[step.name]), again)


def _search(seen: Recorded) -> Iterator[np.ndarray]:
    if seen.search_log_prob is None:
        return
    logits = _array(seen.tape["output"])[0]
    top = logits.max(-1, keepdims=True)
    log_probs = logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))
    if len(log_probs) != len(seen.labels):
        yield _BROKEN
        return
    forced = log_probs[np.arange(len(seen.labels)), seen.labels].sum()
    yield _apart(np.array([seen.search_log_prob]), np.array([forced]))


def _apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Distances, relative to the largest number of `other` where that is over 1."""
    if one.shape != other.shape:
        return _BROKEN
    one, other = one.astype(np.float64), other.astype(np.float64)
    return np.abs(one - other) / np.maximum(1, np.abs(other).max(initial=0))


def _array(tensor: Tensor) -> np.ndarray:
    tensor = tensor.detach().cpu()
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()
