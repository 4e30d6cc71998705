"""Makes the tests of transformers' source distribution importable as the package `tests`.

The sdist lacks `__init__.py` files and three modules, which this file replaces. Two of them hold mixins for generation
and export; tests/test_search.py, test_generate.py and test_model_compile.py test the same. The third holds the values
that ConfigTester gives to the configuration.
"""

import os
import sys
import types
from typing import Any

# All checks, training included, and nothing from the network.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["RUN_TRAINING_TESTS"] = "1"

import torch
import transformers
from fetch import TESTS

torch.set_num_threads(1)
if not TESTS.exists():
    raise FileNotFoundError(f"{TESTS} is missing: run `python tests/hf/fetch.py`")


def module(name: str, path: list[str] | None = None, **members: Any) -> None:
    made = types.ModuleType(name)
    if path is not None:
        made.__path__ = path
    for member, value in members.items():
        setattr(made, member, value)
    sys.modules[name] = made


module("tests", path=[str(TESTS)])
module("tests.generation", path=[])
module("tests.generation.test_utils", GenerationTesterMixin=type("GenerationTesterMixin", (), {}))
module("tests.exporters", path=[])
module("tests.exporters.test_export", ExportTesterMixin=type("ExportTesterMixin", (), {}))
module("tests.utils", path=[])
module(
    "tests.utils.test_configuration_utils",
    config_common_kwargs={
        "return_dict": False,
        "output_hidden_states": True,
        "dtype": "float16",
        "chunk_size_feed_forward": 5,
        "architectures": ["SomeModel"],
        "id2label": {0: "label"},
        "label2id": {"label": 0},
        "problem_type": "regression",
    },
)

# The mixins import the package beside them as if it were the repository's source tree.
setattr(transformers.utils, "direct_transformers_import", lambda *_, **__: transformers)  # noqa: B010
