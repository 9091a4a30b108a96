"""What search sees of a model: two verbs, `score` and `select`.

Shapes: b sentences, s source positions, r rows (sentences x width, grouped by sentence), V target
pieces.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.model.transformer import Transformer


@runtime_checkable
class Stepper(Protocol):
    """The distribution of the next token, for many prefixes at once; each starts empty."""

    def score(self, tokens: Int[Tensor, " r"]) -> Float[Tensor, "r V"]:
        """Append one token a row; return the log-probabilities (nats, float32) of the next one.

        The first call gets BOS in every row. The caller owns the result and may write into it.
        """
        ...

    def select(self, rows: Int[Tensor, " r2"]) -> None:
        """Make old row `rows[i]` the new row i; rows stay in their sentence, which may leave."""
        ...


class ModelStepper:
    """A Transformer as a Stepper: the source is encoded once, keys and values are cached."""

    @torch.inference_mode()
    def __init__(
        self, model: Transformer, source: Int[Tensor, "b s"], *, width: int, capacity: int
    ) -> None:
        """Encode `source` (ids + EOS, padded) and make room for `capacity` steps."""
        memory, memory_mask = model.encode(source)
        self._model = model
        self._device = source.device
        self._cache = model.start(memory, memory_mask, width=width, capacity=capacity)

    @torch.inference_mode()
    def score(self, tokens: Int[Tensor, " r"]) -> Float[Tensor, "r V"]:
        """Append one token a row; a float32 log-softmax over all V, whatever the precision."""
        logits = self._model.step(tokens.to(self._device), self._cache)
        return torch.log_softmax(logits, dim=-1, dtype=torch.float32)

    @torch.inference_mode()
    def select(self, rows: Int[Tensor, " r2"]) -> None:
        """Reorder the cache, or let sentences leave it."""
        self._cache.select(rows.to(self._device))


class EnsembleStepper:
    """Several Steppers as one: the log of the mean of their probabilities.

    What fairseq does, and Sockeye in its default ("linear") mode; not the mean of the logs.
    """

    def __init__(self, members: Sequence[Stepper]) -> None:
        """Take steppers of the same rows and the same target pieces."""
        assert members, "an ensemble of none"
        self._members = list(members)

    @torch.inference_mode()
    def score(self, tokens: Int[Tensor, " r"]) -> Float[Tensor, "r V"]:
        """Append one token a row, for all members; where they agree it is their value exactly."""
        scores = torch.stack([member.score(tokens) for member in self._members])
        top = scores.amax(dim=0).clamp(min=torch.finfo(scores.dtype).min)  # -inf - -inf is nan
        return top + (scores - top).exp().mean(dim=0).log()

    def select(self, rows: Int[Tensor, " r2"]) -> None:
        """Reorder all members."""
        for member in self._members:
            member.select(rows)
