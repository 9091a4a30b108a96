"""Greedy search and sampling, a path a sentence, and what all searches return: `Hypothesis`.

Shapes: n sentences, r rows (here one a sentence), V target pieces, t steps so far.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from transduce.decode.constraints import Constraints
from transduce.decode.sampling import Sampler
from transduce.decode.stepper import Stepper
from transduce.ids import BOS, EOS


class Hypothesis(NamedTuple):
    """One finished output."""

    tokens: tuple[int, ...]
    """Target ids without BOS and EOS."""
    score: float
    """log_prob / length_penalty(length): what a search ranks by."""
    log_prob: float
    """The sum of `token_log_probs`, nats."""
    length: int
    """|Y|: generated tokens, EOS included."""
    cut: bool
    """EOS was forced: the limit was reached."""
    token_log_probs: tuple[float, ...]
    """Nats; of each of `tokens` and, last, of EOS."""


def length_penalty(length: int, alpha: float) -> float:
    """lp(Y) = ((5 + |Y|) / 6)^alpha (Wu et al. 2016, equation 14; alpha 0 is no penalty)."""
    return ((5 + length) / 6) ** alpha


def hypothesis(
    tokens: Sequence[int],
    token_log_probs: Sequence[float],
    *,
    log_prob: float,
    limit: int,
    alpha: float,
) -> Hypothesis:
    """Close an output: `tokens` are without EOS, `token_log_probs` with it."""
    length = len(token_log_probs)
    return Hypothesis(
        tokens=tuple(tokens),
        score=log_prob / length_penalty(length, alpha),
        log_prob=log_prob,
        length=length,
        cut=length >= limit,
        token_log_probs=tuple(token_log_probs),
    )


@torch.inference_mode()
def greedy(
    stepper: Stepper, constraints: Constraints, *, alpha: float, sampler: Sampler | None = None
) -> list[Hypothesis]:
    """Take the likeliest token at every step, the lowest id among equals, until EOS.

    With a `sampler` take what it draws instead. `stepper` has one row a sentence; `constraints` and
    `sampler` are used up. A sentence leaves them when it ends.
    """
    results: list[Hypothesis | None] = [None] * len(constraints)
    alive = torch.arange(len(constraints))
    tokens = torch.empty(len(alive), 0, dtype=torch.int64)
    log_probs = torch.empty(len(alive), 0)
    sums = torch.zeros(len(alive))
    last = torch.full_like(alive, BOS)
    while len(alive):
        scores = stepper.score(last)
        constraints.apply(scores, tokens)
        if sampler is None:
            best = scores.max(dim=1)  # the first of equal maxima
            last, gained = best.indices.cpu(), best.values.cpu()
        else:
            last = sampler.draw(scores)
            gained = scores.gather(1, last[:, None].to(scores.device))[:, 0].cpu()
        assert gained.isfinite().all(), (
            "the model gave no finite log-probability to what is allowed"
        )
        sums = sums + gained
        log_probs = torch.cat([log_probs, gained[:, None]], dim=1)
        ended = last == EOS
        if ended.any():
            for row in ended.nonzero()[:, 0].tolist():
                results[int(alive[row])] = hypothesis(
                    tokens[row].tolist(),
                    log_probs[row].tolist(),
                    log_prob=float(sums[row]),
                    limit=int(constraints.limits[row]),
                    alpha=alpha,
                )
            stay = (~ended).nonzero()[:, 0]
            if len(stay):
                stepper.select(stay)
            constraints.select(stay)
            if sampler is not None:
                sampler.select(stay)
            alive, sums, last = alive[stay], sums[stay], last[stay]
            tokens, log_probs = tokens[stay], log_probs[stay]
        tokens = torch.cat([tokens, last[:, None]], dim=1)
    return [result for result in results if result is not None]
