"""Serves a model over HTTP, with the API of LibreTranslate.

    a connection (connections) -> fields of a request (fields) -> their check (service, markup) -> a queue and batches
    (batches) -> Translator

`app` joins them and answers, `metrics` counts; `__main__` is the command. FastAPI routes, uvicorn speaks HTTP.
"""
