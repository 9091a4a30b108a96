"""Which pairs go together, in which order, and how they become rectangles of ids.

Shapes: n pairs in the corpus; b rows, s source and t target positions in a batch.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from transduce.ids import BOS, EOS, PAD


class Batch(NamedTuple):
    """Pairs as tensors: source and labels end in EOS, the decoder's input begins with BOS."""

    source: Int[Tensor, "b s"]
    decoder_input: Int[Tensor, "b t"]
    labels: Int[Tensor, "b t"]
    tokens: int
    """Labels that are not padding."""

    def to(self, device: torch.device) -> "Batch":
        """The same on another device."""
        source, decoder_input, labels, tokens = self
        return Batch(source.to(device), decoder_input.to(device), labels.to(device), tokens)


def pad(rows: Sequence[Sequence[int]]) -> Int[Tensor, "b s"]:
    """Stack rows of ids, the shorter ones filled up with PAD on the right; int64."""
    width = max((len(row) for row in rows), default=0)
    filled = [[*row, *[PAD] * (width - len(row))] for row in rows]
    return torch.tensor(filled, dtype=torch.int64).reshape(len(rows), width)


def collate(pairs: Sequence[tuple[list[int], list[int]]]) -> Batch:
    """Add the marks to pairs of bare ids and pad them."""
    return Batch(
        source=pad([[*source, EOS] for source, _ in pairs]),
        decoder_input=pad([[BOS, *target] for _, target in pairs]),
        labels=pad([[*target, EOS] for _, target in pairs]),
        tokens=sum(len(target) + 1 for _, target in pairs),
    )


def plan(
    lengths: Int[np.ndarray, "n 2"], tokens: int, *, seed: int, epoch: int, accumulate: int = 1
) -> list[list[np.ndarray]]:
    """Divide an epoch into steps of at most `accumulate` micro-batches of row numbers.

    Rows x longest is at most `tokens` on each side, padding and mark included; a single pair that
    is longer makes a micro-batch of its own. Each pair comes exactly once. A pure function of its
    arguments, so that to resume is to index. Epochs may differ by a step or two.

    Args:
        lengths: of source and target in bare ids, as `Store.lengths` has them.
        tokens: the budget of one micro-batch and side.
        seed: of the run, not negative.
        epoch: from 0.
        accumulate: micro-batches in a step; the last step may have fewer.
    """
    assert tokens > 0, tokens
    assert accumulate > 0, accumulate
    random = np.random.default_rng((seed, epoch))
    marked = np.asarray(lengths, dtype=np.int64) + 1
    order = _sort_by_shape(marked, random)
    cuts = _cut(marked.max(axis=1)[order], tokens, first=random.uniform(0.5, 1))
    batches = np.split(order, cuts)
    batches = [batches[i] for i in random.permutation(len(batches))] if len(order) else []
    return [batches[i : i + accumulate] for i in range(0, len(batches), accumulate)]


def _sort_by_shape(marked: Int[np.ndarray, "n 2"], random: np.random.Generator) -> np.ndarray:
    """Order the rows so that neighbours are of nearly equal length on both sides.

    First by the longer side; where that is equal, by source minus target, up and down in turn: each
    run then goes on where the one before it ended. Sorting by one side first pads half as much
    again and more.
    """
    shuffled = random.permutation(len(marked))  # decides between rows of equal shape
    longer = marked.max(axis=1)[shuffled]
    difference = (marked[:, 0] - marked[:, 1])[shuffled]
    upwards = (longer + random.integers(2)) % 2 == 0
    span = 2 * int(longer.max(initial=0)) + 1  # the differences of one length fit in
    key = longer * span + np.where(upwards, difference, -difference)
    # An unstable sort would be faster, and its order of equal keys another on another processor.
    return shuffled[np.argsort(key, kind="stable")]


def _cut(longer: Int[np.ndarray, " n"], tokens: int, *, first: float) -> list[int]:
    """Return where the second and later batches begin, in rows sorted by their longer side.

    The first batch takes only this share of its rows, so that all boundaries differ between epochs;
    a corpus that is a single batch stays one.
    """
    counts = np.arange(1, min(tokens, len(longer)) + 1)
    cuts, start = [], 0
    while start < len(longer):
        # The last row is the longest: as rows are added, rows x longest only grows.
        window = longer[start : start + tokens // int(longer[start])]
        size = int(np.count_nonzero(window * counts[: len(window)] <= tokens))
        whole = start > 0 or size == len(longer)
        start += max(1, size if whole else int(size * first))
        cuts.append(start)
    return cuts[:-1]
