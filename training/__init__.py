"""The program that turns parallel text into a model: sections 5 and 6 of the paper.

text -> corpus.py -> batches.py -> train.py (loss.py, schedule.py, checkpoint.py) -> evaluate.py
"""

import os

# Before torch loads libgomp: threads that wait by spinning cost a busy machine ten times the time of the step itself.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# oneDNN keeps the code that it generates for the last 1,024 shapes of products, 1 to 2 MB each. Batches differ in
# shape; what is used again is what the layers of one step have in common.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "128")
