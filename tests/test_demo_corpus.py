"""The embedded corpus: its numbers, its German, its split. Expected forms are from grammar tables, written by hand."""

import re
import zlib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from examples.demo_corpus.clauses import noun_phrase
from examples.demo_corpus.generate import PAIRS, Example, compressed, examples, table
from examples.demo_corpus.grammar import Clause, Noun, NounPhrase
from examples.demo_corpus.lexicon import ADJECTIVES, PERSONS, PLACES, PRONOUNS, THINGS, VERBS
from examples.demo_corpus.number_words import english_words, german_words
from examples.demo_corpus.template import Pick
from examples.demo_corpus.values import form
from training.demo_corpus import PATH, SPLITS, load
from training.demo_corpus.__main__ import main


@cache
def corpus() -> list[Example]:
    return examples()


NUMBERS = {
    0: ("zero", "null"),
    7: ("seven", "sieben"),
    16: ("sixteen", "sechzehn"),
    21: ("twenty-one", "einundzwanzig"),
    77: ("seventy-seven", "siebenundsiebzig"),
    100: ("one hundred", "einhundert"),
    101: ("one hundred one", "einhunderteins"),
    1999: ("one thousand nine hundred ninety-nine", "eintausendneunhundertneunundneunzig"),
    7016: ("seven thousand sixteen", "siebentausendsechzehn"),
    101000: ("one hundred one thousand", "einhunderteintausend"),
}


@pytest.mark.parametrize(("number", "words"), NUMBERS.items())
def test_numbers_are_spelled_as_in_dictionaries(number, words):
    assert (english_words(number), german_words(number)) == words


def test_numbers_have_different_spellings():
    numbers = [*range(0, 2500), *range(2500, 999_999, 617)]
    assert len({english_words(number) for number in numbers}) == len(numbers)
    assert len({german_words(number) for number in numbers}) == len(numbers)


# The three declensions of any German grammar, for "alt": nominative, accusative, dative, genitive.
PARADIGMS = {
    ("the", "table", False): "der alte Tisch, den alten Tisch, dem alten Tisch, des alten Tisches",
    ("the", "bag", False): "die alte Tasche, die alte Tasche, der alten Tasche, der alten Tasche",
    ("the", "book", False): "das alte Buch, das alte Buch, dem alten Buch, des alten Buches",
    ("the", "book", True): "die alten Bücher, die alten Bücher, den alten Büchern, der alten Bücher",
    ("a", "table", False): "ein alter Tisch, einen alten Tisch, einem alten Tisch, eines alten Tisches",
    ("a", "book", False): "ein altes Buch, ein altes Buch, einem alten Buch, eines alten Buches",
    ("no", "table", False): "kein alter Tisch, keinen alten Tisch, keinem alten Tisch, keines alten Tisches",
    ("our", "bag", False): "unsere alte Tasche, unsere alte Tasche, unserer alten Tasche, unserer alten Tasche",
    ("this", "table", False): "dieser alte Tisch, diesen alten Tisch, diesem alten Tisch, dieses alten Tisches",
    ("this", "book", False): "dieses alte Buch, dieses alte Buch, diesem alten Buch, dieses alten Buches",
    ("", "book", False): "altes Buch, altes Buch, altem Buch, alten Buches",
    ("", "book", True): "alte Bücher, alte Bücher, alten Büchern, alter Bücher",
    ("the", "boy", False): "der alte Junge, den alten Jungen, dem alten Jungen, des alten Jungen",  # a weak noun
    ("two", "bag", True): "zwei alte Taschen, zwei alte Taschen, zwei alten Taschen, zwei alter Taschen",
}


@pytest.mark.parametrize(("phrase", "forms"), PARADIGMS.items())
def test_articles_adjectives_and_nouns_follow_the_declensions(phrase, forms):
    determiner, head, plural = phrase
    declined = NounPhrase(determiner, ADJECTIVES["old"], {**THINGS, **PERSONS}[head].noun, plural)
    assert [declined.german(case) for case in ("nom", "acc", "dat", "gen")] == forms.split(", ")


ENGLISH = {
    ("a", "", "apple", False): "an apple",
    ("a", "red", "apple", False): "a red apple",
    ("this", "", "knife", True): "these knives",
    ("three", "fresh", "tomato", True): "three fresh tomatoes",
    ("", "hot", "tea", False): "hot tea",
}


@pytest.mark.parametrize(("phrase", "english"), ENGLISH.items())
def test_english_articles_and_plurals(phrase, english):
    determiner, adjective, head, plural = phrase
    assert NounPhrase(determiner, ADJECTIVES.get(adjective), THINGS[head].noun, plural).english() == english


MAN = NounPhrase("the", ADJECTIVES["old"], PERSONS["man"].noun)
CHILDREN = NounPhrase("the", None, PERSONS["child"].noun, True)
SISTER = NounPhrase("my", None, PERSONS["sister"].noun)
APPLE = NounPhrase("a", ADJECTIVES["red"], THINGS["apple"].noun)
ME, YOU, HE, SHE, WE, THEY = PRONOUNS
BUYS = Clause(MAN, VERBS["buy"], APPLE)
BUYS_THE = Clause(MAN, VERBS["buy"], NounPhrase("the", ADJECTIVES["red"], THINGS["apple"].noun))
TRIES = Clause(SISTER, VERBS["try"], NounPhrase("the", None, THINGS["hat"].noun))
HELPS = Clause(THEY, VERBS["help"], SISTER)
GIVES = Clause(SHE, VERBS["give"], APPLE, CHILDREN)
GOES = Clause(HE, VERBS["go"], place=PLACES["park"][1])
PLAYS = Clause(CHILDREN, VERBS["play"], place=PLACES["garden"][0])
NEEDS = Clause(HE, VERBS["need"], APPLE)

GOLD = [
    # verb second, also after a fronted adverb
    (BUYS.german_statement("present", front="morgen"), "morgen kauft der alte Mann einen roten Apfel"),
    # the verb bracket: separable prefix, participle, infinitive
    (TRIES.german_statement("present"), "meine Schwester probiert den Hut an"),
    (TRIES.german_statement("past", adverb="gestern"), "meine Schwester hat gestern den Hut anprobiert"),
    (TRIES.german_statement("want"), "meine Schwester will den Hut anprobieren"),
    # the verb last
    (TRIES.german_verb_last("present"), "meine Schwester den Hut anprobiert"),
    (BUYS.german_verb_last("past", adverb="gestern"), "der alte Mann gestern einen roten Apfel gekauft hat"),
    (HELPS.german_verb_last("can"), "sie meiner Schwester helfen können"),
    # case government
    (GIVES.german_statement("present"), "sie gibt den Kindern einen roten Apfel"),
    # nicht and kein
    (BUYS.german_statement("present", negative=True), "der alte Mann kauft keinen roten Apfel"),
    (BUYS_THE.german_statement("present", negative=True), "der alte Mann kauft den roten Apfel nicht"),
    (TRIES.german_statement("present", negative=True), "meine Schwester probiert den Hut nicht an"),
    (GOES.german_statement("past", negative=True), "er ist nicht in den Park gegangen"),
    # adverbs of frequency follow a definite object
    (HELPS.german_statement("simple", adverb="nie"), "sie helfen meiner Schwester nie"),
    (BUYS.german_statement("simple", adverb="oft"), "der alte Mann kauft oft einen roten Apfel"),
    # questions
    (TRIES.german_question("present", wh="warum"), "warum probiert meine Schwester den Hut an"),
    (GOES.german_question("past", adverb="gestern"), "ist er gestern in den Park gegangen"),
    # English: the same clauses
    (BUYS.english_statement("simple", adverb="often"), "the old man often buys a red apple"),
    (BUYS.english_statement("perfect", adverb="never"), "the old man has never bought a red apple"),
    (BUYS.english_statement("past", negative=True), "the old man did not buy a red apple"),
    (BUYS.english_question("want"), "does the old man want to buy a red apple"),
    (GIVES.english_statement("present"), "she is giving the children a red apple"),
    (NEEDS.english_question("present", wh="why", negative=True), "why does he not need a red apple"),
    (GOES.english_statement("can", negative=True), "he cannot go to the park"),
    (PLAYS.english_statement("allowed"), "the children are allowed to play in the garden"),
]


@pytest.mark.parametrize(("made", "gold"), GOLD)
def test_clauses_follow_the_grammar_book(made, gold):
    assert made == gold


def test_the_verb_agrees_with_every_person():
    def forms(verb: str, mode: str) -> list[str]:
        clauses = [Clause(who, VERBS[verb]) for who in (ME, YOU, HE, WE, THEY)]
        return [clause.german_verb(mode)[0] for clause in clauses]

    assert forms("read", "present") == ["lese", "liest", "liest", "lesen", "lesen"]
    assert forms("wash", "present") == ["wasche", "wäschst", "wäscht", "waschen", "waschen"]
    assert forms("go", "past") == ["bin", "bist", "ist", "sind", "sind"]
    assert forms("buy", "must") == ["muss", "musst", "muss", "müssen", "müssen"]
    be = [Clause(who, VERBS["read"]).english_verb("present")[0] for who in (ME, YOU, HE, WE, THEY)]
    assert be == ["am", "are", "is", "are", "are"]


def test_countries_take_their_articles_and_prepositions():
    def german(preposition: str, *codes: str) -> list[str]:
        return [form(f"{preposition} country", code, Pick("any"))[1] for code in codes]

    assert german("in", "FR", "CH", "NL") == ["in Frankreich", "in der Schweiz", "in den Niederlanden"]
    assert german("to", "FR", "TR", "NL") == ["nach Frankreich", "in die Türkei", "in die Niederlande"]
    assert german("from", "FR", "UA", "NL") == ["aus Frankreich", "aus der Ukraine", "aus den Niederlanden"]
    assert german("of", "FR", "CH", "NL") == ["von Frankreich", "der Schweiz", "der Niederlande"]
    assert form("in country", "CH", Pick("any"))[0] == "in Switzerland"
    assert form("to country", "NL", Pick("any"))[0] == "to the Netherlands"


def all_nouns() -> list[Noun]:
    return [entry.noun for entry in (*THINGS.values(), *PERSONS.values())]


def test_genders_and_genitives_follow_the_rules():
    """-e (but der Junge, der Tee), -ung and -in are feminine, -chen is neuter; only m and n have a genitive in -s."""
    for noun in all_nouns():
        if noun.german.endswith("chen") and noun.german != "Kuchen":
            assert noun.gender == "n", noun.german
        elif re.search("(ung|in|e)$", noun.german) and noun.german not in ("Junge", "Tee"):
            assert noun.gender == "f", noun.german
        if not noun.weak:
            endings = ("s", "es") if noun.gender in "mn" else ("",)
            assert noun.genitive in [noun.german + ending for ending in endings], noun.german


def test_a_noun_gets_only_words_that_suit_it():
    assert all(entry.verbs <= set(VERBS) for entry in THINGS.values())
    pick = Pick("any")
    drawn = {noun_phrase(THINGS["tea"], "the", False, pick, 1.0).english() for _ in range(100)}
    assert drawn == {"the hot tea", "the cold tea"}


def test_regeneration_gives_the_committed_file():
    committed, text = PATH.read_bytes(), table(corpus())
    assert len(committed) <= 400_000
    assert committed[3:8] == b"\0" * 5  # RFC 1952: no file name, no modification time
    assert zlib.decompress(committed, wbits=31) == text
    if "ng" not in zlib.ZLIB_RUNTIME_VERSION:  # zlib-ng compresses to other bytes than zlib
        assert committed == compressed(text)


def test_about_20000_unique_pairs_in_three_splits():
    rows = {split: load(split) for split in SPLITS}
    sources = [english for split in SPLITS for _, english, _ in rows[split]]
    assert 19_500 <= len(sources) <= 20_500
    assert len(set(sources)) == len(sources)  # so no test source is a training source either
    assert 400 <= len(rows["validation"]) <= 600
    assert 850 <= len(rows["test"]) <= 1_150


def test_every_kind_is_frequent_in_every_split():
    for split in SPLITS:
        kinds = Counter(kind for kind, _, _ in load(split))
        assert set(kinds) == set(PAIRS)
        assert min(kinds.values()) >= {"train": 1000, "validation": 15, "test": 40}[split]


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="train, validation, test"):
        load("valid")


def test_parts_of_held_out_combinations_occur_in_training():
    trained = [row for row in corpus() if row.split == "train"]
    cells = {(row.kind, row.template, row.value) for row in trained}
    templates, values = {(row.kind, row.template) for row in trained}, {row.value for row in trained}
    held_out = [row for row in corpus() if row.split != "train"]
    assert len(held_out) > 1000
    for row in held_out:
        assert (row.kind, row.template, row.value) not in cells
        assert (row.kind, row.template) in templates
        assert row.value in values


def test_every_word_is_frequent_in_training():
    text = " ".join(row.english.lower() for row in corpus() if row.split == "train")
    counts = Counter(re.findall(r"[a-zü]+", text))
    assert not {word for word in [*ADJECTIVES, *(noun.english for noun in all_nouns())] if counts[word] < 40}


GENDER = {noun.german: noun.gender for noun in all_nouns() if noun.gender != "p"}


def test_articles_agree_with_the_nouns_that_follow_them():
    """Skips "das" after a comma, where it is a relative pronoun."""
    allowed = {"einen": "m", "eine": "f", "das": "n", "dieses": "mn", "ein": "mn", "einem": "mn", "einer": "f"}
    seen = 0
    for row in corpus():
        for article, noun in re.findall(r"(?<!, )\b(\w+) (?:[a-zäöüß]+ )?([A-ZÄÖÜ]\w+)", row.german):
            if article in allowed and noun in GENDER:
                assert GENDER[noun] in allowed[article], row.german
                seen += 1
    assert seen > 1500


def test_sentences_are_spelled_correctly():
    lower = {noun.german.lower() for noun in all_nouns()} - {"junge"}  # junge Männer
    for row in corpus():
        assert not re.search(r"\b(a [aeiou]|an [^aeiou])", row.english, re.IGNORECASE), row.english
        assert not lower & set(re.findall(r"\w+", row.german)), row.german  # nouns are capitalised
        for text in (row.english, row.german):
            assert text == text.strip() and "  " not in text and "{" not in text, text
            assert text.isprintable() and "\u00a0" not in text, text
            assert text[0].isupper() or text[0].isdigit(), text
            assert text[-1] in ".?" or (row.kind == "date" and text[-1].isdigit()), text
        assert (row.english[-1] == "?") == (row.german[-1] == "?"), row.english


def test_a_subordinate_clause_ends_with_its_verb():
    finite = {form for verb in VERBS.values() for form in (verb.prefix + form for form in verb.german)}
    finite |= set("habe hast hat haben bin bist ist sind will willst wollen".split())
    checked = 0
    for row in corpus():
        match = re.search(r", (dass|weil|ob) .* (\w+)\.$", row.german)
        if match:
            assert match[2] in finite, row.german
            checked += 1
    assert checked > 800


def test_the_command_writes_parallel_files(tmp_path: Path, capsys):
    main([str(tmp_path / "corpus")])
    assert "9 files" in capsys.readouterr().out
    for split in SPLITS:
        paths = [tmp_path / "corpus" / f"{split}.{suffix}" for suffix in ("kinds", "en", "de")]
        columns = [path.read_text(encoding="utf-8").splitlines() for path in paths]
        assert list(zip(*columns, strict=True)) == load(split)
    assert not list(tmp_path.rglob("*.new"))


def test_a_file_instead_of_a_folder_is_refused(tmp_path: Path, capsys):
    (tmp_path / "corpus").write_text("mine")
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path / "corpus")])
    assert stop.value.code == 2
    assert "is not a folder" in capsys.readouterr().err
    assert (tmp_path / "corpus").read_text() == "mine"
