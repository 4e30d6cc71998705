"""The program that turns parallel text into a model: sections 5 and 6 of the paper.

text -> corpus.py -> batches.py -> train.py (loss.py, schedule.py, checkpoint.py) -> evaluate.py
"""

import os

# Before torch loads libgomp: threads that wait by spinning cost a busy machine ten times the time of the step itself.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
