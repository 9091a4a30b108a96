"""Scores of translations against references: sacreBLEU with its signature, and exact match."""

from collections.abc import Sequence
from typing import NamedTuple

from sacrebleu.metrics import BLEU

from transduce.errors import DataError

_RESAMPLES = 1_000


class Score(NamedTuple):
    """A score in percent; without its signature it cannot be compared."""

    value: float
    signature: str
    interval: float = 0.0
    """Half of the 95 % bootstrap interval (Koehn 2004), where it was asked for."""

    def __str__(self) -> str:
        spread = f" ± {self.interval:.1f}" if self.interval else ""
        return f"{self.value:.2f}{spread} ({self.signature})"


def bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, interval: bool = False
) -> Score:
    """sacreBLEU (Post 2018) of detokenised text: tokenizer 13a, case kept, over the whole corpus.

    Args:
        hypotheses: one translation a sentence.
        references: for each sentence, one reference or more, the same number for all.
        interval: also resample, for the 95 % interval.

    Raises:
        DataError: not as many hypotheses as sentences with references.
    """
    if len(hypotheses) != len(references):
        raise DataError(f"{len(hypotheses)} translations, but {len(references)} references")
    metric = BLEU()
    streams = [list(stream) for stream in zip(*references, strict=True)]
    result = metric.corpus_score(
        list(hypotheses), streams, n_bootstrap=_RESAMPLES if interval else 1
    )
    spread = float(getattr(result, "_ci", 0.0)) if interval else 0.0
    return Score(float(result.score), str(metric.get_signature()), spread)


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Share of translations equal to their reference, in percent.

    Raises:
        DataError: not as many hypotheses as references.
    """
    if len(hypotheses) != len(references):
        raise DataError(f"{len(hypotheses)} translations, but {len(references)} references")
    equal = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    return Score(100 * equal / max(1, len(references)), f"exact match, {len(references)} sentences")
