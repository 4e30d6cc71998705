"""Templates for properties and possession: predicate adjectives, the genitive, questions with "what"."""

from .clauses import noun_phrase, person, subject
from .grammar import BE, SEIN, Clause, NounPhrase, Word, join, sentence
from .lexicon import ADJECTIVES, OWN, PERSONS, PHRASES, THINGS, VERBS
from .template import Pair, Pick, Template

TOO = {"big", "small", "long", "short", "hot", "cold", "old", "expensive", "boring", "fast"}
SOLD = [f"of:{head}" for head, entry in THINGS.items() if "sell" in entry.verbs]
KIN = [head for head, entry in PERSONS.items() if entry.kin and head != "parents"]
OWNED = "hat jacket bicycle car dog cat key bag map lamp house computer bed".split()
OWNERSHIP = [f"{owner}'s {head}" for owner in ["man", "woman", "child", "girl", "boy", *KIN] for head in OWNED]
ASKED = [f"what:{base}" for base in ("buy", "eat", "drink", "read", "write", "draw", "sell", "repair", "need", "look")]
HAPPENED = [value for value in ASKED if "past" in VERBS[value.removeprefix("what:")].flags]


def describes(allowed: set[str]) -> list[str]:
    entries = {**THINGS, **PERSONS}
    words = [(head, adjective.english) for head, entry in entries.items() for adjective in entry.adjectives]
    return [f"{head}:{word}" for head, word in words if word in allowed]


def described(pick: Pick, head: str, word: str) -> NounPhrase | Word:
    """Build a phrase for a thing or person whose adjective, if any, neither contradicts nor repeats `word`."""
    dimension = ADJECTIVES[word].dimension

    def draw() -> NounPhrase | Word:
        if head not in THINGS:
            return person(pick, head)
        entry = THINGS[head]
        plural = entry.noun.english_plural != "-" and pick.chance(0.25)
        own = list(OWN.values()) if head == "house" or entry.verbs & {"sell", "have", "read"} else []
        return noun_phrase(entry, pick.of(["the", "the", "this", *own]), plural, pick, 0.5)

    def fits(phrase: NounPhrase | Word) -> bool:
        other = phrase.adjective if isinstance(phrase, NounPhrase) else None
        return other is None or (other.english != word and (not dimension or other.dimension != dimension))

    return pick.until(draw, fits)


def says(english_degree: str, german_degree: str, mark: str = "."):
    """The old house is very big. / Is the old house big?"""

    def make(value: str, pick: Pick) -> Pair:
        head, word = value.split(":")
        phrase = described(pick, head, word)
        order = -1 if mark == "?" else 1
        english = [phrase.english(), BE[phrase.person]][::order]
        german = [phrase.german("nom"), SEIN[phrase.person]][::order]
        left, right = join(*english, english_degree, word), join(*german, german_degree, ADJECTIVES[word].predicative)
        return sentence(left, mark), sentence(right, mark)

    return make


def feature(english: str, german: str, judgements: str):
    """The price of the old car is too high: the German genitive."""

    def make(value: str, pick: Pick) -> Pair:
        entry = THINGS[value.removeprefix("of:")]
        phrase = noun_phrase(entry, pick.of(("the", "the", "this", "my", "your", "our")), False, pick, 0.7)
        left, right = pick.of(PHRASES[judgements])
        right = f"{german} {phrase.german('gen')} ist {right}"
        return sentence(f"{english} {phrase.english()} is {left}"), sentence(right)

    return make


def owned(english: str, german: str, mark: str):
    """My sister's bicycle is new. / Where is my sister's bicycle? The owner's genitive follows in German."""

    def make(value: str, pick: Pick) -> Pair:
        owner, head = value.split("'s ")
        entry = THINGS[head]
        who = pick.until(lambda: person(pick, owner), lambda who: who.person == "3s")
        left = f"{who.english()}'s {entry.noun.english}"
        right = f"{NounPhrase('the', None, entry.noun).german('nom')} {who.german('gen')}"
        if mark == "?":
            return sentence(f"{english} {left}", mark), sentence(f"{german} {right}", mark)
        adjective = pick.of([word for word in entry.adjectives if word.english not in ("young", "little")])
        left, right = f"{left} {english} {adjective.english}", f"{right} {german} {adjective.predicative}"
        return sentence(left, mark), sentence(right, mark)

    return make


def what(mode: str, english_end: str, german_end: str):
    """What is Anna buying today? The value is the verb; the subject is random."""

    def make(value: str, pick: Pick) -> Pair:
        verb = VERBS[value.removeprefix("what:")]
        one = Clause(subject(pick, verb, avoid=("I",)), verb)
        left = one.english_question(mode, wh="what", end=english_end)
        return sentence(left, "?"), sentence(one.german_question(mode, wh="was", adverb=german_end), "?")

    return make


JUDGED = {word for word, adjective in ADJECTIVES.items() if adjective.dimension != "color"}
DESCRIPTIONS = [
    Template("statement", "very", describes(JUDGED - {"little", "delicious", "cheap"}), says("very", "sehr")),
    Template("statement", "too", describes(TOO), says("too", "zu")),
    Template("statement", "price of", SOLD, feature("the price of", "der Preis", "price"), 0.7),
    Template("statement", "color of", SOLD, feature("the color of", "die Farbe", "color"), 0.7),
    Template("statement", "owner", OWNERSHIP, owned("is", "ist", ".")),
    Template("question", "where owner", OWNERSHIP, owned("where is", "wo ist", "?"), 0.8),
    Template("question", "is it", describes(set(ADJECTIVES) - {"little"}), says("", "", "?")),
    Template("negation", "is not", describes(set(ADJECTIVES) - {"little"}), says("not", "nicht")),
    Template("question", "what today", ASKED, what("present", "today", "heute"), 0.4),
    Template("question", "what tomorrow", ASKED, what("will", "tomorrow", "morgen"), 0.4),
    Template("question", "what yesterday", HAPPENED, what("past", "yesterday", "gestern"), 0.4),
    Template("question", "what want", HAPPENED, what("want", "", ""), 0.4),
]
