"""The grammar of the corpus: noun phrases and clauses that know their English and their German form.

German: three adjective declensions, four cases, the verb in second place, the verb bracket (separable
prefixes, participles, infinitives at the end), verb-final subordinate clauses, nicht and kein.
English: a and an, the third person's s, do-support, progressive and simple forms.
"""

from dataclasses import dataclass, replace

# Rows are cases, columns are masculine, feminine, neuter, plural.
GENDERS = "mfnp"
DEFINITE = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den", "gen": "des der des der"}
KEIN = {"nom": "- e - e", "acc": "en e - e", "dat": "em er em en", "gen": "es er es er"}
DIESER = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en", "gen": "es er es er"}

WEAK = {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en", "gen": "en en en en"}
MIXED = {"nom": "er e es en", "acc": "en e es en", "dat": "en en en en", "gen": "en en en en"}
STRONG = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en", "gen": "en er en er"}

POSSESSIVES = {"my": "mein", "your": "dein", "his": "sein", "her": "ihr", "our": "unser", "their": "ihr"}
COUNTS = {"two": "zwei", "three": "drei", "four": "vier"}

FREQUENCY = ("oft", "nie", "noch nie", "gerade")  # follow a definite object: er besucht Anna nie

PERSONS = ("1s", "2s", "3s", "1p", "2p", "3p")
BE: dict[str, str] = dict(zip(PERSONS, "am are is are are are".split(), strict=True))
SEIN: dict[str, str] = dict(zip(PERSONS, "bin bist ist sind seid sind".split(), strict=True))
HABEN: dict[str, str] = dict(zip(PERSONS, "habe hast hat haben habt haben".split(), strict=True))
MODALS = {
    "can": "kann kannst kann können könnt können",
    "must": "muss musst muss müssen müsst müssen",
    "want": "will willst will wollen wollt wollen",
    "should": "sollte solltest sollte sollten solltet sollten",
    "allowed": "darf darfst darf dürfen dürft dürfen",
    "would": "möchte möchtest möchte möchten möchtet möchten",
}


def column(table: dict[str, str], case: str, gender: str) -> str:
    """One cell of a table of endings; "-" stands for no ending."""
    return table[case].split()[GENDERS.index(gender)].replace("-", "")


def article(word: str) -> str:
    """ "a" or "an"; by letter, which is right for every word of the lexicon."""
    return "an" if word[0] in "aeiou" else "a"


@dataclass(frozen=True)
class Noun:
    english: str
    english_plural: str
    german: str
    gender: str  # m, f, n; p for nouns without a singular (Eltern)
    german_plural: str
    genitive: str
    weak: bool = False  # der Junge, den Jungen: -n in every case but the nominative singular
    mass: bool = False  # no article, no plural: hot tea

    def decline(self, case: str, plural: bool) -> str:
        if plural or self.gender == "p":
            bare = self.german_plural
            return bare + "n" if case == "dat" and bare[-1] not in "ns" else bare
        if self.weak and case != "nom":
            return self.german + "n"
        return self.genitive if case == "gen" else self.german


@dataclass(frozen=True)
class NounPhrase:
    """Determiner, adjective and noun; determiner is the, a, this, no (kein), "" or one of the two tables."""

    determiner: str
    adjective: tuple[str, str] | None  # English, German stem before an ending
    noun: Noun
    plural: bool = False

    @property
    def gender(self) -> str:
        return "p" if self.plural else self.noun.gender

    @property
    def person(self) -> str:
        return "3p" if self.gender == "p" else "3s"

    @property
    def indefinite(self) -> bool:
        return self.determiner in ("a", "")

    def english(self) -> str:
        many = self.gender == "p"
        words = [self.adjective[0]] if self.adjective else []
        words.append(self.noun.english_plural if many else self.noun.english)
        determiner = {"a": article(words[0]), "this": "these" if many else "this"}.get(self.determiner, self.determiner)
        return " ".join([determiner, *words] if determiner else words)

    def german(self, case: str) -> str:
        determiner, endings = self.german_determiner(case)
        words = [determiner] if determiner else []
        if self.adjective:
            words.append(self.adjective[1] + column(endings, case, self.gender))
        return " ".join([*words, self.noun.decline(case, self.plural)])

    def german_determiner(self, case: str) -> tuple[str, dict[str, str]]:
        """The determiner's form and the adjective declension that it governs."""
        if self.determiner == "the":
            return column(DEFINITE, case, self.gender), WEAK
        if self.determiner == "this":
            return "dies" + column(DIESER, case, self.gender), WEAK
        if self.determiner in COUNTS:
            return COUNTS[self.determiner], STRONG
        if not self.determiner:
            return "", STRONG
        stem = {"a": "ein", "no": "kein"}.get(self.determiner) or POSSESSIVES[self.determiner]
        return stem + column(KEIN, case, self.gender), MIXED


@dataclass(frozen=True)
class Name:
    """A proper name: the same in both languages and in every case but the genitive, which is not used."""

    name: str
    person: str = "3s"
    indefinite: bool = False

    def english(self) -> str:
        return self.name

    def german(self, case: str) -> str:
        return self.name


@dataclass(frozen=True)
class Pronoun:
    """A personal pronoun; only ever a subject."""

    word: str
    german_word: str
    person: str
    indefinite: bool = False

    def english(self) -> str:
        return self.word

    def german(self, case: str) -> str:
        if case != "nom":
            raise ValueError(f"pronoun {self.word!r} is declined in the nominative only, not {case}")
        return self.german_word


@dataclass(frozen=True)
class Place:
    """Where (in the garden, im Garten) or where to (into the garden, in den Garten)."""

    name: str
    english: str
    german: str


@dataclass(frozen=True)
class Verb:
    """An English verb and its one German translation, with every form that the clauses need."""

    english: tuple[str, str, str, str, str]  # buy, buys, bought, bought (participle), buying
    particle: str  # on, in "try on"; "" for none
    prefix: str  # an, in "anprobieren"; "" for none
    german: tuple[str, str, str, str]  # plural = infinitive, ich, du, er
    participle: str
    auxiliary: str = "haben"
    stative: bool = False  # needs, has, likes: never progressive
    case: str = "acc"  # the case of its object; helfen and danken take "dat"

    @property
    def infinitive(self) -> str:
        return self.prefix + self.german[0]

    def present(self, person: str) -> str:
        return self.german[{"1s": 1, "2s": 2, "3s": 3}.get(person, 0)]


@dataclass(frozen=True)
class Clause:
    subject: NounPhrase | Name | Pronoun
    verb: Verb
    object: NounPhrase | Name | None = None
    recipient: NounPhrase | Name | None = None
    place: Place | None = None

    # --- English -------------------------------------------------------------------------------------

    def english_verb(self, mode: str) -> tuple[str, str, str]:
        """(auxiliary that inverts and takes "not", words after it, finite form used when neither happens).

        mode: present (progressive unless the verb is stative), simple, past, perfect, will, or a modal.
        """
        base, third, past, participle, progressive = self.verb.english
        person = self.subject.person
        be = BE[person]
        do, finite = ("does", third) if person == "3s" else ("do", base)
        if mode == "present" and not self.verb.stative:
            return be, progressive, f"{be} {progressive}"
        if mode in ("present", "simple"):
            return do, base, finite
        if mode == "past":
            return "did", base, past
        if mode == "perfect":
            have = "has" if person == "3s" else "have"
            return have, participle, f"{have} {participle}"
        if mode == "want":
            return do, f"want to {base}", f"{'wants' if person == '3s' else 'want'} to {base}"
        if mode == "allowed":
            return be, f"allowed to {base}", f"{be} allowed to {base}"
        after = f"like to {base}" if mode == "would" else base
        return mode, after, f"{mode} {after}"

    def english_tail(self) -> list[str]:
        parts = [self.verb.particle]
        parts += [phrase.english() for phrase in (self.recipient, self.object) if phrase]
        return parts + ([self.place.english] if self.place else [])

    def english_statement(
        self, mode: str, *, adverb: str = "", end: str = "", front: str = "", negative: bool = False
    ) -> str:
        """adverb stands before the main verb (often, just), end after everything, front before the subject."""
        auxiliary, after, finite = self.english_verb(mode)
        if negative:
            verb = "cannot " + after if auxiliary == "can" else f"{auxiliary} not {after}"
        elif adverb and finite == f"{auxiliary} {after}":
            verb = f"{auxiliary} {adverb} {after}"
        else:
            verb = f"{adverb} {finite}" if adverb else finite
        return join(front, self.subject.english(), verb, *self.english_tail(), end)

    def english_question(self, mode: str, *, wh: str = "", end: str = "", negative: bool = False) -> str:
        """Subject and auxiliary change places; do-support where there is no other auxiliary."""
        auxiliary, after, _ = self.english_verb(mode)
        return join(wh, auxiliary, self.subject.english(), "not" if negative else "", after, *self.english_tail(), end)

    # --- German --------------------------------------------------------------------------------------

    def german_verb(self, mode: str) -> tuple[str, list[str]]:
        """(finite verb, what closes the bracket). present, simple and will: present; past, perfect: perfect."""
        person = self.subject.person
        if mode in ("present", "simple", "will"):
            return self.verb.present(person), [self.verb.prefix] if self.verb.prefix else []
        if mode in ("past", "perfect"):
            table = SEIN if self.verb.auxiliary == "sein" else HABEN
            return table[person], [self.verb.participle]
        return MODALS[mode].split()[PERSONS.index(person)], [self.verb.infinitive]

    def german_middle(self, adverb: str, negative: bool) -> list[str]:
        """Between the brackets: time, recipient, definite object, frequency, nicht, place, indefinite object.

        A negated indefinite object takes kein, every other clause nicht.
        """
        frequency = adverb if adverb in FREQUENCY else ""
        thing, nicht = self.object, negative
        if negative and isinstance(thing, NounPhrase) and thing.indefinite:
            thing, nicht = replace(thing, determiner="no"), False
        thing_word = thing.german(self.verb.case) if thing else ""
        late = self.object is not None and self.object.indefinite
        return [
            "" if frequency else adverb,
            self.recipient.german("dat") if self.recipient else "",
            "" if late else thing_word,
            frequency,
            "nicht" if nicht else "",
            self.place.german if self.place else "",
            thing_word if late else "",
        ]

    def german_statement(self, mode: str, *, adverb: str = "", front: str = "", negative: bool = False) -> str:
        """The finite verb is second: after the subject, or between `front` and the subject."""
        finite, close = self.german_verb(mode)
        subject = self.subject.german("nom")
        opening = [front, finite, subject] if front else [subject, finite]
        return join(*opening, *self.german_middle(adverb, negative), *close)

    def german_question(self, mode: str, *, wh: str = "", adverb: str = "", negative: bool = False) -> str:
        finite, close = self.german_verb(mode)
        subject = self.subject.german("nom")
        return join(wh, finite, subject, *self.german_middle(adverb, negative), *close)

    def german_verb_last(
        self, mode: str, *, subject: str | None = None, adverb: str = "", negative: bool = False
    ) -> str:
        """A subordinate clause after its conjunction: the bracket closes on the finite verb.

        subject: replaces the clause's own (a relative pronoun).
        """
        finite, close = self.german_verb(mode)
        if mode in ("present", "simple", "will") and close:  # a separable prefix joins its verb again
            finite, close = close[0] + finite, []
        subject = self.subject.german("nom") if subject is None else subject
        return join(subject, *self.german_middle(adverb, negative), *close, finite)


def join(*words: str) -> str:
    return " ".join(word for word in words if word)


def sentence(text: str, mark: str = ".") -> str:
    """The text as a sentence: a capital letter and a closing mark."""
    return text[0].upper() + text[1:] + mark
