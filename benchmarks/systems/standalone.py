"""Measures load time, first-sentence latency and peak memory of one system in its own process. Started by decode.py.

    python -m benchmarks.systems.standalone KIND FOLDER THREADS BEAMS [PACKAGE ...] < SOURCES

SOURCES is a JSON list of sentences, each a list of token ids. Imports of each PACKAGE fail: the system would import it
where it is installed, although it does not need it. Prints columns of decode.csv as a JSON object: load_seconds,
including the import of the libraries; first_seconds, for the first source alone; peak_megabytes, the peak resident
memory after the whole batch.
"""

import json
import re
import sys
import time
from pathlib import Path


def main() -> None:
    kind, folder, threads, beams, *blocked = sys.argv[1:]
    for package in blocked:
        sys.modules[package] = None  # pyright: ignore[reportArgumentType]  # the documented way to block an import
    sources = json.load(sys.stdin)
    begun = time.perf_counter()
    from .decoding import SYSTEMS

    system = SYSTEMS[kind](Path(folder), int(threads))
    loaded = time.perf_counter()
    system.translate(sources[:1], int(beams))
    first = time.perf_counter()
    system.translate(sources, int(beams))
    # Not getrusage: its maximum includes that of the parent process.
    peak = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))
    assert peak is not None
    columns = {"load_seconds": round(loaded - begun, 2), "first_seconds": round(first - loaded, 4)}
    print(json.dumps(columns | {"peak_megabytes": round(int(peak[1]) * 1024 / 1e6)}))


if __name__ == "__main__":
    main()
