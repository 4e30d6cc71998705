"""The result files of the paper's tables, figures and claims, and the Markdown tables made from them."""

import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from training.result_row import commit, hardware
from vaswani_transformer.errors import InputError
from vaswani_transformer.files import read_json_object, write_json

# The numbers that the paper prints.
PAPER: dict[str, Any] = json.loads((Path(__file__).parent / "paper.json").read_text(encoding="utf-8"))


def format_command(command: str, options: Mapping[str, object], keys: Mapping[str, str | None] | None = None) -> str:
    """Return the command that reproduces a result file, without local paths.

    command: the program and its subcommand, such as `python -m paper table3`
    options: None values are omitted, paths are shortened to their last component
    keys: recipe keys; those that only locate files on this machine are omitted
    """
    words = command.split()
    for name, value in options.items():
        if value is not None:
            words += [f"--{name}", value.name if isinstance(value, Path) else str(value)]
    words += [f"--{key}={value}" for key, value in (keys or {}).items() if key not in ("data", "cache")]
    return shlex.join(words)


def describe_origin(command: str, seeds: list[int], seconds: float) -> dict[str, Any]:
    """Return the fields that record how a result file was made."""
    return {
        "command": command,
        "date": date.today().isoformat(),
        "commit": commit(),
        "hardware": hardware(),
        "seeds": seeds,
        "seconds": round(seconds, 1),
    }


def is_measured(path: Path, command: str) -> bool:
    """Return whether a result file exists. Raises InputError if it was made by another command."""
    if not path.is_file():
        return False
    check_command(path, command)
    return True


def check_command(path: Path, command: str) -> None:
    """Raise InputError unless a result file was made by this command."""
    before = read_json_object(path).get("command")
    if before != command:
        raise InputError(f"{path} was made by `{before}`; remove it to measure again, or choose another --output")


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Write a result file and create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, result)


def format_duration(seconds: float) -> str:
    """Write a time as `2 h 28 min`, `15 min 27 s` or `16 s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def format_table(rows: Sequence[Mapping[str, object]], headings: Mapping[str, str] | None = None) -> str:
    """Return a Markdown table of rows with the same columns.

    headings: column titles that differ from the keys
    """
    if not rows:
        return ""
    head = [(headings or {}).get(name, name) for name in rows[0]]
    lines = [head, ["---"] * len(head), *(map(str, row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"
