"""The imports between folders, read from the source: programs import the library, never the reverse."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import tiny_config

from vaswani_transformer.model_folder import CODE_FILES

ROOT = Path(__file__).parents[1]
LIBRARY = "vaswani_transformer"
PROGRAMS = ("training", "conversion", "hub")
FILES = sorted(path.relative_to(ROOT) for folder in (LIBRARY, *PROGRAMS) for path in (ROOT / folder).rglob("*.py"))
# Optional packages: imported where they are used, so that the library works without them.
OPTIONAL = {"accelerate", "datasets", "matplotlib", "onnx", "onnxruntime", "onnxscript", "sacrebleu", "sacremoses"}


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
    assert not top_level(path) & {"training", "conversion", "hub", "tests", "benchmarks"}
    depth = len(path.parts) - 1  # a relative import must not leave the folder
    assert all(level <= depth for level, _ in imports(path))
    if path.parts[0] == LIBRARY:
        assert not top_level(path, everywhere=False) & OPTIONAL


@pytest.mark.parametrize("name", CODE_FILES)
def test_published_code_needs_only_torch_and_transformers(name):
    allowed = {"torch", "transformers", "huggingface_hub"}
    assert top_level(Path(LIBRARY) / name) <= allowed | sys.stdlib_module_names
    # transformers' remote code follows `from .sibling import name` only, to a file that is published beside it.
    siblings = {module for level, module in imports(Path(LIBRARY) / name) if level > 0}
    assert siblings <= {sibling.removesuffix(".py") for sibling in CODE_FILES}


def test_a_saved_model_has_its_code(tmp_path):
    tiny_config().save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.py")) == list(CODE_FILES)


@pytest.mark.parametrize("path", FILES, ids=str)
def test_every_file_has_a_docstring_and_ignores_no_error(path):
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    assert ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            broad = node.type is None or (isinstance(node.type, ast.Name) and node.type.id.endswith("Exception"))
            assert not (broad and all(isinstance(statement, ast.Pass) for statement in node.body)), node.lineno
