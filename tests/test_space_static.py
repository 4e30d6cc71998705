"""hub/space and hub/space-static without a browser: tokenizer in JavaScript, written folders, pinned versions."""

import ast
import json
import random
import re
import subprocess
import sys
from hashlib import sha256
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from browser import in_node, node
from saved_model import ENGLISH, GERMAN, change_json, saved_model
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from conversion.onnx.verify_text import EDGE_CASES
from hub.__main__ import main
from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
from vaswani_transformer.search_vaswani_transformer import SearchSettings
from vaswani_transformer.sentences_vaswani_transformer import clean_text, source_limit
from vaswani_transformer.tokenization import train_tokenizer

TESTS = Path(__file__).parent
PAGE = TESTS.parent / "hub" / "space-static"
ODD = [
    *EDGE_CASES,
    "a\u00a0b\u3000c\u2003d\u180eq",
    "\u0085x\u0085 y",  # white space to Rust, not to JavaScript
    "\ufeffBOM \ufeff",  # white space to JavaScript, not to Rust
    "a \u200bzero\u200d",
    "é e\u0301 ﷺ ǆ ß ẞ İ ı",
    "עברית العربية",
    "\U0001f9ff\U000e0001\ue000\ud7ff\U0010ffff",
    "x" * 500,
    "a\x00b\x01\x1c\x1d\x1e\x1f a",
    "\u088f\U000323b0a\U000105c0",  # letters of Unicode 16 and 17
]


def odd_lines(count: int) -> list[str]:
    """Return lines of random code points, many of which are treated differently by some tokenizers."""
    chance = random.Random(5)
    tricky = " aeé1'\n\u0085\ufeff\u3000s tn"
    points = [*range(0x3100), *range(0x3100, 0x33500, 7)]

    def letter() -> str:
        return chr(chance.choice(points)) if chance.random() < 0.5 else chance.choice(tricky)

    lines = ["".join(letter() for _ in range(chance.randint(1, 30))) for _ in range(count)]
    return ODD + [re.sub("[\ud800-\udfff]", "?", line) for line in lines]


def in_python(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    return tokenizer


SYMBOLS = ["<2de>", "<2de", "__NUM__", "⟦1⟧", "a.b", "sn"]


@pytest.mark.parametrize("symbols", [[], SYMBOLS])
@pytest.mark.parametrize(("split_digits", "lowercase"), [(False, False), (True, False), (False, True)])
def test_texts_have_the_same_tokens_as_in_python(
    tmp_path: Path, split_digits: bool, lowercase: bool, symbols: list[str]
) -> None:
    lines = odd_lines(600)
    lines += [f"{symbol} {line}{symbol}{symbol}" for symbol, line in zip(SYMBOLS * 20, lines, strict=False)]
    corpus = (GERMAN + ENGLISH + lines) * 2
    settings: dict[str, Any] = {"split_digits": split_digits, "lowercase": lowercase, "symbols": symbols}
    train_tokenizer(corpus, 900, **settings).save_pretrained(tmp_path)
    encodings = in_python(tmp_path).encode_batch(lines)
    ids = [encoding.ids for encoding in encodings]
    assert max(map(max, ids)) > 800, "merges are used"
    found = in_node("encode.mjs", {"texts": lines, "ids": ids}, tmp_path)
    for line, ours, theirs in zip(lines, encodings, found["encodings"], strict=True):
        places = list(accumulate((1 + (letter > "\uffff") for letter in line), initial=0))  # in JavaScript
        starts = [places[start] for start, _ in ours.offsets]
        assert theirs == {"ids": ours.ids, "starts": starts}, ascii(line)
    assert found["texts"] == (in_python(tmp_path).decode_batch(ids) if lowercase else list(map(clean_text, lines)))


def test_ids_of_invalid_text_decode_as_in_python(tmp_path: Path) -> None:
    """Covers incomplete characters mixed with control tokens."""
    train_tokenizer(GERMAN + ENGLISH, 300).save_pretrained(tmp_path)
    chance = random.Random(6)
    rows = [[chance.randrange(300) for _ in range(12)] for _ in range(500)]
    expected = in_python(tmp_path).decode_batch(rows)
    assert any("\ufffd" in text for text in expected)
    assert in_node("encode.mjs", {"texts": [], "ids": rows}, tmp_path)["texts"] == expected


@pytest.mark.slow
def test_characters_are_classified_as_in_the_library(tmp_path: Path) -> None:
    """Covers every code point of planes 0 and 1, and many other code points.

    With merges of "a", "1" and "!" with the first byte of every character, the ids show where words end.
    """
    tokenizer = train_tokenizer(GERMAN + ENGLISH, 300)
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    letters = [letter for letter in state["model"]["vocab"] if len(letter) == 1]
    state["model"]["merges"] = [[first, second] for first in "a1!" for second in letters]
    for first, second in state["model"]["merges"]:
        state["model"]["vocab"].setdefault(first + second, len(state["model"]["vocab"]))
    PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(state)), split_special_tokens=True
    ).save_pretrained(tmp_path)
    points = [*range(0xD800), *range(0xE000, 0x20000), *range(0x20000, 0x110000, 97), *range(0x2B730, 0x33500, 5)]
    lines = [
        "".join(f"a{chr(point)} 1{chr(point)} !{chr(point)}\n" for point in points[start : start + 64])
        for start in range(0, len(points), 64)
    ]
    expected = [encoding.ids for encoding in in_python(tmp_path).encode_batch(lines)]
    found = [encoding["ids"] for encoding in in_node("encode.mjs", {"texts": lines, "ids": []}, tmp_path)["encodings"]]
    differ = [ascii(line[1]) for line, ours, theirs in zip(lines, found, expected, strict=True) if ours != theirs]
    assert not differ


@pytest.mark.parametrize("trained", [None, 3, 40, 300])
@pytest.mark.parametrize("positions", [None, 6, 200])
def test_the_page_has_the_same_token_limit_as_in_python(trained: int | None, positions: int | None) -> None:
    call = f"defaultSourceLimit(...{json.dumps([trained, positions])})"
    program = f"import {{ defaultSourceLimit }} from '{(PAGE / 'sentences.js').as_uri()}'; console.log({call})"
    assert int(node("--input-type=module", "--eval", program).stdout) == source_limit(None, trained, positions)


def assemble(exported: Path, page: Path, packages: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return node(PAGE / "assemble.mjs", exported, page, "--packages", packages, *options)


RUNTIME = ["ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm"]


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """Files with the names of npm's; assembling a page only copies them."""
    folder = tmp_path / "node_modules" / "onnxruntime-web" / "dist"
    folder.mkdir(parents=True)
    for name in RUNTIME:
        (folder / name).write_text(name)
    return tmp_path / "node_modules"


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """An exported folder with a placeholder for the graph, which assembling a page does not read."""
    folder = saved_model(tmp_path / "exported")
    (folder / "model.onnx").write_bytes(b"graph")
    return folder


@pytest.fixture
def translator_js(tmp_path: Path, exported: Path, packages: Path) -> str:
    """The address of translator.js in a page whose runtime is empty."""
    (packages / "onnxruntime-web" / "dist" / RUNTIME[0]).write_text("export const env = {};")
    (exported / "export.json").write_text(json.dumps({"graphs": {"model.onnx": sha256(b"graph").hexdigest()}}))
    done = assemble(exported, tmp_path / "page", packages)
    assert done.returncode == 0, done.stderr
    return (tmp_path / "page" / "translator.js").as_uri()


def test_the_service_worker_caches_every_file_of_the_page(tmp_path: Path, exported: Path, packages: Path) -> None:
    done = assemble(exported, tmp_path / "page", packages)
    assert done.returncode == 0, done.stderr
    files = {str(path.relative_to(tmp_path / "page")) for path in (tmp_path / "page").rglob("*") if path.is_file()}
    worker = (tmp_path / "page" / "service-worker.js").read_text()
    cached = set(json.loads(re.sub(r",\s*\]", "]", worker.partition("FILES = ")[2].partition(";")[0])))
    # The page itself is "./"; browsers update the service worker; the page does not use its README.
    assert cached - {"./"} == files - {"index.html", "service-worker.js", "README.md"}
    assert (tmp_path / "page").stat().st_mode & 0o755 == 0o755, "a web server can read it"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda folder: (folder / "model.onnx").unlink(), "model.onnx: no such file"),
        (lambda folder: change_json(folder / "config.json", decoder_vocab_size=7), "two vocabularies"),
        (lambda folder: (folder / "target_tokenizer").mkdir(), "two vocabularies"),  # of the same size
        (
            lambda folder: (folder / "export.json").write_text('{"graphs": {"model.onnx": "0"}}'),
            "model.onnx is not the file that was exported",
        ),
        (lambda folder: change_json(folder / "tokenizer.json", normalizer={"type": "NFC"}), "the normalizer NFC"),
        (lambda folder: change_json(folder / "tokenizer.json", pre_tokenizer={"type": "Metaspace"}), "Metaspace"),
        (
            lambda folder: change_json(folder / "tokenizer_config.json", split_special_tokens=False),
            "split_special_tokens",
        ),
        (lambda folder: (folder.parent / "page").mkdir(), "exists already"),
    ],
)
def test_an_unsuitable_model_is_refused_in_one_line(
    tmp_path: Path, exported: Path, packages: Path, fault, message: str
) -> None:
    fault(exported)
    before = sorted(tmp_path.iterdir())
    done = assemble(exported, tmp_path / "page", packages)
    assert done.returncode == 2
    assert re.fullmatch(r"error: [^\n]*\n", done.stderr) and message in done.stderr
    assert sorted(tmp_path.iterdir()) == before, "nothing is left behind"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--max-characters", "0", "--max-characters is 0; it must be a whole number above 0"),
        ("--card", "nowhere.md", "--card nowhere.md: no such file"),
    ],
)
def test_a_wrong_option_is_refused(tmp_path: Path, exported: Path, packages: Path, option, value, message) -> None:
    done = assemble(exported, tmp_path / "page", packages, option, value)
    assert (done.returncode, done.stderr) == (2, f"error: {message}\n")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_length": 20},
        {"max_length": 20, "extra_length": 7},
        {"max_length": 20, "max_new_tokens": 7},
        {"extra_length": 3, "max_new_tokens": 5},
    ],
)
def test_the_page_limits_translations_as_in_python(translator_js: str, settings: dict[str, int]) -> None:
    program = f"""
        import {{ Translator }} from '{translator_js}';
        const page = new Translator({{ inputNames: [] }}, {{ symbols: new Map() }}, {{}}, {json.dumps(settings)}, {{}});
        console.log(JSON.stringify([page.maxNewTokens, page.extraLength]));
    """
    expected = SearchSettings.from_generation_config(settings)
    found = json.loads(node("--input-type=module", "--eval", program).stdout)
    assert found == [expected.max_new_tokens or 0, expected.extra_length]


@pytest.mark.parametrize("inputs", [["num_beams"], ["num_beams", "no_repeat_ngram_size", "repetition_penalty"], []])
@pytest.mark.parametrize("settings", [{}, {"no_repeat_ngram_size": 3}, {"repetition_penalty": 1.2}])
def test_the_page_refuses_settings_that_its_graph_would_ignore(
    translator_js: str, inputs: list[str], settings: dict[str, float]
) -> None:
    """They were edited after the export. A graph with defaults shows no inputs, and has them inside."""
    session = json.dumps({"inputNames": inputs})
    program = f"""
        import {{ Translator }} from '{translator_js}';
        new Translator({session}, {{ symbols: new Map() }}, {{}}, {json.dumps(settings)}, {{}});
    """
    loaded = node("--input-type=module", "--eval", program, check=False)
    ignored = settings and inputs == ["num_beams"]
    assert (loaded.returncode != 0) == bool(ignored)
    assert ("export it again with --repetition" in loaded.stderr) == bool(ignored)


def test_the_page_and_its_tests_use_the_same_onnxruntime_web() -> None:
    versions = set()
    for folder in (PAGE, TESTS / "node"):
        lock = json.loads((folder / "package-lock.json").read_text())
        asked = json.loads((folder / "package.json").read_text())["dependencies"]["onnxruntime-web"]
        package = lock["packages"]["node_modules/onnxruntime-web"]
        assert package["version"] == asked and package["integrity"].startswith("sha512-")
        versions.add(asked)
    assert len(versions) == 1


def test_a_static_space_sends_the_headers_that_threads_need() -> None:
    front_matter = (PAGE / "README.md").read_text().split("---\n")[1]
    assert "sdk: static" in front_matter
    assert "cross-origin-embedder-policy: require-corp" in front_matter
    assert "cross-origin-opener-policy: same-origin" in front_matter


SPACE = Path(__file__).parents[1] / "hub" / "space"


def test_the_requirements_list_every_imported_package():
    named = {re.split("[<>=]", line)[0] for line in (SPACE / "requirements.txt").read_text().split()}
    imported = set()
    for file in SPACE.glob("*.py"):
        for statement in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(statement, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in statement.names}
            elif isinstance(statement, ast.ImportFrom):
                imported.add((statement.module or "").split(".")[0])
    standard = set(sys.stdlib_module_names) | {file.stem for file in SPACE.glob("*.py")}
    packages = {"PIL": "pillow"}  # modules with another name than their package
    assert {packages.get(name, name) for name in imported - standard} == named


def test_the_readme_and_the_requirements_pin_the_same_gradio():
    front_matter = yaml.safe_load((SPACE / "README.md").read_text(encoding="utf-8").split("---\n")[1])
    assert front_matter["sdk"] == "gradio"
    assert f"gradio=={front_matter['sdk_version']}" in (SPACE / "requirements.txt").read_text().split()
    assert (SPACE / front_matter["app_file"]).is_file()


def test_a_written_space_names_its_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "space"
    main(["space", "owner/model", "someone/attention", "--revision", "v1", "--to-folder", str(out)])
    assert f"hf upload someone/attention {out} . --repo-type space" in capsys.readouterr().out
    assert {path.name for path in out.iterdir()} == {path.name for path in SPACE.iterdir()} | {"model.json"}
    assert json.loads((out / "model.json").read_text()) == {"id": "owner/model", "revision": "v1"}
    _, front_matter, text = (out / "README.md").read_text(encoding="utf-8").split("---\n", 2)
    fields = yaml.safe_load(front_matter)
    assert (fields["title"], fields["models"], fields["sdk"]) == ("attention", ["owner/model"], "gradio")
    assert text.startswith("\n# Attention at work")


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)], ids=str)
def test_the_steps_of_equation_1_end_in_the_models_weights(monkeypatch: pytest.MonkeyPatch, dtype, tolerance):
    monkeypatch.syspath_prepend(SPACE)
    from attention import recorded_projections  # pyright: ignore[reportMissingImports]
    from equation import steps  # pyright: ignore[reportMissingImports]

    sizes = {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "attn_implementation": "eager"}
    config = VaswaniTransformerConfig.from_preset("base", vocab_size=50, **sizes)
    model = VaswaniTransformerForConditionalGeneration(config).to(dtype).eval()
    source, target = torch.randint(4, 50, (1, 7)), torch.randint(4, 50, (1, 5))
    with torch.no_grad(), recorded_projections(model) as projections:
        outputs = model(source, decoder_input_ids=target, output_attentions=True, use_cache=False)
    kinds = {"encoder": outputs.encoder_attentions, "decoder": outputs.decoder_attentions}
    for kind, layers in (kinds | {"cross": outputs.cross_attentions}).items():
        for weights, values in zip(layers, projections[kind], strict=True):
            for head in range(config.encoder_attention_heads):
                found = steps(*(values[name][head] for name in "QKV"), causal=kind == "decoder")
                expected = weights[0, head].float().numpy()
                np.testing.assert_allclose(found["softmax"], expected, atol=tolerance)
