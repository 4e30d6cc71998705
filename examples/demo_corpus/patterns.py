"""Templates of the kinds that contain a value from `values.py`, read from data/templates.tsv, and four special ones.

In templates.tsv, {0} is the value in its `form` and {1} one of the `things` (a list of phrases.tsv, or "goods").
Without a `verb` the pattern is the sentence; with one it is a phrase in a clause with a random subject, and "goods" is
the object. `weight` is the template's share relative to the others of its kind.
"""

from dataclasses import replace

from .clauses import person, subject
from .grammar import BE, SEIN, Clause, NounPhrase, Place, sentence
from .lexicon import PHRASES, THINGS, VERBS
from .tables import read_table
from .template import Pair, Pick, Template
from .values import VALUES, form

Row = dict[str, str]
CHEAP = "hat cap shirt book novel bag ball flower cake map knife".split()  # up to 30
DEAR = "jacket coat sweater radio lamp picture chair table bicycle".split()
ADDENDS = [str(number) for number in range(2, 90)]
SIBLINGS = ("sister", "brother", "son", "daughter", "Anna", "Maria", "Julia", "Peter", "Thomas")


def fill(pattern: str, value: str, thing: str) -> str:
    return pattern.replace("{1}", thing).replace("{0}", value)


def goods(value: str, pick: Pick) -> NounPhrase:
    """Something that may plausibly cost the amount."""
    entry = THINGS[pick.of(CHEAP if float(value.split()[1]) < 31 else DEAR)]
    adjective = pick.of([word for word in entry.adjectives if word.dimension != "price"])
    shown = adjective if pick.chance(0.5) else None
    return NounPhrase(pick.of(("the", "the", "this")), shown, entry.noun)


def pattern_pair(row: Row, value: str, pick: Pick) -> Pair:
    left, right = form(row["form"], value, pick)
    thing = ("", "")
    if row["things"] == "goods":
        bought = goods(value, pick)
        thing = bought.english(), bought.german("nom")
    elif row["things"]:
        thing = pick.of(PHRASES[row["things"]])
    return sentence(fill(row["english"], left, thing[0]), ""), sentence(fill(row["german"], right, thing[1]), "")


def clause_pair(row: Row, value: str, pick: Pick) -> Pair:
    left, right = form(row["form"], value, pick)
    traded, asked = row["things"] == "goods", row["mark"] == "?"
    thing = pick.of(PHRASES[row["things"]]) if row["things"] and not traded else ("", "")
    phrase = Place(fill(row["english"], left, thing[0]), fill(row["german"], right, thing[1]))
    who = subject(pick, VERBS["sell" if traded else "visit"], avoid=("I",) if asked else ())
    one = Clause(who, VERBS[row["verb"]], goods(value, pick) if traded else None, place=phrase)
    english = one.english_question if asked else one.english_statement
    german = one.german_question if asked else one.german_statement
    left, right = english(row["mode"], end=row["adverb"]), german(row["mode"], adverb=row["german_adverb"])
    return sentence(left, row["mark"]), sentence(right, row["mark"])


def template(row: Row) -> Template:
    pair = clause_pair if row["verb"] else pattern_pair
    values, weight = VALUES[row["values"]], float(row["weight"] or 1)
    return Template(row["kind"], row["name"], values, lambda value, pick: pair(row, value, pick), weight)


def born(value: str, pick: Pick) -> Pair:
    head = pick.of((*SIBLINGS, "Lukas"))
    who = pick.until(lambda: person(pick, head), lambda who: who.person == "3s")
    left, right = form("past date", value, pick)
    return sentence(f"{who.english()} was born on {left}"), sentence(f"{who.german('nom')} wurde am {right} geboren")


def aged(value: str, pick: Pick) -> Pair:
    left, right = form("measure", value, pick)
    who = person(pick, pick.of(SIBLINGS))
    if isinstance(who, NounPhrase):
        who = replace(who, adjective=None)  # not: "my little sister is 29 years old"
    be, sein = BE[who.person], SEIN[who.person]
    return sentence(f"{who.english()} {be} {left} old"), sentence(f"{who.german('nom')} {sein} {right} alt")


def calculation(sign: str):
    """What is three plus four? The result of a difference is never negative."""

    def make(value: str, pick: Pick) -> Pair:
        drawn = pick.of(ADDENDS)
        terms = (value, drawn) if sign == "plus" else (str(int(value) + int(drawn)), value)
        (left, right), (english, german) = (form("words", term, pick) for term in terms)
        return f"What is {left} {sign} {english}?", f"Was ist {right} {sign} {german}?"

    return make


PATTERNS = [
    *map(template, read_table("templates")),
    Template("date", "born", VALUES["days"], born),
    Template("measure", "age", VALUES["ages"], aged),
    Template("number", "plus", ADDENDS, calculation("plus"), 0.8),
    Template("number", "minus", ADDENDS, calculation("minus"), 0.8),
]
