"""Beam search over the sentences of a batch at once: design decision 4.10, to the letter.

`beam_steps` is the search, one step at a time, for who wants to see what it does; `beam_search`
runs it to the end.

Shapes: n sentences, k beams a sentence (a stepper's rows r are n x k, grouped by sentence), c
candidate extensions a sentence, V target pieces, t steps so far. All that is small lies on the CPU,
so that a step asks the device for little: its best extensions.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from transduce.decode.constraints import Constraints
from transduce.decode.greedy import Hypothesis, hypothesis, length_penalty
from transduce.decode.stepper import Stepper
from transduce.ids import BOS, EOS


class Extensions(NamedTuple):
    """The best one-token extensions of each sentence's beams, by (-sum, parent, id)."""

    sums: Float[Tensor, "n c"]
    """Log-probabilities of all tokens, nats."""
    parents: Int[Tensor, "n c"]
    """The beam that is extended, 0 to k - 1."""
    ids: Int[Tensor, "n c"]
    log_probs: Float[Tensor, "n c"]
    """Of the last token alone, nats."""

    def take(self, columns: Int[Tensor, "n c2"]) -> "Extensions":
        """Pick columns, each sentence its own."""
        return Extensions(*(values.gather(1, columns) for values in self))


class Beams(NamedTuple):
    """The open prefixes of the sentences still searched; a beam whose sum is -inf is none."""

    sentences: Int[Tensor, " n"]
    """Which of the batch."""
    sums: Float[Tensor, "n k"]
    tokens: Int[Tensor, "n k t"]
    log_probs: Float[Tensor, "n k t"]
    """Of each token, nats; `sums` are theirs."""
    best: Float[Tensor, "n best"]
    """Scores of the n best finished, falling; -inf where there are none."""
    penalties: Float[Tensor, " n"]
    """Length penalty of the greatest length."""

    def select(self, sentences: Int[Tensor, " n2"]) -> "Beams":
        """Keep these sentences only."""
        return Beams(*(values[sentences] for values in self))


class Step(NamedTuple):
    """What one step of a search has found, and what became of it."""

    sentences: Int[Tensor, " n"]
    """Which of the batch are still searched."""
    found: Extensions
    ends: Bool[Tensor, "n c"]
    """Which of `found` finish here."""
    opened: Int[Tensor, "n k"]
    """The columns of `found` that stay open; a later step's `parents` count them."""
    finished: list[tuple[int, Hypothesis]]
    """Sentence and output of those among the n best so far."""


@torch.inference_mode()
def beam_search(
    stepper: Stepper, constraints: Constraints, *, beam: int, alpha: float, n_best: int
) -> list[list[Hypothesis]]:
    """Find the `n_best` outputs of each sentence, best first; fewer where no more exist.

    `stepper` has `beam` rows a sentence; `constraints` is used up. A sentence that is finished
    leaves both at once.
    """
    finished: list[list[Hypothesis]] = [[] for _ in range(len(constraints))]
    for step in beam_steps(stepper, constraints, beam=beam, alpha=alpha, n_best=n_best):
        for sentence, one in step.finished:
            finished[sentence].append(one)
    # Python's sort is stable: of equal scores, the one that was finished first comes first.
    results = [sorted(found, key=lambda one: -one.score)[:n_best] for found in finished]
    assert all(results), "the model gave no finite log-probability to what is allowed"
    return results


def beam_steps(
    stepper: Stepper, constraints: Constraints, *, beam: int, alpha: float, n_best: int
) -> Iterator[Step]:
    """Search as `beam_search` does, and yield each step once it is decided.

    To be called, and drained, in one inference mode: a stepper's scores are written into.
    """
    beams = _start(constraints.limits, beam=beam, alpha=alpha, n_best=n_best)
    last = torch.full((len(constraints) * beam,), BOS)
    while True:
        log_probs = stepper.score(last)
        constraints.apply(log_probs, beams.tokens.flatten(0, 1))
        found = best_extensions(beams.sums, log_probs, count=2 * beam)
        ends = (found.ids == EOS) & (found.sums > -torch.inf)
        finished: list[tuple[int, Hypothesis]] = []
        if ends.any():
            beams = _finish(beams, found, ends, constraints.limits, finished, alpha=alpha)

        # The first k that did not end stay open: a stable sort puts them first, in order.
        columns = ends.byte().sort(dim=1, stable=True).indices[:, :beam]
        yield Step(beams.sentences, found, ends, columns, finished)
        opened = found.take(columns)
        # A sum only falls; the longest output divides it by the most.
        reachable = opened.sums[:, 0].double() / beams.penalties
        stay = (beams.best[:, -1] < reachable).nonzero()[:, 0]
        if not len(stay):
            break
        beams = _extend(beams, opened)
        rows = torch.arange(len(opened.parents))[:, None] * beam + opened.parents
        if len(stay) < len(rows):
            constraints.select(stay)
            beams, rows = beams.select(stay), rows[stay]
        if not torch.equal(rows.flatten(), torch.arange(len(log_probs))):
            stepper.select(rows.flatten())
        last = beams.tokens[:, :, -1].flatten()


def best_extensions(
    sums: Float[Tensor, "n k"], log_probs: Float[Tensor, "r V"], *, count: int
) -> Extensions:
    """Sort all extensions of each sentence's beams by (-sum, parent, id); return the first `count`.

    Exact with ties too: what topk leaves open, which of equal sums it takes and in which order, is
    settled by the place parent * V + id. The result lies on the CPU.
    """
    n, k = sums.shape
    vocabulary = log_probs.shape[1]
    totals = (log_probs.view(n, k, -1) + sums.to(log_probs.device)[:, :, None]).view(n, -1)
    count = min(count, totals.shape[1] - 1)
    values, places = (x.cpu() for x in totals.topk(count + 1))
    at_border = values[:, count - 1]
    tied = ((at_border == values[:, count]) & (at_border > -torch.inf)).nonzero()[:, 0]
    values, places = values[:, :count], places[:, :count]
    if len(tied):
        places[tied] = _first_of_equals(totals[tied.to(totals.device)], values[tied], places[tied])
    places, order = places.sort(dim=1)
    values, by_sum = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    places = places.gather(1, by_sum)
    parents = places // vocabulary
    rows = torch.arange(n)[:, None] * k + parents
    ids = places % vocabulary
    gained = log_probs[rows.to(log_probs.device), ids.to(log_probs.device)].cpu()
    return Extensions(values, parents, ids, gained)


def _first_of_equals(
    totals: Float[Tensor, "n all"], values: Float[Tensor, "n c"], places: Int[Tensor, "n c"]
) -> Int[Tensor, "n c"]:
    """Take, of the sums equal to the last one kept, those at the lowest places; `values` fall."""
    border = values[:, -1:]
    everywhere = torch.arange(totals.shape[1], device=totals.device)
    equal = totals == border.to(totals.device)
    lowest = torch.where(equal, everywhere, totals.shape[1]).topk(places.shape[1], largest=False)
    greater = (values > border).sum(dim=1, keepdim=True)  # these come first and stay
    column = torch.arange(places.shape[1]) - greater
    return torch.where(column < 0, places, lowest.values.cpu().gather(1, column.clamp(min=0)))


def _start(limits: Int[Tensor, " n"], *, beam: int, alpha: float, n_best: int) -> Beams:
    """One empty prefix a sentence: beams 1 to k - 1 are none yet."""
    n, k = len(limits), beam
    sums = torch.full((n, k), -torch.inf)
    sums[:, 0] = 0
    penalties = [length_penalty(limit, alpha) for limit in limits.tolist()]
    return Beams(
        sentences=torch.arange(n),
        sums=sums,
        tokens=torch.empty(n, k, 0, dtype=torch.int64),
        log_probs=torch.empty(n, k, 0),
        best=torch.full((n, n_best), -torch.inf, dtype=torch.float64),
        penalties=torch.tensor(penalties, dtype=torch.float64),
    )


def _extend(beams: Beams, opened: Extensions) -> Beams:
    """Move the prefixes to where their extensions are, and append these."""
    past = opened.parents[:, :, None].expand(-1, -1, beams.tokens.shape[2])
    tokens = torch.cat([beams.tokens.gather(1, past), opened.ids[:, :, None]], dim=2)
    log_probs = torch.cat([beams.log_probs.gather(1, past), opened.log_probs[:, :, None]], dim=2)
    return beams._replace(sums=opened.sums, tokens=tokens, log_probs=log_probs)


def _finish(
    beams: Beams,
    found: Extensions,
    ends: Bool[Tensor, "n c"],
    limits: Int[Tensor, " n"],
    finished: list[tuple[int, Hypothesis]],
    *,
    alpha: float,
) -> Beams:
    """Add to `finished` the extensions that end and get among the n best of their sentence."""
    length = beams.tokens.shape[2] + 1
    scores = found.sums.double() / length_penalty(length, alpha)
    scores[~ends] = -torch.inf
    rows, columns = (scores > beams.best[:, -1:]).nonzero(as_tuple=True)
    parents = found.parents[rows, columns]
    log_probs = torch.cat(
        [beams.log_probs[rows, parents], found.log_probs[rows, columns, None]], dim=1
    )
    for sentence, tokens, each, total, limit in zip(
        beams.sentences[rows].tolist(),
        beams.tokens[rows, parents].tolist(),
        log_probs.tolist(),
        found.sums[rows, columns].tolist(),
        limits[rows].tolist(),
        strict=True,
    ):
        one = hypothesis(tokens, each, log_prob=total, limit=limit, alpha=alpha)
        finished.append((sentence, one))
    best = torch.cat([beams.best, scores], dim=1).topk(beams.best.shape[1]).values
    return beams._replace(best=best)
