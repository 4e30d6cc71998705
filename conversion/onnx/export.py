"""Export a model's folder: graphs, proof, configuration, tokenizer and README. The new folder appears when complete."""

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import torch
from onnx import ModelProto, numpy_helper
from onnx.external_data_helper import set_external_data

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import InputError
from vaswani_transformer.loading import load_model, load_tokenizer, refuse_unsupported_settings
from vaswani_transformer.modeling_vaswani_transformer import target_vocab_size
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER

from ..save import new_folder
from .quantize import quantized
from .readme import readme
from .single_graph import SETTINGS, export_single_graph
from .split import export_split
from .subgraphs import graphs_of
from .time_sentences import encoded_sentences, prove_sentences
from .tokenizer.bpe import ByteLevelBPE
from .tokenizer.join import readable_tokenizer, with_tokenizer
from .tokenizer.verify import prove_text
from .transformers_js import arrange_for_javascript, check_for_javascript
from .verify import prove
from .verify_split import prove_split

# Bytes of weights in one file: ONNX's format ends at 2 GiB, the graph itself included.
LARGEST_FILE = 2_000_000_000
# The model's files that the runtime reads unchanged.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
BESIDE = ("generation_config.json", *TOKENIZER_FILES, *(f"{TARGET_TOKENIZER}/{file}" for file in TOKENIZER_FILES))


def export_folder(
    source: Path,
    folder: Path,
    precision: str = "fp32",
    layout: str = "single",
    defaults: bool = True,
    attention: bool = False,
    text: bool = False,
    sentences: list[str] | None = None,
    name: str = "sentences",
    tell: Callable[[str], object] = lambda stage: None,
    for_javascript: bool = False,
) -> str:
    """Write the new folder, or nothing; returns the table of what was compared.

    defaults: num_beams and the other settings are optional inputs; onnxruntime-web, unlike ONNX Runtime itself, then
        ignores other values
    attention: add the output cross_attentions; in the split layout, decoder_model has cross_attentions.0, ...
    text: beside the single graph, write model_text.onnx, which has the tokenizer inside
    sentences: texts on which the single graph is also proved, and timed;  name: their name in errors
    tell: is called with the name of each stage as it begins
    for_javascript: arrange the split layout as transformers.js loads it

    Raises InputError, BrokenFileError or UnavailableError; ProofError if the graph does not translate as torch does.
    """
    with new_folder(folder) as unfinished:
        model = load_model(source, device="cpu", dtype=torch.float32)
        if layout == "single":
            refuse_unsupported_settings(model, source)
        if for_javascript:
            check_for_javascript(model, source)
        tokenizer = load_tokenizers(source, model, required=sentences is not None)
        encoded = None if sentences is None else encoded_sentences(sentences, tokenizer, model, name)
        bpe = readable_tokenizer(source, model) if text else None
        # Attention scores, masks and the search stay float32 in float16 files, because the model's code casts them.
        exported = copy.deepcopy(model).half() if precision == "fp16" else model
        tell("tracing the model")
        if layout == "single":
            graphs = {"model": export_single_graph(exported, attention)}
        else:
            graphs = export_split(exported, attention, cast(int, model.config.eos_token_id) if for_javascript else None)
        settings = {} if defaults or layout != "single" else without_defaults(graphs["model"])
        tell("writing the graphs")
        for part in list(graphs):
            write_graph(graphs.pop(part), unfinished / f"{part}.onnx", precision, bpe, model)  # may have gigabytes
        tell("comparing with torch")
        if layout == "single":
            path = unfinished / "model.onnx"
            reports = [prove(path, model, precision)]
            reports += [prove_sentences(path, model, encoded, precision)] if encoded else []
            reports += [prove_text(unfinished, model, tokenizer, sentences or [])] if text else []
        else:
            reports = [prove_split(unfinished, model, precision)]
        write_files_beside(source, unfinished, model)
        if (source / "tokenizer.json").exists() and layout == "single":
            page = readme(model, precision, settings, unfinished, attention, text)
            (unfinished / "README.md").write_text(page, encoding="utf-8")
        if for_javascript:
            arrange_for_javascript(unfinished, model, precision)
    return "\n".join(reports)


def load_tokenizers(source: Path, model: Model, required: bool) -> Any:
    """Check the tokenizers that the folder has, and return that of the source, or None without one."""
    config, has_one = model.config, (source / "tokenizer.json").exists()
    tokenizer = load_tokenizer(source, config) if has_one or required else None
    if (source / TARGET_TOKENIZER).is_dir():
        load_tokenizer(source / TARGET_TOKENIZER, config, target=True)
    elif has_one and target_vocab_size(config) != config.vocab_size:
        raise InputError(
            f"{source}: the model has {config.vocab_size} source and {target_vocab_size(config)} target tokens but one "
            f"tokenizer; add the target's as {TARGET_TOKENIZER}/tokenizer.json"
        )
    return tokenizer


def without_defaults(graph: ModelProto) -> dict[str, np.ndarray]:
    """Make the settings required inputs; returns their former defaults.

    early_stopping stays optional: programs written for files that do not have it keep working.
    """
    required = set(SETTINGS) - {"early_stopping"}
    tensors = [tensor for tensor in graph.graph.initializer if tensor.name in required]
    for tensor in tensors:
        graph.graph.initializer.remove(tensor)
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in tensors}


def write_graph(graph: ModelProto, path: Path, precision: str, bpe: ByteLevelBPE | None, model: Model) -> None:
    """Write a graph and, with `bpe`, the graph with the tokenizer beside it."""
    if precision.startswith("int8"):
        graph = quantized(graph, activations=precision == "int8")
    save(graph, path)
    if bpe is not None:
        onnx.load_external_data_for_model(graph, str(path.parent))  # `save` may have moved the weights out
        save(with_tokenizer(graph, bpe, model), path.with_name("model_text.onnx"))


def save(graph: ModelProto, path: Path) -> None:
    """Write one file, or, where that would be too large, move the weights out of the graph to NAME.data beside it."""
    tensors = [tensor for body in graphs_of(graph.graph) for tensor in body.initializer]
    if sum(len(tensor.raw_data) for tensor in tensors) > LARGEST_FILE:
        for tensor in tensors:
            # Not onnx.save's own option: it refuses a file of that name in the current folder.
            if len(tensor.raw_data) >= 1024:
                set_external_data(tensor, f"{path.name}.data")
    onnx.save(graph, path)


def write_files_beside(source: Path, unfinished: Path, model: Model) -> None:
    """Write config.json and generation_config.json, and copy the tokenizers."""
    # Not the model's own file, which may leave out defaults that the runtime must read.
    model.config.to_json_file(unfinished / "config.json")
    for file in BESIDE:
        if (source / file).exists():
            (unfinished / file).parent.mkdir(exist_ok=True)
            shutil.copyfile(source / file, unfinished / file)
    if not (unfinished / "generation_config.json").exists():
        model.generation_config.save_pretrained(unfinished)
