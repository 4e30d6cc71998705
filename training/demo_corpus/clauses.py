"""Fills frames with clauses: subjects, objects, recipients and places that suit a verb and its main noun.

A value is a verb and its main noun ("buy:apple"); subject, determiner, adjective and number vary freely.
"""

from collections.abc import Callable
from dataclasses import dataclass

from . import lexicon
from .grammar import Clause, Name, NounPhrase, Pronoun
from .lexicon import FLAGS, NAMES, OWN, PERSONS, PLACES, PLACES_OF, PRONOUNS, THINGS, VERBS
from .template import Pair, Pick, Template

Subject = NounPhrase | Name | Pronoun


@dataclass(frozen=True)
class Frame:
    """A template: what it accepts (by verb flags), which objects it wants, and both sentences."""

    kind: str
    name: str
    accepts: Callable[[str], bool]  # the English base form of the verb
    make: Callable[[Clause, Pick], Pair]
    objects: str = "any"  # any; indefinite; uncounted (negated clauses: "not two apples" is no kein)
    place: bool = False  # adds a place to a verb with an object
    avoids: tuple[str, ...] = ()  # pronouns that make an odd subject


def noun_phrase(entry: lexicon.Entry, determiner: str, plural: bool, pick: Pick, share: float) -> NounPhrase:
    """share: how often the noun has an adjective."""
    word = pick.of(entry.adjectives) if entry.adjectives and pick.chance(share) else None
    adjective = (word, lexicon.ADJECTIVES[word]) if word else None
    return NounPhrase(determiner, adjective, entry.noun, plural)


def person(pick: Pick, head: str, own: str = "") -> NounPhrase | Name:
    """One person (or `parents`). own: the possessive that belongs to the subject, if there is one."""
    if head in (name.name for name in NAMES):
        return Name(head)
    entry = PERSONS[head]
    plural = entry.noun.english_plural != "-" and pick.chance(0.15)
    determiner = own or pick.of(list(OWN.values())) if "kin" in entry.suits else pick.of(("the", "the", "this"))
    return noun_phrase(entry, determiner, plural, pick, 0.5)


def subject(pick: Pick, base: str, head: str = "") -> Subject:
    """Somebody who does what the verb says: no child sells cars or writes novels."""
    adult = "adult" in FLAGS[base] or (base == "write" and head in ("novel", "book"))
    draw = pick.random()
    if draw < 0.35:
        return pick.of(PRONOUNS)
    if draw < 0.5:
        return pick.of(NAMES)
    heads = [head for head in PERSONS if not (adult and head in lexicon.CHILDREN)]
    while True:
        who = person(pick, pick.of(heads))
        if not (adult and isinstance(who, NounPhrase) and who.adjective and who.adjective[0] == "little"):
            return who


def possessive_of(who: Subject, pick: Pick) -> str:
    """my, his ...: the subject's own; "" where English and German gender differ (the girl: her, sein)."""
    if isinstance(who, Pronoun):
        return OWN.get(who.word, "")
    if isinstance(who, Name):
        return "her" if who.name.endswith("a") else "his"
    return {"m": "his", "f": "her", "p": "their", "n": ""}[who.gender]


def thing(pick: Pick, base: str, head: str, who: Subject, objects: str) -> NounPhrase:
    """The object of a verb: a determiner and a number that suit both and the frame."""
    entry, flags = THINGS[head], FLAGS[base]
    own = "the" if base == "buy" or head in lexicon.PUBLIC else possessive_of(who, pick) or "the"
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


def clause(base: str, head: str, frame: Frame, pick: Pick) -> Clause:
    """A clause for a value. Its people are different ones."""
    verb, flags = VERBS[base], FLAGS[base]
    who = frame_subject(frame, pick, base, head)
    own = possessive_of(who, pick)
    if "at" in flags or "to" in flags:
        return Clause(who, verb, place=PLACES[head]["to" in flags])
    if "person" in flags:
        while same(who, head) or merges(who, head):
            who = frame_subject(frame, pick, base, head)
            own = possessive_of(who, pick)
        return Clause(who, verb, person(pick, head, own))
    place = PLACES[pick.of(PLACES_OF[base].split())][0] if frame.place else None
    if "give" in flags:
        recipient_head = pick.of([*PERSONS, *(name.name for name in NAMES)])
        while same(who, recipient_head) or merges(who, recipient_head):
            recipient_head = pick.of(list(PERSONS))
        return Clause(who, verb, thing(pick, base, head, who, frame.objects), person(pick, recipient_head, own))
    return Clause(who, verb, thing(pick, base, head, who, frame.objects), place=place)


def same(who: Subject, head: str) -> bool:
    return head == (who.name if isinstance(who, Name) else who.noun.english if isinstance(who, NounPhrase) else "")


def frame_subject(frame: Frame, pick: Pick, base: str, head: str) -> Subject:
    """Nobody asks what he does himself, or supposes it: "Am I reading?", "Perhaps I am reading." """
    while True:
        who = subject(pick, base, head)
        if not isinstance(who, Pronoun) or who.word not in frame.avoids:
            return who


def merges(who: Subject, head: str) -> bool:
    """A name after a noun would read as the noun's: "hilft sein Onkel Lukas?"."""
    return isinstance(who, NounPhrase) and head in (name.name for name in NAMES)


def values(frame: Frame) -> list[tuple[str, str]]:
    """Every (verb, noun) that the frame takes."""
    found = []
    for base, flags in FLAGS.items():
        if not frame.accepts(base):
            continue
        if "person" in flags:
            heads = [head for head, entry in PERSONS.items() if base != "know" or "kin" not in entry.suits]
            heads += [name.name for name in NAMES]
        elif "at" in flags or "to" in flags:
            heads = PLACES_OF[base].split()
        else:
            heads = [head for head, entry in THINGS.items() if base in entry.suits]
        # A verb with few nouns takes its turn about as often as one with many.
        found += [(base, head) for head in heads] * max(1, 8 // len(heads))
    return found


def template(frame: Frame) -> Template:
    def make(value: str, pick: Pick) -> Pair:
        base, head = value.split(":")
        return frame.make(clause(base, head, frame, pick), pick)

    return Template(frame.kind, frame.name, [f"{base}:{head}" for base, head in values(frame)], make)
