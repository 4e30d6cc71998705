"""The imports between folders, read from the source: programs import the library, never the reverse."""

import ast
import doctest
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vaswani_transformer.model_folder import CODE_FILES

ROOT = Path(__file__).parents[1]
LIBRARY = "vaswani_transformer"
PROGRAMS = ("training", "conversion", "serving", "hub", "paper")
FILES = sorted(path.relative_to(ROOT) for folder in (LIBRARY, *PROGRAMS) for path in (ROOT / folder).rglob("*.py"))
# Optional packages: imported where they are used, so that the library works without them.
OPTIONAL = {"accelerate", "datasets", "matplotlib", "onnx", "onnxruntime", "onnxscript", "sacrebleu", "sacremoses"}
OPTIONAL |= {"sentencepiece"}


def imports(path: Path, everywhere: bool = True) -> Iterator[tuple[int, str]]:
    """Yield (level, module) of a file's imports; level 0 is absolute. everywhere=False: only at the top of the file."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or ""


def top_level(path: Path, everywhere: bool = True) -> set[str]:
    return {module.split(".")[0] for level, module in imports(path, everywhere) if level == 0}


@pytest.mark.parametrize("path", FILES, ids=str)
def test_programs_import_the_library_and_no_other_program(path):
    allowed = {"training"} if path.parts[0] == "paper" else set()
    assert not top_level(path) & {*PROGRAMS, "tests", "benchmarks"} - allowed
    depth = len(path.parts) - 1  # a relative import must not leave the folder
    assert all(level <= depth for level, _ in imports(path))
    if path.parts[0] == LIBRARY:
        assert not top_level(path, everywhere=False) & OPTIONAL


@pytest.mark.parametrize("name", CODE_FILES)
def test_published_code_needs_only_torch_and_transformers(name):
    allowed = {"torch", "transformers", "huggingface_hub"}
    assert top_level(Path(LIBRARY) / name) <= allowed | sys.stdlib_module_names


@pytest.mark.parametrize("folder", [LIBRARY, *PROGRAMS, "benchmarks", "conversion/onnx"])
def test_the_docstring_of_a_folder_names_its_files(folder):
    names = [path.stem for path in (ROOT / folder).glob("*.py") if not path.stem.startswith("__")]
    docstring = ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text(encoding="utf-8"))) or ""
    unnamed = [name for name in names if name.removesuffix(f"_{LIBRARY}") not in docstring]
    assert not unnamed, f"{folder}/__init__.py does not name {', '.join(unnamed)}"


@pytest.mark.parametrize(
    "module",
    [
        "conversion.options",
        "conversion.rename",
        "training.tables",
        "vaswani_transformer.configuration_vaswani_transformer",
        "vaswani_transformer.search_vaswani_transformer",
        "vaswani_transformer.sentences_vaswani_transformer",
    ],
)
def test_examples_in_docstrings_that_need_no_model_are_true(module):
    failed, tried = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert tried and not failed
