"""Train a Transformer on parallel text (sections 5 and 6 of the paper).

    recipe.py        the settings of a run, from a YAML file and options, divided into the settings of each part
    -> train.py      the run: builds the parts below, then takes steps, validates and saves
    text             parallel_text.py (formats; tables.py, tmx.py) -> tokenizer.py -> corpus.py
                     (tokenised, memory-mapped)
    steps            batches.py, model.py (fsdp.py), loss.py, schedule.py -> step.py
    the run's folder run_folder.py, checkpoints.py (tensors.py), final_model.py; stopping.py, report.py, metrics.py
    machine          processes.py: Accelerate's set-up; machine.py: settings that depend on the hardware
    -> evaluate.py   BLEU: scores.py; rows of results: result_row.py

Further commands: average.py, plan.py (estimate.py, cost.py) and demo.py; launch.py starts several processes, and
recipe_options.py parses recipe keys on command lines. Data: recipes/, accelerate/, demo_corpus/, results/.
"""

import os

# Set before torch loads libgomp: on a busy machine, spinning threads make a step ten times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# oneDNN caches generated code for the last 1,024 shapes of products, 1 to 2 MB each. Batches differ in shape, so only
# the layers of one step reuse it.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
