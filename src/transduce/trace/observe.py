"""Three passes over one pair, recorded: alone, beside a longer pair, and token by token.

Letters of the shapes: h heads, s source positions, t target positions, p positions of padding.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from transduce.model.transformer import Transformer
from transduce.trace.record import heads_off, record
from transduce.trace.steps import attentions

_PADDING = 3


class Recorded(NamedTuple):
    """What a model was fed and what it computed, with b = 1; names are those of steps.py."""

    source: list[int]
    """With EOS."""
    decoder_input: list[int]
    """BOS first."""
    labels: list[int]
    """As long as decoder_input; all but the last follow BOS there."""
    tape: Mapping[str, Tensor]
    """Everything, of the pair alone."""
    padded: Mapping[str, Tensor]
    """The maps [1, h, q, k], `encoder_norm` and `output` beside a longer pair: s + p and t + p."""
    padding: int
    """p; 0 where the model can read no more."""
    cached: Mapping[str, Tensor]
    """By steps: the decoder's maps [1, h, t, t], 0 above the diagonal, [1, h, t, s]; `output`."""
    search_log_prob: float | None = None
    """What a search said of `labels`, their sum in nats."""
    off: tuple[tuple[str, int], ...] = ()
    """Heads that were switched off."""


@torch.inference_mode()
def observe(
    model: Transformer,
    source: Sequence[int],
    decoder_input: Sequence[int],
    labels: Sequence[int],
    *,
    search_log_prob: float | None = None,
    off: Sequence[tuple[str, int]] = (),
) -> Recorded:
    """Run a model in evaluation mode over a pair of ids and record it.

    Args:
        model: is put into evaluation mode while it runs.
        source: with EOS.
        decoder_input: BOS first.
        labels: one a decoder input.
        search_log_prob: what a search found for `labels` with the same heads off.
        off: heads to switch off, as for `heads_off`.

    Raises:
        AttentionError: over max_length.
        TraceError: no such head.
    """
    device = next(model.parameters()).device
    pair = (
        torch.tensor([list(source)], device=device),
        torch.tensor([list(decoder_input)], device=device),
    )
    training = model.training
    model.eval()
    try:
        with heads_off(model, off):
            with record(model) as tape:
                model(*pair)
            padded, padding = _beside_a_longer_pair(model, *pair)
            cached = _by_steps(model, *pair)
    finally:
        model.train(training)
    return Recorded(
        list(source),
        list(decoder_input),
        list(labels),
        tape,
        padded,
        padding,
        cached,
        search_log_prob,
        tuple(off),
    )


def _beside_a_longer_pair(
    model: Transformer, source: Tensor, decoder_input: Tensor
) -> tuple[dict[str, Tensor], int]:
    longest = max(source.shape[1], decoder_input.shape[1])
    padding = min(_PADDING, model.config.max_length - longest)
    both = []
    for ids in (source, decoder_input):
        # The companion has real tokens everywhere, and others at the same places.
        companion = torch.cat([ids[:, -1:].expand(1, padding), ids.flip(1)], dim=1)
        both.append(torch.cat([functional.pad(ids, (0, padding)), companion]))
    with record(model, "*.weights", "encoder_norm", "output") as tape:
        model(*both)
    return {name: tensor[:1].clone() for name, tensor in tape.items()}, padding  # one, not both


def _by_steps(model: Transformer, source: Tensor, decoder_input: Tensor) -> dict[str, Tensor]:
    length = decoder_input.shape[1]
    with record(model, "decoder.*.weights", "output") as tape:
        cache = model.start(*model.encode(source), width=1, capacity=length)
        for token in decoder_input[0]:
            model.step(token[None], cache)
    found = {"output": torch.cat(tape.calls("output"), dim=1)}
    for block, pattern in attentions(model).items():
        if pattern != "encoder_self":
            rows = tape.calls(f"{block}.weights")
            if pattern == "decoder_self":  # a step sees no keys after its own
                rows = [functional.pad(row, (0, length - row.shape[-1])) for row in rows]
            found[f"{block}.weights"] = torch.cat(rows, dim=2)
    return found
