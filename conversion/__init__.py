"""The program that converts checkpoints of other toolkits to our model, exactly, and our models to their formats.

    reading (run.convert_in):   formats.py -> toolkits/<name>.py -> description.py -> build.py -> folder.py -> check.py
    writing (run.convert_out):  origin.py -> toolkits/<name>.py

unpickle.py, tensorflow_bundle.py and wire.py open files; vocabulary.py, segmentation.py and sentencepiece.py make
tokenizers.

A toolkit's file reads the options, refuses what the model cannot represent (options.py, reasons.py), and names every
tensor (rename.py). Remaining differences are absorbed in the weights (layout.py), so that the forward pass stays the
paper's. To add one, write its file with the names that formats.py describes, list it there and in __main__.py and, if
torch or transformers computes its model, in check.py.
"""
