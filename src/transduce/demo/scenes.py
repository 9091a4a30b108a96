"""The families of sentences that say how, where or whose things are: each function draws one."""

import random

from transduce.demo.draw import KIN, Sentence, attribute, person, sentence, somebody
from transduce.demo.inflection import Noun
from transduce.demo.lexicon import (
    ADJECTIVES,
    ANIMALS,
    COMPARATIVES,
    NOUNS,
    NUMBERS,
    PEOPLE,
    PLACES,
    POSSESSIVES,
    THINGS,
    VERBS,
)
from transduce.demo.phrases import (
    ILS,
    PRONOUNS,
    Pair,
    be,
    clause,
    etre,
    finish,
    form,
    is_,
    it,
    noun_phrase,
    question,
)
from transduce.demo.situations import ATTRIBUTES, OUTSIDE, PLACES_OF, SKIES, TIMES, words

COMPARED = (
    (ANIMALS, words("small big old young strong fast slow beautiful dangerous brave")),
    (PEOPLE, words("old young strong fast happy brave beautiful big small")),
    (THINGS, words("small big old heavy light expensive beautiful strange good")),
)
SMALL = words("book newspaper letter key knife plate hat apple orange egg flower")
VISITORS = [word for word in PEOPLE if word not in KIN]


def _placed(rng: random.Random) -> tuple[Noun, Pair, tuple[str, str]]:
    """Return something, where it is in both languages, and the key of the two."""
    (en, fr), grounds = rng.choice([*PLACES_OF.items()])
    ground = rng.choice(grounds)
    noun = NOUNS[rng.choice(SMALL if ground in THINGS else [*SMALL, *ANIMALS, *VISITORS])]
    owned = ground in THINGS or ground in ("house", "garden", "kitchen", "garage")
    determiner = rng.choice([*POSSESSIVES]) if owned and rng.random() < 0.3 else "the"
    where = noun_phrase(NOUNS[ground], determiner)
    return noun, (f"{en} {where.en}", f"{fr} {where.fr}"), (noun.en, ground)


def _where(rng: random.Random) -> Sentence:
    """Draw "Where is the key? It is in the box"; the answer's *it* is the question's noun."""
    noun, place, key = _placed(rng)
    what = noun_phrase(noun, "the", plural=rng.random() < 0.3)
    they = it(what)
    if what.person == ILS:
        they = they._replace(en="they", fr=they.fr + "s")
    are, sont = be(what, past=False), etre(what, past=False)
    asked = finish((f"where {are} {what.en}", f"où {sont} {what.fr}"), end="?")
    told = finish((f"{they.en} {are} {place[0]}", f"{they.fr} {sont} {place[1]}"))
    written = (f"{asked[0]} {told[0]}", f"{asked[1]} {told[1]}")
    return Sentence(*written, family="location", key="|".join(key))


def location(rng: random.Random) -> Sentence:
    """Draw where something is or was, or is not."""
    if rng.random() < 0.35:
        return _where(rng)
    noun, where, key = _placed(rng)
    past, negated = rng.random() < 0.3, rng.random() < 0.25
    adjective = attribute(rng, noun, chance=0.25)
    what = noun_phrase(noun, "the", plural=rng.random() < 0.3, adjective=adjective)
    en = f"{what.en} {be(what, past=past)} {'not' * negated} {where[0]}"
    fr = f"{what.fr} {etre(what, past=past, negated=negated)} {where[1]}"
    return sentence((en, fr), family="location", key=key)


def there_is(rng: random.Random) -> Sentence:
    """Draw what there is, is not, or how many there are, somewhere."""
    noun, where, key = _placed(rng)
    past, plural = rng.random() < 0.3, rng.random() < 0.6
    verb = be(PRONOUNS["they" if plural else "he"], past=past)
    avoir = "y avait" if past else "y a"
    kind = rng.random()
    if kind < 0.2:
        what = noun_phrase(noun, "", plural=True)
        en = f"how many {what.en} {be(what, past=past)} there {where[0]}"
        fr = f"combien de {what.fr} {'y avait-il' if past else 'y a-t-il'} {where[1]}"
        return sentence((en, fr), family="there is", end="?", key=key)
    adjective = attribute(rng, noun, chance=0.3)
    if kind < 0.4:
        what = noun_phrase(noun, "no", plural=plural, adjective=adjective)
        pair = f"there {verb} {what.en} {where[0]}", f"il ne {avoir} pas {what.fr} {where[1]}"
        return sentence(pair, family="there is", key=key)
    determiner = rng.choice([*NUMBERS, "a", "a", "a"]) if plural else "a"
    what = noun_phrase(noun, determiner, plural=plural, adjective=adjective)
    if kind < 0.55:
        en = what.en.replace("some ", "any ")
        pair = f"{verb} there {en} {where[0]}", f"est-ce que il {avoir} {what.fr} {where[1]}"
        return sentence(pair, family="there is", end="?", key=key)
    pair = f"there {verb} {what.en} {where[0]}", f"il {avoir} {what.fr} {where[1]}"
    return sentence(pair, family="there is", key=key)


def _owned(rng: random.Random, noun: Noun) -> Sentence:
    """Draw what somebody's thing is like: "The king's castle is old"."""
    plural = noun.en not in PLACES and rng.random() < 0.25
    if rng.random() < 0.4:
        owner = rng.choice([*POSSESSIVES])
        what = noun_phrase(noun, owner, plural=plural)
    else:
        who = person(rng)
        owner, thing = who.lemma, noun_phrase(noun, "", plural=plural)
        article = noun_phrase(noun, "the", plural=plural)
        genitive = "'" if who.en.endswith("s") else "'s"
        what = thing._replace(en=f"{who.en}{genitive} {thing.en}", fr=f"{article.fr} de {who.fr}")
    adjective = ADJECTIVES[rng.choice(ATTRIBUTES[noun.en])]
    pair = is_(what, adjective, past=rng.random() < 0.3, negated=rng.random() < 0.2)
    return sentence(pair, family="possession", key=(owner, noun.en))


def possession(rng: random.Random) -> Sentence:
    """Draw who has what, or has none, or what it is like."""
    noun = NOUNS[rng.choice([*THINGS, *ANIMALS, "house", "garden", "shop"])]
    if rng.random() < 0.5:
        return _owned(rng, noun)
    who = somebody(rng)
    negated, plural = rng.random() < 0.3, noun.en not in PLACES and rng.random() < 0.4
    determiner = "any" if negated else rng.choice([*NUMBERS]) if plural else "a"
    adjective = attribute(rng, noun, chance=0.3)
    what = noun_phrase(noun, determiner, plural=plural, adjective=adjective)
    after, key = (what.en, what.fr), (who.lemma, noun.en)
    if not negated and rng.random() < 0.25 and who.lemma not in ("I", "we"):
        pair = question(who, VERBS["have"], tense="present", after=after)
        return sentence(pair, family="possession", end="?", key=key)
    pair = clause(who, VERBS["have"], tense="present", after=after, negated=negated)
    return sentence(pair, family="possession", key=key)


def comparison(rng: random.Random) -> Sentence:
    """Draw who or what is more, less or as much so as another."""
    kind, adjectives = rng.choice(COMPARED)
    first, second = rng.sample([*kind.values()], 2)
    left, right = (
        person(rng, among=[noun])
        if kind is PEOPLE
        else noun_phrase(noun, rng.choice(["the", "the", "this", rng.choice([*POSSESSIVES])]))
        for noun in (first, second)
    )
    word = rng.choice(adjectives)
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
    return sentence(pair, family="comparison", key=(first.en, second.en))


def weather(rng: random.Random) -> Sentence:
    """Draw what the weather does, where and when: this *it* is always *il*."""
    en, now, then, said, denied = rng.choice(SKIES)
    past, negated = rng.random() < 0.5, rng.random() < 0.3
    when = rng.choice([*TIMES["past" if past else "present"], ("", "")])
    if en == "snowing" and when[0] == "in summer":
        when = ("", "")
    place = rng.choice([*OUTSIDE, "", ""])
    if not place and not when[0]:
        place = "garden"
    where = noun_phrase(NOUNS[place], "the") if place else PRONOUNS["I"]
    after = (f"in {where.en}", f"dans {where.fr}") if place else ("", "")
    verb = then if past else now
    verb = f"ne {verb} pas {denied}" if negated else f"{verb} {said}"
    pair = (
        f"it {'was' if past else 'is'} {'not' * negated} {en} {after[0]} {when[0]}",
        f"il {verb} {after[1]} {when[1]}",
    )
    return sentence(pair, family="weather", key=(en, place, when[0]))
