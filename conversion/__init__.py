"""Convert checkpoints of other toolkits to our model, exactly, and our models to the formats of other toolkits.

    reading (run.convert_in):   toolkits/<name>.py -> description.py -> build.py -> folder.py -> check.py
    writing (run.convert_out):  folder.py -> toolkits/<name>.py

checkpoint_files.py, tensorflow_bundle.py and wire.py open files; vocabulary.py, segmentation.py and sentencepiece.py
make tokenizers.

A toolkit's file lists the options that the model can represent (options.py; reasons.py collects the others) and names
every tensor (rename.py). Remaining differences are absorbed in the weights (layout.py), so that the forward pass stays
the paper's. To add a toolkit, write its file with the names that run.py describes and list it there and in __main__.py.
"""
