"""Export a model folder to ONNX. The output folder is created only if every step succeeds."""

import copy
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any, cast

import onnx
import torch
from onnx import ModelProto
from onnx.external_data_helper import set_external_data

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import InputError
from vaswani_transformer.lines import read_lines
from vaswani_transformer.loading import load_model, load_tokenizer, refuse_unsupported_settings, weight_files
from vaswani_transformer.model_folder import EXPORT_RECORD, TOKENIZER_FILES, files_sha256, write_json
from vaswani_transformer.modeling_vaswani_transformer import target_vocab_size
from vaswani_transformer.onnx_translator import plain_tokenizer
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER

from ..checkpoint_files import create_folder
from .as_marian import Library, arrange_as_marian, check_as_marian
from .quantize import quantize
from .readme import write_readme
from .rewrite import walk_graphs
from .search_inputs import default_inputs
from .single_graph import export_single_graph
from .split import export_split
from .tokenizer import add_tokenizer, load_byte_level_bpe
from .verify import verify
from .verify_split import verify_split
from .verify_text import time_sentences, tokenize_sentences, verify_text

# Bytes of weights in one file. Protobuf limits a message to 2 GiB, the graph included.
LARGEST_FILE = 2_000_000_000
# Files of the model that runtimes read.
COPIED_FILES = ("generation_config.json", *TOKENIZER_FILES, *(f"{TARGET_TOKENIZER}/{file}" for file in TOKENIZER_FILES))

OnStage = Callable[[str], object]


def export_single_folder(
    model_folder: Path,
    folder: Path,
    precision: str = "fp32",
    *,
    defaults: bool = True,
    attention: bool = False,
    text: bool = False,
    sentences: str | Path | None = None,
    on_stage: OnStage = lambda stage: None,
) -> str:
    """Export one graph that contains the search, and return a report of the comparison with torch.

    defaults: give the settings of the search default values; False makes all but early_stopping required inputs,
        because onnxruntime-web, unlike ONNX Runtime itself, ignores other values of optional inputs
    attention: add the output cross_attentions
    text: also write model_text.onnx, which contains the tokenizer
    sentences: a text file on which to verify and time the graph, too
    on_stage: called with the name of each stage

    Raises InputError, BrokenFileError, UnavailableError, or ProofError if the graph does not translate as torch does.
    """
    lines = None if sentences is None else list(read_lines(sentences))
    with create_folder(folder) as unfinished:
        model = load_model(model_folder, device="cpu", dtype=torch.float32)
        refuse_unsupported_settings(model, model_folder)
        tokenizer = check_and_load_tokenizer(model_folder, model, required=lines is not None)
        encoded = None if lines is None else tokenize_sentences(lines, tokenizer, model, str(sentences))
        bpe = load_byte_level_bpe(model_folder, model) if text else None
        on_stage("exporting the model")
        graph = export_single_graph(half_if_fp16(model, precision), attention)
        settings = {} if defaults else default_inputs(model.generation_config.to_dict())
        settings.pop("early_stopping", None)  # stays optional, for callers that do not know it
        remove_defaults(graph, settings)
        on_stage("writing the graphs")
        path = unfinished / "model.onnx"
        write_graph(graph, path, precision)
        if bpe is not None:
            onnx.load_external_data_for_model(graph, str(unfinished))  # `save` may have moved the weights out
            save(add_tokenizer(graph, bpe, model), unfinished / "model_text.onnx")
        del graph  # may have gigabytes
        on_stage("comparing with torch")
        reports = [verify(path, model, precision)]
        if encoded is not None:
            reports.append(time_sentences(path, model, encoded, precision))
        if text:
            reports.append(verify_text(unfinished, model, tokenizer, lines or []))
        copy_files(model_folder, unfinished, model, precision)
        if (model_folder / "tokenizer.json").exists():
            page = write_readme(model, model_folder, precision, settings, unfinished, attention)
            (unfinished / "README.md").write_text(page, encoding="utf-8")
    return "\n".join(reports)


def export_split_folder(
    model_folder: Path,
    folder: Path,
    precision: str = "fp32",
    *,
    attention: bool = False,
    library: Library | None = None,
    on_stage: OnStage = lambda stage: None,
) -> str:
    """Export encoder and decoders as separate graphs, and return a report of the comparison with torch.

    attention: add the outputs cross_attentions.0, ... to decoder_model
    library: arrange the files as this library loads them
    on_stage: called with the name of each stage

    Raises InputError, BrokenFileError, UnavailableError, or ProofError if the logits differ from torch's.
    """
    with create_folder(folder) as unfinished:
        model = load_model(model_folder, device="cpu", dtype=torch.float32)
        if library:
            check_as_marian(model, model_folder, library)
        check_and_load_tokenizer(model_folder, model)
        on_stage("exporting the model")
        end = cast(int, model.config.eos_token_id) if library == "transformers.js" else None
        graphs = export_split(half_if_fp16(model, precision), attention, end)
        on_stage("writing the graphs")
        for name in list(graphs):
            write_graph(graphs.pop(name), unfinished / f"{name}.onnx", precision)
        on_stage("comparing with torch")
        report = verify_split(unfinished, model, precision)
        copy_files(model_folder, unfinished, model, precision)
        if library:
            arrange_as_marian(unfinished, model, precision, library)
    return report


def half_if_fp16(model: Model, precision: str) -> Model:
    """Return the model to export.

    Attention scores, masks and the search stay float32, because the model's code casts them to float32.
    """
    return copy.deepcopy(model).half() if precision == "fp16" else model


def check_and_load_tokenizer(model_folder: Path, model: Model, required: bool = False) -> Any:
    """Check the folder's tokenizers and return the source tokenizer, or None if there is none.

    required: raise BrokenFileError if there is none
    """
    config, exists = model.config, (model_folder / "tokenizer.json").exists()
    tokenizer = load_tokenizer(model_folder, config) if exists or required else None
    if (model_folder / TARGET_TOKENIZER).is_dir():
        load_tokenizer(model_folder / TARGET_TOKENIZER, config, target=True)
    elif exists and target_vocab_size(config) != config.vocab_size:
        raise InputError(
            f"{model_folder}: the model has {config.vocab_size} source and {target_vocab_size(config)} target tokens "
            f"but one tokenizer; add the target's as {TARGET_TOKENIZER}/tokenizer.json"
        )
    return tokenizer


def remove_defaults(graph: ModelProto, inputs: Container[str]) -> None:
    """Make optional inputs required, in place."""
    for tensor in [tensor for tensor in graph.graph.initializer if tensor.name in inputs]:
        graph.graph.initializer.remove(tensor)


def write_graph(graph: ModelProto, path: Path, precision: str) -> None:
    """Write the graph, after quantizing it in place if the precision is int8 or int8-weights."""
    if precision.startswith("int8"):
        quantize(graph, activations=precision == "int8")
    save(graph, path)


def save(graph: ModelProto, path: Path) -> None:
    """Write one file. If it would be too large, move the weights to NAME.data beside it."""
    tensors = [tensor for body in walk_graphs(graph.graph) for tensor in body.initializer]
    if sum(len(tensor.raw_data) for tensor in tensors) > LARGEST_FILE:
        for tensor in tensors:
            # onnx.save has an option for this, but it refuses if the current folder has a file of that name.
            if len(tensor.raw_data) >= 1024:
                set_external_data(tensor, f"{path.name}.data")
    onnx.save(graph, path)


def copy_files(model_folder: Path, unfinished: Path, model: Model, precision: str) -> None:
    """Write config.json, generation_config.json and export.json, and copy the tokenizers."""
    record = {"precision": precision, "weights_sha256": files_sha256(*weight_files(model_folder))}
    write_json(unfinished / EXPORT_RECORD, record)
    # Not copied: the model's file may leave out defaults that the runtime must read.
    model.config.to_json_file(unfinished / "config.json")
    for file in COPIED_FILES:
        if (path := model_folder / file).exists():
            (unfinished / file).parent.mkdir(exist_ok=True)
            content = plain_tokenizer(path) if path.name == "tokenizer.json" else path.read_bytes()
            (unfinished / file).write_bytes(content)
    if not (unfinished / "generation_config.json").exists():
        model.generation_config.save_pretrained(unfinished)
