"""Constituency parsing (section 6.3), the parts of Table 4.

trees.py              the treebank, and its trees as sequences of words and brackets
-> train_parser.py    text and tokenizer, training and scores of one row of the table
-> search.py          from a sentence to a tree; constraint.py allows only well-formed trees
-> evalb.py           labelled F1
"""
