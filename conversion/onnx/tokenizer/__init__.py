"""The tokenizer as ONNX operators, for files that translate strings. In reading order:

bpe.py      read tokenizer.json
encode.py   texts -> token ids;  ops.py: operations on flat tensors;  tables.py: tables of characters and merges
decode.py   token ids -> texts
join.py     join both to the single graph: model_text.onnx
verify.py   compare this file with model.onnx and the tokenizers library
"""
