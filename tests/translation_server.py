"""Servers of `vaswani-transformer serve`, as a process or in a thread of the test, and requests to them."""

import contextlib
import json
import re
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import ENVIRONMENT, wait_until

from serving.app import create_app
from serving.connections import Server, create_server
from serving.fields import most_bytes
from serving.service import Limits
from vaswani_transformer import Translator

ROOT = Path(__file__).parents[1]
LANGUAGES = {"source": "en", "target": "de"}


@dataclass
class Answer:
    status: int
    json: Any
    headers: Any


@dataclass
class Address:
    """The port of a server on this machine, and what the server printed when it started."""

    port: int
    printed: str = ""

    def request(self, path: str, body: bytes | None = None, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", body, named)
        try:
            with urllib.request.urlopen(request) as response:
                status, content, given = response.status, response.read(), response.headers
        except urllib.error.HTTPError as error:
            with error:
                status, content, given = error.code, error.read(), error.headers
        is_json = given.get_content_type() == "application/json"
        return Answer(status, json.loads(content) if is_json else content.decode(), given)

    def post(self, body: bytes, kind: str = "application/json") -> Answer:
        return self.request("/translate", body, content_type=kind)

    def translate(self, q: object, **fields: object) -> Answer:
        return self.post(json.dumps(LANGUAGES | {"q": q} | fields).encode())

    def connect(self, data: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.settimeout(120)
        connection.sendall(data)
        return connection

    def metric(self, name: str) -> float:
        (value,) = re.findall(rf"^{re.escape(name)} (\S+)$", self.request("/metrics").json, re.MULTILINE)
        return float(value)


def command(*arguments: object) -> contextlib.AbstractContextManager[tuple[Address, subprocess.Popen[str]]]:
    """Run `vaswani-transformer serve` at a free port, in a process that cannot import torch and transformers."""
    without = "import sys; sys.modules |= dict(torch=None, transformers=None)"
    code = f"{without}; from vaswani_transformer.cli import main; main()"
    return started([sys.executable, "-c", code, "serve", *map(str, arguments), "--port", "0"], ROOT, ENVIRONMENT)


@contextlib.contextmanager
def started(
    words: list[str], folder: Path, environment: dict[str, str]
) -> Iterator[tuple[Address, subprocess.Popen[str]]]:
    """Start a server, and wait until it prints its address."""
    process = subprocess.Popen(words, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        printed = []
        for line in process.stderr:
            printed.append(line)
            if found := re.match(r"http://\S+:(\d+) ", line):
                yield Address(int(found[1]), "".join(printed)), process
                break
        else:
            pytest.fail("".join(printed))
    finally:
        process.kill()
        process.communicate()


@contextlib.contextmanager
def in_thread(
    translator: Translator,
    limits: Limits | None = None,
    source: str = "en",
    targets: Sequence[str] = ("de",),
    **options: Any,
) -> Iterator[tuple[Address, Server]]:
    """Serve a translator of the test in a thread.

    options: `most` and `header_seconds` of the connections, `api_key` and `origins` of the application
    """
    limits = limits or Limits()
    of_server = {name: options.pop(name) for name in ("most", "header_seconds") if name in options}
    app = create_app(translator, source, targets, limits, **options)
    server = create_server(app, most_bytes(limits.characters), **of_server)
    listener = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, args=([listener],))
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield Address(listener.getsockname()[1]), server
    finally:
        server.should_exit = True
        thread.join()
