"""The building blocks of the corpus: templates, the values that fill them, and the random choices for the rest."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

Item = TypeVar("Item")
Pair = tuple[str, str]  # English, German


class Pick:
    """Choose from sequences with Random.random() only, whose values for a seed Python guarantees to keep."""

    def __init__(self, seed: str):
        self.random = Random(seed).random

    def of(self, items: Sequence[Item]) -> Item:
        return items[int(self.random() * len(items))]

    def chance(self, share: float) -> bool:
        return self.random() < share

    def until(self, draw: Callable[[], Item], accepts: Callable[[Item], bool]) -> Item:
        """Return the first of several draws that is accepted."""
        while not accepts(item := draw()):
            pass
        return item

    def shuffled(self, items: Sequence[Item]) -> list[Item]:
        keys = [self.random() for _ in items]
        return [items[i] for i in sorted(range(len(items)), key=keys.__getitem__)]


@dataclass(frozen=True)
class Template:
    """A sentence with a gap for a value. `make` fills the gap and chooses the other parts at random."""

    kind: str
    name: str
    values: Sequence[str]
    make: Callable[[str, Pick], Pair]
    weight: float = 1.0  # its share of the kind's pairs, relative to the kind's other templates
