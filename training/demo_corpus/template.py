"""What the corpus is made of: templates, the values that fill them, and the draws that vary the rest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

Item = TypeVar("Item")
Pair = tuple[str, str]  # English, German


class Pick:
    """Draws from sequences by Random.random() alone, whose values Python promises to keep for a seed."""

    def __init__(self, seed: str):
        self.random = Random(seed).random

    def of(self, items: Sequence[Item]) -> Item:
        return items[int(self.random() * len(items))]

    def chance(self, share: float) -> bool:
        return self.random() < share

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        keys = [self.random() for _ in items]
        return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]


@dataclass(frozen=True)
class Template:
    """A sentence with a gap. `make` fills the gap with a value; what else varies, it draws."""

    kind: str
    name: str
    values: Sequence[str]
    make: Callable[[str, Pick], Pair]
    weight: float = 1.0  # its share of the kind's pairs, relative to the kind's other templates
