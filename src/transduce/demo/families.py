"""The families of sentences of the embedded grammar: one function draws one pair of each."""

import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from transduce.demo.inflection import Adjective, Noun, Verb
from transduce.demo.lexicon import (
    ADJECTIVES,
    ANIMALS,
    COMPARATIVES,
    DISHES,
    DRINKS,
    FRUITS,
    NOUNS,
    NUMBERS,
    PEOPLE,
    POSSESSIVES,
    THINGS,
    TOPICS,
    VERBS,
)
from transduce.demo.phrases import (
    ILS,
    PRONOUNS,
    Pair,
    Phrase,
    be,
    clause,
    etre,
    finish,
    form,
    is_,
    it,
    noun_phrase,
    participle,
    question,
    reason,
)
from transduce.demo.situations import (
    ATTRIBUTES,
    DESTINATIONS,
    OBJECTS,
    OUTSIDE,
    PLACES_OF,
    REASONS,
    SKIES,
    STATES,
    TIMES,
    TWO_ACTS,
    UNGRADED,
)


class Sentence(NamedTuple):
    """One pair; `key` is the combination that decides whether it is held out."""

    source: str
    target: str
    family: str
    key: str


EVERYBODY = [*PEOPLE.values()]
KIN = ("father", "mother", "brother", "sister", "uncle", "aunt")
ONE_OF_A_KIND = ("father", "mother", "king", "queen")  # not in the plural


def _sentence(pair: Pair, *, family: str, key: Sequence[str], end: str = ".") -> Sentence:
    source, target = finish(pair, end=end)
    return Sentence(source, target, family, "|".join(key))


def _person(rng: random.Random, *, among: Sequence[Noun] = EVERYBODY) -> Phrase:
    noun = rng.choice(among)
    plural = noun.en not in ONE_OF_A_KIND and rng.random() < 0.3
    determiner = rng.choice([*POSSESSIVES] if noun.en in KIN else ["the", "the", "the", "this"])
    return noun_phrase(noun, determiner, plural=plural)


def _somebody(rng: random.Random, *, pronouns: Sequence[str] = tuple(PRONOUNS)) -> Phrase:
    return PRONOUNS[rng.choice(pronouns)] if rng.random() < 0.5 else _person(rng)


def _attribute(rng: random.Random, noun: Noun, *, chance: float) -> Adjective | None:
    if noun.en not in ATTRIBUTES or rng.random() > chance:
        return None
    return ADJECTIVES[rng.choice(ATTRIBUTES[noun.en])]


def _thing(rng: random.Random, noun: Noun, *, negated: bool = False) -> Phrase:
    if noun.en in DISHES | DRINKS:
        return noun_phrase(noun, "the", adjective=_attribute(rng, noun, chance=0.3))
    determiner = rng.choice(["the", "the", "a", "a", "this", rng.choice([*POSSESSIVES])])
    plural = rng.random() < 0.25
    if plural and not negated and rng.random() < 0.3:
        determiner = rng.choice([*NUMBERS])
    if negated and determiner == "a":
        determiner = "any"
    adjective = _attribute(rng, noun, chance=0.4)
    return noun_phrase(noun, determiner, plural=plural, adjective=adjective)


def _act(rng: random.Random) -> tuple[Verb, Noun]:
    verb = rng.choice([*OBJECTS])
    return VERBS[verb], NOUNS[rng.choice(OBJECTS[verb])]


def _because(rng: random.Random, *, who: Phrase, pronoun: Phrase, family: str) -> Sentence:
    verb, negated = rng.choice([*REASONS])
    of_object, of_subject = REASONS[verb, negated]
    about_object = rng.random() < 0.5
    adjective, target = rng.choice([(a, o) for a, objects in of_object.items() for o in objects])
    if not about_object:
        adjective = rng.choice(of_subject)
    degree = ""
    if adjective not in UNGRADED:
        degree = rng.choice(["", "too", "too", "very"] if negated else ["", "very"])
    what = noun_phrase(NOUNS[target], "the")
    pair = reason(
        who,
        it(what) if about_object else pronoun,
        what,
        verb=VERBS[verb],
        adjective=ADJECTIVES[adjective],
        degree=degree,
        past=rng.random() < 0.7,
        negated=negated,
    )
    return _sentence(pair, family=family, key=(who.lemma, target, adjective))


def _because_it(rng: random.Random) -> Sentence:
    animal = noun_phrase(rng.choice([*ANIMALS.values()]), rng.choice(["the"] * 5 + ["this"]))
    return _because(rng, who=animal, pronoun=it(animal), family="because it")


def _because_somebody(rng: random.Random) -> Sentence:
    person = _person(
        rng, among=[n for n in EVERYBODY if n.en not in ("child", "teacher", "doctor")]
    )
    pronoun = PRONOUNS["she" if person.feminine else "he"]
    if person.person == ILS:
        pronoun = person._replace(en="they", fr="elles" if person.feminine else "ils")
    return _because(rng, who=person, pronoun=pronoun, family="because he or she")


def _action(rng: random.Random) -> Sentence:
    who, (verb, noun) = _somebody(rng), _act(rng)
    negated = rng.random() < 0.35
    tense = rng.choice(["present"] * 3 + ["past"] * 4 + ["want", "can", "must", "going"])
    what = _thing(rng, noun, negated=negated)
    pair = clause(who, verb, tense=tense, after=(what.en, what.fr), negated=negated)
    return _sentence(pair, family="action", key=(who.lemma, verb.en, noun.en))


def _question(rng: random.Random) -> Sentence:
    who, (verb, noun) = _somebody(rng, pronouns=("you", "they", "he", "she")), _act(rng)
    what = _thing(rng, noun)
    tense = rng.choice(["present", "past", "past", "can"])
    en, fr = question(who, verb, tense=tense, after=(what.en, what.fr))
    if tense != "can" and rng.random() < 0.3:
        en, fr = rng.choice([(f"why {en}", f"pourquoi {fr}"), (f"when {en}", f"quand {fr}")])
    return _sentence((en, fr), family="question", end="?", key=(who.lemma, verb.en, noun.en))


def _relative(rng: random.Random) -> Sentence:
    who, (verb, noun) = _somebody(rng), _act(rng)
    adjective = rng.choice([n for n in ATTRIBUTES.get(noun.en, ["big", "beautiful", "old"])])
    plural = noun.en not in DISHES | DRINKS and rng.random() < 0.25
    what = noun_phrase(noun, "the", plural=plural)
    past = rng.random() < 0.6
    if rng.random() < 0.3 and who.lemma in PEOPLE:
        en, fr = clause(who._replace(en="", fr=""), verb, tense="past", after=(what.en, what.fr))
        state = rng.choice(STATES)
        that = who._replace(en=f"{who.en} who {en}", fr=f"{who.fr} qui {fr}")
        pair = is_(that, ADJECTIVES[state], past=past)
    else:
        agreed = participle(verb, feminine=what.feminine, plural=plural)
        en, fr = clause(who, verb._replace(participle=agreed), tense="past")
        that = what._replace(en=f"{what.en} that {en}", fr=f"{what.fr} que {fr}")
        pair = is_(that, ADJECTIVES[adjective], past=past)
    return _sentence(pair, family="relative", key=(who.lemma, verb.en, noun.en))


def _motion(rng: random.Random) -> Sentence:
    verb = rng.choice([*DESTINATIONS])
    (en, fr), places = DESTINATIONS[verb]
    past = rng.random() < 0.65
    who = _somebody(rng, pronouns=("they", "he", "she") if past else tuple(PRONOUNS))
    where = noun_phrase(NOUNS[rng.choice(places.split())], "the")
    when = rng.choice([*TIMES["past" if past else "present"], ("", ""), ("", ""), ("", "")])
    pair = clause(
        who,
        VERBS[verb],
        tense="past" if past else "present",
        after=(f"{en} {where.en} {when[0]}", f"{fr} {where.fr} {when[1]}"),
        negated=rng.random() < 0.25,
    )
    return _sentence(pair, family="motion", key=(who.lemma, verb, where.lemma))


def _placed(rng: random.Random) -> tuple[Noun, Pair, str]:
    """Return something, where it is in both languages, and the key of the two."""
    (en, fr), grounds = rng.choice([*PLACES_OF.items()])
    ground = rng.choice(grounds.split())
    small = [
        "book",
        "newspaper",
        "letter",
        "key",
        "knife",
        "plate",
        "hat",
        "apple",
        "orange",
        "egg",
        "flower",
    ]
    container = ground in ["box", "bag", "basket", "table", "chair", "bed", "lamp", "computer"]
    movers = small if container else [*small, *ANIMALS, *PEOPLE]
    noun = NOUNS[rng.choice([word for word in movers if word not in KIN])]
    where = noun_phrase(NOUNS[ground], rng.choice(["the"] * 4 + [rng.choice([*POSSESSIVES])]))
    return noun, (f"{en} {where.en}", f"{fr} {where.fr}"), f"{noun.en}|{en}|{ground}"


def _location(rng: random.Random) -> Sentence:
    noun, where, key = _placed(rng)
    past, negated = rng.random() < 0.3, rng.random() < 0.25
    adjective = _attribute(rng, noun, chance=0.25)
    what = noun_phrase(noun, "the", plural=rng.random() < 0.3, adjective=adjective)
    if rng.random() < 0.35 and noun.en not in PEOPLE:
        they = it(what)
        if what.person == ILS:
            they = they._replace(en="they", fr=they.fr + "s")
        asked = finish(
            (f"where {be(what, past=False)} {what.en}", f"où {etre(what, past=False)} {what.fr}"),
            end="?",
        )
        told = finish(
            (
                f"{they.en} {be(they, past=False)} {where[0]}",
                f"{they.fr} {etre(they, past=False)} {where[1]}",
            )
        )
        return Sentence(f"{asked[0]} {told[0]}", f"{asked[1]} {told[1]}", "location", key)
    en = f"{what.en} {be(what, past=past)} {'not' * negated} {where[0]}"
    fr = f"{what.fr} {etre(what, past=past, negated=negated)} {where[1]}"
    return _sentence((en, fr), family="location", key=(key,))


def _there_is(rng: random.Random) -> Sentence:
    noun, where, key = _placed(rng)
    past, plural = rng.random() < 0.3, rng.random() < 0.6
    verb = be(PRONOUNS["they" if plural else "he"], past=past)
    avoir = "y avait" if past else "y a"
    kind = rng.random()
    if kind < 0.2:
        what = noun_phrase(noun, "", plural=True)
        en = f"how many {what.en} {be(what, past=past)} there {where[0]}"
        fr = f"combien de {what.fr} {'y avait-il' if past else 'y a-t-il'} {where[1]}"
        return _sentence((en, fr), family="there is", end="?", key=(key,))
    adjective = _attribute(rng, noun, chance=0.3)
    if kind < 0.4:
        what = noun_phrase(noun, "no", plural=plural, adjective=adjective)
        pair = f"there {verb} {what.en} {where[0]}", f"il ne {avoir} pas {what.fr} {where[1]}"
        return _sentence(pair, family="there is", key=(key,))
    determiner = rng.choice([*NUMBERS, "a", "a", "a"]) if plural else "a"
    what = noun_phrase(noun, determiner, plural=plural, adjective=adjective)
    if kind < 0.55:
        en = what.en.replace("some ", "any ")
        pair = f"{verb} there {en} {where[0]}", f"est-ce que il {avoir} {what.fr} {where[1]}"
        return _sentence(pair, family="there is", end="?", key=(key,))
    pair = f"there {verb} {what.en} {where[0]}", f"il {avoir} {what.fr} {where[1]}"
    return _sentence(pair, family="there is", key=(key,))


def _possession(rng: random.Random) -> Sentence:
    noun = NOUNS[rng.choice([*THINGS, *ANIMALS, "house", "garden", "shop", "brother", "sister"])]
    if rng.random() < 0.5 or noun.en in KIN:
        who = _somebody(rng)
        negated = rng.random() < 0.3
        plural = rng.random() < 0.4
        determiner = "any" if negated else rng.choice([*NUMBERS]) if plural else "a"
        what = noun_phrase(
            noun, determiner, plural=plural, adjective=_attribute(rng, noun, chance=0.3)
        )
        after = (what.en, what.fr)
        if not negated and rng.random() < 0.25 and who.lemma not in ("I", "we"):
            pair = question(who, VERBS["have"], tense="present", after=after)
            return _sentence(pair, family="possession", end="?", key=(who.lemma, "have", noun.en))
        pair = clause(who, VERBS["have"], tense="present", after=after, negated=negated)
        return _sentence(pair, family="possession", key=(who.lemma, "have", noun.en))
    plural = rng.random() < 0.25
    if rng.random() < 0.4:
        owner = rng.choice([*POSSESSIVES])
        what = noun_phrase(noun, owner, plural=plural)
    else:
        person = _person(rng)
        owner = person.lemma
        thing = noun_phrase(noun, "the", plural=plural)
        genitive = "'" if person.en.endswith("s") else "'s"
        what = thing._replace(
            en=f"{person.en}{genitive} {thing.en.removeprefix('the ')}",
            fr=f"{thing.fr} de {person.fr}",
        )
    adjective = rng.choice(ATTRIBUTES.get(noun.en, ["small", "big", "old", "new", "beautiful"]))
    pair = is_(what, ADJECTIVES[adjective], past=rng.random() < 0.3, negated=rng.random() < 0.2)
    return _sentence(pair, family="possession", key=(owner, noun.en, adjective))


def _liking(rng: random.Random) -> Sentence:
    who = _somebody(rng) if rng.random() < 0.4 else PRONOUNS[rng.choice([*PRONOUNS])]
    verb = rng.choice(["love", "love", "like", "hate", "prefer", "study", "learn"])
    topics = {word: (word, fr) for word, fr in TOPICS.items()}
    if verb not in ("study", "learn"):
        for noun in (DISHES | DRINKS | FRUITS | ANIMALS).values():
            general = noun_phrase(noun, "the", plural=noun.en not in DISHES | DRINKS)
            topics[noun.en] = general.en.removeprefix("the "), general.fr
    topics.pop("animal", None)
    topic = rng.choice([*TOPICS]) if rng.random() < 0.5 else rng.choice([*topics])
    after, key = topics[topic], (who.lemma, verb, topic)
    kind = rng.random()
    if kind < 0.2 and who.lemma not in ("I", "we"):
        pair = question(who, VERBS[verb], tense="present", after=after)
        return _sentence(pair, family="liking", end="?", key=key)
    pair = clause(who, VERBS[verb], tense="present", after=after, negated=kind > 0.75)
    return _sentence(pair, family="liking", key=key)


def _comparison(rng: random.Random) -> Sentence:
    kind, words = rng.choice(
        [
            (ANIMALS, "small big old young strong fast slow beautiful dangerous brave"),
            (PEOPLE, "old young strong fast slow happy brave beautiful big small"),
            (THINGS, "small big old new heavy light expensive beautiful strange good"),
        ]
    )
    first, second = rng.sample([*kind.values()], 2)
    left, right = (
        _person(rng, among=[noun])
        if kind is PEOPLE
        else noun_phrase(noun, rng.choice(["the", "the", "this", rng.choice([*POSSESSIVES])]))
        for noun in (first, second)
    )
    word = rng.choice(words.split())
    adjective, past = ADJECTIVES[word], rng.random() < 0.3
    agreed = form(adjective, feminine=left.feminine, plural=left.person == ILS)
    negated = rng.random() < 0.2
    more = COMPARATIVES.get(word, f"more {word}")
    en, fr = rng.choice(
        [
            (f"{more} than", f"plus {agreed} que"),
            (f"{more} than", f"plus {agreed} que"),
            (f"as {word} as", f"aussi {agreed} que"),
            (f"less {word} than", f"moins {agreed} que"),
        ]
    )
    if word == "good":
        better = form(ADJECTIVES["better"], feminine=left.feminine, plural=left.person == ILS)
        en, fr = "better than", f"{better} que"
    pair = (
        f"{left.en} {be(left, past=past)} {'not' * negated} {en} {right.en}",
        f"{left.fr} {etre(left, past=past, negated=negated)} {fr} {right.fr}",
    )
    return _sentence(pair, family="comparison", key=(first.en, word, second.en))


def _portion(rng: random.Random) -> Sentence:
    who = _somebody(rng)
    noun = rng.choice([*(DISHES | DRINKS | FRUITS).values()])
    verb = rng.choice(["drink" if noun.en in DRINKS else "eat", "buy", "sell", "want", "take"])
    negated = rng.random() < 0.25
    plural = noun.en in FRUITS
    the = noun_phrase(noun, "the", plural=plural)
    bare_en, bare_fr = noun_phrase(noun, "", plural=plural)[:2]
    much = "many" if plural else "much"
    if negated:
        en, fr = rng.choice(["any", "any", ""]), f"de {bare_fr}"
    else:
        en, fr = rng.choice(
            [
                ("some", f"de {the.fr}"),
                ("", f"de {the.fr}"),
                ("a lot of", f"beaucoup de {bare_fr}"),
                (f"too {much}", f"trop de {bare_fr}"),
            ]
        )
    tense = "present" if verb == "want" else rng.choice(["present", "past"])
    after = (f"{en} {bare_en}", fr)
    pair = clause(who, VERBS[verb], tense=tense, after=after, negated=negated)
    return _sentence(pair, family="portion", key=(who.lemma, verb, noun.en))


def _two_acts(rng: random.Random) -> Sentence:
    first, second, things = rng.choice(TWO_ACTS)
    noun = NOUNS[rng.choice(things.split())]
    animal = second in ("eat", "lose", "hide", "break") and first == "find" and rng.random() < 0.4
    who = noun_phrase(rng.choice([*ANIMALS.values()]), "the") if animal else _somebody(rng)
    plural = rng.random() < 0.3
    what = noun_phrase(noun, "the" if plural else rng.choice(["the", "a"]), plural=plural)
    past = rng.random() < 0.6
    tense = "past" if past else "present"
    en, fr = clause(who, VERBS[first], tense=tense, after=(what.en, what.fr))
    agreed = participle(VERBS[second], feminine=what.feminine, plural=plural)
    pronoun = "les" if plural else "la" if what.feminine else "le"
    second_en, second_fr = clause(
        who._replace(en="", fr=pronoun),
        VERBS[second]._replace(participle=agreed),
        tense=tense,
        after=("them" if plural else "it", ""),
    )
    pair = f"{en} and {second_en}", f"{fr} et {who.fr if who.lemma in PRONOUNS else ''} {second_fr}"
    return _sentence(pair, family="two acts", key=(who.lemma, second, noun.en))


def _weather(rng: random.Random) -> Sentence:
    en, now, then, said, denied = rng.choice(SKIES)
    past, negated = rng.random() < 0.5, rng.random() < 0.3
    when = rng.choice([*TIMES["past" if past else "present"], ("", "")])
    place = rng.choice([*OUTSIDE, "", ""])
    if place == when[0]:
        place = "garden"
    where = noun_phrase(NOUNS[place], "the") if place else PRONOUNS["I"]
    after = (f"in {where.en}", f"dans {where.fr}") if place else ("", "")
    verb = then if past else now
    verb = f"ne {verb} pas {denied}" if negated else f"{verb} {said}"
    pair = (
        f"it {'was' if past else 'is'} {'not' * negated} {en} {after[0]} {when[0]}",
        f"il {verb} {after[1]} {when[1]}",
    )
    return _sentence(pair, family="weather", key=(en, place, when[0]))


# Each family, and its share of the lines in parts of 100.
FAMILIES: dict[str, tuple[int, Callable[[random.Random], Sentence]]] = {
    "because it": (18, _because_it),
    "because he or she": (5, _because_somebody),
    "action": (12, _action),
    "question": (7, _question),
    "relative": (6, _relative),
    "motion": (7, _motion),
    "location": (7, _location),
    "there is": (7, _there_is),
    "possession": (7, _possession),
    "liking": (9, _liking),
    "comparison": (5, _comparison),
    "portion": (4, _portion),
    "two acts": (4, _two_acts),
    "weather": (2, _weather),
}
