"""Fast paths, each equal to the plain one by test: products, norm, attention, dropout."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional


@cache
def onednn_pays() -> bool:
    """Whether oneDNN multiplies float32 matrices faster than MKL, which PyTorch asks.

    MKL uses AVX-512 on Intel's processors alone, oneDNN wherever it is: on an AMD EPYC it was twice
    as fast (benchmarks/techniques.py).
    """
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        processor = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return "GenuineIntel" not in processor and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x [..., k] @ weightᵀ [k, n] + bias [n], from the library that is fastest for it."""
    if _by_onednn(x):
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return functional.linear(x, weight, bias)


def gradient_of_weight(of_y: Tensor, x: Tensor) -> Tensor:
    """Return of_yᵀ [n, m] @ x [m, k]: what `product`'s weight gets, of m rows."""
    if not _by_onednn(x):
        return of_y.T @ x
    if of_y.shape[1] > x.shape[1]:  # the longer side second: half as fast again
        return product(x.T, of_y.T).T
    return product(of_y.T, x.T)


def _by_onednn(x: Tensor) -> bool:
    # oneDNN refuses what is empty; autocast wants another precision.
    if x.numel() == 0 or torch.is_autocast_enabled("cpu"):
        return False
    return x.dtype == torch.float32 and x.device.type == "cpu" and onednn_pays()


class _Product(torch.autograd.Function):
    """`product` with its gradients, products too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:  # noqa: ANN401
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    @once_differentiable
    # pyrefly: ignore[bad-override] - the decorator's type has no name for ctx
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ANN401
        x, weight = ctx.saved_tensors
        of_y = gradients[0]
        rows = of_y.reshape(-1, of_y.shape[-1])
        of_weight = gradient_of_weight(rows, x.reshape(-1, x.shape[-1]))
        return product(of_y, weight.T), of_weight, rows.sum(0)


class Linear(nn.Linear):
    """x Wᵀ + b, always with a bias; in training by `product`."""

    def forward(self, input: Tensor) -> Tensor:
        """Project the features [..., k] to [..., n]."""
        if self.training and _by_onednn(input):
            return _Product.apply(input, self.weight, self.bias)
        return super().forward(input)


class LayerNorm(nn.LayerNorm):
    """In the precision of its own weights, whatever that of x is.

    The gradients of scale and shift are sums over all positions, which PyTorch's CPU kernel makes
    in the precision of x: in bfloat16 they stall at 256.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Norm the features [..., d] of each position; the result is of x's type."""
        return super().forward(input.to(self.weight.dtype)).to(input.dtype)


_FUSED_ON_CPU_FROM = {torch.float32: 96, torch.bfloat16: 512}
"""Queries from which PyTorch's fused attention pays on a CPU, forward and backward.

In bfloat16 it is slower still at 512, but the written-out weights take memory by the square.
"""


def fused_attention_pays(q: Tensor, k: Tensor) -> bool:
    """Whether to take PyTorch's fused attention, which shows no weights, for queries and keys.

    On a CPU its cost a call exceeds that of the two products for sentences of everyday length.
    """
    return q.is_cuda or min(q.shape[-2], k.shape[-2]) >= _FUSED_ON_CPU_FROM.get(q.dtype, 96)


def hooked(*modules: nn.Module) -> bool:
    """Whether anybody looks into these modules: what they show, the fused attention does not."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind) for module in modules for kind in kinds)


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
        # At once in x's type: to compare first and then convert takes eight times as long.
        kept = torch.ge(lanes, dropped - 32_768, out=torch.empty_like(x))
        return x * kept.mul_(65_536 / (65_536 - dropped))
