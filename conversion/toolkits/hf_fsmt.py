"""Hugging Face's FSMT: fairseq's WMT19 models. Positions as fairseq, from 2; the table of sinusoids is in the file.

transformers 5.18 trains that table with the rest. Where it is no longer the formula's, it is a learned table here.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vaswani_transformer.model_folder import read_json_object

from ..converted import OUTPUT, SOURCE, TARGET, Converted
from ..layout import base_of_concatenated, concatenated_sinusoids
from ..refuse import Reasons
from ..rename import Tensors
from ..vocabulary import Vocabulary, read_codes
from . import hugging_face
from .hf_marian import tokens_of

NAME = "hf-fsmt"
OFFSET = 2  # padding_idx + 1
EPSILON = 1e-5
ACTIVATIONS = ("relu", "gelu", "gelu_new", "silu", "swish")


def checkpoints(folder: Path) -> list[Path]:
    return [folder / "config.json"] if hugging_face.model_type_of(folder) == "fsmt" else []


def recognise(path: Path) -> bool:
    return hugging_face.model_type_of(path) == "fsmt"


def read(path: Path, reasons: Reasons) -> Converted:
    options, weights = hugging_face.load(path)
    reasons.sizes(options, hugging_face.SIZES)
    reasons.only(options, {"activation_function": ACTIVATIONS, "quantization_config": (None,)})
    if options.get("pad_token_id", 1) != 1:
        reasons.option(f"pad_token_id is {options['pad_token_id']}: positions are counted from it; only 1 is known")
    if reasons.options:
        reasons.refuse()
    d_model = options["d_model"]

    tensors = Tensors(weights, reasons)
    ours: dict[str, Tensor] = {}
    tables: list[Tensor] = []
    output = "model.decoder.output_projection.weight"
    if options.get("tie_word_embeddings", False):  # source, target and output are one, saved under one name or more
        names = ["model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", output]
        one = next((tensors.left[name] for name in names if name in tensors), None)
        if one is not None:
            tensors.left |= {name: one for name in names if name not in tensors}
    for stack, name in (("encoder", SOURCE), ("decoder", TARGET)):
        embedding = tensors.take(f"model.{stack}.embed_tokens.weight", None, d_model)
        if embedding is not None:
            ours[name] = embedding
        table = tensors.left.pop(f"model.{stack}.embed_positions.weight", None)
        if table is not None:
            tables.append(table)
    tensors.rename(hugging_face.rules(options["encoder_layers"], options["decoder_layers"]), ours)
    tensor = tensors.take(output, None, d_model)
    if tensor is not None:
        ours[OUTPUT] = tensor
    tensors.nothing_may_be_left()
    if not options.get("scale_embedding", True):
        for name in (SOURCE, TARGET):
            if name in ours:
                ours[name] = ours[name].float() / d_model**0.5

    notes = [
        "transformers ranks hypotheses by log P / L^length_penalty; generate() by log P / ((5 + L) / 6)^alpha, so that "
        "the same hypotheses may come in another order.",
        "FSMTTokenizer applies Moses' tokenizer; tokenizer.json splits at spaces: prepare the texts with sacremoses.",
    ]
    positions: dict[str, Any] = {"position_base": base_of_concatenated(d_model), "position_offset": OFFSET}
    learned = not all(is_sinusoid_table(table, d_model) for table in tables)
    if learned:
        notes.append("The saved sinusoids have been trained; they are a learned table here.")
        if len(tables) != 2 or tables[0].shape != tables[1].shape:
            reasons.fault("one stack has a trained table of positions, the other none or one of another size")
            reasons.refuse()
        for stack, table in zip(("encoder", "decoder"), tables, strict=True):
            ours[f"model.{stack}.positional_encoding.table.weight"] = table
        rows = len(tables[0]) - OFFSET
        positions = {"position_embedding_type": "learned", "max_position_embeddings": rows, "position_offset": OFFSET}
    rows = [len(ours[name]) if name in ours else 0 for name in (SOURCE, TARGET)]
    vocabulary, originals = read_vocabulary(path.parent, options, rows, notes)
    langs = options.get("langs")
    source_lang, target_lang = langs if isinstance(langs, list) and len(langs) == 2 else (None, None)
    return Converted(
        toolkit=NAME,
        path=path,
        config=hugging_face.sizes(options)
        | positions
        | {
            "activation_function": hugging_face.activation(options.get("activation_function", "relu")),
            "layer_norm_eps": EPSILON,
            "attention_bias": True,
        },
        tensors=ours,
        vocabulary=vocabulary,
        concatenated=not learned,
        notes=notes,
        originals=originals,
        options={"source_lang": source_lang, "target_lang": target_lang},
    )


def is_sinusoid_table(table: Tensor, d_model: int) -> bool:
    """Row 1, the padding's, is zeros."""
    expected = concatenated_sinusoids(len(table), d_model)
    expected[OFFSET - 1] = 0
    row = table.clone()
    row[OFFSET - 1] = torch.zeros(())
    return hugging_face.is_table(row, expected)


def read_vocabulary(
    folder: Path, options: Mapping[str, Any], rows: list[int], notes: list[str]
) -> tuple[Vocabulary, list[Path]]:
    """vocab-src.json, vocab-tgt.json and merges.txt, where a word's last piece ends with `</w>`."""
    ids = {"bos": options.get("bos_token_id", 0), "pad": 1, "eos": options.get("eos_token_id", 2)}
    start = options.get("decoder_start_token_id", ids["eos"])
    files, codes = [folder / "vocab-src.json", folder / "vocab-tgt.json"], folder / "merges.txt"
    missing = [file.name for file in (*files, codes) if not file.exists()]
    if missing:
        notes.append(f"There is no tokenizer: {' and '.join(missing)} missing. Ids are the checkpoint's.")
        tokens = [[f"token{id}" for id in range(count)] for count in rows]
        return Vocabulary(tokens[0], tokens[1], unknown=3, start=start, **ids), []
    sides = [tokens_of(read_json_object(file), file) for file in files]
    unknown = sides[0].index("<unk>") if "<unk>" in sides[0] else 3
    vocabulary = Vocabulary(sides[0], sides[1], unknown=unknown, start=start, **ids)
    merges = read_codes(codes)
    vocabulary.source_tokenizer = vocabulary.bpe("source", merges, separator=None)
    vocabulary.target_tokenizer = vocabulary.bpe("target", merges, separator=None)
    return vocabulary, [*files, codes]
