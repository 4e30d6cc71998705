"""How much memory does one system need to translate one batch? A separate process, started by `decode.py`.

    python -m benchmarks.decode_memory KIND FOLDER THREADS BEAMS < SOURCES

SOURCES is a JSON list of token ids. The output is the peak resident memory in bytes.
"""

import json
import re
import sys
from pathlib import Path


def main() -> None:
    kind, folder, threads, beams = sys.argv[1:]
    if kind.startswith(("onnx", "ctranslate2")):
        for package in ("torch", "transformers"):  # imported where they are installed, but not needed
            sys.modules[package] = None  # pyright: ignore[reportArgumentType]  # the documented way to block an import
    from .decode_systems import SYSTEMS

    SYSTEMS[kind](Path(folder), int(threads)).translate(json.load(sys.stdin), int(beams))
    # Not getrusage: its maximum includes that of the parent process.
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None
    print(int(found[1]) * 1024)


if __name__ == "__main__":
    main()
