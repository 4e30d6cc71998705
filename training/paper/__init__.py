"""The paper's tables, figures and claims, each as a command: `vaswani-transformer paper table3 --output FOLDER`.

__main__.py      the commands; `paper all` runs them in turn
-> table1.py     counted operations;  table2.py  BLEU and FLOPs
-> table3.py     variations of the model: parallel.py (trainings side by side), verdicts.py (intervals, verdicts)
-> table4.py     parsing: parser_training.py (trees.py, tree_search.py, tree_constraint.py, evalb.py)
-> figures.py    architecture.py (Figures 1 and 2), head_figures.py (3 to 5); walk.py, heads.py
-> claims/       claim.py, comparison.py; models that `train` cannot build: fit_model.py, rnn.py
-> page.py       README.md from the result files: page.md (text), paper.json (the paper's numbers), plots.py
"""
