"""The grammar kinds of the corpus: every frame turns a clause into one English-German pair."""

from dataclasses import replace

from .clauses import Frame, template
from .grammar import BE, DEFINITE, SEIN, Clause, NounPhrase, Pronoun, column, join, sentence
from .lexicon import CHILDREN, FLAGS, PERSONS, PLACES_OF
from .template import Pair, Pick


def every(base: str) -> bool:
    return True


def active(base: str) -> bool:
    return "stative" not in FLAGS[base]


def explicable(base: str) -> bool:
    return base not in ("see", "find")


def happens(base: str) -> bool:
    return "past" in FLAGS[base]


def habit(base: str) -> bool:
    return "habit" in FLAGS[base]


def planned(base: str) -> bool:
    return active(base) or base == "need"


def with_place(base: str) -> bool:
    return base in PLACES_OF and not FLAGS[base] & {"at", "to"}


NONE = ("", "")


def statement(mode: str, adverb: Pair = NONE, front: Pair = NONE, end: Pair = NONE):
    """English and German adverbs: before the English main verb, before the clause, or at the English end."""

    def make(one: Clause, pick: Pick) -> Pair:
        left = one.english_statement(mode, adverb=adverb[0], front=front[0], end=end[0])
        right = one.german_statement(mode, adverb=adverb[1] or end[1], front=front[1])
        return sentence(left), sentence(right)

    return make


def question(mode: str, wh: Pair = NONE, end: Pair = NONE, negative: bool = False):
    def make(one: Clause, pick: Pick) -> Pair:
        left = one.english_question(mode, wh=wh[0], end=end[0], negative=negative)
        right = one.german_question(mode, wh=wh[1], adverb=end[1], negative=negative)
        return sentence(left, "?"), sentence(right, "?")

    return make


def denial(mode: str):
    def make(one: Clause, pick: Pick) -> Pair:
        left = one.english_statement(mode, negative=True)
        return sentence(left), sentence(one.german_statement(mode, negative=True))

    return make


def fronted(mode: str, english: str, german: str):
    return statement(mode, front=(english, german))


def ending(mode: str, english: str, german: str):
    return statement(mode, end=(english, german))


def who_question(one: Clause, pick: Pick) -> Pair:
    asked = replace(one, subject=Pronoun("who", "wer", "3s"))
    return sentence(asked.english_statement("present"), "?"), sentence(asked.german_statement("present"), "?")


def place_first(one: Clause, pick: Pick) -> Pair:
    assert one.place
    rest = replace(one, place=None)
    left = rest.english_statement("present", front=one.place.english)
    return sentence(left), sentence(rest.german_statement("present", front=one.place.german))


WEEKDAYS = [
    ("Mondays", "montags"),
    ("Tuesdays", "dienstags"),
    ("Wednesdays", "mittwochs"),
    ("Thursdays", "donnerstags"),
    ("Fridays", "freitags"),
    ("Saturdays", "samstags"),
    ("Sundays", "sonntags"),
]


def weekday_first(one: Clause, pick: Pick) -> Pair:
    day, tag = pick.of(WEEKDAYS)
    left = one.english_statement("simple", front=f"on {day}")
    return sentence(left), sentence(one.german_statement("simple", front=tag))


# Main clauses before a subordinate one. Their subjects are pronouns, so that no name is told twice.
THAT = [
    ("I know that", "ich weiß, dass"),
    ("I think that", "ich glaube, dass"),
    ("you know that", "du weißt, dass"),
    ("he says that", "er sagt, dass"),
    ("she believes that", "sie glaubt, dass"),
    ("we hope that", "wir hoffen, dass"),
    ("they say that", "sie sagen, dass"),
]
WHETHER = [
    ("I do not know whether", "ich weiß nicht, ob"),
    ("he is asking whether", "er fragt, ob"),
    ("she wants to know whether", "sie will wissen, ob"),
    ("they are asking whether", "sie fragen, ob"),
]
BECAUSE = [
    ("I am happy because", "ich bin glücklich, weil"),
    ("he is angry because", "er ist wütend, weil"),
    ("she is sad because", "sie ist traurig, weil"),
    ("we are waiting because", "wir warten, weil"),
    ("they are angry because", "sie sind wütend, weil"),
]
CONDITIONS = [
    ("when it rains", "wenn es regnet"),
    ("when the sun shines", "wenn die Sonne scheint"),
    ("when it is cold", "wenn es kalt ist"),
    ("when the weather is good", "wenn das Wetter gut ist"),
]
CONCESSIONS = [
    ("although it is raining", "obwohl es regnet"),
    ("although it is late", "obwohl es spät ist"),
    ("although the weather is good", "obwohl das Wetter gut ist"),
]


def after(mains: list[Pair], mode: str, end: Pair = NONE, negative: bool = False):
    def make(one: Clause, pick: Pick) -> Pair:
        # "I know that I ..." and "he says that he ..." would leave open whom the second pronoun means.
        fitting = [main for main in mains if main[0].split()[0] != one.subject.english()]
        english, german = pick.of(fitting)
        left = one.english_statement(mode, end=end[0], negative=negative)
        right = one.german_verb_last(mode, adverb=end[1], negative=negative)
        return sentence(f"{english} {left}"), sentence(f"{german} {right}")

    return make


def before(firsts: list[Pair], mode: str):
    """The subordinate clause comes first, so the main clause opens with its verb."""

    def make(one: Clause, pick: Pick) -> Pair:
        english, german = pick.of(firsts)
        left = f"{english}, {one.english_statement(mode)}"
        return sentence(left), sentence(one.german_statement(mode, front=f"{german},"))

    return make


PREDICATES = [("very tired", "sehr müde"), ("very friendly", "sehr freundlich"), ("very happy", "sehr glücklich")]


def relative(one: Clause, pick: Pick) -> Pair:
    """A relative clause; its subject is the relative pronoun, equal in form to the definite article."""
    heads = ["man", "woman", "waiter", "waitress"]
    if "adult" not in FLAGS[one.verb.english[0]]:
        heads += CHILDREN
    told = NounPhrase("the", None, PERSONS[pick.of(heads)].noun, pick.chance(0.2))
    inner = replace(one, subject=told)
    finite, rest = inner.english_verb("present")[2], inner.english_tail()
    english, german = pick.of(PREDICATES)
    left = join(told.english(), "who", finite, *rest, BE[told.person], english)
    pronoun = column(DEFINITE, "nom", told.gender)
    right = f"{told.german('nom')}, {inner.german_verb_last('present', subject=pronoun)}, {SEIN[told.person]} {german}"
    return sentence(left), sentence(right)


YESTERDAY, LAST_WEEK = ("yesterday", "gestern"), ("last week", "letzte Woche")

FRAMES = [
    Frame("statement", "present", every, statement("present")),
    Frame("statement", "often", habit, statement("simple", ("often", "oft")), "indefinite"),
    Frame("statement", "never", habit, statement("simple", ("never", "nie")), "indefinite"),
    Frame("statement", "place", with_place, statement("present"), "indefinite", True),
    Frame("question", "yes-no", every, question("present"), avoids=("I",)),
    Frame("question", "past", happens, question("past", end=YESTERDAY), avoids=("I",)),
    Frame("question", "why", explicable, question("present", ("why", "warum")), avoids=("I",)),
    Frame("question", "where", with_place, question("present", ("where", "wo")), avoids=("I",)),
    Frame("question", "who", every, who_question),
    Frame("question", "can", happens, question("can")),
    Frame("negation", "present", every, denial("present"), "uncounted"),
    Frame("negation", "past", happens, denial("past"), "uncounted"),
    Frame("negation", "cannot", happens, denial("can"), "uncounted"),
    Frame("negation", "want", happens, denial("want"), "uncounted"),
    Frame(
        "negation", "why", explicable, question("present", ("why", "warum"), negative=True), "uncounted", avoids=("I",)
    ),
    Frame("inversion", "today", planned, fronted("present", "today", "heute")),
    Frame("inversion", "now", active, fronted("present", "now", "jetzt")),
    Frame("inversion", "perhaps", every, fronted("present", "perhaps", "vielleicht"), avoids=("I", "we")),
    Frame("inversion", "tomorrow", planned, fronted("will", "tomorrow", "morgen")),
    Frame("inversion", "next week", planned, fronted("will", "next week", "nächste Woche")),
    Frame("inversion", "every day", habit, fronted("simple", "every day", "jeden Tag"), "indefinite"),
    Frame("inversion", "weekday", habit, weekday_first, "indefinite"),
    Frame("inversion", "yesterday", happens, fronted("past", *YESTERDAY)),
    Frame("inversion", "place", with_place, place_first, "any", True),
    Frame("subordinate", "that", every, after(THAT, "present")),
    Frame("subordinate", "that past", happens, after(THAT, "past", YESTERDAY)),
    Frame("subordinate", "that want", happens, after(THAT, "want")),
    Frame("subordinate", "whether", every, after(WHETHER, "present")),
    Frame("subordinate", "because", every, after(BECAUSE, "present")),
    Frame("subordinate", "when", habit, before(CONDITIONS, "simple"), "indefinite"),
    Frame("subordinate", "although", active, before(CONCESSIONS, "present")),
    Frame("subordinate", "relative", active, relative),
    Frame("perfect", "yesterday", happens, ending("past", *YESTERDAY)),
    Frame("perfect", "last week", happens, ending("past", *LAST_WEEK)),
    Frame("perfect", "this morning", happens, ending("past", "this morning", "heute Morgen")),
    Frame("perfect", "two days ago", happens, ending("past", "two days ago", "vor zwei Tagen")),
    Frame("perfect", "just", happens, statement("perfect", ("just", "gerade"))),
    Frame("perfect", "never", happens, statement("perfect", ("never", "noch nie")), "indefinite"),
    Frame("modal", "can", happens, statement("can")),
    Frame("modal", "must", happens, statement("must")),
    Frame("modal", "want", happens, statement("want")),
    Frame("modal", "should", happens, statement("should")),
    Frame("modal", "allowed", lambda base: active(base) and happens(base), statement("allowed")),
    Frame("modal", "would", happens, statement("would")),
    Frame("modal", "tomorrow", happens, ending("must", "tomorrow", "morgen")),
]


CLAUSES = [template(frame) for frame in FRAMES]
