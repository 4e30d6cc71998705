#!/bin/sh
# Install the wheel beside this script, and what `serve` with ONNX needs, in a new virtual environment: install.sh FOLDER
set -eu
here=$(dirname "$0")
python3 -m venv "$1"
# The wheel requires torch, which ONNX Runtime does not need; the extra `serve` has the other packages.
"$1/bin/pip" install --no-cache-dir --no-deps "$here"/vaswani_transformer-*.whl
"$1/bin/python" - > "$1/requirements.txt" <<'END'
import re
from importlib.metadata import requires

left_out = {"torch", "transformers"}
extras = {'extra == "serve"', 'extra == "onnx"'}
for requirement in requires("vaswani-transformer"):
    name, _, marker = requirement.partition(";")
    wanted = not marker or marker.strip().replace("'", '"') in extras
    if wanted and re.match(r"[\w-]+", name)[0] not in left_out | {"vaswani-transformer", "onnx", "onnxscript"}:
        print(name.strip())
END
"$1/bin/pip" install --no-cache-dir --requirement "$1/requirements.txt"
