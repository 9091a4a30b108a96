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
        masked = states * real[:, None].to(states.dtype)
        of_states = torch.empty_like(states)
        of_output = torch.zeros_like(output)
        norms, chosen = torch.empty(2, len(states), dtype=exact, device=states.device)
        rows = max(1, _CHUNK // len(output))
        for start in range(0, len(states), rows):
            part = slice(start, start + rows)
            label = labels[part, None]
            logits = product(states[part], weights)
            probs = logits.softmax(-1, dtype=exact)
            # The largest is 1 / V at least, and its logarithm safe; a label's probability may be 0.
            norms[part] = logits.amax(-1).to(exact) - probs.amax(-1).log()
            chosen[part] = logits.gather(-1, label).squeeze(-1)
            probs.scatter_add_(-1, label, probs.new_full(label.shape, smoothing - 1))
            errors = probs.to(states.dtype)
            of_states[part] = product(errors, weights.T)
            of_output += gradient_of_weight(errors, masked[part])
            del logits, probs, errors  # before those of the next chunk are made
        # What is the same for all classes needs no pass over them: the mean logit is states @ mean.
        mean = weights.mean(0, dtype=exact)
        plain = (norms - chosen) @ real
        spread = (norms - states.to(exact) @ mean) @ real
        of_states -= smoothing * mean.to(states.dtype)
        of_states *= real[:, None].to(states.dtype)
        of_output -= smoothing / len(output) * masked.sum(0, dtype=output.dtype)
        ctx.save_for_backward(of_states, of_output)
        ctx.mark_non_differentiable(plain)
        return (1 - smoothing) * plain + smoothing * spread, plain

    @staticmethod
    @once_differentiable
    # pyrefly: ignore[bad-override] - the decorator's type has no name for ctx
    def backward(
        ctx: Any,  # noqa: ANN401 - PyTorch's signature
        *gradients: Float[Tensor, ""],
    ) -> tuple[Float[Tensor, "n d"], Float[Tensor, "V d"], None, None]:
        of_states, of_output = ctx.saved_tensors
        return of_states * gradients[0], of_output * gradients[0], None, None
