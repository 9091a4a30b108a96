"""Text in, text out: `Translator` encodes, batches, searches, decodes; lines keep their place."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from transduce import bundle
from transduce.bundle import Bundle
from transduce.config import validate
from transduce.data.batching import pad
from transduce.decode.beam import BeamOptions, search
from transduce.decode.constraints import Constraints
from transduce.decode.greedy import Hypothesis
from transduce.decode.stepper import ModelStepper
from transduce.errors import SettingsError
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
    score: float = 0.0  # log_prob / length penalty
    log_prob: float = 0.0  # nats
    tokens: tuple[str, ...] = ()  # pieces as a person is shown them
    token_log_probs: tuple[float, ...] = ()  # of each token and of the end
    source_cut: bool = False  # the source was longer than the model can read
    output_cut: bool = False  # the output reached its limit and was ended
    alternatives: tuple[tuple[str, float], ...] = ()  # text and score of the others of n best


class Translator:
    """A model directory as a function from text to text."""

    def __init__(self, loaded: Bundle) -> None:
        """Take a model and its tokenizers; it runs on the device where the model is."""
        self._model = loaded.model
        self._source_tokenizer = loaded.source_tokenizer
        self._target_tokenizer = loaded.target_tokenizer
        self._device = next(loaded.model.parameters()).device
        self.batch_tokens = CPU_BATCH_TOKENS if self._device.type == "cpu" else BATCH_TOKENS

    @classmethod
    def load(cls, path: str | Path, *, device: str | torch.device = "cpu") -> "Translator":
        """Read a model directory, or the best one of a training run.

        Raises:
            BundleError: it is none.
        """
        return cls(bundle.load(path, device=device))

    def translate(
        self,
        text: str | Sequence[str],
        *,
        beam: int = 4,
        alpha: float = 0.6,
        n_best: int = 1,
        min_length: int = 0,
        max_length: int | None = None,
        prefix: str | Sequence[str] | None = None,
        batch_tokens: int | None = None,
    ) -> Translation | list[Translation]:
        """Translate one text, or a list of texts into a list, in their order.

        Lengths are in target pieces, the end included; `prefix` is what the output has to begin
        with (of all texts, or of each). A source that is too long is cut, with a warning.

        Raises:
            SettingsError: options out of range, or another number of prefixes than of texts.
        """
        texts = [text] if isinstance(text, str) else list(text)
        if prefix is not None:
            prefix = [prefix] * len(texts) if isinstance(prefix, str) else list(prefix)
            if len(prefix) != len(texts):
                raise SettingsError(f"{len(prefix)} prefixes for {len(texts)} texts")
        options = {
            "beam": beam,
            "alpha": alpha,
            "n_best": n_best,
            "min_length": min_length,
            "max_length": max_length,
        }
        found = self.translate_lines(
            texts, validate(BeamOptions, options), prefixes=prefix, batch_tokens=batch_tokens
        )
        return found[0] if isinstance(text, str) else found

    def translate_lines(
        self,
        texts: Sequence[str],
        options: BeamOptions,
        *,
        numbers: Sequence[int] | None = None,
        prefixes: Sequence[str] | None = None,
        batch_tokens: int | None = None,
    ) -> list[Translation]:
        """Translate texts; `numbers` are what warnings call them (default: from 1)."""
        numbers = range(1, len(texts) + 1) if numbers is None else numbers
        results = [Translation()] * len(texts)
        # The normal form first: it is what turns some characters into white space.
        filled = [i for i, text in enumerate(texts) if normalize(text).strip()]
        encoded = self._source_tokenizer.encode_all(
            [texts[i] for i in filled], torch.get_num_threads()
        )
        sources = dict(zip(filled, encoded, strict=True))
        longest = self._model.config.max_length - 1  # EOS takes one position
        cut = {i for i, ids in sources.items() if len(ids) > longest}
        for i in sorted(cut):
            log.warning(
                "line %d: its %d pieces are more than the model reads; cut after %d",
                numbers[i], len(sources[i]), longest,
            )  # fmt: skip
            sources[i] = sources[i][:longest]
        for batch in _batches(sources, (batch_tokens or self.batch_tokens) // options.beam):
            forced = [
                self._target_tokenizer.encode(prefixes[i]) if prefixes and prefixes[i] else []
                for i in batch
            ]
            found = self._search([sources[i] for i in batch], forced, options)
            for i, hypotheses in zip(batch, found, strict=True):
                results[i] = self._decode(hypotheses, source_cut=i in cut)
        return results

    def _search(
        self, sources: Sequence[list[int]], prefixes: Sequence[list[int]], options: BeamOptions
    ) -> list[list[Hypothesis]]:
        # The t-th token is scored from the position before it: there are max_length of them.
        most = self._model.config.max_length
        limits = [min(options.limit(len(ids)), most) for ids in sources]
        stepper = ModelStepper(
            self._model,
            pad([[*ids, EOS] for ids in sources]).to(self._device),
            width=options.beam,
            capacity=max(limits),
        )
        rules = Constraints(limits, min_length=options.min_length, prefixes=prefixes)
        return search(stepper, rules, options)

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


def _batches(sources: dict[int, list[int]], tokens: int) -> Iterator[list[int]]:
    """Group texts by length, the longest first; rows x longest (with EOS) at most `tokens`."""
    order = sorted(sources, key=lambda i: (-len(sources[i]), i))
    start = 0
    while start < len(order):
        rows = max(1, tokens // (len(sources[order[start]]) + 1))
        yield order[start : start + rows]
        start += rows
