"""What may be generated at each step: no reserved piece, lengths, repeats, forced prefixes.

Shapes: n sentences, r rows (sentences x width, grouped by sentence), V target pieces, t tokens so
far.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from transduce.ids import EOS, UNK

FREE = -1  # in place of a forced id: this sentence may choose


class Constraints:
    """The rules for the sentences of a batch; lengths are |Y|, the generated tokens with EOS.

    For the t-th token of a sentence, in order of precedence: only EOS where t is its limit; only
    the forced id while its prefix lasts; else anything but PAD, BOS and UNK, nothing that ends an
    n-gram of `no_repeat_ngram` tokens which has come before (Paulus et al. 2018; 0: no such rule),
    and no EOS where t is below `min_length`, unless nothing else is left. Nothing is renormalised:
    what is allowed keeps the model's log-probability.
    """

    def __init__(
        self,
        limits: Sequence[int],
        *,
        min_length: int = 0,
        no_repeat_ngram: int = 0,
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Set the rules of `len(limits)` sentences; `limits` are the greatest |Y|, at least 1."""
        assert limits, "no sentence to constrain"
        assert min(limits) >= 1, "an output has at least its EOS"
        self.limits = torch.tensor(list(limits))
        self._min_length = min_length
        self._no_repeat_ngram = no_repeat_ngram
        self._prefixes = torch.full((len(limits), 0), FREE)
        if prefixes is not None:
            assert len(prefixes) == len(limits), "one forced prefix a sentence (it may be empty)"
            longest = max(len(prefix) for prefix in prefixes)
            rows = [[*prefix, *[FREE] * (longest - len(prefix))] for prefix in prefixes]
            self._prefixes = torch.tensor(rows, dtype=torch.int64).view(len(limits), longest)
        self._first_limit = min(limits)

    def __len__(self) -> int:
        """Count the sentences that are still searched."""
        return len(self.limits)

    def apply(self, log_probs: Float[Tensor, "r V"], generated: Int[Tensor, "r t"]) -> None:
        """Set what may not come after what each row has generated to -inf, in place."""
        forced = self._forced(generated.shape[1] + 1)
        if forced is None:
            self._mask(log_probs, generated)
            return
        ids = forced.repeat_interleave(len(log_probs) // len(forced)).to(log_probs.device)
        rows = (ids != FREE).nonzero()[:, 0]
        ids = ids[rows]
        kept = log_probs[rows, ids]  # forcing wins over every mask
        self._mask(log_probs, generated)
        log_probs[rows] = -torch.inf
        log_probs[rows, ids] = kept

    def select(self, sentences: Int[Tensor, " m"]) -> None:
        """Keep these sentences only."""
        self.limits = self.limits[sentences]
        self._prefixes = self._prefixes[sentences]
        self._first_limit = int(self.limits.min()) if len(self.limits) else 0

    def _mask(self, log_probs: Float[Tensor, "r V"], generated: Int[Tensor, "r t"]) -> None:
        log_probs[:, :EOS] = -torch.inf  # PAD and BOS
        log_probs[:, UNK] = -torch.inf
        ends = log_probs[:, EOS].clone()
        if generated.shape[1] + 1 < self._min_length:
            log_probs[:, EOS] = -torch.inf
        if 0 < self._no_repeat_ngram <= generated.shape[1]:
            self._forbid_repeats(log_probs, generated)
            stuck = log_probs.amax(dim=1) == -torch.inf
            log_probs[stuck, EOS] = ends[stuck]

    def _forbid_repeats(
        self, log_probs: Float[Tensor, "r V"], generated: Int[Tensor, "r t"]
    ) -> None:
        ngrams = generated.unfold(1, self._no_repeat_ngram, 1)
        begun = generated[:, generated.shape[1] - self._no_repeat_ngram + 1 :]
        rows, places = (ngrams[:, :, :-1] == begun[:, None]).all(dim=2).nonzero(as_tuple=True)
        repeats = ngrams[rows, places, -1]
        log_probs[rows.to(log_probs.device), repeats.to(log_probs.device)] = -torch.inf

    def _forced(self, step: int) -> Int[Tensor, " n"] | None:
        """The one allowed id of each sentence, or FREE; None where all are free (as usual)."""
        in_prefix = step <= self._prefixes.shape[1]
        if step < self._first_limit and not in_prefix:
            return None
        forced = self._prefixes[:, step - 1] if in_prefix else torch.full_like(self.limits, FREE)
        return torch.where(self.limits <= step, EOS, forced)
