"""Measures load time, first-sentence latency and peak memory of one system in its own process. Started by decode.py.

    python -m benchmarks.shared.decode_alone KIND FOLDER THREADS BEAMS BLOCKED < SOURCES

SOURCES is a JSON list of sentences, each a list of token ids. BLOCKED lists packages, separated by commas, whose import
fails: optional packages would otherwise be imported where they are installed. Prints columns of decode.py as a JSON
object: load_seconds, including the import of the libraries; first_seconds, for the first source alone; peak_megabytes,
the peak resident memory after the whole batch.
"""

import json
import re
import sys
import time
from pathlib import Path


def main() -> None:
    kind, folder, threads, beams, blocked = sys.argv[1:]
    for package in filter(None, blocked.split(",")):
        sys.modules[package] = None  # pyright: ignore[reportArgumentType]  # the documented way to block an import
    sources = json.load(sys.stdin)
    begun = time.perf_counter()
    from .decode_systems import SYSTEMS

    system = SYSTEMS[kind].load(Path(folder), int(threads))
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
