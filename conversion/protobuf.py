"""TensorFlow's checkpoint format (a "tensor bundle"), read without TensorFlow, and Protocol Buffers' wire format.

`<prefix>.index` is a sorted table, as in LevelDB, from names to positions in `<prefix>.data-00000-of-0000N`.
https://github.com/tensorflow/tensorflow/blob/master/tensorflow/core/util/tensor_bundle/tensor_bundle.h
The entries are messages of Protocol Buffers, as SentencePiece models are; `parse_fields` knows the part of the wire
format that both use.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vaswani_transformer.errors import BrokenFileError
from vaswani_transformer.files import check_readable

FOOTER, MAGIC = 48, 0xDB4775248B80FB57
NO_COMPRESSION = 0
SHARDS, ENDIANNESS = 1, 2  # fields of BundleHeaderProto
DTYPE, SHAPE, SHARD, OFFSET, SIZE, CHECKSUM, SLICES = 1, 2, 3, 4, 5, 6, 7  # fields of BundleEntryProto
TYPES = {1: "<f4", 2: "<f8", 3: "<i4", 9: "<i8", 19: "<f2"}  # of tensorflow.DataType
# The bytes whose remainder is 0xFFFFFFFF, the value with which a CRC-32C begins.
INITIAL_VALUE = np.array([0x54, 0x64, 0x1F, 0x64], np.uint8)
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types


@dataclass(frozen=True)
class Entry:
    dtype: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: bytes | None  # masked CRC-32C, see `mask`


class Bundle:
    """A checkpoint. entries: the type, shape and position of each variable"""

    def __init__(self, index: Path):
        self.index = index
        try:
            table = dict(read_table(index.read_bytes()))
            header = dict(parse_fields(table.pop(b"")))
            if header.get(ENDIANNESS, 0):
                raise ValueError("big-endian")
            self.shards = int(header.get(SHARDS, 1))
            self.entries = {name.decode("utf-8"): read_entry(value) for name, value in table.items()}
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise BrokenFileError(f"{index} is not a complete checkpoint index ({error}); copy it again") from None

    def read_tensor(self, name: str) -> np.ndarray:
        """Return the variable, read from its shard. Raises BrokenFileError if the shard is missing or too short."""
        entry = self.entries[name]
        shard = self.index.with_name(f"{self.index.stem}.data-{entry.shard:05d}-of-{self.shards:05d}")
        if not shard.exists():
            raise BrokenFileError(f"{shard}: no such file, but {self.index.name} refers to it")
        check_readable(shard)
        dtype = np.dtype(TYPES[entry.dtype])
        count = math.prod(entry.shape)
        if entry.size != count * dtype.itemsize or entry.offset + entry.size > shard.stat().st_size:
            raise BrokenFileError(f"{shard} is too short for {name} ({shard.stat().st_size:,} bytes); copy it again")
        array = np.fromfile(shard, dtype=dtype, count=count, offset=entry.offset)
        if entry.checksum is not None and entry.checksum != mask(crc32c(array.view(np.uint8))):
            raise BrokenFileError(f"{shard} is damaged: {name} does not match its checksum; copy it again")
        return array.reshape(entry.shape)


def read_entry(message: bytes) -> Entry:
    """Parse a BundleEntryProto."""
    entry = dict(parse_fields(message))
    if SLICES in entry:
        raise ValueError("a partitioned variable")
    # TensorShapeProto: field 2 is a dimension, in which field 1 is its size.
    shape = [
        dict(parse_fields(dimension)).get(1, 0)
        for number, dimension in parse_fields(entry.get(SHAPE, b""))
        if number == 2
    ]
    dtype, shard, offset, size = (entry.get(number, 0) for number in (DTYPE, SHARD, OFFSET, SIZE))
    return Entry(dtype, tuple(shape), shard, offset, size, entry.get(CHECKSUM))


def mask(checksum: int) -> bytes:
    """Return a checksum in the form in which TensorFlow and LevelDB save it."""
    rotated = (checksum >> 15 | checksum << 17) & 0xFFFFFFFF
    return ((rotated + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


def crc32c(data: np.ndarray) -> int:
    """Return the CRC-32C of bytes, which neither zlib nor numpy has.

    Rows of bytes are processed side by side, and their remainders are joined in pairs.
    """
    data = np.concatenate((INITIAL_VALUE, data))
    width = 256
    rows = 1 << (len(data) // width).bit_length()
    padded = np.zeros(rows * width, np.uint8)  # zeros in front do not change the remainder
    padded[len(padded) - len(data) :] = data
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = table >> 1 ^ np.where(table & 1, np.uint32(0x82F63B78), np.uint32(0))
    # The last 32 states become the columns of the matrix that appends a row of zeros.
    states = np.concatenate((np.zeros(rows, np.uint32), np.uint32(1) << np.arange(32, dtype=np.uint32)))
    for column in padded.reshape(rows, width).T:
        states[:rows] ^= column
        states = table[states & 0xFF] ^ states >> 8
    states, matrix = states[:rows], states[rows:]

    def append_zeros(values: np.ndarray) -> np.ndarray:
        bits = values[:, None] >> np.arange(32, dtype=np.uint32) & 1
        return np.bitwise_xor.reduce(bits * matrix, axis=1)

    while len(states) > 1:
        states = append_zeros(states[::2]) ^ states[1::2]
        matrix = append_zeros(matrix)
    return int(states[0]) ^ 0xFFFFFFFF


def read_table(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the (key, value) pairs of a LevelDB table."""
    if len(data) < FOOTER or int.from_bytes(data[-8:], "little") != MAGIC:
        raise ValueError("the table has no footer")
    # A block handle is (offset, size). The footer has the handles of the metaindex and of the index.
    (_, _, *index), _ = read_varints(data[-FOOTER:], 0, 4)
    for _, value in read_block(data, *index):
        handle, _ = read_varints(value, 0, 2)
        yield from read_block(data, *handle)


def read_block(data: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the (key, value) pairs of a block.

    Keys are prefix-compressed; the restart offsets and their count end the block.
    """
    if offset + size >= len(data):
        raise ValueError("truncated block")
    if data[offset + size] != NO_COMPRESSION:
        raise ValueError("a compressed block")
    block = data[offset : offset + size]
    end = len(block) - 4 * (int.from_bytes(block[-4:], "little") + 1)
    position, key = 0, b""
    while position < end:
        (shared, unshared, length), position = read_varints(block, position, 3)
        key = key[:shared] + block[position : position + unshared]
        position += unshared
        yield key, block[position : position + length]
        position += length


# ---- Protocol Buffers --------------------------------------------------------------------------------------------


def read_varint(data: bytes, position: int) -> tuple[int, int]:
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


def read_varints(data: bytes, position: int, count: int) -> tuple[list[int], int]:
    """Return `count` numbers and the position after them."""
    numbers = []
    for _ in range(count):
        number, position = read_varint(data, position)
        numbers.append(number)
    return numbers, position


def parse_fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message as (number, value): int for varints, bytes for all others.

    Raises ValueError if the message is damaged, TypeError if `data` is a number instead of a message.
    """
    position = 0
    while position < len(data):
        tag, position = read_varint(data, position)
        wire_type = tag & 7
        if wire_type == VARINT:
            value, position = read_varint(data, position)
            yield tag >> 3, value
            continue
        if wire_type == BYTES:
            length, position = read_varint(data, position)
        elif wire_type in (FIXED64, FIXED32):
            length = 8 if wire_type == FIXED64 else 4
        else:
            raise ValueError(f"unknown wire type {wire_type}")
        if position + length > len(data):
            raise ValueError("truncated field")
        yield tag >> 3, data[position : position + length]
        position += length
