"""Export a model to ONNX, run the exported files, and compare them with torch.

export.py        a model's folder -> a folder with model.onnx, its proof included
traced.py        the search's functions as separate graphs, by torch's exporter
single_graph.py  these graphs joined by loops: model.onnx
split.py         encoder and decoders as separate files, also as transformers.js loads them
quantize.py      weights in eight bits
text.py          model_text.onnx, with the tokenizer inside (text_to_ids.py, ids_to_text.py)
prove.py, prove_split.py, sentences.py   the comparisons
"""
