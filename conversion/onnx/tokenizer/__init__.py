"""Build model_text.onnx: the single graph with its tokenizer as ONNX operators, from strings to strings.

    text, and the settings of the search, without num_return_sequences
    -> translations, scores

The tokenizer is tokenizer.json, whatever class tokenizer_config.json names. `convert` writes it for other classes, in
segmentation.py, sentencepiece_model.py, or `read_fast_tokenizer` of toolkits/hugging_face.py. bpe.py and unigram.py
refuse what the operators cannot do.

It needs ONNX Runtime and no other file. Two operators are ONNX Runtime extensions, not standard ones (see encode.py),
so it does not replace `model.onnx`.

source.py           what tokenizers of sources have in common;  bpe.py, unigram.py: the two kinds
encode.py           texts -> token ids;  encode_bytes.py, encode_pieces.py: the parts of the two kinds
decode.py           token ids -> texts
characters.py, trie.py, charsmap.py: tables of characters, strings and replacements, with their operators
"""

from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import InputError
from vaswani_transformer.files import read_json_object
from vaswani_transformer.modeling_vaswani_transformer import VALID_ABOVE, target_vocab_size
from vaswani_transformer.search_vaswani_transformer import SearchSettings
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER

from ..graph_builder import GraphBuilder
from .bpe import ByteLevelBPE
from .decode import Spelling, decode_texts
from .encode import encode_texts
from .source import SourceTokenizer, read_type
from .unigram import Unigram

FIXED_INPUT = "num_return_sequences"  # a constant here: 1


class TextTokenizer(NamedTuple):
    source: SourceTokenizer
    target: Spelling


def load_text_tokenizer(folder: Path) -> TextTokenizer:
    """Read the tokenizers of a model folder. Raises InputError naming what the operators do not support."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise InputError(f"{path}: no such file; --text builds it into the graph")
    kind = read_type(read_json_object(path, "model").get("model"))
    source = (Unigram if kind == "Unigram" else ByteLevelBPE).read(folder)
    target = folder / TARGET_TOKENIZER
    return TextTokenizer(source, Spelling.read(target if target.is_dir() else folder))


def add_tokenizer(graph: ModelProto, tokenizer: TextTokenizer, model: Model) -> ModelProto:
    """Add the tokenizer to the single graph in place, so that its input and output are strings."""
    search = graph.graph
    for node in search.node:  # free the name "scores" for the new output
        for values in (node.input, node.output):
            values[:] = ["search.scores" if name == "scores" else name for name in values]
    before, after = GraphBuilder("text."), GraphBuilder("translation.")
    ids, mask, is_blank = encode_texts(before, "text", tokenizer.source, cast(int, model.config.pad_token_id))
    before.Identity(ids, name="input_ids")
    before.Identity(mask, name="attention_mask")
    sequences, scores = (after.Gather(name, 0, axis=1) for name in ("sequences", "search.scores"))
    texts = decode_texts(after, sequences, tokenizer.target, target_vocab_size(model.config))
    # As in Translator, a text without a letter or digit is copied, and a text without any hypothesis has an empty
    # translation.
    has_translation = after.And(after.Greater(scores, np.float32(VALID_ABOVE)), after.Not(is_blank))
    after.Where(has_translation, texts, after.Where(is_blank, "text", b""), name="translations")
    after.Where(has_translation, scores, np.float32(0), name="scores")
    settings = [value for value in search.input if value.name in vars(SearchSettings()) and value.name != FIXED_INPUT]
    tensors = [tensor for tensor in search.initializer if tensor.name != FIXED_INPUT]
    tensors += [numpy_helper.from_array(np.array(1), FIXED_INPUT), *before.own_initializers, *after.own_initializers]
    types = {"text": TensorProto.STRING, "translations": TensorProto.STRING, "scores": TensorProto.FLOAT}
    text, *outputs = (helper.make_tensor_value_info(name, type, ["batch"]) for name, type in types.items())
    nodes = [*before.nodes, *search.node, *after.nodes]
    search.CopyFrom(helper.make_graph(nodes, "translation of texts", [text, *settings], outputs, tensors))
    graph.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return graph
