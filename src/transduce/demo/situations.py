"""What goes with what in the embedded grammar: who can do what to which things, and why.

Words stand in their English form, as they are found in the lexicon.
"""

from transduce.demo.lexicon import ANIMALS, DISHES, DRINKS, FRUITS, PEOPLE, PLACES, THINGS


def words(text: str) -> list[str]:
    """Return the words of a table's cell."""
    return text.split()


def _split(table: dict[str, str]) -> dict[str, list[str]]:
    return {key: words(text) for key, text in table.items()}


# What each verb can have as its object.
OBJECTS = _split(
    {
        "eat": " ".join(FRUITS | DISHES),
        "drink": " ".join(DRINKS),
        "buy": " ".join([*THINGS, *FRUITS]),
        "sell": " ".join([*THINGS, *FRUITS]),
        "find": " ".join([*THINGS, *FRUITS, *ANIMALS]),
        "see": " ".join([*THINGS, *ANIMALS, "house", "school", "church", "castle", "hotel"]),
        "lose": "book newspaper bag knife hat coat bike letter key",
        "take": "book newspaper bag basket knife hat coat bike key box plate lamp apple orange egg",
        "wash": "plate dress coat bag car bike table chair knife apple carrot",
        "carry": "bag basket box stone chair table ladder lamp computer bike",
        "push": "box table chair stone basket car bike bed boat",
        "hide": "key letter book bag hat knife stone basket box apple cake",
        "break": "plate chair table lamp box computer ladder egg",
        "open": "box letter bag book newspaper",
        "close": "box bag book basket shop",
        "cross": "street road river bridge field forest garden park path valley lake",
        "climb": "wall rock tree hill mountain tower",
    }
)

# Who goes where: the French preposition, and the places it is said of.
DESTINATIONS = {
    "go": (
        ("to", "à"),
        "market station beach school church museum hospital hotel castle river lake park shop",
    ),
    "arrive": (("at", "à"), "market station beach school church museum hospital hotel castle lake"),
    "return": (
        ("from", "de"),
        "market station beach school church museum hospital hotel castle river lake park forest",
    ),
    "stay": (("in", "dans"), "house kitchen garden garage castle cave field forest valley shop"),
    "enter": (
        ("", "dans"),
        "house kitchen school church cave castle shop museum garage hotel hospital",
    ),
}

# Where things are: prepositions, and what they are said of.
PLACES_OF = {
    ("on", "sur"): words("table chair bed box boat car wall rock"),
    ("under", "sous"): words("table chair bed tree car bridge ladder"),
    ("in", "dans"): words("box bag basket car house kitchen garden garage boat"),
    ("behind", "derrière"): words("house tree church wall car rock school hotel"),
    ("in front of", "devant"): words("house shop church wall car castle school hotel"),
    ("near", "près de"): words("house tree river church lake bridge station hospital"),
    ("next to", "à côté de"): words("bed table lamp computer wall tree bridge shop"),
}

# Why somebody did not (or did) do it: what is true of the object, by adjective, and of the subject.
_UNWILLING = "tired ill afraid sleepy lazy nervous shy sad injured"
REASONS: dict[tuple[str, bool], tuple[dict[str, list[str]], list[str]]] = {
    (verb, negated): (_split(of_object), words(of_subject))
    for verb, negated, of_object, of_subject in (
        (
            "cross",
            True,
            {
                "wide": "street road river valley bridge field lake",
                "long": "street road bridge path valley",
                "dangerous": "street road river forest bridge path lake park",
                "dark": "street forest garden park path bridge",
                "deep": "river lake valley",
                "narrow": "street road bridge path",
            },
            _UNWILLING,
        ),
        (
            "enter",
            True,
            {
                "dark": "house kitchen church cave castle garage hotel",
                "dangerous": "house cave castle garage",
                "closed": "house kitchen school church castle shop museum garage hotel",
                "narrow": "cave garage",
            },
            _UNWILLING,
        ),
        (
            "climb",
            True,
            {
                "high": "wall rock tree hill mountain tower",
                "steep": "rock wall hill mountain",
                "slippery": "wall rock tree hill mountain tower",
                "dangerous": "wall rock hill mountain tower tree",
            },
            _UNWILLING,
        ),
        (
            "eat",
            True,
            {
                "bitter": "apple orange carrot cabbage cheese salad honey",
                "salty": "soup meat cheese rice bread egg salad",
                "spicy": "soup meat rice cake salad cabbage",
                "hard": "bread cheese carrot apple cake egg",
                "rotten": "apple orange tomato egg cabbage meat",
                "hot": "soup meat rice egg cake",
                "cold": "soup rice egg meat",
            },
            _UNWILLING,
        ),
        (
            "drink",
            True,
            {
                "hot": "water milk tea coffee lemonade",
                "cold": "water milk tea coffee lemonade",
                "bitter": "tea coffee lemonade water",
                "sweet": "tea coffee lemonade milk",
            },
            _UNWILLING,
        ),
        (
            "push",
            True,
            {
                "heavy": "box table chair stone basket car bike bed boat",
                "fragile": "box table chair basket bed boat",
            },
            _UNWILLING,
        ),
        (
            "carry",
            True,
            {
                "heavy": "bag basket box stone chair bike ladder lamp computer",
                "fragile": "bag basket box chair lamp computer hat plate",
            },
            _UNWILLING,
        ),
        (
            "cross",
            False,
            {
                "empty": "street road park bridge path",
                "short": "street road path bridge",
                "narrow": "street river bridge path",
            },
            "hungry thirsty curious happy lost brave",
        ),
        (
            "enter",
            False,
            {
                "open": "house kitchen church castle shop garage hotel school",
                "empty": "house kitchen cave castle garage church",
            },
            "hungry thirsty curious lost afraid tired",
        ),
        (
            "climb",
            False,
            {"low": "wall rock hill tower", "beautiful": "hill mountain rock"},
            "hungry curious happy strong brave afraid",
        ),
        (
            "eat",
            False,
            {
                "sweet": "apple orange carrot cake honey jam",
                "delicious": "apple orange cake bread cheese soup salad meat",
                "fresh": "bread cheese carrot tomato egg salad",
            },
            "hungry curious happy",
        ),
        (
            "drink",
            False,
            {"delicious": "milk tea coffee lemonade", "fresh": "water milk lemonade"},
            "thirsty curious tired happy",
        ),
        (
            "carry",
            False,
            {"light": "bag basket hat book chair ladder lamp flower"},
            "strong brave happy curious",
        ),
    )
}

# One choice for each thing that can be true of each object.
CAUSES = [
    (verb, negated, adjective, target)
    for (verb, negated), (of_object, _) in REASONS.items()
    for adjective, targets in of_object.items()
    for target in targets
]

# Adjectives that stand alone, without *too* or *very*.
UNGRADED = frozenset(["closed", "open", "empty", "rotten", "delicious", "lost", "injured"])

# Somebody does the first and then the second to the same thing.
TWO_ACTS = (
    ("find", "eat", "apple orange carrot tomato egg cake cabbage"),
    ("wash", "eat", "apple orange carrot tomato"),
    ("buy", "sell", "book boat hat coat bike computer table car dress lamp ladder"),
    ("buy", "hide", "book bag hat knife key cake dress"),
    ("find", "lose", "book bag hat coat knife key letter"),
    ("find", "break", "plate lamp egg chair computer box"),
    ("open", "close", "box bag book"),
    ("take", "hide", "key book bag hat knife box apple letter"),
    ("see", "take", "key book bag hat coat bike apple plate"),
)

# Adjectives that can stand beside a noun, by the kind of noun.
_KINDS = (
    (PLACES, "small big beautiful old"),
    (
        words("house school church castle shop museum garage hotel hospital market station"),
        "small big beautiful old new",
    ),
    (
        THINGS,
        "red blue green black white grey yellow brown small big beautiful new old pretty expensive"
        " strange heavy light",
    ),
    (FRUITS, "small big beautiful good fresh delicious cold rotten"),
    (ANIMALS, "small big old young beautiful black white grey brown loyal"),
    (PEOPLE, "young old small happy sad strange brave tired"),
    (DISHES | DRINKS, "good cold hot fresh delicious"),
)
ATTRIBUTES = {noun: words(adjectives) for nouns, adjectives in _KINDS for noun in nouns}

# What is said of somebody after *be*.
STATES = words(
    "tired ill sad happy hungry thirsty afraid sleepy lazy nervous shy brave strong curious"
)

# The weather: English, the French verb now and then, and what follows it, said and denied.
SKIES = (
    ("cold", "fait", "faisait", "froid", "froid"),
    ("hot", "fait", "faisait", "chaud", "chaud"),
    ("dark", "fait", "faisait", "sombre", "sombre"),
    ("windy", "y a", "y avait", "du vent", "de vent"),
    ("sunny", "y a", "y avait", "du soleil", "de soleil"),
    ("raining", "pleut", "pleuvait", "", ""),
    ("snowing", "neige", "neigeait", "", ""),
)
OUTSIDE = ["garden", "forest", "valley", "street", "park", "field"]

# When: for the present and for the past.
TIMES = {
    "present": (
        ("today", "aujourd'hui"),
        ("every day", "tous les jours"),
        ("in winter", "en hiver"),
        ("in summer", "en été"),
    ),
    "past": (
        ("yesterday", "hier"),
        ("this morning", "ce matin"),
        ("on Monday", "lundi"),
        ("on Friday", "vendredi"),
        ("on Sunday", "dimanche"),
    ),
}
