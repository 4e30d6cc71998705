"""The grammar of the corpus: noun phrases and clauses with their English and German forms.

German: three adjective declensions, four cases, the verb in second place, the verb bracket (separable
prefixes, participles, infinitives at the end), verb-final subordinate clauses, nicht and kein.
English: a and an, the third person's s, do-support, progressive and simple forms.
"""

from dataclasses import dataclass, replace

from .tables import read_table

# Adjective endings of the three declensions, and the forms or endings of determiners: by (name, case), then gender.
ENDINGS = {(row["table"], row["case"]): row for row in read_table("endings")}
# Verbs that every person conjugates differently (be, sein, haben, the German modals), by their mode or infinitive.
CONJUGATIONS = {row["verb"]: row for row in read_table("conjugations")}
BE, SEIN = CONJUGATIONS["be"], CONJUGATIONS["sein"]
POSSESSIVES = {"my": "mein", "your": "dein", "his": "sein", "her": "ihr", "our": "unser", "their": "ihr"}
COUNTS = {"two": "zwei", "three": "drei", "four": "vier"}
FREQUENCY = ("oft", "nie", "noch nie", "gerade")  # these follow a definite object: er besucht Anna nie


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
class Adjective:
    english: str
    stem: str  # German, before an ending
    predicative: str
    dimension: str  # two adjectives of one dimension contradict or repeat each other ("the old house is new")


@dataclass(frozen=True)
class NounPhrase:
    """Determiner, adjective and noun; determiner is the, a, this, no (kein), "" or a key of POSSESSIVES or COUNTS."""

    determiner: str
    adjective: Adjective | None
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
        adjective = self.adjective.english if self.adjective else ""
        words = join(adjective, self.noun.english_plural if many else self.noun.english)
        a = "an" if words[0] in "aeiou" else "a"  # by spelling, which is correct for every word of the lexicon
        determiner = {"a": a, "this": "these" if many else "this"}.get(self.determiner, self.determiner)
        return join(determiner, words)

    def german(self, case: str) -> str:
        determiner, declension = self.german_determiner(case)
        ending = ENDINGS[declension, case][self.gender]
        adjective = self.adjective.stem + ending if self.adjective else ""
        return join(determiner, adjective, self.noun.decline(case, self.plural))

    def german_determiner(self, case: str) -> tuple[str, str]:
        """Return the determiner's form and the adjective declension that it governs."""
        if self.determiner == "the":
            return ENDINGS["the", case][self.gender], "weak"
        if self.determiner == "this":
            return "dies" + ENDINGS["dies", case][self.gender], "weak"
        if self.determiner in COUNTS or not self.determiner:
            return COUNTS.get(self.determiner, ""), "strong"
        stem = {"a": "ein", "no": "kein"}.get(self.determiner) or POSSESSIVES[self.determiner]
        return stem + ENDINGS["ein", case][self.gender], "mixed"


@dataclass(frozen=True)
class Word:
    """A proper name, or a personal pronoun as a subject: one form for all cases that the corpus uses."""

    word: str
    german_word: str
    person: str
    indefinite: bool = False

    def english(self) -> str:
        return self.word

    def german(self, case: str) -> str:
        return self.german_word


@dataclass(frozen=True)
class Place:
    """An adverbial phrase: where, where to, when, how long or for how much."""

    english: str
    german: str


@dataclass(frozen=True)
class Verb:
    """An English verb and its one German translation, with every form that the clauses need."""

    english: tuple[str, ...]  # buy, buys, bought, bought (participle), buying
    particle: str  # on, in "try on"; "" for none
    german: tuple[str, ...]  # plural = infinitive, ich, du, er
    prefix: str  # an, in "anprobieren"; "" for none
    participle: str
    auxiliary: str  # haben or sein
    flags: frozenset[str]  # see lexicon.py
    places: tuple[str, ...]  # where one does it

    @property
    def case(self) -> str:
        """The case of the object; helfen and danken take the dative."""
        return "dat" if "dative" in self.flags else "acc"

    def present(self, person: str) -> str:
        return self.german[{"1s": 1, "2s": 2, "3s": 3}.get(person, 0)]


@dataclass(frozen=True)
class Clause:
    subject: NounPhrase | Word
    verb: Verb
    object: NounPhrase | Word | None = None
    recipient: NounPhrase | Word | None = None
    place: Place | None = None

    def english_verb(self, mode: str) -> tuple[str, str, str]:
        """Return the auxiliary that inverts and takes "not", the words after it, and the finite form without either.

        mode: present (progressive unless the verb is stative), simple, past, perfect, will, or a modal.
        """
        base, third, past, participle, progressive = self.verb.english
        singular = self.subject.person == "3s"
        do = "does" if singular else "do"
        if mode == "simple" or (mode == "present" and "stative" in self.verb.flags):
            return do, base, third if singular else base
        if mode == "past":
            return "did", base, past
        if mode == "want":
            return do, f"want to {base}", f"{'wants' if singular else 'want'} to {base}"
        be = BE[self.subject.person]
        auxiliary, after = {
            "present": (be, progressive),
            "perfect": ("has" if singular else "have", participle),
            "allowed": (be, f"allowed to {base}"),
            "would": ("would", f"like to {base}"),
        }.get(mode, (mode, base))
        return auxiliary, after, f"{auxiliary} {after}"

    def english_tail(self) -> list[str]:
        parts = [self.verb.particle]
        parts += [phrase.english() for phrase in (self.recipient, self.object) if phrase]
        return parts + ([self.place.english] if self.place else [])

    def english_statement(
        self, mode: str, *, adverb: str = "", end: str = "", front: str = "", negative: bool = False
    ) -> str:
        """adverb: before the main verb (often, just); end: after everything; front: before the subject."""
        auxiliary, after, finite = self.english_verb(mode)
        if negative:
            verb = "cannot " + after if auxiliary == "can" else f"{auxiliary} not {after}"
        elif adverb and finite == f"{auxiliary} {after}":
            verb = f"{auxiliary} {adverb} {after}"
        else:
            verb = f"{adverb} {finite}" if adverb else finite
        return join(front, self.subject.english(), verb, *self.english_tail(), end)

    def english_question(self, mode: str, *, wh: str = "", end: str = "", negative: bool = False) -> str:
        """Swap subject and auxiliary; use do-support where there is no other auxiliary."""
        auxiliary, after, _ = self.english_verb(mode)
        return join(wh, auxiliary, self.subject.english(), "not" if negative else "", after, *self.english_tail(), end)

    def german_verb(self, mode: str) -> tuple[str, list[str]]:
        """Return the finite verb and the words that close the bracket.

        The modes present, simple and will become the German present; past and perfect the German perfect.
        """
        person = self.subject.person
        if mode in ("present", "simple", "will"):
            return self.verb.present(person), [self.verb.prefix] if self.verb.prefix else []
        if mode in ("past", "perfect"):
            return CONJUGATIONS[self.verb.auxiliary][person], [self.verb.participle]
        return CONJUGATIONS[mode][person], [self.verb.prefix + self.verb.german[0]]

    def german_middle(self, adverb: str, negative: bool) -> list[str]:
        """Order the middle field: time, recipient, definite object, frequency, nicht, place, indefinite object.

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
        """Put the finite verb second: after the subject, or between `front` and the subject."""
        if front:
            return self.german_question(mode, wh=front, adverb=adverb, negative=negative)
        finite, close = self.german_verb(mode)
        return join(self.subject.german("nom"), finite, *self.german_middle(adverb, negative), *close)

    def german_question(self, mode: str, *, wh: str = "", adverb: str = "", negative: bool = False) -> str:
        """Put the finite verb first, or after `wh`."""
        finite, close = self.german_verb(mode)
        return join(wh, finite, self.subject.german("nom"), *self.german_middle(adverb, negative), *close)

    def german_verb_last(self, mode: str, *, subject: str = "", adverb: str = "") -> str:
        """Build a subordinate clause without its conjunction. subject: a relative pronoun instead of the subject."""
        finite, close = self.german_verb(mode)
        if mode in ("present", "simple", "will") and close:  # a separable prefix joins its verb again
            finite, close = close[0] + finite, []
        return join(subject or self.subject.german("nom"), *self.german_middle(adverb, False), *close, finite)


def join(*words: str) -> str:
    """Join the words that are not empty with spaces."""
    return " ".join(word for word in words if word)


def sentence(text: str, mark: str = ".") -> str:
    """Capitalise the first letter and append the mark."""
    return text[0].upper() + text[1:] + mark
