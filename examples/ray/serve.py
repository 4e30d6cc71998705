"""The service of `vaswani-transformer serve` on Ray Serve: the same routes on several machines, with autoscaling.

    pip install "vaswani-transformer[ray,serve]"
    serve run --route-prefix / examples.ray.serve:build model=/models/en-de
    curl -d q="The house is small." -d source=en -d target=de http://127.0.0.1:8000/translate

The model must exist on every node under the same name. Every replica loads it and has a queue and batches of its own.
Other arguments are those of the class below, such as backend=onnx or gpus=1. The key is VASWANI_API_KEY on the nodes.
"""

import os
from pathlib import Path
from typing import Literal

from pydantic import BaseModel
from ray import serve

from vaswani_transformer import Translator
from vaswani_transformer.programs import import_program

# Above this number of requests at a time in each replica, which fill its batches, Serve starts another one.
TARGET_REQUESTS = 16


class Arguments(BaseModel):
    """What `serve run` is given."""

    model: str
    backend: Literal["torch", "onnx"] = "torch"
    source_language: str | None = None
    target_language: str | None = None
    cpus: int = 1
    gpus: int = 0
    min_replicas: int = 1
    max_replicas: int = 4


def create_app(arguments: Arguments):
    """Load the model and return the application, in a replica."""
    app, main, service = (import_program("serving", module) for module in ("app", "__main__", "service"))
    options = {"threads": arguments.cpus} if arguments.backend == "onnx" else {}
    device = "cuda" if arguments.gpus else "cpu"
    translator = Translator.from_pretrained(arguments.model, backend=arguments.backend, device=device, **options)
    recorded = main.read_recorded_languages(arguments.model, None, Path(arguments.model))
    given = arguments.source_language, arguments.target_language
    languages = main.choose_languages(translator, arguments.model, recorded, *given)
    return app.create_app(translator, *languages, service.Limits(), os.environ.get("VASWANI_API_KEY"))


def build(arguments: Arguments) -> serve.Application:
    """Return the application for `serve run`."""
    deployment = serve.deployment(
        serve.ingress(lambda: create_app(arguments))(),
        name="translate",
        ray_actor_options={"num_cpus": arguments.cpus, "num_gpus": arguments.gpus},
        # Requests beyond the limit wait in Serve's proxy, so the replica's own limit, 429, must come first.
        max_ongoing_requests=1000,
        autoscaling_config={
            "min_replicas": arguments.min_replicas,
            "max_replicas": arguments.max_replicas,
            "target_ongoing_requests": TARGET_REQUESTS,
        },
    )
    return deployment.bind()
