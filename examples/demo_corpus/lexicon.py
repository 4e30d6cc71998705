"""The vocabulary of the corpus, read from data/*.tsv: which verb takes which nouns, which noun which adjectives.

Every English word has one translation, so that the source determines the translation. For that reason "you" is always
"du", "fish" is always singular, and nouns whose German gender depends on the person (teacher, friend) are left out.

Flags in verbs.tsv: stative (no progressive); habit (done often or every day); adult (not by children); past (has a
natural past, perfect and modals; states have none); person (its object is a person), dative (in the dative); give
(recipient and thing); at, to (a place or a direction instead of an object); one (no plural objects); like (one likes
apples or the apple, not an apple); the, a (only objects with that article); placed (may have a place beside an object);
perceive (no "why"); unplanned (not "tomorrow"); template (used by templates.tsv only).
"""

from dataclasses import dataclass

from .grammar import Adjective, Noun, Place, Verb, Word
from .tables import read_table

NAMES = [Word(name, name, "3s") for name in ("Anna", "Maria", "Julia", "Peter", "Thomas", "Lukas")]
CHILDREN = ("child", "girl", "boy")
PUBLIC = ("church", "bridge", "tower", "castle")  # never with a possessive


@dataclass(frozen=True)
class Entry:
    """A noun with the verbs and adjectives that suit it. kin: a relative, who needs a possessive."""

    noun: Noun
    verbs: frozenset[str]
    adjectives: tuple[Adjective, ...]
    kin: bool


def verb(row: dict[str, str]) -> Verb:
    english, german, places = (tuple(row[column].split()) for column in ("english", "german", "places"))
    flags = frozenset(row["flags"].split())
    return Verb(english, row["particle"], german, row["prefix"], row["participle"], row["auxiliary"], flags, places)


def entry(row: dict[str, str]) -> Entry:
    forms = [row[column] for column in ("english", "plural", "german", "gender", "german_plural", "genitive")]
    verbs = frozenset(row.get("verbs", "").split())
    noun = Noun(*forms, weak=row["german"] == "Junge", mass="drink" in verbs)
    adjectives = tuple(ADJECTIVES[word] for word in row["adjectives"].split())
    return Entry(noun, verbs, adjectives, row.get("relation") == "kin")


PRONOUNS = [Word(row["english"], row["german"], row["person"]) for row in read_table("pronouns")]
OWN = {row["english"]: row["possessive"] for row in read_table("pronouns")}
ADJECTIVES = {row["english"]: Adjective(**row) for row in read_table("adjectives")}
VERBS = {row["verb"]: verb(row) for row in read_table("verbs")}
THINGS = {row["english"]: entry(row) for row in read_table("things")}
PERSONS = {row["english"]: entry(row) for row in read_table("persons")}
PLACES = {  # name: where (in the garden), where to (into the garden)
    row["name"]: (Place(row["at"], row["german_at"]), Place(row["to"], row["german_to"]))
    for row in read_table("places")
}
PHRASES: dict[str, list[tuple[str, str]]] = {}  # English and German, by the name of their list
for row in read_table("phrases"):
    PHRASES.setdefault(row["list"], []).append((row["english"], row["german"]))
