"""The program that brings checkpoints of other toolkits in, exactly, and takes models out to them again.

    a toolkit's file -> unpickle.py -> <toolkit>.py (rename.py, refuse.py) -> layout.py, vocabulary.py -> folder.py

There is one file per toolkit. Each reads its options, refuses what the paper's model cannot be, and names every
tensor; the differences that are left are absorbed in the weights, so that the forward pass stays the paper's.
"""
