"""Numbers in words, 0 to 999,999, American English and German.

American: no "and" ("one hundred one"), as in the corpus's American dates and prices.
German: one closed word below a million (Duden), "einhundert" and "eintausend" in full.
"""

from .tables import read_table

ENGLISH = {int(row["number"]): row["english"] for row in read_table("numbers")}  # 0 to 20, and the tens
GERMAN = {int(row["number"]): row["german"] for row in read_table("numbers")}


def english_words(number: int) -> str:
    """Spell the number in English."""
    if number in ENGLISH:
        return ENGLISH[number]
    if number < 100:
        return f"{ENGLISH[number - number % 10]}-{ENGLISH[number % 10]}"
    size, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    count, rest = divmod(number, size)
    return f"{english_words(count)} {name}" + (f" {english_words(rest)}" if rest else "")


def german_words(number: int) -> str:
    """Spell the number in German as in counting (... hunderteins)."""
    if number in GERMAN:
        return GERMAN[number]
    if number < 100:
        return f"{german_prefix(number % 10)}und{GERMAN[number - number % 10]}"
    size, name = (100, "hundert") if number < 1000 else (1000, "tausend")
    count, rest = divmod(number, size)
    return german_prefix(count) + name + (german_words(rest) if rest else "")


def german_prefix(number: int) -> str:
    """Spell a German number before another part of the word, where a final "eins" loses its s: einundzwanzig."""
    words = german_words(number)
    return words[:-1] if words.endswith("eins") else words
