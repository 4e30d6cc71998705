"""The page with all results of a folder: its README.md, and paper.md of the documentation."""

import re
from pathlib import Path
from typing import Any

from vaswani_transformer.atomic import atomic_file
from vaswani_transformer.errors import InputError
from vaswani_transformer.model_folder import read_json_object

from . import heads, table1, table2, table3, table4
from .claims import CLAIMS, write_claim
from .plots import save
from .result_files import duration, markdown

# The text of every section by its title; the tables and pictures follow the text.
SECTIONS = {
    text.split("\n", 1)[0].lstrip("# "): text.strip() + "\n"
    for text in re.split("^(?=## )", Path(__file__).with_name("page.md").read_text(encoding="utf-8"), flags=re.M)
}
NOTES = "NOTES.md"  # remarks on the results of a folder; they end the page
CAPTIONS = {
    "figure1": "Figure 1: the architecture of the model",
    "figure2": "Figure 2: scaled dot-product attention and multi-head attention",
    "figure3": "Figure 3: long-distance dependency",
    "figure4": "Figure 4: the nearest thing to anaphora resolution",
    "figure5": "Figure 5: two heads with different tasks",
}


def write_page(folder: Path) -> Path:
    """Draw the plots and judge the claims again from the result files, and write README.md."""
    if (folder / "table1.json").is_file():
        save(table1.draw_curves(read_json_object(folder / "table1.json")["layers"]), folder / "table1.png")
    for name, measurements in result_files(folder / "claims").items():
        if name in CLAIMS:
            write_claim(folder / "claims", name, measurements)
    path = folder / "README.md"
    with atomic_file(path) as file:
        file.write(page(folder).encode())
    return path


def result_files(folder: Path) -> dict[str, dict[str, Any]]:
    return {path.stem: read_json_object(path) for path in sorted(folder.glob("*.json"))}


def page(folder: Path) -> str:
    """Return the page in Markdown with the results of the folder; pictures are linked by their names."""
    files, claims = result_files(folder), result_files(folder / "claims")
    if not files and not claims:
        raise InputError(f"--output {folder} has no results; `vaswani-transformer paper --help` lists the commands")
    parts = [SECTIONS["The paper, reproduced"]]
    if "table1" in files:
        table = table1.as_markdown(files["table1"]["layers"])
        parts += [SECTIONS["Table 1: complexity"], table, picture("table1.png", "Table 1 as curves")]
    for name, title, module in (
        ("table2", "Table 2: BLEU and training cost", table2),
        ("table3", "Table 3: variations of the architecture", table3),
        ("table4", "Table 4: constituency parsing", table4),
    ):
        if name in files:
            parts += [SECTIONS[title], module.as_markdown(files[name]["rows"])]
    if drawn := [name for name in CAPTIONS if name in files]:
        parts.append(SECTIONS["Figures 1 to 5"])
        for name in drawn:
            sentences = map(heads_sentence, files[name].get("found", []))
            parts += [f"### {CAPTIONS[name]}\n", *sentences, picture(f"{name}.png", CAPTIONS[name])]
    if "walk" in files:
        parts += [SECTIONS["A walk through attention"], picture("walk.png", "The walk through attention")]
    if "heads" in files:
        parts += [SECTIONS["What each head does"], heads.as_markdown(files["heads"]["heads"])]
    findings = {name: claim.judge(claims[name]) for name, claim in CLAIMS.items() if name in claims}
    if findings:
        rows = [{"claim": CLAIMS[name].text, "verdict": finding.verdict} for name, finding in findings.items()]
        parts += [SECTIONS["Claims"], markdown(rows)]
    for name, finding in findings.items():
        text, evidence = CLAIMS[name].text, finding.evidence[:1].upper() + finding.evidence[1:]
        parts.append(f"### {text}\n\nVerdict: **{finding.verdict}**. {evidence}.\n")
        parts += [finding.table] if finding.table else []
        parts.append(picture(f"claims/{name}.png", text))
    if (folder / NOTES).is_file():
        parts.append((folder / NOTES).read_text(encoding="utf-8"))
    return "\n".join([*parts, SECTIONS["How the results were made"], provenance_table(files | claims)])


def picture(name: str, text: str) -> str:
    return f"![{text}]({name})\n"


def heads_sentence(chosen: dict[str, Any]) -> str:
    """Describe the heads that the search selected for a figure."""
    numbers = ", ".join(map(str, chosen["heads"]))
    link = f": “{chosen['query']}” attends most to “{chosen['key']}”" if chosen["query"] else ""
    heads = "heads" if len(chosen["heads"]) > 1 else "head"
    return f"Layer {chosen['layer']}, {heads} {numbers}{link} (score {chosen['score']:.2f}).\n"


def provenance_table(files: dict[str, dict[str, Any]]) -> str:
    """Return a table of the commands; Tables 3 and 4 have a result for each model."""
    made = [about for about in files.values() if "command" in about]
    made += files.get("table4", {}).get("rows", [])
    for row in files.get("table3", {}).get("rows", []):
        made.append(row | {"command": "vaswani-transformer paper table3", "seconds": row["cpu_seconds"]})
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
            "time": duration(sum(result["seconds"] for result in group)),
        }
        for command, group in sorted(by_command.items())
    ]
    return markdown(rows)
