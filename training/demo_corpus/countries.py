"""Countries and languages, named by CLDR (through Babel); which countries take an article is ours."""

from dataclasses import dataclass

from .clauses import subject
from .dates_and_times import ENGLISH, GERMAN
from .grammar import Clause, Place, Verb, sentence
from .template import Pair, Pick, Template

WITHOUT_ARTICLE = "DE AT FR IT ES PL GR PT NO SE DK HU CA JP CN IN BR MX EG IE".split()
FEMININE = "CH TR UA SK MN".split()  # die Schweiz: in der Schweiz, in die Schweiz, aus der Schweiz
PLURAL = ["NL"]  # die Niederlande: in den Niederlanden
COUNTRIES = [*WITHOUT_ARTICLE, *FEMININE, *PLURAL]
LANGUAGES = "de en fr it es pl el pt no sv da hu ja zh tr nl uk ru ar".split()


@dataclass(frozen=True)
class Country:
    code: str

    @property
    def english(self) -> str:
        name = ENGLISH.territories[self.code]
        return f"the {name}" if self.code in PLURAL else name

    def german(self, case: str) -> str:
        """With its article in a case, where it has one."""
        name = GERMAN.territories[self.code]
        if self.code in FEMININE:
            return {"acc": "die", "dat": "der", "gen": "der"}[case] + f" {name}"
        if self.code in PLURAL:
            return {"acc": f"die {name}", "dat": f"den {name}n", "gen": f"der {name}"}[case]
        return name

    @property
    def articled(self) -> bool:
        return self.code not in WITHOUT_ARTICLE


def where(value: str) -> Place:
    country = Country(value)
    return Place(value, f"in {country.english}", f"in {country.german('dat')}")


def where_to(value: str) -> Place:
    country = Country(value)
    return Place(value, f"to {country.english}", ("in " if country.articled else "nach ") + country.german("acc"))


def where_from(value: str) -> Place:
    country = Country(value)
    return Place(value, f"from {country.english}", f"aus {country.german('dat')}")


def known(value: str) -> Place:
    country = Country(value)
    return Place(value, country.english, country.german("acc"))


def language(value: str) -> Place:
    return Place(value, ENGLISH.languages[value], GERMAN.languages[value])


def told(verb: Verb, mode: str, place, end: Pair = ("", ""), question: bool = False):
    """Somebody does something in, to or from a country; `end`: an adverb, English last, German in the middle."""

    def make(value: str, pick: Pick) -> Pair:
        who = subject(pick, "visit")
        while question and who.english() == "I":
            who = subject(pick, "visit")
        one = Clause(who, verb, place=place(value))
        if question:
            return sentence(one.english_question(mode, end=end[0]), "?"), sentence(
                one.german_question(mode, adverb=end[1]), "?"
            )
        return sentence(one.english_statement(mode, end=end[0])), sentence(one.german_statement(mode, adverb=end[1]))

    return make


CAPITAL = [("very old", "sehr alt"), ("very big", "sehr groß"), ("very famous", "sehr berühmt"), ("beautiful", "schön")]


def capital_of(value: str, pick: Pick) -> Pair:
    country, (left, right) = Country(value), pick.of(CAPITAL)
    german = country.german("gen") if country.articled else f"von {country.german('gen')}"
    return sentence(f"the capital of {country.english} is {left}"), sentence(f"die Hauptstadt {german} ist {right}")


WEATHER = [
    ("it is very beautiful", "", "ist es sehr schön"),
    ("it is cold", " today", "ist es heute kalt"),
    ("it is warm", " today", "ist es heute warm"),
    ("it is raining", "", "regnet es"),
]


def weather(value: str, pick: Pick) -> Pair:
    place, (left, end, right) = where(value), pick.of(WEATHER)
    return sentence(f"{left} {place.english}{end}"), sentence(f"{place.german} {right}")


LIVE = Verb(
    ("live", "lives", "lived", "lived", "living"), "", "", ("leben", "lebe", "lebst", "lebt"), "gelebt", stative=True
)
WORK = Verb(
    ("work", "works", "worked", "worked", "working"),
    "",
    "",
    ("arbeiten", "arbeite", "arbeitest", "arbeitet"),
    "gearbeitet",
)
TRAVEL = Verb(
    ("travel", "travels", "traveled", "traveled", "traveling"),
    "",
    "",
    ("reisen", "reise", "reist", "reist"),
    "gereist",
    "sein",
)
FLY = Verb(
    ("fly", "flies", "flew", "flown", "flying"), "", "", ("fliegen", "fliege", "fliegst", "fliegt"), "geflogen", "sein"
)
COME = Verb(
    ("come", "comes", "came", "come", "coming"),
    "",
    "",
    ("kommen", "komme", "kommst", "kommt"),
    "gekommen",
    "sein",
    True,
)
RETURN = Verb(
    ("come", "comes", "came", "come", "coming"),
    "back",
    "zurück",
    ("kommen", "komme", "kommst", "kommt"),
    "zurückgekommen",
    "sein",
)
KNOW = Verb(
    ("know", "knows", "knew", "known", "knowing"),
    "",
    "",
    ("kennen", "kenne", "kennst", "kennt"),
    "gekannt",
    stative=True,
)
SPEAK = Verb(
    ("speak", "speaks", "spoke", "spoken", "speaking"),
    "",
    "",
    ("sprechen", "spreche", "sprichst", "spricht"),
    "gesprochen",
    stative=True,
)
LEARN = Verb(
    ("learn", "learns", "learned", "learned", "learning"), "", "", ("lernen", "lerne", "lernst", "lernt"), "gelernt"
)

LAST_YEAR, NEXT_YEAR = ("last year", "letztes Jahr"), ("next year", "nächstes Jahr")
COUNTRY_SENTENCES = [
    Template("country", "lives in", COUNTRIES, told(LIVE, "present", where)),
    Template("country", "does live in", COUNTRIES, told(LIVE, "present", where, question=True)),
    Template("country", "worked in", COUNTRIES, told(WORK, "past", where, LAST_YEAR)),
    Template("country", "wants to work in", COUNTRIES, told(WORK, "want", where)),
    Template("country", "is traveling to", COUNTRIES, told(TRAVEL, "present", where_to)),
    Template("country", "flew to", COUNTRIES, told(FLY, "past", where_to, LAST_YEAR)),
    Template("country", "wants to fly to", COUNTRIES, told(FLY, "want", where_to, NEXT_YEAR)),
    Template("country", "comes from", COUNTRIES, told(COME, "present", where_from)),
    Template("country", "does come from", COUNTRIES, told(COME, "present", where_from, question=True)),
    Template("country", "came back from", COUNTRIES, told(RETURN, "past", where_from, ("yesterday", "gestern"))),
    Template("country", "knows", COUNTRIES, told(KNOW, "present", known), 0.8),
    Template("country", "capital", COUNTRIES, capital_of, 0.5),
    Template("country", "weather", COUNTRIES, weather, 0.5),
    Template("country", "speaks", LANGUAGES, told(SPEAK, "present", language), 0.7),
    Template("country", "does speak", LANGUAGES, told(SPEAK, "present", language, question=True), 0.7),
    Template("country", "is learning", LANGUAGES, told(LEARN, "present", language), 0.7),
    Template("country", "wants to learn", LANGUAGES, told(LEARN, "want", language), 0.7),
]
