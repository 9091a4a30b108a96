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

    A draw is the argmax of log p - log E with a fresh exponential E for each piece: an exact sample
    (the Gumbel-max trick). The last bits of p, which differ between batch sizes, change it only
    where the two largest of these sums are as close: with an error of 1e-6, one draw in a million,
    whatever V is. The inverted cumulative distribution has V borders that all move; with V = 4000
    its draws changed 30 to 100 times as often.

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

    First p ^ (1 / temperature); of that the `top_k` likeliest (Fan et al. 2018; 0: all); of these,
    renormalised, the fewest likeliest that together have a mass of at least `top_p`, the nucleus
    (Holtzman et al. 2020). Of equals the lower id comes first.
    """
    weights = log_probs.cpu().double()
    # The likeliest has 0: it is left at any temperature.
    weights = (weights - weights.amax(dim=1, keepdim=True)) / temperature
    if top_k == 0 and top_p == 1:
        return weights
    # NumPy's sort: twenty times as fast as torch's.
    falling = torch.from_numpy(-np.sort(-weights.numpy(), axis=1))[:, : top_k or None]
    counts = torch.full((len(falling), 1), falling.shape[1])
    if top_p < 1:
        mass = falling.softmax(dim=1).cumsum(dim=1)
        counts = counts.minimum((mass < top_p).sum(dim=1, keepdim=True) + 1)
    border = falling.gather(1, counts - 1)
    equal = weights == border
    room = counts - (weights > border).sum(dim=1, keepdim=True)
    weights[(weights < border) | (equal & (equal.cumsum(dim=1) > room))] = -torch.inf
    return weights
