"""paper/results: the page is made from its result files, and each of them says how it was made."""

import json
import re
import shutil
from pathlib import Path

import pytest

from paper.__main__ import main
from paper.claims import CLAIMS
from paper.page import build_page

FOLDER = Path(__file__).parents[2] / "paper" / "results"
RESULT_FILES = sorted(path for path in FOLDER.rglob("*.json") if path.name != "table3.json")


def test_the_page_is_made_from_the_result_files():
    written = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert written == build_page(FOLDER), "run `python -m paper page --output paper/results`"
    pictures = re.findall(r"\]\(([^)]+\.png)\)", written)
    assert len(pictures) > 5 and all((FOLDER / name).is_file() for name in pictures)


@pytest.mark.parametrize("name", CLAIMS)
def test_verdicts_follow_from_the_measurements(name):
    result = json.loads((FOLDER / "claims" / f"{name}.json").read_text(encoding="utf-8"))
    finding = CLAIMS[name].judge(result)
    written = (result["claim"], result["verdict"], result["evidence"])
    assert written == (CLAIMS[name].text, finding.verdict, finding.evidence)
    assert all(axis.get_ylabel() for axis in finding.figure.axes)


@pytest.mark.parametrize("path", RESULT_FILES, ids=lambda path: path.stem)
def test_every_result_says_how_it_was_made(path):
    found = json.loads(path.read_text(encoding="utf-8"))
    for result in found["rows"] if path.stem == "table4" else [found]:
        assert re.match("(vaswani-transformer|python -m) paper ", result["command"]) and "/" not in result["command"]
        assert result["commit"] and result["hardware"] and isinstance(result["seeds"], list)
        # Label smoothing is judged from the rows of Table 3, in no time.
        assert result["seconds"] > 0 or path.stem == "label_smoothing"


def test_every_run_of_table_3_saw_the_same_tokens():
    rows = json.loads((FOLDER / "table3.json").read_text(encoding="utf-8"))["rows"]
    assert all("multi30k_table3" in row["command"] for row in rows)
    for seed in {row["seed"] for row in rows}:
        assert len({(row["tokens"], row["steps"], row["bleu_signature"]) for row in rows if row["seed"] == seed}) == 1


def test_notes_belong_to_the_results_of_their_folder(tmp_path):
    assert "Notes on these results" in build_page(FOLDER)
    shutil.copy(FOLDER / "table3.json", tmp_path)
    assert "Notes" not in build_page(tmp_path)


@pytest.mark.parametrize("name", ["empty", "absent", "model"])
def test_a_folder_without_results_makes_no_page(name, tmp_path, refused):
    (tmp_path / "empty").mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")  # its README.md is a model card
    folder = tmp_path / name
    said = refused(main, ["page", "--output", folder])
    assert f"--output {folder} has no results; make some first, such as `python -m paper table1" in said
    assert not (tmp_path / "absent").exists()
