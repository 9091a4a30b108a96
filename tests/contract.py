"""What the page expects of a document, as types that are checked (viewer/src/lib/document.ts)."""

import json
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter
from typing_extensions import TypedDict

PAGE = Path(__file__).parents[1] / "viewer" / "src" / "lib" / "document.ts"


class Strict(TypedDict):
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Tensor(Strict):
    shape: list[int]
    f32: str


class Token(Strict):
    id: int
    piece: str
    special: bool


class Step(Strict):
    name: str
    formula: str
    inputs: list[str]
    shape: list[int]
    code: str


class Invariant(Strict):
    id: str
    label: str
    ok: bool
    worst: float | None
    tolerance: float
    checked: int


class Parameters(Strict):
    total: int
    by_module: dict[str, int]


class ModelInfo(Strict):
    name: str
    version: str
    source_language: str | None
    target_language: str | None
    note: str | None
    config: dict[str, Any]
    parameters: Parameters


class TopToken(Token):
    logit: float
    p: float


class SearchNode(Strict):
    id: int
    parent: int | None
    step: int
    token: Token
    log_prob: float
    sum: float
    state: Literal["kept", "pruned", "finished"]


class Hypothesis(Strict):
    node: int
    text: str
    tokens: list[Token]
    sum: float
    length: int
    penalty: float
    score: float
    cut: bool


class Search(Strict):
    beam: int
    alpha: float
    nodes: list[SearchNode]
    hypotheses: list[Hypothesis]


class Continuation(Strict):
    position: int
    token: Token
    text: str
    tokens: list[Token]
    log_prob: float


class Answer(Strict):
    off: list[tuple[str, int]]
    text: str
    tokens: list[Token]
    log_probs: list[float]


class Source(Strict):
    text: str
    tokens: list[Token]
    cut: bool


class Target(Strict):
    text: str
    input: list[Token]
    labels: list[Token]
    given: bool
    prefix: int


class Masks(Strict):
    source: list[bool]
    target: list[list[bool]]


class Output(Strict):
    log_probs: list[float]
    entropy: list[float]
    top: list[list[TopToken]]
    rank: list[int]
    log_prob: float


class Searches(Strict):
    greedy: Search
    beam: Search


class Padded(Strict):
    columns: int
    weights: dict[str, Tensor]


class Cached(Strict):
    weights: dict[str, Tensor]


class Moved(Strict):
    weights: float
    gradient: float
    moved: float


class Training(Strict):
    learning_rate: float
    before: list[float]
    after: list[float]
    modules: dict[str, Moved]


class BySide(Strict):
    source: Tensor
    target: Tensor


class Attribution(Strict):
    occlusion: BySide
    gradient: BySide


class Cell(Strict):
    block: str
    head: int | None
    query: int
    key: int


class Changes(Strict):
    blocked: list[Cell]
    causal: bool
    positions: bool
    scale: bool


class Trace(Strict):
    source: Source
    target: Target
    masks: Masks
    tensors: dict[str, Tensor]
    left_out: str | None
    steps: list[Step]
    output: Output
    searches: Searches
    continuations: list[Continuation] | None
    answers: list[Answer] | None
    padded: Padded
    cached: Cached
    off: list[tuple[str, int]]
    changes: Changes | None
    training: Training | None
    attribution: Attribution | None
    invariants: list[Invariant]
    seconds: float


class Other(Strict):
    model: ModelInfo
    traces: list[Trace]


class Half(Strict):
    shape: list[int]
    f16: str


class Vocabulary(Strict):
    kind: Literal["bpe", "unigram"]
    pieces: list[str]
    scores: list[float]


class Tokenizers(Strict):
    source: Vocabulary
    target: Vocabulary | None


class HowComputed(Strict):
    name: str
    formula: str
    inputs: list[str]
    code: str


class Weights(Strict):
    precision: Literal["float16", "float32"]
    parameters: dict[str, Half | Tensor]
    tokenizers: Tokenizers
    steps: list[HowComputed]


class TrainingPoint(Strict):
    step: int
    loss: float
    learning_rate: float


class Validation(Strict):
    step: int
    loss: float
    bleu: float


class Snapshot(Strict):
    step: int
    text: str
    log_probs: list[float]
    weights: dict[str, Tensor]


class Run(Strict):
    name: str
    finished: bool
    training: list[TrainingPoint]
    validations: list[Validation]
    source: list[Token]
    target: list[Token]
    labels: list[Token]
    snapshots: list[Snapshot]


class Payload(Other):
    others: list[Other]
    weights: Weights | None
    run: Run | None


CONFIG = {
    *("encoder_layers", "decoder_layers", "d_model", "heads", "d_k", "d_v", "d_ff", "norm"),
    *("activation", "positions", "tie", "source_vocab_size", "target_vocab_size", "max_length"),
}
"""What the page reads of a model's settings."""


def read(payload: dict[str, Any]) -> dict[str, Any]:
    """Check a document as the page will get it: as JSON, every number finite."""
    text = json.dumps(payload, allow_nan=False)
    TypeAdapter(Payload).validate_json(text)
    found = json.loads(text)
    assert found["model"]["config"].keys() >= CONFIG
    return found


def fields_of_the_page(kind: str) -> set[str]:
    """The first fields of an interface in the page's own types; those it inherits are not there."""
    text = re.sub(r"//.*|/\*.*?\*/", "", PAGE.read_text(encoding="utf-8"))
    (body,) = re.findall(rf"interface {kind}(?: extends \w+)? \{{(.*?)^\}}", text, re.M | re.S)
    while "{" in body:
        body = re.sub(r"\{[^{}]*\}", "object", body)
    return set(re.findall(r"(\w+)\??:", body))
