"""Export a model folder to ONNX. The output folder is created only if every step succeeds."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import onnx
import torch
from onnx import ModelProto
from onnx.external_data_helper import set_external_data

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.files import file_sha256, write_json
from vaswani_transformer.languages import read_languages
from vaswani_transformer.lines import read_lines
from vaswani_transformer.loading import load_model, wrap_tokenizer
from vaswani_transformer.model_folder import EXPORT_RECORD, SETTINGS_FILES, ModelFolder, hash_weights
from vaswani_transformer.tokenizer_files import plain_tokenizer

from ..checkpoint_files import create_folder
from .as_marian import Library, arrange_as_marian, check_as_marian
from .quantize import quantize
from .readme import write_readme
from .rewrite import walk_graphs
from .single_graph import default_inputs, export_single_graph
from .split import export_split
from .tokenizer import add_tokenizer, load_text_tokenizer
from .triton import arrange_for_triton
from .verify import verify, verify_split
from .verify_text import time_sentences, tokenize_sentences, verify_text

# Bytes of weights in one file. Protobuf limits a message to 2 GiB, the graph included.
LARGEST_FILE = 2_000_000_000

OnStage = Callable[[str], object]


def export_single_folder(
    model_folder: Path,
    folder: Path,
    precision: str = "fp32",
    *,
    defaults: bool = True,
    attention: bool = False,
    repetition: bool = False,
    text: bool = False,
    sentences: str | Path | None = None,
    triton: bool = False,
    on_stage: OnStage = lambda stage: None,
) -> str:
    """Export one graph that contains the search, and return a report of the comparison with torch.

    defaults: give the settings of the search default values; False makes them required inputs, because
        onnxruntime-web, unlike ONNX Runtime itself, ignores other values of optional inputs
    attention: add the output cross_attentions
    repetition: add the inputs no_repeat_ngram_size and repetition_penalty; always so if generation_config.json sets one
    text: also write model_text.onnx, which contains the tokenizer
    sentences: a text file on which to verify and time the graph, too
    triton: arrange the files as a model repository, with one graph: model_text.onnx if there is one
    on_stage: called with the name of each stage

    Raises InputError, BrokenFileError, UnavailableError, or ProofError if the graph does not translate as torch does.
    """
    lines = None if sentences is None else list(read_lines(sentences))
    with create_folder(folder) as unfinished:
        source = ModelFolder(model_folder)
        repetition |= bool(source.search.repetition)  # `search` refuses what only `generate()` applies
        model = load_model(source, device="cpu", dtype=torch.float32)
        tokenizer = check_and_load_tokenizer(source, model, required=lines is not None)
        encoded = None if lines is None else tokenize_sentences(lines, tokenizer, model, str(sentences))
        text_tokenizer = load_text_tokenizer(model_folder) if text else None
        on_stage("exporting the model")
        graph = export_single_graph(half_if_fp16(model, precision), attention, repetition)
        required = {} if defaults else default_inputs(model, repetition)
        for tensor in [tensor for tensor in graph.graph.initializer if tensor.name in required]:
            graph.graph.initializer.remove(tensor)  # which is the default value of an input
        on_stage("writing the graphs")
        path = unfinished / "model.onnx"
        write_graph(graph, path, precision)
        if text_tokenizer is not None:
            onnx.load_external_data_for_model(graph, str(unfinished))  # `save` may have moved the weights out
            save(add_tokenizer(graph, text_tokenizer, model), unfinished / "model_text.onnx")
        del graph  # may have gigabytes
        on_stage("comparing with torch")
        reports = [verify(path, model, precision)]
        if encoded is not None:
            reports.append(time_sentences(path, model, encoded, precision))
        if text:
            reports.append(verify_text(unfinished, model, source, lines or []))
        copy_files(model_folder, unfinished, model, precision)
        if triton:
            arrange_for_triton(unfinished, "model_text.onnx" if text else "model.onnx")
        elif (model_folder / "tokenizer.json").exists():
            page = write_readme(model, model_folder, precision, required, unfinished, attention, repetition)
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
        check_and_load_tokenizer(ModelFolder(model_folder), model)
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


def check_and_load_tokenizer(folder: ModelFolder, model: Model, required: bool = False) -> Any:
    """Check the folder's tokenizers and return the source tokenizer, or None if there is none.

    required: raise BrokenFileError if there is none
    """
    if not (required or (folder.path / "tokenizer.json").exists()):
        return None
    assert folder.target_tokenizer  # which raises an error if it is missing or of another model
    return wrap_tokenizer(folder.tokenizer, folder.path, model.config)


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
    """Write config.json, generation_config.json and export.json beside the graphs, and copy the tokenizers."""
    record = {
        "precision": precision,
        "weights_sha256": hash_weights(model_folder),
        "graphs": {path.name: file_sha256(path) for path in sorted(unfinished.glob("*.onnx*"))},
    }
    if languages := read_languages(model_folder):
        record["languages"] = languages
    # Not copied: the model's file may leave out defaults that the runtime must read.
    model.config.to_json_file(unfinished / "config.json")
    for file in SETTINGS_FILES:
        if file != "config.json" and (path := model_folder / file).exists():
            (unfinished / file).parent.mkdir(exist_ok=True)
            content = plain_tokenizer(path) if path.name == "tokenizer.json" else path.read_bytes()
            (unfinished / file).write_bytes(content)
    if not (unfinished / "generation_config.json").exists():
        model.generation_config.save_pretrained(unfinished)
    tokenizers = sorted(unfinished.rglob("tokenizer.json"))
    record["tokenizers"] = {str(path.relative_to(unfinished)): file_sha256(path) for path in tokenizers}
    write_json(unfinished / EXPORT_RECORD, record)
