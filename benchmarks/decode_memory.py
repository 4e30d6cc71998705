"""How much memory does one system need to translate one batch? A process of its own, started by `decode.py`.

    python -m benchmarks.decode_memory KIND FOLDER THREADS BEAMS < SOURCES

SOURCES is a JSON list of token ids. What the process prints last is the peak of its resident memory in bytes.
"""

import json
import re
import sys
from pathlib import Path


def main() -> None:
    kind, folder, threads, beams = sys.argv[1:]
    if kind.startswith(("onnx", "ctranslate2")):
        # Both import torch where it is, and need it nowhere.
        sys.modules.update(dict.fromkeys(("torch", "transformers")))
    from .decode import SYSTEMS

    SYSTEMS[kind](Path(folder), int(threads)).translate(json.load(sys.stdin), int(beams))
    # Not getrusage: its maximum is also that of the process that started this one.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)
    assert found is not None
    print(int(found[1]) * 1024)


if __name__ == "__main__":
    main()
