"""Evaluate a model on the pretended GPU and on the CPU: `evaluate_twice.py MODEL < SENTENCES`. Prints both
results, with how often each waited for the device."""

import json
import sys
import tempfile
from pathlib import Path

import pretend_cuda
from typer.testing import CliRunner

from training.evaluate import app

results = []
with tempfile.TemporaryDirectory() as folder:
    text = Path(folder, "text")
    text.write_text(sys.stdin.read())
    for device in ("cuda", "cpu"):
        words = [sys.argv[1], "--source", str(text), "--reference", str(text), "--device", device, "--json"]
        with pretend_cuda.where_it_waits() as waits:
            done = CliRunner().invoke(app, words, catch_exceptions=False)
        results.append(json.loads(done.stdout) | {"waits": sum(waits.values())})
print(json.dumps(results))
