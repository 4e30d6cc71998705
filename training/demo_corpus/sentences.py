"""The grammar kinds of the corpus: every frame (template) turns a clause into one English-German pair.

A value is what the frame is filled with, a verb and its main noun ("buy:apple"); subject, determiner,
adjective and number vary freely. The split holds out frames times values.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from . import lexicon
from .grammar import BE, DEFINITE, SEIN, Clause, Name, NounPhrase, Pronoun, Verb, column, join, sentence
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


# --- what fills a frame ------------------------------------------------------------------------------


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
    plural = "one" not in flags and pick.chance(0.25)
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
            heads = [*PERSONS, *(name.name for name in NAMES)]
        elif "at" in flags or "to" in flags:
            heads = PLACES_OF[base].split()
        else:
            heads = [head for head, entry in THINGS.items() if base in entry.suits]
        found += [(base, head) for head in heads]
    return found


# --- the frames --------------------------------------------------------------------------------------


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


def statement(mode: str, english: dict[str, str] | None = None, german: dict[str, str] | None = None):
    """english, german: keyword arguments of the two statements (adverb, front, end)."""

    def make(one: Clause, pick: Pick) -> Pair:
        left = one.english_statement(mode, **(english or {}))
        return sentence(left), sentence(one.german_statement(mode, **(german or {})))

    return make


def question(mode: str, wh: Pair = ("", ""), end: Pair = ("", ""), negative: bool = False):
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
    return statement(mode, {"front": english}, {"front": german})


def ending(mode: str, english: str, german: str):
    return statement(mode, {"end": english}, {"adverb": german})


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


def after(mains: list[Pair], mode: str, end: Pair = ("", ""), negative: bool = False):
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
    if "adult" not in one_flags(one.verb):
        heads += lexicon.CHILDREN
    told = NounPhrase("the", None, PERSONS[pick.of(heads)].noun, pick.chance(0.2))
    inner = replace(one, subject=told)
    finite, rest = inner.english_verb("present")[2], inner.english_tail()
    english, german = pick.of(PREDICATES)
    left = join(told.english(), "who", finite, *rest, BE[told.person], english)
    pronoun = column(DEFINITE, "nom", told.gender)
    right = f"{told.german('nom')}, {inner.german_verb_last('present', subject=pronoun)}, {SEIN[told.person]} {german}"
    return sentence(left), sentence(right)


def one_flags(verb: Verb) -> frozenset[str]:
    return FLAGS[verb.english[0]]


YESTERDAY, LAST_WEEK = ("yesterday", "gestern"), ("last week", "letzte Woche")

FRAMES = [
    Frame("statement", "present", every, statement("present")),
    Frame("statement", "often", habit, statement("simple", {"adverb": "often"}, {"adverb": "oft"}), "indefinite"),
    Frame("statement", "never", habit, statement("simple", {"adverb": "never"}, {"adverb": "nie"}), "indefinite"),
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
    Frame("negation", "why", explicable, question("present", ("why", "warum"), negative=True), "uncounted", avoids=("I",)),
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
    Frame("perfect", "just", happens, statement("perfect", {"adverb": "just"}, {"adverb": "gerade"})),
    Frame("perfect", "never", happens, statement("perfect", {"adverb": "never"}, {"adverb": "noch nie"}), "indefinite"),
    Frame("modal", "can", happens, statement("can")),
    Frame("modal", "must", happens, statement("must")),
    Frame("modal", "want", happens, statement("want")),
    Frame("modal", "should", happens, statement("should")),
    Frame("modal", "allowed", lambda base: active(base) and happens(base), statement("allowed")),
    Frame("modal", "would", happens, statement("would")),
    Frame("modal", "tomorrow", happens, ending("must", "tomorrow", "morgen")),
]


def template(frame: Frame) -> Template:
    def make(value: str, pick: Pick) -> Pair:
        base, head = value.split(":")
        return frame.make(clause(base, head, frame, pick), pick)

    return Template(frame.kind, frame.name, [f"{base}:{head}" for base, head in values(frame)], make)


CLAUSES = [template(frame) for frame in FRAMES]
