"""A MkDocs hook: the reference pages that are generated from the code when the site is built.

commands.md lists every command with its options, recipe.md every key of a recipe, source.md every module with the
first line of its docstring, and annotated.md is examples/annotated_transformer.py as a page.
"""

import ast
import dataclasses
import importlib
import inspect
import json
import re
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import yaml
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File
from typer.models import ArgumentInfo, OptionInfo

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import notebook  # noqa: E402

# Commands that pass their arguments on to a program, and the module that reads them.
PROGRAMS = {
    "demo": "vaswani_transformer.demo",
    "train": "training.__main__",
    "evaluate": "training.evaluate",
    "average": "training.average",
    "plan": "training.plan",
    "convert": "conversion.__main__",
    "export onnx": "conversion.onnx.__main__",
    "push": "hub.__main__",
}
# Programs without a command; they are started with `python -m`.
MODULES = ("training.translate", "training.interpolate")
FOLDERS = ("vaswani_transformer", "training", "conversion", "hub", "examples", "benchmarks")

COMMANDS_INTRODUCTION = """# Commands

`vaswani-transformer COMMAND --help` prints the same text.

Exit codes: 0 success, 2 wrong input, 3 a broken file, 4 a problem of the environment (no network, no memory, a full
disk, a missing package), 130 Ctrl-C. `--debug` after any command shows the traceback of an error.
"""
RECIPE_INTRODUCTION = """# Recipe keys

A recipe is a YAML file. Every key is also a flag of `vaswani-transformer train` and `plan`: `--max_steps 1000` or
`--max-steps 1000`, and `--model.dropout 0.3` for a field of `model`. The defaults are section 5 of the paper for the
base model. A key marked *free* may change when a run resumes.
"""
SOURCE_INTRODUCTION = """# Source tree

Programs import the library, never each other. The data flows through the folders in this order: text, tokenizer,
batches, model, loss, checkpoint, search, translation. Files are listed with the first sentence of their docstring.
"""


def on_files(files, config):
    for path, content in {
        "reference/commands.md": commands_page(),
        "reference/recipe.md": recipe_page(),
        "reference/source.md": source_page(),
        "explanation/annotated.md": notebook.as_markdown(ROOT / "examples" / "annotated_transformer.py"),
    }.items():
        files.append(File.generated(config, path, content=content))
    picture = ROOT / "training" / "results" / "demo-attention.png"
    files.append(File.generated(config, "images/demo-attention.png", abs_src_path=str(picture)))
    return files


# ---- commands ----------------------------------------------------------------------------------------------------


def commands_page() -> str:
    from vaswani_transformer.cli import app

    lines = [COMMANDS_INTRODUCTION]
    for name, callback, text in commands(app):
        lines += [*section(f"vaswani-transformer {name}", callback, text), ""]
    lines += ["## Programs without a command", ""]
    for module in MODULES:
        _, callback, text = program_command(module)
        lines += [*section(f"python -m {module}", callback, text, level=3), ""]
    return "\n".join(lines)


def commands(app: typer.Typer, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """(name, the function that takes the options, help) of every command, in the order of `--help`."""
    for command in app.registered_commands:
        assert command.callback is not None
        name = prefix + (command.name or command.callback.__name__.replace("_", "-"))
        if name in PROGRAMS:
            _, callback, text = program_command(PROGRAMS[name])
            yield name, callback, text
        else:
            yield name, command.callback, command.help or inspect.getdoc(command.callback) or ""
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, f"{prefix}{group.name} ")


def program_command(module: str) -> tuple[str, Any, str]:
    (command,) = importlib.import_module(module).app.registered_commands
    return command.name or "", command.callback, command.help or inspect.getdoc(command.callback) or ""


def section(title: str, callback: Any, text: str, level: int = 2) -> list[str]:
    rows = [row for row in map(option_row, parameters(callback)) if row is not None]
    lines = [f"{'#' * level} {title}", "", inspect.cleandoc(text), ""]
    if rows:
        lines += ["| argument | type | default | meaning |", "|---|---|---|---|", *rows]
    return lines


def parameters(callback: Any) -> Iterator[tuple[str, Any, Any, Any]]:
    """(name, type, typer's description, default) of every parameter."""
    hints = typing.get_type_hints(callback, include_extras=True)
    for name, parameter in inspect.signature(callback).parameters.items():
        kind, *extras = typing.get_args(hints[name]) if hasattr(hints[name], "__metadata__") else (hints[name],)
        yield name, kind, next(iter(extras), None), parameter.default


def option_row(parameter: tuple[str, Any, Any, Any]) -> str | None:
    name, kind, info, default = parameter
    if not isinstance(info, ArgumentInfo | OptionInfo):
        return None
    required = default is inspect.Parameter.empty
    if isinstance(info, ArgumentInfo):
        word = info.metavar or name.upper()
    else:
        # In `Annotated`, the first positional argument of `Option` is a name as well.
        names = [word for word in (info.default, *(info.param_decls or ())) if str(word).startswith("--")]
        word = next(iter(names), f"--{name.replace('_', '-')}")
    shown = "required" if required else "" if default in (None, False) else f"`{default}`"
    return row(f"`{word}`", "flag" if kind is bool else type_name(kind), shown, escape(info.help or ""))


# ---- recipes -----------------------------------------------------------------------------------------------------


def recipe_page() -> str:
    from training import recipe

    lines = [RECIPE_INTRODUCTION]
    fields = {field.name: field for field in dataclasses.fields(recipe.Recipe)}
    hints = typing.get_type_hints(recipe.Recipe)
    groups = yaml.safe_load((ROOT / "docs" / "recipe_keys.yml").read_text(encoding="utf-8"))
    described = [name for group in groups for name in group["keys"]]
    if differing := set(described) ^ set(fields):
        raise PluginError(f"docs/recipe_keys.yml and training/recipe.py differ in: {', '.join(sorted(differing))}")
    for group in groups:
        lines += [f"## {group['title']}", "", group.get("text", ""), ""]
        lines += ["| key | type | default | limits | meaning |", "|---|---|---|---|---|"]
        for name, meaning in group["keys"].items():
            default = f"`{json.dumps(default_of(fields[name]))}`"
            lines.append(row(f"`{name}`", type_name(hints[name]), default, limits(fields[name]), meaning))
        lines.append("")
    lines += ["## Recipes in the package", "", "| recipe | description |", "|---|---|"]
    for path in sorted(recipe.SHIPPED.glob("*.yaml")):
        lines.append(row(f"`{path.stem}`", first_comment(path)))
    return "\n".join(lines)


def default_of(field: dataclasses.Field) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def limits(field: dataclasses.Field) -> str:
    found = field.metadata
    signs = {"at_least": "≥", "above": ">", "below": "<"}
    words = [f"{sign} {found[key]:g}" for key, sign in signs.items() if found.get(key) is not None]
    if found.get("choices"):
        words.append(", ".join("null" if choice is None else f"`{choice}`" for choice in found["choices"]))
    if found.get("resume") == "free":
        words.append("*free*")
    return "; ".join(words)


def first_comment(path: Path) -> str:
    lines = [line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    return sentence(re.split(r"(?<=\.) (?=[A-Z])|; Elliott et al. 2016", " ".join(lines))[0])


# ---- the source tree ---------------------------------------------------------------------------------------------


def source_page() -> str:
    lines = [SOURCE_INTRODUCTION]
    for name in FOLDERS:
        lines += [f"## {name}/", "", "| file | content |", "|---|---|"]
        for path in sorted((ROOT / name).rglob("*.py"), key=lambda path: (len(path.parts), path)):
            if docstring := ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))):
                summary = re.split(r"\n\n|(?<=\.)\s", docstring)[0]
                lines.append(row(f"`{path.relative_to(ROOT / name)}`", escape(summary)))
        lines.append("")
    return "\n".join(lines)


# ---- Markdown ----------------------------------------------------------------------------------------------------


def row(*cells: str) -> str:
    return f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in cells)} |"


def escape(text: str) -> str:
    """Placeholders such as <s> are text, not HTML, outside of code."""
    parts = text.split("`")
    return "`".join(part.replace("<", "&lt;") if i % 2 == 0 else part for i, part in enumerate(parts))


def sentence(text: str) -> str:
    return escape(text[:1].upper() + text[1:])


def type_name(kind: Any) -> str:
    name = kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
    name = re.sub(r"\b(?:typing|pathlib)\.", "", name).replace(" | None", "").replace("dict[str, Any]", "table")
    return f"`{name}`"
