"""Templates of the grammar kinds, read from data/frames.tsv: each turns a clause into an English-German pair.

Columns of frames.tsv: `verbs` lists flags that a verb must have, or with "-" must not have; `sentence` is a key of
SENTENCES, after "not" if negated; `mode` is tense or modal; `english` and `german` are an adverb or question word that
goes into the `slot`; `list` names phrases to choose from: adverbs for the slot, main clauses before a subordinate one,
or predicates after a relative one. `objects`, `place` and `avoid` are described in `clauses.clause`.
"""

from collections.abc import Callable
from dataclasses import replace

from .clauses import clause, clause_values
from .grammar import BE, ENDINGS, SEIN, Clause, NounPhrase, Verb, Word, join, sentence
from .lexicon import CHILDREN, PERSONS, PHRASES, VERBS
from .tables import read_table
from .template import Pair, Pick, Template

Row = dict[str, str]


def accepts(verb: Verb, flags: list[str]) -> bool:
    return all((flag.lstrip("-") in verb.flags) != flag.startswith("-") for flag in flags)


def statement(one: Clause, row: Row, pick: Pick) -> Pair:
    """The slot is "front" (before the clause), "adverb" (before the English main verb) or "end"."""
    english, german = pick.of(PHRASES[row["list"]]) if row["list"] else (row["english"], row["german"])
    negative = row["sentence"].startswith("not")
    left = one.english_statement(row["mode"], negative=negative, **{row["slot"] or "end": english})
    slot = "front" if row["slot"] == "front" else "adverb"
    return sentence(left), sentence(one.german_statement(row["mode"], negative=negative, **{slot: german}))


def question(one: Clause, row: Row, pick: Pick) -> Pair:
    """The slot is "wh" (a question word) or "end"."""
    negative = row["sentence"].startswith("not")
    left = one.english_question(row["mode"], negative=negative, **{row["slot"] or "end": row["english"]})
    slot = "wh" if row["slot"] == "wh" else "adverb"
    right = one.german_question(row["mode"], negative=negative, **{slot: row["german"]})
    return sentence(left, "?"), sentence(right, "?")


def who_question(one: Clause, row: Row, pick: Pick) -> Pair:
    asked = replace(one, subject=Word("who", "wer", "3s"))
    return sentence(asked.english_statement(row["mode"]), "?"), sentence(asked.german_statement(row["mode"]), "?")


def place_first(one: Clause, row: Row, pick: Pick) -> Pair:
    assert one.place
    front = {"slot": "front", "english": one.place.english, "german": one.place.german}
    return statement(replace(one, place=None), row | front, pick)


def subordinate(one: Clause, row: Row, pick: Pick) -> Pair:
    # "I know that I ..." is odd, and in "he says that he ..." the second pronoun is ambiguous.
    mains = [main for main in PHRASES[row["list"]] if main[0].split()[0] != one.subject.english()]
    english, german = pick.of(mains)
    left = one.english_statement(row["mode"], end=row["english"])
    right = one.german_verb_last(row["mode"], adverb=row["german"])
    return sentence(f"{english} {left}"), sentence(f"{german} {right}")


def relative(one: Clause, row: Row, pick: Pick) -> Pair:
    """The relative pronoun is the subject and has the form of the definite article."""
    heads = ["man", "woman", "waiter", "waitress"] + ([] if "adult" in one.verb.flags else [*CHILDREN])
    told = NounPhrase("the", None, PERSONS[pick.of(heads)].noun, pick.chance(0.2))
    inner = replace(one, subject=told)
    finite = inner.english_verb(row["mode"])[2]
    english, german = pick.of(PHRASES[row["list"]])
    left = join(told.english(), "who", finite, *inner.english_tail(), BE[told.person], english)
    last = inner.german_verb_last(row["mode"], subject=ENDINGS["the", "nom"][told.gender])
    return sentence(left), sentence(f"{told.german('nom')}, {last}, {SEIN[told.person]} {german}")


SENTENCES: dict[str, Callable[[Clause, Row, Pick], Pair]] = {
    "statement": statement,
    "question": question,
    "who question": who_question,
    "place first": place_first,
    "subordinate": subordinate,
    "relative": relative,
}


def template(row: Row) -> Template:
    bases = [base for base, verb in VERBS.items() if accepts(verb, ["-template", *row["verbs"].split()])]
    build = SENTENCES[row["sentence"].removeprefix("not ")]

    def make(value: str, pick: Pick) -> Pair:
        avoid = tuple(row["avoid"].split())
        return build(clause(value, row["objects"], bool(row["place"]), avoid, pick), row, pick)

    return Template(row["kind"], row["name"], clause_values(bases), make)


CLAUSES = [template(row) for row in read_table("frames")]
