"""Publishes a trained model on the Hub.

    push FOLDER REPO: contents (the files) -> provenance (their history) -> card -> remote

`space` and `space-static` are demo apps; they are published separately.
"""
