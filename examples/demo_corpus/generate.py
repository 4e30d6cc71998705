"""Write the embedded corpus, training/demo_corpus/en-de.tsv.gz: `python -m examples.demo_corpus.generate`.

Every run writes the same bytes. The split holds out combinations of template and value: whether a pair belongs to
training, validation or test depends only on its template and its value. So the combination in a test sentence never
occurs in training, while its template and its value both occur there separately.
"""

import gzip
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from training.demo_corpus import PATH

from .descriptions import DESCRIPTIONS
from .patterns import PATTERNS
from .sentences import CLAUSES
from .tables import read_table
from .template import Pick, Template

TEMPLATES = [*PATTERNS, *CLAUSES, *DESCRIPTIONS]
PAIRS = {row["kind"]: int(row["pairs"]) for row in read_table("kinds")}
TEST_SHARE, VALIDATION_SHARE = 0.054, 0.0255


@dataclass(frozen=True)
class Example:
    kind: str
    split: str
    english: str
    german: str
    template: str
    value: str


def split_of(template: Template, value: str) -> str:
    """Assign a combination of template and value to train, validation or test."""
    digest = hashlib.sha256(f"{template.kind}\t{template.name}\t{value}".encode()).digest()
    draw = int.from_bytes(digest[:8], "big") / 2**64
    if draw < TEST_SHARE:
        return "test"
    return "validation" if draw < TEST_SHARE + VALIDATION_SHARE else "train"


def examples() -> list[Example]:
    """Generate the corpus, ordered by kind and template. ValueError if an English sentence gets two translations."""
    made: list[Example] = []
    translations: dict[str, str] = {}
    for kind, pairs in PAIRS.items():
        templates = [template for template in TEMPLATES if template.kind == kind]
        weight = sum(template.weight for template in templates)
        for template in templates:
            made += fill(template, round(pairs * template.weight / weight), translations)
    # Drop the few held-out pairs whose template or value does not occur in training.
    names = {(row.kind, row.template) for row in made if row.split == "train"}
    values = {row.value for row in made if row.split == "train"}
    return [row for row in made if row.split == "train" or ((row.kind, row.template) in names and row.value in values)]


def fill(template: Template, pairs: int, translations: dict[str, str]) -> list[Example]:
    """Generate up to `pairs` examples, going through the values in a new random order each time."""
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
            made.append(Example(template.kind, split_of(template, value), english, german, template.name, value))
            if len(made) == pairs:
                return made
    return made


def table(rows: Iterable[Example]) -> bytes:
    """The corpus as TSV: kind, split, English, German. Sorted, which also makes it compress well."""
    lines = sorted((row.kind, row.split, row.english, row.german) for row in rows)
    return "".join("\t".join(line) + "\n" for line in lines).encode()


def compressed(tsv: bytes) -> bytes:
    """Compress with gzip, without time stamp and file name, so that equal text gives equal bytes."""
    return gzip.compress(tsv, 9, mtime=0)


def main() -> None:
    rows = examples()
    data = compressed(table(rows))
    PATH.write_bytes(data)
    print(f"{PATH.name}: {len(rows)} pairs, {len(data)} bytes")


if __name__ == "__main__":
    main()
