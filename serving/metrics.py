"""Counters and histograms of a server, for Prometheus."""

import asyncio
from contextlib import suppress
from time import monotonic

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .fields import BODY_SECONDS

# A body that the application leaves unread is read before the response, up to this size, a pause of so many seconds and
# BODY_SECONDS: a client that cannot send it to the end would report a broken connection instead of a 404 or 413.
DISCARDED_BYTES, PAUSE_SECONDS = 10_000_000, 1


class Metrics:
    """What /metrics reports, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        self.requests = Counter("vaswani_requests", "Requests.", ["path", "status"], registry=registry)
        self.seconds = Histogram("vaswani_request_seconds", "Seconds of a request.", ["path"], registry=registry)
        self.waiting = Gauge("vaswani_waiting_characters", "Characters in the queue.", registry=registry)
        sizes = (1, 2, 4, 8, 16, 32, 64, 128)
        self.texts = Histogram("vaswani_batch_texts", "Texts of a batch.", buckets=sizes, registry=registry)
        self.batch_seconds = Histogram("vaswani_batch_seconds", "Seconds of a batch.", registry=registry)
        self.characters = Counter("vaswani_characters", "Characters of translated texts.", registry=registry)

    def observe_batch(self, texts: int, characters: int, seconds: float) -> None:
        self.texts.observe(texts)
        self.characters.inc(characters)
        self.batch_seconds.observe(seconds)


class MeasuredApp:
    """An application whose requests are counted and timed, also those that fail before they reach a route.

    What it leaves unread of their bodies is read, within limits.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics):
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        begun, status = monotonic(), "none"  # the client has left
        has_more = any(name in (b"content-length", b"transfer-encoding") for name, _ in scope["headers"])

        async def observe_end() -> Message:
            nonlocal has_more
            message = await receive()
            has_more = message.get("more_body", False)
            return message

        async def observe_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status, discarded = str(message["status"]), 0
                with suppress(TimeoutError):
                    async with asyncio.timeout(BODY_SECONDS):
                        while has_more and discarded < DISCARDED_BYTES:
                            rest = await asyncio.wait_for(observe_end(), PAUSE_SECONDS)
                            discarded += len(rest.get("body", b""))
            await send(message)

        try:
            await self.app(scope, observe_end, observe_status)
        finally:
            path = getattr(scope.get("route"), "path", "other")  # one label for all unknown paths
            self.metrics.requests.labels(path, status).inc()
            self.metrics.seconds.labels(path).observe(monotonic() - begun)
