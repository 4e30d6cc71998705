"""Build our model from the description of a checkpoint, and write its folder, in the same steps for every toolkit."""

import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.utils import logging

from vaswani_transformer import VaswaniTransformerConfig
from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import one_line
from vaswani_transformer.files import CONVERSION_NOTES, write_json
from vaswani_transformer.model_folder import CONVERSION_RECORD, NEVER, ORIGINALS
from vaswani_transformer.search_vaswani_transformer import SearchSettings
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER

from .layout import DECODER_POSITIONS, ENCODER_POSITIONS, OUTPUT, OUTPUT_BIAS, SHARED, SOURCE, TARGET, interleave
from .options import Reasons, show_value
from .rename import rename_to_ours
from .toolkit import Description
from .vocabulary import SIDES, Vocabulary

# The matrices with a row for each token, and the side of their vocabulary.
SIDE = {SOURCE: "source", TARGET: "target", OUTPUT: "target"}


def build_model(description: Description, reasons: Reasons) -> Model:
    """Return the model. Raises InputError or BrokenFileError with all reasons against the conversion."""
    config = dict(description.config)
    d_model = config["d_model"]
    tensors = rename_to_ours(drop_sinusoids(description), description.rules, reasons)
    check_tables(tensors, description.vocabulary, d_model, reasons)
    reasons.raise_if_any()

    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    for name in description.unscaled:  # our model multiplies by sqrt(d_model)
        tensors[name] = tensors[name] / d_model**0.5
    config.setdefault("attention_bias", any(name.endswith("_proj.bias") for name in tensors))
    biased = ("norm.weight", ".fc1.weight", ".fc2.weight", *(("_proj.weight",) if config["attention_bias"] else ()))
    for name, tensor in list(tensors.items()):  # biases that some toolkits omit, in some of the modules
        if name.endswith(biased):
            tensors.setdefault(name.removesuffix("weight") + "bias", torch.zeros(tensor.shape[0]))
    add_rows(tensors, description.vocabulary)
    config |= tie_matrices(tensors, description.vocabulary) | collect_token_settings(description.vocabulary)
    config["output_bias"] = OUTPUT_BIAS in tensors
    if ENCODER_POSITIONS in tensors:
        config |= truncate_positions(tensors, config.get("position_offset", 0))
    else:
        config["position_base"] = description.sinusoids.base(d_model)
        if description.sinusoids.concatenated:
            tensors = interleave(tensors, d_model)

    try:
        with torch.device("meta"):  # allocates no memory
            model = Model(VaswaniTransformerConfig(**config))
    except Exception as error:  # strict dataclasses raise several kinds, each naming the field
        reasons.add_setting(one_line(str(error)))
        reasons.raise_if_any()
        raise
    check_shapes(model, tensors, reasons)
    model.load_state_dict(tensors, strict=False, assign=True)
    model.tie_weights()
    return model.eval()


def drop_sinusoids(description: Description) -> dict[str, Tensor]:
    """Return the tensors without saved tables of sinusoids, which our model computes."""
    known = {rule.theirs for rule in description.rules}
    sinusoids, d_model = description.sinusoids, description.config["d_model"]
    return {
        name: tensor
        for name, tensor in description.tensors.items()
        if name in known or not sinusoids.match(tensor, d_model)
    }


def check_tables(tensors: dict[str, Tensor], vocabulary: Vocabulary, d_model: int, reasons: Reasons) -> None:
    """Check the tables before rows are added or truncated; token tables must have one row per token.

    A token may not stand twice in a vocabulary: a text has one of its ids, and toolkits differ in which.
    """
    for side in SIDES:
        for token, count in Counter(vocabulary.tokens(side)).most_common(1):
            if count > 1:
                reasons.add_fault(f"the {side} vocabulary has the token {show_value(token)} {count} times")
    for name in (*SIDE, ENCODER_POSITIONS, DECODER_POSITIONS):
        if name not in tensors:
            continue
        shape = tuple(tensors[name].shape)
        if len(shape) != 2 or shape[1] != d_model:
            reasons.add_fault(f"{name} has shape {shape}; the options say (any, {d_model})")
        elif name in SIDE and shape[0] != (entries := len(vocabulary.tokens(SIDE[name]))):
            reasons.add_fault(
                f"the {SIDE[name]} vocabulary has {entries} entries, but its embedding matrix has {shape[0]} rows"
            )


def truncate_positions(tensors: dict[str, Tensor], offset: int) -> dict[str, Any]:
    """Truncate learned position tables to the shorter one; return the configuration's fields."""
    rows = min(len(tensors[ENCODER_POSITIONS]), len(tensors[DECODER_POSITIONS]))
    for name in (ENCODER_POSITIONS, DECODER_POSITIONS):
        tensors[name] = tensors[name][:rows].clone()  # the stacks may share a table
    return {"position_embedding_type": "learned", "max_position_embeddings": rows - offset}


def add_rows(tensors: dict[str, Tensor], vocabulary: Vocabulary) -> None:
    """Add the rows of special tokens and aliases.

    Added special tokens have an embedding of zeros, which a decoder that starts with a zero vector needs; aliases have
    `<unk>`'s.
    """
    added = vocabulary.size("target") - len(vocabulary.target)
    if added:
        bias = tensors.get(OUTPUT_BIAS, torch.zeros(len(vocabulary.target)))
        tensors[OUTPUT_BIAS] = torch.cat((bias, torch.full((added,), NEVER)))
    for name, side in SIDE.items():
        table, first_alias = tensors[name], vocabulary.first_alias(side)
        zeros = table.new_zeros(first_alias - len(table), table.shape[1])
        unknown = table.new_zeros(table.shape[1]) if vocabulary.unknown is None else table[vocabulary.unknown]
        tensors[name] = torch.cat((table, zeros, unknown.expand(vocabulary.size(side) - first_alias, -1)))


def tie_matrices(tensors: dict[str, Tensor], vocabulary: Vocabulary) -> dict[str, bool]:
    """Keep equal matrices once; return the configuration's fields."""
    share = vocabulary.is_joint and torch.equal(tensors[SOURCE], tensors[TARGET])
    tied = torch.equal(tensors[TARGET], tensors[OUTPUT])
    if share:
        tensors[SHARED] = tensors.pop(SOURCE)
        del tensors[TARGET]
    if tied:
        del tensors[OUTPUT]
    return {"share_encoder_decoder_embeddings": share, "tie_word_embeddings": tied}


def collect_token_settings(vocabulary: Vocabulary) -> dict[str, int]:
    """Return the configuration's sizes of the vocabularies and ids of special tokens."""
    return {
        "vocab_size": vocabulary.size("source"),
        "decoder_vocab_size": vocabulary.size("target"),
        "separate_vocabularies": not vocabulary.is_joint,
        "bos_token_id": vocabulary.start_id if vocabulary.bos is None else vocabulary.bos,
        "eos_token_id": vocabulary.eos,
        "pad_token_id": vocabulary.pad_id,
        "decoder_start_token_id": vocabulary.start_id,
    }


def check_shapes(model: Model, tensors: dict[str, Tensor], reasons: Reasons) -> None:
    """Raise BrokenFileError for tensors that are missing, unexpected, of a wrong shape or not finite."""
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    for name in sorted(expected.keys() - tensors.keys()):
        if model.all_tied_weights_keys.get(name) not in tensors:
            reasons.add_fault(f"no tensor for {name}")
    for name, tensor in tensors.items():
        if name not in expected:
            reasons.add_fault(f"unexpected tensor {name}")
        elif expected[name] != tensor.shape:
            reasons.add_fault(f"{name} has shape {tuple(tensor.shape)}; the options say {tuple(expected[name])}")
        elif not torch.isfinite(tensor).all():
            reasons.add_fault(f"{name} contains NaN or infinity")
    reasons.raise_if_any()


def set_search(model: Model, search: Mapping[str, Any]) -> None:
    """Replace the paper's search by a checkpoint's own settings, see `Description.search`.

    Raises ValueError or TypeError.
    """
    settings = model.generation_config
    for name, value in search.items():
        if name == "suppress_tokens":
            value = sorted({*(settings.suppress_tokens or ()), *value} - {settings.eos_token_id})
        elif name == "max_new_tokens":
            vars(settings).pop("extra_length", None)
        setattr(settings, name, value)
    if settings.num_beams == 1:  # transformers saves no settings of beam search with greedy search
        settings.early_stopping, settings.length_penalty = False, 1.0
    settings.validate(strict=True)  # as when it is saved
    SearchSettings.from_generation_config(settings.to_dict())


# ---- the folder ----------------------------------------------------------------------------------------------------


def save_model(description: Description, model: Model, folder: Path, toolkit: str, checkpoint: Path) -> None:
    """Write the model, tokenizers and notes, and what converting back needs: CONVERSION_RECORD and the toolkit's files.

    toolkit, checkpoint: the name of the toolkit, and the file that was read
    """
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    vocabulary = description.vocabulary
    texts = {side: tokenizer.to_str() for side, tokenizer in vocabulary.tokenizers.items()}
    if len(texts) == 1 and not vocabulary.is_joint:  # it would be used for both sides
        texts = {}
    if "source" in texts:
        vocabulary.wrap_tokenizer("source").save_pretrained(folder)
    if "target" in texts and texts["target"] != texts.get("source"):
        vocabulary.wrap_tokenizer("target").save_pretrained(folder / TARGET_TOKENIZER)
    (folder / ORIGINALS).mkdir()
    for file in [*vocabulary.files, *description.files]:
        shutil.copyfile(file, folder / ORIGINALS / file.name)
    write_json(folder / CONVERSION_RECORD, make_record(description, toolkit, checkpoint))
    (folder / CONVERSION_NOTES).write_text(write_notes(description, toolkit, checkpoint), encoding="utf-8")


def make_record(description: Description, toolkit: str, checkpoint: Path) -> dict[str, Any]:
    """Return the content of conversion.json, see folder.py."""
    dtypes = {description.tensors[rule.theirs].dtype for rule in description.rules}
    dtype = str(dtypes.pop()).removeprefix("torch.") if len(dtypes) == 1 and not description.unscaled else "float32"
    vocabulary = description.vocabulary
    sizes = {"source_tokens": len(vocabulary.source), "target_tokens": len(vocabulary.target)}
    kept = description.kept | sizes | {"dtype": dtype}
    return {"toolkit": toolkit, "file": checkpoint.name, "options": kept}


def write_notes(description: Description, toolkit: str, checkpoint: Path) -> str:
    """Return the content of CONVERSION.md."""
    vocabulary, notes = description.vocabulary, description.all_notes()
    if vocabulary.start is None:
        notes.append(
            f"{toolkit} starts the decoder with a zero vector. Here it is token {vocabulary.start_id}, whose "
            "embedding is zero and which is never produced."
        )
    if vocabulary.pad is None:
        notes.append(f"{toolkit} has no padding token. Here it is token {vocabulary.pad_id}.")
    theirs = "splits into smaller ones" if vocabulary.splits_pieces else "maps to `<unk>`"
    for side, pieces in vocabulary.aliases.items():
        if pieces:
            notes.append(
                f"The {side} tokenizer can make {len(pieces)} pieces that are not in the vocabulary, which {toolkit} "
                f"{theirs}. Here they are the tokens from {vocabulary.first_alias(side)} on, with `<unk>`'s embedding."
            )
    if "source" in vocabulary.tokenizers and "target" in vocabulary.tokenizers and not vocabulary.is_joint:
        notes.append(
            "Source and target have different vocabularies: `tokenizer.json` is the source's, "
            f"`{TARGET_TOKENIZER}/` the target's, for decoding and for labels."
        )
    return "\n".join([f"# Converted from {toolkit} (`{checkpoint.name}`)", "", *(f"* {n}" for n in notes)]) + "\n"
