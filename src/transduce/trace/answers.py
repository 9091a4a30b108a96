"""What else a model would say: with another token forced, or with heads switched off."""

from collections.abc import Sequence

import torch

from transduce.decode.constraints import Constraints
from transduce.decode.greedy import Hypothesis, greedy
from transduce.decode.scorer import SCORED_TOKENS, force
from transduce.decode.stepper import ModelStepper
from transduce.ids import BOS, PAD, UNK
from transduce.model.transformer import Transformer
from transduce.trace.document import Answer, Continuation
from transduce.trace.record import heads_off
from transduce.trace.steps import attentions

FORCED = 4
"""Tokens that are forced at each position, besides the label."""

MOST_FORCED = 64
"""Positions, from the first: each token that is forced costs a translation."""

MOST_ANSWERS = 64
"""Choices of heads to switch off; each costs a translation."""

Heads = list[tuple[str, int]]


@torch.inference_mode()
def continuations(
    model: Transformer, source: Sequence[int], labels: Sequence[int], limit: int
) -> tuple[list[Continuation], list[str]]:
    """At each position force each of the likeliest tokens but the label, and go on greedily.

    `source` and `labels` end with EOS; an output has at most `limit` tokens, or as many as those
    before the position need. Returns them, and what is left out, and why.
    """
    device = next(model.parameters()).device
    memory = model.encode(torch.tensor([list(source)], device=device))
    decoder_input = torch.tensor([[BOS, *labels[:-1]]], device=device)
    logits = model.output(model.decode(decoder_input, *memory))[0]
    logits[:, [PAD, BOS, UNK]] = -torch.inf  # no search produces them
    logits[range(len(labels)), list(labels)] = -torch.inf
    # At the last position that a model has, all must end.
    places = range(min(len(labels), model.config.max_length - 1, MOST_FORCED))
    count = min(FORCED, logits.shape[1] - 4)
    likeliest = logits.sort(dim=1, descending=True, stable=True).indices[:, :count].tolist()
    forced = [(place, token) for place in places for token in likeliest[place]]
    found = _greedy(
        model, source, [[*labels[:place], token] for place, token in forced], limit=limit
    )
    left_out = [f"continuations after the first {MOST_FORCED} pieces: there are {len(labels)}"]
    return (
        [Continuation(*one, output) for one, output in zip(forced, found, strict=True)],
        left_out if len(labels) > MOST_FORCED else [],
    )


def switched_off(
    model: Transformer,
    source: Sequence[int],
    labels: Sequence[int],
    limit: int,
    off: Sequence[tuple[str, int]],
) -> tuple[list[Answer], list[str]]:
    """Switch off each pattern, each block and each head, besides those of `off`.

    Returns the answers, and what is left out, and why: there may be MOST_ANSWERS at most.
    """
    heads = {block: [(block, h) for h in range(model.config.heads)] for block in attentions(model)}
    patterns: dict[str, Heads] = {}
    for block, pattern in attentions(model).items():
        patterns.setdefault(pattern, []).extend(heads[block])
    chosen: list[Heads] = []
    left_out = []
    for kind, group in (
        ("patterns", list(patterns.values())),
        ("blocks", list(heads.values())),
        ("heads", [[head] for block in heads.values() for head in block]),
    ):
        new = [one for one in group if one not in chosen]
        if len(chosen) + len(new) > MOST_ANSWERS:
            left_out.append(f"answers with {kind} switched off: {len(new)} are too many")
        else:
            chosen += new
    results = []
    for one in chosen:
        silent = list(dict.fromkeys([*off, *one]))
        with heads_off(model, silent):
            (found,) = _greedy(model, source, [[]], limit=limit)
            pair = list(source[:-1]), list(labels[:-1])
            (log_probs,) = force(model, [pair], SCORED_TOKENS)
        results.append(Answer(silent, found, log_probs))
    return results, left_out


@torch.inference_mode()
def _greedy(
    model: Transformer, source: Sequence[int], prefixes: Sequence[Sequence[int]], *, limit: int
) -> list[Hypothesis]:
    """Search greedily for outputs that begin with each prefix."""
    device = next(model.parameters()).device
    limits = [min(max(limit, 2 * len(p)), model.config.max_length) for p in prefixes]
    ids = torch.tensor([list(source)] * len(prefixes), device=device)
    stepper = ModelStepper(model, ids, width=1, capacity=max(limits))
    return greedy(stepper, Constraints(limits, prefixes=prefixes), alpha=0.0)
