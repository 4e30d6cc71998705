"""A headless Chromium for the tests of pages, and what they hold of every page: it says nothing on its console."""

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# No service of the browser's own goes to the network.
SWITCHES = [
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@contextmanager
def chromium() -> Iterator[Any]:
    """Playwright's Browser. Skips the test, saying what to install, where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: `make test-browser` installs it")
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as running:
        # Chromium's sandbox refuses to run as root, as containers do.
        browser = running.chromium.launch(executable_path=CHROMIUM, args=SWITCHES, chromium_sandbox=False)
        try:
            yield browser
        finally:
            browser.close()


def complaints(page: Any) -> list[str]:
    """What the page says on its console as a warning or an error, and errors that nobody caught; grows as it does."""
    heard: list[str] = []
    page.on("console", lambda said: heard.append(said.text) if said.type in ("warning", "error") else None)
    page.on("pageerror", lambda error: heard.append(str(error)))
    return heard


class Handler(http.server.SimpleHTTPRequestHandler):
    """Files as a static Space serves them: with the headers of its README, and compared with what the browser has."""

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        super().end_headers()

    def do_GET(self) -> None:
        self.server.requested.append(self.path)  # pyright: ignore[reportAttributeAccessIssue]
        super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """The folder's address, and the paths that were asked for so far."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    server.requested = requested = []  # pyright: ignore[reportAttributeAccessIssue]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/", requested
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
