"""How the words of the embedded grammar are inflected, in English and in French.

A table is text, one word a line: English first, French second. What a rule can form is left out
(plurals, feminines, the -er conjugation); what a rule cannot form follows a slash.
"""

import re
from typing import NamedTuple


class Noun(NamedTuple):
    """A countable noun, or a mass noun that is only used in the singular."""

    en: str
    en_plural: str
    fr: str
    fr_plural: str
    feminine: bool


class Adjective(NamedTuple):
    """An adjective; `state` marks what French says with avoir and a noun (avoir faim)."""

    en: str
    masculine: str
    feminine: str
    before_vowel: str
    masculine_plural: str
    feminine_plural: str
    before_noun: bool
    state: bool


class Verb(NamedTuple):
    """A verb; `present` has the forms of je, il, nous, vous, ils."""

    en: str
    en_third: str
    en_past: str
    fr: str
    present: tuple[str, ...]
    participle: str


def _english_s(word: str) -> str:
    """Return the plural of a noun or the third person of a verb."""
    if re.search(r"[^aeiou]y$", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search(r"(s|x|ch|sh|o)$", word) else "s")


def french_plural(word: str) -> str:
    """Return the plural of a French noun or of a masculine adjective, where it is regular."""
    if word[-1] in "sxz":
        return word
    if word.endswith("al"):
        return word[:-2] + "aux"
    return word + ("x" if word.endswith("eau") else "s")


def _french_feminine(word: str) -> str:
    if word.endswith("e"):
        return word
    for masculine, feminine in (("eux", "euse"), ("er", "ère"), ("f", "ve")):
        if word.endswith(masculine):
            return word.removesuffix(masculine) + feminine
    return word + "e"


def read_nouns(table: str) -> dict[str, Noun]:
    """Read lines of English, French and gender."""
    nouns = {}
    for line in table.split("\n"):
        if line.strip():
            english, french, gender = line.split()
            en, _, en_plural = english.partition("/")
            fr, _, fr_plural = french.partition("/")
            nouns[en] = Noun(
                en,
                en_plural or _english_s(en),
                fr,
                fr_plural or french_plural(fr),
                gender == "f",
            )
    return nouns


def read_adjectives(table: str, *, before_noun: bool) -> dict[str, Adjective]:
    """Read lines of English and French: masculine, feminine, masculine before a vowel."""
    adjectives = {}
    for line in table.split("\n"):
        if not line.strip():
            continue
        en, french = line.split()
        if french[0] == "+" or french[-1] == "!":  # avoir and a noun, or invariable
            word = french.strip("+!")
            forms = (word,) * 5
        else:
            masculine, *others = french.split("/")
            feminine = others[0] if others else _french_feminine(masculine)
            vowel = others[1] if len(others) > 1 else masculine
            forms = (masculine, feminine, vowel, french_plural(masculine), feminine + "s")
        adjectives[en] = Adjective(en, *forms, before_noun, french[0] == "+")
    return adjectives


def _conjugate(infinitive: str) -> tuple[tuple[str, ...], str]:
    """Return the present and the participle of a regular verb in -er."""
    stem = infinitive.removesuffix("er")
    soft = stem + "e" if stem.endswith("g") else stem
    return (stem + "e", stem + "e", soft + "ons", stem + "ez", stem + "ent"), stem + "é"


def read_verbs(table: str) -> dict[str, Verb]:
    """Read lines of English, its past, French and, where irregular, its six forms."""
    verbs = {}
    for line in table.split("\n"):
        if line.strip():
            en, en_past, fr, *forms = line.split()
            present, participle = (tuple(forms[:5]), forms[5]) if forms else _conjugate(fr)
            third = "has" if en == "have" else _english_s(en)
            verbs[en] = Verb(en, third, en_past, fr, present, participle)
    return verbs
