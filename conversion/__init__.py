"""Convert checkpoints of other toolkits to model folders, exactly, and model folders to checkpoints and to ONNX.

    convert.import_checkpoint: toolkits/<name>.py -> toolkit.Description -> build.py -> compare.py
    convert.export_checkpoint: folder.py -> toolkits/<name>.py
    onnx/: the export to ONNX, with a command of its own

checkpoint_files.py and protobuf.py open files; vocabulary.py, segmentation.py and sentencepiece_model.py make
tokenizers.

A toolkit's file lists the options that change the model's function, with the values that our model can represent
(options.py collects the others as reasons against the conversion), and maps every tensor's name to ours (rename.py).
Other differences, such as the form of the sinusoids, are folded into the weights (layout.py). To add a toolkit:

1. Write toolkits/<name>.py with a function that reads a checkpoint, decorated by `register_reader`, one that writes a
   model folder, decorated by `register_writer`, or both (toolkit.py says what they do), and import it in
   toolkits/__init__.py.
2. If it reads, add tests/fixtures/<name> with the toolkit's own outputs (the README there lists files and versions),
   and its name to SCORES in tests/test_conversion.py if it ranks hypotheses by another score than ours, to TOLERANCE
   if it prints or computes fewer digits. If it writes, add it to the round trips in tests/test_conversion_out.py.
3. Add it to the tables and the examples in docs/how-to/convert.md.
"""
