"""Text in, text out: `Translator` encodes, batches, searches, decodes; lines keep their place."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from transduce import bundle
from transduce.bundle import Bundle
from transduce.config import validate
from transduce.data.batching import pad
from transduce.decode.constraints import Constraints
from transduce.decode.greedy import Hypothesis
from transduce.decode.search import SearchOptions, search
from transduce.decode.stepper import EnsembleStepper, ModelStepper
from transduce.errors import BundleError, DataError, SettingsError
from transduce.ids import EOS
from transduce.text.tokenizer import normalize

log = logging.getLogger(__name__)

BATCH_TOKENS = 8192
"""Source positions of a batch, padding and beams included."""
CPU_BATCH_TOKENS = 4096
"""The same on a CPU, where more of them only leave its caches."""


class Translation(NamedTuple):
    """One translated text; that of a blank text is empty and costs nothing."""

    text: str = ""
    """The translation, in normal form."""
    score: float = 0.0
    """log_prob / length penalty (Wu et al. 2016): what the search has ranked by."""
    log_prob: float = 0.0
    """log P(text | source) in nats, the end included."""
    tokens: tuple[str, ...] = ()
    """The subword pieces, as a person is shown them; without the end."""
    token_log_probs: tuple[float, ...] = ()
    """Nats; of each of `tokens` and, last, of the end."""
    source_cut: bool = False
    """The source had more pieces than the model can read."""
    output_cut: bool = False
    """The output reached its limit and was ended there."""
    alternatives: tuple[tuple[str, float], ...] = ()
    """Text and score of the others of `n_best`, best first; samples in the order of drawing."""


class Translator:
    """A model directory, or an ensemble of several, as a function from text to text."""

    def __init__(self, first: Bundle, *others: Bundle, names: Sequence[str] = ()) -> None:
        """Take models with the same tokenizers; they run on the device where the first is.

        `names` are what an error calls them (default: model 1, model 2 ...).

        Raises:
            BundleError: a model has other tokenizers than the first.
        """
        models = (first, *others)
        names = names or [f"model {number}" for number in range(1, len(models) + 1)]
        _check_tokenizers(models, names)
        self.bundles = models
        """The models; more than one are an ensemble."""
        self.names = tuple(names)
        """What each is called: the path that it was loaded from."""
        self._source_tokenizer = first.source_tokenizer
        self._target_tokenizer = first.target_tokenizer
        self._device = next(first.model.parameters()).device
        self.batch_tokens = default_batch_tokens(self._device)
        """Source positions in a batch, where a call does not say otherwise."""
        self._models = [one.model.to(self._device) for one in models]
        self._max_length = min(model.config.max_length for model in self._models)

    @classmethod
    def load(
        cls, path: str | Path, *others: str | Path, device: str | torch.device = "cpu"
    ) -> "Translator":
        """Read a model directory, or the best one of a training run; `others` join an ensemble.

        Raises:
            BundleError: it is none, or one of the others has other tokenizers.
        """
        paths = (path, *others)
        models = [bundle.load(one, device=device) for one in paths]
        return cls(*models, names=[str(one) for one in paths])

    def translate(
        self,
        text: str | Iterable[str],
        *,
        prefix: str | Iterable[str] | None = None,
        batch_tokens: int | None = None,
        **options: object,
    ) -> Translation | list[Translation]:
        """Translate one text, or a list of texts into a list, in their order.

        Args:
            text: what to translate; a source that is too long is cut, with a warning.
            prefix: what the output has to begin with: one for all texts, or one for each.
            batch_tokens: source positions in a batch, beams included; changes speed and memory.
            options: those of `SearchOptions`, by name: beam, alpha, n_best, min_length ...

        Raises:
            SettingsError: options that are unknown, out of range or contradict each other, or
                another number of prefixes than of texts.
            DataError: what is to be translated is not text.
        """
        texts = _as_texts(text, "text")
        if batch_tokens is not None and (type(batch_tokens) is not int or batch_tokens < 1):
            raise SettingsError(
                f"batch_tokens = {batch_tokens!r:.60}: a whole number of at least 1"
            )
        if prefix is not None:
            given = _as_texts(prefix, "prefix")
            prefix = given * len(texts) if isinstance(prefix, str) else given
            if len(prefix) != len(texts):
                raise SettingsError(f"{len(prefix)} prefixes for {len(texts)} texts")
        found = self.translate_lines(
            texts, validate(SearchOptions, options), prefixes=prefix, batch_tokens=batch_tokens
        )
        return found[0] if isinstance(text, str) else found

    def translate_lines(
        self,
        texts: Sequence[str],
        options: SearchOptions,
        *,
        numbers: Sequence[int] | None = None,
        prefixes: Sequence[str] | None = None,
        batch_tokens: int | None = None,
    ) -> list[Translation]:
        """Translate texts; `numbers` name them in warnings and seed samples (default: from 1)."""
        numbers = range(1, len(texts) + 1) if numbers is None else numbers
        results = [Translation()] * len(texts)
        # The normal form first: it is what turns some characters into white space.
        filled = [i for i, text in enumerate(texts) if normalize(text).strip()]
        encoded = self._source_tokenizer.encode_all(
            [texts[i] for i in filled], torch.get_num_threads()
        )
        sources = dict(zip(filled, encoded, strict=True))
        longest = self._max_length - 1  # EOS takes one position
        cut = {i for i, ids in sources.items() if len(ids) > longest}
        for i in sorted(cut):
            sources[i] = cut_source(sources[i], longest, numbers[i])
        rows = options.beam * options.samples
        for batch in _batches(sources, (batch_tokens or self.batch_tokens) // rows):
            forced = [
                self._target_tokenizer.encode(prefixes[i]) if prefixes and prefixes[i] else []
                for i in batch
            ]
            lines = [numbers[i] for i in batch]
            found = self._search([sources[i] for i in batch], forced, options, lines)
            for i, hypotheses in zip(batch, found, strict=True):
                results[i] = self._decode(hypotheses, source_cut=i in cut)
        return results

    def _search(
        self,
        sources: Sequence[list[int]],
        prefixes: Sequence[list[int]],
        options: SearchOptions,
        lines: Sequence[int],
    ) -> list[list[Hypothesis]]:
        # The t-th token is scored from the position before it: there are max_length of them.
        limits = [min(options.limit(len(ids)), self._max_length) for ids in sources]
        for line, prefix, limit in zip(lines, prefixes, limits, strict=True):
            if len(prefix) >= limit:
                raise SettingsError(f"text {line}: its prefix is longer than the output may be")
        # Each sample is a sentence of its own, and leaves when it ends.
        sources = [ids for ids in sources for _ in range(options.samples)]
        prefixes = [ids for ids in prefixes for _ in range(options.samples)]
        limits = [limit for limit in limits for _ in range(options.samples)]
        source = pad([[*ids, EOS] for ids in sources]).to(self._device)
        steppers = [
            ModelStepper(model, source, width=options.beam, capacity=max(limits))
            for model in self._models
        ]
        rules = Constraints(
            limits,
            min_length=options.min_length,
            no_repeat_ngram=options.no_repeat_ngram,
            prefixes=prefixes,
        )
        stepper = steppers[0] if len(steppers) == 1 else EnsembleStepper(steppers)
        return search(stepper, rules, options, lines=lines)

    def _decode(self, hypotheses: list[Hypothesis], *, source_cut: bool) -> Translation:
        best, *others = hypotheses
        return Translation(
            text=self._target_tokenizer.decode(best.tokens),
            score=best.score,
            log_prob=best.log_prob,
            tokens=tuple(self._target_tokenizer.pieces(best.tokens)),
            token_log_probs=best.token_log_probs,
            source_cut=source_cut,
            output_cut=best.cut,
            alternatives=tuple(
                (self._target_tokenizer.decode(one.tokens), one.score) for one in others
            ),
        )


def default_batch_tokens(device: torch.device) -> int:
    """Source positions of a batch, padding and beams included, that suit a device."""
    return CPU_BATCH_TOKENS if device.type == "cpu" else BATCH_TOKENS


def _as_texts(given: object, what: str) -> list[str]:
    """Make a list of one text, or of some.

    Raises:
        DataError: it is neither, or the list holds something else.
    """
    if isinstance(given, str):
        return [given]
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise DataError(f"{what} must be a string or a list of strings, not {type(given).__name__}")
    texts = list(given)
    for number, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            raise DataError(f"{what} {number} of the list is no string, but {type(text).__name__}")
    return texts


def _check_tokenizers(models: Sequence[Bundle], names: Sequence[str]) -> None:
    first = models[0]
    for one, name in zip(models, names, strict=True):
        for side in ("source", "target"):
            tokenizers = getattr(one, f"{side}_tokenizer"), getattr(first, f"{side}_tokenizer")
            if tokenizers[0].model != tokenizers[1].model:
                raise BundleError(
                    f"{name}: its {side} tokenizer is not that of {names[0]}; the models of an "
                    "ensemble are trained with the same tokenizers, byte for byte"
                )


def cut_source(ids: list[int], longest: int, number: int) -> list[int]:
    """Return what the model can read of a source; where that is less, warn and name the line."""
    if len(ids) > longest:
        log.warning(
            "line %d: its %d pieces are more than the model reads; cut after %d",
            number, len(ids), longest,
        )  # fmt: skip
    return ids[:longest]


def _batches(sources: dict[int, list[int]], tokens: int) -> Iterator[list[int]]:
    """Group texts by length, the longest first; rows x longest (with EOS) at most `tokens`."""
    order = sorted(sources, key=lambda i: (-len(sources[i]), i))
    start = 0
    while start < len(order):
        rows = max(1, tokens // (len(sources[order[start]]) + 1))
        yield order[start : start + rows]
        start += rows
