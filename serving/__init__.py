"""Serves a model over HTTP, with the API of LibreTranslate.

    a connection (connections) -> fields of a request (fields, markup) -> a queue and batches (batches) -> Translator

`app` joins them and answers; `__main__` is the command. FastAPI routes, uvicorn speaks HTTP.
"""
