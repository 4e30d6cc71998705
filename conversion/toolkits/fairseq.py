"""fairseq: 0.12 (`cfg` with a model Namespace) and the layout of 0.6 to 0.9 (`args` Namespace, `decoder.embed_out`).

Differences from the paper: tensor2tensor's sinusoids, counted from padding_idx + 1 = 2; biases in the attention;
LayerNorm's epsilon 1e-5; the decoder starts with </s>.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vaswani_transformer.errors import BrokenFileError
from vaswani_transformer.lines import read_lines
from vaswani_transformer.model_folder import enumerate_names

from ..checkpoint_files import find_file, load_checkpoint, save_pickle
from ..folder import OurModel
from ..layout import OUTPUT, OUTPUT_BIAS, POSITIONS, SOURCE, TARGET, TENSOR2TENSOR
from ..options import RATES, STACKS, Options, Reasons, map_fields, show_value
from ..rename import Rule, expand_layers, expand_table, rename_to_theirs, select_weights, split_in_proj
from ..segmentation import add_tokenizers
from ..toolkit import Description, count_embeddings, explain_penalty, register_reader, register_writer
from ..vocabulary import SIDES, Vocabulary, find_unused_name, number_tokens

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]  # ids 0 to 3, which dict.txt omits
OVERWRITE = " #fairseq:overwrite"
IDS: dict[str, Any] = {"bos": 0, "pad": 1, "eos": 2, "start": 2, "unknown": 3}
DEFAULT_LANGUAGES = {"source_lang": "src", "target_lang": "tgt"}
OFFSET = 2  # padding_idx + 1
EPSILON = 1e-5  # torch's default

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_accurate": "gelu_new",
    "gelu_fast": "gelu_new",
    "swish": "silu",
    "tanh": "tanh",
    "relu_squared": "relu2",
    "linear": "linear",
}
# Options that must be off; written files contain the first group.
OFF_IN_WRITTEN_FILES = (
    "adaptive_input no_token_positional_embeddings no_cross_attention cross_self_attention layernorm_embedding"
)
OFF = (
    f"{OFF_IN_WRITTEN_FILES} char_inputs adaptive_softmax_cutoff encoder_layers_to_keep decoder_layers_to_keep "
    "quant_noise_pq quant_noise_scalar base_layers simul_type"
)
# Of translation_multi_simple_epoch; with the first, another token than </s> starts the decoder.
OFF_WITH_LANGUAGES = "lang_tok_replacing_bos_eos"
IN_SOURCE = {"src": "source", "tgt": "target", None: ""}  # by --encoder-langtok
LANGUAGE_STYLES = {"multilingual": "__{}__", "mbart": "[{}]"}  # by --lang-tok-style
SIZES = {
    "encoder_embed_dim": "d_model",
    "{encoder,decoder}_layers": "{encoder,decoder}_layers",
    "{encoder,decoder}_attention_heads": "{encoder,decoder}_attention_heads",
    "{encoder,decoder}_ffn_embed_dim": "{encoder,decoder}_ffn_dim",
}
DECODER_EMBEDDING, OUTPUT_PROJECTION = "decoder.embed_tokens.weight", "decoder.output_projection.weight"
LAYER = {
    "self_attn.{q,k,v,out}_proj.{weight,bias}": "self_attn.{q,k,v,out}_proj.{weight,bias}",
    "self_attn_layer_norm.{weight,bias}": "self_attn_norm.{weight,bias}",
    "encoder_attn.{q,k,v,out}_proj.{weight,bias}": "cross_attn.{q,k,v,out}_proj.{weight,bias}",
    "encoder_attn_layer_norm.{weight,bias}": "cross_attn_norm.{weight,bias}",
    "fc{1,2}.{weight,bias}": "feed_forward.fc{1,2}.{weight,bias}",
    "final_layer_norm.{weight,bias}": "feed_forward_norm.{weight,bias}",
}
LAYERS = dict.fromkeys(STACKS, LAYER)
# Models of other kinds, such as LSTMs, convolutions and language models, lack one of these.
PARTS = ("encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.encoder_attn")
EMBEDDINGS = {"encoder.embed_tokens.weight": SOURCE, DECODER_EMBEDDING: TARGET, OUTPUT_PROJECTION: OUTPUT}
LEARNED = {"{encoder,decoder}.embed_positions.weight": POSITIONS}
NOTES = [
    explain_penalty("fairseq", "log P / L^lenpen"),
    "Prepare texts as the training texts were prepared (usually with Moses' tokenizer) before the tokenizer.",
]
IGNORED = (
    r"(en|de)coder\.version",
    r"(en|de)coder\.embed_positions\.(_float_tensor|weights)",
    # 0.12 also saves an encoder layer's weights from before training.
    r"encoder\.layers\.\d+\.(in_proj|out_proj|fc1|fc2)_(weight|bias)",
)
# fairseq 0.6 numbered the norms of a layer.
OLD_NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}


def make_rules(config: Mapping[str, Any], learned: bool) -> list[Rule]:
    """Return the rules of all tensors. learned: whether positions are learned"""
    rules = expand_table(EMBEDDINGS | (LEARNED if learned else {}))
    final_norm = "{encoder,decoder}.layer_norm.{weight,bias}"
    return rules + expand_layers(config, "{encoder,decoder}.layers.#.", LAYERS, final_norm)


def recognise(content: dict[str, Any]) -> bool:
    # Training scripts of others save `model` and `args` as well, but not with these options of every fairseq model.
    is_fairseqs = not read_options(content).keys().isdisjoint(("encoder_embed_dim", "decoder_embed_dim"))
    return is_fairseqs and isinstance(content.get("model"), dict)


@register_reader("fairseq", ["*.pt"], packages=["fairseq", "omegaconf"], recognise_content=recognise)
def read(path: Path, reasons: Reasons) -> Description:
    """Describe a checkpoint_*.pt file and the dictionaries next to it."""
    checkpoint = load_checkpoint(path)
    options = Options(read_options(checkpoint), reasons, as_flags=True)
    if missing := [part for part in PARTS if not any(str(name).startswith(part) for name in checkpoint["model"])]:
        architecture = show_value(options.get("arch") or options.get("_name"))
        reasons.add_setting(f"its architecture {architecture} has no {' and no '.join(missing)}")
        reasons.raise_if_any()
    languages = options.get("lang_pairs") is not None
    options.require({"activation_fn": tuple(ACTIVATIONS)}, f"{OFF} {OFF_WITH_LANGUAGES}" if languages else OFF)
    config = options.read_sizes(SIZES)
    for name in ("decoder_embed_dim", "decoder_input_dim", "decoder_output_dim"):
        options.require_equal(name, "encoder_embed_dim", missing=config["d_model"])
    for name in ("learned_pos", "normalize_before"):
        options.require_equal(f"encoder_{name}", f"decoder_{name}", missing=False)
    reasons.raise_if_any()

    tensors = select_weights(checkpoint["model"], reasons, *IGNORED)
    update_old_names(tensors)
    tied = options.get("share_decoder_input_output_embed") or options.get("share_all_embeddings")
    if tied and DECODER_EMBEDDING in tensors:
        tensors.setdefault(OUTPUT_PROJECTION, tensors[DECODER_EMBEDDING])
    options.setdefault("dropout", 0.1)
    options.setdefault("activation_dropout", options.get("relu_dropout"))  # its name before 0.9
    config |= options.read_rates(0.0, *RATES) | {
        "activation_function": ACTIVATIONS[options.get("activation_fn") or "relu"],
        "position_offset": OFFSET,
        "norm_position": "pre" if options.get("encoder_normalize_before") else "post",
        "encoder_final_norm": "encoder.layer_norm.weight" in tensors,
        "decoder_final_norm": "decoder.layer_norm.weight" in tensors,
        "layer_norm_eps": EPSILON,
    }
    rules = make_rules(config, bool(options.get("encoder_learned_pos")))
    in_source = read_places(options) if languages else None
    rows = count_embeddings(tensors, rules)
    if not languages and options.get("source_lang") is None:
        options |= find_language_pair(path.parent, rows)
    vocabulary = read_vocabulary(path.parent, options, rows, in_source is not None)
    unscaled = (SOURCE, TARGET) if options.get("no_scale_embedding") else ()
    kept = {name: options.get(name) for name in ("arch", "source_lang", "target_lang")}
    return Description(
        tensors,
        rules,
        config,
        vocabulary,
        TENSOR2TENSOR,
        unscaled=unscaled,
        notes=NOTES,
        in_source=in_source,
        kept=kept,
    )


def read_options(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the model, from `cfg` (0.10 and later) or `args`."""
    cfg = get_items(checkpoint.get("cfg"))
    options: dict[str, Any] = {}
    for part in (checkpoint.get("args"), cfg.get("task"), cfg.get("model")):
        options |= get_items(part)
    for group in ("encoder", "decoder", "quant_noise"):  # fairseq-hydra-train nests them
        nested = options.pop(group, None)
        if isinstance(nested, dict):
            options |= {f"{group}_{name}": value for name, value in nested.items()}
    return options


def get_items(part: Any) -> dict[str, Any]:
    """Return the items of a Namespace, a dictionary or OmegaConf's DictConfig; none of anything else."""
    part = unwrap_node(part)
    items = getattr(part, "__dict__", part)
    return items if isinstance(items, dict) else {}


def unwrap_node(node: Any) -> Any:
    """Return the value of a node of OmegaConf, which versions between 0.10 and 0.12 save as an object."""
    attributes = getattr(node, "__dict__", {})
    content = attributes.get("_content")
    if isinstance(content, dict):
        return {name: unwrap_node(value) for name, value in content.items()}
    return attributes.get("_val", node)


def update_old_names(tensors: dict[str, Tensor]) -> None:
    """Give the tensors of older versions the names of 0.12: `in_proj`, numbered norms, `decoder.embed_out`."""
    split_in_proj(tensors)
    if "decoder.embed_out" in tensors:
        tensors[OUTPUT_PROJECTION] = tensors.pop("decoder.embed_out")
    for name in [name for name in tensors if ".layer_norms." in name]:
        stack, layers, n, _, number, part = name.split(".")
        norm = OLD_NORMS[stack][int(number)]
        tensors[f"{stack}.{layers}.{n}.{norm}.{part}"] = tensors.pop(name)


def read_places(options: Options) -> str | None:
    """Return whose language translation_multi_simple_epoch names in sources, or None if only texts begin with tokens.

    `langtoks` has the places for a kind of data, those of parallel text as "main".
    """
    main = (options.get("langtoks") or {}).get("main")
    in_source, in_target = main or (options.get("encoder_langtok"), "tgt" if options.get("decoder_langtok") else None)
    if in_source not in IN_SOURCE or in_target not in ("tgt", None):
        options.reasons.add_setting(f"--langtoks {show_value(main)} (supported: src or tgt in sources, tgt in targets)")
        options.reasons.raise_if_any()
    return IN_SOURCE[in_source] if in_target else None


def read_vocabulary(folder: Path, options: Mapping[str, Any], rows: list[int], hides_languages: bool) -> Vocabulary:
    """Read the dictionaries next to the checkpoint, and BPE codes or SentencePiece models if there are any.

    hides_languages: whether the languages' tokens stand at fixed places, not in front of texts
    """
    languages = list(read_language_pair(options).values())
    files = [find_file(folder, f"dict.{language}.txt", "dict.txt") for language in languages]
    present = [file for file in files if file]
    if len(present) < 2:
        missing = " and ".join(f"dict.{lang}.txt" for lang, file in zip(languages, files, strict=True) if file is None)
        others = enumerate_names(sorted(file.name for file in {*folder.glob("dict.*.txt")} - {*present}))
        missing += f" (rename {others})" if others else ""
        why = f"the checkpoint comes without {missing}. Ids are fairseq's"
        return number_tokens(SPECIAL, rows, why, **IDS)
    added = name_language_tokens(options)
    source, target = map(read_dictionary, present)
    for tokens in (source, target):
        tokens += [token for token in added if token not in tokens]
    vocabulary = Vocabulary(source, target, files=present, **IDS)
    if hides_languages:
        vocabulary.hide_languages(dict(zip(list_languages(options), added, strict=False)))  # added has <mask>, too
    return add_tokenizers(vocabulary, folder, languages)


def find_language_pair(folder: Path, rows: list[int]) -> dict[str, str]:
    """Return source_lang and target_lang by the sizes of the dictionaries; nothing unless they tell both.

    A checkpoint does not record what its training has inferred from the names of the data.
    rows: the source's and the target's number of embeddings
    """
    languages = {}
    for name, size in zip(DEFAULT_LANGUAGES, rows, strict=True):
        sizes = {file: len(read_dictionary(file)) for file in folder.glob("dict.*.txt")}
        found = [file.name.split(".")[1] for file, its_size in sizes.items() if its_size == size]
        languages |= {name: found[0]} if len(found) == 1 else {}
    return languages if len({*languages.values()}) == 2 else {}


def name_language_tokens(options: Mapping[str, Any]) -> list[str]:
    """Return the tokens that translation_multi_simple_epoch appends to each dictionary when it loads it."""
    pairs, style = options.get("lang_pairs"), options.get("lang_tok_style")
    if pairs is None or style not in LANGUAGE_STYLES:
        return []
    tokens = [LANGUAGE_STYLES[style].format(language) for language in list_languages(options)]
    return [*tokens, "<mask>"] if style == "mbart" else tokens


def list_languages(options: Mapping[str, Any]) -> list[str]:
    """Return the codes of --langs or else of --lang-pairs, in the order of the tokens."""
    return split(
        options.get("langs") or sorted({code for pair in split(options["lang_pairs"]) for code in pair.split("-")})
    )


def split(names: str | list[str]) -> list[str]:
    """Return the items of a list, which may be written with commas."""
    return names.split(",") if isinstance(names, str) else names


def read_dictionary(path: Path) -> list[str]:
    """Read the tokens of a dict.txt by id. A line is a token, a space and a count.

    A line with OVERWRITE repeats a token and gives it another id, as for the `<s>`, `</s>` and `<unk>` in dictionaries
    that were made from a SentencePiece vocabulary. One of the two ids then belongs to no text: the new id of a special
    token, whose own id fairseq has fixed, or the old id of any other token.
    """
    tokens = [*SPECIAL]
    for number, line in enumerate(read_lines(path), start=1):
        counted = line.rstrip()
        token, space, count = counted.removesuffix(OVERWRITE).rpartition(" ")
        if not space or not count.isdigit():
            raise BrokenFileError(f"{path} line {number}: {line!r} is not a token and a count")
        if counted.endswith(OVERWRITE) and token in tokens:
            lost = len(tokens) if token in SPECIAL else tokens.index(token)
            tokens.append(token)
            tokens[lost] = find_unused_name(f"<unused{lost}>", tokens)
        else:
            tokens.append(token)
    return tokens


# ---- from our model to fairseq -----------------------------------------------------------------------------------


@register_writer("fairseq")
def write_checkpoint(folder: OurModel, out: Path, options: Options) -> None:
    """Write a checkpoint of fairseq 0.12 and its dictionaries."""
    config, reasons = folder.config, options.reasons
    pre, learned = config.norm_position == "pre", config.position_embedding_type == "learned"
    options.require(
        {
            "position_base": (config.position_base if learned else TENSOR2TENSOR.base(config.d_model),),
            "position_offset": (OFFSET,),
            "layer_norm_eps": (EPSILON,),
            "activation_function": tuple(ACTIVATIONS.values()),
            "encoder_final_norm": (pre,),
            "decoder_final_norm": (True, False) if pre else (False,),
        }
    )
    ids = (config.bos_token_id, config.pad_token_id, config.eos_token_id, config.decoder_start_token_id)
    if ids != (0, 1, 2, 2):
        reasons.add_setting(
            f"the ids of <s>, <pad>, </s> and the decoder's first token are {ids}; fairseq's are (0, 1, 2, 2): it "
            "starts the decoder with </s>"
        )
    languages = read_language_pair(folder.kept)
    files = [find_file(folder.originals, f"dict.{language}.txt", "dict.txt") for language in languages.values()]
    are_whole = folder.toolkit == "fairseq" and all(
        file is not None and len(read_dictionary(file)) == folder.rows[side]
        for side, file in zip(SIDES, files, strict=True)
    )
    has_dictionaries = are_whole and folder.originals / "dict.txt" not in files
    if folder.toolkit == "fairseq" and not are_whole:
        # Those of a multilingual model lack the languages' tokens. They are copied, too, so that the names must differ.
        languages = DEFAULT_LANGUAGES
    if not has_dictionaries and not folder.has_tokenizer():
        reasons.add_setting("there is no tokenizer to write the dictionaries from")
    ours = folder.tensors(None if learned else TENSOR2TENSOR)
    if OUTPUT_BIAS in ours and ours[OUTPUT_BIAS].any():
        reasons.add_setting("the output layer has a bias (output_bias)")
    reasons.raise_if_any()

    tensors = rename_to_theirs(make_rules(config.to_dict(), learned), ours)
    for stack in STACKS:
        tensors[f"{stack}.version"] = torch.tensor([3.0])  # with an older one, fairseq drops the final norms
        if not learned:
            tensors[f"{stack}.embed_positions._float_tensor"] = torch.zeros(1)
    # Every version of fairseq reads `args`; `cfg` would have to be an object of OmegaConf.
    checkpoint = {
        "args": make_options(config, languages),
        "model": folder.in_saved_dtype(tensors),
        "optimizer_history": [{"optimizer_name": "adam", "lr_scheduler_state": {}, "num_updates": 0}],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
    }
    save_pickle(checkpoint, out / "checkpoint_best.pt")
    if not has_dictionaries:
        write_vocabulary(folder, languages, out)


def read_language_pair(options: Mapping[str, Any]) -> dict[str, str]:
    """Return source_lang and target_lang, the codes in the dictionaries' file names; of several pairs, the first."""
    pairs = split(options.get("lang_pairs") or [])
    names = pairs[0].split("-") if pairs else DEFAULT_LANGUAGES.values()
    return {name: options.get(name) or other for name, other in zip(DEFAULT_LANGUAGES, names, strict=True)}


def make_options(config: Any, languages: Mapping[str, str]) -> argparse.Namespace:
    """Return fairseq's options for a model of ours."""
    pre, learned = config.norm_position == "pre", config.position_embedding_type == "learned"
    activation = next(name for name, ours in ACTIVATIONS.items() if ours == config.activation_function)
    return argparse.Namespace(
        arch="transformer",
        task="translation",
        **languages,
        **{f"decoder_{name}_dim": config.d_model for name in ("embed", "input", "output")},
        **{theirs: getattr(config, ours) for ours, theirs in map_fields(SIZES).items()},
        activation_fn=activation,
        **{rate: getattr(config, rate) for rate in RATES},
        encoder_normalize_before=pre,
        decoder_normalize_before=pre,
        no_decoder_final_norm=pre and not config.decoder_final_norm,
        encoder_learned_pos=learned,
        decoder_learned_pos=learned,
        max_source_positions=config.learned_positions or 1024,
        max_target_positions=config.learned_positions or 1024,
        share_all_embeddings=config.share_encoder_decoder_embeddings and config.tie_word_embeddings,
        share_decoder_input_output_embed=config.tie_word_embeddings,
        no_scale_embedding=False,
        adaptive_softmax_cutoff=None,
        **dict.fromkeys(OFF_IN_WRITTEN_FILES.split(), False),
    )


def write_vocabulary(folder: OurModel, languages: Mapping[str, str], out: Path) -> None:
    """Write the dictionaries and, if the tokenizer is subword-nmt's, its codes.

    Its last piece of a word ends with `</w>`; in a dictionary, the pieces before it end with `@@`. Added tokens, such
    as those of languages, are whole words.
    """
    for side, language, tokens in zip(SIDES, languages.values(), folder.tokens(), strict=True):
        tokens = tokens[len(SPECIAL) :]
        content = json.loads(folder.tokenizer(side).to_str())
        model, whole = content["model"], {token["content"] for token in content["added_tokens"]}
        if model.get("end_of_word_suffix") == "</w>":
            tokens = [
                token if token in whole else token.removesuffix("</w>") if token.endswith("</w>") else f"{token}@@"
                for token in tokens
            ]
            codes = "".join(f"{left} {right}\n" for left, right in model["merges"])
            (out / f"bpecodes.{language}").write_text(f"#version: 0.2\n{codes}", encoding="utf-8")
        lines = "".join(f"{token} 1\n" for token in tokens)
        (out / f"dict.{language}.txt").write_text(lines, encoding="utf-8")
