"""Pre-norm models of transformers: M2M100 (M2M-100, NLLB-200, WMT21), Pegasus and Blenderbot.

All have fairseq's tensor names and final norms. M2M100 has fairseq's sinusoids from position 2, Pegasus those of
MarianMTModel, Blenderbot learned positions. Sources and translations of M2M100 begin with a token of their language.
"""

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import (
    BlenderbotForConditionalGeneration,
    M2M100ForConditionalGeneration,
    PegasusForConditionalGeneration,
)
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES as NLLB_LANGUAGE_CODES

from vaswani_transformer.files import read_json_object, write_json
from vaswani_transformer.sentences_vaswani_transformer import LANGUAGE_TOKEN

from ..checkpoint_files import find_file
from ..folder import OurModel
from ..layout import CONCATENATED, OUTPUT, OUTPUT_BIAS, SOURCE, TARGET, TENSOR2TENSOR
from ..options import Options, Reasons
from ..rename import FINAL_NORM, Rule, expand_table, rename_to_theirs
from ..sentencepiece_model import SentencePieceModel
from ..toolkit import Description, count_embeddings, register_reader, register_writer
from ..vocabulary import SIDES, Vocabulary, number_tokens, read_token_ids
from .fairseq import EPSILON, OFFSET
from .hugging_face import (
    DECODER_EMBEDDING,
    ENCODER_EMBEDDING,
    TABLES,
    THEIR_SHARED,
    compute_logits,
    find_model_type,
    make_embedding_rules,
    make_generation_settings,
    make_layer_rules,
    read_added_tokens,
    read_fast_tokenizer,
    read_search,
    read_tables,
    read_transformers_model,
)

M2M100, PEGASUS, BLENDERBOT = "m2m_100", "pegasus", "blenderbot"
CLASSES = {
    M2M100: M2M100ForConditionalGeneration,
    PEGASUS: PegasusForConditionalGeneration,
    BLENDERBOT: BlenderbotForConditionalGeneration,
}
# transformers' defaults, which a config.json may leave out.
ACTIVATIONS = {M2M100: "relu", PEGASUS: "gelu", BLENDERBOT: "gelu"}
SCALED = {M2M100: True, PEGASUS: False, BLENDERBOT: False}
IDS = {
    M2M100: {"bos": 0, "pad": 1, "eos": 2, "start": 2},
    PEGASUS: {"bos": None, "pad": 0, "eos": 1, "start": 0},
    BLENDERBOT: {"bos": 1, "pad": 0, "eos": 2, "start": 1},
}
FIELDS = {"bos": "bos_token_id", "pad": "pad_token_id", "eos": "eos_token_id", "start": "decoder_start_token_id"}
IGNORED_TABLES = ("model.encoder.embed_positions.weights", "model.decoder.embed_positions.weights")
# Other tokenizers of M2M100 models, such as SMALL-100's, have the languages at other places.
KNOWN_TOKENIZERS = ("M2M100Tokenizer", "NllbTokenizer", "NllbTokenizerFast", "TokenizersBackend", None)
LANGUAGE_NOTE = "The model translates one pair of languages: convert it again for another one."
TOKENIZERS = ("tokenizer.json", "spiece.model", "sentencepiece.bpe.model", "merges.txt")
TOKENIZER_SETTINGS = "tokenizer_config.json"
KEPT_FILES = (*TOKENIZERS, "vocab.json", "added_tokens.json", "special_tokens_map.json")
FINAL_NORMS = expand_table({"model.{encoder,decoder}.layer_norm.{weight,bias}": FINAL_NORM})
LOGITS_BIAS = "final_logits_bias"
REMEDY = 'save it with AutoTokenizer.from_pretrained("MODEL").save_pretrained("MODEL")'


@register_reader("hf-prenorm", ["config.json"], recognise_file=lambda path: find_model_type(path) in CLASSES)
def read(path: Path, reasons: Reasons) -> Description:
    """Describe a folder with a model of one of the three classes."""
    kind = find_model_type(path) or ""
    # M2M100's positions are counted from the id of <pad>.
    supported = {"pad_token_id": (OFFSET - 1,)} if kind == M2M100 else {}
    options, tensors, config = read_transformers_model(
        path, reasons, ACTIVATIONS[kind], "quantization_config", **supported
    )
    config |= {"norm_position": "pre"}
    rules = [*make_embedding_rules(tensors), *make_layer_rules(config), *FINAL_NORMS]
    sinusoids = CONCATENATED
    if kind == M2M100:
        config["position_offset"], sinusoids = OFFSET, TENSOR2TENSOR
        for name in IGNORED_TABLES:  # saved by transformers 4, with zeros for the padding
            tensors.pop(name, None)
    else:
        rules.append(Rule(LOGITS_BIAS, OUTPUT_BIAS))
    notes = [LANGUAGE_NOTE] if kind == M2M100 else []
    if kind == BLENDERBOT:
        rules += TABLES
    elif kind == PEGASUS:  # transformers 5 trains them
        tables, notes = read_tables(tensors, CONCATENATED, config["d_model"])
        rules += tables
    scaled = options.get("scale_embedding", SCALED[kind])
    search, lost = read_search(path.parent, options)
    ids = {name: options.get(field, IDS[kind][name]) for name, field in FIELDS.items()}
    file = path.with_name(TOKENIZER_SETTINGS)
    settings = read_json_object(file) if file.exists() else {}
    vocabulary = read_vocabulary(path.parent, kind, settings, count_embeddings(tensors, rules)[0], ids, reasons)
    vocabulary.files = [file for name in KEPT_FILES if (file := path.with_name(name)).exists()]
    return Description(
        tensors,
        rules,
        config,
        vocabulary,
        sinusoids,
        unscaled=() if scaled else (SOURCE, TARGET),
        notes=[*lost, *notes],
        search=search,
        in_source="source" if kind == M2M100 else None,
        kept={"config": dict(options), "tokenizer_config": settings, "scale_embedding": bool(scaled)},
        reference=partial(compute_logits, CLASSES[kind]),
    )


def read_vocabulary(
    folder: Path, kind: str, settings: Mapping[str, Any], rows: int, ids: Mapping[str, Any], reasons: Reasons
) -> Vocabulary:
    """Read the vocabulary that both sides share, with the tokenizer.

    settings: of the tokenizer;  rows: the number of embeddings;  ids: of the special tokens
    """
    if kind == M2M100:
        name = settings.get("tokenizer_class")
        if name not in KNOWN_TOKENIZERS or settings.get("legacy_behaviour"):
            reasons.add_setting(f"{TOKENIZER_SETTINGS} has {name}, whose languages stand at other places")
            reasons.raise_if_any()
        if pieces := find_file(folder, "sentencepiece.bpe.model"):
            if (folder / "vocab.json").exists():
                return read_m2m100(folder, pieces, settings, rows, ids)
            if not (folder / TOKENIZERS[0]).exists():  # transformers 5 would load it without the languages
                return read_nllb(folder, pieces, rows, ids)
    if not find_file(folder, *TOKENIZERS):  # transformers would return a tokenizer without tokens
        return number_tokens([], [rows, rows], f"there is no {TOKENIZERS[0]}; {REMEDY}", unknown=None, **ids)
    try:
        tokens, unknown, content = read_fast_tokenizer(folder, rows)
    except ValueError as error:
        return number_tokens([], [rows, rows], f"transformers cannot load it ({error}); {REMEDY}", unknown=None, **ids)
    vocabulary = Vocabulary(tokens, [*tokens], unknown=unknown, **ids)
    if kind == M2M100:
        added = [token for token in content["added_tokens"] if LANGUAGE_TOKEN.fullmatch(token["content"])]
        vocabulary.hide_languages({token["content"]: token["content"] for token in added})
        for token in added:
            token["content"] = vocabulary.languages[token["content"]]
    for side in SIDES:
        tokenizer = Tokenizer.from_str(json.dumps(content))
        vocabulary.tokenizers[side] = vocabulary.add_post_processor(tokenizer, side)
    return vocabulary


def read_m2m100(
    folder: Path, pieces: Path, settings: Mapping[str, Any], rows: int, ids: Mapping[str, Any]
) -> Vocabulary:
    """Read vocab.json and a SentencePiece model. The languages follow the vocabulary, in an order that M2M100Tokenizer
    has."""
    tokens = read_token_ids(folder / "vocab.json")
    codes = FAIRSEQ_LANGUAGE_CODES[settings.get("language_codes", "m2m100")]
    names = {code: f"__{code}__" for code in codes}
    tokens += names.values()
    return read_pieces(SentencePieceModel.read(pieces), tokens, names, rows, ids)


def read_nllb(folder: Path, pieces: Path, rows: int, ids: Mapping[str, Any]) -> Vocabulary:
    """Read the SentencePiece model of an NllbTokenizer of transformers 4 without tokenizer.json.

    fairseq's special tokens replace the first three pieces, <unk>, <s> and </s>. Then come the languages, <mask>, and
    languages that users have added: transformers 4.34 and later write down the ids.
    """
    model = SentencePieceModel.read(pieces)
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *(piece for piece, *_ in model.pieces[3:])]
    added = {id: token for token, id in read_added_tokens(folder).items() if id >= len(tokens)}
    tokens += [added[id] for id in sorted(added)] or [*NLLB_LANGUAGE_CODES, "<mask>"]
    names = {token: token for token in tokens if LANGUAGE_TOKEN.fullmatch(token)}
    return read_pieces(model, tokens, names, rows, ids)


def read_pieces(
    model: SentencePieceModel, tokens: list[str], names: Mapping[str, str], rows: int, ids: Mapping[str, Any]
) -> Vocabulary:
    """Return the vocabulary of a SentencePiece model whose languages stand at fixed places.

    tokens: by id;  names: language -> its token;  rows: the number of embeddings;  ids: of the special tokens
    """
    tokens = tokens + [f"<unused {id}>" for id in range(len(tokens), rows)]
    vocabulary = Vocabulary(tokens, [*tokens], unknown=tokens.index("<unk>"), **ids)
    vocabulary.hide_languages(names)
    for side in SIDES:
        vocabulary.tokenizers[side] = model.build_tokenizer(vocabulary, side)
    return vocabulary


@register_writer("hf-prenorm")
def write(folder: OurModel, out: Path, options: Options) -> None:
    """Write a folder that transformers loads with the class that the model came from."""
    config, kept, reasons = folder.config, folder.kept, options.reasons
    if folder.toolkit != "hf-prenorm" or "config" not in kept:
        reasons.add_setting("the model was not converted from M2M-100, NLLB, Pegasus or Blenderbot")
        reasons.raise_if_any()
    kind, tied = kept["config"]["model_type"], kept["config"].get("tie_word_embeddings", True)
    options.require(
        {  # the folder may have been edited since
            "norm_position": ("pre",),
            "{encoder,decoder}_final_norm": (True,),
            "layer_norm_eps": (EPSILON,),
            "position_embedding_type": {M2M100: ("sinusoidal",), BLENDERBOT: ("learned",)}.get(
                kind, ("sinusoidal", "learned")
            ),
            "position_offset": (OFFSET if kind == M2M100 else 0,),
            **({"share_encoder_decoder_embeddings": (True,), "tie_word_embeddings": (True,)} if tied else {}),
        }
    )
    if not kept["scale_embedding"]:
        reasons.add_setting("the embeddings were divided by sqrt(d_model) when they were converted")
    learned = config.position_embedding_type == "learned"
    ours = folder.tensors(None if learned else TENSOR2TENSOR if kind == M2M100 else CONCATENATED)
    bias = ours.get(OUTPUT_BIAS, torch.zeros(len(ours[OUTPUT])))
    if kind == M2M100 and bias.any():
        reasons.add_setting("the output layer has a bias (output_bias)")
    reasons.raise_if_any()

    rules = [*make_layer_rules(config.to_dict()), *FINAL_NORMS, *(TABLES if learned else [])]
    tensors = rename_to_theirs(rules, ours) | {THEIR_SHARED: ours[SOURCE]}
    if not tied:
        names = {ENCODER_EMBEDDING: SOURCE, DECODER_EMBEDDING: TARGET, "lm_head.weight": OUTPUT}
        tensors |= {theirs: ours[name].clone() for theirs, name in names.items()}
    if kind != M2M100:
        tensors[LOGITS_BIAS] = bias.reshape(1, -1)
    save_file(folder.in_saved_dtype(tensors), out / "model.safetensors", metadata={"format": "pt"})
    write_json(out / "config.json", kept["config"])
    write_json(out / "generation_config.json", make_generation_settings(folder.model, rows=folder.rows["target"]))
    # The tokenizer puts the token of this language in front of sources, whichever one it had before.
    languages = {"src_lang": kept.get("source_lang"), "tgt_lang": kept.get("target_lang")}
    languages = {name: language for name, language in languages.items() if language}
    write_json(out / TOKENIZER_SETTINGS, kept["tokenizer_config"] | languages)
