"""Writes en-de.tsv.gz: `python -m training.demo_corpus.generate`. The same bytes on every run.

The split holds out templates times values: whether a pair is for training, validation or test depends on
its template and its value alone, so a test sentence's combination was never trained on, while its template
and its value both were, apart.
"""

import gzip
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .countries import COUNTRY_SENTENCES
from .dates_and_times import DATES, TIMES
from .descriptions import DESCRIPTIONS
from .quantities import COUNTS, MEASURES, PRICES
from .sentences import CLAUSES
from .template import Pick, Template

TEMPLATES = [*DATES, *TIMES, *PRICES, *MEASURES, *COUNTS, *COUNTRY_SENTENCES, *CLAUSES, *DESCRIPTIONS]
PAIRS = {
    "date": 1700,
    "time": 1200,
    "price": 1300,
    "measure": 1700,
    "number": 1700,
    "country": 1500,
    "statement": 1900,
    "question": 1700,
    "negation": 1400,
    "inversion": 1700,
    "subordinate": 1700,
    "perfect": 1300,
    "modal": 1200,
}
TEST_SHARE, VALIDATION_SHARE = 0.054, 0.0255
PATH = Path(__file__).with_name("en-de.tsv.gz")


@dataclass(frozen=True)
class Example:
    kind: str
    split: str
    english: str
    german: str
    template: str
    value: str


def cell_split(template: Template, value: str) -> str:
    """train, validation or test: a fixed function of the combination."""
    digest = hashlib.sha256(f"{template.kind}\t{template.name}\t{value}".encode()).digest()
    draw = int.from_bytes(digest[:8], "big") / 2**64
    if draw < TEST_SHARE:
        return "test"
    return "validation" if draw < TEST_SHARE + VALIDATION_SHARE else "train"


def examples() -> list[Example]:
    """The whole corpus, by kind and template. ValueError where an English sentence gets two translations."""
    made: list[Example] = []
    translations: dict[str, str] = {}
    for kind, pairs in PAIRS.items():
        templates = [template for template in TEMPLATES if template.kind == kind]
        weight = sum(template.weight for template in templates)
        for template in templates:
            made += fill(template, round(pairs * template.weight / weight), translations)
    # Held out means: never together, but each apart. The few that miss the second half are left out.
    names = {(example.kind, example.template) for example in made if example.split == "train"}
    values = {example.value for example in made if example.split == "train"}
    return [
        example
        for example in made
        if example.split == "train" or ((example.kind, example.template) in names and example.value in values)
    ]


def fill(template: Template, pairs: int, translations: dict[str, str]) -> list[Example]:
    """About `pairs` examples, the values in turn, each in a new order every time round."""
    pick = Pick(f"{template.kind} {template.name}")
    made: list[Example] = []
    for _ in range(100):
        for value in pick.shuffled(template.values):
            english, german = template.make(value, pick)
            if english in translations:
                if translations[english] != german:
                    raise ValueError(f"{english!r} is {translations[english]!r} and {german!r}")
                continue
            translations[english] = german
            split = cell_split(template, value)
            made.append(Example(template.kind, split, english, german, template.name, value))
            if len(made) == pairs:
                return made
    return made


def table(rows: Iterable[Example]) -> bytes:
    """The corpus as TSV: kind, split, English, German. Sorted, which also makes it compress well."""
    lines = sorted((row.kind, row.split, row.english, row.german) for row in rows)
    return "".join("\t".join(line) + "\n" for line in lines).encode()


def compressed(tsv: bytes) -> bytes:
    """gzip without a time stamp or a file name, so that equal text gives equal bytes."""
    return gzip.compress(tsv, 9, mtime=0)


def main() -> None:
    rows = examples()
    data = compressed(table(rows))
    temporary = PATH.with_suffix(".new")
    temporary.write_bytes(data)
    os.replace(temporary, PATH)
    print(f"{PATH.name}: {len(rows)} pairs, {len(data)} bytes")


if __name__ == "__main__":
    main()
