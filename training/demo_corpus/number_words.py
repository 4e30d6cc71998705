"""Numbers in words, 0 to 999,999, American English and German.

American: no "and" ("one hundred one"), as in the American dates and prices of the corpus.
German: one closed word below a million (Duden), "einhundert" and "eintausend" in full.
"""

LIMIT = 999_999

ENGLISH_SMALL = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
ENGLISH_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
GERMAN_SMALL = (
    "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn "
    "siebzehn achtzehn neunzehn"
).split()
GERMAN_TENS = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()


def english_words(number: int) -> str:
    """The number in English words; ValueError outside 0 to LIMIT."""
    check_range(number)
    if number < 20:
        return ENGLISH_SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return ENGLISH_TENS[tens - 2] + (f"-{ENGLISH_SMALL[ones]}" if ones else "")
    size, name = (100, "hundred") if number < 1000 else (1000, "thousand")
    count, rest = divmod(number, size)
    return f"{english_words(count)} {name}" + (f" {english_words(rest)}" if rest else "")


def german_words(number: int) -> str:
    """The number in German words, as one counts (... hunderteins); ValueError outside 0 to LIMIT."""
    check_range(number)
    if number < 20:
        return GERMAN_SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return (german_prefix(ones) + "und" if ones else "") + GERMAN_TENS[tens - 2]
    size, name = (100, "hundert") if number < 1000 else (1000, "tausend")
    count, rest = divmod(number, size)
    return german_prefix(count) + name + (german_words(rest) if rest else "")


def german_prefix(number: int) -> str:
    """A German number before another part of the word, where a final "eins" loses its s: einundzwanzig."""
    words = german_words(number)
    return words[:-1] if words.endswith("eins") else words


def check_range(number: int) -> None:
    if not 0 <= number <= LIMIT:
        raise ValueError(f"number {number} is outside 0 to {LIMIT}")
