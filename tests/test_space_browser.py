"""hub/space in Chromium, with a model from the Hub, in an environment without this package. `make test-browser`"""

import base64
import io
import json
import os
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import DESKTOP, PHONE, accessibility_violations, chromium, console_messages
from hub_server import OWNER, HubServer
from PIL import Image
from saved_model import ENGLISH, GERMAN, untrained_model

from hub.__main__ import main
from hub.contents import collect_model_files
from vaswani_transformer import Translator
from vaswani_transformer.attention_maps import attention_maps, token_labels
from vaswani_transformer.modeling_vaswani_transformer import sinusoidal_positional_encoding
from vaswani_transformer.tokenization import train_tokenizer

ROOT = Path(__file__).parents[1]
SPACE = ROOT / "hub" / "space"
PYTHON = ROOT / ".venv-space" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.browser,
    pytest.mark.skipif(not PYTHON.exists(), reason="needs gradio: `make test-browser` installs it"),
]


def environment(**variables: str) -> dict[str, str]:
    """Return the variables of the Space's process, without this process's paths."""
    basic = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1", "PYTHONUTF8": "1"}
    return basic | {"GRADIO_ANALYTICS_ENABLED": "False"} | variables


def contents_of(model: Path) -> dict[str, bytes]:
    """Return the published files of a model folder."""
    files = collect_model_files(model)[0]
    return {name: file if isinstance(file, bytes) else file.path.read_bytes() for name, file in files.items()}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Iterator[str]:
    """Yield the address of a Space that has loaded its model from a Hub by id."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = tmp_path_factory.mktemp("space")
    with HubServer() as hub:
        contents: dict[str, Any] = contents_of(model_folder)
        widget = [{"text": sentence} for sentence in ENGLISH]
        contents["README.md"] = f"---\n{json.dumps({'widget': widget})}\n---\n# A model\n".encode()
        hub.create(f"{OWNER}/model", **contents)
        main(["space", f"{OWNER}/model", f"{OWNER}/space", "--to-folder", str(home / "space")])
        with (home / "log").open("w") as log:
            variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
            env = environment(**variables, GRADIO_SERVER_PORT=str(port))
            running = subprocess.Popen([PYTHON, home / "space" / "app.py"], env=env, cwd=home, stdout=log, stderr=log)
        try:
            address = f"http://127.0.0.1:{port}/"
            wait_for(address, running, home / "log")
            assert any("/modeling_vaswani" in path for _, path, _ in hub.log), "the code comes from the Hub"
            yield address
        finally:
            running.terminate()
            running.wait(30)


def wait_for(address: str, running: subprocess.Popen, log: Path) -> None:
    for _ in range(240):
        try:
            urllib.request.urlopen(address).read()
            return
        except OSError:
            assert running.poll() is None, log.read_text()[-2000:]
            time.sleep(0.5)
    raise AssertionError("no page after two minutes: " + log.read_text()[-2000:])


browser = pytest.fixture(chromium, scope="module")


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The page on a desktop. Afterwards its console must be empty, and it must not have contacted another server."""
    with browser.new_context(viewport=DESKTOP) as context:
        page = context.new_page()
        messages, requested = console_messages(page), []
        page.on("request", lambda request: requested.append(request.url))
        page.goto(address)
        page.locator("#heat-map td[tabindex='0']").wait_for()
        yield page
        assert messages == []
        assert [url for url in requested if not url.startswith((address, "data:", "blob:"))] == []


def translate(page: Any, text: str, expected: str) -> None:
    page.locator("#text textarea").fill(text)
    page.get_by_role("button", name="Translate").click()
    shows(page, expected)


def shows(page: Any, translation: str) -> None:
    page.wait_for_function("text => document.querySelector('#translation textarea').value === text", arg=translation)


def choose(page: Any, group: str, option: str) -> None:
    page.get_by_role("group", name=group).get_by_label(option, exact=True).check()


def without_marks(labels: list[str]) -> list[str]:
    return [label.replace("▁", "") or "▁" for label in labels]


@pytest.fixture(scope="module")
def translator(model_folder: Path) -> Translator:
    return Translator.from_pretrained(model_folder)


def weights_in(cells: Any) -> list[float]:
    return cells.evaluate_all("cells => cells.map(cell => +cell.dataset.weight)")


def test_the_space_shows_the_translators_hypotheses_and_scores(page: Any, translator) -> None:
    (expected,) = translator.find_hypotheses([ENGLISH[1]], num_return_sequences=4)
    assert len({hypothesis.text for hypothesis in expected}) > 1
    translate(page, ENGLISH[1], expected[0].text)
    shown = page.locator("#hypotheses label").all_inner_texts()
    assert [text.strip() for text in shown] == [
        f"{hypothesis.text} (−{-hypothesis.score:.3f})" for hypothesis in expected
    ]


def test_the_heat_map_shows_every_attention_weight(page: Any, translator) -> None:
    (text,) = translator.translate([ENGLISH[1]])
    translate(page, ENGLISH[1], text)
    maps = attention_maps(translator.model, translator.tokenizer, ENGLISH[1])
    kinds = {
        "Cross-attention": (maps.cross, maps.predicted, maps.source),
        "Encoder self-attention": (maps.encoder, maps.source, maps.source),
        "Decoder self-attention": (maps.decoder, maps.predicted, maps.target),
    }
    for kind, (weights, down, across) in kinds.items():
        choose(page, "Attention", kind)
        page.get_by_role("grid", name=kind).wait_for()
        for layer in range(1, len(weights) + 1):
            choose(page, "Layer", str(layer))
            # Answers to two changes at once could arrive in either order.
            page.get_by_role("grid", name=f"{kind}, layer {layer},").wait_for()
            for head in ("mean", *map(str, range(1, weights.shape[1] + 1))):
                choose(page, "Head", head)
                name = f"{kind}, layer {layer}, {'mean of the heads' if head == 'mean' else f'head {head}'}"
                table = page.get_by_role("grid", name=name, exact=True)
                table.wait_for()
                of_layer = weights[layer - 1].numpy()
                expected = of_layer.mean(axis=0) if head == "mean" else of_layer[int(head) - 1]
                found = weights_in(table.locator("td[data-weight]"))
                np.testing.assert_allclose(np.reshape(found, expected.shape), expected, atol=6e-4)
                assert table.locator("tbody th").all_inner_texts() == without_marks(down)
                assert table.locator("thead th").all_inner_texts() == without_marks(across)


def test_selecting_another_hypothesis_shows_its_attention(page: Any, translator) -> None:
    (expected,) = translator.find_hypotheses([ENGLISH[1]], num_return_sequences=4)
    translate(page, ENGLISH[1], expected[0].text)
    maps = attention_maps(translator.model, translator.tokenizer, ENGLISH[1], target=expected[3].text)
    page.locator("#hypotheses input").nth(3).check()
    page.wait_for_function(
        "labels => [...document.querySelectorAll('#heat-map tbody th')].map(th => th.innerText).join() === labels",
        arg=",".join(without_marks(maps.predicted)),
    )


def test_the_space_works_with_only_the_keyboard(page: Any, translator) -> None:
    (text,) = translator.translate([ENGLISH[0]])
    focused = "document.activeElement"

    def tab_to(selector: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate(f"{focused}.matches({selector!r})"):
                return
        raise AssertionError(f"Tab does not reach {selector}")

    tab_to("#text textarea")
    page.keyboard.press("Control+A")
    page.keyboard.type(ENGLISH[0])
    page.keyboard.press("Shift+Enter")
    shows(page, text)
    tab_to("#hypotheses input")
    tab_to("#kind input")
    page.keyboard.press("ArrowRight")
    page.get_by_role("grid", name="Encoder self-attention").wait_for()
    tab_to("#heat-map td")
    page.keyboard.press("Home")
    for key, step in {"ArrowDown": (1, 0), "ArrowRight": (0, 1), "ArrowUp": (-1, 0), "ArrowLeft": (0, -1)}.items():
        place = f"[{focused}.parentElement.rowIndex, {focused}.cellIndex]"
        if key in ("ArrowDown", "ArrowUp"):  # the current cell may be in the first or the last row
            key, step = ("ArrowUp", (-1, 0)) if page.evaluate(place)[0] > 1 else ("ArrowDown", (1, 0))
        before = page.evaluate(place)
        page.keyboard.press(key)
        assert page.evaluate(place) == [before[0] + step[0], before[1] + step[1]]
        readout = page.locator("#heat-map .readout").inner_text()
        assert readout == page.evaluate(f"{focused}.ariaLabel") and re.search(r" attends to .*: \d\.\d{3}$", readout)
    page.keyboard.press("Tab")
    assert not page.evaluate(f"{focused}.matches('#heat-map td')"), "the map is a single tab stop"


def test_a_click_on_a_thumbnail_selects_the_head(page: Any) -> None:
    page.locator("#heat-map figure").nth(1).click()
    page.get_by_role("grid", name="head 2").wait_for()
    assert page.get_by_role("group", name="Head").get_by_label("2", exact=True).is_checked()


def pixels_of(image: Any) -> np.ndarray:
    """Return what a picture in a data: URL shows, (height, width, 3)."""
    encoded = image.get_attribute("src").partition(",")[2]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded)))).astype(int)


def test_equation_1_shows_the_weights_of_the_chosen_head(page: Any, translator) -> None:
    maps = attention_maps(translator.model, translator.tokenizer, ENGLISH[0])
    assert not page.locator("#equation figure").first.is_visible(), "it is folded"
    page.get_by_role("button", name="Equation (1)").click()
    for kind, weights in (("Cross-attention", maps.cross), ("Decoder self-attention", maps.decoder)):
        choose(page, "Attention", kind)
        page.get_by_role("grid", name=kind).wait_for()
        choose(page, "Head", "2")
        layer = page.get_by_role("group", name="Layer").get_by_role("radio", checked=True).input_value()
        expected = weights[int(layer) - 1, 1].numpy()
        rows, columns = expected.shape
        image = page.get_by_alt_text(f"softmax, {rows} × {columns}, {kind}, layer {layer}, head 2", exact=True)
        image.wait_for()
        share = (255 - pixels_of(image)[..., 1]) / 231  # of the largest weight, by the green of white and red
        np.testing.assert_allclose(share, expected / expected.max(), atol=0.01)
    assert page.locator("#equation figure").count() == 8, "the decoder masks the future"


def test_the_positional_encoding_is_the_papers(page: Any) -> None:
    assert not page.locator("#positions").is_visible(), "it is folded"
    page.get_by_role("button", name="Positional encoding").click()
    pixels = pixels_of(page.locator("#positions img"))
    encoding = sinusoidal_positional_encoding(60, 32).numpy()  # (positions, d_model)
    assert pixels.shape == (*encoding.shape, 3)
    warmth = pixels[..., 0] - pixels[..., 2]  # red above zero, blue below
    assert np.corrcoef(warmth.ravel(), encoding.ravel())[0, 1] > 0.99
    assert (np.sign(warmth) == np.sign(encoding))[np.abs(encoding) > 0.05].all()


def test_an_empty_text_keeps_the_last_translation(page: Any, translator) -> None:
    (text,) = translator.translate([ENGLISH[1]])
    translate(page, ENGLISH[1], text)
    page.locator("#text textarea").fill("  ")
    page.get_by_role("button", name="Translate").click()
    page.get_by_text("type a sentence").wait_for()
    assert page.locator("#translation textarea").input_value() == text
    assert page.locator("#heat-map table").is_visible()


def test_a_line_beyond_the_limit_is_left_out(page: Any, translator) -> None:
    """Lines end where the text box shows it, and not at U+2028."""
    first, second = translator.translate(ENGLISH[:2])
    translate(page, f"{ENGLISH[0]}\n{'word ' * 1001}\u2028{'word ' * 1001}\n{ENGLISH[1]}", f"{first}\n\n{second}")
    page.get_by_text("Left out: line 2. The limit is 5,000 characters").wait_for()


def test_a_text_is_translated_sentence_by_sentence(page: Any, translator) -> None:
    text = f"{ENGLISH[0]}  {ENGLISH[1]}\n{ENGLISH[3]}"
    translate(page, text, translator.translate(text)[0])
    # The hypotheses and the attention are those of one sentence.
    page.get_by_label("Sentence", exact=True).click()
    page.get_by_role("option", name="2. ").click()
    (expected,) = translator.find_hypotheses([ENGLISH[1]], num_return_sequences=4)
    page.locator("#hypotheses label", has_text=expected[3].text).wait_for()
    page.get_by_role("columnheader", name="W", exact=True).wait_for()
    page.get_by_role("button", name="Search").click()
    page.get_by_label("Do not split the text into sentences").check()
    pairs = (f"{first}  {ENGLISH[3]}" for first in ENGLISH)
    line = next(pair for pair in pairs if translator.translate(pair, split_sentences=False)[0])
    (whole,) = translator.translate(line, split_sentences=False)
    assert whole != translator.translate(line)[0]
    translate(page, line, whole)
    page.locator("#chosen-sentence").wait_for(state="hidden")


def test_an_example_of_the_card_is_translated_on_a_click(page: Any, translator) -> None:
    (text,) = translator.translate([ENGLISH[2]])
    page.get_by_role("button", name=ENGLISH[2][:20]).click()
    shows(page, text)


def test_pointing_at_a_word_highlights_the_words_it_attends_to(page: Any) -> None:
    map = page.locator("#heat-map")
    for words, others, cells in (
        ("thead th", "tbody th", map.locator("td:nth-child(3)")),
        ("tbody th", "thead th", map.locator("tbody tr").nth(1).locator("td")),
    ):
        map.locator(words).nth(1).hover()
        weights, partners = weights_in(cells), map.locator(f"{others}.partner")
        shares = partners.evaluate_all("words => words.map(word => +word.style.getPropertyValue('--weight'))")
        assert shares == pytest.approx([weight / max(weights) for weight in weights])
    page.locator("#text textarea").hover()
    page.locator("#heat-map .partner").first.wait_for(state="detached")


def test_attention_is_beside_the_text_and_above_the_fold(page: Any) -> None:
    for width, beside in {1000: True, 999: False, 1400: True}.items():
        page.set_viewport_size({"width": width, "height": 900})
        map, text, button = (page.locator(place).bounding_box() for place in ("#heat-map tbody", "#text", "#translate"))
        assert (map["x"] > text["x"] + text["width"]) is beside
        assert (map["y"] < 600) is beside
        assert button["width"] < 200


def test_the_api_has_one_function(address: str, translator) -> None:
    with urllib.request.urlopen(f"{address}gradio_api/info") as answer:
        assert list(json.load(answer)["named_endpoints"]) == ["/translate"]
    call = f"{address}gradio_api/call/translate"
    data = json.dumps({"data": [f"{ENGLISH[0]} {ENGLISH[1]}", 4, 0.6, False, None]}).encode()
    request = urllib.request.Request(call, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        event = json.load(answer)["event_id"]
    with urllib.request.urlopen(f"{call}/{event}") as answer:
        assert json.loads(answer.read().decode().partition("data: ")[2]) == [
            " ".join(translator.translate(ENGLISH[:2]))
        ]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_space_is_accessible(page: Any, address: str, theme: str) -> None:
    page.goto(f"{address}?__theme={theme}")
    page.locator("#heat-map td[tabindex='0']").focus()
    assert accessibility_violations(page) == []
    picture = Image.open(io.BytesIO(page.locator("#heat-map figure span").first.screenshot())).convert("L")
    assert (np.median(np.asarray(picture)) < 128) == (theme == "dark"), "the pictures of the heads follow the theme"


def test_a_phone_needs_no_sideways_scrolling(browser: Any, address: str) -> None:
    with browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True) as context:
        page = context.new_page()
        page.goto(address)
        page.locator("#heat-map td[tabindex='0']").wait_for()
        outside = """width => [...document.querySelectorAll('button, input, textarea, p, h1, h2, figure')]
            .filter(e => e.checkVisibility() && e.getBoundingClientRect().right > width + 1)
            .map(e => e.outerHTML.slice(0, 200))"""
        assert page.evaluate(outside, PHONE["width"]) == []
        assert page.evaluate("document.documentElement.scrollWidth") == PHONE["width"]
        page.locator("#heat-map td").nth(3).tap()
        assert " attends to " in page.locator("#heat-map .readout").inner_text()


def test_a_missing_model_id_is_a_one_line_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [PYTHON, SPACE / "app.py"], env=environment(), cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert re.fullmatch(r"error: MODEL_ID is not set; [^\n]*\n", done.stderr)


@pytest.mark.parametrize(("named", "asked"), [("owner/chosen", "v1"), ("owner/other", "main")])
def test_the_revision_of_a_space_is_one_of_its_own_model(tmp_path: Path, named: str, asked: str) -> None:
    """MODEL_ID, a variable of the Space, may name another model than model.json, which has no such commit or tag."""
    main(["space", "owner/chosen", f"{OWNER}/space", "--to-folder", str(tmp_path / "space"), "--revision", "v1"])
    with HubServer() as hub:
        variables = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1", "MODEL_ID": named}
        command = [PYTHON, tmp_path / "space" / "app.py"]
        done = subprocess.run(command, env=environment(**variables), cwd=tmp_path, capture_output=True, timeout=120)
        assert done.returncode == 1  # there are no models
        assert {path.split("/")[4] for _, path, _ in hub.log if f"{named}/resolve/" in path} == {asked}


ASK_THE_APP = """
import json, sys
sys.path.insert(0, sys.argv[1])
import app
answers = {}
for beams in (1, 4):
    (found,) = app.translate(sys.argv[2], beams)
    maps = app.compute_attention(app.translator, found.source, found.targets[0])
    shapes = {kind: weights.shape for kind, weights in maps.weights.items()}
    answers[beams] = [found.targets, found.texts, found.scores, shapes, maps.columns["cross"], maps.rows["cross"]]
print(json.dumps(answers))
"""


def test_rarer_configurations_translate(tmp_path: Path) -> None:
    """Two vocabularies, learned positions, unequal stacks, and greedy search, whose score the app computes."""
    model = untrained_model(
        vocab_size=277,
        decoder_vocab_size=300,
        share_encoder_decoder_embeddings=False,
        position_embedding_type="learned",
        max_position_embeddings=100,
        encoder_layers=3,
    )
    source, target = train_tokenizer(ENGLISH, 277), train_tokenizer(GERMAN + ENGLISH, 300)
    model.save_pretrained(tmp_path / "model")
    source.save_pretrained(tmp_path / "model")
    target.save_pretrained(tmp_path / "model" / "target_tokenizer")
    for name, content in contents_of(tmp_path / "model").items():
        (tmp_path / "hub" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "hub" / name).write_bytes(content)
    sentence = ENGLISH[0]
    env = environment(MODEL_ID=str(tmp_path / "hub"), HF_HOME=str(tmp_path / "home"), HF_HUB_OFFLINE="1")
    command = [PYTHON, "-c", ASK_THE_APP, SPACE, sentence]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    translator = Translator.from_pretrained(tmp_path / "model")
    source_labels = token_labels(source, source(sentence)["input_ids"])
    for beams, (targets, texts, scores, shapes, across, down) in json.loads(done.stdout.splitlines()[-1]).items():
        (expected,) = translator.find_hypotheses([sentence], num_beams=int(beams), num_return_sequences=int(beams))
        assert targets == [hypothesis.tokens for hypothesis in expected]
        assert texts == [hypothesis.text for hypothesis in expected]
        assert scores == pytest.approx([hypothesis.score for hypothesis in expected], abs=1e-3)
        size, length = len(source_labels), len(targets[0])
        assert shapes == {
            "cross": [2, 2, length, size],
            "encoder": [3, 4, size, size],
            "decoder": [2, 2, length, length],
        }
        assert across == without_marks(source_labels)
        assert down == without_marks(token_labels(target, targets[0]))


ASK_FOR_EXAMPLES = """
import json, sys
sys.path.insert(0, sys.argv[1])
import app
examples, tokens = app.card_examples(), app.LANGUAGES.values()
found = [app.translate(text, language=token)[0].texts[0] for text in examples for token in tokens]
print(json.dumps([app.LANGUAGES, examples, found]))
"""


def test_visitors_choose_the_language_of_the_examples(tmp_path: Path) -> None:
    """The card's example begins with a token, which would take the place of the chosen language."""
    tokenizer = train_tokenizer(GERMAN + ENGLISH, 300, symbols=["<2de>", "<2fr>"])
    untrained_model(vocab_size=300).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    options = ["--source-language", "en", "--example", ENGLISH[0], "--no-pictures"]
    main(["push", str(tmp_path / "model"), f"{OWNER}/model", "--to-folder", str(tmp_path / "hub"), *options])
    env = environment(MODEL_ID=str(tmp_path / "hub"), HF_HOME=str(tmp_path / "home"), HF_HUB_OFFLINE="1")
    command = [PYTHON, "-c", ASK_FOR_EXAMPLES, SPACE]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"text: <2de> {ENGLISH[0]}" in (tmp_path / "hub" / "README.md").read_text(encoding="utf-8")
    translator = Translator.from_pretrained(tmp_path / "model", device="cpu")
    expected = [translator.translate(ENGLISH[0], target_language=language)[0] for language in ("de", "fr")]
    assert json.loads(done.stdout.splitlines()[-1]) == [{"de": "<2de>", "fr": "<2fr>"}, [ENGLISH[0]], expected]
