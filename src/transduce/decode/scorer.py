"""Forced decoding: how likely a model finds translations that are given."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.bundle import Bundle
from transduce.data.batching import collate, plan
from transduce.decode.translator import cut_source
from transduce.errors import DataError
from transduce.model.transformer import Transformer
from transduce.text.tokenizer import normalize

SCORED_TOKENS = 4096
"""Positions a side in a batch, padding included."""

_LOGITS = 2**24
"""Logits that exist at a time."""


class Scored(NamedTuple):
    """What the model thinks of one translation; two blank texts have no tokens."""

    tokens: tuple[str, ...] = ()
    """The subword pieces of the target, as a person is shown them; without the end."""
    token_log_probs: tuple[float, ...] = ()
    """Nats; of each of `tokens` and, last, of the end."""
    source_cut: bool = False
    """The source had more pieces than the model can read."""

    @property
    def log_prob(self) -> float:
        """log P(target | source) in nats, the end included."""
        return math.fsum(self.token_log_probs)

    @property
    def perplexity(self) -> float:
        """exp(-log_prob / tokens), the end being one; 1 where there is none."""
        return perplexity(self.log_prob, len(self.token_log_probs))


def perplexity(log_prob: float, tokens: int = 1) -> float:
    """exp(-log_prob / tokens), at most e^700: finite in any case.

    `log_prob` is the sum over the tokens, in nats; or their mean, without `tokens`.
    """
    return math.exp(min(-log_prob / max(1, tokens), 700))


def score_lines(
    bundle: Bundle,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    numbers: Sequence[int] | None = None,
    batch_tokens: int = SCORED_TOKENS,
) -> list[Scored]:
    """Score translations, each in the pieces that the tokenizer makes of it.

    A pair does not depend on the others. An empty target is scored by its end alone; a blank source
    and target, as `translate` leaves them, have no tokens. A source that is too long is cut, with a
    warning. `numbers` are what warnings and errors call the lines (default: from 1).

    Raises:
        DataError: a target is longer than the model can write.
    """
    assert len(sources) == len(targets), (len(sources), len(targets))
    numbers = range(1, len(sources) + 1) if numbers is None else numbers
    longest = bundle.model.config.max_length - 1  # one position is the mark's
    threads = torch.get_num_threads()
    filled = [
        i
        for i, pair in enumerate(zip(sources, targets, strict=True))
        if normalize("".join(pair)).strip()
    ]
    encoded = bundle.source_tokenizer.encode_all([sources[i] for i in filled], threads)
    ours = bundle.target_tokenizer.encode_all([targets[i] for i in filled], threads)
    for i, target in zip(filled, ours, strict=True):
        if len(target) > longest:
            raise DataError(
                f"line {numbers[i]}: the target's {len(target)} pieces are more than the "
                f"{longest} that the model can write; shorten it, or leave the pair out"
            )
    cut = [cut_source(ids, longest, numbers[i]) for i, ids in zip(filled, encoded, strict=True)]
    found = force(bundle.model, list(zip(cut, ours, strict=True)), batch_tokens)
    results = [Scored()] * len(sources)
    for i, whole, source, target, log_probs in zip(filled, encoded, cut, ours, found, strict=True):
        pieces = tuple(bundle.target_tokenizer.pieces(target))
        results[i] = Scored(pieces, tuple(log_probs), source_cut=len(source) < len(whole))
    return results


@torch.inference_mode()
def force(
    model: Transformer, pairs: Sequence[tuple[list[int], list[int]]], batch_tokens: int
) -> list[list[float]]:
    """Return log P (nats, float32) of each target id, and of the end, given the ids before it.

    `pairs` are bare ids. Log-probabilities are over all of the vocabulary, as search has them.
    """
    device = next(model.parameters()).device
    lengths = np.array([(len(s), len(t)) for s, t in pairs], dtype=np.int32).reshape(-1, 2)
    found: list[list[float]] = [[] for _ in pairs]
    for step in plan(lengths, batch_tokens, seed=0, epoch=0):
        for rows in step:
            batch = collate([pairs[row] for row in rows]).to(device)
            states = model.decode(batch.decoder_input, *model.encode(batch.source))
            size = max(1, _LOGITS // (states.shape[1] * model.config.target_vocab_size))
            parts = zip(states.split(size), batch.labels.split(size), strict=True)
            each = torch.cat([_log_probs(model.output(part), labels) for part, labels in parts])
            for row, values in zip(rows.tolist(), each.tolist(), strict=True):
                found[row] = values[: len(pairs[row][1]) + 1]
    return found


def _log_probs(logits: Float[Tensor, "b t V"], labels: Int[Tensor, "b t"]) -> Float[Tensor, "b t"]:
    return logits.log_softmax(-1, dtype=torch.float32).gather(-1, labels[:, :, None]).squeeze(-1)
