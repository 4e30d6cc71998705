"""hub/space without a browser: what it is made of."""

import ast
import re
from pathlib import Path

import yaml

SPACE = Path(__file__).parents[1] / "hub" / "space"


def test_the_app_imports_nothing_that_its_requirements_do_not_name():
    named = {re.split("[<>=]", line)[0] for line in (SPACE / "requirements.txt").read_text().split()}
    imported = set()
    for node in ast.walk(ast.parse((SPACE / "app.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").split(".")[0])
    standard = {"base64", "dataclasses", "html", "io", "os", "pathlib", "sys"}
    packages = {"PIL": "pillow"}  # the module's name is not the package's
    assert {packages.get(name, name) for name in imported - standard} == named


def test_the_space_runs_the_gradio_that_its_requirements_pin():
    front_matter = yaml.safe_load((SPACE / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    assert front_matter["sdk"] == "gradio"
    assert f"gradio=={front_matter['sdk_version']}" in (SPACE / "requirements.txt").read_text().split()
    assert (SPACE / front_matter["app_file"]).is_file()
