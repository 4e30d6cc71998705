"""`export onnx --for triton`: Triton's server loads the repository, and its batches give the same translations."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from saved_model import ENGLISH, GERMAN, already_exported

from conversion.onnx.__main__ import main
from vaswani_transformer.onnx_translator import OnnxTranslator

HERE = Path(__file__).parent
# The server and a backend that runs in its own Python, because it needs numpy 1.
ENVIRONMENT = HERE.parent / ".venv-triton"


@pytest.fixture(scope="module", params=["ids", "text"])
def repository(request: Any, exported: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("triton") / "models"
    with already_exported(exported / "onnx"):
        main([str(exported / "model"), str(out), "--for", "triton", *(["--text"] if request.param == "text" else [])])
    return out


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of the model on a server."""
    packages = next(ENVIRONMENT.glob("lib/python*/site-packages/pytriton/tritonserver"), None)
    if packages is None:
        pytest.skip("runs with .venv-triton, which `make test-slow` makes")
    home = tmp_path_factory.mktemp("server")
    backends = home / "backends"
    stub = f"{sys.version_info.major}.{sys.version_info.minor}/triton_python_backend_stub"
    shutil.copytree(packages / "backends" / "python", backends / "python")
    shutil.copy(packages / "python_backend_stubs" / stub, backends / "python")
    shutil.copytree(HERE / "triton_backend", backends / "onnxruntime")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [packages / "bin" / "tritonserver", "--model-repository", repository, "--backend-directory", backends]
    command += ["--http-address", "127.0.0.1", "--http-port", port, "--allow-grpc", "false", "--allow-metrics", "false"]
    site = packages.parents[1]
    env = {"PATH": f"{ENVIRONMENT / 'bin'}:/usr/bin:/bin", "PYTHONPATH": str(site)}
    env["LD_LIBRARY_PATH"] = str(site / "nvidia_pytriton.libs")
    with (home / "log").open("w") as log:
        running = subprocess.Popen([*map(str, command)], env=env, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}/v2/models/translate"
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{address}/ready").close()
                break
            except OSError:
                assert running.poll() is None, (home / "log").read_text()[-3000:]
                time.sleep(0.25)
        else:
            raise AssertionError("not ready after a minute: " + (home / "log").read_text()[-3000:])
        yield address
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0, (home / "log").read_text()[-3000:]
    finally:
        running.kill()


def ask(url: str, inputs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Send a request, with inputs if any, and return the answer's JSON."""
    data = json.dumps({"inputs": inputs}).encode() if inputs else None
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=60) as answer:
        return json.load(answer)


def infer(server: str, inputs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return each output's values by its name."""
    return {output["name"]: output["data"] for output in ask(f"{server}/infer", inputs)["outputs"]}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_batches_of_the_server_give_the_same_translations(server: str, exported: Path) -> None:
    texts = [*ENGLISH, *GERMAN] * 8
    reference = OnnxTranslator.from_pretrained(exported / "onnx")
    expected = [row[0] for row in reference.find_hypotheses(texts, split_sentences=False)]
    with_text = ask(f"{server}/config")["input"][0]["name"] == "text"
    if with_text:
        requests = [[{"name": "text", "datatype": "BYTES", "shape": [1, 1], "data": [text]}] for text in texts]
    else:
        ids = [reference.tokenizer.encode(text).ids for text in texts]
        longest = max(map(len, ids))
        requests = [
            [
                {"name": name, "datatype": "INT64", "shape": [1, longest], "data": row + [fill] * (longest - len(row))}
                for name, row, fill in (("input_ids", row, reference.pad), ("attention_mask", [1] * len(row), 0))
            ]
            for row in ids
        ]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda inputs: infer(server, inputs), requests))
    if with_text:
        translations = [answer["translations"][0] for answer in answers]
        several = {"name": "text", "datatype": "BYTES", "shape": [len(ENGLISH), 1], "data": ENGLISH}
        assert infer(server, [several])["translations"] == translations[: len(ENGLISH)]
    else:
        translations = [reference.target_tokenizer.decode(answer["sequences"]) for answer in answers]
    assert translations == [hypothesis.text for hypothesis in expected]
    scores = [answer["scores"][0] for answer in answers]
    assert scores == pytest.approx([hypothesis.score for hypothesis in expected], abs=1e-5)
    (counts,) = ask(f"{server}/stats")["model_stats"]
    assert counts["inference_count"] >= len(texts) > counts["execution_count"], "the server joined requests"


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
