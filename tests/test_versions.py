"""Versions of other packages: which were tried, and what a user of another one is told."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.version import Version

from training.recipe import load_recipe
from training.train import train
from vaswani_transformer import doctor
from vaswani_transformer.cli import main
from vaswani_transformer.doctor import NEWEST_TRIED, untried_versions_warning
from vaswani_transformer.errors import InputError

ROOT = Path(__file__).parents[1]


def test_the_newest_tried_versions_are_those_of_the_constraints() -> None:
    """`make test` runs with these; torch was also tried in other environments."""
    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
    tried = {package: newest for package, newest in NEWEST_TRIED.items() if package != "torch"}
    assert {package: pins[package] for package in tried} == tried
    assert Version(pins["torch"]) <= Version(NEWEST_TRIED["torch"])


@pytest.mark.parametrize(("tried", "is_named"), [("5.16", True), ("9999", False), ("installed", False)])
def test_a_newer_version_is_named(monkeypatch: pytest.MonkeyPatch, tried: str, is_named: bool) -> None:
    installed = version("transformers")
    newest = {"transformers": installed if tried == "installed" else tried, "a-package-that-is-not-installed": "1"}
    monkeypatch.setattr(doctor, "NEWEST_TRIED", newest)
    warning = untried_versions_warning()
    assert (warning is not None) == is_named
    assert warning is None or f"transformers {installed} (tried: up to 5.16)" in warning


def test_doctor_and_a_run_begin_with_the_warning(monkeypatch: pytest.MonkeyPatch, capsys, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "NEWEST_TRIED", {"transformers": "5.16"})
    warning = untried_versions_warning()
    main(["doctor"])
    assert capsys.readouterr().out.splitlines()[1] == warning
    keys = {"data": str(tmp_path / "nowhere"), "output_dir": str(tmp_path / "run")}
    with pytest.raises(InputError, match="nowhere"):
        train(load_recipe(None, keys))
    assert capsys.readouterr().err.splitlines()[0] == warning
