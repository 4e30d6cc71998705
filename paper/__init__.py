"""The laboratory: reproduces the paper's tables, figures and claims, `python -m paper table3 --output FOLDER`.

It runs from a clone and is not in the wheel.

A command is the module of the same name; its `write_NAME` does everything.

    table1.py        operations, steps and paths of four kinds of layers, counted while they run
    table2.py        BLEU and training FLOPs of our recorded models
    table3.py        trains the variations of the model, several at a time (parallel.py)
    table4.py        trains parsers: parsing/
    figures/         Figures 1 and 2 from a running model, Figures 3 to 5 from its attention
    walk.py          every value of one head for one sentence
    heads.py         every head over many sentences
    claims/          measures and judges each claim
    page.py          the page with all results
    __main__.py      the options of these commands; `paper all` runs them in turn
    recipes/         the base row of Table 3, and the parsers of Table 4

From a measurement to the page:

1. A command measures and writes FOLDER/NAME.json: the numbers, and the command, date, commit, hardware and seeds that
   made them (result_files.py). Tables 3 and 4 and the claims, which take hours, skip what already has a file, so the
   same command resumes.
2. Verdicts are computed from these files alone. Usually a finding holds if the 95 % confidence interval of a
   difference over seeds lies on the expected side of zero (verdicts.py). FINDINGS in table3.py and each `judge_x` in
   claims/ say which difference and which side; page.md names the exceptions.
3. `paper page` fills page.md, the template, with tables, verdicts and pictures (plots.py) made from these files. The
   paper's own numbers are in paper.json. Our files and their page are in paper/results.

The LSTM, which `train` cannot build: rnn.py, fit_model.py.
"""
