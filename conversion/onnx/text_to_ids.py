"""Texts -> token ids, padded, by operators that every ONNX Runtime has: the byte-level BPE of `tokenization.py`.

Each step works on all characters of all texts at once, one after the other in a row, with a mark after each text:
characters, their numbers, where words begin, their bytes, merges, and the mark becomes `</s>`.

ONNX has no operator that says which character a string is. ONNX Runtime has two that help: `Tokenizer` divides strings
into characters, and `MurmurHash3` makes numbers of them. Of up to four bytes, whose count is known, that hash is a
bijection, so it can be undone; two hashes agree on one count alone, for each character of Unicode.

What is a letter, a number, a space, and which letter is the small one, is what the tokenizers library says at export.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto
from tokenizers import Regex, normalizers, pre_tokenizers

from vaswani_transformer.errors import InputError

from .operators import Operators, tensor_type

UNICODE = 0x110000
BLOCK = 256
OTHER, LETTER, NUMBER, SPACE, ALONE = range(5)
MARK = b"\n"  # after each text
# The bytes as byte-level BPE spells them: visible ones as themselves, the others from U+0100 on.
VISIBLE = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
HIDDEN = [byte for byte in range(256) if byte not in VISIBLE]
SPELLING = {byte: chr(byte) for byte in VISIBLE} | {byte: chr(256 + i) for i, byte in enumerate(HIDDEN)}


@dataclass(frozen=True)
class ByteLevelBPE:
    """A tokenizer.json of the kind that `vaswani-transformer tokenizer` writes."""

    vocabulary: dict[str, int]
    merges: list[tuple[str, str]]
    end: int  # the id that follows each text
    control: frozenset[int]
    lowercase: bool
    split_digits: bool

    @classmethod
    def read(cls, folder: Path) -> "ByteLevelBPE":
        """Raises InputError naming all that another kind of tokenizer has."""
        content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        unknown = [f"{name} {found}" for name, found in unsupported(content, settings)]
        if unknown:
            raise InputError(
                f"{folder / 'tokenizer.json'}: --text needs a byte-level BPE as `vaswani-transformer tokenizer` trains "
                f"it; this one has {'; '.join(unknown)}"
            )
        merges = [tuple(merge.split(" ")) if isinstance(merge, str) else merge for merge in content["model"]["merges"]]
        return cls(
            content["model"]["vocab"],
            [(left, right) for left, right in merges],
            end_of(content["post_processor"])[0],
            frozenset(token["id"] for token in content["added_tokens"]),
            content["normalizer"] is not None,
            "Digits" in [step["type"] for step in steps_of(content["pre_tokenizer"])],
        )

    def in_order(self) -> bool:
        """Whether no merge needs what a later one makes. Training gives them so."""
        made = {left + right: rank for rank, (left, right) in enumerate(self.merges)}
        return all(max(made.get(part, -1) for part in pair) < rank for rank, pair in enumerate(self.merges))


def steps_of(before: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of a pre_tokenizer: of a Sequence, which may have one alone, those in it."""
    return before.get("pretokenizers", []) if before.get("type") == "Sequence" else [before]


def unsupported(content: dict[str, Any], settings: dict[str, Any]) -> list[tuple[str, str]]:
    """Fields of the two files, and what they hold, that the operators below do not do."""

    def kind(part: Any) -> Any:
        return part.get("type") if isinstance(part, dict) else part

    found = []
    model, before = content.get("model") or {}, content.get("pre_tokenizer") or {}
    if kind(model) != "BPE":
        return [("model", str(kind(model)))]
    for field in ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        if model.get(field):
            found.append((f"model.{field}", str(model[field])))
    if model.get("ignore_merges"):
        found.append(("model.ignore_merges", "true"))
    if missing := [byte for byte, spelling in SPELLING.items() if spelling not in model["vocab"]]:
        found.append(("model.vocab", f"without {len(missing)} of the 256 bytes"))
    if content.get("normalizer") not in (None, {"type": "Lowercase"}):
        found.append(("normalizer", str(kind(content["normalizer"]))))
    steps = steps_of(before)
    if len(steps) == 2 and steps[0] == {"type": "Digits", "individual_digits": True}:
        steps = steps[1:]
    if (
        [kind(step) for step in steps] != ["ByteLevel"]
        or steps[0].get("add_prefix_space")
        or not steps[0].get("use_regex", True)
    ):
        found.append(("pre_tokenizer", json.dumps(before)))
    if kind(content.get("decoder")) != "ByteLevel":
        found.append(("decoder", str(kind(content.get("decoder")))))
    after = content.get("post_processor") or {}
    if kind(after) != "TemplateProcessing" or len(end_of(after)) != 1:
        found.append(("post_processor", f"{kind(after)}, not a text and one token"))
    if others := [token["content"] for token in content.get("added_tokens", []) if not token["special"]]:
        found.append(("added_tokens", f"{others} that are no control tokens"))
    if not settings.get("split_special_tokens"):
        found.append(("split_special_tokens (tokenizer_config.json)", "false, so that typed control tokens are none"))
    if settings.get("clean_up_tokenization_spaces"):
        found.append(("clean_up_tokenization_spaces (tokenizer_config.json)", "true"))
    return found


def end_of(template: dict[str, Any]) -> list[int]:
    """The ids that follow a text; none if anything else is before it."""
    single = template["single"]
    if [list(part) for part in single] != [["Sequence"], ["SpecialToken"]]:
        return []
    return template["special_tokens"][single[1]["SpecialToken"]["id"]]["ids"]


# ---- tables ----------------------------------------------------------------------------------------------------


@cache
def character_classes(split_digits: bool) -> np.ndarray:
    """(0x110000,) of OTHER, LETTER, NUMBER, SPACE as the expression of ByteLevel has them, ALONE for split digits."""
    if split_digits:
        classes = character_classes(False).copy()
        digits = pre_tokenizers.Digits(individual_digits=False)
        for first, block in blocks_of_unicode():
            for piece, (start, end) in digits.pre_tokenize_str(block):
                # A run of digits is apart from the rest: with a letter before it there are two pieces.
                if len(digits.pre_tokenize_str("a" + piece[0])) == 2:
                    classes[first + start : first + end] = ALONE
        return classes
    classes = np.full(UNICODE, OTHER, np.uint8)
    runs = pre_tokenizers.Split(Regex(r"\p{L}+|\p{N}+|\s+"), "isolated")
    kinds = {LETTER: r"\p{L}", NUMBER: r"\p{N}", SPACE: r"\s"}
    tests = [(kind, pre_tokenizers.Split(Regex(expression), "removed")) for kind, expression in kinds.items()]
    for first, block in blocks_of_unicode():
        for piece, (start, end) in runs.pre_tokenize_str(block):
            kind = next((kind for kind, test in tests if not test.pre_tokenize_str(piece[0])), OTHER)
            classes[first + start : first + end] = kind
    return classes


@cache
def small_letters() -> tuple[np.ndarray, np.ndarray]:
    """(0x110000,) each: how far off the small letter is, and the number of what follows it (U+0130: a dot), or 0."""
    away, second = np.zeros(UNICODE, np.int32), np.zeros(UNICODE, np.int32)
    for first, block in blocks_of_unicode():
        lowered = normalizers.Lowercase().normalize_str("\n".join(block)).split("\n")
        if first == 0:  # of the line feed itself
            lowered[ord("\n") : ord("\n") + 2] = ["\n"]
        for number, letters in enumerate(lowered, start=first):
            assert 1 <= len(letters) <= 2, f"U+{number:04X} has {len(letters)} small letters"
            away[number], second[number] = ord(letters[0]) - number, ord(letters[1]) if letters[1:] else 0
    return away, second


def blocks_of_unicode():
    """Numbers and characters, a block at a time; surrogates are none."""
    for first in range(0, UNICODE, BLOCK):
        if not 0xD800 <= first < 0xE000:
            yield first, "".join(map(chr, range(first, first + BLOCK)))


@dataclass(frozen=True)
class PairTable:
    """Pairs of ids -> ranks: the pair (a, b) is at place first[a] + b, if owner says that the place is a's."""

    first: np.ndarray  # (vocabulary,)
    owner: np.ndarray  # (places,); -1: nobody's
    rank: np.ndarray  # (places,)

    @classmethod
    def of(cls, pairs: dict[tuple[int, int], int], vocabulary: int) -> "PairTable":
        """Rows of a sparse matrix laid over one another, the fullest first, each where no place is taken."""
        rows: dict[int, list[int]] = {}
        for left, right in pairs:
            rows.setdefault(left, []).append(right)
        most = 2 * len(pairs) + vocabulary  # doubled where that is too few
        first = np.zeros(vocabulary, np.int32)
        taken = np.zeros(most + vocabulary, bool)
        for left, rights in sorted(rows.items(), key=lambda row: -len(row[1])):
            while True:
                clash = np.zeros(len(taken) - vocabulary, bool)
                for right in rights:
                    clash |= taken[right : right + len(clash)]
                if not clash.all():
                    break
                taken = np.concatenate((taken, np.zeros(len(taken), bool)))
            first[left] = int(clash.argmin())
            taken[[first[left] + right for right in rights]] = True
        owner = np.full(int(first.max()) + vocabulary, -1, np.int32)
        rank = np.zeros_like(owner)
        for (left, right), number in pairs.items():
            owner[first[left] + right], rank[first[left] + right] = left, number
        return cls(first, owner, rank)


# ---- operators -------------------------------------------------------------------------------------------------


def token_ids(op: Operators, texts: str, bpe: ByteLevelBPE, pad: int) -> tuple[str, str, str]:
    """texts: strings (batch,) -> input_ids and attention_mask, (batch, source), and (batch,): is there only space?"""
    marked = op.StringConcat(texts, MARK)
    characters = op.Tokenizer(
        marked, domain="com.microsoft", separators=[""], mark=0, mincharnum=1, pad_value=""
    )  # (batch, longest)
    exists = op.Not(op.Equal(characters, b""))
    # The last one of a row is the mark.
    is_text = op.And(exists, op.Slice(op.Pad(exists, [0, 0, 0, 1]), [1], [2**31], [1]))
    codes = character_numbers(op, characters)
    blank = op.Or(op.Not(is_text), op.Cast(looked_up(op, python_spaces(), codes), to=TensorProto.BOOL))
    only_space = op.Not(op.Cast(op.ReduceMax(as_int(op, op.Not(blank)), [1], keepdims=0), to=TensorProto.BOOL))
    rows = op.Expand(op.Unsqueeze(op.Range(0, op.Squeeze(op.Shape(texts)), 1), [1]), op.Shape(codes))

    # From here on all characters are in one row, marks included: it is never empty.
    everywhere = op.Reshape(exists, [-1])

    def in_one_row(values: str) -> str:
        return op.Compress(op.Reshape(values, [-1]), everywhere)

    codes, is_text, rows = in_one_row(codes), in_one_row(is_text), in_one_row(rows)
    if bpe.lowercase:
        codes, is_text, rows = lowered(op, codes, is_text, rows)
    classes = op.Where(is_text, looked_up(op, character_classes(bpe.split_digits), codes), np.uint8(ALONE))
    words = op.Sub(op.CumSum(as_int(op, word_starts(op, codes, classes)), 0), 1)
    symbols, is_byte = symbols_of_bytes(op, codes, is_text, bpe)

    def of_bytes(values: str) -> str:
        spread = op.Expand(op.Unsqueeze(values, [1]), op.Shape(is_byte))
        return op.Compress(op.Reshape(spread, [-1]), op.Reshape(is_byte, [-1]))

    symbols = op.Compress(op.Reshape(symbols, [-1]), op.Reshape(is_byte, [-1]))
    ids, rows = merged(op, symbols, of_bytes(words), of_bytes(rows), bpe)
    ids, mask = padded(op, ids, rows, op.Shape(texts), pad)
    return ids, mask, only_space


def character_numbers(op: Operators, characters: str) -> str:
    """Strings of one character each -> int32, the number in Unicode; of an empty string, any."""
    flat = op.Reshape(characters, [-1])
    seeds = (0, 1)
    hashes = [
        op.Unsqueeze(op.MurmurHash3(flat, domain="com.microsoft", positive=1, seed=seed), [0, 1]) for seed in seeds
    ]
    hash = op.Concat(*hashes, axis=0)  # (seeds, 1, characters)

    def xor_shifted(value: str, *shifts: int) -> str:
        for shifted in [op.BitShift(value, np.uint32(shift), direction="RIGHT") for shift in shifts]:
            value = op.BitwiseXor(value, shifted)
        return value

    def times_inverse(value: str, factor: int) -> str:
        return op.Mul(value, np.uint32(pow(factor, -1, 2**32)))

    def rotated_right(value: str, by: int) -> str:
        right = op.BitShift(value, np.uint32(by), direction="RIGHT")
        return op.BitwiseOr(right, op.BitShift(value, np.uint32(32 - by), direction="LEFT"))

    # MurmurHash3_x86_32 (Austin Appleby, public domain) backwards: the final mix, ...
    hash = times_inverse(xor_shifted(hash, 16), 0xC2B2AE35)
    hash = xor_shifted(times_inverse(xor_shifted(hash, 13, 26), 0x85EBCA6B), 16)
    # ... for each length that a character may have, a tail of one to three bytes or a block of four, ...
    tail = op.BitwiseXor(hash, np.array([1, 2, 3], np.uint32).reshape(1, 3, 1))
    block = op.Sub(op.BitwiseXor(hash, np.uint32(4)), np.uint32(0xE6546B64))
    hash = op.Concat(tail, rotated_right(times_inverse(block, 5), 13), axis=1)  # (seeds, lengths, characters)
    hash = op.BitwiseXor(hash, np.array(seeds, np.uint32).reshape(-1, 1, 1))
    # ... the mix of the block or the tail: the bytes, the first one lowest.
    bytes = times_inverse(rotated_right(times_inverse(hash, 0x1B873593), 15), 0xCC9E2D51)
    first, second = op.Gather(bytes, 0, axis=0), op.Gather(bytes, 1, axis=0)  # (lengths, characters)
    free = np.array([0x0000007F, 0x00003F1F, 0x003F3F0F, 0x3F3F3F07], np.uint32).reshape(4, 1)
    form = np.array([0x00000000, 0x000080C0, 0x008080E0, 0x808080F0], np.uint32).reshape(4, 1)
    is_it = op.And(op.Equal(first, second), op.Equal(op.BitwiseAnd(first, ~free), form))
    bits = op.BitwiseAnd(op.Mul(first, op.Cast(is_it, to=TensorProto.UINT32)), free)
    number = op.Mul(op.BitwiseAnd(bits, np.uint32(255)), np.array([[1], [64], [64**2], [64**3]], np.uint32))
    for byte, factors in ((1, [0, 1, 64, 64**2]), (2, [0, 0, 1, 64]), (3, [0, 0, 0, 1])):
        six = op.BitwiseAnd(op.BitShift(bits, np.uint32(8 * byte), direction="RIGHT"), np.uint32(63))
        number = op.Add(number, op.Mul(six, np.array(factors, np.uint32).reshape(4, 1)))
    numbers = op.ReduceSum(op.Cast(number, to=TensorProto.INT32), [0], keepdims=0)
    return op.Reshape(numbers, op.Shape(characters))


def looked_up(op: Operators, table: np.ndarray, codes: str) -> str:
    """table[codes]; of a table for all of Unicode, equal blocks are stored once."""
    blocks: dict[bytes, int] = {}
    rows = table.reshape(-1, BLOCK)
    starts = [blocks.setdefault(row.tobytes(), len(blocks) * BLOCK) for row in rows]
    start = op.Gather(np.array(starts, np.int32), op.Div(codes, np.int32(BLOCK)))
    stored = np.frombuffer(b"".join(blocks), table.dtype)
    return op.Gather(stored, op.Add(start, op.BitwiseAnd(codes, np.int32(BLOCK - 1))))


@cache
def python_spaces() -> np.ndarray:
    """(0x110000,): what `str.isspace` says, by which the Translator knows an empty text."""
    return np.array([chr(number).isspace() for number in range(UNICODE)], np.uint8)


def lowered(op: Operators, codes: str, is_text: str, rows: str) -> tuple[str, str, str]:
    away, second = (looked_up(op, table, codes) for table in small_letters())
    both = op.Concat(op.Unsqueeze(op.Add(codes, away), [1]), op.Unsqueeze(second, [1]), axis=1)
    exists = op.Or(op.Greater(both, np.int32(0)), np.array([[True, False]]))

    def twice(values: str) -> str:
        return op.Compress(op.Reshape(op.Expand(op.Unsqueeze(values, [1]), op.Shape(both)), [-1]), kept)

    kept = op.Reshape(exists, [-1])
    return op.Compress(op.Reshape(both, [-1]), kept), twice(is_text), twice(rows)


def word_starts(op: Operators, codes: str, classes: str) -> str:
    """Where a match of ByteLevel's expression begins, bool (characters,):

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+
    """

    def is_class(values: str, kind: int) -> str:
        return op.Equal(values, np.uint8(kind))

    def is_character(values: str, characters: str) -> str:
        found = op.Equal(values, np.int32(ord(characters[0])))
        for character in characters[1:]:
            found = op.Or(found, op.Equal(values, np.int32(ord(character))))
        return found

    before, after = shifted(op, classes, 1, np.uint8(ALONE)), shifted(op, classes, -1, np.uint8(ALONE))
    is_space, is_alone = is_class(classes, SPACE), is_class(classes, ALONE)
    # Runs of one class; what is alone is one each.
    starts = op.Or(op.Not(op.Equal(classes, before)), is_alone)
    # A blank belongs to the run after it.
    after_blank = is_character(shifted(op, codes, 1, np.int32(0)), " ")
    after_blank = op.And(after_blank, is_class(before, SPACE))
    starts = op.And(starts, op.Not(op.And(after_blank, op.Not(op.Or(is_space, is_alone)))))
    # Of several spaces before a word the last one is apart: (?!\S).
    goes_on = op.Not(op.Or(is_class(after, SPACE), is_class(after, ALONE)))
    starts = op.Or(starts, op.And(op.And(is_space, is_class(before, SPACE)), goes_on))
    # 's and the like, where a match begins.
    second, third = shifted(op, codes, -1, np.int32(0)), shifted(op, codes, -2, np.int32(0))
    apostrophe = op.And(op.And(is_character(codes, "'"), starts), op.Not(is_alone))
    short = op.And(apostrophe, is_character(second, "stmd"))
    with_e = op.And(is_character(second, "rv"), is_character(third, "e"))
    long = op.And(apostrophe, op.Or(with_e, op.And(is_character(second, "l"), is_character(third, "l"))))
    starts = op.And(starts, op.Not(shifted(op, op.Or(short, long), 1, False)))
    return op.Or(op.Or(starts, shifted(op, short, 2, False)), shifted(op, long, 3, False))


def shifted(op: Operators, values: str, by: int, filler: Any) -> str:
    """(n,) -> (n,): what stood `by` places before, or after if that is negative."""
    padding = [filler] * abs(by)
    whole = op.Concat(*([padding, values] if by > 0 else [values, padding]), axis=0)
    return op.Slice(whole, [0], [-by], [0]) if by > 0 else op.Slice(whole, [-by], [2**31], [0])


def symbols_of_bytes(op: Operators, codes: str, is_text: str, bpe: ByteLevelBPE) -> tuple[str, str]:
    """Characters -> the ids of their bytes in UTF-8, (characters, 4), and which of the four there are.

    A mark is one byte, whose id is the one of `</s>`.
    """
    code = op.Unsqueeze(codes, [1])
    limits = np.array([0x80, 0x800, 0x10000], np.int32)
    more = op.ReduceSum(op.Cast(op.GreaterOrEqual(code, limits), to=TensorProto.INT32), [1], keepdims=1)
    place = np.arange(4, dtype=np.int32)
    is_byte = op.LessOrEqual(place, more)
    # The first byte has the highest bits below its own mark, the others six each.
    shift = op.Mul(op.Max(op.Sub(more, place), np.int32(0)), np.int32(6))
    bits = op.BitShift(op.Cast(code, to=TensorProto.UINT32), op.Cast(shift, to=TensorProto.UINT32), direction="RIGHT")
    bits = op.Cast(bits, to=TensorProto.INT32)
    lead = op.Add(bits, op.Gather(np.array([0, 0xC0, 0xE0, 0xF0], np.int32), more))
    bytes = op.Where(place == 0, lead, op.Add(op.BitwiseAnd(bits, np.int32(63)), np.int32(0x80)))
    # Where there is no byte its number may be any.
    ids = np.array([bpe.vocabulary[SPELLING[byte]] for byte in range(256)])
    symbols = op.Gather(ids, op.BitwiseAnd(bytes, np.int32(255)))
    return op.Where(op.Unsqueeze(is_text, [1]), symbols, bpe.end), is_byte


def merged(op: Operators, symbols: str, words: str, rows: str, bpe: ByteLevelBPE) -> tuple[str, str]:
    """BPE: in each word the pair of the lowest rank is merged, the leftmost of equal ones, until there is none.

    Equal ones in one round, where none of them can give rise to a pair that has to be merged before the next.
    """
    pairs, products = {}, []
    for rank, (left, right) in enumerate(bpe.merges):
        pairs[bpe.vocabulary[left], bpe.vocabulary[right]] = rank
        products.append(bpe.vocabulary[left + right])
    if not pairs:
        return symbols, rows
    table = PairTable.of(pairs, max(max(bpe.vocabulary.values()), *bpe.control) + 1)
    never = np.int64(2**62)
    empty = op.Expand(never, op.Add(op.Gather(words, [-1]), 1))  # (words,)
    body = Operators("text.merge.", op)
    names = [f"text.merge.{name}" for name in ("symbols", "words", "rows")]
    symbols_now, words_now, rows_now = names
    next_word = shifted(body, words_now, -1, -1)
    place = body.Add(
        body.Gather(table.first, symbols_now), shifted(body, body.Cast(symbols_now, to=6), -1, np.int32(0))
    )
    is_pair = body.Equal(body.Cast(body.Gather(table.owner, place), to=TensorProto.INT64), symbols_now)
    is_pair = body.And(is_pair, body.Equal(words_now, next_word))
    rank = body.Cast(body.Gather(table.rank, place), to=TensorProto.INT64)
    places = body.Range(0, body.Squeeze(body.Shape(symbols_now)), 1)
    if bpe.in_order():
        key = body.Where(is_pair, rank, never)
    else:
        key = body.Where(is_pair, body.Add(body.Mul(rank, body.Shape(symbols_now)), places), never)
    best = body.ScatterElements(empty, words_now, key, reduction="min")
    chosen = body.And(is_pair, body.Equal(key, body.Gather(best, words_now)))
    # Of a letter that is repeated every other pair, from the left.
    begins = body.And(chosen, body.Not(shifted(body, chosen, 1, False)))
    run = body.CumSum(as_int(body, begins), 0)
    run_start = body.Gather(body.Concat([0], body.Compress(places, begins), axis=0), run)
    is_even = body.Equal(body.BitwiseAnd(body.Sub(places, run_start), 1), 0)
    chosen = body.And(chosen, is_even)
    together = body.Where(chosen, body.Gather(np.array(products), body.Where(is_pair, rank, 0)), symbols_now)
    stays = body.Not(shifted(body, chosen, 1, False))
    after = [body.Compress(values, stays) for values in (together, words_now, rows_now)]
    go_on = body.Cast(body.ReduceMax(as_int(body, chosen), keepdims=0), to=TensorProto.BOOL)
    ids, _, rows = op.loop(
        body, dict(zip(names, (symbols, words, rows), strict=True)), [tensor_type(TensorProto.INT64)] * 3, go_on, after
    )
    return ids, rows


def padded(op: Operators, ids: str, rows: str, batch: str, filler: int) -> tuple[str, str]:
    """Values in one row, and the row of the batch that each belongs to -> (batch, longest), and 1 where one is."""
    ones = op.Expand(1, op.Shape(ids))
    lengths = op.ScatterElements(op.Expand(0, batch), rows, ones, reduction="add")
    longest = op.ReduceMax(lengths, keepdims=0)
    begins = op.CumSum(lengths, 0, exclusive=1)
    columns = op.Sub(op.Range(0, op.Squeeze(op.Shape(ids)), 1), op.Gather(begins, rows))
    shape = op.Concat(batch, op.Unsqueeze(longest, [0]), axis=0)
    places = op.Concat(op.Unsqueeze(rows, [1]), op.Unsqueeze(columns, [1]), axis=1)
    values = op.ScatterND(op.Expand(filler, shape), places, ids)
    mask = op.Less(op.Range(0, longest, 1), op.Unsqueeze(lengths, [1]))
    return values, as_int(op, mask)


def as_int(op: Operators, flags: str) -> str:
    return op.Cast(flags, to=TensorProto.INT64)
