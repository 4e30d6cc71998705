"""Export a model to ONNX, run the exported files, and compare them with torch. In reading order:

export.py           a model's folder -> a folder with model.onnx, compared with torch
traced.py           the search's functions as separate graphs, by torch's exporter; simplify.py makes these faster
single_graph.py     these graphs joined by loops: model.onnx
split.py            encoder and decoders as separate files; transformers_js.py arranges them for that library
quantize.py         weights, and rows of activations, in eight bits
text.py             model_text.onnx, with the tokenizer inside: byte_level_bpe.py reads the tokenizer, text_to_ids.py
                    and ids_to_text.py are its operators, tables.py their tables
prove.py            the comparison of the single graph with torch; prove_split.py and prove_text.py compare the other
                    files; running.py runs them
readme.py           the README.md beside the files

graph_builder.py builds graphs; graph_surgery.py edits them.
"""
