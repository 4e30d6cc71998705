"""Shared by the tests of model_text.onnx: the two halves of a tokenizer as graphs, compared with the library."""

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from searches import session_of
from tokenizers import Tokenizer

from conversion.onnx.graph_builder import GraphBuilder
from conversion.onnx.tokenizer import load_text_tokenizer
from conversion.onnx.tokenizer.decode import decode_texts
from conversion.onnx.tokenizer.encode import encode_texts
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER, choose_cleaning

PAD = 1
# One of each kind that the tokenizers distinguish.
LETTERS = (
    "abstmdrevlSTé'’ \t\n\r\0\x1c\x85\xa0\u2003\u2028019½²٣Ⅷ"
    "!.-_</>İIẞσΣǅ日本🙂\u0301\u200d\u200c\u0645\u0915\xad\ufeff\u200b\ufffd\U0010ffff"
)


def session_with(op: GraphBuilder, inputs: dict[str, tuple], outputs: dict[str, tuple[str, int]]) -> Any:
    """Open a graph of only these operators; outputs: name -> (value, type)"""
    for name, (value, _) in outputs.items():
        op.Identity(value, name=name)
    given = [helper.make_tensor_value_info(name, *kind) for name, kind in inputs.items()]
    results = [helper.make_tensor_value_info(name, kind, None) for name, (_, kind) in outputs.items()]
    graph = op.model("part", given, results)
    graph.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return session_of(graph)


class Halves:
    """The tokenizers of a folder, and the two halves of its graph."""

    def __init__(self, folder: Path):
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.encode_special_tokens = True
        self.clean = choose_cleaning(self.tokenizer.normalizer)
        target = folder / TARGET_TOKENIZER
        self.target = Tokenizer.from_file(str((target if target.is_dir() else folder) / "tokenizer.json"))
        self.size = self.target.get_vocab_size()
        halves = load_text_tokenizer(folder)
        op = GraphBuilder("text.")
        ids, mask, is_blank = encode_texts(op, "text", halves.source, PAD)
        kinds = {"ids": (ids, TensorProto.INT64), "mask": (mask, TensorProto.INT64), "blank": (is_blank, 9)}
        self.first = session_with(op, {"text": (TensorProto.STRING, ["batch"])}, kinds)
        op = GraphBuilder("translation.")
        text = decode_texts(op, "ids", halves.target, self.size)
        inputs = {"ids": (TensorProto.INT64, ["batch", "length"])}
        self.second = session_with(op, inputs, {"texts": (text, TensorProto.STRING)})

    def check_ids(self, texts: list[str]) -> None:
        """Check that all texts have the tokens of the package tokenizers; name the first that differs."""
        ids, mask, blank = self.first.run(None, {"text": np.array(texts, object)})
        for text, row, flags, is_blank in zip(texts, ids, mask, blank, strict=True):
            expected = self.tokenizer.encode(self.clean(text)).ids
            rest = len(row) - len(expected)
            assert row.tolist() == expected + [PAD] * rest, ascii(text)
            assert flags.tolist() == [1] * len(expected) + [0] * rest
            assert is_blank == (not any(letter.isalnum() for letter in text))

    def check_texts(self, ids: list[list[int]]) -> None:
        """Check that all rows have the texts of the package tokenizers."""
        expected = self.target.decode_batch(ids, skip_special_tokens=True)
        assert self.second.run(None, {"ids": np.array(ids)})[0].tolist() == expected
