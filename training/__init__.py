"""Turns parallel text into a model: sections 5 and 6 of the paper.

recipe.py -> prepare.py (parallel_text.py, corpus.py, batches.py, model.py)
          -> train.py (step.py, loss.py, schedule.py, validation.py, checkpointer.py) -> evaluate.py
"""

import os

# Set before torch loads libgomp: on a busy machine, spinning threads make a step ten times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# oneDNN caches generated code for the last 1,024 shapes of products, 1 to 2 MB each. Batches differ in shape, so only
# the layers of one step reuse it.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
