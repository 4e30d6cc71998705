"""The newest versions of other packages with which all tests have passed.

The ranges in pyproject.toml are open towards later releases. If an installed version is newer, `doctor` and `train`
begin with a warning.
"""

from importlib.metadata import PackageNotFoundError, version

from packaging.version import Version

from .configuration_vaswani_transformer import NEWEST_TRANSFORMERS

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
    untried = []
    for package, newest in NEWEST_TRIED.items():
        try:
            installed = version(package)
        except PackageNotFoundError:
            continue
        if Version(installed).release > Version(newest).release:
            untried.append(f"{package} {installed} (tried: up to {newest})")
    return f"warning: not tried with this version of vaswani-transformer: {', '.join(untried)}" if untried else None
