"""A MkDocs hook: the reference pages that are generated from the code when the site is built.

commands.md lists every command with its options, recipe.md every key of a recipe, source.md every module with the
first line of its docstring, annotated.md is examples/annotated_transformer.py as a page, and paper.md is the page that
`vaswani-transformer paper page` makes of the row files in training/results/paper.
"""

import ast
import importlib
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
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
    "paper": "training.paper.__main__",
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
base model. A key marked *may change* can have another value when a run resumes.
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
    paper = ROOT / "training" / "results" / "paper"
    page = re.sub(r"\]\(([\w/]+\.png)\)", r"](paper/\1)", (paper / "README.md").read_text(encoding="utf-8"))
    files.append(File.generated(config, "paper.md", content=page))
    for path in paper.rglob("*.png"):
        files.append(File.generated(config, f"paper/{path.relative_to(paper)}", abs_src_path=str(path)))
    picture = ROOT / "training" / "results" / "demo-attention.png"
    files.append(File.generated(config, "images/demo-attention.png", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown, page, **_):
    if page.file.src_uri == "reference/configuration.md":
        return markdown.replace("<!-- fields -->", "\n".join(configuration_fields()))
    return markdown


# ---- commands ----------------------------------------------------------------------------------------------------


def commands_page() -> str:
    from vaswani_transformer.cli import app

    lines = [COMMANDS_INTRODUCTION]
    for name, callback, text in commands(app):
        lines += [*section(f"vaswani-transformer {name}", callback, text), ""]
    lines += ["## Programs without a command", ""]
    for module in MODULES:
        callback, text = program_command(module)
        lines += [*section(f"python -m {module}", callback, text, level=3), ""]
    return "\n".join(lines)


def commands(app: typer.Typer, prefix: str = "") -> Iterator[tuple[str, Any, str]]:
    """(name, the function that takes the options, help) of every command, in the order of `--help`."""
    for command in app.registered_commands:
        assert command.callback is not None
        name = prefix + (command.name or command.callback.__name__.replace("_", "-"))
        if name == "paper":
            yield from commands(importlib.import_module(PROGRAMS[name]).app, "paper ")
        elif name in PROGRAMS:
            callback, text = program_command(PROGRAMS[name], name)
            yield name, callback, text
        else:
            yield name, command.callback, command.help or inspect.getdoc(command.callback) or ""
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, f"{prefix}{group.name} ")


def program_command(module: str, name: str = "") -> tuple[Any, str]:
    """Return function and help of a program, or of its command of that name if it has several."""
    known = importlib.import_module(module).app.registered_commands
    (command,) = [c for c in known if len(known) == 1 or (c.name or c.callback.__name__) == name]
    return command.callback, command.help or inspect.getdoc(command.callback) or ""


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
    for title, names in recipe_groups(recipe.Recipe):
        heading, _, text = re.sub("[;:] ", "\n", title, count=1).partition("\n")
        lines += [f"## {heading}", "", f"{text[:1].upper()}{text[1:]}." if text else "", ""]
        lines += ["| key | type | default | limits | meaning |", "|---|---|---|---|---|"]
        for name in names:
            field = recipe.Recipe.model_fields[name]
            changes = " *May change.*" if name in recipe.MAY_CHANGE else ""
            default = json.dumps(field.get_default(call_default_factory=True))
            meaning = escape(field.description or "") + changes
            lines.append(row(f"`{name}`", key_type(field.annotation), f"`{default}`", limits(field), meaning))
        lines.append("")
    lines += ["## Recipes in the package", "", "| recipe | description |", "|---|---|"]
    for path in sorted(recipe.SHIPPED.glob("*.yaml")):
        lines.append(row(f"`{path.stem}`", first_comment(path)))
    return "\n".join(lines)


def recipe_groups(recipe: Any) -> list[tuple[str, list[str]]]:
    """The keys under each comment `# --- title ---` of the class."""
    groups: list[tuple[str, list[str]]] = []
    for line in inspect.getsource(recipe).splitlines():
        if title := re.match(r"    # --- (.*?) ---", line):
            groups.append((title[1][:1].upper() + title[1][1:], []))
        elif (key := re.match(r"    (\w+): ", line)) and key[1] in recipe.model_fields:
            groups[-1][1].append(key[1])
    listed = [name for _, names in groups for name in names]
    if listed != list(recipe.model_fields):
        raise PluginError("docs/generate.py does not find all recipe keys under the comments of training/recipe.py")
    return groups


def key_type(annotation: Any) -> str:
    """The type without its validators: `int`, `list[str]`, or the choices of a Literal."""
    optional = typing.get_origin(annotation) in (types.UnionType, typing.Union)
    kinds = typing.get_args(annotation) if optional else (annotation,)
    kind = next(kind for kind in kinds if kind is not type(None))
    while typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(kind))
    return type_name(kind)


def limits(field: Any) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = [
        (sign, getattr(limit, key)) for limit in field.metadata for key, sign in signs.items() if hasattr(limit, key)
    ]
    return ", ".join(f"{sign} {'2^63' if value == 2**63 else value}" for sign, value in found)


def first_comment(path: Path) -> str:
    lines = [line[1:].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    return sentence(re.split(r"(?<=\.) (?=[A-Z])", " ".join(lines))[0])


# ---- the model configuration ---------------------------------------------------------------------------------------


def configuration_fields() -> list[str]:
    """The fields of the configuration class with their comments: paragraphs above a group, and beside a field."""
    from vaswani_transformer import VaswaniTransformerConfig

    lines: list[str] = []
    in_table = False
    for line in inspect.getsource(VaswaniTransformerConfig).splitlines():
        field = re.match(r"    (\w+): ([^=]+) = (.*?)(?:  # (.*))?$", line)
        if re.match(r"    def ", line):
            break
        if comment := re.match(r"    # (.*)", line):
            lines += ["", escape(comment[1])] if in_table else [escape(comment[1])]
            in_table = False
        elif field:
            if not in_table:
                lines += ["", "| field | type | default | meaning |", "|---|---|---|---|"]
                in_table = True
            name, kind, default, meaning = field.groups()
            lines.append(row(f"`{name}`", f"`{kind}`", f"`{default}`", sentence(meaning or "")))
        elif not line.strip() and in_table:
            lines.append("")
            in_table = False
    return lines


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
    """A row of a table. A vertical bar ends a cell, except in code."""
    parts = [" ".join(cell.split()).split("`") for cell in cells]
    texts = ["`".join(text if i % 2 else text.replace("|", "\\|") for i, text in enumerate(part)) for part in parts]
    return f"| {' | '.join(texts)} |"


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
