"""The families of sentences in which somebody does something: each function draws one."""

import random

from transduce.demo.draw import (
    Sentence,
    attribute,
    person,
    sentence,
    somebody,
    thing,
)
from transduce.demo.inflection import Noun, Verb
from transduce.demo.lexicon import (
    ADJECTIVES,
    ANIMALS,
    DISHES,
    DRINKS,
    FRUITS,
    MEN,
    NOUNS,
    PEOPLE,
    PLACES,
    THINGS,
    TOPICS,
    VERBS,
    WOMEN,
)
from transduce.demo.phrases import (
    ILS,
    PRONOUNS,
    Phrase,
    clause,
    is_,
    it,
    noun_phrase,
    participle,
    question,
    reason,
)
from transduce.demo.situations import (
    ATTRIBUTES,
    CAUSES,
    DESTINATIONS,
    OBJECTS,
    REASONS,
    STATES,
    TIMES,
    TWO_ACTS,
    UNGRADED,
)


def _act(rng: random.Random) -> tuple[Verb, Noun]:
    verb = rng.choice([*OBJECTS])
    return VERBS[verb], NOUNS[rng.choice(OBJECTS[verb])]


def _because(rng: random.Random, *, who: Phrase, pronoun: Phrase, family: str) -> Sentence:
    verb, negated, adjective, target = rng.choice(CAUSES)
    about_object = rng.random() < 0.5
    if not about_object:
        adjective = rng.choice(REASONS[verb, negated][1])
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
    return sentence(pair, family=family, key=(who.lemma, target))


def because_it(rng: random.Random) -> Sentence:
    """Draw "The animal did not cross the street because it was tired", or too wide."""
    animal = noun_phrase(rng.choice([*ANIMALS.values()]), rng.choice(["the"] * 5 + ["this"]))
    return _because(rng, who=animal, pronoun=it(animal), family="because it")


def because_they(rng: random.Random) -> Sentence:
    """Draw the same of people: he, she or they, if it is not the object's *it*."""
    who = person(rng, among=[*(MEN | WOMEN).values()])
    pronoun = PRONOUNS["she" if who.feminine else "he"]
    if who.person == ILS:
        pronoun = who._replace(en="they", fr="elles" if who.feminine else "ils")
    return _because(rng, who=who, pronoun=pronoun, family="because they")


def action(rng: random.Random) -> Sentence:
    """Draw who does, did, wants to do, can, must or is going to do what, or not."""
    who, (verb, noun) = somebody(rng), _act(rng)
    negated = rng.random() < 0.35
    tense = rng.choice(["present"] * 5 + ["past"] * 4 + ["want", "can", "must", "going"])
    what = thing(rng, noun, negated=negated)
    pair = clause(who, verb, tense=tense, after=(what.en, what.fr), negated=negated)
    return sentence(pair, family="action", key=(who.lemma, noun.en))


def asking(rng: random.Random) -> Sentence:
    """Draw a question: whether, why or when somebody does or did something."""
    who, (verb, noun) = somebody(rng, pronouns=("you", "they", "he", "she")), _act(rng)
    what = thing(rng, noun)
    tense = rng.choice(["present", "past", "past", "can"])
    en, fr = question(who, verb, tense=tense, after=(what.en, what.fr))
    if tense != "can" and rng.random() < 0.3:
        en, fr = rng.choice([(f"why {en}", f"pourquoi {fr}"), (f"when {en}", f"quand {fr}")])
    return sentence((en, fr), family="question", end="?", key=(who.lemma, noun.en))


def relative(rng: random.Random) -> Sentence:
    """Draw what somebody did something to (the participle agrees with it), or who did it."""
    who, (verb, noun) = somebody(rng), _act(rng)
    adjective = rng.choice(ATTRIBUTES[noun.en])
    plural = noun.en not in DISHES | DRINKS | PLACES and rng.random() < 0.25
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
    return sentence(pair, family="relative", key=(who.lemma, noun.en))


def motion(rng: random.Random) -> Sentence:
    """Draw who went, stayed or came where, and when: French says it with être."""
    verb = rng.choice([*DESTINATIONS])
    (en, fr), places = DESTINATIONS[verb]
    past = rng.random() < 0.65
    who = somebody(rng, pronouns=("they", "he", "she") if past else tuple(PRONOUNS))
    place = NOUNS[rng.choice(places.split())]
    where = noun_phrase(place, "the", adjective=attribute(rng, place, chance=0.35))
    when = rng.choice([*TIMES["past" if past else "present"], ("", ""), ("", ""), ("", "")])
    pair = clause(
        who,
        VERBS[verb],
        tense="past" if past else "present",
        after=(f"{en} {where.en} {when[0]}", f"{fr} {where.fr} {when[1]}"),
        negated=rng.random() < 0.25,
    )
    return sentence(pair, family="motion", key=(who.lemma, where.lemma))


def _in_general(rng: random.Random, *, learnt: bool) -> tuple[str, str, str]:
    """Return a school subject or a kind of thing, in both languages, and its word for the key."""
    if learnt or rng.random() < 0.4:
        topic = rng.choice([*TOPICS])
        return topic, TOPICS[topic], topic
    noun = rng.choice([*(DISHES | DRINKS | FRUITS | THINGS | ANIMALS).values()])
    uncounted = noun.en in DISHES | DRINKS
    adjective = attribute(rng, noun, chance=0.1 if uncounted else 0.5)
    general = noun_phrase(noun, "the", plural=not uncounted, adjective=adjective)
    return general.en.removeprefix("the "), general.fr, noun.en


def liking(rng: random.Random) -> Sentence:
    """Draw who loves, hates or studies what, in general."""
    who = PRONOUNS[rng.choice([*PRONOUNS])] if rng.random() < 0.3 else somebody(rng)
    verb = rng.choice(["love", "love", "like", "hate", "prefer", "study"])
    en, fr, topic = _in_general(rng, learnt=verb == "study")
    after, key, kind = (en, fr), (who.lemma, topic), rng.random()
    if kind < 0.2 and who.lemma not in ("I", "we"):
        pair = question(who, VERBS[verb], tense="present", after=after)
        return sentence(pair, family="liking", end="?", key=key)
    pair = clause(who, VERBS[verb], tense="present", after=after, negated=kind > 0.75)
    return sentence(pair, family="liking", key=key)


def portion(rng: random.Random) -> Sentence:
    """Draw who eats, drinks, buys or wants how much of what: French *du*, *de la*, *de*."""
    who = somebody(rng)
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
    return sentence(pair, family="portion", key=(who.lemma, noun.en))


def two_acts(rng: random.Random) -> Sentence:
    """Draw two acts on one thing: the second one's *it* or *them* is l', le, la or les."""
    first, second, things = rng.choice(TWO_ACTS)
    noun = NOUNS[rng.choice(things.split())]
    animal = second in ("eat", "lose", "hide", "break") and first == "find" and rng.random() < 0.4
    who = noun_phrase(rng.choice([*ANIMALS.values()]), "the") if animal else somebody(rng)
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
    return sentence(pair, family="two acts", key=(who.lemma, noun.en))
