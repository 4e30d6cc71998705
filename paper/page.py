"""The page with all results of a folder: its README.md, and paper.md of the documentation.

page.md is its template: a placeholder such as {table1} stands for the results of `paper table1`.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vaswani_transformer.atomic import atomic_file
from vaswani_transformer.errors import InputError
from vaswani_transformer.files import read_json_object

from . import heads, table1, table2, table3, table4
from .claims import CLAIMS, write_claim
from .plots import save_picture
from .result_files import format_duration, format_table

TABLES = {"table1": table1, "table2": table2, "table3": table3, "table4": table4, "heads": heads}
NOTES = "NOTES.md"  # remarks on the results of a folder, a section of the page
CAPTIONS = {
    "figure1": "Figure 1: the architecture of the model",
    "figure2": "Figure 2: scaled dot-product attention and multi-head attention",
    "figure3": "Figure 3: long-distance dependency",
    "figure4": "Figure 4: the nearest thing to anaphora resolution",
    "figure5": "Figure 5: two heads with different tasks",
}


def write_page(folder: Path) -> Path:
    """Write README.md from the result files of a folder, after judging its claims and drawing its plots again.

    Figures 1 to 5 and the walk keep their pictures: drawing them needs the model.
    """
    text = build_page(folder)
    if found := read_results(folder, ["table1"]):
        save_picture(table1.draw_curves(found["table1"]["layers"]), folder / "table1.png")
    for name, result in read_results(folder / "claims", CLAIMS).items():
        write_claim(folder / "claims", name, result)
    path = folder / "README.md"
    with atomic_file(path) as file:
        file.write(text.encode())
    return path


def build_page(folder: Path) -> str:
    """Return page.md with the results of the folder. Sections without results are left out.

    Raises InputError if the folder has no results at all.
    """
    files = read_results(folder, [*TABLES, *CAPTIONS, "walk"])
    claims = read_results(folder / "claims", CLAIMS)
    if not files and not claims:
        raise InputError(
            f"--output {folder} has no results; make some first, such as `python -m paper table1 --output "
            f"{folder}` (`python -m paper --help` lists all commands)"
        )
    contents = {
        "figures": format_figures(files),
        "walk": format_picture("walk.png", "The walk through attention") if "walk" in files else "",
        "claims": format_claims({name: made for name, made in claims.items() if CLAIMS[name].in_paper}),
        "folklore": format_claims({name: made for name, made in claims.items() if not CLAIMS[name].in_paper}),
        "notes": (folder / NOTES).read_text(encoding="utf-8") if (folder / NOTES).is_file() else "",
        "provenance": format_provenance(files | claims),
    }
    for name, module in TABLES.items():
        contents[name] = module.format_result(files[name]) if name in files else ""
    template = Path(__file__).with_name("page.md").read_text(encoding="utf-8")
    sections = []
    for section in re.split(r"^(?=## |\{notes\})", template, flags=re.MULTILINE):  # the notes have their own heading
        placeholder = re.search(r"^\{(\w+)\}$", section, flags=re.MULTILINE)
        if placeholder is None:
            sections.append(section)
        elif content := contents[placeholder[1]]:
            sections.append(section.replace(placeholder[0], content.rstrip("\n")))
    return "".join(sections)


def read_results(folder: Path, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the contents of those result files that are in a folder: {"table1": {...}, ...}."""
    paths = [folder / f"{name}.json" for name in names]
    return {path.stem: read_json_object(path) for path in paths if path.is_file()}


def format_figures(files: dict[str, dict[str, Any]]) -> str:
    parts = []
    for name, caption in CAPTIONS.items():
        if name in files:
            sentences = map(describe_chosen, files[name].get("found", []))
            parts += [f"### {caption}\n", *sentences, format_picture(f"{name}.png", caption)]
    return "\n".join(parts)


def describe_chosen(chosen: dict[str, Any]) -> str:
    """Describe the heads that the search selected for a figure."""
    numbers = ", ".join(map(str, chosen["heads"]))
    link = f": “{chosen['query']}” attends most to “{chosen['key']}”" if chosen["query"] else ""
    noun = "heads" if len(chosen["heads"]) > 1 else "head"
    return f"Layer {chosen['layer']}, {noun} {numbers}{link} (score {chosen['score']:.2f}).\n"


def format_claims(measured: dict[str, dict[str, Any]]) -> str:
    """Return a table of the verdicts, and a section for each claim with evidence and picture; "" without claims."""
    if not measured:
        return ""
    verdicts, sections = [], []
    for name, measurements in measured.items():
        claim = CLAIMS[name]
        judgement = claim.judge(measurements)
        verdicts.append({"claim": claim.text, "verdict": judgement.verdict})
        evidence = judgement.evidence[:1].upper() + judgement.evidence[1:]
        sections.append(f"### {claim.text}\n\nVerdict: **{judgement.verdict}**. {evidence}.\n")
        sections += [judgement.table] if judgement.table else []
        sections.append(format_picture(f"claims/{name}.png", claim.text))
    return "\n".join([format_table(verdicts), *sections])


def format_picture(name: str, text: str) -> str:
    return f"![{text}]({name})\n"


def format_provenance(files: dict[str, dict[str, Any]]) -> str:
    """Return a table of the commands; Tables 3 and 4 have a result for each model."""
    made = [about for about in files.values() if "command" in about]
    made += files.get("table4", {}).get("rows", [])
    if table3 := files.get("table3"):
        made += [row | {"command": table3["made_by"], "seconds": row["cpu_seconds"]} for row in table3["rows"]]
    by_command: dict[str, list[dict[str, Any]]] = {}
    for result in made:
        by_command.setdefault(result["command"], []).append(result)
    rows = [
        {
            "command": f"`{command}`",
            "date": max(result["date"] for result in group),
            "commit": ", ".join(sorted({result["commit"] for result in group})),
            "hardware": ", ".join(sorted({result["hardware"] for result in group})),
            "seeds": ", ".join(sorted({str(seed) for result in group for seed in result["seeds"]})),
            "time": format_duration(sum(result["seconds"] for result in group)),
        }
        for command, group in sorted(by_command.items())
    ]
    return format_table(rows)
