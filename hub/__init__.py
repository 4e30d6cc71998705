"""The program that publishes a trained model on the Hub.

    push FOLDER REPO: contents (the files) -> provenance (their history) -> card -> remote

`space` and `space-static` are pages that show a model; they are published separately.
"""
