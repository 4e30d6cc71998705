"""How a long text is cut into parts that a model translates one at a time.

Translator, the ONNX translator and the pipeline share this file. It travels to the Hub with the pipeline and needs the
standard library alone.
"""

import re
from collections.abc import Callable, Iterator

# In a model's folder: the folder of the decoder's tokenizer, where the languages share no vocabulary.
TARGET_TOKENIZER = "target_tokenizer"

# A text of more tokens is cut: far more than the sentences that models are trained on.
MAX_SOURCE_LENGTH = 256
SHORTEST_MAX_SOURCE_LENGTH = 8  # a character takes up to four tokens, </s> one
# A longer text per allowed token is tokenised piece by piece: a line of ten million letters costs no memory.
CHARACTERS_PER_TOKEN = 32

# After a full stop and the quotes and brackets that close with it; Chinese and Japanese put no space there.
SENTENCE_END = re.compile(r"[.!?…]+[\"'”’»)\]]*(?=\s|\Z)|[。！？]+[」』）]*")
SPACE = re.compile(r"\s+")

# Token ids of a text, ending in </s>, and the character at which each token begins.
Encode = Callable[[str], tuple[list[int], list[int]]]


def split_text(text: str, limit: int, encode: Encode) -> Iterator[tuple[list[int], str]]:
    """The token ids of each part, at most `limit`, and the separator that goes before the part's translation.

    A text that fits is one part, a text of white space alone has none. A longer one is cut at the end of a sentence,
    else at a space, else between letters.
    """
    rest, separator = text, ""
    while rest and not rest.isspace():
        window = rest[: limit * CHARACTERS_PER_TOKEN]
        ids, starts = encode(window)
        if len(ids) <= limit and len(window) == len(rest):
            yield ids, separator
            return
        if rest[0].isspace():  # more white space than a part holds would be a part without a word
            rest = rest.lstrip()
            continue
        # The first token for which there is no room; </s>, the last one, has no place in the text.
        reach = max(1, starts[limit - 1]) if len(ids) > limit else len(window)
        head = rest[: best_cut(rest, reach)]
        ids, _ = encode(head.rstrip())
        # NFKC turns one character into up to 18: only a part that consists of such a character is truncated.
        yield ids if len(ids) <= limit else [*ids[: limit - 1], ids[-1]], separator
        tail = rest[len(head) :]
        rest = tail.lstrip()
        separator = " " if len(rest) < len(tail) or head[-1:].isspace() else ""


def best_cut(text: str, reach: int) -> int:
    """Where to cut a text within its first `reach` characters: the last end of a sentence, or else the last space."""
    # One character more, so that the space after a full stop at the very end is seen.
    for boundary in (SENTENCE_END, SPACE):
        matches = boundary.finditer(text[: reach + 1])
        if cuts := [match.end() for match in matches if 0 < match.start() and match.end() <= reach]:
            return cuts[-1]
    return reach


__all__ = ["split_text"]
