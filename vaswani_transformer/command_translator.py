"""Load the Translator that a command's --model names."""

from pathlib import Path
from typing import Any

from .errors import InputError


def load_translator(
    model: str,
    device: str | None,
    dtype: str | None,
    download: bool,
    backend: Any = "torch",
    threads: int | None = None,
    precision: str | None = None,
) -> Any:
    """Load a Translator; the network is only used with --download. Raises InputError."""
    folder = Path(model)
    if not download and not folder.is_dir():
        raise InputError(f"--model {model}: no such folder; a repository of the Hub needs --download")
    if backend == "torch" and (folder / "model.onnx").is_file() and not any(folder.glob("*.safetensors*")):
        raise InputError(
            f"--model {model} holds an ONNX export; `translate` and `evaluate` read it with --backend onnx"
        )
    if backend == "torch" and (threads is not None or precision is not None):
        raise InputError(
            "--threads and --precision are for --backend onnx; torch has the environment variable OMP_NUM_THREADS, and "
            "--dtype"
        )
    from .translator import Translator

    if backend == "torch":
        quiet_transformers()
    from_pretrained: Any = Translator.from_pretrained  # it has one signature per backend
    return from_pretrained(model, device=device, dtype=dtype, backend=backend, threads=threads, precision=precision)


def quiet_transformers() -> None:
    """Keep transformers' messages and progress bars off stderr."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
