"""Connections whose clients are slow, silent or do not read, and the end of the server on a signal.

uvicorn has no timeout for the headers of a request, and its limit of concurrency counts silent connections, so that
they would keep other clients out.
"""

import json
import logging
import resource
import socket
from functools import partial
from types import FrameType
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from vaswani_transformer.exit import end_now

MAX_CONNECTIONS = 2048
BACKLOG = 512  # connections that are accepted before data is read; far fewer than MAX_CONNECTIONS
SILENT_SECONDS = 1  # that a connection may wait before it counts among too many
HEADER_SECONDS = 15  # for the headers of a request, from the connection or the previous response on
GRACE_SECONDS = 25  # for the requests that have begun when the server ends; orchestrators kill a process after 30
OTHER_FILES = 100  # descriptors of the process that are not connections


class Connection(H11Protocol):
    """A connection that is closed if its client is too slow, or if there are too many and it has waited longest.

    since: the time of the previous response, or of the connection
    """

    def __init__(self, *arguments: Any, most: int, **options: Any):
        super().__init__(*arguments, **options)
        self.most = most

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # asyncio does this only if the listening socket names its protocol. Otherwise a body, which is written after
        # the headers, waits 40 ms for the client's delayed ACK of these.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
        self.since = self.loop.time()
        # Later, because a request may have arrived already: a busy server accepts many connections before it reads.
        self.loop.call_later(SILENT_SECONDS, self.close_oldest)

    def close_oldest(self) -> None:
        """Close the connection that has waited longest, if there are too many and this one waits, too."""
        if len(self.connections) > self.most and self.waits():
            connections: Any = self.connections
            oldest = min((each for each in connections if each.waits()), key=lambda each: each.since)
            self.connections.discard(oldest)
            oldest.transport.abort()

    def waits(self) -> bool:
        """Whether the server waits for the client: for the rest of a request, or until a response has been read."""
        answers = self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body
        return self.flow.write_paused or not answers

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        # Unlike uvicorn's, this does not stop the timer at the first byte: `handle_events` does after the headers.
        self.conn.receive_data(data)
        self.handle_events()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()  # may begin with the next request, if the client has sent it already

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():  # close() would wait until the client reads
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP like any other error, and ignore what the application answers afterwards."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = json.dumps({"error": msg}).encode()
            length, close = ("content-length", str(len(body))), ("connection", "close")
            headers = [("content-type", "application/json"), length, close]
            for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.close()


class Server(uvicorn.Server):
    """A server that finishes its requests on SIGTERM or SIGINT and ends with exit code 0; a second signal ends it."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            end_now(sig)
        self.should_exit = True


def create_server(
    app: Any, header_bytes: int, most: int = MAX_CONNECTIONS, header_seconds: float = HEADER_SECONDS
) -> Server:
    """Return a server of an ASGI application.

    header_bytes: the limit of the headers, whose query string may hold a text.  most: of connections
    header_seconds: for the headers of a request
    """
    return Server(
        uvicorn.Config(
            app,
            http=partial(Connection, most=min(most, raise_file_limit())),  # pyright: ignore[reportArgumentType]
            h11_max_incomplete_event_size=header_bytes,
            timeout_keep_alive=header_seconds,  # pyright: ignore[reportArgumentType]
            timeout_graceful_shutdown=GRACE_SECONDS,
            backlog=BACKLOG,
            ws="none",
            access_log=False,  # it would write the texts and keys of query strings
            log_config=None,
            log_level=logging.ERROR,  # not for each client that sends nonsense
            server_header=False,
            proxy_headers=False,
        )
    )


def raise_file_limit() -> int:
    """Let the process open as many files as it may; return the number of connections for which there is room."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return MAX_CONNECTIONS if hard == resource.RLIM_INFINITY else max(1, hard - OTHER_FILES)
