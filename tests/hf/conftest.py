"""Makes the tests of transformers' source distribution importable as the package `tests`.

They are Apache-2.0 and not in the wheel: the first run downloads them into .cache. Without access to pip's package
index, unpack `transformers-<version>.tar.gz` there by hand. The sdist lacks `__init__.py` files and three modules. Two
hold mixins for generation and export; tests/test_search.py, test_generate.py and test_model_compile.py test the same.
The third holds the values that ConfigTester gives to the configuration.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import types
from pathlib import Path
from typing import Any

# All checks, training included. pip is not concerned.
os.environ |= {"HF_HUB_OFFLINE": "1", "RUN_TRAINING_TESTS": "1"}

import torch
import transformers

NAME = f"transformers-{transformers.__version__}"
CACHE = Path(__file__).parents[2] / ".cache"
TESTS = CACHE / NAME / "tests"
# The sdist lacks the fixtures; the tokenizer tests need a few lines of any text.
SAMPLE_TEXT = """The dominant sequence transduction models are based on complex recurrent or convolutional networks.
Wir schlagen eine neue, einfache Netzwerkarchitektur vor, den Transformer.

Les modèles de traduction sont évalués sur « newstest2014 ».
"""
torch.set_num_threads(1)

if not TESTS.exists():
    CACHE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*pip, "--dest", folder, NAME.replace("-", "==")], check=True)
        with tarfile.open(Path(folder) / f"{NAME}.tar.gz") as tar:
            members = [member for member in tar.getmembers() if member.name.startswith(f"{NAME}/tests/")]
            tar.extractall(CACHE, members=members, filter="data")
(TESTS / "fixtures").mkdir(exist_ok=True)
(TESTS / "fixtures" / "sample_text.txt").write_text(SAMPLE_TEXT, encoding="utf-8")


def module(name: str, path: list[str] | None = None, **members: Any) -> None:
    sys.modules[name] = made = types.ModuleType(name)
    made.__dict__.update(members if path is None else members | {"__path__": path})


module("tests", path=[str(TESTS)])
module("tests.generation", path=[])
module("tests.generation.test_utils", GenerationTesterMixin=type("GenerationTesterMixin", (), {}))
module("tests.exporters", path=[])
module("tests.exporters.test_export", ExportTesterMixin=type("ExportTesterMixin", (), {}))
module("tests.utils", path=[])
common = {"return_dict": False, "output_hidden_states": True, "dtype": "float16", "chunk_size_feed_forward": 5}
common |= {"architectures": ["SomeModel"], "id2label": {0: "label"}, "label2id": {"label": 0}}
module("tests.utils.test_configuration_utils", config_common_kwargs=common | {"problem_type": "regression"})

# The mixins import the package beside them as if it were the repository's source tree.
setattr(transformers.utils, "direct_transformers_import", lambda *_, **__: transformers)  # noqa: B010
