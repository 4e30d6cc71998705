"""Export a model to ONNX, run the exported files, and compare them with torch. In reading order:

export.py           export a model folder: every stage in order
torch_export.py     export `start` and `step` of the search with torch.onnx.export
single_graph.py     connect these graphs by loops: model.onnx
split.py            export encoder and decoders as separate files
as_marian.py        arrange these for transformers.js and Optimum
triton.py           arrange the single graph for Triton Inference Server
quantize.py         quantize weights and activations to int8
tokenizer/          model_text.onnx, with the tokenizer inside
verify.py           compare the single graph and the split layout with torch
verify_text.py      time real sentences, and compare model_text.onnx with the tokenizers library
readme.py           write the README.md of an export

graph_builder.py builds graphs; rewrite.py visits and simplifies them.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # see vaswani_transformer/onnx_translator.py
