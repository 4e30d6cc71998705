"""The embedded corpus: its numbers, its German, its split. Truth is from grammar tables, written out by hand."""

import re
import zlib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from training.demo_corpus import PATH, SPLITS, load
from training.demo_corpus.__main__ import main, write_parallel_text
from training.demo_corpus.clauses import noun_phrase
from training.demo_corpus.countries import Country, where, where_from, where_to
from training.demo_corpus.generate import PAIRS, Example, compressed, examples, table
from training.demo_corpus.grammar import Clause, Name, Noun, NounPhrase, Pronoun
from training.demo_corpus.lexicon import ADJECTIVES, PERSONS, PLACES, PRONOUNS, THINGS, VERBS
from training.demo_corpus.number_words import LIMIT, english_words, german_words
from training.demo_corpus.template import Pick


@cache
def corpus() -> list[Example]:
    return examples()


# --- numbers in words --------------------------------------------------------------------------------

NUMBERS = {
    0: ("zero", "null"),
    1: ("one", "eins"),
    2: ("two", "zwei"),
    7: ("seven", "sieben"),
    10: ("ten", "zehn"),
    11: ("eleven", "elf"),
    12: ("twelve", "zwölf"),
    13: ("thirteen", "dreizehn"),
    16: ("sixteen", "sechzehn"),
    17: ("seventeen", "siebzehn"),
    20: ("twenty", "zwanzig"),
    21: ("twenty-one", "einundzwanzig"),
    30: ("thirty", "dreißig"),
    32: ("thirty-two", "zweiunddreißig"),
    40: ("forty", "vierzig"),
    66: ("sixty-six", "sechsundsechzig"),
    70: ("seventy", "siebzig"),
    77: ("seventy-seven", "siebenundsiebzig"),
    99: ("ninety-nine", "neunundneunzig"),
    100: ("one hundred", "einhundert"),
    101: ("one hundred one", "einhunderteins"),
    121: ("one hundred twenty-one", "einhunderteinundzwanzig"),
    600: ("six hundred", "sechshundert"),
    1000: ("one thousand", "eintausend"),
    1001: ("one thousand one", "eintausendeins"),
    1999: ("one thousand nine hundred ninety-nine", "eintausendneunhundertneunundneunzig"),
    7016: ("seven thousand sixteen", "siebentausendsechzehn"),
    21000: ("twenty-one thousand", "einundzwanzigtausend"),
    101000: ("one hundred one thousand", "einhunderteintausend"),
    999999: (
        "nine hundred ninety-nine thousand nine hundred ninety-nine",
        "neunhundertneunundneunzigtausendneunhundertneunundneunzig",
    ),
}


@pytest.mark.parametrize(("number", "words"), NUMBERS.items())
def test_numbers_are_spelled_as_the_dictionaries_do(number, words):
    assert (english_words(number), german_words(number)) == words


def test_no_two_numbers_are_spelled_alike():
    step = [*range(0, 2500), *range(2500, LIMIT, 617)]
    assert len({english_words(number) for number in step}) == len(step)
    assert len({german_words(number) for number in step}) == len(step)


@pytest.mark.parametrize("number", [-1, LIMIT + 1])
def test_a_number_out_of_range_is_refused(number):
    for spell in (english_words, german_words):
        with pytest.raises(ValueError, match=str(number)):
            spell(number)


# --- noun phrases ------------------------------------------------------------------------------------

# The three declensions of any German grammar, for "alt": nominative, accusative, dative, genitive.
PARADIGMS = {
    ("the", "table", False): "der alte Tisch, den alten Tisch, dem alten Tisch, des alten Tisches",
    ("the", "bag", False): "die alte Tasche, die alte Tasche, der alten Tasche, der alten Tasche",
    ("the", "book", False): "das alte Buch, das alte Buch, dem alten Buch, des alten Buches",
    ("the", "book", True): "die alten Bücher, die alten Bücher, den alten Büchern, der alten Bücher",
    ("a", "table", False): "ein alter Tisch, einen alten Tisch, einem alten Tisch, eines alten Tisches",
    ("a", "bag", False): "eine alte Tasche, eine alte Tasche, einer alten Tasche, einer alten Tasche",
    ("a", "book", False): "ein altes Buch, ein altes Buch, einem alten Buch, eines alten Buches",
    ("no", "table", True): "keine alten Tische, keine alten Tische, keinen alten Tischen, keiner alten Tische",
    ("no", "table", False): "kein alter Tisch, keinen alten Tisch, keinem alten Tisch, keines alten Tisches",
    ("our", "bag", False): "unsere alte Tasche, unsere alte Tasche, unserer alten Tasche, unserer alten Tasche",
    ("our", "table", False): "unser alter Tisch, unseren alten Tisch, unserem alten Tisch, unseres alten Tisches",
    ("this", "table", False): "dieser alte Tisch, diesen alten Tisch, diesem alten Tisch, dieses alten Tisches",
    ("this", "bag", False): "diese alte Tasche, diese alte Tasche, dieser alten Tasche, dieser alten Tasche",
    ("this", "book", False): "dieses alte Buch, dieses alte Buch, diesem alten Buch, dieses alten Buches",
    ("this", "book", True): "diese alten Bücher, diese alten Bücher, diesen alten Büchern, dieser alten Bücher",
    ("", "table", False): "alter Tisch, alten Tisch, altem Tisch, alten Tisches",
    ("", "bag", False): "alte Tasche, alte Tasche, alter Tasche, alter Tasche",
    ("", "book", False): "altes Buch, altes Buch, altem Buch, alten Buches",
    ("", "book", True): "alte Bücher, alte Bücher, alten Büchern, alter Bücher",
    ("two", "bag", True): "zwei alte Taschen, zwei alte Taschen, zwei alten Taschen, zwei alter Taschen",
}


@pytest.mark.parametrize(("phrase", "forms"), PARADIGMS.items())
def test_articles_adjectives_and_nouns_follow_the_declensions(phrase, forms):
    determiner, head, plural = phrase
    declined = NounPhrase(determiner, ("old", "alt"), THINGS[head].noun, plural)
    assert [declined.german(case) for case in ("nom", "acc", "dat", "gen")] == forms.split(", ")


def test_a_weak_noun_ends_in_n_except_in_the_nominative():
    boy = NounPhrase("the", None, PERSONS["boy"].noun)
    forms = ["der Junge", "den Jungen", "dem Jungen", "des Jungen"]
    assert [boy.german(case) for case in ("nom", "acc", "dat", "gen")] == forms


@pytest.mark.parametrize(
    ("determiner", "adjective", "head", "plural", "english"),
    [
        ("a", None, "apple", False, "an apple"),
        ("a", "red", "apple", False, "a red apple"),
        ("a", "old", "hat", False, "an old hat"),
        ("a", "expensive", "car", False, "an expensive car"),
        ("a", None, "hat", False, "a hat"),
        ("this", None, "knife", True, "these knives"),
        ("three", "fresh", "tomato", True, "three fresh tomatoes"),
        ("", "hot", "tea", False, "hot tea"),
    ],
)
def test_english_articles_and_plurals(determiner, adjective, head, plural, english):
    stem = (adjective, ADJECTIVES[adjective]) if adjective else None
    assert NounPhrase(determiner, stem, THINGS[head].noun, plural).english() == english


# --- clauses: gold sentences -------------------------------------------------------------------------

MAN = NounPhrase("the", ("old", "alt"), PERSONS["man"].noun)
CHILDREN = NounPhrase("the", None, PERSONS["child"].noun, True)
SISTER = NounPhrase("my", None, PERSONS["sister"].noun)
APPLE = NounPhrase("a", ("red", "rot"), THINGS["apple"].noun)
THE_APPLE = NounPhrase("the", ("red", "rot"), THINGS["apple"].noun)
HAT = NounPhrase("the", None, THINGS["hat"].noun)
ME, YOU, HE, SHE, WE, THEY = PRONOUNS
BUYS = Clause(MAN, VERBS["buy"], APPLE)
BUYS_THE = Clause(MAN, VERBS["buy"], THE_APPLE)
TRIES = Clause(SISTER, VERBS["try"], HAT)
HELPS = Clause(THEY, VERBS["help"], SISTER)
GIVES = Clause(SHE, VERBS["give"], APPLE, CHILDREN)
GOES = Clause(HE, VERBS["go"], place=PLACES["park"][1])
PLAYS = Clause(CHILDREN, VERBS["play"], place=PLACES["garden"][0])
NEEDS = Clause(HE, VERBS["need"], APPLE)

GOLD = [
    # verb second, also after a fronted adverb
    (BUYS.german_statement("present"), "der alte Mann kauft einen roten Apfel"),
    (BUYS.german_statement("present", front="morgen"), "morgen kauft der alte Mann einen roten Apfel"),
    (PLAYS.german_statement("present", front="heute"), "heute spielen die Kinder im Garten"),
    # the verb bracket: separable prefix, participle, infinitive
    (TRIES.german_statement("present"), "meine Schwester probiert den Hut an"),
    (TRIES.german_statement("past", adverb="gestern"), "meine Schwester hat gestern den Hut anprobiert"),
    (TRIES.german_statement("want"), "meine Schwester will den Hut anprobieren"),
    (GOES.german_statement("past"), "er ist in den Park gegangen"),
    (BUYS.german_statement("must", adverb="heute"), "der alte Mann muss heute einen roten Apfel kaufen"),
    # the verb last
    (TRIES.german_verb_last("present"), "meine Schwester den Hut anprobiert"),
    (BUYS.german_verb_last("past", adverb="gestern"), "der alte Mann gestern einen roten Apfel gekauft hat"),
    (HELPS.german_verb_last("can"), "sie meiner Schwester helfen können"),
    # case government
    (HELPS.german_statement("present"), "sie helfen meiner Schwester"),
    (GIVES.german_statement("present"), "sie gibt den Kindern einen roten Apfel"),
    # nicht and kein
    (BUYS.german_statement("present", negative=True), "der alte Mann kauft keinen roten Apfel"),
    (BUYS_THE.german_statement("present", negative=True), "der alte Mann kauft den roten Apfel nicht"),
    (TRIES.german_statement("present", negative=True), "meine Schwester probiert den Hut nicht an"),
    (PLAYS.german_statement("present", negative=True), "die Kinder spielen nicht im Garten"),
    (GOES.german_statement("past", negative=True), "er ist nicht in den Park gegangen"),
    (GIVES.german_statement("past", negative=True), "sie hat den Kindern keinen roten Apfel gegeben"),
    # adverbs of frequency follow a definite object
    (HELPS.german_statement("simple", adverb="nie"), "sie helfen meiner Schwester nie"),
    (BUYS.german_statement("simple", adverb="oft"), "der alte Mann kauft oft einen roten Apfel"),
    # questions
    (BUYS.german_question("present"), "kauft der alte Mann einen roten Apfel"),
    (TRIES.german_question("present", wh="warum"), "warum probiert meine Schwester den Hut an"),
    (GOES.german_question("past", adverb="gestern"), "ist er gestern in den Park gegangen"),
    # English: the same clauses
    (BUYS.english_statement("present"), "the old man is buying a red apple"),
    (BUYS.english_statement("simple", adverb="often"), "the old man often buys a red apple"),
    (BUYS.english_statement("will", front="tomorrow"), "tomorrow the old man will buy a red apple"),
    (BUYS.english_statement("perfect", adverb="never"), "the old man has never bought a red apple"),
    (BUYS.english_statement("past", negative=True), "the old man did not buy a red apple"),
    (BUYS.english_question("want"), "does the old man want to buy a red apple"),
    (TRIES.english_statement("past", end="yesterday"), "my sister tried on the hat yesterday"),
    (GIVES.english_statement("present"), "she is giving the children a red apple"),
    (NEEDS.english_statement("present"), "he needs a red apple"),
    (NEEDS.english_statement("present", negative=True), "he does not need a red apple"),
    (NEEDS.english_question("present"), "does he need a red apple"),
    (NEEDS.english_question("present", wh="why", negative=True), "why does he not need a red apple"),
    (GOES.english_question("past", wh="when"), "when did he go to the park"),
    (GOES.english_statement("can", negative=True), "he cannot go to the park"),
    (PLAYS.english_statement("allowed"), "the children are allowed to play in the garden"),
    (PLAYS.english_statement("would"), "the children would like to play in the garden"),
]


@pytest.mark.parametrize(("made", "gold"), GOLD)
def test_clauses_are_built_as_a_grammar_book_builds_them(made, gold):
    assert made == gold


def test_the_verb_agrees_with_every_person():
    def forms(verb: str, mode: str) -> list[str]:
        clauses = [Clause(who, VERBS[verb]) for who in (ME, YOU, HE, WE, THEY)]
        return [clause.german_verb(mode)[0] for clause in clauses]

    assert forms("read", "present") == ["lese", "liest", "liest", "lesen", "lesen"]
    assert forms("wash", "present") == ["wasche", "wäschst", "wäscht", "waschen", "waschen"]
    assert forms("work", "present") == ["arbeite", "arbeitest", "arbeitet", "arbeiten", "arbeiten"]
    assert forms("go", "past") == ["bin", "bist", "ist", "sind", "sind"]
    assert forms("buy", "past") == ["habe", "hast", "hat", "haben", "haben"]
    assert forms("buy", "must") == ["muss", "musst", "muss", "müssen", "müssen"]
    be = [Clause(who, VERBS["read"]).english_verb("present")[0] for who in (ME, YOU, HE, WE, THEY)]
    assert be == ["am", "are", "is", "are", "are"]


def test_pronouns_and_names_are_subjects_in_the_nominative():
    assert Name("Anna").german("dat") == "Anna"
    with pytest.raises(ValueError, match="nominative"):
        Pronoun("I", "ich", "1s").german("acc")


def test_countries_take_their_articles_and_prepositions():
    assert Country("CH").english == "Switzerland"
    assert [where(code).german for code in ("FR", "CH", "NL")] == [
        "in Frankreich",
        "in der Schweiz",
        "in den Niederlanden",
    ]
    assert [where_to(code).german for code in ("FR", "TR", "NL")] == [
        "nach Frankreich",
        "in die Türkei",
        "in die Niederlande",
    ]
    assert [where_from(code).german for code in ("FR", "UA", "NL")] == [
        "aus Frankreich",
        "aus der Ukraine",
        "aus den Niederlanden",
    ]
    assert where_to("NL").english == "to the Netherlands"


# --- the lexicon -------------------------------------------------------------------------------------


def all_nouns() -> list[Noun]:
    return [entry.noun for entry in (*THINGS.values(), *PERSONS.values())]


def test_genders_agree_with_the_endings_that_decide_them():
    """-e (but der Junge, der Tee) and -ung, -in are feminine, -chen is neuter."""
    for noun in all_nouns():
        if noun.german.endswith("chen") and noun.german != "Kuchen":
            assert noun.gender == "n", noun.german
        elif re.search("(ung|in|e)$", noun.german) and noun.german not in ("Junge", "Tee"):
            assert noun.gender == "f", noun.german


def test_the_genitive_has_s_for_masculine_and_neuter_nouns_only():
    for noun in all_nouns():
        if noun.gender in "mn" and not noun.weak:
            assert noun.genitive in (noun.german + "s", noun.german + "es"), noun.german
        elif not noun.weak:
            assert noun.genitive == noun.german


def test_every_suit_of_a_thing_is_a_verb_and_every_adjective_is_known():
    for head, entry in THINGS.items():
        assert entry.suits <= set(VERBS), head
        assert set(entry.adjectives) <= set(ADJECTIVES), head


def test_a_noun_gets_only_adjectives_that_suit_it():
    pick = Pick("any")
    drawn = {noun_phrase(THINGS["tea"], "the", False, pick, 1.0).english() for _ in range(100)}
    assert drawn == {"the hot tea", "the cold tea"}


# --- the file ----------------------------------------------------------------------------------------


def test_regeneration_gives_the_committed_text():
    committed = PATH.read_bytes()
    assert zlib.decompress(committed, wbits=31) == table(corpus())


@pytest.mark.skipif("ng" in zlib.ZLIB_RUNTIME_VERSION, reason="zlib-ng compresses to other bytes than zlib")
def test_regeneration_gives_the_committed_bytes():
    assert PATH.read_bytes() == compressed(table(corpus()))


def test_the_file_is_small_and_carries_no_time_stamp():
    data = PATH.read_bytes()
    assert len(data) <= 400_000
    assert data[4:8] == b"\0\0\0\0"  # RFC 1952: modification time
    assert data[3] == 0  # no file name


def test_about_20000_unique_pairs_in_three_splits():
    rows = {split: load(split) for split in SPLITS}
    sources = [english for split in SPLITS for _, english, _ in rows[split]]
    assert 19_500 <= len(sources) <= 20_500
    assert len(set(sources)) == len(sources)  # so no test source is a training source either
    assert 400 <= len(rows["validation"]) <= 600
    assert 850 <= len(rows["test"]) <= 1_150


def test_every_kind_has_its_share_of_every_split():
    for split in SPLITS:
        kinds = Counter(kind for kind, _, _ in load(split))
        assert set(kinds) == set(PAIRS)
        assert min(kinds.values()) >= {"train": 1000, "validation": 15, "test": 40}[split]


def test_an_unknown_split_is_refused():
    with pytest.raises(ValueError, match="train, validation, test"):
        load("valid")


def test_what_is_tested_was_trained_apart_but_never_together():
    trained = [row for row in corpus() if row.split == "train"]
    cells = {(row.kind, row.template, row.value) for row in trained}
    templates, values = {(row.kind, row.template) for row in trained}, {row.value for row in trained}
    held_out = [row for row in corpus() if row.split != "train"]
    assert len(held_out) > 1000
    for row in held_out:
        assert (row.kind, row.template, row.value) not in cells
        assert (row.kind, row.template) in templates
        assert row.value in values


def test_every_word_of_the_lexicon_is_trained_often():
    text = " ".join(row.english.lower() for row in corpus() if row.split == "train")
    counts = Counter(re.findall(r"[a-zü]+", text))
    rare = {noun.english: counts[noun.english] for noun in all_nouns() if counts[noun.english] < 40}
    assert not rare
    assert not {word for word in ADJECTIVES if counts[word] < 40}


# --- the sentences of the file -----------------------------------------------------------------------

GENDER = {noun.german: noun.gender for noun in all_nouns() if noun.gender != "p"}


def test_articles_agree_with_the_nouns_that_follow_them():
    """In the file, "ein", "einen", "eine" or "das", with or without an adjective, before a noun in the singular.

    Not after a comma, where "das" is a relative pronoun.
    """
    allowed = {"einen": "m", "eine": "f", "das": "n", "dieses": "mn", "ein": "mn", "einem": "mn", "einer": "f"}
    seen = 0
    for row in corpus():
        for article, noun in re.findall(r"(?<!, )\b(\w+) (?:[a-zäöüß]+ )?([A-ZÄÖÜ]\w+)", row.german):
            if article in allowed and noun in GENDER:
                assert GENDER[noun] in allowed[article], row.german
                seen += 1
    assert seen > 1500


def test_sentences_look_like_sentences():
    for row in corpus():
        for text in (row.english, row.german):
            assert text == text.strip() and "  " not in text and "{" not in text, text
            assert text.isprintable() and "\u00a0" not in text, text
            assert text[0].isupper() or text[0].isdigit(), text
            assert text[-1] in ".?" or (row.kind == "date" and text[-1].isdigit()), text
        assert (row.english[-1] == "?") == (row.german[-1] == "?"), row.english


def test_a_before_consonants_and_an_before_vowels():
    for row in corpus():
        assert not re.search(r"\b(a [aeiou]|an [^aeiou])", row.english, re.IGNORECASE), row.english


def test_german_nouns_are_capitalised():
    lower = {noun.german.lower() for noun in all_nouns()} - {"junge"}  # junge Männer
    for row in corpus():
        assert not lower & set(re.findall(r"\w+", row.german)), row.german


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


# --- the command -------------------------------------------------------------------------------------


def test_the_command_writes_parallel_files(tmp_path: Path, capsys):
    main([str(tmp_path / "corpus")])
    assert "9 files" in capsys.readouterr().out
    for split in SPLITS:
        columns = [
            (tmp_path / "corpus" / f"{split}.{suffix}").read_text(encoding="utf-8").splitlines()
            for suffix in ("kinds", "en", "de")
        ]
        assert list(zip(*columns, strict=True)) == load(split)
    assert not list(tmp_path.rglob("*.new"))


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path, capsys):
    (tmp_path / "corpus").write_text("mine")
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path / "corpus")])
    assert stop.value.code == 2
    assert "is not a folder" in capsys.readouterr().err
    assert (tmp_path / "corpus").read_text() == "mine"
    with pytest.raises(ValueError, match="is not a folder"):
        write_parallel_text(tmp_path / "corpus")
