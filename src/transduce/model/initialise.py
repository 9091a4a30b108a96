"""The first weights, drawn as the publication's code did (tensor2tensor, June 2017).

| what                      | distribution                                |
|---------------------------|---------------------------------------------|
| tables, learned positions | normal, standard deviation d_model^-0.5     |
| q, k, v of self-attention | Glorot uniform, drawn as one matrix [d, 3d] |
| k, v of cross-attention   | Glorot uniform, drawn as one matrix [d, 2d] |
| other matrices            | Glorot uniform                              |
| biases; norms             | 0; scale 1, shift 0                         |
"""

import math

import torch
from torch import Tensor, nn


@torch.no_grad()
def glorot(*matrices: nn.Linear) -> None:
    """Draw matrices with the same input as if they were one, beside each other; biases are 0."""
    outputs = sum(matrix.out_features for matrix in matrices)
    bound = math.sqrt(6 / (matrices[0].in_features + outputs))
    for matrix in matrices:
        matrix.weight.uniform_(-bound, bound)
        if matrix.bias is not None:
            matrix.bias.zero_()


@torch.no_grad()
def normal(table: Tensor) -> None:
    """Draw rows [n, d_model] of a norm of about 1."""
    table.normal_(0, table.shape[-1] ** -0.5)
