"""Convert checkpoints of other toolkits to model folders, exactly, and model folders to other formats.

    run.import_checkpoint: recognise.py -> toolkits/<name>.py -> description.py -> build.py -> save.py -> check.py
    run.export_checkpoint: folder.py -> toolkits/<name>.py

checkpoint_files.py, tensorflow_bundle.py and protobuf_wire.py open files; vocabulary.py, segmentation.py,
sentencepiece_model.py and subwords.py make tokenizers.

A toolkit's file lists the options that change the model's function, with the values that our model can represent
(options.py; reasons.py collects the others), and maps every tensor's name to ours (rename.py). Other differences, such
as the form of the sinusoids, are folded into the weights (layout.py). To add a toolkit:

1. Write toolkits/<name>.py with the interface in toolkits/__init__.py.
2. List its name in one of the tuples there. If its pickles contain its own classes, add its package to
   TOOLKIT_PACKAGES in checkpoint_files.py.
3. Add tests/fixtures/<name> with the toolkit's own outputs (the README there lists the files), and a row to
   docs/how-to/convert.md.
"""
