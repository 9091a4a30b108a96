"""The loss of training: output matrix and smoothed cross-entropy in one, a chunk at a time.

Equal to `smoothed_loss` of the logits (loss.py), but the matrix of all logits never exists, and the
gradient is made in the same pass. Letters of the shapes: b sentences, t target positions, n = b t,
d d_model, V the target vocabulary.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from transduce.ids import PAD
from transduce.model.kernels import gradient_of_weight, product
from transduce.model.loss import Loss

_CHUNK = 2**24
"""Logits that exist at a time; fewer cost more passes over the gradient of the output matrix."""
_BLOCK = 2**18
"""Logits that are worked on at a time on a CPU: what is made on the way stays in its cache."""


def projected_loss(
    states: Float[Tensor, "b t d"],
    output: Float[Tensor, "V d"],
    labels: Int[Tensor, "b t"],
    smoothing: float,
) -> Loss:
    """`smoothed_loss` of the logits states @ outputᵀ, of which only a chunk exists at a time.

    The products are in the precision of `states`, `output`'s gradient in that of `output`.
    """
    return Loss(*_ProjectedLoss.apply(states.flatten(0, 1), output, labels.flatten(), smoothing))


class _ProjectedLoss(torch.autograd.Function):
    """Makes the gradients on the way: softmax(logits) - target distribution, times the factors."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - PyTorch's signature
        states: Float[Tensor, "n d"],
        output: Float[Tensor, "V d"],
        labels: Int[Tensor, " n"],
        smoothing: float,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        weights = output.to(states.dtype)
        exact = torch.promote_types(states.dtype, torch.float32)
        real = (labels != PAD).to(exact)
        column = real[:, None].to(states.dtype)
        masked, of_states = states * column, torch.empty_like(states)
        of_output = torch.zeros_like(output)
        norms, chosen = torch.empty(2, len(states), dtype=exact, device=states.device)
        rows = max(1, _CHUNK // len(output))
        block = max(1, _BLOCK // len(output)) if states.device.type == "cpu" else rows
        for start in range(0, len(states), rows):
            part = slice(start, start + rows)
            logits = product(states[part], weights)
            for first in range(0, len(logits), block):
                here = slice(first, first + block)
                there = slice(start + first, min(start + rows, start + first + block))
                norms[there], chosen[there] = _to_gradients(
                    logits[here], labels[there, None], smoothing
                )
            of_states[part] = product(logits, weights.T)
            of_output += gradient_of_weight(logits, masked[part])
            del logits  # before those of the next chunk are made
        # What is the same for all classes needs no pass over them: the mean logit is states @ mean.
        mean = weights.mean(0, dtype=exact)
        plain = (norms - chosen) @ real
        spread = (norms - states.to(exact) @ mean) @ real
        of_states -= smoothing * mean.to(states.dtype)
        of_output -= smoothing / len(output) * masked.sum(0, dtype=output.dtype)
        of_states *= column
        ctx.save_for_backward(of_states, of_output)
        ctx.mark_non_differentiable(plain)
        return (1 - smoothing) * plain + smoothing * spread, plain

    @staticmethod
    @once_differentiable
    # pyrefly: ignore[bad-override] - the decorator's type has no name for ctx
    def backward(
        ctx: Any,  # noqa: ANN401 - PyTorch's signature
        *gradients: Float[Tensor, ""],
    ) -> tuple[Tensor | None, ...]:
        return *(of_input * gradients[0] for of_input in ctx.saved_tensors), None, None


def _to_gradients(
    logits: Float[Tensor, "r V"], labels: Int[Tensor, "r 1"], smoothing: float
) -> tuple[Float[Tensor, " r"], Float[Tensor, " r"]]:
    """Replace the logits by the loss's gradients, but for what all classes share.

    Returns:
        What the loss is made of, for each row: the logarithm of the exponentials' sum, and the
        label's logit.
    """
    exact = torch.promote_types(logits.dtype, torch.float32)
    probs = logits.softmax(-1, dtype=exact)
    # The largest is 1 / V at least, and its logarithm safe; that of another may be of 0.
    norms = logits.amax(-1).to(exact) - probs.amax(-1).log()
    chosen = logits.gather(-1, labels).squeeze(-1).to(exact)
    probs.scatter_add_(-1, labels, probs.new_full(labels.shape, smoothing - 1))
    logits.copy_(probs)
    return norms, chosen
