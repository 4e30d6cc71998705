"""Prices, measures and numbers: amounts in CLDR's forms (through Babel), and number words."""

from dataclasses import replace

from babel.numbers import format_currency
from babel.units import format_unit

from .clauses import person, subject
from .dates_and_times import BEGINNINGS, ENGLISH, GERMAN, plain
from .grammar import Clause, NounPhrase, Place, Verb, sentence
from .lexicon import ADJECTIVES, THINGS, VERBS
from .number_words import english_words, german_words
from .template import Pair, Pick, Template

# --- prices ------------------------------------------------------------------------------------------

SMALL = [*range(2, 31), *range(35, 100, 5)]
AMOUNTS = [
    f"{currency} {amount}{cents}"
    for currency in ("EUR", "USD", "GBP")
    for amount in SMALL
    for cents in ("", ".50", ".99")
]
CHEAP = "hat cap shirt book novel bag ball flower cake map knife".split()  # up to 30
DEAR = "jacket coat sweater radio lamp picture chair table bicycle".split()


def money(value: str) -> Pair:
    currency, amount = value.split()
    if "." in amount:
        return plain(format_currency(amount, currency, locale=ENGLISH)), plain(
            format_currency(amount, currency, locale=GERMAN)
        )
    # Whole amounts without ".00", as running text has them.
    left = format_currency(amount, currency, "¤#,##0", locale=ENGLISH, currency_digits=False)
    right = format_currency(amount, currency, "#,##0\u00a0¤", locale=GERMAN, currency_digits=False)
    return plain(left), plain(right)


def goods(value: str, pick: Pick) -> NounPhrase:
    """Something that may well cost as much."""
    entry = THINGS[pick.of(CHEAP if float(value.split()[1]) < 31 else DEAR)]
    word = pick.of([word for word in entry.adjectives if word not in ("expensive", "cheap")])
    adjective = (word, ADJECTIVES[word]) if pick.chance(0.5) else None
    return NounPhrase(pick.of(("the", "the", "this")), adjective, entry.noun)


def priced(english: str, german: str):
    def make(value: str, pick: Pick) -> Pair:
        (left, right), thing = money(value), goods(value, pick)
        return sentence(english.format(left, thing.english())), sentence(german.format(right, thing.german("nom")))

    return make


def traded(base: str, mode: str, end: Pair = ("", "")):
    """Somebody bought or sold something for an amount."""

    def make(value: str, pick: Pick) -> Pair:
        left, right = money(value)
        price = Place("", f"for {left}", f"für {right}")
        one = Clause(subject(pick, "sell"), VERBS[base], goods(value, pick), place=price)
        return sentence(one.english_statement(mode, end=end[0])), sentence(one.german_statement(mode, adverb=end[1]))

    return make


PRICES = [
    Template("price", "costs", AMOUNTS, priced("{1} costs {0}", "{1} kostet {0}"), 2),
    Template("price", "only", AMOUNTS, priced("{1} costs only {0}", "{1} kostet nur {0}")),
    Template("price", "bought", AMOUNTS, traded("buy", "past", ("yesterday", "gestern"))),
    Template("price", "sold", AMOUNTS, traded("sell", "past")),
    Template("price", "wants to sell", AMOUNTS, traded("sell", "want")),
]

# --- measures ----------------------------------------------------------------------------------------

UNITS = {
    "cm": "length-centimeter",
    "km": "length-kilometer",
    "kg": "mass-kilogram",
    "g": "mass-gram",
    "l": "volume-liter",
    "min": "duration-minute",
    "h": "duration-hour",
    "d": "duration-day",
    "week": "duration-week",
    "month": "duration-month",
    "year": "duration-year",
    "C": "temperature-celsius",
}
DATIVE = {"Tage": "Tagen", "Monate": "Monaten", "Jahre": "Jahren"}


def quantities(unit: str, *numbers: float) -> list[str]:
    return [f"{number} {unit}" for number in numbers]


HALVES = [number + 0.5 for number in range(1, 10)]
CENTIMETERS = quantities("cm", *range(80, 250, 10))
KILOMETERS = quantities("km", *SMALL, *HALVES)
WALKS = quantities("km", *range(2, 31), *HALVES)
KILOGRAMS = quantities("kg", *range(2, 11), *HALVES)
GRAMS = quantities("g", *range(50, 950, 50))
LITERS = quantities("l", *range(2, 11), *HALVES)
AGES = quantities("year", *range(2, 31))
DEGREES = quantities("C", *range(2, 36))
WARM = DEGREES[13:]
WAITS = quantities("min", *range(5, 60, 5)) + quantities("h", *range(2, 13))
STAYS = quantities("d", *range(2, 13)) + quantities("week", *range(2, 9)) + quantities("month", *range(2, 12))

FURNITURE = [("the table", "der Tisch"), ("the bed", "das Bett"), ("the sofa", "das Sofa")]
FAR = [
    ("the station", "der Bahnhof"),
    ("the market", "der Markt"),
    ("the castle", "das Schloss"),
    ("the church", "die Kirche"),
]
TRIPS = [("the trip", "die Reise"), ("the drive", "die Fahrt"), ("the flight", "der Flug"), ("the visit", "der Besuch")]
LOADS = [("the bag", "die Tasche"), ("the cat", "die Katze"), ("the dog", "der Hund"), ("the computer", "der Computer")]
FRUITS = [("apples", "Äpfel"), ("pears", "Birnen"), ("tomatoes", "Tomaten"), ("bananas", "Bananen")]
POWDERS = [("sugar", "Zucker"), ("flour", "Mehl"), ("butter", "Butter"), ("cheese", "Käse")]
DRINKS = [("water", "Wasser"), ("milk", "Milch"), ("juice", "Saft"), ("lemonade", "Limonade")]


def measured(value: str) -> Pair:
    number, unit = value.split()
    exact = float(number) if "." in number else int(number)
    return plain(format_unit(exact, UNITS[unit], "long", locale=ENGLISH)), plain(
        format_unit(exact, UNITS[unit], "long", locale=GERMAN)
    )


def dative(measure: str) -> str:
    number, unit = measure.split()
    return f"{number} {DATIVE.get(unit, unit)}"


def of_things(english: str, german: str, things: list[Pair], in_dative: bool = False):
    """{0} is the measure, {1} the thing."""

    def make(value: str, pick: Pick) -> Pair:
        (left, right), thing = measured(value), pick.of(things)
        right = dative(right) if in_dative else right
        return sentence(english.format(left, thing[0])), sentence(german.format(right, thing[1]))

    return make


def by_person(verb: Verb, mode: str, english: str = "{0}", german: str = "{0}", goods: list[Pair] | None = None):
    """Somebody does something a measure long, or to a measure of goods. German "vor {0}" needs the dative."""

    def make(value: str, pick: Pick) -> Pair:
        left, right = measured(value)
        thing = pick.of(goods) if goods else ("", "")
        right = dative(right) if german.startswith("vor") else right
        measure = Place("", english.format(left, thing[0]), german.format(right, thing[1]))
        one = Clause(subject(pick, "visit"), verb, place=measure)
        return sentence(one.english_statement(mode)), sentence(one.german_statement(mode))

    return make


SIBLINGS = ("sister", "brother", "son", "daughter", "Anna", "Maria", "Julia", "Peter", "Thomas")


def aged(value: str, pick: Pick) -> Pair:
    left, right = measured(value)
    who = person(pick, pick.of(SIBLINGS))
    if isinstance(who, NounPhrase):
        who = replace(who, adjective=None)  # not: "my little sister is 29 years old"
    be, sein = ("is", "ist") if who.person == "3s" else ("are", "sind")
    return sentence(f"{who.english()} {be} {left} old"), sentence(f"{who.german('nom')} {sein} {right} alt")


WALK = Verb(
    ("walk", "walks", "walked", "walked", "walking"), "", "", ("gehen", "gehe", "gehst", "geht"), "gegangen", "sein"
)
STAY = Verb(
    ("stay", "stays", "stayed", "stayed", "staying"),
    "",
    "",
    ("bleiben", "bleibe", "bleibst", "bleibt"),
    "geblieben",
    "sein",
)
ARRIVED = Verb(
    ("arrive", "arrives", "arrived", "arrived", "arriving"),
    "",
    "an",
    ("kommen", "komme", "kommst", "kommt"),
    "angekommen",
    "sein",
)
OF = ("{0} of {1}", "{0} {1}")
NOTHING = [("", "")]

MEASURES = [
    Template("measure", "long", CENTIMETERS, of_things("{1} is {0} long", "{1} ist {0} lang", FURNITURE), 0.5),
    Template("measure", "wide", CENTIMETERS, of_things("{1} is {0} wide", "{1} ist {0} breit", FURNITURE), 0.5),
    Template("measure", "away", KILOMETERS, of_things("{1} is {0} away", "{1} ist {0} entfernt", FAR)),
    Template("measure", "walked", WALKS, by_person(WALK, "past")),
    Template("measure", "must walk", WALKS, by_person(WALK, "must")),
    Template("measure", "weighs", KILOGRAMS, of_things("{1} weighs {0}", "{1} wiegt {0}", LOADS), 0.7),
    Template("measure", "kilos", KILOGRAMS, by_person(VERBS["buy"], "present", *OF, FRUITS)),
    Template("measure", "needs grams", GRAMS, by_person(VERBS["need"], "present", *OF, POWDERS)),
    Template("measure", "buys grams", GRAMS, by_person(VERBS["buy"], "present", *OF, POWDERS)),
    Template("measure", "needs liters", LITERS, by_person(VERBS["need"], "present", *OF, DRINKS)),
    Template("measure", "buys liters", LITERS, by_person(VERBS["buy"], "present", *OF, DRINKS)),
    Template("measure", "takes", WAITS, of_things("{1} takes {0}", "{1} dauert {0}", TRIPS), 0.7),
    Template("measure", "must wait", WAITS, by_person(VERBS["wait"], "must", "for {0}")),
    Template("measure", "slept", WAITS, by_person(VERBS["sleep"], "past", "for {0}")),
    Template("measure", "stays", STAYS, by_person(STAY, "present", "for {0}")),
    Template(
        "measure", "begins in", STAYS, of_things("{1} begins in {0}", "{1} beginnt in {0}", BEGINNINGS, True), 0.7
    ),
    Template("measure", "ago", STAYS, by_person(ARRIVED, "past", "{0} ago", "vor {0}")),
    Template("measure", "age", AGES, aged),
    Template("measure", "today", DEGREES, of_things("it is {0} today", "heute sind es {0}", NOTHING), 0.3),
    Template("measure", "yesterday", DEGREES, of_things("it was {0} yesterday", "gestern waren es {0}", NOTHING), 0.3),
    Template("measure", "water", WARM, of_things("the water is {0} warm", "das Wasser ist {0} warm", NOTHING), 0.3),
]

# --- numbers in words --------------------------------------------------------------------------------

NUMBERS = [str(number) for number in (*range(2, 100), *range(100, 1000, 3), *range(1000, 10_000, 87))]
ADDENDS = [str(number) for number in range(2, 90)]
COUNTED = [
    ("the hotel has {} rooms", "das Hotel hat {} Zimmer", 1000),
    ("the book has {} pages", "das Buch hat {} Seiten", 1000),
    ("the village has {} houses", "das Dorf hat {} Häuser", 10_000),
    ("the museum has {} pictures", "das Museum hat {} Bilder", 10_000),
]


def number_is(value: str, pick: Pick) -> Pair:
    number = int(value)
    return f"The number is {english_words(number)}.", f"Die Zahl ist {german_words(number)}."


def counts_to(value: str, pick: Pick) -> Pair:
    number = int(value)
    goal = Place("", f"to {english_words(number)}", f"bis {german_words(number)}")
    one = Clause(subject(pick, "visit"), COUNT, place=goal)
    return sentence(one.english_statement("want")), sentence(one.german_statement("want"))


def counted(english: str, german: str):
    def make(value: str, pick: Pick) -> Pair:
        number = int(value)
        return sentence(english.format(english_words(number))), sentence(german.format(german_words(number)))

    return make


def sum_question(value: str, pick: Pick) -> Pair:
    return calculation(int(value), "plus", int(pick.of(ADDENDS)))


def difference_question(value: str, pick: Pick) -> Pair:
    """Never below zero."""
    second = int(value)
    return calculation(second + int(pick.of(ADDENDS)), "minus", second)


def calculation(first: int, sign: str, second: int) -> Pair:
    return (
        f"What is {english_words(first)} {sign} {english_words(second)}?",
        f"Was ist {german_words(first)} {sign} {german_words(second)}?",
    )


def countable(limit: int) -> list[str]:
    """Ten and more; not 101, 201 ...: before a noun their "eins" would be an inflected "ein"."""
    return [number for number in NUMBERS if 10 <= int(number) < limit and int(number) % 100 != 1]


COUNT = Verb(
    ("count", "counts", "counted", "counted", "counting"), "", "", ("zählen", "zähle", "zählst", "zählt"), "gezählt"
)
COUNTS = [
    Template("number", "the number is", NUMBERS, number_is, 1.5),
    Template("number", "counts to", NUMBERS, counts_to),
    *(Template("number", english, countable(limit), counted(english, german)) for english, german, limit in COUNTED),
    Template("number", "plus", ADDENDS, sum_question, 0.8),
    Template("number", "minus", ADDENDS, difference_question, 0.8),
]
