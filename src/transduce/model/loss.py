"""Label-smoothed cross-entropy as a sum over real tokens; training and tracing use it.

Letters of the shapes: b sentences, t target positions, n = b t, V the target vocabulary.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.ids import PAD


class Loss(NamedTuple):
    """Sums over real tokens, in nats: the smoothed loss to train with, the plain one to report."""

    smoothed: Float[Tensor, ""]
    plain: Float[Tensor, ""]
    """Without a gradient: it is that of `smoothed` with smoothing 0."""


def smoothed_loss(
    logits: Float[Tensor, "b t V"], labels: Int[Tensor, "b t"], smoothing: float
) -> Loss:
    """Cross-entropy against 1 - smoothing on the label plus smoothing / V on each of all V classes.

    Padding labels count for nothing; a batch of only padding has loss 0. Perplexity is
    exp(plain / tokens). Source: section 5.4; Szegedy et al. 2016, section 7, whose prior is uniform
    over all classes, the label's among them.
    """
    return Loss(*_SmoothedLoss.apply(logits.flatten(0, 1), labels.flatten(), smoothing))


class _SmoothedLoss(torch.autograd.Function):
    """The sum, and its gradient softmax(logits) - target distribution without detours."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - PyTorch's signature
        logits: Float[Tensor, "n V"],
        labels: Int[Tensor, " n"],
        smoothing: float,
    ) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        log_probs = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        ctx.save_for_backward(log_probs, labels)
        ctx.smoothing, ctx.dtype = smoothing, logits.dtype
        real = labels != PAD
        plain = -log_probs.gather(-1, labels[:, None]).squeeze(-1)[real].sum()
        spread = -log_probs.mean(-1)[real].sum() if smoothing else torch.zeros_like(plain)
        ctx.mark_non_differentiable(plain)
        return (1 - smoothing) * plain + smoothing * spread, plain

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401 - PyTorch's signature
        *gradients: Float[Tensor, ""],
    ) -> tuple[Float[Tensor, "n V"], None, None]:
        log_probs, labels = ctx.saved_tensors
        target = torch.full_like(labels, ctx.smoothing - 1, dtype=log_probs.dtype)
        result = log_probs.exp().sub_(ctx.smoothing / log_probs.shape[-1])
        result.scatter_add_(-1, labels[:, None], target[:, None])
        result *= ((labels != PAD) * gradients[0])[:, None]
        return result.to(ctx.dtype), None, None
