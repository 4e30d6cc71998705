"""A headless Chromium for the tests of pages, and what they ask of every page: a silent console, and that everybody can
use it."""

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NODE_MODULES = Path(__file__).with_name("node") / "node_modules"
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


def barriers(page: Any) -> list[str]:
    """What axe-core, the ecosystem's checker of accessibility, holds against the page by WCAG 2.1 A and AA: a control
    without a name, text that is too pale, an order of headings or a role that misleads."""
    axe = NODE_MODULES / "axe-core" / "axe.min.js"
    if not axe.is_file():
        pytest.skip("needs axe-core: `make test-browser` installs it")
    page.evaluate(axe.read_text(encoding="utf-8"))
    rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
    found = page.evaluate("rules => axe.run({runOnly: rules})", rules)
    assert found["passes"], "it looked at something"
    return [f"{rule['id']}: {node['html'][:200]}" for rule in found["violations"] for node in rule["nodes"]]


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
