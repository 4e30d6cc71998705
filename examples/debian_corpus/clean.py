"""Which pairs are worth learning from, and which of them are for validation and test."""

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from vaswani_transformer.sentences_vaswani_transformer import sentence_spans

FEWEST_WORDS, MOST_WORDS = 3, 200
LARGEST_RATIO = 4  # of the longer text to the shorter one, in characters
# Fields of a form, options of a program, variables: %s, ${name}, <file>, @VERSION@
PLACEHOLDER = re.compile(r"%[-\d.]*[sdifuxc]\b|\$\{|@[A-Z_]+@|&[a-z]+;")
FREQUENT = 50  # a word that occurs less often is masked in a template
Pair = tuple[str, str]


def cut_into_sentences(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Yield the sentences of each pair one by one if both texts have equally many, else the pair."""
    for pair in pairs:
        texts = [" ".join(text.split()) for text in pair]
        english, translated = ([text[start:stop] for start, stop in sentence_spans(text)] for text in texts)
        if len(english) == len(translated):
            yield from zip(english, translated, strict=True)
        else:
            yield texts[0], texts[1]


def clean(pairs: Iterable[Pair], dropped: Counter[str]) -> Iterator[Pair]:
    """Yield the good pairs, with single spaces; count the others by reason."""
    seen: set[bytes] = set()
    for pair in pairs:
        english, translated = (" ".join(text.split()) for text in pair)
        if reason := find_fault(english, translated):
            dropped[reason] += 1
            continue
        key = hashlib.blake2b(f"{english}\t{translated}".encode(), digest_size=12).digest()
        if key in seen:
            dropped["repeated"] += 1
            continue
        seen.add(key)
        yield english, translated


def find_fault(english: str, translated: str) -> str:
    """Return why a pair is dropped, or ""."""
    words = len(english.split())
    if words < FEWEST_WORDS or not translated:
        return "short"
    if words > MOST_WORDS or len(translated.split()) > MOST_WORDS:
        return "long"
    if english == translated:
        return "not translated"
    if PLACEHOLDER.search(english) or PLACEHOLDER.search(translated):
        return "placeholders"
    if sum(map(str.isalpha, english)) < len(english) / 2:
        return "few letters"
    if max(len(english), len(translated)) > LARGEST_RATIO * min(len(english), len(translated)):
        return "lengths"
    return ""


def split(sources: dict[str, list[Pair]], held_out: int) -> dict[str, list[tuple[str, Pair]]]:
    """Return the pairs of train, val and test with their sources: `held_out` of each source for val and for test.

    Only pairs with a template of their own are held out: none of train differs from them in rare words alone. Hashes
    choose them, so the choice does not depend on the order of the pairs.
    """
    frequency = Counter(word for pairs in sources.values() for english, _ in pairs for word in english.split())
    templates = Counter(mask(english, frequency) for pairs in sources.values() for english, _ in pairs)
    found: dict[str, list[tuple[str, Pair]]] = defaultdict(list)
    for source, pairs in sources.items():
        alone = [pair for pair in pairs if templates[mask(pair[0], frequency)] == 1]
        alone.sort(key=lambda pair: hashlib.sha256("\t".join(pair).encode()).digest())
        test, validation = alone[:held_out], alone[held_out : 2 * held_out]
        elsewhere = {*test, *validation}
        found["test"] += [(source, pair) for pair in test]
        found["val"] += [(source, pair) for pair in validation]
        found["train"] += [(source, pair) for pair in pairs if pair not in elsewhere]
    return found


def mask(english: str, frequency: Counter[str]) -> str:
    return " ".join(word if frequency[word] >= FREQUENT else "*" for word in english.split())
