"""Fast paths, each equal to the plain one by test: which attention, and dropout on a CPU."""

import torch
from torch import Tensor, nn
from torch.nn import functional

_FUSED_ON_CPU_FROM = 128
"""Queries from which PyTorch's fused CPU attention beats the written-out product (benchmarks/)."""


def fused_attention_pays(q: Tensor, k: Tensor) -> bool:
    """Whether to take PyTorch's fused attention, which shows no weights, for queries and keys.

    On a CPU its cost a call exceeds that of the two products for sentences of everyday length.
    """
    return q.is_cuda or min(q.shape[-2], k.shape[-2]) >= _FUSED_ON_CPU_FROM


class Dropout(nn.Module):
    """Zero a share p of the features in training, and scale the others by 1 / (1 - p).

    PyTorch's CPU kernel draws a float for each element, which takes longer than the matrix products
    around it. Here each element gets 16 random bits: p is met to 1 in 65 536 and the scale is exact
    for the share really dropped. The bits come from PyTorch's default generator.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Drop in training; in evaluation return x itself."""
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            return functional.dropout(x, self.p)
        dropped = min(round(self.p * 65_536), 65_535)
        # Four lanes of 16 bits a draw.
        draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        lanes = draws.view(torch.int16)[: x.numel()].view(x.shape)
        kept = (lanes >= dropped - 32_768).to(x.dtype)
        return x * kept.mul_(65_536 / (65_536 - dropped))
