"""Validation: the unsmoothed loss of the references, and BLEU of what beam search really writes."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from transduce.bundle import Bundle
from transduce.data.batching import collate, plan
from transduce.decode.beam import BeamOptions
from transduce.decode.translator import Translator
from transduce.evaluate import Score, bleu
from transduce.model.loss import smoothed_loss
from transduce.train.defaults import Loop
from transduce.train.prepare import Example


class Validation(NamedTuple):
    """How a model does on text it has not learnt from."""

    loss: float
    """Cross-entropy in nats a target token, without smoothing."""
    bleu: Score
    translations: list[str]

    @property
    def perplexity(self) -> float:
        """exp(loss)."""
        return math.exp(min(self.loss, 700))


def validate(
    model: Bundle, examples: Sequence[Example], loop: Loop, *, interval: bool = False
) -> Validation:
    """Measure a model on validation examples, in float32 and without dropout.

    This is what `translate` and sacreBLEU give for the same checkpoint and beam.
    """
    training = model.model.training
    model.model.eval()
    loss = _loss(model, examples, loop.batch_tokens)
    if not math.isfinite(loss):
        return Validation(loss, Score(0.0, "not translated"), [""] * len(examples))
    translations = Translator(model).translate_lines(
        [example.source for example in examples], BeamOptions(size=loop.beam, alpha=loop.alpha)
    )
    texts = [translation.text for translation in translations]
    references = [example.references for example in examples]
    score = bleu(texts, references, interval=interval)
    model.model.train(training)
    return Validation(loss, score, texts)


@torch.inference_mode()
def _loss(model: Bundle, examples: Sequence[Example], batch_tokens: int) -> float:
    limit = model.model.config.max_length - 1  # one position is the mark's
    pairs = [
        (
            model.source_tokenizer.encode(example.source)[:limit],
            model.target_tokenizer.encode(example.references[0])[:limit],
        )
        for example in examples
    ]
    lengths = np.array([(len(source), len(target)) for source, target in pairs], dtype=np.int32)
    device = next(model.model.parameters()).device
    loss, tokens = 0.0, 0
    for step in plan(lengths, batch_tokens, seed=0, epoch=0):
        for rows in step:
            batch = collate([pairs[row] for row in rows])
            logits = model.model(batch.source.to(device), batch.decoder_input.to(device))
            loss += float(smoothed_loss(logits, batch.labels.to(device), 0.0).plain)
            tokens += batch.tokens
    return loss / tokens
