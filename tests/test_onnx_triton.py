"""`export onnx --for triton`: config.pbtxt is valid, and the batches of a server give the same translations."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format
from saved_model import ENGLISH, GERMAN, already_exported
from searches import session_of

from conversion.onnx.__main__ import main
from vaswani_transformer.onnx_translator import OnnxTranslator

NEEDED = "runs in .venv-clients, at the end of `make test-slow`"
NUMPY_TYPES = {"TYPE_INT64": np.int64, "TYPE_STRING": object}


@pytest.fixture(scope="module", params=["ids", "text"])
def repository(request: Any, exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("triton") / "models"
    with already_exported(exported / "onnx"):
        main([str(exported / "model"), str(out), "--for", "triton", *(["--text"] if request.param == "text" else [])])
    return out


class Server:
    """Does what Triton does with a repository of one model: checks requests, forms batches and splits the answers."""

    def __init__(self, repository: Path):
        definitions: Any = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason=NEEDED)
        (model,) = repository.iterdir()
        self.config: Any = text_format.Parse((model / "config.pbtxt").read_text(), definitions.ModelConfig())
        assert self.config.backend == "onnxruntime" and self.config.HasField("dynamic_batching")
        versions = [path for path in model.iterdir() if path.is_dir() and path.name.isdecimal()]
        self.session = session_of(str(versions[0] / self.config.default_model_filename))
        # The backend compares these names, without inputs that have defaults.
        assert [given.name for given in self.config.input] == [given.name for given in self.session.get_inputs()]
        assert [found.name for found in self.config.output] == [found.name for found in self.session.get_outputs()]

    def answer(self, requests: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
        """Answer requests of one shape, which the dynamic batcher joins."""
        sizes = [len(next(iter(request.values()))) for request in requests]
        assert sum(sizes) <= self.config.max_batch_size
        batch = {}
        for given in self.config.input:
            arrays = [request[given.name] for request in requests]
            (shape,) = {array.shape[1:] for array in arrays}
            assert len(given.dims) == len(shape) > 0
            assert all(size in (-1, found) for size, found in zip(given.dims, shape, strict=True))
            kind = type(given).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[given.data_type].name
            assert arrays[0].dtype == NUMPY_TYPES[kind]
            joined = np.concatenate(arrays)
            batch[given.name] = joined.reshape(len(joined), *given.reshape.shape) if has_reshape(given) else joined
        answers: list[dict[str, np.ndarray]] = [{} for _ in requests]
        for found, array in zip(self.config.output, self.session.run(None, batch), strict=True):
            assert array.ndim == (1 if has_reshape(found) else 1 + len(found.dims))
            for answer, part in zip(answers, np.split(array, np.cumsum(sizes)[:-1]), strict=True):
                answer[found.name] = part.reshape(len(part), *found.dims) if has_reshape(found) else part
        return answers


def has_reshape(tensor: Any) -> bool:
    return tensor.HasField("reshape")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_batches_of_the_server_give_the_same_translations(repository: Path, exported: Path) -> None:
    server, texts = Server(repository), [*ENGLISH, *GERMAN]
    reference = OnnxTranslator.from_pretrained(exported / "onnx")
    expected = [row[0] for row in reference.find_hypotheses(texts, split_sentences=False)]
    if server.config.input[0].name == "text":
        answers = server.answer([{"text": np.array([[text]], object)} for text in texts])
        translations = [answer["translations"].item() for answer in answers]
        scores = [answer["scores"].item() for answer in answers]
    else:
        ids = [reference.tokenizer.encode(text).ids for text in texts]
        longest = max(map(len, ids))
        rows = np.array([row + [reference.pad] * (longest - len(row)) for row in ids])
        mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in ids])
        pairs = zip(rows[:, None], mask[:, None], strict=True)
        answers = server.answer([{"input_ids": row, "attention_mask": flags} for row, flags in pairs])
        translations = [reference.target_tokenizer.decode(answer["sequences"][0, 0]) for answer in answers]
        scores = [answer["scores"].item() for answer in answers]
    assert translations == [hypothesis.text for hypothesis in expected]
    assert scores == pytest.approx([hypothesis.score for hypothesis in expected], abs=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_repository_has_one_model_of_one_version(repository: Path) -> None:
    """The server takes every folder for a model, and every number in it for a version."""
    assert [path.name for path in repository.iterdir()] == ["translate"]
    model = repository / "translate"
    assert [path.name for path in (model / "1").iterdir()] == ["model.onnx"]
    files = {path.name for path in model.iterdir()}
    assert {"1", "config.pbtxt", "config.json", "tokenizer.json"} <= files and "README.md" not in files


@pytest.mark.parametrize("options", [["--no-defaults"], ["--layout", "split"]])
def test_inputs_without_defaults_are_refused(tmp_path: Path, options: list[str], refused: Any) -> None:
    error = refused(main, [tmp_path, tmp_path / "out", "--for", "triton", *options])
    assert f"{' '.join(options)} cannot be combined with --for triton" in error
