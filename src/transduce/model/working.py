"""A copy of a model that computes in bfloat16, while the model keeps and learns in float32.

The copy's matrices are made anew from the model's once a step, instead of being cast in each
operation, and what flows between the layers is bfloat16 as well. The embedding tables, the output's
matrix and the norms are the model's own: their gradients are sums over many rows that bfloat16
could not hold. Source: Micikevicius et al. 2018, section 3.1; bfloat16 needs no loss scaling.
"""

import copy

import torch
from torch import Tensor, nn

from transduce.model.transformer import Transformer


def working_copy(model: Transformer) -> Transformer:
    """Make a copy that computes in bfloat16 and shares what has to be exact with the model."""
    exact = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.LayerNorm)]
    shared = [p for module in (*exact, model.output) for p in module.parameters()]
    working = copy.deepcopy(model, {id(p): p for p in shared})
    for module in working.modules():
        if isinstance(module, nn.Linear) and module is not working.output:
            module.bfloat16()
    for embedding in (working.source_embedding, working.target_embedding):
        embedding.positions.data = embedding.positions.data.bfloat16()
    return working


@torch.no_grad()
def refresh(working: Transformer, model: Transformer) -> None:
    """Give a working copy the model's present weights."""
    for own, master in _pairs(working, model):
        own.copy_(master)


@torch.no_grad()
def collect_gradients(working: Transformer, model: Transformer) -> None:
    """Add a working copy's gradients to the model's, and forget them there."""
    for own, master in _pairs(working, model):
        if own.grad is None:
            continue
        if master.grad is None:
            master.grad = own.grad.to(master.dtype)
        else:
            master.grad += own.grad
        own.grad = None


def _pairs(working: Transformer, model: Transformer) -> list[tuple[Tensor, Tensor]]:
    """The weights that are not the model's own, beside those."""
    both = zip(working.parameters(), model.parameters(), strict=True)
    return [(own, master) for own, master in both if own is not master]
