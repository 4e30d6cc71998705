"""Fill clauses with subjects, objects, recipients and places that suit the verb and its main noun.

A value is a verb and its main noun ("buy:apple"); subject, determiner, adjective and number are random.
"""

from .grammar import Clause, NounPhrase, Verb, Word
from .lexicon import CHILDREN, NAMES, OWN, PERSONS, PLACES, PRONOUNS, PUBLIC, THINGS, VERBS, Entry
from .template import Pick

Phrase = NounPhrase | Word
NAME_WORDS = [name.word for name in NAMES]


def noun_phrase(entry: Entry, determiner: str, plural: bool, pick: Pick, share: float) -> NounPhrase:
    """share: the probability of an adjective."""
    adjective = pick.of(entry.adjectives) if entry.adjectives and pick.chance(share) else None
    return NounPhrase(determiner, adjective, entry.noun, plural)


def person(pick: Pick, head: str, own: str = "") -> Phrase:
    """Build a phrase for a person. own: the possessive that refers to the subject, if there is one."""
    if head in NAME_WORDS:
        return NAMES[NAME_WORDS.index(head)]
    entry = PERSONS[head]
    plural = entry.noun.english_plural != "-" and pick.chance(0.15)
    determiner = (own or pick.of(list(OWN.values()))) if entry.kin else pick.of(("the", "the", "this"))
    return noun_phrase(entry, determiner, plural, pick, 0.5)


def subject(pick: Pick, verb: Verb, head: str = "", avoid: tuple[str, ...] = ()) -> Phrase:
    """Choose a plausible subject: no child sells cars or writes novels. avoid: pronouns that would sound odd."""
    adult = "adult" in verb.flags or (verb.english[0] == "write" and head in ("novel", "book"))
    heads = [head for head in PERSONS if not (adult and head in CHILDREN)]

    def is_plausible(who: Phrase) -> bool:
        return not (adult and isinstance(who, NounPhrase) and who.adjective and who.adjective.english == "little")

    def draw() -> Phrase:
        kind = pick.random()
        if kind < 0.5:
            return pick.of(PRONOUNS if kind < 0.35 else NAMES)
        return pick.until(lambda: person(pick, pick.of(heads)), is_plausible)

    return pick.until(draw, lambda who: isinstance(who, NounPhrase) or who.word not in avoid)


def possessive_of(who: Phrase) -> str:
    """Return the subject's possessive, or "" where English and German gender differ (the girl: her, sein)."""
    if isinstance(who, Word):
        return OWN.get(who.word) or ("her" if who.word.endswith("a") else "his")
    return {"m": "his", "f": "her", "p": "their", "n": ""}[who.gender]


def thing(pick: Pick, verb: Verb, head: str, own: str, objects: str) -> NounPhrase:
    """Build the object of a verb with a determiner and a number that suit both. objects: see `clause`."""
    entry, flags, base = THINGS[head], verb.flags, verb.english[0]
    own = "the" if base == "buy" or head in PUBLIC else own or "the"
    if entry.noun.mass:
        determiner = "" if objects == "indefinite" or base != "drink" or pick.chance(0.7) else "the"
        return noun_phrase(entry, determiner, False, pick, 0.7)
    plural = "one" not in flags and entry.noun.english_plural != "-" and pick.chance(0.25)
    if "a" in flags or objects == "indefinite":
        determiner = "" if plural else "a"
    elif "like" in flags:
        determiner = "" if plural else pick.of(("the", "this", own))
    elif "the" in flags:
        determiner = pick.of(("the", "the", "this", own))
    else:
        determiner = pick.of(("the", "the", "a", "a", "a", "this", own))
        if plural and determiner == "a":
            determiner = "" if objects == "uncounted" else pick.of(("", "", "two", "three", "four"))
    return noun_phrase(entry, determiner, plural, pick, 0.65)


def clause(value: str, objects: str, with_place: bool, avoid: tuple[str, ...], pick: Pick) -> Clause:
    """Build a clause for a value. No person occurs in it twice.

    objects: "", "indefinite" (objects only), or "uncounted" (no numerals: "not two apples" is no kein).
    with_place: add a place to a verb that has an object.
    """
    base, head = value.split(":")
    verb = VERBS[base]
    who = subject(pick, verb, head, avoid)
    if verb.flags & {"at", "to"}:
        return Clause(who, verb, place=PLACES[head]["to" in verb.flags])
    if "person" in verb.flags:
        while clashes(who, head):
            who = subject(pick, verb, head, avoid)
        return Clause(who, verb, person(pick, head, possessive_of(who)))
    own = possessive_of(who)
    place = PLACES[pick.of(verb.places)][0] if with_place else None
    if "give" in verb.flags:
        recipient = pick.of([*PERSONS, *NAME_WORDS])
        while clashes(who, recipient):
            recipient = pick.of(list(PERSONS))
        return Clause(who, verb, thing(pick, verb, head, own, objects), person(pick, recipient, own))
    return Clause(who, verb, thing(pick, verb, head, own, objects), place=place)


def clashes(who: Phrase, head: str) -> bool:
    """Whether `head` is the same person, or a name that would read as part of the subject ("sein Onkel Lukas")."""
    if isinstance(who, Word):
        return head == who.word
    return head == who.noun.english or head in NAME_WORDS


def clause_values(verbs: list[str]) -> list[str]:
    """List every combination of the verbs with a noun that suits them."""
    found: list[str] = []
    for base in verbs:
        verb = VERBS[base]
        if "person" in verb.flags:
            heads = [head for head, entry in PERSONS.items() if base != "know" or not entry.kin] + NAME_WORDS
        elif verb.flags & {"at", "to"}:
            heads = list(verb.places)
        else:
            heads = [head for head, entry in THINGS.items() if base in entry.verbs]
        # Repeat the values of a verb with few nouns, so that it occurs about as often as one with many.
        found += [f"{base}:{head}" for head in heads] * max(1, 8 // len(heads))
    return found
