"""A MkDocs hook that generates reference pages from the code.

commands.md is the help of every command, recipe.md lists every key of a recipe, source.md every module with the first
line of its docstring, annotated.md is examples/annotated_transformer.py as a page, and paper.md is the page that
`python -m paper page` writes from the result files in paper/results.
"""

import ast
import importlib
import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File
from typer.cli import get_docs_for_click  # what `typer utils docs` runs
from typer.main import get_command

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

import notebook  # noqa: E402

# Programs without a command; they are started with `python -m`.
MODULES = ("paper.__main__",)
FOLDERS = ("vaswani_transformer", "training", "conversion", "serving", "hub", "paper", "examples", "benchmarks")

COMMANDS_INTRODUCTION = """# Commands

`vaswani-transformer COMMAND --help` prints the same text.

Exit codes: 0 success, 1 a failed comparison or an unexpected error, 2 wrong input, 3 a broken file, 4 a problem of the
environment (no network, no memory, a full disk, a missing package), 130 Ctrl-C. `--debug` after any command shows the
traceback of an error.

`train` and `plan` also take every [recipe key](recipe.md) as an option.
"""
RECIPE_INTRODUCTION = """# Recipe keys

A recipe is a YAML file. Every key is also an option of `vaswani-transformer train` and `plan`: `--max_steps 1000` or
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
    paper = ROOT / "paper" / "results"
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
    root: Any = command_of("vaswani_transformer.cli")
    insert_programs(root)
    lines = [COMMANDS_INTRODUCTION, documentation(root, "vaswani-transformer")]
    lines += ["## Programs without a command\n"]
    for module in MODULES:
        lines.append(documentation(command_of(module), f"python -m {module.removesuffix('.__main__')}", level=3))
    return "\n".join(lines)


def insert_programs(group: Any) -> None:
    """Replace the commands that pass their arguments on to a program by those of the program."""
    from vaswani_transformer.cli import PASS_ON, PROGRAMS

    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            insert_programs(command)
        elif command.context_settings == PASS_ON:
            group.commands[name] = command_of(PROGRAMS[name], name)


def command_of(module: str, name: str | None = None) -> Any:
    """Return the command of a module's typer app, or its subcommand of that name if it has one."""
    command: Any = get_command(importlib.import_module(module).app)
    command = getattr(command, "commands", {}).get(name, command)
    command.name, command.epilog = name, None  # the epilog of `train` is the recipe page
    return command


def documentation(command: Any, name: str, level: int = 2) -> str:
    """Return a command's help in Markdown, and that of its subcommands."""
    context = command.make_context(name, [], resilient_parsing=True)
    return escape(get_docs_for_click(obj=command, ctx=context, name=name, indent=level - 1))


# ---- recipes -----------------------------------------------------------------------------------------------------


def recipe_page() -> str:
    from training import recipe

    schema = recipe.Recipe.model_json_schema()["properties"]
    lines = [RECIPE_INTRODUCTION]
    for settings in recipe.Settings.__annotations__.values():
        heading, _, text = re.sub("[;:] ", "\n", str(settings.__doc__).removesuffix("."), count=1).partition("\n")
        lines += [f"## {heading}", "", f"{text[:1].upper()}{text[1:]}." if text else "", ""]
        lines += ["| key | type | default | limits | meaning |", "|---|---|---|---|---|"]
        for name in settings.model_fields:
            types = schema[name].get("anyOf", [schema[name]])
            kinds = ", ".join(kind for kind in map(type_of, types) if kind != "null")
            default = json.dumps(recipe.Recipe.model_fields[name].get_default(call_default_factory=True))
            meaning = escape(schema[name]["description"]) + (" *May change.*" if name in recipe.MAY_CHANGE else "")
            lines.append(row(f"`{name}`", kinds, f"`{default}`", ", ".join(filter(None, map(limits, types))), meaning))
        lines.append("")
    lines += ["## Recipes in the package", "", "| recipe | description | run? |", "|---|---|---|"]
    for name in recipe.shipped_recipes():
        lines.append(row(f"`{name}`", *map(sentence, recipe.describe_recipe(name))))
    return "\n".join(lines)


def type_of(schema: dict[str, Any]) -> str:
    """Return a type of a JSON schema: its name, or the choices."""
    choices = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    if schema["type"] == "array":
        return f"list of {type_of(schema['items'])}s"
    return "table" if schema["type"] == "object" else schema["type"]


def limits(schema: dict[str, Any]) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [(sign, schema[key]) for key, sign in signs.items() if key in schema]
    return ", ".join(f"{sign} {'2^63' if value == 2**63 else value}" for sign, value in found)


# ---- the model configuration ---------------------------------------------------------------------------------------


def configuration_fields() -> list[str]:
    """Return tables of the fields of the configuration; a comment above a group of fields becomes a paragraph."""
    from vaswani_transformer import VaswaniTransformerConfig

    lines: list[str] = []
    in_table = False
    for line in inspect.getsource(VaswaniTransformerConfig).partition("\n    def ")[0].splitlines():
        field = re.match(r"    (\w+): ([^=]+) = (.*?)(?:  # (.*))?$", line)
        comment = re.match(r"    # (.*)", line)
        if field:
            if not in_table:
                lines += ["", "| field | type | default | meaning |", "|---|---|---|---|"]
            name, kind, default, meaning = field.groups()
            lines.append(row(f"`{name}`", f"`{kind}`", f"`{default}`", sentence(meaning or "")))
        elif in_table:
            lines.append("")
        if comment:
            lines.append(escape(comment[1]))
        in_table = field is not None
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
    """Return a row of a table. A vertical bar ends a cell, except in code."""
    parts = [" ".join(cell.split()).split("`") for cell in cells]
    texts = ["`".join(text if i % 2 else text.replace("|", "\\|") for i, text in enumerate(part)) for part in parts]
    return f"| {' | '.join(texts)} |"


def escape(text: str) -> str:
    """Return text in which placeholders such as <s> are not HTML; those in code stay."""
    parts = text.split("`")
    return "`".join(part.replace("<", "&lt;") if i % 2 == 0 else part for i, part in enumerate(parts))


def sentence(text: str) -> str:
    return escape(text[:1].upper() + text[1:])
