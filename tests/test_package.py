"""The wheel, built from this clone and installed in a clean environment outside it."""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SITE_PACKAGES = sysconfig.get_paths()["purelib"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The bin folder of a clean environment in which the wheel is installed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", str(wheel)], check=True, capture_output=True)
    return folder / "bin"


def run(command, folder) -> subprocess.CompletedProcess:
    # The dependencies come from the environment of the tests. A path in PYTHONPATH is not searched for .pth files,
    # so the editable install of this clone does not come with them.
    environment = {**os.environ, "PYTHONPATH": SITE_PACKAGES}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_the_wheel_is_one_package_with_programs_and_data(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    folders = {name.split("/")[0] for name in names}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {"vaswani_transformer"}
    inside = "vaswani_transformer/training"
    assert {f"{inside}/__main__.py", f"{inside}/recipes/demo.yaml"} <= names
    corpus = {Path(name).name for name in names if name.startswith(f"{inside}/demo_corpus/")}
    assert corpus == {"__init__.py", "README.md", "en-de.tsv.gz"}
    results = {Path(name).suffix for name in names if name.startswith(f"{inside}/results/")}
    assert results == {".csv"}  # model cards quote the tables; logs and pictures are as large as all the rest


@pytest.fixture
def clone(tmp_path) -> Path:
    """A repository with the files that describe the package, and no remote."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(ROOT / name, tmp_path)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    return tmp_path


def metadata_of(folder: Path) -> dict:
    """Return the metadata of a wheel that is built from this folder."""
    command = [sys.executable, "-m", "hatchling", "metadata"]
    return json.loads(subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout)


def add_origin(clone: Path, url: str) -> None:
    subprocess.run(["git", "-C", clone, "remote", "add", "origin", url], check=True)


def links_of(page: str) -> list[str]:
    return re.findall(r"\]\(([^)]*)\)", page)


@pytest.mark.parametrize("url", ["", "../vaswani", "git@internal:a/b.git"])
def test_without_a_public_origin_no_link_leads_into_the_clone(clone, url):
    if url:
        add_origin(clone, url)
    metadata = metadata_of(clone)
    page = metadata["readme"]["text"]
    assert "urls" not in metadata
    assert "# Vaswani Transformer" in page and "make demo" in page and "![" not in page
    links = links_of(page)
    assert links and all(link.startswith("https://") for link in links)


@pytest.mark.parametrize("url", ["https://name:secret@github.com/them/vaswani", "git@github.com:them/vaswani.git"])
def test_the_wheel_links_to_the_origin_of_the_clone(clone, url):
    add_origin(clone, url)
    metadata = metadata_of(clone)
    address = "https://github.com/them/vaswani"
    assert metadata["urls"]["Source"] == address and "secret" not in str(metadata)
    files = [link.removeprefix(f"{address}/blob/HEAD/") for link in links_of(metadata["readme"]["text"])]
    assert "docs/tutorial.md" in files and f"{address}/raw/HEAD/training/results/demo-attention.png" in files
    addresses = [*metadata["urls"].values(), *links_of(metadata["readme"]["text"])]
    inside = [each.partition("/HEAD/")[2].partition("#")[0] for each in addresses if "/HEAD/" in each]
    assert inside and [name for name in inside if not (ROOT / name).exists()] == []


def test_the_installed_script_runs_the_programs_of_the_wheel(installed, tmp_path):
    code = "import vaswani_transformer.training.recipe as r; print(r.__file__); r.load_recipe('demo')"
    result = run([installed / "python", "-c", code], tmp_path)
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.strip()).is_relative_to(installed.parent)
    for words, shown in (["--help"], "translate"), (["train", "--help"], "--config"):
        result = run([installed / "vaswani-transformer", *words], tmp_path)
        assert result.returncode == 0 and shown in result.stdout, result.stderr
