"""Fetch the tests of the installed transformers from its source distribution: they are not in the wheel.

    python tests/hf/fetch.py

puts them into .cache/transformers-<version>/tests, once. They are Apache-2.0 and not part of this repository. Without
access to pip's package index, unpack `transformers-<version>.tar.gz` into .cache by hand.
"""

import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path

VERSION = version("transformers")
CACHE = Path(__file__).parents[2] / ".cache"
TESTS = CACHE / f"transformers-{VERSION}" / "tests"

# The sdist lacks the fixtures; the tokenizer tests need a few lines of any text.
SAMPLE_TEXT = """The dominant sequence transduction models are based on complex recurrent or convolutional networks.
Wir schlagen eine neue, einfache Netzwerkarchitektur vor, den Transformer.

Les modèles de traduction sont évalués sur « newstest2014 ».
"""


def fetch() -> None:
    if (TESTS / "fixtures" / "sample_text.txt").exists():
        return
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        requirement = f"transformers=={VERSION}"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*pip, "--dest", folder, requirement], check=True)
        (archive,) = Path(folder).glob("transformers-*.tar.gz")
        with tarfile.open(archive) as tar:
            tests = [member for member in tar.getmembers() if member.name.startswith(f"{archive.stem[:-4]}/tests/")]
            tar.extractall(CACHE, members=tests, filter="data")
    fixtures = TESTS / "fixtures"
    fixtures.mkdir(exist_ok=True)
    (fixtures / "sample_text.txt").write_text(SAMPLE_TEXT, encoding="utf-8")


if __name__ == "__main__":
    fetch()
    print(f"transformers' tests: {TESTS.relative_to(CACHE.parent)}")
