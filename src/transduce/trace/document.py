"""What a trace holds, and how it is written down: the dict that JSON and the page are made of.

Letters of the shapes: s source positions, t target positions, V target pieces.
"""

import base64
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor

import transduce
from transduce.bundle import Bundle
from transduce.decode.greedy import Hypothesis, length_penalty
from transduce.errors import DataError
from transduce.files import whole_file
from transduce.ids import EOS, UNK
from transduce.text.tokenizer import Tokenizer
from transduce.trace import page
from transduce.trace.attribution import Attribution
from transduce.trace.invariants import Invariant
from transduce.trace.search import Tree
from transduce.trace.steps import Step
from transduce.trace.training import Training, module_of

Precision = Literal["float16", "float32"]

_MARKS = ("PAD", "BOS", "EOS", "UNK")

MOST_NUMBERS = 2**24
"""Of all tensors of a document, 64 MiB; a trace itself has all of them."""


class Continuation(NamedTuple):
    """What the model says when a token is forced at a position, and greedy search goes on."""

    position: int
    """Index into the labels, those before it being forced too."""
    token: int
    found: Hypothesis


class Answer(NamedTuple):
    """What the model says with heads switched off: their mixed values set to zero."""

    off: list[tuple[str, int]]
    """Attention block and head."""
    found: Hypothesis
    """Of greedy search."""
    log_probs: list[float]
    """Nats; of the traced labels, forced."""


class Output(NamedTuple):
    """The distributions of the next token, one for each label."""

    log_probs: list[float]
    """Nats, of the labels."""
    entropy: list[float]
    """Nats, of the whole distributions."""
    top: list[list[tuple[int, float, float]]]
    """Of the likeliest: id, logit, probability; of equal ones the lowest id first."""
    rank: list[int]
    """Of the labels in that order, from 1."""


@dataclass(frozen=True, kw_only=True)
class Trace:
    """All that a model did with one sentence; that of a blank text is empty.

    In a notebook it shows itself as a page.
    """

    bundle: Bundle
    """The model."""
    name: str
    """What the model is called."""
    text: str = ""
    """The source, in normal form."""
    source: Sequence[int] = ()
    """Its ids, EOS last."""
    source_cut: bool = False
    """The source had more pieces than the model can read."""
    target: str = ""
    """The target, in normal form."""
    decoder_input: Sequence[int] = ()
    """Target ids that the model was given, BOS first."""
    labels: Sequence[int] = ()
    """Target ids that it was to predict, EOS last: `decoder_input[i]` has seen labels[: i]."""
    given: bool = False
    """The target was given; else it is what the model itself finds best."""
    prefix: int = 0
    """How many of the first labels were forced on the search."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """Every intermediate by the name of its step, on the CPU, without a batch dimension; and
    source_mask [s], target_mask [t t]: True = may attend."""
    steps: Sequence[Step] = ()
    """How each is computed, in the order of computation."""
    output: Output = field(default_factory=lambda: Output([], [], [], []))
    greedy: Tree
    beam: Tree
    continuations: Sequence[Continuation] | None = None
    """None: not asked for."""
    answers: Sequence[Answer] | None = None
    """None: not asked for."""
    training: Training | None = None
    """What one training step on this pair does to a copy; None: not asked for."""
    attribution: Attribution | None = None
    """None: not asked for, or left out."""
    padding: int = 0
    """Columns of PAD in `padded`."""
    padded: Mapping[str, Tensor] = field(default_factory=dict)
    """Attention weights of the same sentence beside a longer one."""
    cached: Mapping[str, Tensor] = field(default_factory=dict)
    """The decoder's attention weights, from decoding token by token with a cache."""
    off: Sequence[tuple[str, int]] = ()
    """Heads that were off, as attention block and head."""
    left_out: Sequence[str] = ()
    """What was not recorded, and why."""
    invariants: Sequence[Invariant] = ()
    """What has to hold of these numbers, checked."""
    seconds: float = 0.0
    """What the trace took."""

    @property
    def ok(self) -> bool:
        """Whether every invariant holds."""
        return all(one.ok for one in self.invariants)

    def to_json(self) -> dict[str, Any]:
        """Return the document, ready for `json.dumps`: {"model": ..., "traces": [this one]}."""
        return document([self])

    def save_html(
        self,
        path: str | Path,
        *,
        beside: "Sequence[Trace]" = (),
        model_inside: bool | None = None,
    ) -> None:
        """Write the page, with this trace in it: one file that needs no network.

        Args:
            path: of the file.
            beside: traces of the same text by other models, to compare with.
            model_inside: put the model into it too, rounded to float16, so that the page can
                translate other text; None: where it has 1,000,000 parameters at most.

        Raises:
            DataError: it cannot be written.
            TraceError: a model that a page cannot have inside.
        """
        from transduce.trace.alive import alive, goes_inside  # which makes traces again

        inside = bool(self.source) and goes_inside(self.bundle, model_inside)
        others = [[other] for other in beside]
        text = page.html(alive([self], others) if inside else document([self], others))
        try:
            with whole_file(Path(path)) as file:
                file.write(text)
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}") from None

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return page.mimebundle(self.to_json())


def document(traces: Sequence[Trace], beside: Sequence[Sequence[Trace]] = ()) -> dict[str, Any]:
    """Return what JSON and the page are made of, from traces of one model.

    All numbers are finite; tensors are base64 of little-endian float32, row by row. `beside` are
    traces of the same sentences by other models, each model's by itself, to compare with: of their
    tensors attention weights alone are kept.
    """
    return {
        "model": _model(traces[0]),
        "traces": [_trace(trace) for trace in traces],
        "others": [
            {"model": _model(other[0]), "traces": [_trace(each, maps_only=True) for each in other]}
            for other in beside
        ],
        "weights": None,
        "run": None,
    }


def _model(first: Trace) -> dict[str, Any]:
    about, model = first.bundle.about, first.bundle.model
    parts: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        parts[module_of(name)] += parameter.numel()
    return {
        "name": first.name,
        "version": transduce.__version__,
        "source_language": about.get("source_language") or None,
        "target_language": about.get("target_language") or None,
        "note": about.get("note") or None,
        "config": model.config.model_dump(mode="json"),
        "parameters": {"total": parts.total(), "by_module": dict(parts)},
    }


def _trace(trace: Trace, *, maps_only: bool = False) -> dict[str, Any]:
    tokenizer = trace.bundle.target_tokenizer
    own = {step.name: trace.tensors[step.name] for step in trace.steps}
    groups = (own, trace.padded, trace.cached)
    (own_kept, padded, cached), why = _few_enough(*groups, maps_only=maps_only)
    return {
        "source": {
            "text": trace.text,
            "tokens": tokens(trace.bundle.source_tokenizer, trace.source),
            "cut": trace.source_cut,
        },
        "target": {
            "text": trace.target,
            "input": tokens(tokenizer, trace.decoder_input),
            "labels": tokens(tokenizer, trace.labels),
            "given": trace.given,
            "prefix": trace.prefix,
        },
        "masks": {
            side: trace.tensors[f"{side}_mask"].tolist() if trace.source else []
            for side in ("source", "target")
        },
        "tensors": own_kept,
        "left_out": "; ".join((*why, *trace.left_out)) or None,
        "steps": [_step(step, own[step.name]) for step in trace.steps],
        "output": _output(tokenizer, trace.output),
        "searches": {
            "greedy": _search(tokenizer, trace.greedy),
            "beam": _search(tokenizer, trace.beam),
        },
        "continuations": None
        if trace.continuations is None
        else [
            {"position": one.position, "token": tokens(tokenizer, [one.token])[0]}
            | _found(tokenizer, one.found)
            | {"log_prob": one.found.log_prob}
            for one in trace.continuations
        ],
        "answers": None
        if trace.answers is None
        else [
            {"off": _heads(one.off)} | _found(tokenizer, one.found) | {"log_probs": one.log_probs}
            for one in trace.answers
        ],
        "padded": {"columns": trace.padding, "weights": padded},
        "cached": {"weights": cached},
        "off": _heads(trace.off),
        "changes": None,
        "training": _training(trace.training),
        "attribution": None
        if trace.attribution is None
        else {
            way: {side: stored(x) for side, x in sides._asdict().items()}
            for way, sides in trace.attribution._asdict().items()
        },
        "invariants": [one._asdict() for one in trace.invariants],
        "seconds": trace.seconds,
    }


def _few_enough(
    *groups: Mapping[str, Tensor], maps_only: bool
) -> tuple[list[dict[str, Any]], list[str]]:
    """Encode tensors: all, or attention weights alone, or none; and say what is left out, why."""
    maps = [{n: x for n, x in group.items() if n.endswith(".weights")} for group in groups]
    many = f"with them it would be more than {MOST_NUMBERS:,} numbers"
    if not maps_only and _numbers(groups) <= MOST_NUMBERS:
        kept, left_out = groups, []
    elif _numbers(maps) <= MOST_NUMBERS:
        why = "this model is here to be compared" if maps_only else many
        kept, left_out = maps, [f"all tensors but attention weights: {why}"]
    else:
        kept, left_out = [{} for _ in groups], [f"all tensors: {many}"]
    return [{name: stored(x) for name, x in group.items()} for group in kept], left_out


def _numbers(groups: Iterable[Mapping[str, Tensor]]) -> int:
    return sum(tensor.numel() for group in groups for tensor in group.values())


def stored(tensor: Tensor, precision: Precision = "float32") -> dict[str, Any]:
    """Return a tensor as a document has it: base64 of little-endian numbers, row by row."""
    key, kind = ("f16", "<f2") if precision == "float16" else ("f32", "<f4")
    numbers = tensor.float().contiguous().numpy().astype(kind)
    return {"shape": list(tensor.shape), key: base64.b64encode(numbers.tobytes()).decode("ascii")}


def pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return what a person is shown for each id; the reserved ones by their names."""
    return [
        _MARKS[token] if token <= UNK else piece
        for token, piece in zip(ids, tokenizer.pieces(ids), strict=True)
    ]


def tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> list[dict[str, Any]]:
    """Return ids as a document has them."""
    return [
        {"id": token, "piece": piece, "special": token <= UNK}
        for token, piece in zip(ids, pieces(tokenizer, ids), strict=True)
    ]


def _heads(off: Iterable[tuple[str, int]]) -> list[list[str | int]]:
    return [[block, head] for block, head in off]


def _training(training: Training | None) -> dict[str, Any] | None:
    if training is None:
        return None
    modules = {name: moved._asdict() for name, moved in training.modules.items()}
    return training._asdict() | {"modules": modules}


def _step(step: Step, tensor: Tensor) -> dict[str, Any]:
    return {
        "name": step.name,
        "formula": step.formula,
        "inputs": list(step.inputs),
        "shape": list(tensor.shape),
        "code": step.code,
    }


def _output(tokenizer: Tokenizer, output: Output) -> dict[str, Any]:
    top = [
        [
            token | {"logit": logit, "p": p}
            for token, (_, logit, p) in zip(
                tokens(tokenizer, [each for each, _, _ in row]), row, strict=True
            )
        ]
        for row in output.top
    ]
    return output._asdict() | {"top": top, "log_prob": math.fsum(output.log_probs)}


def _search(tokenizer: Tokenizer, tree: Tree) -> dict[str, Any]:
    shown = tokens(tokenizer, [node.token for node in tree.nodes])
    return {
        "beam": tree.beam,
        "alpha": tree.alpha,
        "nodes": [
            node._asdict() | {"token": token} for node, token in zip(tree.nodes, shown, strict=True)
        ],
        "hypotheses": [
            {"node": node}
            | _found(tokenizer, found)
            | {
                "sum": found.log_prob,
                "length": found.length,
                "penalty": length_penalty(found.length, tree.alpha),
                "score": found.score,
                "cut": found.cut,
            }
            for node, found in tree.finished
        ],
    }


def _found(tokenizer: Tokenizer, found: Hypothesis) -> dict[str, Any]:
    text = tokenizer.decode(found.tokens)
    return {"text": text, "tokens": tokens(tokenizer, [*found.tokens, EOS])}
