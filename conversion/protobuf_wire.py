"""Parse the part of Protocol Buffers' wire format that SentencePiece models and TensorFlow's index files use."""

from collections.abc import Iterator
from typing import Any

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


def varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at `position` and the position after it. Raises ValueError at the end of the data."""
    number = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError("truncated number")
        byte = data[position]
        number |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return number, position


def varints(data: bytes, position: int, count: int) -> tuple[list[int], int]:
    """Return `count` numbers and the position after them."""
    numbers = []
    for _ in range(count):
        number, position = varint(data, position)
        numbers.append(number)
    return numbers, position


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message as (number, value): int for varints, bytes for all others.

    Raises ValueError if the message is damaged, TypeError if `data` is a number instead of a message.
    """
    position = 0
    while position < len(data):
        tag, position = varint(data, position)
        wire_type = tag & 7
        if wire_type == VARINT:
            value, position = varint(data, position)
            yield tag >> 3, value
            continue
        if wire_type == BYTES:
            length, position = varint(data, position)
        elif wire_type in (FIXED64, FIXED32):
            length = 8 if wire_type == FIXED64 else 4
        else:
            raise ValueError(f"unknown wire type {wire_type}")
        if position + length > len(data):
            raise ValueError("truncated field")
        yield tag >> 3, data[position : position + length]
        position += length
