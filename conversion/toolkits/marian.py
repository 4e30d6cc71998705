"""MarianNMT: model.npz, with its configuration inside, and the vocabularies that decoder.yml names.

Differences from the paper: tensor2tensor's sinusoids (transformers' MarianMTModel and CTranslate2's Marian converter
use the exponent 2i / d_model); the decoder starts with a zero vector; matrices are stored as (in, out); biases in the
attention and the output.
"""

import re
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.files import check_readable
from vaswani_transformer.lines import BYTE_ORDER_MARK, read_lines

from ..checkpoint_files import parse_yaml, read_npz, read_yaml
from ..folder import OurModel
from ..layout import DECODER_POSITIONS, ENCODER_POSITIONS, OUTPUT, OUTPUT_BIAS, SOURCE, TARGET, TENSOR2TENSOR
from ..options import STACKS, Options, Reasons, show_value
from ..rename import Rule, expand_layers, find_first, rename_to_theirs, select_weights
from ..segmentation import build_word_tokenizer, find_tokenizer
from ..sentencepiece_model import CONTROL, SPACE, UNKNOWN, SentencePieceModel
from ..toolkit import Description, count_embeddings, explain_penalty, register_reader, register_writer
from ..vocabulary import SIDES, Vocabulary, find_unused_name, number_tokens

CONFIG = "special:model.yml"
EPSILON = 1e-6

ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu"}
OFF = (
    "right-left ulr transformer-no-projection transformer-rnn-projection transformer-pool transformer-no-bias "
    "transformer-disable-position-embeddings transformer-alibi-trainable transformer-no-affine input-types "
    "factors-dim-emb lemma-dim-emb lemma-dependency transformer-tied-layers"
)
SUPPORTED: dict[str, tuple] = {
    "type": ("transformer",),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-attention-mask": ("default", ""),
    "transformer-ffn-activation": tuple(ACTIVATIONS),
    "transformer-postprocess-emb": ("d", ""),
    "transformer-postprocess-top": ("", "n", "dn", "nd", "d"),
}
SIZES = {
    "dim-emb": "d_model",
    "{enc,dec}-depth": "{encoder,decoder}_layers",
    "transformer-heads": "{encoder,decoder}_attention_heads",
    "transformer-dim-ffn": "{encoder,decoder}_ffn_dim",
}
DROPOUT = ("transformer-dropout", "transformer-dropout-attention", "transformer-dropout-ffn")
# Characters that Marian reads in a vocabulary, but that YAML refuses or takes for line breaks or a byte order mark.
# Characters for private use take their places.
NOT_IN_YAML = [*range(9), *range(11, 32), *range(127, 160), 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF]
STAND_INS = {code: 0xF0000 + code for code in NOT_IN_YAML}
ORIGINALS = {stand_in: code for code, stand_in in STAND_INS.items()}
# Operations before and after a sub-layer, see `Options.read_norm_position`.
NORM_POSITIONS = {("", "an"): "post", ("n", "a"): "pre"}

MATRICES = {
    "self_W{q,k,v,o}": "self_attn.{q,k,v,out}_proj.weight",
    "context_W{q,k,v,o}": "cross_attn.{q,k,v,out}_proj.weight",
    "ffn_W{1,2}": "feed_forward.fc{1,2}.weight",
}
BIASES = {name.replace("_W", "_b"): ours.replace("weight", "bias") for name, ours in MATRICES.items()}
NORMS = {
    "self_Wo_ln_{scale,bias}": "self_attn_norm.{weight,bias}",
    "context_Wo_ln_{scale,bias}": "cross_attn_norm.{weight,bias}",
    "ffn_ffn_ln_{scale,bias}": "feed_forward_norm.{weight,bias}",
}

PENALTY_NOTE = explain_penalty("Marian", "log P / L^normalize")
PRE_NORM_NOTE = (
    "Marian's pre-norm models compute one function in training and another in decoding. This is the one from "
    "training: keys and values of the decoder's self-attention come from the normalised input. When decoding, Marian "
    "computes them from the input before the norm from the second step on, which can change its translations."
)


def make_layer_rules(config: Mapping[str, Any]) -> list[Rule]:
    """Return the rules of the layers, which Marian counts from 1, and of final norms."""
    suffix = "_pre" if config["norm_position"] == "pre" else ""
    norms = {theirs + suffix: ours for theirs, ours in NORMS.items()}
    layers = dict.fromkeys(STACKS, MATRICES | BIASES | norms)
    final_norm = "{encoder,decoder}_top_ln_{scale,bias}"
    return expand_layers(config, "{encoder,decoder}_l#_", layers, final_norm, first=1, transposed=True)


def recognise(path: Path) -> bool:
    if path.suffix != ".npz" or path.name.endswith(".optimizer.npz") or not path.is_file():
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, ValueError):
        return True  # `read` reports a broken file
    return any(name.startswith(("special:", "encoder_l1_", "Wemb", "decoder_l1_")) for name in names)


@register_reader("marian", ["*.npz"], recognise_file=recognise)
def read(path: Path, reasons: Reasons) -> Description:
    """Describe a model.npz, whose configuration is inside or next to it."""
    arrays = read_npz(path)
    text = read_configuration(path, arrays.pop(CONFIG, None))
    options = Options(parse_yaml(text, path), reasons, as_flags=True)
    if options.get("transformer-decoder-autoreg") == "rnn":
        reasons.add_setting("its decoder is an SSRU, as in students of Bergamot and Firefox, not self-attention")
    options.require(SUPPORTED, OFF)
    config = options.read_sizes(SIZES)
    final_norms = "n" in str(options.get("transformer-postprocess-top", ""))
    config |= options.read_rates(0.0, *DROPOUT) | {
        "decoder_ffn_dim": options.get("transformer-decoder-dim-ffn") or config["encoder_ffn_dim"],
        "norm_position": options.read_norm_position("transformer-{preprocess,postprocess}", NORM_POSITIONS),
        "encoder_final_norm": final_norms,
        "decoder_final_norm": final_norms,
        "layer_norm_eps": EPSILON,
    }
    reasons.raise_if_any()
    config["activation_function"] = choose_activation(options)

    tensors = select_weights({name: torch.from_numpy(array) for name, array in arrays.items()}, reasons)
    rules = make_embedding_rules(tensors, options) + make_layer_rules(config)
    # Marian 1.12 ignores --transformer-train-position-embeddings in translation models, so the tensor decides.
    learned = "Wpos" in tensors
    if learned:
        rules += [Rule("Wpos", ENCODER_POSITIONS), Rule("Wpos", DECODER_POSITIONS)]
    if not options.get("output-omit-bias"):
        rules.append(Rule("decoder_ff_logit_out_b", OUTPUT_BIAS, transposed=True))
    vocabulary = read_vocabulary(path, options, count_embeddings(tensors, rules))
    unscaled = (SOURCE, TARGET) if learned else ()
    notes = [PENALTY_NOTE, PRE_NORM_NOTE] if config["norm_position"] == "pre" else [PENALTY_NOTE]
    search, lost = read_search(path, vocabulary.unknown)
    return Description(
        tensors,
        rules,
        config,
        vocabulary,
        TENSOR2TENSOR,
        unscaled=unscaled,
        notes=notes + lost,
        search=search,
        kept={"model_yml": text},
    )


def read_search(path: Path, unknown: int | None) -> tuple[dict[str, Any], list[str]]:
    """Return the settings in decoder.yml for our generation_config.json, and a note about one that it lacks.

    unknown: the id of <unk>, which Marian generates only with allow-unk
    """
    file = find_decoder_settings(path)
    settings = read_yaml(file) if file.exists() else {}
    names = {"beam-size": "num_beams", "normalize": "length_penalty"}
    found = {ours: settings[theirs] for theirs, ours in names.items() if isinstance(settings.get(theirs), int | float)}
    found["suppress_tokens"] = [] if unknown is None or settings.get("allow-unk") is True else [unknown]
    penalty = settings.get("word-penalty")
    return found, [f"The search here does not have the checkpoint's word-penalty {penalty}."] if penalty else []


def find_decoder_settings(path: Path) -> Path:
    """Return the .decoder.yml of a model, which may be missing.

    A checkpoint model.iter5000.npz has that of its run, model.npz; published models have a decoder.yml.
    """
    of_run = re.sub(r"\.iter\d+(?=\.npz$)", "", path.name)
    names = (f"{path.name}.decoder.yml", f"{of_run}.decoder.yml", "decoder.yml")
    files = [path.with_name(name) for name in names]
    return next((file for file in files if file.exists()), files[0])


def read_configuration(path: Path, inside: np.ndarray | None) -> str:
    """Return the configuration, a YAML text. inside: the array with this text; None if it is in a file of its own"""
    if inside is not None:
        return inside.tobytes().split(b"\0")[0].decode("utf-8", errors="replace")
    file = path.with_name(path.name + ".yml")
    if not file.exists():
        raise InputError(f"{path} contains no {CONFIG}, and {file.name} is missing: it has the number of heads")
    check_readable(file)
    return file.read_text(encoding="utf-8", errors="replace")


def choose_activation(options: Mapping[str, Any]) -> str:
    """Return our name of the activation. The gelu of Marian before 1.12 is x * sigmoid(1.702 x)."""
    name = ACTIVATIONS[options.get("transformer-ffn-activation", "swish")]
    version = re.match(r"v?(\d+)\.(\d+)", str(options.get("version", "")))
    if name == "gelu" and version and (int(version[1]), int(version[2])) < (1, 12):
        return "quick_gelu"
    return name


def make_embedding_rules(tensors: Mapping[str, Tensor], options: Mapping[str, Any]) -> list[Rule]:
    """Return the rules of SOURCE, TARGET and OUTPUT, which may share a matrix."""
    target = find_first(tensors, "Wemb", "decoder_Wemb")
    output = Rule("decoder_ff_logit_out_W", OUTPUT, transposed=True)
    if "decoder_ff_logit_out_Wt" in tensors:
        output = Rule("decoder_ff_logit_out_Wt", OUTPUT)
    elif options.get("tied-embeddings") or options.get("tied-embeddings-all"):
        output = Rule(target, OUTPUT)
    return [Rule(find_first(tensors, "Wemb", "encoder_Wemb"), SOURCE), Rule(target, TARGET), output]


def read_vocabulary(path: Path, options: Mapping[str, Any], rows: list[int]) -> Vocabulary:
    """Read the vocabularies that decoder.yml or the training's configuration names."""
    decoder = find_decoder_settings(path)
    names = options.get("vocabs") or []
    if decoder.exists():
        names = read_yaml(decoder).get("vocabs") or names
    if not isinstance(names, list):
        raise BrokenFileError(f"{decoder}: `vocabs` is {show_value(names)}, not a list of files")
    # The names are paths on the machine that trained; one vocabulary is for both sides.
    files = [path.parent / Path(str(name)).name for name in (names * 2 if len(names) == 1 else names)]
    if len(files) != 2 or not all(file.exists() for file in files):
        missing = " and ".join(dict.fromkeys(file.name for file in files if not file.exists()))
        if not missing:
            missing = f"`vocabs` in {decoder.name}" if decoder.exists() else f"{decoder.name}, which names vocabularies"
            missing += " (vocabs: [vocab.en.yml, vocab.de.yml])"
        why = f"the checkpoint comes without {missing}. Ids are Marian's"
        return number_tokens(["</s>", "<unk>"], rows, why, eos=0, unknown=1)
    models = [SentencePieceModel.read(file) if file.suffix == ".spm" else None for file in files]
    source, target = (
        [piece for piece, _, _ in model.pieces] if model else read_tokens(file, count)
        for file, model, count in zip(files, models, rows, strict=True)
    )
    ids, target_ids = map(find_special_ids, files, (source, target), models)
    if ids != target_ids:
        raise InputError(f"{files[0].name} and {files[1].name} give </s> and <unk> different ids: {ids}, {target_ids}")
    present = [file for file in dict.fromkeys([*files, decoder]) if file.exists()]
    vocabulary = Vocabulary(source, target, eos=ids[0], unknown=ids[1], files=present)
    for side, model in zip(SIDES, models, strict=True):
        if model:
            vocabulary.tokenizers[side] = model.build_tokenizer(vocabulary, side)
            vocabulary.references[side] = model.make_reference(vocabulary, side)
        elif any(token.startswith(SPACE) or token.endswith("@@") for token in vocabulary.tokens(side)):
            # As in OPUS-MT's archives, where scripts segment texts with source.spm or source.bpe.
            vocabulary.tokenizers[side] = find_tokenizer(vocabulary, side, path.parent, side)
        else:
            vocabulary.tokenizers[side] = build_word_tokenizer(vocabulary, side)
    vocabulary.files = list(dict.fromkeys(vocabulary.files))
    return vocabulary


def find_special_ids(file: Path, tokens: list[str], model: SentencePieceModel | None) -> tuple[int, int]:
    """Return the ids of </s> and <unk>; a SentencePiece model can have a normal piece of the same text."""
    if model:
        kinds = [kind for _, _, kind in model.pieces]
        end = next((id for id, kind in enumerate(kinds) if kind == CONTROL and tokens[id] == "</s>"), -1)
        unknown = kinds.index(UNKNOWN) if UNKNOWN in kinds else -1
    else:
        end, unknown = (tokens.index(word) if word in tokens else -1 for word in ("</s>", "<unk>"))
    if end < 0 or unknown < 0:
        raise BrokenFileError(f"{file}: the vocabulary lacks {'</s>' if end < 0 else '<unk>'}")
    return end, unknown


def read_tokens(file: Path, rows: int) -> list[str]:
    """Read a vocabulary in YAML or JSON (token: id) or with one token per line, truncated to the model's rows."""
    if file.suffix == ".fsv":
        raise InputError(f"{file}: a factored vocabulary cannot be converted")
    check_readable(file)
    if file.suffix not in (".yml", ".yaml", ".json"):
        return list(read_lines(file))[:rows]
    try:
        text = file.read_bytes().removeprefix(BYTE_ORDER_MARK).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise BrokenFileError(f"{file} is not UTF-8 ({error}); copy it again") from None
    mapping = parse_flat_yaml(text.translate(STAND_INS), file)
    try:
        by_id = {int(id): str(token).translate(ORIGINALS) for token, id in mapping.items()}
    except (ValueError, TypeError) as error:
        raise BrokenFileError(f"{file} is not a vocabulary of token: id ({error})") from None
    if len(by_id) < len(mapping):
        raise BrokenFileError(f"{file}: several tokens have the same id; copy it again")
    tokens: list[str] = []
    for id in range(min(max(by_id, default=-1) + 1, rows)):
        tokens.append(by_id.get(id) or find_unused_name(f"<unused{id}>", tokens))
    return tokens


def parse_flat_yaml(text: str, file: Path) -> dict[str, str]:
    """Return the mapping of words in a text; `null`, `1.5` and `yes` are words, too. Raises BrokenFileError.

    yaml.load would end the process on deeply nested lists, by an overflow of the stack in C.
    """
    words: list[str] = []
    collections = 0
    try:
        for event in yaml.parse(text, getattr(yaml, "CBaseLoader", yaml.BaseLoader)):
            collections += isinstance(event, yaml.CollectionStartEvent)
            if collections > 1 or isinstance(event, yaml.SequenceStartEvent | yaml.AliasEvent):
                line = event.start_mark.line + 1
                raise BrokenFileError(f"{file} line {line}: a vocabulary is a mapping of token: id; copy it again")
            if isinstance(event, yaml.ScalarEvent):
                words.append(event.value)
    except yaml.YAMLError as error:
        raise BrokenFileError(f"{file} is not valid YAML ({error}); copy it again") from None
    if collections == 0:
        raise BrokenFileError(f"{file} is not a mapping of token: id; copy it again")
    if words and (most := Counter(words[::2]).most_common(1)[0])[1] > 1:
        raise BrokenFileError(f"{file} has the token {show_value(most[0])} {most[1]} times; copy it again")
    return dict(zip(words[::2], words[1::2], strict=True))


# ---- from our model to Marian ------------------------------------------------------------------------------------


@register_writer("marian")
def write_checkpoint(folder: OurModel, out: Path, options: Options) -> None:
    """Write model.npz. convert.py copies the vocabularies."""
    config, reasons = folder.config, options.reasons
    options.require(
        {  # a folder that came from Marian may have been edited since
            "position_embedding_type": ("sinusoidal",),
            "position_base": (TENSOR2TENSOR.base(config.d_model),),
            "position_offset": (0,),
            "layer_norm_eps": (EPSILON,),
            "decoder_attention_heads": (config.encoder_attention_heads,),
            "decoder_final_norm": (config.encoder_final_norm,),
            "activation_function": (*ACTIVATIONS.values(), "quick_gelu"),
        }
    )
    if folder.toolkit != "marian":
        reasons.add_setting("only models converted from Marian can be written: others have other vocabularies")
    if folder.model.state_dict()[TARGET][config.decoder_start_token_id].any():
        reasons.add_setting("the decoder's first token has an embedding; Marian starts with a zero vector")
    ours = folder.tensors(TENSOR2TENSOR)
    reasons.raise_if_any()

    text = folder.kept.get("model_yml") or ""
    separate = {"encoder_Wemb": ours[SOURCE], "decoder_Wemb": ours[TARGET]}
    tensors = {"Wemb": ours[SOURCE]} if config.share_encoder_decoder_embeddings else separate
    if not config.tie_word_embeddings:
        tensors["decoder_ff_logit_out_W"] = ours[OUTPUT].T
    tensors |= rename_to_theirs(make_layer_rules(config.to_dict()), ours)
    if not (text and parse_yaml(text, folder.path).get("output-omit-bias")):
        tensors["decoder_ff_logit_out_b"] = ours[OUTPUT_BIAS].reshape(1, -1)
    arrays = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in tensors.items()}
    yml = text.encode("utf-8") + b"\0"
    yml += b"\0" * (-len(yml) % 256)  # Marian aligns its items
    arrays[CONFIG] = np.frombuffer(yml, dtype=np.int8)
    np.savez(out / "model.npz", allow_pickle=False, **arrays)
