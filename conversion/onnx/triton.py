"""Arrange an export as a model repository of Triton Inference Server.

    OUT/translate/config.pbtxt    inputs, outputs and batching
    OUT/translate/1/model.onnx    version 1 of the graph
    OUT/translate/*.json          the files of other exports, which the server ignores

Triton concatenates requests along the first axis of every input. The settings of the search are scalars and have no
such axis: they are not in config.pbtxt, so the server never sets them and ONNX Runtime uses their defaults.
"""

from pathlib import Path

import onnx
from onnx import TensorProto, ValueInfoProto

MODEL_NAME = "translate"  # config.pbtxt has no name, so the folder may be renamed
LARGEST_BATCH = 64
QUEUE_MICROSECONDS = 5000  # that a request waits for others, as in serving/batches.py
TYPES: dict[int, str] = {
    TensorProto.INT64: "TYPE_INT64",
    TensorProto.FLOAT: "TYPE_FP32",
    TensorProto.STRING: "TYPE_STRING",
}

HEADER = f"""\
# Translations do not depend on the other sentences of a batch, so requests may share one.
# The settings of the search are those of generation_config.json, optional inputs of the graph.
backend: "onnxruntime"
default_model_filename: "model.onnx"
max_batch_size: {LARGEST_BATCH}
dynamic_batching {{ max_queue_delay_microseconds: {QUEUE_MICROSECONDS} }}
"""


def arrange_for_triton(folder: Path, graph_name: str) -> None:
    """Turn a complete export into a model repository that serves one of its graphs; drop the others."""
    files = list(folder.iterdir())
    model_folder = folder / MODEL_NAME
    version = model_folder / "1"
    version.mkdir(parents=True)
    graph = onnx.load(folder / graph_name, load_external_data=False)
    (model_folder / "config.pbtxt").write_text(describe_graph(graph), encoding="utf-8")
    for path in files:
        if path.name == graph_name:
            path.rename(version / "model.onnx")
        elif path.name == f"{graph_name}.data":
            path.rename(version / path.name)  # the graph names this file
        elif path.name.endswith((".onnx", ".onnx.data")):
            path.unlink()
        else:
            path.rename(model_folder / path.name)


def describe_graph(model: onnx.ModelProto) -> str:
    """Return config.pbtxt of a graph."""
    optional = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in optional]
    return HEADER + "".join(
        f"{kind} [\n" + ",\n".join(map(describe_tensor, values)) + "\n]\n"
        for kind, values in (("input", inputs), ("output", model.graph.output))
    )


def describe_tensor(value: ValueInfoProto) -> str:
    """Return the fields of an input or output, whose shape is given without the batch axis.

    Without further axes, requests have one of size 1, which Triton removes: `dims` must not be empty.
    """
    tensor = value.type.tensor_type
    axes = len(tensor.shape.dim) - 1
    shape = f"dims: [ {', '.join(['-1'] * axes)} ]" if axes else "dims: [ 1 ] reshape: { shape: [ ] }"
    return f'  {{ name: "{value.name}" data_type: {TYPES[tensor.elem_type]} {shape} }}'
