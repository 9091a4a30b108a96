"""Word alignments read off cross-attention: which source word each target word was written from."""

import unicodedata
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy import ndarray

from transduce.trace.document import Trace, pieces
from transduce.trace.record import check_head
from transduce.trace.steps import last_cross_attention

Units = Literal["words", "pieces"]


class Alignment(NamedTuple):
    """Links of one sentence, and how much weight went where there is nothing to link."""

    links: list[tuple[int, int]]
    """Source unit, target unit, from 0; by target unit, each at most once."""
    units: int
    """Of the target."""
    end: float
    """Mean share of the weight that is on EOS, of the target's pieces."""
    punctuation: float
    """The same of source pieces that are punctuation alone."""


def align(
    trace: Trace, block: str | None = None, head: int | None = None, *, units: Units = "words"
) -> Alignment:
    """Link each target word to the source word that got most weight while it was written.

    Weights are those of the position that predicts a piece, not of the one that reads it
    (docs/tracing.md has both measured). The weight of a source word is the sum of its pieces', that
    of a target word the mean; a word for which EOS has the most is linked to nothing. What
    attention reads is no proof of what it was translated from.

    Args:
        trace: with its tensors; that of a blank text has no links.
        block: a cross-attention; None: the last.
        head: from 0; None: the mean of the heads.
        units: words are what stands between spaces, and pieces what the tokenizer has made.

    Raises:
        TraceError: no such block or head.
    """
    model = trace.bundle.model
    block = block or last_cross_attention(model)
    check_head(model, block, head or 0)
    if not trace.source:
        return Alignment([], 0, 0.0, 0.0)
    weights = trace.tensors[f"{block}.weights"].double().numpy()
    weights = weights.mean(axis=0) if head is None else weights[head]
    weights = weights[:-1]  # the last row predicts EOS, which stands for no word
    source = pieces(trace.bundle.source_tokenizer, trace.source[:-1])
    target = pieces(trace.bundle.target_tokenizer, trace.labels[:-1])
    assert weights.shape == (len(target), len(source) + 1), weights.shape
    columns, rows = (
        words(side) if units == "words" else list(range(len(side))) for side in (source, target)
    )
    marks = [j for j, piece in enumerate(source) if _is_punctuation(piece)]
    return Alignment(
        links(weights, columns, rows),
        max(rows, default=-1) + 1,
        float(weights[:, -1].mean()) if target else 0.0,
        float(weights[:, marks].sum(axis=1).mean()) if target else 0.0,
    )


def links(weights: ndarray, columns: Sequence[int], rows: Sequence[int]) -> list[tuple[int, int]]:
    """Link each row unit to the column unit of the greatest weight, the first of equal ones.

    Args:
        weights: [t, s + 1]; the last column is EOS, and what has its greatest weight there has no
            link.
        columns: of each but the last column the unit, ascending from 0.
        rows: of each row the unit, ascending from 0.
    """
    last = max(columns, default=-1) + 1
    summed = np.zeros((len(rows), last + 1))
    for j, unit in enumerate([*columns, last]):
        summed[:, unit] += weights[:, j]
    found = []
    for unit in sorted(set(rows)):
        mine = summed[[i for i, row in enumerate(rows) if row == unit]].mean(axis=0)
        if (best := int(mine.argmax())) != last:
            found.append((best, unit))
    return found


def words(side: Sequence[str]) -> list[int]:
    """Return of each piece the word that it is of; a space alone is of the word it comes before."""
    found, word, space = [], -1, True
    for piece in side:
        bare = piece.lstrip("▁")
        space = space or len(bare) < len(piece)
        if bare and space:
            word, space = word + 1, False
        found.append(word + (not bare))
    return [min(unit, max(word, 0)) for unit in found]


def _is_punctuation(piece: str) -> bool:
    bare = piece.strip("▁")
    return bool(bare) and all(unicodedata.category(letter).startswith("P") for letter in bare)
