"""The steps of a model, by name and in order: formula, inputs, line of code, and NumPy's answer.

A step's replay is the paper's formula written a second time, in NumPy and float64, from what was
recorded and the model's parameters; it shares no code with the model. Letters of the shapes: n
positions, q queries, k keys, h heads, d d_model.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor, nn

from transduce.model import transformer
from transduce.model.config import TransformerConfig
from transduce.model.transformer import (
    DecoderLayer,
    Embedding,
    EncoderLayer,
    MultiHeadAttention,
    Residual,
    Transformer,
)

INPUTS = ("source", "decoder_input", "source_mask", "target_mask")
"""What no step computes: ids [n], where one may attend in source_mask [k], target_mask [q, k]."""

Silent = Mapping[str, list[int]]
"""Heads that are off, by their attention block."""


class Step(NamedTuple):
    """One named intermediate of a forced pass."""

    name: str
    """Module path and leaf: decoder.1.cross_attention.weights."""
    formula: str
    inputs: tuple[str, ...]
    """Names of other steps or of INPUTS, in the order that `replay` takes them."""
    code: str
    """The line that computes it: transformer.py:123."""
    replay: Callable[..., np.ndarray]
    """The same from the recorded inputs (with their batch dimension or without), in float64."""


def attentions(model: Transformer) -> dict[str, str]:
    """Return the pattern of each attention block: encoder_self, decoder_self or cross."""
    found = {f"encoder.{i}.self_attention": "encoder_self" for i in range(len(model.encoder))}
    for i in range(len(model.decoder)):
        found[f"decoder.{i}.self_attention"] = "decoder_self"
        found[f"decoder.{i}.cross_attention"] = "cross"
    return found


def last_cross_attention(model: Transformer) -> str:
    """Name the attention block that is nearest to the output."""
    return f"decoder.{len(model.decoder) - 1}.cross_attention"


def names(model: Transformer) -> list[str]:
    """List all that can be recorded: INPUTS, then the steps in the order of computation."""
    return [*INPUTS, *(step.name for step in steps(model))]


def steps(model: Transformer, off: Iterable[tuple[str, int]] = ()) -> list[Step]:
    """List what a forced pass computes, in order, while the heads of `off` are switched off."""
    silent: dict[str, list[int]] = {}
    for block, head in off:
        silent.setdefault(block, []).append(head)
    found = _embedding(model.source_embedding, model.config, "source_embedding", "source")
    for i, layer in enumerate(model.encoder):
        found += _self_attention(layer, f"encoder.{i}", found[-1].name, "source_mask", silent)
        found += _feed_forward(layer, f"encoder.{i}", found[-1].name)
    found += [_final_norm(model.encoder_norm, "encoder_norm", found[-1].name)]
    found += _embedding(model.target_embedding, model.config, "target_embedding", "decoder_input")
    for i, layer in enumerate(model.decoder):
        found += _self_attention(layer, f"decoder.{i}", found[-1].name, "target_mask", silent)
        found += _cross_attention(layer, f"decoder.{i}", found[-1].name, silent)
        found += _feed_forward(layer, f"decoder.{i}", found[-1].name)
    found += [_final_norm(model.decoder_norm, "decoder_norm", found[-1].name)]
    formula = "x W" if model.config.tie == "none" else "x Eᵀ"
    code = _line("self.output(self.decode(")
    inputs = ("decoder_norm",)
    return [*found, Step("output", formula, inputs, code, _linear(model.output))]


def _embedding(module: Embedding, config: TransformerConfig, name: str, ids: str) -> list[Step]:
    wave = "sin, cos(position · 10000^(-2i / d))"
    places = partial(_waves, config=config)
    if config.positions == "learned":
        wave, places = "P[position]", partial(_learned, positions=module.positions)
    line = _line("self.table(ids)")
    parts = (f"{name}.table", f"{name}.positions")
    whole = partial(_scaled_sum, scale=math.sqrt(config.d_model))
    return [
        Step(parts[0], "E[id]", (ids,), line, partial(_looked_up, table=module.table)),
        Step(parts[1], wave, (ids,), _line("self.positions[start"), places),
        Step(name, "√d E[id] + position", parts, line, whole),
    ]


def _self_attention(
    layer: EncoderLayer | DecoderLayer, path: str, x: str, mask: str, silent: Silent
) -> list[Step]:
    name, residual = f"{path}.self_attention", layer.self_attention_residual
    inner = _entry(residual, name, x)
    middle = _attention(layer.self_attention, name, (inner, inner), "x", mask, silent.get(name, []))
    return _residual(residual, name, "attention", x, middle)


def _cross_attention(layer: DecoderLayer, path: str, x: str, silent: Silent) -> list[Step]:
    name, residual = f"{path}.cross_attention", layer.cross_attention_residual
    sides = (_entry(residual, name, x), "encoder_norm")
    off = silent.get(name, [])
    middle = _attention(layer.cross_attention, name, sides, "memory", "source_mask", off)
    return _residual(residual, name, "attention", x, middle)


def _attention(
    module: MultiHeadAttention,
    name: str,
    sides: tuple[str, str],
    word: str,
    mask: str,
    silent: list[int],
) -> list[Step]:
    """`sides`: what the queries are of, and keys and values, which the formula calls `word`."""
    x, memory = sides
    query, key, value, scores, weights, heads = (
        f"{name}.{leaf}" for leaf in ("query", "key", "value", "scores", "weights", "heads")
    )
    count = module.count
    zeroed = f", head {', '.join(map(str, sorted(silent)))} set to 0" if silent else ""
    rows = [
        (query, "x W_Q + b_Q", (x,), "self.query(", _linear(module.query)),
        (key, f"{word} W_K + b_K", (memory,), "self.key(", _linear(module.key)),
        (value, f"{word} W_V + b_V", (memory,), "self.value(", _linear(module.value)),
        (scores, "q kᵀ / √d_k", (query, key), "self.scores(", partial(_scores, count=count)),
        (
            weights,
            "softmax(scores, where allowed)",
            (scores, mask),
            "self.weights(",
            partial(_weights, for_all_queries=mask == "source_mask"),
        ),
        (
            heads,
            f"weights v{zeroed}",
            (weights, value),
            "self.heads(",
            partial(_heads, count=count, silent=silent),
        ),
        (
            f"{name}.output",
            "concat(heads) W_O + b_O",
            (heads,),
            "self.output(self.join",
            partial(_joined, output=module.output),
        ),
    ]
    return [
        Step(step, formula, inputs, _line(code), replay)
        for step, formula, inputs, code, replay in rows
    ]


def _feed_forward(layer: EncoderLayer | DecoderLayer, path: str, x: str) -> list[Step]:
    name, module, residual = f"{path}.feed_forward", layer.feed_forward, layer.feed_forward_residual
    formula, activation = {
        nn.ReLU: ("max(0, x)", _relu),
        nn.GELU: ("x Φ(x)", _gelu),
        nn.SiLU: ("x σ(x)", _silu),
    }[type(module.activation)]
    line = _line("self.outer(self.activation(self.inner(x)))")
    inner, active, outer = (f"{name}.{leaf}" for leaf in ("inner", "activation", "outer"))
    middle = [
        Step(inner, "x W₁ + b₁", (_entry(residual, name, x),), line, _linear(module.inner)),
        Step(active, formula, (inner,), line, activation),
        Step(outer, "x W₂ + b₂", (active,), line, _linear(module.outer)),
    ]
    return _residual(residual, name, "feed-forward", x, middle)


def _entry(module: Residual, name: str, x: str) -> str:
    """What a sub-layer reads of x."""
    return f"{name}_residual.norm" if module.pre else x


def _residual(module: Residual, name: str, word: str, x: str, middle: list[Step]) -> list[Step]:
    """The steps of a sub-layer and of what is around it; the last one is its result."""
    total, norm = f"{name}_residual.sum", f"{name}_residual.norm"
    ends = (x, middle[-1].name)
    if module.pre:
        line = _line("x + self.dropout(sublayer(self.norm(x)))")
        normed = Step(norm, "LayerNorm(x)", (x,), line, _layer_norm(module.norm))
        return [normed, *middle, Step(total, f"x + {word}", ends, line, np.add)]
    line = _line("self.norm(x + self.dropout(sublayer(x)))")
    added = Step(total, f"x + {word}", ends, line, np.add)
    formula = f"LayerNorm(x + {word})"
    return [*middle, added, Step(norm, formula, (total,), line, _layer_norm(module.norm))]


def _final_norm(module: nn.Module, name: str, x: str) -> Step:
    line = _line(f"return self.{name}(x)")
    if isinstance(module, nn.LayerNorm):
        return Step(name, "LayerNorm(x)", (x,), line, _layer_norm(module))
    return Step(name, "x", (x,), line, np.asarray)


# What follows is the paper again, in NumPy. Functions of the module and not closures: a list of
# steps is made for each recording, and the tests check the types of all that is defined.


def _looked_up(ids: np.ndarray, *, table: nn.Embedding) -> np.ndarray:
    return table.weight.detach().float().cpu().numpy()[ids].astype(np.float64)


def _learned(ids: np.ndarray, *, positions: Tensor) -> np.ndarray:
    rows = _array(positions)[: ids.shape[-1]]
    return np.broadcast_to(rows, (*ids.shape, rows.shape[-1]))


def _waves(ids: np.ndarray, *, config: TransformerConfig) -> np.ndarray:
    """Section 3.5, one column at a time."""
    pairs = config.d_model // 2
    places = np.arange(ids.shape[-1]) + config.position_offset
    rows = np.empty((*ids.shape, config.d_model))
    for i in range(pairs):
        share = i / (pairs if config.position_frequency == "paper" else max(pairs - 1, 1))
        halves = config.position_layout == "halves"
        sine, cosine = (i, pairs + i) if halves else (2 * i, 2 * i + 1)
        rows[..., sine] = np.sin(places / 10_000**share)
        rows[..., cosine] = np.cos(places / 10_000**share)
    return rows


def _scaled_sum(rows: np.ndarray, positions: np.ndarray, *, scale: float) -> np.ndarray:
    return scale * rows + positions


def _split(y: np.ndarray, count: int) -> np.ndarray:
    return y.reshape(*y.shape[:-1], count, -1).swapaxes(-3, -2)


def _scores(q: np.ndarray, k: np.ndarray, *, count: int) -> np.ndarray:
    q, k = _split(q, count), _split(k, count)
    return q @ k.swapaxes(-2, -1) / math.sqrt(q.shape[-1])


def _weights(scores: np.ndarray, allowed: np.ndarray, *, for_all_queries: bool) -> np.ndarray:
    rows = allowed[..., None, :] if for_all_queries else allowed
    blocked = np.where(rows[..., None, :, :] > 0, scores, -np.inf)
    powers = np.exp(blocked - blocked.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _heads(weights: np.ndarray, v: np.ndarray, *, count: int, silent: list[int]) -> np.ndarray:
    mixed = weights @ _split(v, count)
    mixed[..., silent, :, :] = 0
    return mixed


def _joined(heads: np.ndarray, *, output: nn.Linear) -> np.ndarray:
    joined = heads.swapaxes(-3, -2)
    return _projected(joined.reshape(*joined.shape[:-2], -1), module=output)


def _linear(module: nn.Linear) -> Callable[..., np.ndarray]:
    return partial(_projected, module=module)


def _projected(x: np.ndarray, *, module: nn.Linear) -> np.ndarray:
    y = x @ _array(module.weight).T
    return y if module.bias is None else y + _array(module.bias)


def _layer_norm(module: nn.LayerNorm) -> Callable[..., np.ndarray]:
    return partial(_normed, module=module)


def _normed(x: np.ndarray, *, module: nn.LayerNorm) -> np.ndarray:
    apart = x - x.mean(-1, keepdims=True)
    unit = apart / np.sqrt((apart**2).mean(-1, keepdims=True) + module.eps)
    return unit * _array(module.weight) + _array(module.bias)


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(0, x)


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2))) / 2


def _silu(x: np.ndarray) -> np.ndarray:
    return x * np.exp(-np.logaddexp(0, -x))


def _array(parameter: Tensor) -> np.ndarray:
    return parameter.detach().cpu().double().numpy()


@cache
def _line(text: str) -> str:
    """Where the model's code says this, once."""
    lines = Path(transformer.__file__).read_text(encoding="utf-8").splitlines()
    [number] = [number for number, line in enumerate(lines, start=1) if text in line]
    return f"transformer.py:{number}"
