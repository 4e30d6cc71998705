"""The program that turns parallel text into a model: sections 5 and 6 of the paper.

text -> corpus.py -> batches.py -> train.py (loss.py, schedule.py, checkpoint.py) -> evaluate.py
"""
