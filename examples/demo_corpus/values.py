"""Dates, times, amounts, numbers and countries: the values of templates.tsv and their English and German forms.

Forms and names come from CLDR (through Babel); number words and the articles and prepositions of countries are ours.
"""

import datetime
from calendar import monthrange
from collections.abc import Callable, Sequence
from functools import partial

from babel import Locale
from babel.dates import format_date, format_time
from babel.numbers import format_currency
from babel.units import format_unit

from .grammar import join
from .number_words import english_words, german_words
from .tables import read_table
from .template import Pair, Pick

ENGLISH, GERMAN = Locale("en"), Locale("de")

DAYS = [f"{month}-{day}" for month in range(1, 13) for day in range(1, 1 + monthrange(2023, month)[1])]
HOURS = [f"{hour}:{minute:02}" for hour in range(6, 24) for minute in range(0, 60, 5)]
SMALL = [*range(2, 31), *range(35, 100, 5)]
HALVES = [number + 0.5 for number in range(1, 10)]
NUMBERS = [str(number) for number in (*range(2, 100), *range(100, 1000, 3), *range(1000, 10_000, 87))]
UNITS = {row["unit"]: row["cldr"] for row in read_table("units")}
COUNTRIES = {row["code"]: row for row in read_table("countries")}  # patterns for the name of a country
DATIVE = {"Tage": "Tagen", "Monate": "Monaten", "Jahre": "Jahren"}
# From ten; not 101, 201 ...: before a noun their "eins" would become an inflected "ein".
COUNTABLE = [number for number in NUMBERS if int(number) >= 10 and int(number) % 100 != 1]

VALUES: dict[str, Sequence[str]] = {
    "days": DAYS,
    "hours": HOURS,
    "mornings": HOURS[: HOURS.index("12:00")],
    "afternoons": HOURS[HOURS.index("12:00") :],
    "from ten": HOURS[HOURS.index("10:00") :],
    "amounts": [f"{unit} {n}{cents}" for unit in ("EUR", "USD", "GBP") for n in SMALL for cents in ("", ".50", ".99")],
    "centimeters": [f"{n} cm" for n in range(80, 250, 10)],
    "kilometers": [f"{n} km" for n in (*SMALL, *HALVES)],
    "walks": [f"{n} km" for n in (*range(2, 31), *HALVES)],
    "kilograms": [f"{n} kg" for n in (*range(2, 11), *HALVES)],
    "grams": [f"{n} g" for n in range(50, 950, 50)],
    "liters": [f"{n} l" for n in (*range(2, 11), *HALVES)],
    "waits": [f"{n} min" for n in range(5, 60, 5)] + [f"{n} h" for n in range(2, 13)],
    "stays": [f"{n} {unit}" for unit, end in (("d", 13), ("week", 9), ("month", 12)) for n in range(2, end)],
    "ages": [f"{n} year" for n in range(2, 31)],
    "degrees": [f"{n} C" for n in range(2, 36)],
    "warm": [f"{n} C" for n in range(15, 36)],
    "numbers": NUMBERS,
    "hundreds": [number for number in COUNTABLE if int(number) < 1000],
    "thousands": COUNTABLE,
    "countries": list(COUNTRIES),
    "languages": "de en fr it es pl el pt no sv da hu ja zh tr nl uk ru ar".split(),
}


def date(value: str, pick: Pick, years: range, english: str = "long", german: str = "long") -> Pair:
    """english, german: CLDR's name or pattern of a date format."""
    month, day = map(int, value.split("-"))
    chosen = datetime.date(pick.of(years), month, day)
    return format_date(chosen, english, ENGLISH), format_date(chosen, german, GERMAN)


def time(value: str, pick: Pick) -> Pair:
    hour, minute = map(int, value.split(":"))
    chosen = datetime.time(hour, minute)
    # CLDR's short German time has two digits (09:30); running text has "um 9:30 Uhr".
    return format_time(chosen, "short", locale=ENGLISH), format_time(chosen, "H:mm", locale=GERMAN)


def money(value: str, pick: Pick) -> Pair:
    currency, amount = value.split()
    cents = "." in amount
    # None is CLDR's pattern; whole amounts are written without ".00", as in running text.
    left, right = (None, None) if cents else ("¤#,##0", "#,##0\u00a0¤")
    english = format_currency(amount, currency, left, locale=ENGLISH, currency_digits=cents)
    return english, format_currency(amount, currency, right, locale=GERMAN, currency_digits=cents)


def measure(value: str, pick: Pick, dative: bool = False) -> Pair:
    number, unit = value.split()
    exact = float(number) if "." in number else int(number)
    english, german = (format_unit(exact, UNITS[unit], "long", locale=locale) for locale in (ENGLISH, GERMAN))
    if dative:
        count, plural = german.split()
        german = f"{count} {DATIVE.get(plural, plural)}"
    return english, german


def country(value: str, pick: Pick, preposition: str = "") -> Pair:
    """preposition: English in, to, from or of; "" for the object of a verb."""
    patterns = COUNTRIES[value]
    english = patterns["english"].format(ENGLISH.territories[value])
    return join(preposition, english), patterns[preposition or "object"].format(GERMAN.territories[value])


ALL_YEARS, PAST_YEARS, COMING_YEARS = range(2000, 2030), range(2000, 2026), range(2026, 2030)
FORMS: dict[str, Callable[[str, Pick], Pair]] = {
    "long date": partial(date, years=ALL_YEARS),
    "full date": partial(date, years=ALL_YEARS, english="full", german="full"),
    "coming date": partial(date, years=COMING_YEARS),
    "past date": partial(date, years=PAST_YEARS),
    "weekday": partial(date, years=ALL_YEARS, english="EEEE, MMMM d", german="EEEE, 'dem' d. MMMM"),
    "time": time,
    "money": money,
    "measure": measure,
    "dative measure": partial(measure, dative=True),
    "words": lambda value, pick: (english_words(int(value)), german_words(int(value))),
    "language": lambda value, pick: (ENGLISH.languages[value], GERMAN.languages[value]),
    "country": country,
    **{f"{word} country": partial(country, preposition=word) for word in ("in", "to", "from", "of")},
}


def form(name: str, value: str, pick: Pick) -> Pair:
    """Return the English and German form of a value, with plain spaces instead of CLDR's no-break spaces."""
    english, german = (text.replace("\u00a0", " ").replace("\u202f", " ") for text in FORMS[name](value, pick))
    return english, german
