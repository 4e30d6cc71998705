"""The single graph translates as `generate()` does for every configuration; other graphs are not written."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from disks import flip_a_bit
from packaging.version import Version
from saved_model import ENGLISH, GERMAN, already_exported, trained_model, trained_tokenizer
from searches import (
    EXPORTED,
    OFFSET,
    SWITCHES,
    batch_for,
    by_generate,
    by_graph,
    by_search,
    check_every_weight_once,
    check_same,
    matrices_of,
    session_of,
)
from tiny_models import ModelMaker, padded, random_sentences
from tokenizers import AddedToken, Tokenizer

from conversion.onnx import export as export_module
from conversion.onnx.__main__ import main
from conversion.onnx.export import export_single_folder
from conversion.onnx.readme import write_readme
from conversion.onnx.rewrite import walk_graphs
from conversion.onnx.single_graph import export_single_graph
from conversion.onnx.verify import verify
from conversion.onnx.verify_text import time_sentences, tokenize_sentences
from vaswani_transformer import SearchSettings
from vaswani_transformer.errors import BrokenFileError, InputError, ProofError
from vaswani_transformer.loading import load_model, load_tokenizer
from vaswani_transformer.onnx_translator import OnnxTranslator
from vaswani_transformer.search_vaswani_transformer import REPETITION
from vaswani_transformer.translator import NotFiniteError

pytestmark = pytest.mark.timeout(1200)  # an export takes 20 seconds of an idle processor, and minutes of a busy one


def compared_with_generate(model: Any, session: Any, seed: int) -> int:
    """Check that the graph and `generate()` agree; return the number of hypotheses."""
    batch, count = batch_for(model, seed), 0
    for beams, alpha in ((1, 0.6), (2, 2.0), (3, 0.0), (4, 0.6), (8, 1.0)):
        settings = {"num_return_sequences": beams, "extra_length": OFFSET, "early_stopping": "never"}
        every = vars(SearchSettings(beams, alpha, **settings))  # a graph without defaults requires every setting
        ours = by_graph(session, batch, **every)
        count += check_same(ours, by_generate(model, batch, beams, alpha))
    return count


def test_the_graph_gives_every_hypothesis_of_generate(two_vocabularies: Path) -> None:
    """The model ends sentences and switches beams; batches are padded, with 1 to 8 beams."""
    model = load_model(two_vocabularies / "model")
    session = session_of(str(two_vocabularies / "onnx" / "model.onnx"))
    assert sum(compared_with_generate(model, session, seed) for seed in range(3)) >= 200


@pytest.mark.slow
@pytest.mark.parametrize("switches", EXPORTED)
def test_the_graph_gives_every_hypothesis_for_every_switch(lively_model: ModelMaker, switches: str) -> None:
    model = lively_model(1, **SWITCHES[switches])
    model.generation_config.extra_length = OFFSET
    session = session_of(export_single_graph(model))
    assert sum(compared_with_generate(model, session, seed) for seed in range(2)) >= 100


@pytest.fixture(scope="module")
def model(exported: Path) -> Any:
    """The exported model, which tests must not modify."""
    return load_model(exported / "model")


@pytest.fixture(scope="module")
def session(exported: Path) -> Any:
    return session_of(str(exported / "onnx" / "model.onnx"))


@pytest.fixture
def graph(exported: Path) -> onnx.ModelProto:
    return onnx.load(exported / "onnx" / "model.onnx")


def test_an_exported_folder_is_self_contained(exported: Path) -> None:
    beside = {"config.json", "generation_config.json", "export.json", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in (exported / "onnx").iterdir()} == {"model.onnx", "README.md"} | beside
    config = "generation_config.json"
    assert (exported / "onnx" / config).read_bytes() == (exported / "model" / config).read_bytes()


def test_the_graph_has_standard_operators_and_documented_inputs(graph: onnx.ModelProto) -> None:
    onnx.checker.check_model(graph, full_check=True)
    assert [(opset.domain, opset.version) for opset in graph.opset_import] == [("", 20)]
    assert not graph.functions
    settings = [name for name in vars(SearchSettings()) if name not in REPETITION]
    names = ["input_ids", "attention_mask", *settings]
    assert [value.name for value in graph.graph.input] == names
    assert {tensor.name for tensor in graph.graph.initializer} & set(names) == set(settings)
    assert [value.name for value in graph.graph.output] == ["sequences", "scores"]
    file = graph.SerializeToString()
    assert str(Path(__file__).parents[1]).encode() not in file and b"site-packages" not in file, "no local paths"


@pytest.mark.slow
@pytest.mark.skipif(Version(onnxruntime.__version__) < Version("1.31"), reason="it ignores the attributes of Shape")
def test_onnxruntime_infers_symbolic_shapes(two_vocabularies: Path, tmp_path: Path) -> None:
    """The graph with these shapes translates as before. Without defaults: the tool takes them for constants.

    The tool merges sizes in the order of a set of names: with one of 18 seeds of Python's hash it merges sizes that
    differ, and the graph fails.
    """
    words = [sys.executable, "-m", "onnxruntime.tools.symbolic_shape_infer", "--auto_merge"]
    words += ["--input", str(two_vocabularies / "onnx" / "model.onnx"), "--output", str(tmp_path / "inferred.onnx")]
    subprocess.run(words, env=os.environ | {"PYTHONHASHSEED": "0"}, check=True, capture_output=True, timeout=300)
    model = load_model(two_vocabularies / "model")
    assert compared_with_generate(model, session_of(str(tmp_path / "inferred.onnx")), 0) >= 60


def test_a_graph_with_inferred_shapes_keeps_its_settings(model: Any, graph: onnx.ModelProto, session: Any) -> None:
    """Tools that infer shapes take the default of an input for a constant."""
    inferred, batch = session_of(onnx.shape_inference.infer_shapes(graph, data_prop=True)), batch_for(model, 0)
    for beams, alpha, wanted in ((1, 0.6, 1), (2, 2.0, 2), (4, 0.6, 1), (8, 1.0, 3)):
        settings = {"num_beams": beams, "length_penalty": alpha, "num_return_sequences": wanted}
        expected, found = (by_graph(one, batch, **settings) for one in (session, inferred))
        assert found.tokens == expected.tokens


def test_every_weight_is_in_the_file_once(model: Any, graph: onnx.ModelProto) -> None:
    check_every_weight_once(graph.graph, model)


def test_defaults_are_those_of_the_generation_config(model: Any, session: Any) -> None:
    """Given only ids and mask, the search uses beam 4, alpha 0.6, |source| + 50 and the provable stopping rule."""
    batch = batch_for(model, 3, count=4)
    expected = by_search(model, batch, beams=4, alpha=0.6, extra_length=50, num_return_sequences=1)
    assert check_same(by_graph(session, batch), expected)


def test_every_setting_is_an_input(model: Any, session: Any) -> None:
    batch = batch_for(model, 0, count=12, longest=12)
    limits = [{"extra_length": 2}, {"max_new_tokens": 30}, {"extra_length": 9, "min_new_tokens": 11}]
    for rule, wanted, limit in zip(
        ("never", True, False, 2), (1, 3, 4, 2), [{"extra_length": 50}, *limits], strict=True
    ):
        settings = {"num_return_sequences": wanted, "early_stopping": rule, **limit}
        expected = by_search(model, batch, beams=4, alpha=0.6, **settings)
        assert check_same(by_graph(session, batch, num_beams=4, **settings), expected)


def test_length_limits_are_inputs(session: Any) -> None:
    batch = padded(random_sentences(3, 4, 300, 9))
    short = by_graph(session, batch, max_new_tokens=3).tokens
    assert max(len(row) for sentence in short for row in sentence) == 3
    long = by_graph(session, batch, min_new_tokens=9, max_new_tokens=12).tokens
    assert all(10 <= len(sentence[0]) <= 12 for sentence in long)


def output_of(code: str, folder: Path) -> tuple[str, str]:
    """Run Python code in a folder; return its stdout and stderr."""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_readme_code_translates_without_torch(exported: Path) -> None:
    readme = (exported / "onnx" / "README.md").read_text(encoding="utf-8")
    one, batch, changed = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len(one.splitlines()) == 7 and '("CUDAExecutionProvider", {"use_tf32": 0})' in readme
    assert "Its precision is fp32." in readme and "It translates from" not in readme
    forbidden = "import sys\nfor name in ('torch', 'transformers', 'onnx'):\n    sys.modules[name] = None\n"
    typed = "print(tokenizer.encode('a </s> b').ids)\n"
    ids = trained_tokenizer()("a </s> b")["input_ids"]
    translations = OnnxTranslator.from_pretrained(exported / "onnx").translate(["The house is small.", "Hello!"])
    expected = f"{translations[0]}\n{ids}\n{translations}\n"
    code = forbidden + one + typed + batch + changed
    assert output_of(code, exported / "onnx") == (expected, "")  # nothing is logged


def test_the_readme_quotes_only_plain_names(folder: Path) -> None:
    """The recipe and the tokens may be a stranger's, and its readers run its code."""
    options: dict[str, Any] = {"precision": "fp32", "required": {}, "attention": False, "repetition": False}
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ('>>"+exit()+"<<', ">>deu<<", ">>nld<<")])
    tokenizer.save(str(folder / "tokenizer.json"))
    for language, said in (("en", "from `en` to `de`"), ("`![i](https://evil.example/p.png)", None), (["en"], None)):
        recipe = {"source_language": language, "target_language": "de"}
        (folder / "run.json").write_text(json.dumps({"recipe": recipe}))
        readme = write_readme(trained_model(), folder, folder=folder, **options)
        assert "exit" not in readme and "evil" not in readme and "`>>deu<<`" in readme
        assert said in readme if said else "It translates from" not in readme
    (folder / "run.json").unlink()
    (folder / "conversion.json").write_text('{"options": {"source_lang": "eng_Latn", "target_lang": "deu_Latn"}}')
    readme = write_readme(trained_model(), folder, folder=folder, **options)
    assert "It translates from `eng_Latn` to `deu_Latn`." in readme


def test_the_readme_code_sets_required_inputs(two_vocabularies: Path) -> None:
    folder = two_vocabularies / "onnx"
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert "(here 6); the model has positions for 119 |" in readme and "scalar, optional" not in readme
    (expected,) = OnnxTranslator.from_pretrained(folder, device="cpu").translate(["The house is small."])
    code = readme.split("```python\n")[1].split("```")[0]
    assert expected and output_of(code, folder) == (f"{expected}\n", "")


def test_the_code_of_the_documentation_translates_without_warnings(exported: Path, tmp_path: Path) -> None:
    """ONNX Runtime warns about every input with a default, whatever the graph does with it."""
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "onnx-cpu.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (code,) = (block for block in blocks if '"exported/model.onnx"' in block)
    (tmp_path / "exported").symlink_to(exported / "onnx")
    (expected,) = OnnxTranslator.from_pretrained(exported / "onnx").translate(["Anna did not buy a banana."])
    assert output_of(code, tmp_path) == (f"{expected}\n", "")


def test_a_wrong_export_leaves_no_files(exported: Path, tmp_path: Path) -> None:
    def reverse_weights(graph: onnx.GraphProto) -> None:
        for tensor in matrices_of(graph):
            tensor.raw_data = onnx.numpy_helper.to_array(tensor)[::-1].tobytes()

    wrong = pytest.raises(ProofError, match="not translate as torch does")
    with already_exported(exported / "onnx", reverse_weights), wrong:
        export_single_folder(exported / "model", tmp_path / "new")
    assert not list(tmp_path.iterdir())


def test_large_graphs_use_external_weights(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Limits files to 100 kB."""
    monkeypatch.setattr(export_module, "LARGEST_FILE", 100_000)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx.data").write_text("another model's")
    trained = shutil.copytree(exported / "model", tmp_path / "trained")
    (trained / "run.json").write_text('{"recipe": {"source_language": "en", "target_language": "de"}}')
    with already_exported(exported / "onnx"):
        main([str(trained), "out", "--text"])
    assert "out/model.onnx.data: " in capsys.readouterr().out
    sizes = {path.name: path.stat().st_size for path in (tmp_path / "out").glob("*.onnx*")}
    assert len(sizes) == 4 and sizes["model.onnx"] < sizes["model.onnx.data"] <= sizes["model_text.onnx.data"]
    assert (tmp_path / "model.onnx.data").read_text() == "another model's"
    page = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "It translates from `en` to `de`." in page
    assert "in `model.onnx.data`, which" in page and "only `model_text.onnx.data` beside it" in page
    found, expected = (OnnxTranslator.from_pretrained(path, device="cpu") for path in ("out", exported / "onnx"))
    assert found.translate(ENGLISH) == expected.translate(ENGLISH)
    flip_a_bit(Path("out/model.onnx.data"))
    with pytest.raises(BrokenFileError, match=r"out/model.onnx.data is not the file that was exported with out/export"):
        OnnxTranslator.from_pretrained("out", device="cpu")


def test_the_check_detects_a_lost_ancestry(model: Any, graph: onnx.ModelProto, tmp_path: Path) -> None:
    """Beams here attend to the past of another beam, a likely mistake with a shared cache."""
    steps = next(walk_graphs(graph.graph))
    made_by = {name: node for node in steps.node for name in node.output}
    table = made_by[made_by["after.bias"].input[0]]
    pairs = made_by[table.input[1]]
    assert (table.op_type, pairs.op_type) == ("GatherND", "Concat")
    place = list(steps.node).index(pairs)
    steps.node.insert(place, onnx.helper.make_node("Sub", [pairs.input[1]] * 2, ["first beam"]))
    pairs.input[1] = "first beam"  # all hypotheses now use its past
    onnx.save(graph, tmp_path / "model.onnx")
    with pytest.raises(ProofError, match="translations differ"):
        verify(tmp_path / "model.onnx", model)


@pytest.mark.parametrize(
    ("precision", "both", "said"),
    [
        ("fp32", False, "translations for different sentences"),
        ("fp16", False, "translations for different sentences"),
        ("fp32", True, "neither torch nor the graph finds a translation"),
    ],
)
def test_the_check_detects_weights_that_are_nan(
    exported: Path, graph: onnx.ModelProto, tmp_path: Path, precision: str, both: bool, said: str
) -> None:
    for tensor in (tensor for body in walk_graphs(graph.graph) for tensor in body.initializer):
        if len(tensor.dims) == 2 and tensor.data_type == onnx.TensorProto.FLOAT:
            nan = np.full(tensor.dims, np.nan, np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(nan, tensor.name))
    onnx.save(graph, tmp_path / "model.onnx")
    model = load_model(exported / "model")
    if both:
        torch.nn.init.constant_(model.lm_head.weight, torch.nan)
    with pytest.raises(ProofError, match=said):
        verify(tmp_path / "model.onnx", model, precision)


def test_a_text_without_finite_scores_is_named(exported: Path, graph: onnx.ModelProto, tmp_path: Path) -> None:
    for body in walk_graphs(graph.graph):
        for tensor in body.initializer:
            if tensor.dims == [300, 32]:
                table = onnx.numpy_helper.to_array(tensor).copy()
                table[trained_tokenizer().convert_tokens_to_ids("z")] = 3e38
                tensor.CopyFrom(onnx.numpy_helper.from_array(table, tensor.name))
    shutil.copytree(exported / "onnx", tmp_path / "onnx", ignore=shutil.ignore_patterns("export.json"))
    onnx.save(graph, tmp_path / "onnx" / "model.onnx")
    translator = OnnxTranslator.from_pretrained(tmp_path / "onnx", device="cpu")
    with pytest.raises(NotFiniteError, match="^text 2: the model's log-probabilities are NaN or infinite"):
        translator.translate(["a b", "c. z"])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("nowhere {output}", "nowhere: no such folder"),
        ("{model} {model}", "not empty"),
        ("{model} {model}/config.json/folder", "config.json is not a folder"),
        ("{model} {output} --sentences nowhere.en", "nowhere.en: no such file"),
        ("{model} {output} --sentences /dev/null", "has no sentence: every line is blank"),
        ("{model} {output} --sentences /dev/null --layout split", "--sentences needs .*: --layout single"),
        ("{model} {output} --text --layout split", "--text needs .*: --layout single"),
        ("{model} {output} --repetition --layout split", "--repetition needs .*: --layout single"),
        ("{model} {output} --text --for transformers.js", "--text needs .*: --layout single"),
        ("{model} {output} --no-defaults --layout split", "--no-defaults needs .*: --layout single"),
        ("{model} {output} --text --attention", "--attention cannot be combined with --text; export twice"),
        ("{model} {output} --attention --for transformers.js", "cannot be combined with --for transformers.js"),
        ("{model} {output} --attention --for optimum", "cannot be combined with --for optimum"),
        ("{model} {output} --precision int3", ".*--precision.*int3.* is not one of "),
        ("{model} {output} --layout single --for optimum", "--layout single cannot be combined with --for optimum"),
        ("{model} {output} --layout flat", ".*--layout.*flat.* is not one of "),
        ("{model} {output} --for deno", ".*--for.*deno.* is not "),
    ],
)
def test_wrong_arguments_are_named(exported: Path, tmp_path: Path, refused, arguments: str, said: str) -> None:
    lines = refused(main, arguments.format(model=exported / "model", output=tmp_path / "out").split()).splitlines()
    (error,) = (line for line in lines if not line.startswith("Usage: "))
    assert re.search(said, error)
    assert not list(tmp_path.iterdir())


def test_all_three_backends_agree_and_are_timed(exported: Path) -> None:
    model, tokenizer = load_model(exported / "model"), load_tokenizer(exported / "model")
    sentences = tokenize_sentences([*ENGLISH, " ", "", *GERMAN, "a"], tokenizer, model, "some.en")
    assert [len(ids) for ids in sentences] == sorted(len(ids) for ids in sentences) and len(sentences) == 9
    report = time_sentences(exported / "onnx" / "model.onnx", model, sentences)
    assert re.fullmatch(r"9 sentences, .* times as fast as generate\(\); 9 of 9 translations are the same", report)
    with torch.no_grad():
        model.lm_head.weight[5] += 1
    with pytest.raises(ProofError, match="sentences: .* translations differ|sentences: scores differ"):
        time_sentences(exported / "onnx" / "model.onnx", model, sentences)


def test_a_sentence_beyond_the_learned_positions_is_named(lively_model: ModelMaker) -> None:
    model = lively_model(1, position_embedding_type="learned", max_position_embeddings=20)
    with pytest.raises(InputError, match="some.en line 2 has 66 tokens; the model has 20 positions"):
        tokenize_sentences(["a", "€" * 21 + "so"], trained_tokenizer(), model, "some.en")


@pytest.mark.slow
def test_exports_are_reproducible(exported: Path, model: Any) -> None:
    assert export_single_graph(model).SerializeToString() == (exported / "onnx" / "model.onnx").read_bytes()
