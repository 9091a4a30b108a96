"""The loss of training: output matrix and smoothed cross-entropy in one, a chunk at a time.

Equal to `smoothed_loss` of the logits (loss.py), but the matrix of all logits never exists, and the
gradient is made in the same pass. Letters of the shapes: b sentences, t target positions, n = b t,
d d_model, V the target vocabulary.
"""

from typing import Any, NamedTuple

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


class SecondPass(NamedTuple):
    """What a second pass over a batch gives, and how much it weighs to differ there."""

    states: Float[Tensor, "b t d"]
    weight: float


def projected_loss(
    states: Float[Tensor, "b t d"],
    output: Float[Tensor, "V d"],
    labels: Int[Tensor, "b t"],
    smoothing: float,
    second: SecondPass | None = None,
) -> Loss:
    """`smoothed_loss` of the logits states @ outputᵀ, of which only a chunk exists at a time.

    The products are in the precision of `states`, `output`'s gradient in that of `output`. With a
    second pass, the weighted divergence KL(p || q) of its predictions q from these ones, p, is
    added to the smoothed loss, a sum over real tokens too; gradients flow through both.
    """
    second_states, weight = (states.detach()[:0], 0.0) if second is None else second
    flat = states.flatten(0, 1), second_states.flatten(0, 1), output, labels.flatten()
    return Loss(*_ProjectedLoss.apply(*flat, smoothing, weight))


class _ProjectedLoss(torch.autograd.Function):
    """Makes the gradients on the way: softmax(logits) - target distribution, times the factors."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - PyTorch's signature
        states: Float[Tensor, "n d"],
        second: Float[Tensor, "m d"],  # n, or none
        output: Float[Tensor, "V d"],
        labels: Int[Tensor, " n"],
        smoothing: float,
        weight: float,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        weights = output.to(states.dtype)
        exact = torch.promote_types(states.dtype, torch.float32)
        real = (labels != PAD).to(exact)
        column = real[:, None].to(states.dtype)
        masked, masked_second = states * column, second * column[: len(second)]
        of_states, of_second = torch.empty_like(states), torch.empty_like(second)
        of_output = torch.zeros_like(output)
        norms, chosen, divergence = torch.zeros(3, len(states), dtype=exact, device=states.device)
        rows = max(1, _CHUNK // len(output))
        block = max(1, _BLOCK // len(output)) if states.device.type == "cpu" else rows
        for start in range(0, len(states), rows):
            part = slice(start, start + rows)
            logits, second_logits = product(states[part], weights), product(second[part], weights)
            for first in range(0, len(logits), block):
                here = slice(first, first + block)
                there = slice(start + first, min(start + rows, start + first + block))
                norms[there], chosen[there], divergence[there] = _to_gradients(
                    logits[here], second_logits[here], labels[there, None], smoothing, weight
                )
            of_states[part] = product(logits, weights.T)
            of_output += gradient_of_weight(logits, masked[part])
            if len(second):
                of_second[part] = product(second_logits, weights.T)
                of_output += gradient_of_weight(second_logits, masked_second[part])
            del logits, second_logits  # before those of the next chunk are made
        # What is the same for all classes needs no pass over them: the mean logit is states @ mean.
        mean = weights.mean(0, dtype=exact)
        plain = (norms - chosen) @ real
        spread = (norms - states.to(exact) @ mean) @ real
        of_states -= smoothing * mean.to(states.dtype)
        of_output -= smoothing / len(output) * masked.sum(0, dtype=output.dtype)
        of_states *= column
        of_second *= column[: len(second)]
        ctx.save_for_backward(of_states, of_second, of_output)
        ctx.mark_non_differentiable(plain)
        return (1 - smoothing) * plain + smoothing * spread + weight * (divergence @ real), plain

    @staticmethod
    @once_differentiable
    # pyrefly: ignore[bad-override] - the decorator's type has no name for ctx
    def backward(
        ctx: Any,  # noqa: ANN401 - PyTorch's signature
        *gradients: Float[Tensor, ""],
    ) -> tuple[Tensor | None, ...]:
        return *(of_input * gradients[0] for of_input in ctx.saved_tensors), None, None, None


def _to_gradients(
    logits: Float[Tensor, "r V"],
    second_logits: Float[Tensor, "m V"],
    labels: Int[Tensor, "r 1"],
    smoothing: float,
    weight: float,
) -> tuple[Float[Tensor, " r"], Float[Tensor, " r"], Float[Tensor, " r"]]:
    """Replace the logits of both passes by the loss's gradients, but for what all classes share.

    Returns:
        What the loss is made of, for each row: the logarithm of the exponentials' sum, the label's
        logit, and the divergence (0 where there is no second pass).
    """
    probs, norms = _softmax(logits, torch.promote_types(logits.dtype, torch.float32))
    chosen = logits.gather(-1, labels).squeeze(-1).to(probs.dtype)
    divergence = torch.zeros_like(norms)
    if len(second_logits):
        divergence, gradient_p, gradient_q = _divergence(logits, probs, norms, second_logits)
        second_logits.copy_(gradient_q.mul_(weight))
        probs.add_(gradient_p, alpha=weight)
    probs.scatter_add_(-1, labels, probs.new_full(labels.shape, smoothing - 1))
    logits.copy_(probs)
    return norms, chosen, divergence


def _softmax(
    logits: Float[Tensor, "n V"], exact: torch.dtype
) -> tuple[Float[Tensor, "n V"], Float[Tensor, " n"]]:
    """Return the probabilities, and the logarithm of what the exponentials were divided by."""
    probs = logits.softmax(-1, dtype=exact)
    # The largest is 1 / V at least, and its logarithm safe; that of another may be of 0.
    return probs, logits.amax(-1).to(exact) - probs.amax(-1).log()


def _divergence(
    logits: Float[Tensor, "n V"],
    probs: Float[Tensor, "n V"],
    norms: Float[Tensor, " n"],
    second_logits: Float[Tensor, "n V"],
) -> tuple[Float[Tensor, " n"], Float[Tensor, "n V"], Float[Tensor, "n V"]]:
    """Return KL(p || q) of each row, and its gradients by the logits of p and of q.

    They are p (log p/q - KL) and q - p.
    """
    q, q_norms = _softmax(second_logits, probs.dtype)
    ratio = (logits.to(probs.dtype) - second_logits).sub_((norms - q_norms)[:, None])
    divergence = (probs * ratio).sum(-1)
    return divergence, ratio.sub_(divergence[:, None]).mul_(probs), q.sub_(probs)
