"""The tree of a search for one source: what it considered, kept, let go of and finished."""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transduce.decode.beam import Extensions, beam_steps, best_extensions
from transduce.decode.constraints import Constraints
from transduce.decode.greedy import Hypothesis, greedy, hypothesis
from transduce.decode.search import SearchOptions
from transduce.decode.stepper import ModelStepper
from transduce.ids import EOS
from transduce.model.transformer import Transformer

ALTERNATIVES = 4
"""Extensions in a step of a greedy tree; a beam search itself considers 2 x beam."""


class Node(NamedTuple):
    """One token that a search considered after the tokens of its parents."""

    id: int
    parent: int | None
    """None: it is the first generated token."""
    step: int
    """How many tokens its path has, from 1."""
    token: int
    log_prob: float
    """Of this token, nats."""
    sum: float
    """Of the path, nats: what a search compares within a step."""
    state: Literal["kept", "pruned", "finished"]


class Tree(NamedTuple):
    """A search: nodes by step, then as it ranked them; outputs, the best score first."""

    beam: int
    alpha: float
    nodes: list[Node]
    finished: list[tuple[int, Hypothesis]]
    """Every output that ended, with the id of its EOS; of equal scores the earlier first."""


def search_limit(model: Transformer, source: Sequence[int], prefix: Sequence[int] = ()) -> int:
    """The greatest |Y|, as `translate` has it; as much room after a long prefix as it is long."""
    limit = SearchOptions().limit(len(source) - 1)
    return min(max(limit, 2 * len(prefix)), model.config.max_length)


@torch.inference_mode()
def search_tree(
    model: Transformer,
    source: Sequence[int],
    *,
    beam: int,
    alpha: float,
    limit: int,
    prefix: Sequence[int] = (),
) -> Tree:
    """Search an output for source ids (with EOS) as `translate` does, and keep what is seen.

    A beam of 1 is greedy search, with the alternatives that it did not take. A wider one goes on
    until no open path can beat any of its `beam` best outputs; the best is that of the search that
    ends once nothing can beat the first.
    """
    device = next(model.parameters()).device
    ids = torch.tensor([list(source)], device=device)
    stepper = ModelStepper(model, ids, width=beam, capacity=limit)
    rules = Constraints([limit], prefixes=[prefix])
    nodes: list[Node] = []
    opened: list[int | None] = [None] * beam
    if beam == 1:
        watched = _Watched(stepper)
        (best,) = greedy(watched, rules, alpha=alpha)
        for token, scores in zip([*best.tokens, EOS], watched.scores, strict=True):
            # It compares tokens and not sums, in which near ones may be equal.
            found = best_extensions(torch.zeros(1, 1), scores, count=ALTERNATIVES)
            assert int(found.ids[0, 0]) == token, "greedy search takes the likeliest"
            ends = torch.zeros_like(found.ids, dtype=torch.bool)
            ends[0, 0] = token == EOS
            total = 0.0 if opened[0] is None else nodes[opened[0]].sum
            sums = torch.tensor(total) + found.log_probs
            opened = _grow(nodes, opened, found._replace(sums=sums), ends, [0])
    else:
        for step in beam_steps(stepper, rules, beam=beam, alpha=alpha, n_best=beam):
            columns = step.opened[0].tolist()
            opened = _grow(nodes, opened, step.found, step.ends, columns)
    finished = [
        (node.id, _output(nodes, node, limit=limit, alpha=alpha))
        for node in nodes
        if node.state == "finished"
    ]
    finished.sort(key=lambda one: -one[1].score)
    return Tree(beam, alpha, nodes, finished)


class _Watched:
    """A stepper whose scores are kept, as search has left them: what may not come has -inf."""

    def __init__(self, stepper: ModelStepper) -> None:
        self._stepper = stepper
        self.scores: list[Float[Tensor, "r V"]] = []

    def score(self, tokens: Int[Tensor, " r"]) -> Float[Tensor, "r V"]:
        self.scores.append(self._stepper.score(tokens))
        return self.scores[-1]  # the caller writes into it

    def select(self, rows: Int[Tensor, " r2"]) -> None:
        self._stepper.select(rows)


def _grow(
    nodes: list[Node],
    opened: list[int | None],
    found: Extensions,
    ends: Bool[Tensor, "1 c"],
    columns: list[int],
) -> list[int | None]:
    """Add a step's extensions of the `opened` nodes; return those at `columns`, which stay open."""
    added: dict[int, int] = {}
    for column, (total, parent, token, log_prob) in enumerate(
        zip(*(values[0].tolist() for values in found), strict=True)
    ):
        if total == -math.inf:  # nothing that may come: there are fewer than were asked for
            continue
        above = opened[parent]
        step = 1 if above is None else nodes[above].step + 1
        state = "finished" if ends[0, column] else "kept" if column in columns else "pruned"
        added[column] = len(nodes)
        nodes.append(Node(len(nodes), above, step, token, log_prob, total, state))
    return [added.get(column) for column in columns]


def _output(nodes: list[Node], end: Node, *, limit: int, alpha: float) -> Hypothesis:
    """Read an output off the tree, from its EOS back."""
    path = [end]
    while (parent := path[-1].parent) is not None:
        path.append(nodes[parent])
    tokens, log_probs = zip(*((node.token, node.log_prob) for node in reversed(path)), strict=True)
    return hypothesis(tokens[:-1], log_probs, log_prob=end.sum, limit=limit, alpha=alpha)
