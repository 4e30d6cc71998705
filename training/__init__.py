"""Train a Transformer on parallel text (sections 5 and 6 of the paper).

    recipe.py        the settings of a run, from a YAML file and options
    -> prepare.py    text: tokenised_text.py (parallel_text.py, text_files.py, tokenizer.py, corpus.py);
                     batches.py; model: model.py (dropout.py, fsdp.py); hardware and processes: machine.py, processes.py
    -> train.py      the training loop: step.py (input_pipeline.py, loss.py, schedule.py), validation.py,
                     checkpointer.py (checkpoint_folders.py, tensors.py); limits and signals in stopping.py, output
                     folder in run_folder.py, logging in report.py and metrics.py, final model in average.py
    -> evaluate.py   BLEU: evaluation_text.py, scores.py; rows of results: result_row.py

Further commands: average.py, plan.py (estimate.py, cost.py), translate.py; recipe_options.py
parses their recipe keys, search_options.py has their options of a search. Data: recipes/, accelerate/, demo_corpus/,
results/.
"""

import os

# Set before torch loads libgomp: on a busy machine, spinning threads make a step ten times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# oneDNN caches generated code for the last 1,024 shapes of products, 1 to 2 MB each. Batches differ in shape, so only
# the layers of one step reuse it.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
