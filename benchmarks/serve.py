"""Load a server of `vaswani-transformer serve`; print throughput, latencies, memory, and its behaviour when overloaded.

    python -m benchmarks.serve MODEL SENTENCES [--overload 60]

The clients of this process and the server share the machine. Every answer is compared with that of `Translator`.
"""

import asyncio
import gc
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated

import typer

from vaswani_transformer import Translator
from vaswani_transformer.lines import read_lines
from vaswani_transformer.model_folder import choose_backend
from vaswani_transformer.options import Backend

from . import harness

CLIENTS = 64


@dataclass
class Answers:
    """The answers to many requests: seconds by status, and how many translations differ from the expected ones."""

    seconds: dict[int, list[float]] = field(default_factory=dict)
    other_text: int = 0
    lost: int = 0
    wall: float = 0.0

    def percentile(self, percent: int, status: int = 200) -> float:
        """Return a percentile of the latencies, in milliseconds."""
        return 1000 * quantiles(self.seconds[status], n=100, method="inclusive")[percent - 1]

    @property
    def counts(self) -> str:
        counts = {status: len(seconds) for status, seconds in sorted(self.seconds.items())}
        return f"{counts}, lost {self.lost}, unexpected text {self.other_text}"


class Clients:
    """Keep-alive connections to a server; a request takes one that is idle, or opens one."""

    def __init__(self, port: int, expected: dict[str, str]):
        self.port, self.expected = port, expected
        self.idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def request(self, sentence: str, answers: Answers) -> None:
        body = json.dumps({"q": sentence, "source": "auto", "target": "xx"}).encode()
        head = (
            f"POST /translate HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        )
        begun = time.perf_counter()
        is_new = not self.idle
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port) if is_new else self.idle.pop()
            writer.write(head.encode() + b"\r\n" + body)
            headers = await reader.readuntil(b"\r\n\r\n")
            length = int(re.search(rb"content-length: (\d+)", headers)[1])  # pyright: ignore[reportOptionalSubscript]
            content = json.loads(await reader.readexactly(length))
        except (OSError, asyncio.IncompleteReadError):
            if is_new:
                answers.lost += 1
                return
            self.idle.clear()  # the server closes connections that are idle for long; clients open another
            return await self.request(sentence, answers)
        self.idle.append((reader, writer))
        status = int(headers[9:12])
        answers.seconds.setdefault(status, []).append(time.perf_counter() - begun)
        if status == 200 and content["translatedText"] != self.expected[sentence]:
            answers.other_text += 1

    async def closed_loop(self, sentences: Sequence[str], clients: int) -> Answers:
        """Let each client send its next request when it has the answer to the last."""
        answers, left = Answers(), iter(sentences)

        async def client() -> None:
            for sentence in left:
                await self.request(sentence, answers)

        begun = time.perf_counter()
        await asyncio.gather(*(client() for _ in range(clients)))
        answers.wall = time.perf_counter() - begun
        return answers

    async def open_loop(self, sentences: Sequence[str], rate: float, seconds: float) -> Answers:
        """Send requests at a rate, whether the server keeps up or not."""
        answers, tasks, begun = Answers(), [], time.perf_counter()
        for number in range(int(rate * seconds)):
            await asyncio.sleep(max(0, begun + number / rate - time.perf_counter()))
            tasks.append(asyncio.create_task(self.request(sentences[number % len(sentences)], answers)))
        await asyncio.gather(*tasks)
        answers.wall = time.perf_counter() - begun
        return answers

    async def memory(self) -> float:
        """Return the resident memory of the server in bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        found = re.search(rb"\nprocess_resident_memory_bytes (\S+)", await reader.read())
        writer.close()
        assert found is not None
        return float(found[1])


def measure(
    model: Annotated[Path, typer.Argument(help="A folder of `export onnx`, or a model folder.")],
    text: Annotated[Path, typer.Argument(help="Sentences, one a line.")],
    backend: Backend = None,
    requests: Annotated[int, typer.Option(min=100, help="Requests of a round.")] = 2000,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of `translate` and of the server.")] = 3,
    memory_requests: Annotated[int, typer.Option(min=0, help="Requests between two measurements of memory.")] = 20_000,
    overload: Annotated[float, typer.Option(min=0, help="Seconds at four times the measured throughput.")] = 60,
) -> None:
    """Measure a server against `translate` of the same sentences."""
    lines = list(dict.fromkeys(line for line in read_lines(text) if line))
    sentences = [lines[number % len(lines)] for number in range(requests)]
    backend = backend or choose_backend(model)
    translator: Translator = Translator.from_pretrained(model, backend=backend)
    expected = dict(zip(lines, translator.translate(lines), strict=True))
    gc.disable()  # or its collections would delay the clients' requests
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vaswani_transformer", "serve", str(model), "--backend", backend]
    options = ["--port", str(port), "--source-language", "yy", "--target-language", "xx"]
    server = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        for line in server.stderr:
            if line.startswith("http://"):
                break
        asyncio.run(load(translator, Clients(port, expected), sentences, rounds, memory_requests, overload))
    finally:
        server.send_signal(signal.SIGTERM)
        print(f"exit code after SIGTERM: {server.wait(60)}")


async def load(
    translator: Translator,
    clients: Clients,
    sentences: list[str],
    rounds: int,
    memory_requests: int,
    overload: float,
) -> None:
    """Run all measurements and print them."""
    print(f"{os.cpu_count()} cores, {len(sentences)} requests of one sentence, {translator!r}")
    single = await clients.closed_loop(sentences[:200], 1)
    answers, rates = single, {"translate": [], "server": []}
    for _ in range(rounds):
        begun = time.perf_counter()
        translator.translate(sentences)
        rates["translate"].append(len(sentences) / (time.perf_counter() - begun))
        answers = await clients.closed_loop(sentences, CLIENTS)
        rates["server"].append(len(sentences) / answers.wall)
        print(
            f"translate {rates['translate'][-1]:.0f}/s, {CLIENTS} clients {rates['server'][-1]:.0f}/s; {answers.counts}"
        )
    ratio = median(rates["server"]) / median(rates["translate"])
    p50, p99 = answers.percentile(50), answers.percentile(99)
    print(f"throughput: {ratio:.0%} of translate; p50 {p50:.0f} ms, p99 {p99:.0f} ms")
    alone = await clients.closed_loop(sentences[-200:], 1)
    latency = median([*single.seconds[200], *alone.seconds[200]]) * 1000
    rate = median(rates["server"])
    half = await clients.open_loop(sentences, rate / 2, 30)
    p99 = half.percentile(99)
    print(f"one client: {latency:.1f} ms; at half of the throughput p50 {half.percentile(50):.1f} ms, p99 {p99:.1f} ms")
    print(f"p99 / one client: {p99 / latency:.1f}; {half.counts}")
    if overload:
        over = await clients.open_loop(sentences, 4 * rate, overload)
        print(f"{4 * rate:.0f} requests/s for {overload:.0f} s: {over.counts}")
        print(f"answered {len(over.seconds[200]) / over.wall:.0f}/s, p99 {over.percentile(99):.0f} ms")
        print(f"429: p50 {over.percentile(50, 429):.1f} ms, p99 {over.percentile(99, 429):.1f} ms")
        await asyncio.sleep(5)
        after = await clients.closed_loop(sentences[:100], 1)
        print(f"5 s later, one client: {median(after.seconds[200]) * 1000:.1f} ms")
    if memory_requests:
        before = await clients.memory()
        repeated = [sentences[number % len(sentences)] for number in range(memory_requests)]
        await clients.closed_loop(repeated, CLIENTS)
        now = await clients.memory()
        growth = f"{before / 1e6:.0f} MB, after {memory_requests} requests {now / 1e6:.0f} MB ({now / before - 1:+.1%})"
        print(f"memory: {growth}")


if __name__ == "__main__":
    harness.run(measure)
