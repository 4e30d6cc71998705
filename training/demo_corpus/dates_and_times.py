"""Dates and times of day, in CLDR's forms (through Babel), alone and in sentences."""

import datetime

from babel import Locale
from babel.dates import format_date, format_time

from .clauses import person, subject
from .grammar import Clause, Place, Verb, sentence
from .template import Pair, Pick, Template

ENGLISH, GERMAN = Locale("en"), Locale("de")


def plain(text: str | None) -> str:
    """CLDR's no-break spaces as the plain ones that people type."""
    assert text
    return text.replace("\u00a0", " ").replace("\u202f", " ")


# --- dates -------------------------------------------------------------------------------------------

YEARS, PAST_YEARS, COMING_YEARS = range(2000, 2030), range(2000, 2026), range(2026, 2030)
EVENTS = [
    ("the concert", "das Konzert"),
    ("the wedding", "die Hochzeit"),
    ("the exhibition", "die Ausstellung"),
    ("the course", "der Kurs"),
    ("the meeting", "die Besprechung"),
    ("the festival", "das Festival"),
]
BEGINNINGS = [event for event in EVENTS if event[0] != "the wedding"]
DAYS = [f"{month}-{day}" for month in range(1, 13) for day in range(1, 32 if month in (1, 3, 5, 7, 8, 10, 12) else 31)]
DAYS = [day for day in DAYS if day not in ("2-29", "2-30")]


def date_of(value: str, pick: Pick, years: range = YEARS) -> datetime.date:
    month, day = map(int, value.split("-"))
    return datetime.date(pick.of(years), month, day)


def dated(english: str, german: str, pattern: Pair, years: range = YEARS, events: list[Pair] | None = None):
    """pattern: CLDR's name or pattern of a date, English and German."""

    def make(value: str, pick: Pick) -> Pair:
        day = date_of(value, pick, years)
        event = pick.of(events) if events else ("", "")
        left = english.format(format_date(day, pattern[0], ENGLISH), event[0])
        right = german.format(format_date(day, pattern[1], GERMAN), event[1])
        return capital(left), capital(right)

    return make


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def born(value: str, pick: Pick) -> Pair:
    head = pick.of(("sister", "brother", "son", "daughter", "Anna", "Maria", "Julia", "Peter", "Thomas", "Lukas"))
    who = person(pick, head)
    while who.person != "3s":
        who = person(pick, head)
    day = date_of(value, pick, PAST_YEARS)
    left = f"{who.english()} was born on {format_date(day, 'long', ENGLISH)}"
    return sentence(left), sentence(f"{who.german('nom')} wurde am {format_date(day, 'long', GERMAN)} geboren")


LONG, DAY = ("long", "long"), ("EEEE, MMMM d", "EEEE, 'dem' d. MMMM")
DATES = [
    Template("date", "long", DAYS, dated("{}", "{}", LONG)),
    Template("date", "full", DAYS, dated("{}", "{}", ("full", "full"))),
    Template("date", "today", DAYS, dated("today is {}.", "heute ist der {}.", LONG)),
    Template("date", "is on", DAYS, dated("{1} is on {0}.", "{1} ist am {0}.", LONG, COMING_YEARS, EVENTS)),
    Template(
        "date",
        "took place",
        DAYS,
        dated("{1} took place on {0}.", "{1} hat am {0} stattgefunden.", LONG, PAST_YEARS, EVENTS),
    ),
    Template("date", "begins", DAYS, dated("{1} begins on {0}.", "{1} beginnt am {0}.", DAY, YEARS, BEGINNINGS)),
    Template("date", "born", DAYS, born),
]

# --- times -------------------------------------------------------------------------------------------

HOURS = [f"{hour}:{minute:02}" for hour in range(6, 24) for minute in range(0, 60, 5)]
SHOPS = [("the museum", "das Museum"), ("the library", "die Bibliothek"), ("the shop", "der Laden")]
SHOWS = [("the film", "der Film"), ("the concert", "das Konzert"), ("the meeting", "die Besprechung")]
RIDES = [("the train", "der Zug"), ("the bus", "der Bus"), ("the ship", "das Schiff")]


def clock(value: str) -> Pair:
    hour, minute = map(int, value.split(":"))
    time = datetime.time(hour, minute)
    # CLDR's short German time has two digits (09:30); running text has "um 9:30 Uhr".
    return plain(format_time(time, "short", locale=ENGLISH)), plain(format_time(time, "H:mm", locale=GERMAN))


def timed(english: str, german: str, things: list[Pair]):
    def make(value: str, pick: Pick) -> Pair:
        thing, (left, right) = pick.of(things), clock(value)
        return capital(english.format(left, thing[0])), capital(german.format(right, thing[1]))

    return make


def timed_clause(verb: Verb, mode: str, question: bool = False):
    """Somebody does something at a time."""

    def make(value: str, pick: Pick) -> Pair:
        left, right = clock(value)
        who = subject(pick, "visit")
        while question and who.english() == "I":
            who = subject(pick, "visit")
        one = Clause(who, verb, place=Place("", f"at {left}", f"um {right} Uhr"))
        if question:
            return sentence(one.english_question(mode), "?"), sentence(one.german_question(mode), "?")
        return sentence(one.english_statement(mode)), sentence(one.german_statement(mode))

    return make


ARRIVE = Verb(
    ("arrive", "arrives", "arrived", "arrived", "arriving"),
    "",
    "an",
    ("kommen", "komme", "kommst", "kommt"),
    "angekommen",
    "sein",
)
LEAVE = Verb(
    ("leave", "leaves", "left", "left", "leaving"),
    "",
    "ab",
    ("fahren", "fahre", "fährst", "fährt"),
    "abgefahren",
    "sein",
)
NOTHING = [("", "")]
MORNING, AFTERNOON = HOURS[: HOURS.index("12:00")], HOURS[HOURS.index("12:00") :]
TIMES = [
    Template("time", "it is", HOURS, timed("it is {0}.", "es ist {0} Uhr.", NOTHING)),
    Template("time", "opens", MORNING, timed("{1} opens at {0}.", "{1} öffnet um {0} Uhr.", SHOPS)),
    Template("time", "closes", AFTERNOON, timed("{1} closes at {0}.", "{1} schließt um {0} Uhr.", SHOPS)),
    Template(
        "time", "begins", HOURS[HOURS.index("10:00") :], timed("{1} begins at {0}.", "{1} beginnt um {0} Uhr.", SHOWS)
    ),
    Template("time", "leaves", HOURS, timed("{1} leaves at {0}.", "{1} fährt um {0} Uhr ab.", RIDES)),
    Template("time", "arrives", HOURS, timed("{1} arrives at {0}.", "{1} kommt um {0} Uhr an.", RIDES)),
    Template("time", "left", HOURS, timed_clause(LEAVE, "past")),
    Template("time", "must leave", HOURS, timed_clause(LEAVE, "must")),
    Template("time", "is arriving", HOURS, timed_clause(ARRIVE, "present", question=True)),
]
