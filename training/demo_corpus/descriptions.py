"""Sentences about how things are and whose they are: predicate adjectives, the genitive, what-questions."""

from . import lexicon
from .clauses import noun_phrase, person, subject
from .grammar import BE, SEIN, Clause, Name, NounPhrase, sentence
from .lexicon import ADJECTIVES, FLAGS, PERSONS, PREDICATIVE, THINGS, VERBS
from .template import Pair, Pick, Template

# Of two adjectives on one noun none may contradict or repeat the other: "the old house is new".
DIMENSIONS = [
    set(words.split())
    for words in (
        "big small little long short",
        "hot cold fresh",
        "red blue green black white brown",
        "new old young",
        "expensive cheap",
        "interesting boring beautiful famous delicious comfortable",
        "friendly tired happy",
    )
]
COLORS = DIMENSIONS[2]
TOO = {"big", "small", "long", "short", "hot", "cold", "old", "expensive", "boring", "fast"}


def predicate(word: str) -> str:
    stem = ADJECTIVES[word]
    return PREDICATIVE.get(stem, stem)


def described(pick: Pick, head: str, word: str) -> NounPhrase | Name:
    """A thing or person to say `word` of."""
    contradicting = next((words for words in DIMENSIONS if word in words), {word})
    while True:
        if head in THINGS:
            entry = THINGS[head]
            plural = entry.noun.english_plural != "-" and pick.chance(0.25)
            own = list(lexicon.OWN.values()) if head == "house" or entry.suits & {"sell", "have", "read"} else []
            phrase = noun_phrase(entry, pick.of(["the", "the", "this", *own]), plural, pick, 0.5)
        else:
            phrase = person(pick, head)
        if isinstance(phrase, Name) or not phrase.adjective or phrase.adjective[0] not in contradicting:
            return phrase


def describes(allowed: set[str]) -> list[str]:
    entries = {**THINGS, **PERSONS}
    return [f"{head}:{word}" for head, entry in entries.items() for word in entry.adjectives if word in allowed]


def says(english_degree: str, german_degree: str, mark: str = "."):
    """The old house is very big. / Is the old house big?"""

    def make(value: str, pick: Pick) -> Pair:
        head, word = value.split(":")
        phrase = described(pick, head, word)
        be, sein = BE[phrase.person], SEIN[phrase.person]
        english, german = [phrase.english(), be], [phrase.german("nom"), sein]
        if mark == "?":
            english.reverse()
            german.reverse()
        english += [english_degree, word]
        german += [german_degree, predicate(word)]
        return sentence(" ".join(filter(None, english)), mark), sentence(" ".join(filter(None, german)), mark)

    return make


FEATURES = {
    "price": ("the price of", "der Preis", [("too high", "zu hoch"), ("very low", "sehr niedrig")]),
    "color": ("the color of", "die Farbe", [("very beautiful", "sehr schön"), ("too dark", "zu dunkel")]),
}
SOLD = [head for head, entry in THINGS.items() if "sell" in entry.suits]


def feature(name: str):
    """The price of the old car is too high: the German genitive."""

    def make(value: str, pick: Pick) -> Pair:
        english, german, judgements = FEATURES[name]
        entry = THINGS[value.split(":")[1]]
        phrase = noun_phrase(entry, pick.of(("the", "the", "this", "my", "your", "our")), False, pick, 0.7)
        left, right = pick.of(judgements)
        return (
            sentence(f"{english} {phrase.english()} is {left}"),
            sentence(f"{german} {phrase.german('gen')} ist {right}"),
        )

    return make


OWNERS = ["man", "woman", "child", "girl", "boy", *(head for head in PERSONS if "kin" in PERSONS[head].suits)]
OWNERS.remove("parents")
OWNED = "hat jacket bicycle car dog cat key bag map lamp house computer bed".split()


def owned(english: str, german: str, judged: bool, mark: str):
    """My sister's bicycle is new: the owner's genitive follows in German."""

    def make(value: str, pick: Pick) -> Pair:
        owner, head = value.split("'s ")
        entry = THINGS[head]
        who = person(pick, owner)
        while not isinstance(who, NounPhrase) or who.plural:
            who = person(pick, owner)
        thing = NounPhrase("the", None, entry.noun)
        left = f"{who.english()}'s {entry.noun.english}"
        right = f"{thing.german('nom')} {who.german('gen')}"
        if judged:
            word = pick.of([word for word in entry.adjectives if word not in ("young", "little")])
            left, right = f"{left} {english} {word}", f"{right} {german} {predicate(word)}"
        if mark == "?":
            left, right = f"{english} {left}", f"{german} {right}"
        return sentence(left, mark), sentence(right, mark)

    return make


def what(mode: str, english_end: str, german_end: str):
    """What is Anna buying today? The value is the verb; the subject varies."""

    def make(value: str, pick: Pick) -> Pair:
        base = value.removeprefix("what:")
        who = subject(pick, base)
        while who.english() == "I":
            who = subject(pick, base)
        one = Clause(who, VERBS[base])
        left = one.english_question(mode, wh="what", end=english_end)
        return sentence(left, "?"), sentence(one.german_question(mode, wh="was", adverb=german_end), "?")

    return make


ASKED = [f"what:{base}" for base in ("buy", "eat", "drink", "read", "write", "draw", "sell", "repair", "need", "look")]
HAPPENED = [value for value in ASKED if "past" in FLAGS[value.removeprefix("what:")]]
OWNERSHIP = [f"{owner}'s {head}" for owner in OWNERS for head in OWNED]
ALL_BUT_COLORS = set(ADJECTIVES) - COLORS - {"little", "delicious", "cheap"}

DESCRIPTIONS = [
    Template("statement", "very", describes(ALL_BUT_COLORS), says("very", "sehr")),
    Template("statement", "too", describes(TOO), says("too", "zu")),
    Template("statement", "price of", [f"of:{head}" for head in SOLD], feature("price"), 0.7),
    Template("statement", "color of", [f"of:{head}" for head in SOLD], feature("color"), 0.7),
    Template("statement", "owner", OWNERSHIP, owned("is", "ist", True, ".")),
    Template("question", "where owner", OWNERSHIP, owned("where is", "wo ist", False, "?"), 0.8),
    Template("question", "is it", describes(set(ADJECTIVES) - {"little"}), says("", "", "?")),
    Template("negation", "is not", describes(set(ADJECTIVES) - {"little"}), says("not", "nicht")),
    Template("question", "what today", ASKED, what("present", "today", "heute"), 0.4),
    Template("question", "what tomorrow", ASKED, what("will", "tomorrow", "morgen"), 0.4),
    Template("question", "what yesterday", HAPPENED, what("past", "yesterday", "gestern"), 0.4),
    Template("question", "what want", HAPPENED, what("want", "", ""), 0.4),
]
