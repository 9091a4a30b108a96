"""Noun phrases and clauses of the embedded grammar: agreement, negation, questions, elision."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from transduce.demo.inflection import Adjective, Noun, Verb
from transduce.demo.lexicon import AVOIR, ETRE, MODALS, NUMBERS, POSSESSIVES

JE, IL, NOUS, VOUS, ILS = range(5)  # the columns of Verb.present
VOWELS = "aàâeéèêiîoôuûyhœ"
WITH_ETRE = ("go", "enter", "stay", "arrive", "return")


Pair = tuple[str, str]


class Phrase(NamedTuple):
    """A noun phrase or pronoun in both languages, and what agrees with it."""

    en: str
    fr: str
    person: int
    feminine: bool
    lemma: str


PRONOUNS = {
    en: Phrase(en, fr, person, fr == "elle", en)
    for en, fr, person in (
        ("I", "je", JE),
        ("you", "vous", VOUS),
        ("we", "nous", NOUS),
        ("they", "ils", ILS),
        ("he", "il", IL),
        ("she", "elle", IL),
    )
}


def french(text: str) -> str:
    """Return `text` with elisions and contractions made and the marks of aspirated h removed."""
    text = " ".join(text.split())
    text = re.sub(rf"\b([ldnj]e|la|que) (?=[{VOWELS}])", lambda m: m[1][:-1] + "'", text)
    for apart, together in (("de le", "du"), ("de les", "des"), ("à le", "au"), ("à les", "aux")):
        text = re.sub(rf"(?<!\w){apart}(?= )", together, text)
    return text.replace("*", "")


def finish(clause: tuple[str, str], *, end: str = ".") -> Pair:
    """Return a clause as two written sentences; French sets a space before a question mark."""
    en, fr = " ".join(clause[0].split()), french(clause[1])
    return en[0].upper() + en[1:] + end, fr[0].upper() + fr[1:] + (" ?" if end == "?" else end)


def form(adjective: Adjective, *, feminine: bool, plural: bool) -> str:
    """Return the adjective as it agrees with a noun that does not follow it."""
    if plural:
        return adjective.feminine_plural if feminine else adjective.masculine_plural
    return adjective.feminine if feminine else adjective.masculine


def participle(verb: Verb, *, feminine: bool, plural: bool) -> str:
    """Return the past participle in agreement."""
    word = verb.participle + "e" * feminine
    return word + "s" if plural and not word.endswith("s") else word


def _french_determiner(
    determiner: str, following: str, *, feminine: bool, plural: bool, adjective_first: bool
) -> str:
    vowel = following[0] in VOWELS
    match determiner:
        case "the":
            return "les" if plural else "la" if feminine else "le"
        case "this":
            return "ces" if plural else "cette" if feminine else "cet" if vowel else "ce"
        case "a" if plural:
            return "de" if adjective_first else "des"
        case "a":
            return "une" if feminine else "un"
        case "any" | "no":
            return "de"
        case "":
            return ""
    if determiner in NUMBERS:
        return NUMBERS[determiner]
    masculine_form, feminine_form, plural_form = POSSESSIVES[determiner]
    return plural_form if plural else feminine_form if feminine and not vowel else masculine_form


def _english_determiner(determiner: str, following: str, *, plural: bool) -> str:
    if determiner in ("a", "any"):
        if plural:
            return "some" if determiner == "a" else "any"
        return "an" if following[0] in "aeiou" else "a"
    return "these" if determiner == "this" and plural else determiner


def noun_phrase(
    noun: Noun, determiner: str, *, plural: bool = False, adjective: Adjective | None = None
) -> Phrase:
    """Return determiner, adjective and noun in agreement.

    `determiner` is an English one: the, a, any (a after a negation), no, this, a possessive, a
    number, or nothing.
    """
    en = noun.en_plural if plural else noun.en
    fr = noun.fr_plural if plural else noun.fr
    first = adjective is not None and adjective.before_noun
    if adjective is not None:
        word = form(adjective, feminine=noun.feminine, plural=plural)
        if first and not plural and not noun.feminine and fr[0] in VOWELS:
            word = adjective.before_vowel
        en = f"{adjective.en} {en}"
        fr = f"{word} {fr}" if first else f"{fr} {word}"
    en = f"{_english_determiner(determiner, en, plural=plural)} {en}"
    article = _french_determiner(
        determiner, fr, feminine=noun.feminine, plural=plural, adjective_first=first
    )
    return Phrase(en, f"{article} {fr}", ILS if plural else IL, noun.feminine, noun.en)


def _english_verb(verb: Verb, subject: Phrase, *, tense: str, negated: bool) -> str:
    third = subject.person == IL
    do, no = ("does" if third else "do"), ("not " if negated else "")
    match tense:
        case "present":
            return f"{do} not {verb.en}" if negated else verb.en_third if third else verb.en
        case "past":
            return f"did not {verb.en}" if negated else verb.en_past
        case "want" if negated:
            return f"{do} not want to {verb.en}"
        case "want":
            return f"want{'s' * third} to {verb.en}"
        case "can":
            return f"can{'not' * negated} {verb.en}"
        case "must":
            return f"must {no}{verb.en}"
    return f"{be(subject, past=False)} {no}going to {verb.en}"


def _french_verb(verb: Verb, subject: Phrase, *, tense: str) -> Pair:
    """Return the finite verb and what stands after the place of *pas*."""
    if tense == "present":
        return verb.present[subject.person], ""
    if tense == "past" and verb.en in WITH_ETRE:
        plural = subject.person == ILS
        agreed = participle(verb, feminine=subject.feminine, plural=plural)
        return ETRE[subject.person], agreed
    if tense == "past":
        return AVOIR[subject.person], verb.participle
    return MODALS[tense][subject.person], verb.fr


def clause(
    subject: Phrase,
    verb: Verb,
    *,
    tense: str,
    after: Sequence[str] = ("", ""),
    negated: bool = False,
) -> Pair:
    """Return a statement in both languages; `after` is what follows the verb in each.

    `tense` is present, past, or one of MODALS. With être, the past is only right for a subject
    whose gender and number English shows: a noun, he, she, they (ils).
    """
    english = _english_verb(verb, subject, tense=tense, negated=negated)
    finite, rest = _french_verb(verb, subject, tense=tense)
    predicate = f"ne {finite} pas {rest}" if negated else f"{finite} {rest}"
    return f"{subject.en} {english} {after[0]}", f"{subject.fr} {predicate} {after[1]}"


def question(subject: Phrase, verb: Verb, *, tense: str, after: Sequence[str] = ("", "")) -> Pair:
    """Return a question that is answered with yes or no; `tense` is present, past or can."""
    do = "does" if subject.person == IL else "do"
    auxiliary = {"present": do, "past": "did", "can": "can"}[tense]
    _, fr = clause(subject, verb, tense=tense, after=after)
    return f"{auxiliary} {subject.en} {verb.en} {after[0]}", f"est-ce que {fr}"


def be(subject: Phrase, *, past: bool) -> str:
    """Return the English form of *be*."""
    if past:
        return "was" if subject.person in (JE, IL) else "were"
    return "am" if subject.person == JE else "is" if subject.person == IL else "are"


def etre(subject: Phrase, *, past: bool, negated: bool = False, avoir: bool = False) -> str:
    """Return être (or avoir) in the present or the imperfect, of a subject in the third person."""
    past_forms = ("avait", "avaient") if avoir else ("était", "étaient")
    present = AVOIR if avoir else ETRE
    word = past_forms[subject.person == ILS] if past else present[subject.person]
    return f"ne {word} pas" if negated else word


DEGREES = {"": "", "too": "trop", "very": "très"}


def is_(
    subject: Phrase, adjective: Adjective, *, past: bool, degree: str = "", negated: bool = False
) -> Pair:
    """Return that the subject (in the third person) is, or was, as the adjective says."""
    word = form(adjective, feminine=subject.feminine, plural=subject.person == ILS)
    verb = etre(subject, past=past, negated=negated, avoir=adjective.state)
    no = "not" if negated else ""
    return (
        f"{subject.en} {be(subject, past=past)} {no} {degree} {adjective.en}",
        f"{subject.fr} {verb} {DEGREES[degree]} {word}",
    )


def reason(
    who: Phrase,
    why: Phrase,
    target: Phrase,
    *,
    verb: Verb,
    adjective: Adjective,
    degree: str,
    past: bool,
    negated: bool,
) -> Pair:
    """Return "`who` did (not) `verb` `target` because `why` was `adjective`"."""
    after = (target.en, f"dans {target.fr}" if verb.en == "enter" else target.fr)
    tense = "past" if past else "present"
    did = clause(who, verb, tense=tense, after=after, negated=negated)
    was = is_(why, adjective, past=past, degree=degree)
    return f"{did[0]} because {was[0]}", f"{did[1]} parce que {was[1]}"


def it(noun: Phrase) -> Phrase:
    """Return *it*, as French says it of `noun`."""
    return noun._replace(en="it", fr="elle" if noun.feminine else "il")
