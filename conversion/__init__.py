"""Convert checkpoints of other toolkits to model folders, exactly, and model folders to checkpoints and to ONNX.

    run.import_checkpoint: recognise.py -> toolkits/<name>.py -> description.py -> build.py -> save.py -> check.py
    run.export_checkpoint: folder.py -> toolkits/<name>.py
    onnx/: the export to ONNX, with a command of its own

checkpoint_files.py, tensorflow_bundle.py and protobuf_wire.py open files; vocabulary.py, segmentation.py,
sentencepiece_model.py and subwords.py make tokenizers.

A toolkit's file lists the options that change the model's function, with the values that our model can represent
(options.py; reasons.py collects the others), and maps every tensor's name to ours (rename.py). Other differences, such
as the form of the sinusoids, are folded into the weights (layout.py). To add a toolkit:

1. Write toolkits/<name>.py with the interface in toolkits/__init__.py.
2. List its name there: in RECOGNISED_BY_FILE or RECOGNISED_BY_CONTENT if it reads, in WRITERS if it writes. If its
   pickles contain its own classes, add its package to TOOLKIT_PACKAGES in checkpoint_files.py.
3. If it reads, add tests/fixtures/<name> with the toolkit's own outputs (the README there lists files and versions),
   and its name to SCORES in tests/test_conversion.py if it ranks hypotheses by another score than ours, to TOLERANCE
   if it prints or computes fewer digits. If it writes, add it to the round trips in tests/test_conversion_out.py.
4. Add it to the tables and the examples in docs/how-to/convert.md.
"""
