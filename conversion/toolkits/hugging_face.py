"""MarianMTModel and FSMT of transformers, which both keep fairseq's tensor names.

MarianMTModel's sinusoids are not Marian's: concatenated, but with the exponent 2i / d_model. The converted model keeps
these, so that it computes the same function. For Marian's function, convert Marian's model.npz.

FSMT: fairseq's WMT19 models. Positions as in fairseq, from 2; the file contains the sinusoids. transformers 5.18 trains
that table with the other weights. A table that no longer matches the formula becomes a learned one.
"""

import json
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor
from transformers import (
    AutoTokenizer,
    FSMTForConditionalGeneration,
    MarianMTModel,
    MarianTokenizer,
    PreTrainedModel,
)

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import BrokenFileError, one_line
from vaswani_transformer.files import read_json_object, write_json
from vaswani_transformer.modeling_vaswani_transformer import searches_as_transformers
from vaswani_transformer.search_vaswani_transformer import ONLY_IN_GENERATE, REPETITION, SearchSettings
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER
from vaswani_transformer.tokenizer_files import TOKENIZER_FILES

from ..checkpoint_files import find_file, load_shards, require_file
from ..folder import OurModel
from ..layout import CONCATENATED, OUTPUT, OUTPUT_BIAS, POSITIONS, SOURCE, TARGET, TENSOR2TENSOR, Sinusoids
from ..options import MAX_SIZE, RATES, Options, Reasons, expand, map_fields, show_value
from ..rename import Rule, expand_layers, expand_table, find_first, rename_to_theirs, select_weights
from ..segmentation import build_bpe_tokenizer, read_codes
from ..sentencepiece_model import CONTROL, SentencePieceModel
from ..toolkit import Description, count_embeddings, register_reader, register_writer
from ..vocabulary import SIDES, ReferenceTokenizer, Vocabulary, number_tokens, read_token_ids
from .fairseq import EPSILON, LAYERS, OFFSET

SIZES = {
    "d_model": "d_model",
    "{encoder,decoder}_layers": "{encoder,decoder}_layers",
    "{encoder,decoder}_attention_heads": "{encoder,decoder}_attention_heads",
    "{encoder,decoder}_ffn_dim": "{encoder,decoder}_ffn_dim",
}
OFF = "normalize_before normalize_embedding add_final_layer_norm quantization_config"
ACTIVATIONS = ("relu", "gelu", "gelu_new", "silu", "swish", "quick_gelu")
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
SHARDS = ("model-*-of-*.safetensors", "pytorch_model-*-of-*.bin")  # of a model above `max_shard_size`
ADDED_TOKENS = ("added_tokens.json", "tokenizer_config.json")
# As in transformers, but for the beams: without their number, it searches greedily.
DEFAULT_SEARCH = {"num_beams": 4, "length_penalty": 1.0, "early_stopping": False}
THEIR_SHARED = "model.shared.weight"
ENCODER_EMBEDDING, DECODER_EMBEDDING = expand("model.{encoder,decoder}.embed_tokens.weight")
SINUSOIDS_NOTE = "The sinusoids are those of Hugging Face's MarianMTModel, which differ from Marian's."
FSMT_EMBEDDINGS = {
    "model.encoder.embed_tokens.weight": SOURCE,
    "model.decoder.embed_tokens.weight": TARGET,
    "model.decoder.output_projection.weight": OUTPUT,
}
TABLES = expand_table({"model.{encoder,decoder}.embed_positions.weight": POSITIONS})
MOSES_NOTE = "FSMTTokenizer applies Moses' tokenizer; tokenizer.json splits at spaces: tokenize with sacremoses first."
TRAINED_NOTE = "The saved sinusoids were trained or rounded; here they are a learned table."


def find_model_type(path: Path) -> str | None:
    """Return `model_type` from config.json, which is the path or next to it."""
    file = path.with_name("config.json")
    if path.name not in ("config.json", *WEIGHTS) or not file.exists():
        return None
    try:
        kind = read_json_object(file).get("model_type")
    except BrokenFileError:
        return None
    return kind if isinstance(kind, str) else None


def read_transformers_model(
    path: Path, reasons: Reasons, activation: str, off: str = OFF, **supported: tuple
) -> tuple[Options, dict[str, Tensor], dict[str, Any]]:
    """Return the options, the weights, and the fields of our configuration that both toolkits share.

    activation: the default of `activation_function`
    off: names of options that must be off
    supported: the values that options must have
    """
    options = Options(read_json_object(path.with_name("config.json")), reasons)
    shards = next(filter(None, (sorted(path.parent.glob(pattern)) for pattern in SHARDS)), [])
    if not shards or find_file(path.parent, *WEIGHTS):
        shards = [require_file(path.parent, *WEIGHTS)]
    weights = load_shards(shards)
    options.require({"activation_function": ACTIVATIONS, "scale_embedding": (True, False), **supported}, off)
    config = options.read_sizes(SIZES)
    reasons.raise_if_any()
    config |= options.read_rates(0.0, *RATES)
    name = options.get("activation_function", activation)
    config |= {"activation_function": "silu" if name == "swish" else name}
    return options, select_weights(weights, reasons), config | {"layer_norm_eps": EPSILON}


def read_search(folder: Path, options: Options) -> tuple[dict[str, Any], list[str]]:
    """Return the settings of `generate()` for our generation_config.json, and notes about those that it lacks.

    Before transformers 4.27 they were in config.json.
    """
    file = folder / "generation_config.json"
    settings = {name: value for name, value in options.items() if value is not None}
    settings |= read_json_object(file) if file.exists() else {}
    for name in ("decoder_start_token_id", "eos_token_id"):
        if options.get(name) is not None and settings[name] not in (options[name], [options[name]], None):
            reason = f"{name} is {show_value(settings[name])} in {file.name}, but {options[name]} in config.json"
            options.reasons.add_setting(reason)
    given = {name: settings[name] for name in DEFAULT_SEARCH if settings.get(name) is not None}
    search: dict[str, Any] = {"beam_search": "transformers"} | DEFAULT_SEARCH | given
    shortest = settings.pop("min_length", None)
    if shortest and settings.get("min_new_tokens") is None:
        settings["min_new_tokens"] = shortest - 1  # without the start token
    limits = ("max_new_tokens", "min_new_tokens", *REPETITION)
    search |= {name: settings[name] for name in limits if settings.get(name) not in (None, REPETITION.get(name, 0))}
    if "max_new_tokens" not in search and settings.get("max_length"):
        search["max_new_tokens"] = settings["max_length"] - 1  # without the start token
    words = settings.pop("bad_words_ids", None) or []
    suppressed = settings.get("suppress_tokens") or []
    search["suppress_tokens"] = [*suppressed, *(word[0] for word in words if len(word) == 1)]
    if settings.get("forced_bos_token_id") is not None:
        search["forced_bos_token_id"] = settings["forced_bos_token_id"]
    # The last token of an output that reaches its limit, which is rare; docs/explanation/search.md tells.
    settings.pop("forced_eos_token_id", None)
    lost = [
        f"{name} {settings[name]}"
        for name, neutral in ONLY_IN_GENERATE.items()
        if settings.get(name) not in (None, neutral)
    ]
    lost += [f"bad_words_ids {word}" for word in words if len(word) > 1]
    return search, [f"The search here does not have the checkpoint's {', '.join(lost)}."] if lost else []


def make_layer_rules(config: Mapping[str, Any]) -> list[Rule]:
    """Return the rules of the layers: fairseq's names after `model.`."""
    return expand_layers(config, "model.{encoder,decoder}.layers.#.", LAYERS)


def make_embedding_rules(tensors: dict[str, Tensor]) -> list[Rule]:
    """Return the rules of the embeddings and the output layer, of which equal ones are saved once."""
    if ENCODER_EMBEDDING in tensors and DECODER_EMBEDDING in tensors:
        tensors.pop(THEIR_SHARED, None)  # saved although neither side uses it
    return [
        Rule(find_first(tensors, ENCODER_EMBEDDING, THEIR_SHARED), SOURCE),
        Rule(find_first(tensors, DECODER_EMBEDDING, THEIR_SHARED), TARGET),
        Rule(find_first(tensors, "lm_head.weight", DECODER_EMBEDDING, THEIR_SHARED), OUTPUT),
    ]


def read_tables(
    tensors: dict[str, Tensor], sinusoids: Sinusoids, d_model: int, padding: int | None = None
) -> tuple[list[Rule], list[str]]:
    """Remove saved tables of sinusoids. If they were trained or rounded, return their rules and a note instead.

    padding: the row that is zeros
    """
    tables = {rule.theirs: tensors[rule.theirs].clone() for rule in TABLES if rule.theirs in tensors}
    for table in tables.values():
        if padding is not None:
            table[padding] = sinusoids.table(padding + 1, d_model)[-1]
        if table.element_size() < 4 or not sinusoids.match(table, d_model):
            return TABLES, [TRAINED_NOTE]
    for name in tables:
        del tensors[name]
    return [], []


def compute_logits(
    model_class: type[PreTrainedModel], path: Path, description: Description, source: Tensor, target: Tensor
) -> Tensor:
    """Run transformers' model of the folder, see `Description.reference`. model_class: its class"""
    model = model_class.from_pretrained(path.parent, dtype=torch.float32, local_files_only=True).eval()
    # With its cache, FSMT is not causal for several target tokens.
    return model(input_ids=source, decoder_input_ids=target, use_cache=False).logits


# ---- FSMT ------------------------------------------------------------------------------------------------------------


@register_reader("hf-fsmt", ["config.json"], recognise_file=lambda path: find_model_type(path) == "fsmt")
def read_fsmt(path: Path, reasons: Reasons) -> Description:
    """Describe a folder with an FSMT model."""
    # Positions are counted from the id of <pad>.
    options, tensors, config = read_transformers_model(path, reasons, "relu", pad_token_id=(OFFSET - 1,))
    config["position_offset"] = OFFSET

    # Tied matrices are saved under one or several of their names.
    tied = list(FSMT_EMBEDDINGS) if options.get("tie_word_embeddings", False) else []
    rules = [Rule(find_first(tensors, theirs, *tied), ours) for theirs, ours in FSMT_EMBEDDINGS.items()]
    rules += make_layer_rules(config)
    search, lost = read_search(path.parent, options)
    notes = [MOSES_NOTE, *lost]
    tables, more_notes = read_tables(tensors, TENSOR2TENSOR, config["d_model"], padding=OFFSET - 1)
    rules, notes = rules + tables, notes + more_notes
    vocabulary = read_fsmt_vocabulary(path.parent, options, count_embeddings(tensors, rules))
    unscaled = () if options.get("scale_embedding", True) else (SOURCE, TARGET)
    source_lang, target_lang = options.get("langs") or (None, None)
    return Description(
        tensors,
        rules,
        config,
        vocabulary,
        TENSOR2TENSOR,
        unscaled=unscaled,
        notes=notes,
        search=search,
        kept={"source_lang": source_lang, "target_lang": target_lang},
        reference=partial(compute_logits, FSMTForConditionalGeneration),
    )


def read_fsmt_vocabulary(folder: Path, options: Mapping[str, Any], rows: list[int]) -> Vocabulary:
    """Read vocab-src.json, vocab-tgt.json and merges.txt, in which `</w>` ends the last piece of a word."""
    ids = {"bos": options.get("bos_token_id", 0), "pad": 1, "eos": options.get("eos_token_id", 2), "unknown": 3}
    ids["start"] = options.get("decoder_start_token_id", ids["eos"])
    files, codes = [folder / "vocab-src.json", folder / "vocab-tgt.json"], folder / "merges.txt"
    missing = [file.name for file in (*files, codes) if not file.exists()]
    if missing:
        why = f"the checkpoint comes without {' and '.join(missing)}. Ids are the checkpoint's"
        return number_tokens([], rows, why, **ids)
    source, target = (read_token_ids(file) for file in files)
    if "<unk>" in source:
        ids["unknown"] = source.index("<unk>")
    vocabulary = Vocabulary(source, target, files=[*files, codes], **ids)
    merges = read_codes(codes)
    for side in SIDES:
        vocabulary.tokenizers[side] = build_bpe_tokenizer(vocabulary, side, merges, separator=None)
    return vocabulary


# ---- MarianMTModel ---------------------------------------------------------------------------------------------------


@register_reader("hf-marian", ["config.json"], recognise_file=lambda path: find_model_type(path) == "marian")
def read_marian(path: Path, reasons: Reasons) -> Description:
    """Describe a folder with a MarianMTModel."""
    options, tensors, config = read_transformers_model(path, reasons, "gelu")

    rules = [*make_embedding_rules(tensors), Rule("final_logits_bias", OUTPUT_BIAS), *make_layer_rules(config)]
    scaled = bool(options.get("scale_embedding", False))
    search, lost = read_search(path.parent, options)
    return Description(
        tensors,
        rules,
        config,
        read_marian_vocabulary(path.parent, options, count_embeddings(tensors, rules)),
        CONCATENATED,
        unscaled=() if scaled else (SOURCE, TARGET),
        notes=[SINUSOIDS_NOTE, *lost],
        search=search,
        kept={"config": dict(options), "scale_embedding": scaled, **read_marian_languages(path.parent)},
        reference=partial(compute_logits, MarianMTModel),
    )


def read_marian_languages(folder: Path) -> dict[str, str]:
    """Return the languages in tokenizer_config.json; the target of a model with several is a family, such as gem."""
    file = folder / "tokenizer_config.json"
    settings = read_json_object(file) if file.exists() else {}
    return {name: settings[name] for name in ("source_lang", "target_lang") if isinstance(settings.get(name), str)}


def read_marian_vocabulary(folder: Path, options: Mapping[str, Any], rows: list[int]) -> Vocabulary:
    """Read vocab.json, which has the ids, and source.spm and target.spm, which have the pieces."""
    ids = {"eos": options.get("eos_token_id", 0), "pad": options.get("pad_token_id"), "unknown": 1}
    ids["start"] = options.get("decoder_start_token_id", ids["pad"])
    file = folder / "vocab.json"
    if not file.exists() and (folder / "tokenizer.json").exists():
        return read_fast_tokenizers(folder, rows, ids)
    if not file.exists():
        return number_tokens([], rows, "vocab.json is missing. Ids are the checkpoint's", **ids)
    target_file, added = folder / "target_vocab.json", read_added_tokens(folder)
    source = read_marian_tokens(file, added, ids["pad"], rows[0])
    target = read_marian_tokens(target_file, added, ids["pad"], rows[1]) if target_file.exists() else source
    if "<unk>" in source:
        ids["unknown"] = source.index("<unk>")
    files = [file, target_file, *(folder / name for name in ADDED_TOKENS)]
    known = read_json_object(file)
    new = [token for token in added if token not in known]
    vocabulary = Vocabulary(source, target, added=new, files=[file for file in files if file.exists()], **ids)
    for side in SIDES:
        path = folder / f"{side}.spm"
        if not path.exists():
            vocabulary.notes.append(f"There is no {side} tokenizer: {path.name} is missing.")
            continue
        vocabulary.files.append(path)
        model = SentencePieceModel.read(path)
        # MarianTokenizer takes them off the text before SentencePiece sees it, which may know them as well.
        whole = set(vocabulary.whole_tokens(side))
        model.pieces = [(piece, score, CONTROL if piece in whole else kind) for piece, score, kind in model.pieces]
        vocabulary.tokenizers[side] = model.build_tokenizer(vocabulary, side)
        vocabulary.references[side] = ReferenceTokenizer("MarianTokenizer", partial(encode_as_marian, folder, side))
    return vocabulary


def read_fast_tokenizers(folder: Path, rows: list[int], ids: Mapping[str, Any]) -> Vocabulary:
    """Read tokenizer.json, and the target's from a folder of its own if it has one: `write_marian` writes them."""
    folders = {"source": folder, "target": folder / TARGET_TOKENIZER}
    folders["target"] = folders["target"] if folders["target"].is_dir() else folder
    try:
        read = [read_fast_tokenizer(folders[side], size) for side, size in zip(SIDES, rows, strict=True)]
    except ValueError as error:
        return number_tokens([], rows, f"transformers cannot load tokenizer.json ({error})", **ids)
    (source, unknown, _), (target, *_) = read
    vocabulary = Vocabulary(source, target, **{**ids, "unknown": unknown})
    for side, (*_, content) in zip(SIDES, read, strict=True):
        tokenizer = Tokenizer.from_str(json.dumps(content))
        vocabulary.tokenizers[side] = vocabulary.add_post_processor(tokenizer, side)
    return vocabulary


def read_fast_tokenizer(folder: Path, rows: int) -> tuple[list[str], int | None, dict[str, Any]]:
    """Return the tokens of tokenizer.json by id, the id of the unknown one, and the file without its post_processor.

    rows: the number of embeddings. Raises ValueError.
    """
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        content = json.loads(tokenizer.backend_tokenizer.to_str())
    except Exception as error:  # transformers raises many kinds
        raise ValueError(one_line(str(error))[:200]) from None
    # A token that was added to the tokenizer alone, such as <mask>, has no embedding.
    added = [token for token in content["added_tokens"] if token["id"] < rows]
    content |= {"added_tokens": added, "post_processor": None}
    by_id = {id: token for token, id in tokenizer.get_vocab().items()}
    return [by_id.get(id, f"<unused {id}>") for id in range(rows)], tokenizer.unk_token_id, content


def read_added_tokens(folder: Path) -> dict[str, int]:
    """Return the ids of the tokens that `add_tokens` added to a MarianTokenizer, and of its special tokens."""
    added, config = (read_json_object(file) if (file := folder / name).exists() else {} for name in ADDED_TOKENS)
    tokens = config.get("added_tokens_decoder") or {}
    return added | {token["content"]: int(id) for id, token in tokens.items()}


def read_marian_tokens(file: Path, added: Mapping[str, int], pad: int | None, rows: int) -> list[str]:
    """Read the tokens of a vocab.json by id, with the added ones.

    Embeddings may have more rows, because users round their number up; these ids, and those that the file skips, get
    names that no text has. rows: the embedding's, which count if the padding shows that the file is the model's
    """
    known = read_json_object(file)
    tokens = {id: token for token, id in (*added.items(), *known.items())}
    if any(type(id) is not int or not 0 <= id <= MAX_SIZE for id in tokens):
        raise BrokenFileError(f"{file}: the ids are not numbers from 0 to {MAX_SIZE:,}")
    if len(set(known.values())) < len(known):
        raise BrokenFileError(f"{file}: several tokens have the same id")
    size = max(tokens, default=-1) + 1
    if pad is not None and tokens.get(pad) == "<pad>":
        size = max(size, rows)
    return [tokens.get(id, f"<unused {id}>") for id in range(size)]


def encode_as_marian(folder: Path, side: str, texts: list[str]) -> list[list[int]]:
    """Return the ids that MarianTokenizer gives to the texts of one side. It needs sentencepiece."""
    tokenizer = MarianTokenizer.from_pretrained(folder, local_files_only=True)
    encoded = tokenizer(texts) if side == "source" else tokenizer(text_target=texts)
    return encoded["input_ids"]


# ---- from our model to transformers ------------------------------------------------------------------------------


@register_writer("hf-marian")
def write_marian(folder: OurModel, out: Path, options: Options) -> None:
    """Write a folder that MarianMTModel.from_pretrained loads."""
    config, was_hf_marian = folder.config, folder.toolkit == "hf-marian"
    options.require(
        {
            "position_embedding_type": ("sinusoidal",),
            "position_base": (10000.0,),
            "position_offset": (0,),
            "norm_position": ("post",),
            "{encoder,decoder}_final_norm": (False,),
            "layer_norm_eps": (EPSILON,),
            "tie_word_embeddings": (True,) if config.share_encoder_decoder_embeddings else (True, False),
        }
    )
    if not was_hf_marian:
        folder.keep_all_rows()
    elif not folder.kept.get("scale_embedding", True):
        options.reasons.add_setting("the embeddings were divided by sqrt(d_model) when they were converted")
    ours = folder.tensors(CONCATENATED)
    tensors = rename_to_theirs(make_layer_rules(config.to_dict()), ours)
    separate = {ENCODER_EMBEDDING: ours[SOURCE], DECODER_EMBEDDING: ours[TARGET]}
    tensors |= {THEIR_SHARED: ours[SOURCE]} if config.share_encoder_decoder_embeddings else separate
    if not (folder.kept["config"] if was_hf_marian else config.to_dict()).get("tie_word_embeddings", True):
        tensors["lm_head.weight"] = ours[OUTPUT].clone()  # which may equal the decoder's embedding
    tensors["final_logits_bias"] = ours.get(OUTPUT_BIAS, torch.zeros(len(ours[TARGET]))).reshape(1, -1)
    save_file(folder.in_saved_dtype(tensors), out / "model.safetensors", metadata={"format": "pt"})
    write_json(out / "generation_config.json", make_generation_settings(folder.model, rows=folder.rows["target"]))
    if was_hf_marian:
        write_json(out / "config.json", folder.kept["config"])
        return
    sizes = {"vocab_size": len(ours[SOURCE]), "decoder_vocab_size": len(ours[TARGET])}
    write_json(out / "config.json", make_marian_config(config) | sizes)
    # MarianTokenizer needs SentencePiece models; AutoTokenizer also loads tokenizer.json, from two folders if the sides
    # have different ones.
    for name in (*TOKENIZER_FILES, *(f"{TARGET_TOKENIZER}/{name}" for name in TOKENIZER_FILES)):
        if (folder.path / name).exists():
            (out / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(folder.path / name, out / name)


def make_marian_config(config: Any) -> dict[str, Any]:
    """Return the settings of a MarianConfig, without the sizes of the vocabularies."""
    same = [*map_fields(SIZES), *RATES]
    same += ["activation_function", "share_encoder_decoder_embeddings", "tie_word_embeddings"]
    same += ["eos_token_id", "bos_token_id", "pad_token_id", "decoder_start_token_id"]
    return {name: getattr(config, name) for name in same} | {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        "max_position_embeddings": 1024,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "forced_eos_token_id": None,
    }


def make_generation_settings(model: Model, num_beams: int | None = None, rows: int | None = None) -> dict[str, Any]:
    """Return the content of generation_config.json: the model's search, except the length penalty of the paper's.

    The suppressed tokens, such as <pad>, are never generated.

    num_beams: instead of the model's;  rows: number of target tokens that are written; default: all
    """
    config, ours = model.config, model.generation_config
    search = SearchSettings.from_generation_config(ours.to_dict())
    beams = num_beams or search.num_beams
    settings: dict[str, Any] = {"num_beams": beams, "max_length": (search.max_new_tokens or 511) + 1}
    settings |= {"min_new_tokens": search.min_new_tokens} if search.min_new_tokens else {}
    if searches_as_transformers(model) and beams > 1:  # transformers warns of these in greedy search
        settings |= {"length_penalty": search.length_penalty, "early_stopping": search.early_stopping}
    suppressed = [[id] for id in ours.suppress_tokens or [] if id < (rows or config.decoder_vocab_size)]
    settings |= {"bad_words_ids": suppressed} if suppressed else {}
    names = ("eos_token_id", "pad_token_id", "decoder_start_token_id")
    settings |= search.repetition | {name: getattr(config, name) for name in names}
    return settings | ({} if ours.forced_bos_token_id is None else {"forced_bos_token_id": ours.forced_bos_token_id})
