"""Who and what the sentences of the embedded grammar are about: drawn noun phrases."""

import random
from collections.abc import Sequence
from typing import NamedTuple

from transduce.demo.inflection import Adjective, Noun
from transduce.demo.lexicon import ADJECTIVES, DISHES, DRINKS, NUMBERS, PEOPLE, PLACES, POSSESSIVES
from transduce.demo.phrases import PRONOUNS, Pair, Phrase, finish, noun_phrase
from transduce.demo.situations import ATTRIBUTES


class Sentence(NamedTuple):
    """One pair; `key` is what meets what in it, and decides whether it is held out."""

    source: str
    target: str
    family: str
    key: str


EVERYBODY = [*PEOPLE.values()]
KIN = ("father", "mother", "brother", "sister", "uncle", "aunt")
ONE_OF_A_KIND = ("father", "mother", "king", "queen")  # not in the plural


def sentence(pair: Pair, *, family: str, key: Sequence[str], end: str = ".") -> Sentence:
    """Return the pair as it is written; `key` is the words that meet in it."""
    source, target = finish(pair, end=end)
    return Sentence(source, target, family, "|".join(key))


def person(rng: random.Random, *, among: Sequence[Noun] = EVERYBODY) -> Phrase:
    """Return somebody with an article or, for a relative, a possessive."""
    noun = rng.choice(among)
    plural = noun.en not in ONE_OF_A_KIND and rng.random() < 0.3
    determiner = rng.choice([*POSSESSIVES] if noun.en in KIN else ["the", "the", "the", "this"])
    return noun_phrase(noun, determiner, plural=plural)


def somebody(rng: random.Random, *, pronouns: Sequence[str] = tuple(PRONOUNS)) -> Phrase:
    """Return a pronoun or somebody."""
    return PRONOUNS[rng.choice(pronouns)] if rng.random() < 0.5 else person(rng)


def attribute(rng: random.Random, noun: Noun, *, chance: float) -> Adjective | None:
    """Return an adjective that fits the noun, or (more often, as `chance` is smaller) none."""
    if noun.en not in ATTRIBUTES or rng.random() > chance:
        return None
    return ADJECTIVES[rng.choice(ATTRIBUTES[noun.en])]


def thing(rng: random.Random, noun: Noun, *, negated: bool = False) -> Phrase:
    """Return the noun as an object, with any determiner; after a negation *a* is French *de*."""
    if noun.en in DISHES | DRINKS:
        return noun_phrase(noun, "the", adjective=attribute(rng, noun, chance=0.3))
    determiner = rng.choice(["the", "the", "a", "a", "this", rng.choice([*POSSESSIVES])])
    plural = noun.en not in PLACES and rng.random() < 0.25
    if plural and not negated and rng.random() < 0.3:
        determiner = rng.choice([*NUMBERS])
    if negated and determiner == "a":
        determiner = "any"
    adjective = attribute(rng, noun, chance=0.4)
    return noun_phrase(noun, determiner, plural=plural, adjective=adjective)
