"""Publishes a trained model on the Hub.

    push FOLDER REPO: contents (the files) -> provenance (training record and scores) -> card (markdown) -> remote
    space REPO: contents

`space` and `space-static` are demo apps; they are published separately.
"""
