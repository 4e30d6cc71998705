"""hub/space without a browser: its imports, its versions, and the folder that `space` writes."""

import ast
import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from hub.__main__ import main

SPACE = Path(__file__).parents[1] / "hub" / "space"


def test_the_requirements_list_every_imported_package():
    named = {re.split("[<>=]", line)[0] for line in (SPACE / "requirements.txt").read_text().split()}
    imported = set()
    for file in SPACE.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add((node.module or "").split(".")[0])
    standard = set(sys.stdlib_module_names) | {file.stem for file in SPACE.glob("*.py")}
    packages = {"PIL": "pillow"}  # modules with another name than their package
    assert {packages.get(name, name) for name in imported - standard} == named


def test_the_readme_and_the_requirements_pin_the_same_gradio():
    front_matter = yaml.safe_load((SPACE / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    assert front_matter["sdk"] == "gradio"
    assert f"gradio=={front_matter['sdk_version']}" in (SPACE / "requirements.txt").read_text().split()
    assert (SPACE / front_matter["app_file"]).is_file()


def test_a_written_space_names_its_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "space"
    main(["space", "someone/attention", "--model", "owner/model", "--revision", "v1", "--to-folder", str(out)])
    assert f"hf upload someone/attention {out} . --repo-type space" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {path.name for path in SPACE.iterdir()} | {"model.json"}
    assert json.loads((out / "model.json").read_text()) == {"id": "owner/model", "revision": "v1"}
    _, front_matter, text = (out / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    fields = yaml.safe_load(front_matter)
    assert (fields["title"], fields["models"], fields["sdk"]) == ("attention", ["owner/model"], "gradio")
    assert text.startswith("\n# Attention, at work")
