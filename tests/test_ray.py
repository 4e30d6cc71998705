"""`examples/ray` on a cluster of two nodes, of which one is killed: translate.py loses no line, serve.py answers on."""

import contextlib
import gzip
import importlib
import json
import os
import random
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import wait_until, write_lines
from saved_model import ENGLISH, saved_model

from vaswani_transformer import Translator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200), pytest.mark.filterwarnings("ignore")]
ray: Any = pytest.importorskip("ray", reason="runs in .venv-ray, at the end of `make test-slow`")

ROOT = Path(__file__).parents[1]
LINES = 20_000
PART = 250
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A model, and short texts with their translations."""
    folder = saved_model(tmp_path_factory.mktemp("ray") / "model")
    choose, words = random.Random(0), " ".join(ENGLISH).split()
    texts = sorted({" ".join(choose.choices(words, k=choose.randint(0, 3))) for _ in range(300)})
    translations = Translator.from_pretrained(folder, device="cpu").translate(texts)
    assert len(set(translations)) > 20
    return folder, dict(zip(texts, translations, strict=True))


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A cluster of one node with one CPU core; add_node() adds others."""
    utils: Any = importlib.import_module("ray.cluster_utils")
    cluster = utils.Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    yield cluster
    cluster.shutdown()


@pytest.fixture
def start(cluster: Any) -> Iterator[Callable[..., subprocess.Popen]]:
    running: list[subprocess.Popen] = []

    def run(*words: object) -> subprocess.Popen:
        environment = ENVIRONMENT | {"RAY_ADDRESS": cluster.address}
        running.append(subprocess.Popen([sys.executable, *map(str, words)], env=environment, cwd=ROOT))
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.wait()


def finished_parts(output: Path) -> list[Path]:
    return sorted(output.with_name(f"{output.name}.parts").glob("part-*"))


def test_every_line_comes_once_and_in_order_when_a_node_is_killed(
    cluster: Any, start: Any, work: Any, tmp_path: Path
) -> None:
    model, translations = work
    lines = random.Random(1).choices([*translations], k=LINES)
    source, output = write_lines(tmp_path / "text", lines), tmp_path / "out"
    node = cluster.add_node(num_cpus=1)
    words = ["examples/ray/translate.py", model, "--input", source, "--output", output, "--chunk-lines", PART]
    process = start(*words)
    wait_until(lambda: len(finished_parts(output)) > 5 or process.poll() is not None)
    assert process.poll() is None
    cluster.remove_node(node, allow_graceful=False)
    assert len(finished_parts(output)) < LINES // PART
    assert process.wait(timeout=900) == 0
    assert output.read_text(encoding="utf-8").splitlines() == [translations[line] for line in lines]


def test_a_second_run_translates_only_the_missing_parts(cluster: Any, start: Any, work: Any, tmp_path: Path) -> None:
    """The source is a Parquet file of several row groups, with nulls; a mark in a finished part shows that it stays."""
    import pyarrow
    import pyarrow.parquet

    model, translations = work
    lines = random.Random(2).choices([*translations], k=5000)
    source, output = tmp_path / "text.parquet", tmp_path / "out"
    assert "" in lines
    pyarrow.parquet.write_table(pyarrow.table({"en": [line or None for line in lines]}), source, row_group_size=700)
    words = ["examples/ray/translate.py", model, "--input", source, "--output", output, "--chunk-lines", PART]
    words += ["--column", "en"]
    process = start(*words)
    wait_until(lambda: len(finished_parts(output)) > 2 or process.poll() is not None)
    assert process.poll() is None
    process.kill()
    process.wait()
    first = finished_parts(output)[0]
    first.write_bytes(gzip.compress(b"kept\n" * PART))
    assert start(*words).wait(timeout=900) == 0
    assert output.read_text(encoding="utf-8").splitlines() == ["kept"] * PART + [translations[x] for x in lines[PART:]]


def test_errors_are_one_line(cluster: Any, work: Any, tmp_path: Path) -> None:
    """Covers an error in a task and one in the program itself."""
    import pyarrow
    import pyarrow.parquet

    text, table, empty = tmp_path / "text", tmp_path / "text.parquet", tmp_path / "model"
    write_lines(text, ["The house is small."])
    pyarrow.parquet.write_table(pyarrow.table({"en": ["The house is small."]}), table)
    empty.mkdir()
    for model, source, message in (
        (empty, text, f"error: {empty} has no config.json; give the folder of a model\n"),
        (work[0], table, f"error: {table} has no column text; --column is one of en\n"),
    ):
        words = [sys.executable, "examples/ray/translate.py", model, "--input", source, "--output", tmp_path / "out"]
        environment = ENVIRONMENT | {"RAY_ADDRESS": cluster.address}
        done = subprocess.run([*map(str, words)], env=environment, cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (2, message)


def test_the_service_answers_on_when_a_node_is_killed(cluster: Any, start: Any, work: Any) -> None:
    model, _ = work
    expected = Translator.from_pretrained(model, device="cpu").translate(ENGLISH)
    node = cluster.add_node(num_cpus=1)
    starts: set[str] = set()

    def ask(text: str) -> Any:
        fields = json.dumps({"q": text, "source": "en", "target": "de"}).encode()
        request = urllib.request.Request(
            "http://127.0.0.1:8000/translate", fields, {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["translatedText"]
        except (urllib.error.URLError, OSError) as error:
            return error

    def reach_both_replicas() -> bool:
        with contextlib.suppress(OSError), urllib.request.urlopen("http://127.0.0.1:8000/metrics") as answer:
            starts.update(re.findall(r"^process_start_time_seconds (\S+)", answer.read().decode(), re.MULTILINE))
        return len(starts) == 2

    def answers_all() -> bool:
        return [ask(text) for text in ENGLISH] == expected

    start(
        "-m", "ray.serve.scripts", "run", "examples.ray.serve:build", f"model={model}",
        "source_language=en", "target_language=de", "min_replicas=2", "max_replicas=2",
    )  # fmt: skip
    wait_until(reach_both_replicas)
    assert answers_all()
    cluster.remove_node(node, allow_graceful=False)
    wait_until(lambda: all(answers_all() for _ in range(5)))
