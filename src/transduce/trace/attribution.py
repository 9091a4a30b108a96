"""How much each piece matters to each label, by two ways that do not look at attention weights.

A weight says what was mixed in, not what mattered (Jain and Wallace 2019, Attention is not
Explanation; Wiegreffe and Pinter 2019 on when it may be). So a piece is taken away (Zeiler and
Fergus 2014, Li et al. 2016), or the slope is asked (Simonyan et al. 2013, Denil et al. 2014; for
translation Ding et al. 2017). Neither is the truth: they ask two questions, and may disagree.

Letters of the shapes: b rows, s source positions, t target positions, k keys, h heads, d d_model.
"""

import copy
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from transduce.bundle import count_parameters
from transduce.ids import BOS
from transduce.model.transformer import Embedding, MultiHeadAttention, Transformer
from transduce.trace.steps import attentions

MOST_PIECES = 64
"""Of a side: the work grows by the square."""

_LOGITS = 2**23
"""Of a batch, 96 MiB with their log-probabilities."""


class Sides(NamedTuple):
    """A number for each label and piece; positive: the piece speaks for the label."""

    source: Float[Tensor, "t s"]
    target: Float[Tensor, "t t"]
    """Pieces of the decoder's input; of those after the label's position 0, but for rounding."""


class Attribution(NamedTuple):
    """What each piece matters to each label, in nats of its log-probability."""

    occlusion: Sides
    """What the log-probability loses when the piece is hidden: no query attends to its position,
    in any block or head, its own included; the weights of the others sum to 1 again.

    The position stays, so all others keep theirs. Nobody reads what is computed there: the piece is
    gone, but for the one input that a target position itself reads, which stays in its residual
    stream (the diagonal of `target`). A query that has no other key mixes nothing, 0: the first
    target position without BOS, and all queries where the source is EOS alone.
    """
    gradient: Sides
    """Gradient by the vector at the piece's position that enters the first layer, √d E[id] +
    position, times √d E[id]: to first order, what it loses when the piece's row of E is set to 0
    and its position stays. (So the gradient by E[id], times E[id].)"""


def cost(model: Transformer, source: Sequence[int], labels: Sequence[int]) -> int:
    """Return roughly how often a parameter is multiplied."""
    s, t = len(source), len(labels)
    return count_parameters(model) * (s + t) * (1 + s + 3 * t)


def attribution(model: Transformer, source: Sequence[int], labels: Sequence[int]) -> Attribution:
    """Measure what each piece matters to each label of a forced pass.

    Args:
        model: is put into evaluation mode while it runs; its heads that are off stay off.
        source: ids, EOS last.
        labels: ids, EOS last; the decoder's input is BOS and all but the last.

    Returns:
        Tensors in float32, on the CPU.

    Raises:
        AttentionError: over max_length.
    """
    given, training = model, model.training
    model.eval()
    try:
        # A trace is made without gradients; here they are what is asked for.
        with torch.inference_mode(False):
            if any(parameter.is_inference() for parameter in model.parameters()):
                model = copy.deepcopy(model)  # it was loaded where no gradient is taken, for ever
            device = next(model.parameters()).device
            rows = ([*source], [BOS, *labels[:-1]], [*labels])
            ids, decoder_input, wanted = (torch.tensor([row], device=device) for row in rows)
            return Attribution(
                _occlusion(model, ids, decoder_input, wanted),
                _gradient(model, ids, decoder_input, wanted),
            )
    finally:
        given.train(training)


@torch.no_grad()
def _occlusion(
    model: Transformer,
    source: Int[Tensor, "1 s"],
    decoder_input: Int[Tensor, "1 t"],
    labels: Int[Tensor, "1 t"],
) -> Sides:
    s, t = source.shape[1], decoder_input.shape[1]
    one_each = torch.eye(s + t, dtype=torch.bool, device=source.device)
    rows = torch.cat([torch.zeros_like(one_each[:1]), one_each])  # first of all nothing is hidden
    found = []
    for some in rows.split(max(1, _LOGITS // (t * model.config.target_vocab_size))):
        b = len(some)
        with hidden(model, some[:, :s], some[:, s:]):
            logits = model(source.expand(b, -1), decoder_input.expand(b, -1))
        found.append(_log_probs(logits, labels.expand(b, -1)))
    intact, without = torch.cat(found).split([1, s + t])
    return _sides((intact - without).T, s)


@torch.enable_grad()
def _gradient(
    model: Transformer,
    source: Int[Tensor, "1 s"],
    decoder_input: Int[Tensor, "1 t"],
    labels: Int[Tensor, "1 t"],
) -> Sides:
    sides = ((model.source_embedding, source), (model.target_embedding, decoder_input))
    entered: list[Tensor] = []
    with ExitStack() as stack:
        for embedding, _ in sides:
            stack.callback(embedding.register_forward_hook(partial(_enter, entered)).remove)
        logits = model(source, decoder_input)
    log_probs = _log_probs(logits, labels).flatten()
    scaled = torch.cat([_scaled(embedding, ids) for embedding, ids in sides], dim=1)
    rows = []
    for one in log_probs:
        slopes = torch.autograd.grad(one, entered, retain_graph=True)
        rows.append((torch.cat(slopes, dim=1) * scaled).sum(-1))
    return _sides(torch.cat(rows), source.shape[1])


def _log_probs(logits: Float[Tensor, "b t V"], labels: Int[Tensor, "b t"]) -> Float[Tensor, "b t"]:
    """Of each label, in float64, which not every GPU has."""
    return logits.cpu().double().log_softmax(-1).gather(2, labels.cpu()[:, :, None])[:, :, 0]


def _enter(entered: list[Tensor], _: nn.Module, inputs: tuple, output: Tensor) -> Tensor:
    """Keep what enters the first layer, as that by which gradients are taken."""
    entered.append(output.detach().requires_grad_())
    return entered[-1]


@torch.no_grad()
def _scaled(embedding: Embedding, ids: Int[Tensor, "1 n"]) -> Float[Tensor, "1 n d"]:
    return embedding.table(ids) * embedding.scale


def _sides(both: Float[Tensor, "t st"], s: int) -> Sides:
    both = both.float().cpu().contiguous()
    return Sides(both[:, :s].clone(), both[:, s:].clone())


@contextmanager
def hidden(
    model: Transformer, source: Bool[Tensor, "b s"], target: Bool[Tensor, "b t"]
) -> Generator[None]:
    """Keep all queries of all attentions from some keys, in forced passes over b pairs.

    Args:
        model: whose modules get hooks until the context ends, however it ends.
        source: True where a source position is hidden, in the encoder and from the decoder.
        target: True where a position of the decoder's input is.
    """
    with ExitStack() as stack:
        for block, pattern in attentions(model).items():
            own = pattern == "decoder_self"
            shut = (target if own else source)[:, None, None, :]
            seen = (~shut).expand(-1, -1, shut.shape[-1], -1).tril() if own else ~shut
            attention = model.get_submodule(block)
            assert isinstance(attention, MultiHeadAttention)
            for part, hook in (
                (attention.scores, partial(_shut, shut)),
                (attention.weights, partial(_nothing, ~seen.any(-1, keepdim=True))),
            ):
                stack.callback(part.register_forward_hook(hook).remove)
        yield


def _shut(
    keys: Bool[Tensor, "b 1 1 k"], _: nn.Module, inputs: tuple, scores: Float[Tensor, "b h q k"]
) -> Float[Tensor, "b h q k"]:
    return scores.masked_fill(keys, -torch.inf)


def _nothing(
    queries: Bool[Tensor, "b 1 n 1"], _: nn.Module, inputs: tuple, weights: Float[Tensor, "b h q k"]
) -> Float[Tensor, "b h q k"]:
    """Queries without a key: their softmax is of nothing, and no number."""
    return weights.masked_fill(queries, 0)
