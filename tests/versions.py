"""Run the tests that depend on transformers, tokenizers, Accelerate, ONNX or ONNX Runtime with other versions of these.

    make test-versions                      all sets below
    make test-versions VERSIONS=newest      one set, as .ci/run does
    .venv-versions/newest/bin/python -m pytest -k static tests/test_generate.py     some tests with the same versions

A set has an environment of its own, .venv-versions/NAME, which sees all of .venv and shadows the packages that differ,
so that torch is not installed twice. Exit code 1 if a set fails, 2 for an unknown set; a registry that cannot be
reached is only reported.
"""

import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("transformers", "tokenizers", "accelerate", "onnx", "onnxruntime", "onnxscript")

# What is called on other packages, by file. The remote code is the part that runs with older versions of transformers
# than the package.
REMOTE_CODE = ["tests/test_transformers_hooks.py", "tests/test_generate.py", "tests/test_search.py"]
REMOTE_CODE += ["tests/test_model_inputs.py", "tests/test_hub_loads.py"]
ALL = [*REMOTE_CODE, "tests/test_model_attention.py", "tests/test_model_files.py", "tests/test_model_weights.py"]
ALL += ["tests/test_configuration.py", "tests/test_tokenizer.py", "tests/test_translator.py"]
ALL += ["tests/test_hub_pipeline.py", "tests/test_seq2seq_trainer.py", "tests/test_training_resume.py"]
ALL += ["tests/test_onnx.py", "tests/test_onnx_split.py", "tests/test_onnx_translator.py"]


def allowed() -> dict[str, str]:
    """Return the range of each package in pyproject.toml, such as {"transformers": ">=5.17,<6"}."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *extras["train"], *extras["onnx"]]
    matches = (re.fullmatch(r"([\w-]+)(.*)", requirement) for requirement in requirements)
    return {match[1]: match[2] for match in matches if match and match[1] in PACKAGES}


def lowest(requirement: str) -> str:
    """Return the lower end of a range: ">=5.17,<6" -> "5.17"."""
    return requirement.removeprefix(">=").partition(",")[0]


# name -> (requirements, tests). A version that is added to the range is one line here.
SETS: dict[str, tuple[list[str], list[str]]] = {
    "lowest": ([f"{name}=={lowest(requirement)}" for name, requirement in allowed().items()], ALL),
    "remote-code": (["transformers==5.4.0"], REMOTE_CODE),
    "newest": ([name + requirement for name, requirement in allowed().items()], ALL),
}


def environment(name: str) -> Path:
    """Return the Python of a set's environment, which is made if it is missing."""
    folder = ROOT / ".venv-versions" / name
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        own = subprocess.check_output(
            [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        )
        shared = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
        Path(own.strip(), "all_of_venv.pth").write_text(shared, encoding="utf-8")
    return python


def registry_answers(python: Path) -> bool:
    command = [python, "-m", "pip", "index", "versions", "transformers"]
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def run(name: str) -> bool:
    """Install and test a set; return whether it passes."""
    requirements, tests = SETS[name]
    python = environment(name)
    if not registry_answers(python):  # `pip install --upgrade` would succeed without it
        print(f"{name}: not tested, because the package registry cannot be reached")
        return True
    upgrade = ["--upgrade", "--upgrade-strategy", "only-if-needed"] if name == "newest" else []
    install = [python, "-m", "pip", "install", "--quiet", "--no-warn-conflicts", *upgrade, *requirements]
    if subprocess.run(install).returncode:
        return False
    query = f"from importlib.metadata import version; print(*map(version, {PACKAGES!r}))"
    versions = subprocess.check_output([python, "-c", query], text=True).split()
    differing = [
        f"{package} {found}" for package, found in zip(PACKAGES, versions, strict=True) if found != version(package)
    ]
    if not differing:
        print(f"{name}: the versions of constraints.txt, which `make test` tests")
        return True
    print(f"{name}: {', '.join(differing)}", flush=True)
    return subprocess.run([python, "-m", "pytest", *tests], cwd=ROOT).returncode == 0


if __name__ == "__main__":
    names = sys.argv[1:] or list(SETS)
    if unknown := set(names) - SETS.keys():
        print(f"error: there is no set {min(unknown)!r}; the sets are {', '.join(SETS)}", file=sys.stderr)
        sys.exit(2)
    failed = [name for name in names if not run(name)]
    sys.exit(f"failed with other versions: {', '.join(failed)}" if failed else 0)
