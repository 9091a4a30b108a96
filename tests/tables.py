"""Search without a model: made-up distributions, and searches written straight from the text."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transduce.ids import BOS, EOS, PAD, UNK

Row = list[float]
Table = Callable[[int, tuple[int, ...]], Row]  # (sentence, prefix) -> log-probabilities
INF = float("inf")


def random_table(seed: int, *, vocabulary: int = 9, spread: float = 1.5, grid: float = 0) -> Table:
    """Log-probabilities of a sentence and a whole prefix; on a grid there are ties."""

    def table(sentence: int, prefix: tuple[int, ...]) -> Row:
        draw = random.Random(f"{seed} {sentence} {prefix}")
        row = torch.tensor([draw.gauss(0, spread) for _ in range(vocabulary)])
        row = row.log_softmax(0)
        return ((row / grid).round() * grid if grid else row).tolist()

    return table


class TableStepper:
    """A Stepper over a table; keeps whole prefixes, and notes how many rows each step scored."""

    def __init__(self, table: Table, sentences: int, width: int) -> None:
        self.table = table
        self.width = width
        self.owners = [row // width for row in range(sentences * width)]
        self.prefixes: list[tuple[int, ...]] = [()] * len(self.owners)
        self.rows_scored: list[int] = []

    def score(self, tokens: Tensor) -> Tensor:
        assert len(tokens) == len(self.prefixes)
        if not self.rows_scored:
            assert tokens.tolist() == [BOS] * len(tokens)
        else:
            self.prefixes = [
                (*prefix, token)
                for prefix, token in zip(self.prefixes, tokens.tolist(), strict=True)
            ]
        self.rows_scored.append(len(tokens))
        rows = zip(self.owners, self.prefixes, strict=True)
        return torch.tensor([self.table(owner, prefix) for owner, prefix in rows])

    def select(self, rows: Tensor) -> None:
        kept = rows.tolist()
        assert len(kept) % self.width == 0
        for start in range(0, len(kept), self.width):  # grouped, and each within its sentence
            assert len({row // self.width for row in kept[start : start + self.width]}) == 1
        assert [row // self.width for row in kept] == sorted(row // self.width for row in kept)
        self.owners = [self.owners[row] for row in kept]
        self.prefixes = [self.prefixes[row] for row in kept]


def allowed(
    row: Sequence[float],
    tokens: Sequence[int],
    *,
    limit: int,
    min_length: int = 0,
    no_repeat_ngram: int = 0,
    prefix: Sequence[int] = (),
) -> Row:
    """Decision 4.10's constraints, one row at a time."""
    row, t = list(row), len(tokens) + 1
    if t == limit:
        return [p if i == EOS else -INF for i, p in enumerate(row)]
    if t <= len(prefix):
        return [p if i == prefix[t - 1] else -INF for i, p in enumerate(row)]
    for i in (PAD, BOS, UNK):
        row[i] = -INF
    for i in range(len(row)):
        if i != EOS and no_repeat_ngram and repeats((*tokens, i), no_repeat_ngram):
            row[i] = -INF
    if t < min_length and any(p > -INF for i, p in enumerate(row) if i != EOS):
        row[EOS] = -INF
    return row


def repeats(tokens: Sequence[int], size: int) -> bool:
    """Whether the last n-gram is also an earlier one."""
    ngrams = [tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)]
    return bool(ngrams) and ngrams[-1] in ngrams[:-1]


def penalty(t: int, alpha: float) -> float:
    return ((5 + t) / 6) ** alpha


def beam_by_hand(
    table: Table,
    sentence: int,
    *,
    k: int,
    limit: int,
    alpha: float = 0.6,
    n: int = 1,
    **rules: Any,
) -> tuple[list[tuple[float, tuple[int, ...]]], int]:
    """Decision 4.10 in plain Python, for one sentence; returns the n best and the steps taken."""
    opened: list[tuple[np.float32, tuple[int, ...]]] = [(np.float32(0), ())]
    finished: list[tuple[float, tuple[int, ...]]] = []
    for t in range(1, limit + 1):
        extensions = []
        for parent, (total, tokens) in enumerate(opened):
            row = allowed(table(sentence, tokens), tokens, limit=limit, **rules)
            for i, p in enumerate(row):
                if p > -INF:
                    extensions.append((-(total + np.float32(p)), parent, i))
        kept = sorted(extensions)[: 2 * k]
        others = [(-minus, (*opened[parent][1], i)) for minus, parent, i in kept if i != EOS]
        for minus, parent, i in kept:
            if i == EOS:
                finished.append((float(-minus) / penalty(t, alpha), opened[parent][1]))
        finished.sort(key=lambda one: -one[0])
        opened = others[:k]
        if not opened:
            return finished[:n], t
        reachable = float(max(total for total, _ in opened)) / max(
            penalty(length, alpha) for length in range(t + 1, limit + 1)
        )
        if len(finished) >= n and finished[n - 1][0] >= reachable:
            return finished[:n], t
    raise AssertionError("at t = L everything ends")


def greedy_by_hand(
    table: Table, sentence: int, *, limit: int, **rules: Any
) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Take the likeliest at each step, the lowest id among equals; returns what was paid too."""
    tokens: tuple[int, ...] = ()
    paid: tuple[float, ...] = ()
    while True:
        row = allowed(table(sentence, tokens), tokens, limit=limit, **rules)
        best = min(range(len(row)), key=lambda i: (-row[i], i))
        paid = (*paid, row[best])
        if best == EOS:
            return tokens, paid
        tokens = (*tokens, best)


def every_output(
    table: Table, sentence: int, *, limit: int, alpha: float, **rules: Any
) -> list[tuple[float, tuple[int, ...]]]:
    """Score all outputs there are, best first."""

    def grow(total: np.float32, tokens: tuple[int, ...]) -> Iterator[tuple[float, tuple[int, ...]]]:
        row = allowed(table(sentence, tokens), tokens, limit=limit, **rules)
        for i, p in enumerate(row):
            if p > -INF:
                grown = total + np.float32(p)
                if i == EOS:
                    yield float(grown) / penalty(len(tokens) + 1, alpha), tokens
                else:
                    yield from grow(grown, (*tokens, i))

    return sorted(grow(np.float32(0), ()), key=lambda one: -one[0])
