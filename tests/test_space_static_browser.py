"""hub/space-static in Chromium: its translations, its size, its messages, and its privacy. `make test-browser`"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from browser import DESKTOP, NODE_MODULES, PHONE, accessibility_violations, chromium, console_messages, served
from saved_model import ENGLISH, GERMAN, SIZES, change_json, saved_model
from test_space_static import assemble, odd_lines
from tiny_models import make_lively

from conversion.onnx.export import export_single_folder
from training import demo_corpus
from vaswani_transformer import Translator
from vaswani_transformer.alignment_heads import attention_of_heads
from vaswani_transformer.attention_maps import attention_maps
from vaswani_transformer.onnx_translator import OnnxTranslator
from vaswani_transformer.tokenization import train_tokenizer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(not NODE_MODULES.is_dir(), reason="needs onnxruntime-web: `make test-browser` installs it"),
]
MOST_BYTES = 15_000_000  # of the page without its model
browser = pytest.fixture(chromium, scope="module")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with other search settings than the paper's."""
    model = saved_model(tmp_path_factory.mktemp("model"))
    change_json(
        model / "generation_config.json", num_beams=3, length_penalty=1.4, alignment_heads=[[0, 1, 0], [1, 0, 1]]
    )
    return model


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "onnx"
    export_single_folder(model, folder, defaults=False, attention=True)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, exported: Path) -> Path:
    folder = tmp_path_factory.mktemp("static") / "page"
    assemble(exported, folder, NODE_MODULES).check_returncode()
    return folder


@pytest.fixture
def site(folder: Path) -> Iterator[tuple[str, list[str]]]:
    with served(folder) as site:
        yield site


@pytest.fixture
def page(browser: Any, site: tuple[str, list[str]]) -> Iterator[Any]:
    """The page on a desktop, with its model loaded. Afterwards its console must be empty."""
    with browser.new_context(viewport=DESKTOP) as context:
        page = context.new_page()
        messages = console_messages(page)
        page.goto(site[0])
        page.locator("#translate:enabled").wait_for()
        yield page
        assert messages == []


def translate(page: Any, text: str) -> None:
    page.get_by_label("Sentences").fill(text)
    page.get_by_role("button", name="Translate").click()
    page.locator("#results[aria-busy=false]").wait_for()


def test_fifty_sentences_translate_as_in_python(page: Any, exported: Path) -> None:
    unusual = [line for line in odd_lines(40)[-20:] if line.strip() and not set(line) & set("\n\r\x85\u2028")]
    sentences = (ENGLISH + GERMAN + unusual + [english for _, english, _ in demo_corpus.load("test")])[:50]
    translate(page, "\n".join(sentences))
    items = page.locator("#results > li")
    assert items.count() == len(sentences) == 50
    expected = OnnxTranslator.from_pretrained(exported).find_hypotheses(sentences, num_return_sequences=3)
    assert len({ours[0].text for ours in expected}) > 10, "the translations differ"
    for place, ours in enumerate(expected):
        best = items.nth(place).locator(".best")
        assert best.get_attribute("data-tokens") == " ".join(map(str, ours[0].tokens)), sentences[place]
        assert best.text_content() == ours[0].text
        scored = items.nth(place).locator("details li")
        ours = ours if len(ours) > 1 else []  # a single hypothesis is not listed
        assert scored.locator("span").all_text_contents() == [hypothesis.text for hypothesis in ours]
        scores = [float(value.get_attribute("value")) for value in scored.locator("data").all()]
        assert scores == pytest.approx([hypothesis.score for hypothesis in ours], abs=1e-4)


def test_the_beam_size_can_be_chosen(page: Any, exported: Path) -> None:
    page.get_by_label("Beam size").fill("2")
    translate(page, ENGLISH[1])
    expected = OnnxTranslator.from_pretrained(exported).find_hypotheses(
        [ENGLISH[1]], num_beams=2, num_return_sequences=2
    )
    assert page.locator("details li span").all_text_contents() == [hypothesis.text for hypothesis in expected[0]]


def test_the_page_without_its_model_is_below_fifteen_megabytes(folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file() and "model" not in path.relative_to(folder).parts]
    assert 1_000_000 < sum(path.stat().st_size for path in files) <= MOST_BYTES


def test_the_page_works_offline_after_the_first_visit(browser: Any, folder: Path) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        with served(folder) as (address, _):
            page.goto(address)
            page.get_by_text("now also works offline").wait_for()
            translate(page, ENGLISH[0])
            with_network = page.locator(".best").text_content()
        # The server has stopped.
        page = context.new_page()
        messages = console_messages(page)
        page.goto(address)
        page.locator("#translate:enabled").wait_for()
        translate(page, ENGLISH[0])
        assert page.locator(".best").text_content() == with_network != ""
        assert [text for text in messages if "ERR_CONNECTION_REFUSED" not in text] == []


def test_translating_sends_no_request(page: Any, site: tuple[str, list[str]]) -> None:
    address, requested = site
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    page.get_by_text("now also works offline").wait_for()
    before = len(requested)
    translate(page, "\n".join(ENGLISH))
    assert page.locator("#results > li").count() == len(ENGLISH)
    assert (sent, requested[before:]) == ([], [])
    assert all("?" not in path for path in requested)


def test_page_and_workers_cannot_connect_to_other_servers(
    browser: Any, site: tuple[str, list[str]], tmp_path: Path
) -> None:
    fetch = "address => fetch(address, {mode: 'no-cors'}).then(() => 'sent', () => 'refused')"
    with served(tmp_path) as (elsewhere, requested), browser.new_context() as context:
        page = context.new_page()
        page.goto(site[0])
        page.locator("#translate:enabled").wait_for()
        assert len(page.workers) > 1, "the translator's worker, and ONNX Runtime's threads"
        assert all(worker.url.startswith("blob:") for worker in page.workers), "they inherit the page's policy"
        outcomes = [context.evaluate(fetch, elsewhere + "?typed") for context in [page, page.workers[0]]]
    assert (outcomes, requested) == (["refused", "refused"], [])


def test_the_page_works_with_only_the_keyboard(page: Any) -> None:
    page.keyboard.press("Tab")  # the link to the paper
    page.keyboard.press("Tab")
    page.keyboard.type(ENGLISH[0])
    page.keyboard.press("Shift+Enter")
    page.keyboard.type(ENGLISH[1])
    page.keyboard.press("Enter")
    page.locator("#results[aria-busy=false]").wait_for()
    assert page.locator(".source").all_text_contents() == ENGLISH[:2]
    for _ in range(4):  # the button, the beam size, the copy button, the other hypotheses
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.locator("details li").first.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_accessible(page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    translate(page, "\n".join(ENGLISH))
    page.locator("summary").first.click()
    assert accessibility_violations(page) == []


def test_a_line_that_is_too_long_is_skipped(page: Any) -> None:
    status = page.get_by_role("status")
    translate_button = page.get_by_role("button", name="Translate")
    translate_button.click()
    assert "type a sentence" in status.text_content()
    translate(page, "\n".join([ENGLISH[0], "x" * 100_001, ENGLISH[1], "dog " * 300]))
    assert "Line 2: the line has 100001 characters, and the limit is 100000; shorten it" in status.text_content()
    items = page.locator("#results > li")
    assert [items.nth(index).locator(".best").count() for index in range(4)] == [1, 0, 1, 1]
    assert "limit is 100000" in items.nth(1).locator(".error").text_content()


def test_a_phone_needs_no_sideways_scrolling(browser: Any, site: tuple[str, list[str]]) -> None:
    with browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True) as context:
        page = context.new_page()
        page.goto(site[0])
        page.locator("#translate:enabled").wait_for()
        translate(page, "\n".join([*ENGLISH, "x" * 150]))
        page.locator("summary").first.click()
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        button = page.get_by_role("button", name="Translate").bounding_box()
        assert button["height"] >= 44, "large enough for a finger"


@pytest.mark.parametrize("name", ["model/model.onnx", "vendor/ort-wasm-simd-threaded.wasm"])
def test_a_missing_file_is_named_and_loading_can_be_repeated(
    browser: Any, tmp_path: Path, folder: Path, name: str
) -> None:
    shutil.copytree(folder, tmp_path / "page")
    file = tmp_path / "page" / name
    file.rename(tmp_path / "missing")
    with served(tmp_path / "page") as (address, _), browser.new_context() as context:
        page = context.new_page()
        page.goto(address)
        page.get_by_text(f"Could not load the model: /{name}: HTTP 404.").wait_for()
        assert page.get_by_role("button", name="Translate").is_disabled()
        page.get_by_label("Sentences").fill(ENGLISH[0])
        (tmp_path / "missing").rename(file)
        page.get_by_role("button", name="Try again").click()
        page.locator("#results[aria-busy=false] .best").wait_for()
        assert page.get_by_role("button", name="Try again").is_hidden()


def test_a_browser_asks_whether_files_of_the_model_have_changed(browser: Any, tmp_path: Path, folder: Path) -> None:
    """Chromium reads a file that is a year old from its cache for a month. Without HTTPS, it has no service worker."""
    shutil.copytree(folder, tmp_path / "page")
    files = [path for path in (tmp_path / "page" / "model").iterdir() if path.name != "about.json"]
    for path in files:
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 365 * 24 * 3600))
    with served(tmp_path / "page") as (address, requested), browser.new_context(service_workers="block") as context:
        for _ in range(2):
            requested.clear()
            page = context.new_page()
            page.goto(address)
            page.locator("#translate:enabled").wait_for()
        assert {f"/model/{path.name}" for path in files} <= {*requested}


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory, exported: Path) -> Path:
    """A page with a model card."""
    folder = tmp_path_factory.mktemp("described")
    metadata = {"language": ["en", "de"], "widget": [{"text": text} for text in ENGLISH]}
    (folder / "README.md").write_text(f"---\n{json.dumps(metadata)}\n---\n# A model\n")
    options = ["--card", str(folder / "README.md"), "--name", "owner/model"]
    assemble(exported, folder / "page", NODE_MODULES, *options).check_returncode()
    return folder / "page"


def test_the_page_offers_the_languages_of_the_tokens(browser: Any, tmp_path: Path) -> None:
    """The title names all of them, and translations have the code of theirs, for screen readers."""
    make_lively(1, vocab_size=SIZES["vocab_size"]).save_pretrained(tmp_path / "model")
    symbols = ["<2de>", "<2fr>", "__bel_Latn__"]
    train_tokenizer(GERMAN + ENGLISH, SIZES["vocab_size"], symbols=symbols).save_pretrained(tmp_path / "model")
    export_single_folder(tmp_path / "model", tmp_path / "onnx", defaults=False)
    metadata = {"language": ["en", "de", "fr", "be"], "widget": [{"text": f"<2fr> {ENGLISH[0]}"}]}
    (tmp_path / "README.md").write_text(f"---\n{json.dumps(metadata)}\n---\n")
    options = ["--card", str(tmp_path / "README.md")]
    assemble(tmp_path / "onnx", tmp_path / "page", NODE_MODULES, *options).check_returncode()
    translator = Translator.from_pretrained(tmp_path / "model", device="cpu")
    with served(tmp_path / "page") as (address, _), browser.new_context() as context:
        page = context.new_page()
        messages = console_messages(page)
        page.goto(address)
        page.locator("#translate:enabled").wait_for()
        assert page.title() == "English to German, French, and Belarusian, in your browser"
        assert page.locator("#language option").all_text_contents() == ["German", "French", "Belarusian (Latin)"]
        for symbol, code in zip(symbols, ("de", "fr", "bel-Latn"), strict=True):
            page.locator("#language").select_option(symbol)
            page.get_by_role("button", name=ENGLISH[0]).click()
            page.locator("#results[aria-busy=false]").wait_for()
            best = page.locator(".best")
            assert [best.text_content()] == translator.translate(ENGLISH[0], target_language=symbol)
            assert best.get_attribute("lang") == code
        assert messages == []


def test_the_page_describes_its_model_and_translates_an_example(browser: Any, described: Path, exported: Path) -> None:
    expected = OnnxTranslator.from_pretrained(exported).translate(ENGLISH)
    with served(described) as (address, _), browser.new_context() as context:
        context.grant_permissions(["clipboard-read", "clipboard-write"])
        page = context.new_page()
        messages = console_messages(page)

        def shows(translation: str) -> None:
            page.wait_for_function("text => document.querySelector('.best')?.textContent === text", arg=translation)
            page.locator("#results[aria-busy=false]").wait_for()

        page.goto(address)
        shows(expected[0])
        assert page.title() == page.locator("h1").text_content() == "English to German, in your browser"
        size = (described / "model" / "model.onnx").stat().st_size / 1e6
        assert page.locator("#model").text_content() == f"The model is owner/model and has {size:.1f} MB."
        assert page.locator("#examples button").all_text_contents() == ENGLISH[:3]
        page.locator("#examples button").nth(1).click()
        shows(expected[1])
        assert [page.locator(place).get_attribute("lang") for place in (".source", ".best")] == ["en", "de"]
        page.get_by_role("button", name="Copy").click()
        page.get_by_text("Copied.").wait_for()
        assert page.evaluate("navigator.clipboard.readText()") == expected[1]
        page.evaluate("text => location.hash = `text=${text}`", quote(ENGLISH[3]))
        shows(expected[3])
        assert accessibility_violations(page) == [] == messages


def test_the_attention_map_shows_the_heads_that_align_words(page: Any, model: Path) -> None:
    loaded = Translator.from_pretrained(model, device="cpu")
    translate(page, ENGLISH[1])
    maps = attention_maps(loaded.model, loaded.tokenizer, ENGLISH[1], target=page.locator(".best").text_content())
    page.get_by_text("Attention", exact=True).click()
    assert loaded.alignment_heads and loaded.alignment_heads == [(0, 1, 0), (1, 0, 1)]
    expected = attention_of_heads(maps.cross.numpy(), loaded.alignment_heads)
    shown = [float(text) for text in page.locator(".attention td .hidden").all_text_contents()]
    np.testing.assert_allclose(np.reshape(shown, expected.shape), expected, atol=6e-4)
    labels = [label.replace("▁", "") or "▁" for label in maps.source]
    assert page.locator(".attention thead th").all_text_contents() == labels
    assert accessibility_violations(page) == []
