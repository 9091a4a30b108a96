"""Validation: the unsmoothed loss of the references, and BLEU of what beam search really writes."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from transduce.bundle import Bundle
from transduce.decode.scorer import force, perplexity
from transduce.decode.search import SearchOptions
from transduce.decode.translator import Translator
from transduce.errors import RunError
from transduce.evaluate import Score, bleu
from transduce.train.defaults import Chosen
from transduce.train.prepare import Example

REMEDY = (
    "what was saved is sound. Lower train.learning_rate_scale, or set train.clip_norm, "
    "in another folder"
)
"""What a user can do about numbers that are not finite."""


class Validation(NamedTuple):
    """How a model does on text it has not learnt from."""

    loss: float
    """Cross-entropy in nats a target token, without smoothing."""
    bleu: Score
    translations: list[str]

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return perplexity(-self.loss)


def validate(
    bundle: Bundle, examples: Sequence[Example], chosen: Chosen, *, interval: bool = False
) -> Validation:
    """Measure a model on validation examples, in float32 and without dropout.

    The model stays in evaluation mode. This is what `translate` and sacreBLEU give for the same
    checkpoint and beam.

    Raises:
        RunError: the loss is not finite; such a model cannot be searched.
    """
    bundle.model.eval()
    loss = _loss(bundle, examples, chosen.batch_tokens)
    if not math.isfinite(loss):
        raise RunError(f"the validation loss is {loss}; {REMEDY}")
    translations = Translator(bundle).translate_lines(
        [example.source for example in examples],
        SearchOptions(beam=chosen.beam, alpha=chosen.alpha),
    )
    texts = [translation.text for translation in translations]
    references = [example.references for example in examples]
    score = bleu(texts, references, interval=interval)
    return Validation(loss, score, texts)


def _loss(bundle: Bundle, examples: Sequence[Example], batch_tokens: int) -> float:
    limit = bundle.model.config.max_length - 1  # one position is the mark's
    source, target = bundle.source_tokenizer, bundle.target_tokenizer
    pairs = [
        (source.encode(example.source)[:limit], target.encode(example.references[0])[:limit])
        for example in examples
    ]
    log_probs = [value for each in force(bundle.model, pairs, batch_tokens) for value in each]
    return -math.fsum(log_probs) / len(log_probs)
