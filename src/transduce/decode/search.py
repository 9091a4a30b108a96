"""How to search: the options, and the choice of beam search, greedy search or sampling."""

from collections.abc import Sequence

from pydantic import Field, model_validator

from transduce.config import Settings
from transduce.decode.beam import beam_search
from transduce.decode.constraints import Constraints
from transduce.decode.greedy import Hypothesis, greedy
from transduce.decode.sampling import Sampler
from transduce.decode.stepper import Stepper
from transduce.errors import SettingsError


class SearchOptions(Settings):
    """How to search. Lengths are |Y|: generated target pieces, with EOS."""

    sample: bool = False
    """Draw from the distribution, rather than look for the likeliest."""
    beam: int = Field(default_factory=lambda given: 1 if given.get("sample") else 4, ge=1, le=1000)
    """Prefixes kept a sentence; 1 is greedy search. (Section 6.1 of the paper has 4.)"""
    alpha: float = Field(0.6, ge=0, le=10)
    """Exponent of the length penalty (Wu et al. 2016, equation 14); 0 is no penalty."""
    n_best: int = Field(1, ge=1, le=1000)
    """Outputs a sentence, at most `beam`; with `sample`, independent samples."""
    min_length: int = Field(0, ge=0, le=10**9)
    """EOS may not come before."""
    extra_length: int = Field(50, ge=1, le=10**9)
    """An output is ended at the source's pieces + this (section 6.1 of the paper) ..."""
    max_length: int | None = Field(None, ge=1, le=10**9)
    """... and at this."""
    no_repeat_ngram: int = Field(0, ge=0, le=10**9)
    """No n-gram of so many pieces comes twice (Paulus et al. 2018); 0: all may."""
    temperature: float = Field(1.0, gt=0, le=1e9)
    """Draw by p ^ (1 / temperature): below 1 sharper, above 1 flatter."""
    top_k: int = Field(0, ge=0, le=10**9)
    """Draw among so many likeliest pieces (Fan et al. 2018); 0: among all."""
    top_p: float = Field(1.0, gt=0, le=1)
    """... and of these among the likeliest with this mass, the nucleus (Holtzman et al. 2020)."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Of sampling: a draw depends on it, the number of the line and that of the sample."""

    @model_validator(mode="after")
    def _agree(self) -> "SearchOptions":
        if self.sample and self.beam > 1:
            raise SettingsError(f"a sample has no beams; leave out sample or beam={self.beam}")
        if not self.sample:
            for name in ("temperature", "top_k", "top_p", "seed"):
                value = getattr(self, name)
                if value != SearchOptions.model_fields[name].default:
                    raise SettingsError(f"{name}={value} is for sampling; add sample (--sample)")
            if self.n_best > self.beam:
                raise SettingsError(
                    f"n_best={self.n_best} needs a beam of that size, beam={self.beam}"
                )
        if self.max_length is not None and self.min_length > self.max_length:
            raise SettingsError(
                f"min_length={self.min_length} is over max_length={self.max_length}"
            )
        return self

    def limit(self, pieces: int) -> int:
        """Give the greatest |Y| for a source of so many pieces."""
        limit = pieces + self.extra_length
        return limit if self.max_length is None else min(limit, self.max_length)

    @property
    def samples(self) -> int:
        """How many sentences of `search` each line needs: one for each of its samples."""
        return self.n_best if self.sample else 1


def search(
    stepper: Stepper,
    constraints: Constraints,
    options: SearchOptions,
    *,
    lines: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """Find the `n_best` outputs of each line.

    Best first, and fewer where no more exist. Samples come in the order of drawing, so that the
    first is a fair one, whatever their number; they may be equal. `stepper` and `constraints` (used
    up) have options.samples sentences a line, one after the other, of options.beam rows each; a
    sentence that is finished leaves both at once. `lines` are the numbers by which the samples are
    seeded (default: from 1).
    """
    if options.sample:
        n = options.n_best
        lines = range(1, len(constraints) // n + 1) if lines is None else lines
        sampler = Sampler(
            [(options.seed, line, sample) for line in lines for sample in range(n)],
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
        )
        drawn = greedy(stepper, constraints, alpha=options.alpha, sampler=sampler)
        return [drawn[start : start + n] for start in range(0, len(drawn), n)]
    if options.beam == 1:
        return [[best] for best in greedy(stepper, constraints, alpha=options.alpha)]
    return beam_search(
        stepper, constraints, beam=options.beam, alpha=options.alpha, n_best=options.n_best
    )
