"""The routes: /translate, /languages, /health and /metrics. Errors are JSON like those of LibreTranslate."""

import asyncio
import hmac
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException as HTTPError
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect

from vaswani_transformer import __version__
from vaswani_transformer.translator import Translator

from .batches import QueueFullError
from .fields import BODY_SCHEMA, most_bytes, parse_request, read_fields
from .metrics import MeasuredApp, Metrics
from .service import Limits, Service

Result = TypeVar("Result")
RESPONSES: dict[int | str, dict[str, Any]] = {
    400: {"description": "The request is invalid, or the model does not translate these languages."},
    403: {"description": "The API key is missing or wrong."},
    408: {"description": "The body arrived too slowly."},
    413: {"description": "The text is too long, or there are too many texts."},
    429: {"description": "Too much text is waiting; Retry-After has the seconds after which to try again."},
    500: {"description": "The text cannot be translated."},
}


def create_app(
    translator: Translator,
    source: str,
    targets: Sequence[str],
    limits: Limits,
    api_key: str | None = None,
    origins: Sequence[str] = (),
) -> MeasuredApp:
    """Return the ASGI application of a model.

    source, targets: the codes of the languages
    api_key: what requests must contain; None accepts all.  origins: of web pages that may read the answers
    """
    metrics = Metrics()
    service = Service(translator, source, targets, limits, metrics.observe_batch)
    metrics.waiting.set_function(lambda: service.batcher.characters)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.batcher.open():
            yield

    app = FastAPI(title="Vaswani Transformer", version=__version__, lifespan=lifespan)
    for error, answer in ANSWERS.items():
        app.add_exception_handler(error, answer)
    if origins:
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])

    def check_key(request: Request, field: object = None) -> None:
        given = str(field or request.headers.get("authorization", "").removeprefix("Bearer "))
        if api_key is not None and not hmac.compare_digest(given.encode(errors="replace"), api_key.encode()):
            raise HTTPException(403, "Invalid API key" if given else "This server requires an API key")

    @app.post("/translate", summary="Translate texts", openapi_extra=BODY_SCHEMA, responses=RESPONSES)
    async def translate(request: Request) -> Response:
        fields = await read_fields(request, most_bytes(limits.characters))
        service.batcher.refuse_if_full()
        check_key(request, fields.get("api_key"))
        answer = await until_disconnected(request, service.answer(parse_request(fields)))
        return JSONResponse(answer)

    @app.head("/languages", include_in_schema=False)
    @app.get("/languages", summary="List the languages")
    async def list_languages() -> Response:
        return JSONResponse(service.list_languages())

    @app.head("/health", include_in_schema=False)
    @app.get("/health", summary="Whether the server runs")
    async def check_health() -> Response:
        return JSONResponse({"status": "ok"})

    @app.head("/metrics", include_in_schema=False)
    @app.get("/metrics", summary="Counters and histograms for Prometheus")
    async def report_metrics(request: Request) -> Response:
        check_key(request, request.query_params.get("api_key"))
        return Response(generate_latest(metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})

    return MeasuredApp(app, metrics)


async def answer_error(request: Request, error: Any) -> Response:
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def answer_full_queue(request: Request, error: Any) -> Response:
    return JSONResponse({"error": str(error)}, 429, {"Retry-After": str(error.retry_after)})


async def answer_nobody(request: Request, error: Any) -> Response:
    return Response(status_code=499)  # the client has left; metrics count it


async def answer_bug(request: Request, error: Any) -> Response:
    return JSONResponse({"error": "Internal server error"}, 500)  # uvicorn logs the traceback


ANSWERS = {
    HTTPError: answer_error,
    QueueFullError: answer_full_queue,
    ClientDisconnect: answer_nobody,
    Exception: answer_bug,
}


async def until_disconnected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Await the result, or cancel the work and raise ClientDisconnect when the client leaves."""
    task = asyncio.create_task(work)
    leaves = asyncio.ensure_future(request.receive())  # the body has been read: the next message is the end
    try:
        await asyncio.wait((task, leaves), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnect
    finally:
        task.cancel()
        leaves.cancel()
