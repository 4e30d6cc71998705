"""Benchmarks, one question per file, each run as `python -m benchmarks.NAME`.

decode             How fast does each system translate real sentences?
throughput         How many sentences per second does each system translate on all cores?
decode_base_size   How fast does each system decode at the paper's base size?
decode_profile     Which operators of an ONNX file take the time?
serve              How fast does a server answer, and does it answer correctly under load?
stopping_rules     How early may beam search stop without changing translations?
tokenising         How fast is training text read and tokenised, compared with the tokenizers library?
train_throughput   How fast is training, compared with transformers?
trainer_bleu       What BLEU does a Marian of the same size reach in Seq2SeqTrainer in the same CPU time?
scaling            How does training throughput grow with the number of GPUs?
cache_equality     How many translations are equal with a cache, without one and by Translator?
search_checks      What do the checks of a running generate() cost?
conversion_marian  How far are converted Marian checkpoints from Marian's own scores?
conversion_opus    Does a converted model of OPUS-MT translate as MarianMTModel does?
alignments         How well does each attention head align words?
sentences          Does the library find the ends of sentences as well as libraries that were made for it?
gpu_checks         Do a GPU and the CPU compute the same, and does training resume exactly?
gpu                All measurements on a GPU, one after the other

harness.py has their clocks, interleaved rounds, peak rates and rows of results, options.py their command-line options,
and systems/ what they compare; its docstring says how to add a system. A benchmark is a function of its options that
passes rows to `report`; `run` makes it a command. Its docstring says what a row is, its unit and its peers;
results/README.md explains the recorded rows.
"""
