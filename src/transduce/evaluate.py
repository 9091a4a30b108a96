"""Scores of translations against references: sacreBLEU's metrics, intervals, paired tests.

The metrics are sacreBLEU's own (Post 2018), and so are the intervals: the same resamples by the
same seed, without holding all of them in memory. Letters of the shapes: n sentences, k sufficient
statistics of a metric.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from rich.console import Console
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric, Signature
from sacrebleu.metrics.base import Score as SacreScore
from sacrebleu.tokenizers.tokenizer_spm import SPM_MODELS
from sacrebleu.utils import SACREBLEU_DIR, sum_of_lists

from transduce import moses
from transduce.errors import DataError, SettingsError
from transduce.progress import Stage

SEED = 12345
"""Of resampling and of trials: sacreBLEU's own, whatever SACREBLEU_SEED says."""
RESAMPLES = 1_000
TRIALS = 10_000
TOKENIZERS = (*BLEU.TOKENIZERS, *moses.TOKENIZERS)
_METRICS = 4
_SIGNIFICANT = 0.05
_TOKENISED = 0.1
"""Share of lines with a sign of tokenisation from which a text is called tokenised.

In Multi30k's and Tatoeba's raw files it is at most 0.001, in tokenised ones at least 0.94.
"""
_SIGNS = re.compile(
    r"\S [,.](?= |$)"  # a space before a comma or a full stop; French has one before ; : ! ?
    r"|\( \S|\S \)(?= |$)"
    r"| n't(?= |$)|\w ' ?(?:s|t|m|d|re|ve|ll)(?= |$)"  # do n't, it 's, it ' s
    r"|\b(?:[cdjlmnst]|qu)' \w"  # l' homme
    r"|@-@|@@(?= |$)|▁\S|(?:^| )##\w"  # Moses, subword-nmt, SentencePiece, WordPiece
    r"|&(?:apos|quot|amp|lt|gt|#\d+);",  # what Moses escapes
    re.IGNORECASE,
)


class Score(NamedTuple):
    """A score in percent; without its signature it cannot be compared."""

    value: float
    """In percent; TER may be above 100."""
    signature: str
    """sacreBLEU's: all that decides the number, besides the text."""
    interval: float = 0.0
    """Half of the 95 % bootstrap interval (Koehn 2004), where it was asked for."""
    low: float = 0.0
    """The lower bound of this interval."""
    high: float = 0.0
    """The upper bound."""

    def __str__(self) -> str:
        spread = f" ± {self.interval:.1f}" if self.interval else ""
        return f"{self.value:.2f}{spread} ({self.signature})"


class Difference(NamedTuple):
    """A system against the baseline under one metric: a two-sided test of equal quality."""

    value: float
    """Its score minus the baseline's."""
    p_value: float
    """How often chance alone makes a difference that is as large, or larger."""
    better: bool
    """Higher, or lower in TER; means something only where `significant`."""

    @property
    def significant(self) -> bool:
        """Whether chance alone would make such a difference less than once in twenty times."""
        return self.p_value < _SIGNIFICANT


class Evaluation(NamedTuple):
    """What is known of one system."""

    scores: dict[str, Score]
    """By the metric's name: BLEU, chrF2++, TER, exact match."""
    differences: dict[str, Difference]
    """By the metric's name, from the first system; empty for the first itself."""


class ExactMatch(Metric):
    """Share of translations that are equal to a reference, in percent; a metric like the others."""

    def __init__(
        self, *, lowercase: bool = False, references: Sequence[Sequence[Any]] | None = None
    ) -> None:
        super().__init__()
        self.lowercase = lowercase
        if references is not None:
            self._ref_cache = self._cache_references(references)

    def get_signature(self) -> Signature:
        """Say how many references, and whether case counts."""
        signature = Signature(self.__dict__)
        signature.update("case", "lc" if self.lowercase else "mixed")
        return signature

    def _preprocess_segment(self, sent: str) -> str:
        return sent.lower() if self.lowercase else sent

    def _extract_reference_info(self, refs: Sequence[str]) -> dict[str, Any]:
        return {"refs": refs}

    def _compute_segment_statistics(self, hypothesis: str, ref_kwargs: dict) -> list[int]:
        return [hypothesis in ref_kwargs["refs"], 1]

    def _compute_score_from_stats(self, stats: Sequence[int] | np.ndarray) -> SacreScore:
        return SacreScore("exact match", 100 * float(stats[0]) / float(stats[1]))

    def _aggregate_and_compute(self, stats: list[list[int]]) -> SacreScore:
        return self._compute_score_from_stats(sum_of_lists(stats))


def bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, interval: bool = False
) -> Score:
    """sacreBLEU (Post 2018) of detokenised text: tokenizer 13a, case kept, over the whole corpus.

    Args:
        hypotheses: one translation a sentence.
        references: for each sentence, one reference or more.
        interval: also resample, for the 95 % interval.

    Raises:
        DataError: not as many hypotheses as sentences with references, or none.
    """
    metric = _bleu(_streams([hypotheses], references), "13a", lowercase=False)
    return _score(metric, hypotheses, interval=interval)


def exact_match(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Share of translations equal to their reference, in percent.

    Raises:
        DataError: not as many hypotheses as references, or none.
    """
    metric = ExactMatch(references=_streams([hypotheses], [(text,) for text in references]))
    return _score(metric, hypotheses, interval=False)


def evaluate(
    systems: Sequence[Sequence[str]],
    references: Sequence[Sequence[str]],
    *,
    tokenize: str = "13a",
    lowercase: bool = False,
    console: Console | None = None,
) -> list[Evaluation]:
    """Score systems by BLEU, chrF++, TER and exact match, and compare all with the first.

    Args:
        systems: of each, one translation a sentence.
        references: for each sentence, one reference or more.
        tokenize: of BLEU, by sacreBLEU's names; or moses-de and the like, moses-de-atat.
        lowercase: case does not count (in TER it never does, as in sacreBLEU).
        console: where to show progress.

    Raises:
        DataError: not as many translations as sentences with references, or none.
        SettingsError: a tokenizer that does not exist or needs what is not here.
    """
    streams = _streams(systems, references)
    found = [Evaluation({}, {}) for _ in systems]
    total = len(references) * len(systems) * _METRICS
    console = console or Console(quiet=True)
    with Stage(console, "scoring", "scores of sentences", total=total) as stage:
        for metric in _metrics(streams, tokenize, lowercase):
            first: np.ndarray | None = None
            for system, evaluation in zip(systems, found, strict=True):
                statistics = metric._extract_corpus_statistics(system, None)
                name = metric._aggregate_and_compute(statistics).name
                evaluation.scores[name] = _summarise(metric, statistics, interval=True)
                rows = np.array(statistics, float)
                if first is None:
                    first = rows
                else:
                    difference = evaluation.scores[name].value - found[0].scores[name].value
                    better = difference < 0 if isinstance(metric, TER) else difference > 0
                    p_value = _randomise(metric, rows, first)
                    evaluation.differences[name] = Difference(difference, p_value, better)
                stage.advance(len(system))
    return found


def check_tokenizer(name: str) -> None:
    """Check that BLEU can tokenize so on this machine.

    Raises:
        SettingsError: it cannot; what is missing is named.
    """
    if name.startswith("moses"):
        moses.MosesTokenizer(name)
        return
    if name not in TOKENIZERS:
        raise SettingsError(f"tokenize {name!r} is unknown; there are {', '.join(TOKENIZERS)}")
    model = None
    if name in SPM_MODELS:  # sacreBLEU would fetch it
        url = SPM_MODELS[name]["url"]
        model = Path(SACREBLEU_DIR, "models", Path(url).name)
        if not model.exists():
            raise SettingsError(
                f"tokenize {name!r} needs the file {model}, and nothing is fetched here; put there "
                f"what is at {url}"
            )
    try:
        BLEU(tokenize=name)
    except (ImportError, OSError, RuntimeError):
        extra = name.removesuffix("-mecab")
        reason = (
            f"cannot read {model}"
            if model
            else f"needs a package that is not here; pip install 'sacrebleu[{extra}]'"
        )
        raise SettingsError(f"tokenize {name!r} {reason}") from None


def tokenised_lines(lines: Sequence[str]) -> list[int]:
    """Return the numbers, from 1, of lines that look tokenised, if enough do to mean it.

    Signs are a space before a comma or full stop, split clitics, and the marks that Moses and
    subword tools leave. The French space before ; : ! ? is none. Blank lines do not count.
    """
    signs = [number for number, line in enumerate(lines, start=1) if _SIGNS.search(line)]
    filled = sum(1 for line in lines if line.strip())
    return signs if len(signs) > _TOKENISED * filled else []


def _streams(
    systems: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> list[list[Any]]:
    """Check sentences and their numbers; return sacreBLEU's form: all first references, then ...

    None stands where a sentence has no more of them.
    """
    for what, lists in (
        ("translations of a system", systems),
        ("references of a sentence", references),
    ):
        if isinstance(lists, str) or not isinstance(lists, Sequence):
            raise DataError(f"{what} are given in a list of lists, not {lists!r:.60}")
        for texts in lists:
            if isinstance(texts, str) or not isinstance(texts, Sequence):
                raise DataError(f"{what} are a list of strings, not {texts!r:.60}")
            if wrong := [text for text in texts if not isinstance(text, str)]:
                raise DataError(f"{what} are strings, not {wrong[0]!r:.60}")
    for hypotheses in systems:
        if len(hypotheses) != len(references):
            raise DataError(f"{len(hypotheses)} translations, but {len(references)} references")
    if not references:
        raise DataError("no sentence to score")
    if not all(references):
        raise DataError("each sentence has one reference or more")
    return [list(stream) for stream in zip_longest(*references)]


def _metrics(streams: list[list[Any]], tokenize: str, lowercase: bool) -> Iterator[Metric]:
    """One after the other: each keeps all n-grams of the references."""
    check_tokenizer(tokenize)
    yield _bleu(streams, tokenize, lowercase)
    yield CHRF(word_order=2, lowercase=lowercase, references=streams)
    yield TER(references=streams)
    yield ExactMatch(lowercase=lowercase, references=streams)


def _bleu(streams: list[list[Any]], tokenize: str, lowercase: bool) -> BLEU:
    # force: its warning about tokenised text, of three lines, is ours to give.
    if tokenize not in moses.TOKENIZERS:
        return BLEU(tokenize=tokenize, lowercase=lowercase, force=True, references=streams)
    metric = BLEU(tokenize="none", lowercase=lowercase, force=True)
    metric.tokenizer = moses.MosesTokenizer(tokenize)
    metric.tokenizer_signature = metric.tokenizer.signature()
    metric._ref_cache = metric._cache_references(streams)
    return metric


def _score(metric: Metric, hypotheses: Sequence[str], *, interval: bool) -> Score:
    statistics = metric._extract_corpus_statistics(hypotheses, None)
    return _summarise(metric, statistics, interval=interval)


def _summarise(metric: Metric, statistics: list[list[Any]], *, interval: bool) -> Score:
    value = float(metric._aggregate_and_compute(statistics).score)
    if not interval:
        return Score(value, str(metric.get_signature()))
    # sacreBLEU's intervals are of float32 sums; in float64 their last digits would be others.
    scores = _resample(metric, np.array(statistics, dtype=np.float32))
    low, high = scores[RESAMPLES // 40], scores[RESAMPLES - RESAMPLES // 40 - 1]
    metric.n_bootstrap, metric.seed = RESAMPLES, str(SEED)
    return Score(value, str(metric.get_signature()), (high - low) / 2, low, high)


def _resample(metric: Metric, rows: Float[np.ndarray, "n k"]) -> list[float]:
    """Score as many sentences drawn with replacement, many times; the scores, rising."""
    random = np.random.default_rng(SEED)
    n = len(rows)
    return sorted(
        float(metric._compute_score_from_stats(rows[random.choice(n, size=n)].sum(0)).score)
        for _ in range(RESAMPLES)
    )


def _randomise(
    metric: Metric, system: Float[np.ndarray, "n k"], baseline: Float[np.ndarray, "n k"]
) -> float:
    """Approximate randomisation (Riezler and Maxwell 2005), two-sided; the p-value.

    If both were equally good, which of the two wrote a translation would not matter: in each trial
    the two change places in half of the sentences. The trials are those of sacreBLEU, which counts
    only differences above the real one, so that two systems which differ in a single sentence would
    differ beyond all doubt; here, as in the source, equal ones count too.
    """

    def difference(moved: Float[np.ndarray, " k"]) -> float:
        ours = metric._compute_score_from_stats(system.sum(0) + moved).score
        theirs = metric._compute_score_from_stats(baseline.sum(0) - moved).score
        return abs(float(ours) - float(theirs))

    random = np.random.default_rng(SEED)
    swap = baseline - system
    real = difference(np.zeros(swap.shape[1])) - 1e-9  # TER's statistics are no whole numbers
    reached = 0
    for start in range(0, TRIALS, 32):  # 32 bits are drawn at a time: the stream of one big draw
        chosen = random.integers(2, size=(min(32, TRIALS - start), len(swap)), dtype=bool)
        reached += sum(difference(moved) >= real for moved in chosen @ swap)
    return (reached + 1) / (TRIALS + 1)
