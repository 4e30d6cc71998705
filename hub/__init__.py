"""Publishes a trained model on the Hub.

    push FOLDER REPO: contents (the files) -> provenance (training record and scores) -> card (markdown) -> remote
    space REPO: contents

`repository_files` in __main__ returns all files of a push; `MANAGED_NAMES` in contents lists their possible names.
`space` and `space-static` are demo apps; they are published separately.
"""
