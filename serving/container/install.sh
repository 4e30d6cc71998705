#!/bin/sh
# Install the wheel beside this script and what `serve` needs with ONNX Runtime: install.sh NEW_ENVIRONMENT
set -eu
box=$(dirname "$0")
python3 -m venv "$1"
# The wheel requires torch and transformers, which ONNX Runtime does not need; they have gigabytes.
"$1/bin/pip" install --no-cache-dir --no-deps "$box"/vaswani_transformer-*.whl
"$1/bin/pip" install --no-cache-dir --constraint "$box/constraints.txt" \
    numpy onnxruntime packaging pyyaml rich tokenizers typer \
    fastapi prometheus-client python-multipart uvicorn
