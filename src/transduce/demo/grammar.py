"""The embedded default corpus: generated English-French pairs with exact references.

Every pair has a key, the combination of words that it is about (who does what to what). Keys are held
out by their hash, so what a test sentence says stands in no training line, not denied or asked either.
"""

import hashlib
import random
from typing import NamedTuple

from transduce.demo.families import FAMILIES, Sentence

# The sentences of the guide. The two of *it* share no key with any training line.
EXAMPLES = (
    Sentence(
        "The animal did not cross the street because it was tired.",
        "L'animal n'a pas traversé la rue parce qu'il était fatigué.",
        "because it",
        "animal|street|tired",
    ),
    Sentence(
        "The animal did not cross the street because it was too wide.",
        "L'animal n'a pas traversé la rue parce qu'elle était trop large.",
        "because it",
        "animal|street|wide",
    ),
    Sentence("I love maths.", "J'aime les maths.", "liking", "I|love|maths"),
)
_HELD_OUT = frozenset(example.key for example in EXAMPLES if example.family == "because it")


class Corpus(NamedTuple):
    """Three lists of which no two share a key."""

    train: list[Sentence]
    valid: list[Sentence]
    test: list[Sentence]


def split_of(key: str) -> str:
    """Return the list a combination belongs to, whatever the seed: train, valid (5 %) or test (10 %)."""
    if key in _HELD_OUT:
        return "test"
    digest = hashlib.blake2b(key.encode("utf-8"), digest_size=4).digest()
    part = int.from_bytes(digest, "big") % 100
    return "test" if part < 10 else "valid" if part < 15 else "train"


def corpus(seed: int, *, train: int = 40_000, valid: int = 500, test: int = 1_000) -> Corpus:
    """Draw a corpus; the same seed gives the same lines.

    A held-out sentence is drawn once; a training line may repeat. Every list is a prefix of the longer one
    that a larger number would give.
    """
    rng = random.Random(seed)
    families = [function for _, function in FAMILIES.values()]
    weights = [weight for weight, _ in FAMILIES.values()]
    wanted = {"train": train, "valid": valid, "test": test}
    drawn: dict[str, list[Sentence]] = {name: [] for name in wanted}
    seen: set[str] = set()
    while any(len(drawn[name]) < wanted[name] for name in wanted):
        sentence = rng.choices(families, weights)[0](rng)
        name = split_of(sentence.key)
        if len(drawn[name]) < wanted[name] and sentence.source not in seen:
            drawn[name].append(sentence)
            if name != "train":
                seen.add(sentence.source)
    return Corpus(**drawn)
