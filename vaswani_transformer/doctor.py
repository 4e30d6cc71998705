"""`vaswani-transformer doctor`: the machine and the installation on one screen, as a block of Markdown to paste."""

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from packaging.version import Version

from . import __version__
from .configuration_vaswani_transformer import NEWEST_TRANSFORMERS
from .languages import read_languages
from .model_folder import EXPORT_RECORD, MANIFEST, verify_manifest
from .programs import program_name
from .translator import Translator

# They change devices, threads or downloads, and hold no secrets.
VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "HF_HUB_OFFLINE", "ORT_DISABLE_TELEMETRY")
# The newest versions of other packages with which all tests have passed; the ranges in pyproject.toml are open.
# As in constraints.txt, or newer for torch.
NEWEST_TRIED = {
    "torch": "2.15.0",
    "transformers": NEWEST_TRANSFORMERS,
    "tokenizers": "0.23.3",
    "accelerate": "1.15.0",
    "onnx": "1.23.2",
    "onnxruntime": "1.32.0",
    "onnxscript": "0.7.2",
}


def untried_versions_warning() -> str | None:
    """Return a line that names the installed packages that are newer than the newest that was tried, or None."""
    untried = [
        f"{package} {installed} (tried: up to {newest})"
        for package, newest in NEWEST_TRIED.items()
        if (installed := find_version(package)) and Version(installed).release > Version(newest).release
    ]
    return f"warning: not tried with this version of vaswani-transformer: {', '.join(untried)}" if untried else None


def find_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def describe_versions(*packages: str) -> str:
    """Return the packages with their versions, or a dash."""
    return ", ".join(f"{package} {find_version(package) or '-'}" for package in packages)


def describe_gpu(index: int) -> str:
    device = torch.cuda.get_device_properties(index)
    return f"{device.name} ({device.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda})"


def environment_lines() -> Iterator[str]:
    """Yield the lines about the machine and the installation, a warning of untried versions first."""
    if warning := untried_versions_warning():
        yield warning
    yield f"vaswani-transformer  {__version__}, Python {platform.python_version()}, {platform.platform()}"
    required = describe_versions("transformers", "tokenizers", "safetensors", "numpy", "huggingface_hub")
    yield f"required    torch {torch.__version__}, {required}"  # metadata lacks "+cpu" and the like
    yield "training    " + describe_versions("accelerate", "sacrebleu", "datasets", "peft")
    yield "pictures    " + describe_versions("matplotlib")
    yield "ONNX        " + describe_versions("onnx", "onnxruntime")
    gpus = [describe_gpu(i) for i in range(torch.cuda.device_count())]
    devices = gpus or (["Apple GPU (mps)"] if torch.backends.mps.is_available() else [])
    yield "devices     " + ", ".join([*devices, f"CPU {torch.backends.cpu.get_cpu_capability()}"])
    yield f"threads     {torch.get_num_threads()} in torch, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}"
    usage = shutil.disk_usage(Path.cwd())
    yield f"disk        {usage.free / 1e9:.1f} GB free of {usage.total / 1e9:.1f} GB here"
    yield f"programs    {program_name('training')}"
    if given := [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ]:
        yield "environment " + ", ".join(given)


def model_lines(translator: Translator, folder: Path) -> Iterator[str]:
    """Yield the lines about a model folder that has been loaded."""
    yield f"model       loads: {translator.description()}, {translator.target_vocabulary:,} target tokens"
    record = EXPORT_RECORD if (folder / EXPORT_RECORD).is_file() else MANIFEST  # loading has compared the former
    has_checksums = record == EXPORT_RECORD or verify_manifest(folder)
    yield f"            {'matches its' if has_checksums else 'has no'} checksums ({record})"
    names = translator.languages.names
    if pair := read_languages(folder):
        yield f"            translates from {pair[0]} to {pair[1]}, as its files record"
    if names:
        need = "needs" if translator.languages.are_needed else "has"
        yield f"            {need} a language token (--target-language): {', '.join(names)}"
    yield f"            translates 'a' to {translator.translate(['a'], target_language=(names or [None])[0])[0]!r}"
