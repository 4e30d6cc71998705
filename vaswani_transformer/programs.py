"""Find the programs: training, conversion, serving and hub."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from .errors import UnavailableError


def program_name(program: str) -> str:
    """Return a program's module name: inside the package in a wheel, beside the package in a clone."""
    if importlib.util.find_spec(f"vaswani_transformer.{program}") is not None:
        return f"vaswani_transformer.{program}"
    if (repository_root() / program / "__main__.py").is_file():
        return program
    raise UnavailableError(f"the {program} program is not installed: pip install vaswani-transformer")


def repository_root() -> Path:
    """Return the folder that holds the package."""
    return Path(__file__).resolve().parent.parent


def import_program(program: str, module: str) -> ModuleType:
    """Import a module of a program."""
    name = program_name(program)
    if name == program and str(repository_root()) not in sys.path[:1]:
        sys.path.insert(0, str(repository_root()))  # before other packages of the same name
    return importlib.import_module(f"{name}.{module}")


def safe_environment() -> dict[str, str]:
    """Return an environment in which modules in the current folder do not shadow the programs or their packages."""
    environment = os.environ | {"PYTHONSAFEPATH": "1"}
    if program_name("training") == "training":  # a clone, which need not be installed
        path = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = str(repository_root()) + (os.pathsep + path if path else "")
    return environment
