"""The embedded default corpus: generated English-French pairs with exact references.

Every pair has a key: the words that meet in it, such as who does something and to what. Keys are
held out by their hash. A word of a test sentence is in many training lines, but never together with
the other one: said, denied or asked, in any family.
"""

import hashlib
import random
from collections.abc import Callable
from typing import NamedTuple

from transduce.demo import events, scenes
from transduce.demo.draw import Sentence

# Each family, and its share of the lines in parts of 100.
FAMILIES: dict[str, tuple[int, Callable[[random.Random], Sentence]]] = {
    "because it": (18, events.because_it),
    "because they": (6, events.because_they),
    "action": (11, events.action),
    "question": (7, events.asking),
    "relative": (6, events.relative),
    "motion": (7, events.motion),
    "liking": (9, events.liking),
    "portion": (4, events.portion),
    "two acts": (4, events.two_acts),
    "location": (7, scenes.location),
    "there is": (7, scenes.there_is),
    "possession": (7, scenes.possession),
    "comparison": (5, scenes.comparison),
    "weather": (2, scenes.weather),
}

# The guide's sentences. The key of the first two is held out (a test says so): no training line has
# its animal and its street together.
EXAMPLES = (
    Sentence(
        "The animal did not cross the street because it was tired.",
        "L'animal n'a pas traversé la rue parce qu'il était fatigué.",
        "because it",
        "animal|street",
    ),
    Sentence(
        "The animal did not cross the street because it was too wide.",
        "L'animal n'a pas traversé la rue parce qu'elle était trop large.",
        "because it",
        "animal|street",
    ),
    Sentence("I love maths.", "J'aime les maths.", "liking", "I|maths"),
)


class Corpus(NamedTuple):
    """Three lists of which no two share a key."""

    train: list[Sentence]
    valid: list[Sentence]
    test: list[Sentence]


def split_of(key: str) -> str:
    """Return the list a key belongs to, whatever the seed: train, valid (5 %) or test (10 %)."""
    digest = hashlib.blake2b(key.encode("utf-8"), digest_size=4).digest()
    part = int.from_bytes(digest, "big") % 100
    return "test" if part < 10 else "valid" if part < 15 else "train"


def corpus(seed: int, *, train: int = 40_000, valid: int = 500, test: int = 1_000) -> Corpus:
    """Draw a corpus; the same seed gives the same lines.

    A held-out sentence is drawn once; a training line may repeat. A larger number gives the same
    lines and more after them.
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
