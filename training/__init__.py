"""Turns parallel text into a model: sections 5 and 6 of the paper.

    recipe.py        the settings of a run, from a YAML file and options
    -> prepare.py    text (parallel_text.py, text_files.py, corpus.py), batches (batches.py), model (model.py, fsdp.py)
                     and what suits this machine (machine.py, dropout.py)
    -> train.py      the loop: steps (step.py, input_pipeline.py, loss.py, schedule.py), validation (validation.py) and
                     checkpoints (checkpointer.py, checkpoint_folders.py, tensors.py) until progress.py ends the run;
                     output.py guards its folder, report.py and metrics.py write its log, average.py its model
    -> evaluate.py   BLEU (evaluation_text.py, scores.py), also as a row of results (result_row.py)

Further commands: plan.py (dry_run.py, cost.py), translate.py, interpolate.py, and paper/.
"""

import os

# Set before torch loads libgomp: on a busy machine, spinning threads make a step ten times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# oneDNN caches generated code for the last 1,024 shapes of products, 1 to 2 MB each. Batches differ in shape, so only
# the layers of one step reuse it.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
