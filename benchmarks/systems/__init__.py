"""The systems that the benchmarks compare.

To add a system

* to decode.py: write a loader in decoding.py, (folder, threads) -> System. Add it to SYSTEMS under its KIND, and to
  NEEDS_TORCH if it needs torch or transformers, whose import standalone.py prevents otherwise. A new engine also goes
  into Engine.
* to decode_base_size.py: write a function there that makes systems from the random model; add it to `loaders`.
* to train_throughput.py: write a function in training_loops.py, (options, settings) -> (model, TakeSteps). Add it to
  SYSTEMS, its options to OPTIONS, and both to the help of --system; that of decode.py lists SYSTEMS by itself.
* to conversion_marian.py: write a scorer there; add it to SCORERS.

Then name it under "Peers" in the docstring of the benchmark and in results/README.md.

The columns of a recorded CSV file are fixed: `append_rows` (training/result_row.py) refuses rows with others. A system
only adds rows. If it needs a column of its own, such as another speedup_vs_, first add the column to the recorded file,
with empty cells.
"""
