"""A state_dict of a module that contains torch.nn.Transformer, and a config.json with the number of heads.

torch puts a final norm on both stacks, also with post-norm layers. The modules around nn.Transformer are the author's:
their names tell embeddings, output and positions apart. No tensor records whether embeddings are multiplied by
sqrt(d_model), as in torch's translation tutorial: `scale_embeddings` in config.json does.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vaswani_transformer.files import read_json_object
from vaswani_transformer.lines import read_lines

from ..checkpoint_files import load_checkpoint, require_file
from ..layout import (
    CONCATENATED,
    DECODER_POSITIONS,
    ENCODER_POSITIONS,
    OUTPUT,
    OUTPUT_BIAS,
    PAPER,
    SOURCE,
    TARGET,
    TENSOR2TENSOR,
)
from ..options import STACKS, Options, Reasons
from ..rename import Rule, expand_layers, infer_sizes, select_weights, split_in_proj
from ..segmentation import add_tokenizers
from ..toolkit import Description, Read, register_reader
from ..vocabulary import TEXT, Vocabulary, read_both_sides, read_token_ids

TORCH_FILES = ["*.pt*", "*.zip", "*.safetensors"]  # torch.save writes zip files, and some authors name them so
FIRST_WEIGHT = "decoder.layers.0.multihead_attn.in_proj_weight"  # old fairseq has another name
SOURCE_NAME = re.compile(r"(src|source|enc|input|in_).*emb|emb.*(src|source|enc)|^src")
TARGET_NAME = re.compile(r"(tgt|trg|target|dec|output).*emb|emb.*(tgt|trg|target|dec)|^tgt|^trg")
SCALE_ASSUMED = (
    "Embeddings are assumed to be multiplied by sqrt(d_model), as in torch's translation tutorial; if they are not, "
    'set "scale_embeddings": false in the config.json next to the checkpoint and convert it again.'
)
POSITIONS_ASSUMED = "The checkpoint has no table of positions: the paper's sinusoids are assumed."
PADDING_NOTE = (
    "Padding is masked here. A module that was trained and used without padding masks gives other results for padded "
    "sources, also for single texts if it pads them to a fixed length: generate() then needs sources of that length "
    "and an attention_mask of ones."
)
POSITION_NAME = re.compile(r"pos|(^|[._])pe($|[._])")
SINUSOIDS = (PAPER, CONCATENATED, TENSOR2TENSOR)
TABLE_ROWS = 1024  # of sinusoids, for the comparison with torch's model
SUPPORTED: dict[str, tuple] = {
    "activation": ("relu", "gelu"),
    "norm_first": (True, False),
    "scale_embeddings": (True, False),
}
SOURCE_TEMPLATE = ("bos_token", TEXT, "eos_token")
# The usual names of special tokens in a word list.
SPECIAL_TOKENS = {
    "unknown": ("<unk>", "<UNK>", "[UNK]"),
    "pad": ("<pad>", "<PAD>", "<blank>", "[PAD]"),
    "bos": ("<s>", "<bos>", "<BOS>", "<sos>", "<SOS>", "<start>", "<START>", "[BOS]", "[SOS]", "[CLS]", "[START]"),
    "eos": ("</s>", "<eos>", "<EOS>", "<end>", "<END>", "[EOS]", "[SEP]", "[END]"),
}

COMMON = {
    "self_attn.{q,k,v,out}_proj.{weight,bias}": "self_attn.{q,k,v,out}_proj.{weight,bias}",
    "linear{1,2}.{weight,bias}": "feed_forward.fc{1,2}.{weight,bias}",
}
LAYERS = {
    "encoder": COMMON | {"norm{1,2}.{weight,bias}": "{self_attn,feed_forward}_norm.{weight,bias}"},
    "decoder": COMMON
    | {
        "multihead_attn.{q,k,v,out}_proj.{weight,bias}": "cross_attn.{q,k,v,out}_proj.{weight,bias}",
        "norm{1,2,3}.{weight,bias}": "{self_attn,cross_attn,feed_forward}_norm.{weight,bias}",
    },
}


def find_module_weights(checkpoint: Mapping[Any, Any], known: str) -> dict[str, Any]:
    """Return the weights of a module, without the prefix of their names; none if the checkpoint does not have it.

    The state_dict is the checkpoint itself or has one of the usual names in it. Names outside the module stay as they
    are.

    known: one of the module's names of weights
    """
    for weights in (checkpoint, *(checkpoint.get(name) for name in ("state_dict", "model_state_dict", "model"))):
        if isinstance(weights, Mapping):
            prefixes = (str(name).removesuffix(known) for name in weights if str(name).endswith(known))
            # Of a module and its moving average, the shortest: the others' names cannot become those of the first.
            if (prefix := min(prefixes, key=len, default=None)) is not None:
                return {str(name).removeprefix(prefix): tensor for name, tensor in weights.items()}
    return {}


def register_module_reader(name: str, known: str) -> Callable[[Read], Read]:
    """Register the reader of a module's state_dict in a file of torch.save.  known: see `find_module_weights`"""
    return register_reader(
        name,
        TORCH_FILES,
        packages=["__main__"],
        recognise_content=lambda content: bool(find_module_weights(content, known)),
    )


@register_module_reader("torch-nn-transformer", FIRST_WEIGHT)
def read(path: Path, reasons: Reasons) -> Description:
    """Describe a state_dict and the config.json next to it."""
    remedy = '; write one with {"nhead": ...}: no tensor records the number of heads'
    file = require_file(path.parent, "config.json", remedy=remedy)
    options = Options(read_json_object(file), reasons)
    options.require(SUPPORTED)
    tensors = select_weights(find_module_weights(load_checkpoint(path), FIRST_WEIGHT), reasons)
    config: dict[str, Any] = {"d_model": tensors[FIRST_WEIGHT].shape[1]}
    options.require({"d_model": (config["d_model"],)})
    options.setdefault("nhead", options.get("num_heads"))
    config |= options.read_heads("nhead", config["d_model"])
    reasons.raise_if_any()

    split_in_proj(tensors)
    config |= options.read_rates(0.1, "dropout") | {
        "activation_function": options.get("activation", "relu"),
        "norm_position": "pre" if options.get("norm_first") else "post",
        "layer_norm_eps": options.get("layer_norm_eps", 1e-5),
    }
    config |= infer_sizes(tensors, "linear1.weight")
    options.require({f"num_{stack}_layers": (config[f"{stack}_layers"],) for stack in STACKS})
    config |= {f"{stack}_final_norm": f"{stack}.norm.weight" in tensors for stack in STACKS}
    rules = expand_layers(config, "{encoder,decoder}.layers.#.", LAYERS, "{encoder,decoder}.norm.{weight,bias}")
    bias = "encoder.layers.0.linear1.bias" in tensors
    rules = [rule for rule in rules if bias or not rule.ours.endswith("bias")]
    inside = {rule.theirs for rule in rules}
    outer = {name: tensor for name, tensor in tensors.items() if name not in inside}
    tables = find_position_tables(outer, config["d_model"])
    tensors |= tables
    rules += make_embedding_rules({name: tensor for name, tensor in outer.items() if name not in tables}, reasons)
    matching = (form for form in SINUSOIDS if all(form.match(table, config["d_model"]) for table in tables.values()))
    sinusoids = next(matching, None)
    if sinusoids is None:
        rules += make_position_rules(list(tables), reasons)
    reasons.raise_if_any()
    assumptions = [] if "scale_embeddings" in options else [SCALE_ASSUMED]
    assumptions += [] if tables else [POSITIONS_ASSUMED]
    return Description(
        tensors,
        rules,
        config,
        read_word_lists(path.parent),
        sinusoids or PAPER,
        unscaled=() if options.get("scale_embeddings", True) else (SOURCE, TARGET),
        notes=[PADDING_NOTE],
        assumptions=assumptions,
        files=[file],
        reference=compute_logits,
    )


def read_word_lists(folder: Path) -> Vocabulary:
    """Read vocab.src.txt and vocab.tgt.txt, or vocab.txt for both; sources begin with bos and end with eos.

    Instead of lines, a .json file has an object of tokens and ids. Vocabularies of characters may lack `unknown`.
    """
    remedy = "; write one token per line in the order of the ids, special tokens with their usual names"
    files = []
    for side, other in (("src", "source"), ("tgt", "trg")):
        names = (f"vocab.{side}", f"vocab.{other}", f"{side}_vocab", "vocab")
        patterns = (f"{name}.{suffix}" for name in names for suffix in ("txt", "json"))
        files.append(require_file(folder, *patterns, remedy=remedy))
    special: dict[str, Any] = dict(SPECIAL_TOKENS)
    settings: dict[str, Any] = {"source_template": SOURCE_TEMPLATE}
    if not any(token in special["unknown"] for file in files for token in read_tokens(file)):
        del special["unknown"]
        settings["unknown"] = None
    return add_tokenizers(read_both_sides(files, read_tokens, special, **settings), folder)


def read_tokens(file: Path) -> list[str]:
    """Read the tokens of a word list by id."""
    return read_token_ids(file) if file.suffix == ".json" else list(read_lines(file))


def find_position_tables(outer: Mapping[str, Tensor], d_model: int) -> dict[str, Tensor]:
    """Return the tables of positions among the tensors outside nn.Transformer, as (length, d_model)."""
    return {
        name: tensor.reshape(-1, d_model)
        for name, tensor in outer.items()
        if POSITION_NAME.search(name.lower()) and tensor.dim() >= 2 and tensor.shape[-1] == d_model
    }


def make_position_rules(tables: list[str], reasons: Reasons) -> list[Rule]:
    """Return the rules for learned tables: one for both stacks, or one for the source and one for the target."""
    if len(tables) > 2:
        reasons.add_setting(f"more than two tables of positions: {', '.join(tables)}")
    by_side = sorted(tables, key=lambda name: bool(TARGET_NAME.search(name.lower())))
    return [Rule(by_side[0], ENCODER_POSITIONS), Rule(by_side[-1], DECODER_POSITIONS)]


def make_embedding_rules(tensors: Mapping[str, Tensor], reasons: Reasons) -> list[Rule]:
    """Return the rules for the embeddings and the output layer, which are told apart by their names.

    tensors: those outside nn.Transformer that are not positions
    """
    matrices = [name for name, tensor in tensors.items() if tensor.dim() == 2]
    tables = [name for name in matrices if "emb" in name.lower() or "lut" in name.lower()]
    outputs = [name for name in matrices if name not in tables]
    source = [name for name in tables if SOURCE_NAME.search(name.lower())] or tables
    target = [name for name in tables if TARGET_NAME.search(name.lower())] or tables
    if len(source) != 1 or len(target) != 1 or len(outputs) > 1:
        reasons.add_setting(
            f"embeddings {', '.join(tables) or 'none'} and outputs {', '.join(outputs) or 'none'} cannot be told "
            "apart; rename them to src_tok_emb, tgt_tok_emb and generator"
        )
        return []
    output = outputs[0] if outputs else target[0]
    rules = [Rule(source[0], SOURCE), Rule(target[0], TARGET), Rule(output, OUTPUT)]
    bias = output.removesuffix("weight") + "bias"
    return [*rules, Rule(bias, OUTPUT_BIAS)] if bias in tensors else rules


def compute_logits(path: Path, description: Description, source: Tensor, target: Tensor) -> Tensor:
    """Run nn.Transformer with the file's tensors, and the embeddings, positions and output that `read` found."""
    config, tensors = description.config, description.tensors
    ours = {rule.ours: tensors[rule.theirs].float() for rule in description.rules if rule.theirs in tensors}
    weights = find_module_weights(load_checkpoint(path), FIRST_WEIGHT)
    with torch.device("meta"):
        module = nn.Transformer(
            d_model=config["d_model"],
            nhead=config["encoder_attention_heads"],
            num_encoder_layers=config["encoder_layers"],
            num_decoder_layers=config["decoder_layers"],
            dim_feedforward=config["encoder_ffn_dim"],
            activation=config["activation_function"],
            norm_first=config["norm_position"] == "pre",
            layer_norm_eps=config["layer_norm_eps"],
            bias="encoder.layers.0.linear1.bias" in weights,
            batch_first=True,
        )
    for stack in STACKS:
        if not config[f"{stack}_final_norm"]:
            getattr(module, stack).norm = None
    module.load_state_dict({name: weights[name] for name in module.state_dict()}, assign=True)
    module.float().eval()
    table = description.sinusoids.table(TABLE_ROWS, config["d_model"]).float()

    def embed(ids: Tensor, embedding: str, positions: str) -> Tensor:
        scale = 1.0 if embedding in description.unscaled else config["d_model"] ** 0.5
        return ours[embedding][ids] * scale + ours.get(positions, table)[: ids.shape[1]]

    states = module(
        embed(source, SOURCE, ENCODER_POSITIONS),
        embed(target, TARGET, DECODER_POSITIONS),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(target.shape[1]),
    )
    return states @ ours[OUTPUT].T + ours.get(OUTPUT_BIAS, torch.zeros(()))
