"""MarianMTModel of transformers. Its sinusoids are not Marian's: concatenated, but with the exponent 2i / d_model.

The converted model keeps these, so that it computes the same function. For Marian's function, convert Marian's
model.npz.
"""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken
from transformers import MarianMTModel

from ..description import OUTPUT, OUTPUT_BIAS, SOURCE, TARGET, Description, embedding_rows
from ..folder import ModelFolder, write_toolkit_json
from ..layout import CONCATENATED
from ..options import RATES, size_names
from ..reasons import Reasons
from ..rename import Rule, expand, first_present, to_their_names
from ..sentencepiece_model import SentencePieceModel
from ..vocabulary import SIDES, Vocabulary, numbered_tokens, read_token_ids
from . import hugging_face

FILES = ["config.json"]
LANGUAGE_CODE = re.compile(r">>.+<<")
THEIR_SHARED = "model.shared.weight"
ENCODER_EMBEDDING, DECODER_EMBEDDING = expand("model.{encoder,decoder}.embed_tokens.weight")
NOTES = [
    hugging_face.PENALTY_NOTE,
    "The sinusoids are those of Hugging Face's MarianMTModel, which differ from Marian's.",
    "MarianTokenizer normalises punctuation if sacremoses is installed; tokenizer.json does not.",
]


def recognise(path: Path) -> bool:
    return hugging_face.model_type_of(path) == "marian"


def read(path: Path, reasons: Reasons) -> Description:
    """Describe a folder with a MarianMTModel."""
    options, tensors, config = hugging_face.read_model(path, reasons, "gelu", static_position_embeddings=(True,))

    rules = [
        Rule(first_present(tensors, ENCODER_EMBEDDING, THEIR_SHARED), SOURCE),
        Rule(first_present(tensors, DECODER_EMBEDDING, THEIR_SHARED), TARGET),
        Rule(first_present(tensors, "lm_head.weight", DECODER_EMBEDDING, THEIR_SHARED), OUTPUT),
        Rule("final_logits_bias", OUTPUT_BIAS),
        *hugging_face.layers(config),
    ]
    if ENCODER_EMBEDDING in tensors and DECODER_EMBEDDING in tensors:
        tensors.pop(THEIR_SHARED, None)  # saved although neither side uses it
    scaled = bool(options.get("scale_embedding", False))
    return Description(
        tensors,
        rules,
        config,
        read_vocabulary(path.parent, options, embedding_rows(tensors, rules)),
        CONCATENATED,
        unscaled=() if scaled else (SOURCE, TARGET),
        notes=NOTES,
        kept={"config": dict(options), "scale_embedding": scaled},
        reference=partial(hugging_face.reference, MarianMTModel),
    )


def read_vocabulary(folder: Path, options: Mapping[str, Any], rows: list[int]) -> Vocabulary:
    """Read vocab.json, which has the ids, and source.spm and target.spm, which have the pieces."""
    ids = {"eos": options.get("eos_token_id", 0), "pad": options.get("pad_token_id"), "unknown": 1}
    ids["start"] = options.get("decoder_start_token_id", ids["pad"])
    file = folder / "vocab.json"
    if not file.exists():
        return numbered_tokens([], rows, "vocab.json is missing. Ids are the checkpoint's", **ids)
    target_file = folder / "target_vocab.json"
    source = read_token_ids(file)
    target = read_token_ids(target_file) if target_file.exists() else source
    if "<unk>" in source:
        ids["unknown"] = source.index("<unk>")
    files = [file for file in (file, target_file, folder / "tokenizer_config.json") if file.exists()]
    vocabulary = Vocabulary(source, target, files=files, **ids)
    for side in SIDES:
        model = folder / f"{side}.spm"
        if not model.exists():
            vocabulary.notes.append(f"There is no {side} tokenizer: {model.name} is missing.")
            continue
        vocabulary.files.append(model)
        tokenizer = SentencePieceModel.read(model).tokenizer(vocabulary, side)
        codes = [token for token in vocabulary.tokens(side) if LANGUAGE_CODE.fullmatch(token)]
        tokenizer.add_tokens([AddedToken(code, normalized=False) for code in codes])
        vocabulary.tokenizers[side] = tokenizer
    return vocabulary


# ---- from our model to transformers ------------------------------------------------------------------------------


def requirements(config: Any) -> dict[str, tuple]:
    return {
        "position_embedding_type": ("sinusoidal",),
        "position_base": (10000.0,),
        "position_offset": (0,),
        "norm_position": ("post",),
        "encoder_final_norm": (False,),
        "decoder_final_norm": (False,),
        "layer_norm_eps": (hugging_face.EPSILON,),
        "tie_word_embeddings": (True,),
    }


def write_checkpoint(folder: ModelFolder, out: Path, reasons: Reasons) -> None:
    """Write a folder that MarianMTModel.from_pretrained loads."""
    config, was_hf_marian = folder.config, folder.toolkit == "hf-marian"
    if not was_hf_marian:
        folder.keep_all_rows()
    elif not folder.kept.get("scale_embedding", True):
        reasons.unsupported("the embeddings were divided by sqrt(d_model) when they were converted")
    ours = folder.tensors(CONCATENATED)
    tensors = to_their_names(hugging_face.layers(config.to_dict()), ours)
    separate = {ENCODER_EMBEDDING: ours[SOURCE], DECODER_EMBEDDING: ours[TARGET]}
    tensors |= {THEIR_SHARED: ours[SOURCE]} if config.share_encoder_decoder_embeddings else separate
    tensors["final_logits_bias"] = ours.get(OUTPUT_BIAS, torch.zeros(len(ours[TARGET]))).reshape(1, -1)
    save_file(folder.in_saved_dtype(tensors), out / "model.safetensors", metadata={"format": "pt"})
    write_toolkit_json(generation_settings(config), out / "generation_config.json")
    if was_hf_marian:
        write_toolkit_json(folder.kept["config"], out / "config.json")
        return
    sizes = {"vocab_size": len(ours[SOURCE]), "decoder_vocab_size": len(ours[TARGET])}
    write_toolkit_json(marian_config(config) | sizes, out / "config.json")
    if folder.has_tokenizer():  # MarianTokenizer needs SentencePiece models; AutoTokenizer also loads tokenizer.json
        for name in ("tokenizer.json", "tokenizer_config.json"):
            (out / name).write_bytes((folder.path / name).read_bytes())


def marian_config(config: Any) -> dict[str, Any]:
    """Return the settings of a MarianConfig, without the sizes of the vocabularies."""
    same = [*size_names(hugging_face.SIZES), *RATES]
    same += ["activation_function", "share_encoder_decoder_embeddings"]
    same += ["eos_token_id", "bos_token_id", "pad_token_id", "decoder_start_token_id"]
    return {name: getattr(config, name) for name in same} | {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        "max_position_embeddings": 1024,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "tie_word_embeddings": True,
        "forced_eos_token_id": None,
    }


def generation_settings(config: Any) -> dict[str, Any]:
    """Return the content of generation_config.json: <pad> and the start token are never generated."""
    forbidden = {config.pad_token_id, config.decoder_start_token_id} - {None, config.eos_token_id}
    ids = {name: getattr(config, name) for name in ("eos_token_id", "pad_token_id", "decoder_start_token_id")}
    return {"bad_words_ids": [[id] for id in sorted(forbidden)], "num_beams": 4, "max_length": 512, **ids}
