"""A copy of a model that computes in bfloat16, while the model keeps and learns in float32.

The copy's matrices are made anew from the model's once a step, instead of being cast in each
operation, and what flows between the layers is bfloat16 as well. The embedding tables and the
output's matrix are the model's own: their gradients are sums over many rows, which bfloat16 cannot
hold. Source: Micikevicius et al. 2018, section 3.1, with bfloat16, which needs no loss scaling.
"""

import copy
from typing import cast

import torch
from torch import Tensor, nn

from transduce.model.transformer import Transformer


def working_copy(model: Transformer) -> Transformer:
    """Make a copy that computes in bfloat16 and shares the tables with the model."""
    tables = (model.source_embedding.table, model.target_embedding.table, model.output)
    shared = {id(table.weight): table.weight for table in tables}
    working = copy.deepcopy(model, shared)
    for part in (working.encoder, working.decoder, working.encoder_norm, working.decoder_norm):
        cast(nn.Module, part).bfloat16()
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
        if own.grad is not None:
            gradient, own.grad = own.grad.to(master.dtype), None
            master.grad = gradient if master.grad is None else master.grad + gradient


def _pairs(working: Transformer, model: Transformer) -> list[tuple[Tensor, Tensor]]:
    """The weights that are not the model's own, beside those."""
    both = zip(working.parameters(), model.parameters(), strict=True)
    return [(own, master) for own, master in both if own is not master]
