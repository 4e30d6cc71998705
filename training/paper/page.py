"""The page that shows every result file of a folder: README.md beside them, and paper.md of the documentation."""

import re
from pathlib import Path
from typing import Any

from vaswani_transformer.atomic import atomic_file
from vaswani_transformer.errors import InputError
from vaswani_transformer.model_folder import read_json_object

from . import heads, table1, table2, table3, table4
from .claims import CLAIMS, write_claim
from .plots import save
from .results import duration, markdown

# page.md has the text of every section; the tables and pictures follow it.
INTRODUCTION, TABLE1, TABLE2, TABLE3, TABLE4, FIGURES, WALK, HEADS, VERDICTS, PROVENANCE = (
    section.strip() + "\n"
    for section in re.split("^(?=## )", Path(__file__).with_name("page.md").read_text(encoding="utf-8"), flags=re.M)
)
CAPTIONS = {
    "figure1": "Figure 1: the architecture of the model",
    "figure2": "Figure 2: scaled dot-product attention and multi-head attention",
    "figure3": "Figure 3: long-distance dependency",
    "figure4": "Figure 4: the nearest thing to anaphora resolution",
    "figure5": "Figure 5: two heads with different tasks",
}


def write_page(folder: Path) -> Path:
    """Draw the plots and judge the claims again from the numbers in the result files, and write README.md."""
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
    """Return the page in Markdown for the result files that are there; pictures are linked by their names."""
    files, claims = result_files(folder), result_files(folder / "claims")
    if not files and not claims:
        raise InputError(
            f"--output {folder} has no result files; `vaswani-transformer paper --help` lists the commands"
        )
    parts = [INTRODUCTION]
    if "table1" in files:
        parts += [TABLE1, table1.as_markdown(files["table1"]["layers"]), picture("table1.png", "Table 1 as curves")]
    for name, text, module in (("table2", TABLE2, table2), ("table3", TABLE3, table3), ("table4", TABLE4, table4)):
        if name in files:
            parts += [text, module.as_markdown(files[name]["rows"])]
    if drawn := [name for name in CAPTIONS if name in files]:
        parts.append(FIGURES)
        for name in drawn:
            sentences = map(heads_sentence, files[name].get("found", []))
            parts += [f"### {CAPTIONS[name]}\n", *sentences, picture(f"{name}.png", CAPTIONS[name])]
    if "walk" in files:
        parts += [WALK, picture("walk.png", "The walk through attention")]
    if "heads" in files:
        parts += [HEADS, heads.as_markdown(files["heads"]["heads"])]
    judged = {name: claims[name] for name in CLAIMS if name in claims}
    if judged:
        rows = [{"claim": claim["claim"], "verdict": claim["verdict"]} for claim in judged.values()]
        parts += [VERDICTS, markdown(rows)]
    for name, claim in judged.items():
        evidence = claim["evidence"][:1].upper() + claim["evidence"][1:]
        parts.append(f"### {claim['claim']}\n\nVerdict: **{claim['verdict']}**. {evidence}.\n")
        if name == "beam_and_alpha":
            parts.append(searches_table(claim["bleu"]))
        parts.append(picture(f"claims/{name}.png", claim["claim"]))
    return "\n".join([*parts, PROVENANCE, provenance_table(files | claims)])


def picture(name: str, text: str) -> str:
    return f"![{text}]({name})\n"


def heads_sentence(chosen: dict[str, Any]) -> str:
    """Describe the heads that the search of a figure has chosen."""
    numbers = ", ".join(map(str, chosen["heads"]))
    link = f", from “{chosen['query']}” most to “{chosen['key']}”" if chosen["query"] else ""
    heads = "heads" if len(chosen["heads"]) > 1 else "head"
    return f"Layer {chosen['layer']}, {heads} {numbers}{link} (score {chosen['score']:.2f}).\n"


def searches_table(searches: dict[str, dict[str, Any]]) -> str:
    return markdown(
        [
            {
                "search": name,
                "BLEU": f"{score['bleu']:.2f} ± {score['interval']:.2f}",
                "p, against the first": "" if score["p"] is None else f"{score['p']:.3f}",
            }
            for name, score in searches.items()
        ]
    )


def provenance_table(files: dict[str, dict[str, Any]]) -> str:
    """Return the table of commands, each with all of its result files: Tables 3 and 4 have one for each model."""
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
