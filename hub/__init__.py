"""The program that publishes a trained model: what the repository holds, its card, and the way to the Hub.

    push FOLDER REPO -> contents (checked, with the code that it needs) -> card -> one commit

`space` and `space-static` are pages that show a model; they are files for the Hub, not part of this program.
"""
