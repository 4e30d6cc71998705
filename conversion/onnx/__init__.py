"""Export a model to ONNX, run the exported files, and compare them with torch.

export.py        a model's folder -> a folder with model.onnx, its proof included
traced.py        the search's functions as separate graphs, by torch's exporter
single_graph.py  these graphs joined by loops: model.onnx
split.py         encoder and decoders as separate files, also as transformers.js loads them
quantize.py      weights in eight bits
text.py          model_text.onnx, with the tokenizer inside: byte_level_bpe.py reads it, text_to_ids.py and
                 ids_to_text.py are its operators, tables.py their tables
readme.py        the README.md beside the files

prove.py and prove_split.py compare with torch (running.py). operators.py writes graphs as calls; graph_surgery.py and
simplify.py edit them.
"""
