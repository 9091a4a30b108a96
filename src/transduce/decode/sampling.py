"""Sampling the next token: temperature, then top-k, then nucleus; the draws are a sentence's own.

Shapes: r rows (one a sentence), V target pieces.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


class Sampler:
    """Draws one token a row at each step, each row from its own generator.

    A draw is the argmax of log p - log E with a fresh exponential E for each piece, which is an
    exact sample (the Gumbel-max trick). With it the last bits of p, which differ between batch
    sizes, change the pick only where the first two of these sums agree as closely: about once in
    half a million draws for an error of 1e-6, however large V is. Inverting the cumulative
    distribution moves all V of its borders instead, which is seen in a file of some length.

    All of it is float64, on the CPU: some devices have none, and none has these generators.
    """

    def __init__(
        self, keys: Sequence[tuple[int, int, int]], *, temperature: float, top_k: int, top_p: float
    ) -> None:
        """Seed a generator for each row by its key; the filters are those of `narrow`."""
        self._generators = [np.random.default_rng(key) for key in keys]
        self._temperature = temperature
        self._top_k = top_k
        self._top_p = top_p

    def draw(self, log_probs: Float[Tensor, "r V"]) -> Int[Tensor, " r"]:
        """Draw a token for each row; never one at -inf."""
        kept = narrow(
            log_probs, temperature=self._temperature, top_k=self._top_k, top_p=self._top_p
        )
        noise = np.empty(tuple(kept.shape))
        for row, generator in zip(noise, self._generators, strict=True):
            generator.standard_exponential(out=row)
        # It may be 0, rarely, but -inf must stay -inf.
        return (kept - torch.from_numpy(noise).clamp_(min=1e-300).log_()).argmax(dim=1)

    def select(self, rows: Int[Tensor, " r2"]) -> None:
        """Keep these rows only."""
        self._generators = [self._generators[row] for row in rows.tolist()]


def narrow(
    log_probs: Float[Tensor, "r V"], *, temperature: float, top_k: int, top_p: float
) -> Float[Tensor, "r V"]:
    """Give the log-weights to draw by: float64, on the CPU, -inf for what is left out.

    First p ^ (1 / temperature); of that the `top_k` likeliest (0: all); of these, renormalised, the
    fewest likeliest that together have a mass of at least `top_p` (Holtzman et al. 2020). Of equals
    the lower id comes first.
    """
    weights = log_probs.cpu().double()
    # The likeliest has 0: it is left at any temperature.
    weights = (weights - weights.amax(dim=1, keepdim=True)) / temperature
    if 0 < top_k < weights.shape[1]:
        border = weights.topk(top_k, dim=1).values[:, -1:]
        equal = weights == border
        room = top_k - (weights > border).sum(dim=1, keepdim=True)
        weights[(weights < border) | (equal & (equal.cumsum(dim=1) > room))] = -torch.inf
    if top_p < 1:
        falling, ids = weights.sort(dim=1, descending=True, stable=True)
        mass = falling.softmax(dim=1)
        falling[mass.cumsum(dim=1) - mass >= top_p] = -torch.inf
        weights = weights.scatter(1, ids, falling)
    return weights
