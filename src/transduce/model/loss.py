"""Label-smoothed cross-entropy as a sum over real tokens; training takes it from fused_loss.py.

Letters of the shapes: b sentences, t target positions, V the target vocabulary.
"""

from typing import NamedTuple

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
    log_probs = logits.log_softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    log_probs = log_probs[labels != PAD]
    plain = -log_probs.gather(-1, labels[labels != PAD][:, None]).sum()
    spread = -log_probs.mean(-1).sum()
    return Loss((1 - smoothing) * plain + smoothing * spread, plain.detach())
