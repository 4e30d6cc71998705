"""`serve`: what it answers, and that no client, text or number of requests affects the answers to others."""

import asyncio
import contextlib
import html
import json
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ENVIRONMENT, one_fast_in, wait_until
from saved_model import ENGLISH, GERMAN, SIZES, change_json
from tiny_models import make_lively
from translation_server import LANGUAGES, ROOT, Address, Answer, command, in_thread, started

from serving.__main__ import choose_languages
from serving.batches import BATCH_CHARACTERS, BATCH_CHARACTERS_ON_GPU, LEAST_CHARACTERS, Batcher, QueueFullError
from serving.markup import join_html, split_html
from serving.metrics import DISCARDED_BYTES
from serving.service import Limits, Service
from vaswani_transformer import Translator
from vaswani_transformer.cli import main
from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.languages import read_languages
from vaswani_transformer.onnx_translator import OnnxTranslator
from vaswani_transformer.tokenization import train_tokenizer
from vaswani_transformer.translator import Hypothesis

STATED = ("--source-language", "en", "--target-language", "de")


class Panic(BaseException):
    """What a library in Rust raises is no Exception."""


class Gated(OnnxTranslator):
    """Translates when its gate is open, and fails for texts with the word `poison`; `batches` are the texts."""

    gate: threading.Event
    batches: list[list[str]]

    def find_hypotheses(self, texts: Any, **options: Any) -> list[list[Hypothesis]]:
        self.batches.append(list(texts))
        self.gate.wait()
        if any("poison" in text for text in texts):
            raise Panic("poison")
        return super().find_hypotheses(texts, **options)


@pytest.fixture
def gated(exported: Path) -> Iterator[Any]:
    translator: Any = Gated.from_pretrained(exported / "onnx", device="cpu", threads=1)
    translator.gate, translator.batches = threading.Event(), []
    yield translator
    translator.gate.set()  # or a failed test would wait for the server


@pytest.fixture(scope="module")
def translator(exported: Path) -> OnnxTranslator:
    return OnnxTranslator.from_pretrained(exported / "onnx", device="cpu", threads=1)


@pytest.fixture(scope="module")
def server(exported: Path) -> Iterator[Address]:
    with command(exported / "onnx", *STATED) as (address, _):
        yield address


class Requests:
    """Requests that run in threads."""

    def __init__(self, send: Callable[[Any], Answer], values: Iterable[Any]):
        self.values = list(values)
        self.answers: dict[int, Answer] = {}

        def run(number: int, value: Any) -> None:
            self.answers[number] = send(value)

        self.threads = [threading.Thread(target=run, args=pair) for pair in enumerate(self.values)]
        for thread in self.threads:
            thread.start()

    def finish(self) -> list[Answer]:
        for thread in self.threads:
            thread.join()
        return [self.answers[number] for number in range(len(self.values))]


# ---- answers -----------------------------------------------------------------------------------------------------


def test_a_text_and_a_list_are_translated_as_by_the_translator(server, translator):
    """In a process without torch and transformers."""
    texts = [*ENGLISH, "", " ", "</s>", "日本語 🙂", "\n".join(ENGLISH)]
    expected = translator.translate(texts)
    assert server.translate(texts).json == {"translatedText": expected}
    assert [server.translate(text).json for text in ENGLISH] == [{"translatedText": text} for text in expected[:4]]


def test_json_forms_and_query_strings_have_the_same_fields(server, translator):
    fields = LANGUAGES | {"q": ENGLISH[1]}
    query = urllib.parse.urlencode(fields)
    form = "".join(f'--x\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items())
    answers = [
        server.post(json.dumps(fields).encode(), "text/plain"),
        server.post(query.encode(), "application/x-www-form-urlencoded"),
        server.post(f"{form}--x--\r\n".encode(), "multipart/form-data; boundary=x"),
        server.request(f"/translate?{query}", b""),
    ]
    assert [answer.json for answer in answers] == [{"translatedText": translator.translate(ENGLISH[1])[0]}] * 4


def test_a_field_that_is_null_or_empty_is_not_given(server, translator):
    """Mastodon sends null for a key that it lacks, and others an empty text."""
    expected = {"translatedText": translator.translate(["The house."])[0]}
    for nothing in (None, ""):
        fields = dict.fromkeys(("api_key", "format", "alternatives", "scores", "attention"), nothing)
        assert server.translate("The house.", **fields).json == expected


def test_a_query_string_or_a_form_may_have_several_texts(server, translator):
    query = urllib.parse.urlencode([*LANGUAGES.items(), *(("q", text) for text in ENGLISH)])
    form = "application/x-www-form-urlencoded"
    expected = {"translatedText": translator.translate(ENGLISH)}
    assert server.request(f"/translate?{query}", b"").json == server.post(query.encode(), form).json == expected


def test_forms_and_query_strings_are_text_in_utf_8_escaped_or_plain(server):
    """`curl -d 'q=Größe'` escapes nothing; Latin-1 would be another text."""
    fields, form = "source=en&target=de&q=", "application/x-www-form-urlencoded"
    part = '--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    parts = "".join(part % pair for pair in (*LANGUAGES.items(), ("q", "42 €"))) + "--x--\r\n"
    multipart = "multipart/form-data; boundary=x"
    answers = [
        server.post(parts.encode(), multipart),
        server.post(parts.encode(), "multipart/form-data; charset=ISO-8859-1; boundary=x"),  # some clients' default
        server.post(f"{fields}42 €".encode(), form),
        server.post(f"{fields}{urllib.parse.quote('42 €')}".encode(), f"{form}; charset=UTF-8"),
        server.request(f"/translate?{fields}{urllib.parse.quote('42 €')}", b""),
    ]
    assert [answer.json for answer in answers] == [{"translatedText": "42 €"}] * 5
    refused = [
        server.post(f"{fields}42 ß".encode("latin-1"), form),
        server.post(f"{fields}42 %DF".encode(), f"{form}; charset=iso-8859-1"),
        server.request(f"/translate?{fields}42%DF", b""),
        server.post(parts.replace("€", "ß").encode("latin-1"), multipart),
    ]
    assert [(answer.status, "send it as UTF-8" in answer.json["error"]) for answer in refused] == [(400, True)] * 4
    file = parts.replace('"q"', '"file"; filename="a.docx"').replace("€", "ß").encode("latin-1")
    assert "files" in server.post(file, multipart).json["error"]


def test_alternatives_and_scores_are_those_of_the_translator(server, translator):
    found = translator.find_hypotheses(ENGLISH, num_return_sequences=3)
    answer = server.translate(ENGLISH, alternatives=2, scores=True).json
    assert answer["translatedText"] == [best.text for best, *_ in found]
    assert answer["alternatives"] == [[other.text for other in others] for _, *others in found]
    scores = [[hypothesis.score for hypothesis in each] for each in found]
    assert answer["scores"] == [pytest.approx(each, abs=1e-4) for each in scores]


def test_the_only_source_language_is_what_auto_means(server):
    for auto in ("auto", "AUTO"):
        answer = server.translate(ENGLISH[0], source=auto).json
        assert answer["detectedLanguage"] == {"language": "en", "confidence": 0}


def test_the_languages_are_those_of_the_model(server):
    english, german = server.request("/languages").json
    assert english == {"code": "en", "name": "English", "targets": ["de"]}
    assert german == {"code": "de", "name": "German", "targets": []}


def test_html_keeps_its_tags_and_the_text_between_them_is_translated(server, translator):
    small, why = translator.translate([ENGLISH[0], ENGLISH[3]])
    page = (
        f'<p class="a&amp;b">{ENGLISH[0]}<br/></p><code>x &lt; y</code><b translate=no>The <i>cat</i></b>\n{ENGLISH[3]}'
    )
    expected = page.replace(ENGLISH[0], small).replace(ENGLISH[3], why)
    assert server.translate(page, format="html").json["translatedText"] == expected


PAGES = [
    "", "a", "<p>a</p", "<", "&amp", "<script>a<b</script>c", "<!-- a --><!doctype html>b", "AT&amp;T &lt;b&gt; \xa0",
    "<p translate='no'>a &lt; b<br><b>c</p>d", "</p>a", "<?php a ?>", "<![CDATA[a]]>b", "<![if IE]>a<![endif]>",
    "<![1]>a", "a<![x[b]]>", "<![CDATA[a", "<![cdata[a>b]]>", "<![", "a<script>b", "<style>a</s", "<pre>a&lt;",
    "a < b > c", "</>a", "</ a>b", "<!-->a", "<!--a--!>b-->c", "<a b='>'>c", "<a b=\"c>d", "<a =>b",
    "<xmp>&lt;<b></xmp>a",
]  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
def test_html_that_is_not_translated_keeps_its_meaning(page):
    """Pieces that are split and joined are the same to a parser."""
    joined = join_html(split_html(page))
    assert split_html(joined) == split_html(page)
    assert html.unescape(joined) == html.unescape(page)


@pytest.mark.parametrize(
    ("page", "texts"),
    [
        ("<svg><foreignObject>a</foreignObject></svg>", ["a"]),
        ("<p translate = 'NO' translate=yes>a</p>b", ["b"]),
        ("<ul><li translate=no>a<li>b</ul><p>c</p>", ["c"]),  # end tags are left out
        ("<pre>a</b>c</pre>d", ["d"]),  # a stray one
        ("<p title='>' translate=no>a</p foo='>'>b", ["b"]),
        ("<a b=c/>d<code/>e", ["d", "e"]),
        ("<script>'<p>a</p>'</SCRIPT\n>b<textarea>&lt;</textareas></textarea>c", ["b", "c"]),
        ("<!--a--!>b<!-- > --->c<!-->d<!--e", ["b", "c", "d"]),
        ("a <b &lt; c", ["a <b < c"]),
    ],
)
def test_html_is_read_as_browsers_do_and_its_tags_are_copied_letter_by_letter(page, texts):
    pieces = split_html(page)
    assert [piece for piece, is_text in pieces if is_text] == texts
    assert html.unescape(join_html(pieces)) == html.unescape(page)


@pytest.mark.parametrize(
    "part", ["<a ", "<a b='", "<a =", "<!--", "<![CDATA[", "<", "</a", "<a>", "<p><b></p>", "<xmp>"]
)
def test_no_html_takes_longer_than_its_length_deserves(part):
    """Python's html.parser takes hours for some of these."""
    begun = time.process_time()
    split_html(part * (500_000 // len(part)))
    assert time.process_time() - begun < 5


def test_attention_has_a_row_for_each_token_of_the_translation(exported):
    translator = Translator.from_pretrained(exported / "model", device="cpu")
    with in_thread(translator) as (address, _):
        answer = address.translate(ENGLISH[0], attention=True).json
    attention = answer["attention"]
    assert attention["source"][-1] == attention["target"][-1] == "</s>"
    assert len(attention["weights"]) == len(attention["target"])
    for row in attention["weights"]:
        assert len(row) == len(attention["source"]) and sum(row) == pytest.approx(1, abs=1e-5)


def lively_translator(folder: Path, tokens: list[str]) -> Any:
    """Return a translator with these language tokens."""
    make_lively(1, vocab_size=SIZES["vocab_size"]).save_pretrained(folder)
    train_tokenizer(GERMAN + ENGLISH, SIZES["vocab_size"], symbols=tokens).save_pretrained(folder)
    return Translator.from_pretrained(folder, device="cpu")


def test_each_text_of_a_batch_gets_its_target_language(tmp_path):
    """Of a model with language tokens, whose languages are the targets."""
    translator = lively_translator(tmp_path, ["<2de>", "<2fr>"])
    texts = [" ".join(ENGLISH), f"\n {ENGLISH[0]} ", "", " "]
    expected = {language: translator.translate(texts, target_language=language) for language in ("de", "fr")}
    assert expected["de"] != expected["fr"]
    with in_thread(translator, targets=translator.languages.names) as (address, _):
        assert address.request("/languages").json[0]["targets"] == ["de", "fr"]
        answers = Requests(lambda language: address.translate(texts, target=language), expected).finish()
        assert [answer.json["translatedText"] for answer in answers] == list(expected.values())
        (small,) = translator.translate(ENGLISH[:1], target_language="fr")
        page = address.translate(f"<p>{ENGLISH[0]}</p>", target="fr", format="html").json["translatedText"]
        assert html.unescape(page) == f"<p>{small}</p>"
        assert address.translate("a", target="es").json == {
            "error": "es is not supported; GET /languages lists the languages"
        }


@pytest.mark.parametrize(
    ("tokens", "target", "listed", "spellings"),
    one_fast_in(2, [
        ([], "deu_Latn", {"de": "German"}, {"de": 0, "deu": 0, "deu_Latn": 0, "German": 0}),
        ([">>deu<<", ">>bel<<", ">>bel_Latn<<"], None,
         {"de": "German", "be": "Belarusian", "bel_Latn": "Belarusian (Latn)"},
         {"de": 0, "deu": 0, "be": 1, "bel": 1, "bel_Latn": 2, "be-Latn": 2}),
        ([">>deu<<", ">>nld<<"], "nl", {"nl": "Dutch"}, {"nl": 1, "nld": 1}),
        ([], "ROMANCE", {"ROMANCE": "Romance languages"}, {"ROMANCE": 0}),
        ([], "eng_Shaw", {"eng_Shaw": "English (Shaw)"}, {"en": 0, "eng_Shaw": 0}),
        (["<2zh-Hans>", "<2zh-Hant>"], None, {"zh-Hans": "Chinese (Hans)", "zh-Hant": "Chinese (Hant)"},
         {"zh-Hant": 1, "zh": 0, "zho_Hans": 0}),
    ]),
)  # fmt: skip
def test_clients_name_languages_by_any_of_their_codes(tokens, target, listed, spellings, tmp_path):
    """Models of OPUS-MT and NLLB have codes of three letters; Mastodon, Weblate and others look for those of two."""
    translator = lively_translator(tmp_path, tokens)
    source, targets = choose_languages(translator, "", ("eng", "mul" if tokens else "fr"), None, target)
    expected = [translator.translate(ENGLISH[0], target_language=token) for token in tokens or [None]]
    assert len({text for (text,) in expected}) == len(expected)
    with in_thread(translator, source=source, targets=targets) as (address, _):
        english, *others = address.request("/languages").json
        assert (english["code"], english["name"].split()[0], english["targets"]) == ("en", "English", list(listed))
        assert {language["code"]: language["name"] for language in others} == listed
        for code, index in spellings.items():
            assert address.translate([ENGLISH[0]], target=code, source="eng").json["translatedText"] == expected[index]
        found = address.translate("a", target=next(iter(listed)), source="auto").json["detectedLanguage"]
        assert found["language"] == "en"
        for refused in ("nld" if target != "nl" else "deu", "es", "de-AT"):
            assert address.translate("a", target=refused).status == 400


def test_the_service_of_the_ray_example_starts(tmp_path, monkeypatch):
    """Ray itself, which tests/test_ray.py runs, is needed only to import the file."""
    lively_translator(tmp_path, [])
    (tmp_path / "README.md").write_text(CARD)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(serve=SimpleNamespace(Application=None)))
    example = runpy.run_path(str(ROOT / "examples/ray/serve.py"))
    app = example["create_app"](example["Arguments"](model=str(tmp_path)))
    answer: list[Any] = []

    async def send(message: Any) -> None:
        answer.append(message)

    scope = {"type": "http", "method": "GET", "path": "/languages", "query_string": b"", "headers": []}
    asyncio.run(app(scope, None, send))
    assert [language["code"] for language in json.loads(answer[1]["body"])] == ["en", "de"]


def test_a_target_that_the_model_lacks_is_refused_at_the_start(tmp_path):
    multilingual = lively_translator(tmp_path, ["<2de>", "<2fr>"])
    with pytest.raises(InputError, match="target_language is 'es'; the model has de, fr"):
        choose_languages(multilingual, "owner/name", ("en", "de"), None, "es")
    with pytest.raises(InputError, match="owner/name does not record its languages; give --source-language$"):
        choose_languages(multilingual, "owner/name", None, None, None)


@pytest.mark.parametrize(
    ("recorded", "given", "warned"),
    [
        (("en", "de"), ("en", "fr"), ["target"]),
        (("eng_Latn", "deu_Latn"), ("French", None), ["source"]),
        (("eng_Latn", "deu_Latn"), ("en-US", "German"), []),
        (("mul", "roa"), ("de", "fr"), []),  # families, of which a server names one
        (None, ("en", "fr"), []),
    ],
)
def test_a_name_that_the_files_of_the_model_contradict_is_a_warning(recorded, given, warned, translator, capsys):
    """--target-language fr makes no model of English and German translate into French."""
    source, targets = choose_languages(translator, "owner/name", recorded, *given)
    assert source == given[0] and targets == [given[1] or "deu_Latn"]
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("-language")[0] for line in lines] == [f"warning: --{side}" for side in warned]
    for line in lines:
        assert line.endswith(" in the files of owner/name; leave it out unless they are wrong")


def test_metrics_count_requests_and_the_texts_of_batches(server):
    name, texts = 'vaswani_requests_total{path="/translate",status="200"}', "vaswani_batch_texts_sum"
    server.translate("a")
    requests, batched = server.metric(name), server.metric(texts)
    assert server.translate(["a", "b"]).status == 200
    assert (server.metric(name), server.metric(texts)) == (requests + 1, batched + 2)
    assert server.metric("vaswani_waiting_characters") == 0


def test_the_api_is_described(server):
    body = server.request("/openapi.json").json["paths"]["/translate"]["post"]["requestBody"]["content"]
    assert {"q", "source", "target", "format"} <= body["application/json"]["schema"]["properties"].keys()
    assert "/openapi.json" in server.request("/docs").json


# ---- errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (b"", 400, "missing q"),
        (b"{", 400, "not valid JSON"),
        (b"[]", 400, "must be an object"),
        (b'{"q": "\xff"}', 400, "not valid JSON"),
        (b'{"q": "a", "source": "en"}', 400, "missing target"),
        (b'{"q": 1, "source": "en", "target": "de"}', 400, "q: it must be a string or a list of strings"),
        (b'{"q": ["a", {}], "source": "en", "target": "de"}', 400, "q: it must be a string or a list of strings"),
        (b'{"q": "a", "source": ["en"], "target": "de"}', 400, "source: "),
        (b'{"q": "\\ud800", "source": "en", "target": "de"}', 400, "lone surrogate"),
        (b'{"q": "a", "source": "en", "target": "fr"}', 400, "fr is not supported"),
        (b'{"q": "a", "source": "de", "target": "de"}', 400, "de is not supported"),
        (b'{"q": "a", "source": "en", "target": "\\ud800"}', 400, "\\ud800 is not supported"),
        (b'{"q": "a", "source": "en", "target": "de", "format": "pdf"}', 400, "format: "),
        (b'{"q": "a", "source": "en", "target": "de", "alternatives": 4}', 400, "the number of beams minus 1, 3"),
        (b'{"q": "a", "source": "en", "target": "de", "alternatives": -1}', 400, "alternatives: "),
        (b'{"q": "a", "source": "en", "target": "de", "attention": true}', 400, "attention needs"),
        (json.dumps(LANGUAGES | {"q": "a" * 5001}).encode(), 413, "5,001 characters; the limit is 5,000"),
        (json.dumps(LANGUAGES | {"q": ["a"] * 101}).encode(), 413, "101 texts; the limit is 100"),
        (b" " * 80_000, 413, "longer than 76,384 bytes"),
    ],
)  # fmt: skip
def test_errors_are_one_sentence_of_json(server, body, status, error):
    answer = server.post(body)
    assert answer.status == status and answer.json.keys() == {"error"}
    assert error in answer.json["error"] and "\n" not in answer.json["error"]


def test_json_that_is_nested_too_deeply_is_refused(server):
    """By the parser, or by the check of types: Python 3.14 parses tens of thousands of levels."""
    answer = server.post(b'{"q": %s%s, "source": "en", "target": "de"}' % (b"[" * 30_000, b"]" * 30_000))
    assert answer.status == 400 and re.search("nested too deeply|q: it must be", answer.json["error"])


def test_forms_and_headers_that_cannot_be_read_are_neither_bugs_nor_logged(exported):
    head = b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\n'
    with command(exported / "onnx", *STATED) as (address, process):
        for charset in ("undefined", "punycode", "idna", "hex", "utf-16", "x" * 1000):
            for body in (b"", b"q", b"--x\n", b"--x\r\n: \r\n", head + b"\xff\r\n--x--\r\n"):
                answer = address.post(body, f"multipart/form-data; boundary=x; charset={charset}")
                assert answer.status == 400 and answer.json.keys() == {"error"}
        accepted = "application/openmetrics-text; version=x"
        assert "vaswani_requests_total" in address.request("/metrics", accept=accepted).json
        process.terminate()
        assert process.wait() == 0
        assert process.stderr is not None and process.stderr.read() == ""


def test_unknown_paths_and_methods_are_errors_of_json(server):
    assert server.request("/nowhere").json == {"error": "Not Found"}
    assert server.request("/translate").json == {"error": "Method Not Allowed"}


def test_every_page_has_the_headers_that_monitors_ask_for(server):
    for path in ("/health", "/languages", "/metrics", "/docs", "/openapi.json"):
        connection = server.connect(f"HEAD {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".encode())
        head, _, body = receive(connection).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ") and body == b""
    assert all("head" not in methods for methods in server.request("/openapi.json").json["paths"].values())


def receive(connection: socket.socket) -> bytes:
    """Return what a server sends until it closes the connection, and close it here, too."""
    received = b""
    with connection, contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            received += part
    return received


def test_what_is_not_http_is_answered_and_the_connection_closed(server):
    for data in (
        b"\x16\x03\x01\x02\x00\r\n\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    ):
        received = receive(server.connect(data))
        assert received.startswith(b"HTTP/1.1 400 ") and received.endswith(
            b'{"error": "Invalid HTTP request received."}'
        )


def test_a_body_without_end_is_refused_and_the_connection_closed(server):
    head = b"POST /translate HTTP/1.1\r\nhost: a\r\n"
    with server.connect(head + b"transfer-encoding: chunked\r\n\r\n") as connection:
        chunk, sent = b"10000\r\n" + b"x" * 0x10000 + b"\r\n", 0
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            while sent < 100 * DISCARDED_BYTES:
                connection.sendall(chunk)
                sent += len(chunk)
    with server.connect(head + b"content-length: 9999999999\r\n\r\n{}") as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    ("version", "path", "status"),
    [("1.0", "/translate", 413), ("1.1", "/translate", 413), ("1.1", "/translate_file", 404), ("1.1", "/health", 405)],
)
def test_a_client_that_still_sends_its_body_gets_the_response(server, version, path, status):
    """Also if it asks for the end of the connection, as urllib does, and nginx, which speaks HTTP/1.0."""
    body = b"a" * 400_000
    head = f"POST {path} HTTP/{version}\r\nhost: a\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    connection = server.connect(head.encode())
    for start in range(0, len(body), 40_000):  # slower than the response
        connection.sendall(body[start : start + 40_000])
        time.sleep(0.02)
    assert receive(connection).startswith(f"HTTP/1.1 {status} ".encode())


# ---- one client does not affect others ---------------------------------------------------------------------------


def test_concurrent_requests_share_batches_and_each_gets_its_own_answer(gated, translator):
    texts = [f"{sentence} {number}" for number in range(5) for sentence in ENGLISH + GERMAN]
    with in_thread(gated) as (address, _):
        answers = answers_of_one_batch(address, gated, texts)
    assert [answer.json["translatedText"] for answer in answers] == translator.translate(texts)
    assert sorted(gated.batches[1]) == sorted(texts) and len(gated.batches) == 2


def answers_of_one_batch(address: Address, gated: Any, texts: list[str]) -> list[Answer]:
    """Send a request for each text at the same time, while the batch of an earlier request is running."""
    first = Requests(address.translate, ["a"])
    wait_until(lambda: gated.batches)
    requests = Requests(address.translate, texts)
    characters = sum(max(len(text), LEAST_CHARACTERS) for text in texts)
    wait_until(lambda: address.metric("vaswani_waiting_characters") == characters)
    gated.gate.set()
    first.finish()
    return requests.finish()


def test_a_text_that_fails_spoils_no_other_of_its_batch(gated, translator):
    texts = [*ENGLISH, "poison", *GERMAN]
    with in_thread(gated) as (address, _):
        answers = answers_of_one_batch(address, gated, texts)
    assert set(gated.batches[1]) == set(texts)
    assert answers.pop(4).status == 500
    assert [answer.json["translatedText"] for answer in answers] == translator.translate(ENGLISH + GERMAN)


def test_texts_of_clients_that_have_left_are_not_translated(gated):
    body = json.dumps(LANGUAGES | {"q": ENGLISH[0]}).encode()
    head = b"POST /translate HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % len(body)
    with in_thread(gated) as (address, _):
        first = Requests(address.translate, ["a"])
        wait_until(lambda: gated.batches)
        connections = [address.connect(head + body) for _ in range(20)]
        wait_until(lambda: address.metric("vaswani_waiting_characters") == 20 * 20)
        for connection in connections:
            connection.close()
        wait_until(lambda: address.metric("vaswani_waiting_characters") == 0)
        gated.gate.set()
        assert first.finish()[0].status == 200 and address.translate("b").status == 200
    assert gated.batches == [["a"], ["b"]]


def test_a_full_queue_is_refused_at_once_and_empties(gated):
    with in_thread(gated, Limits(queue=100)) as (address, _):
        first = Requests(address.translate, ["a"])
        wait_until(lambda: gated.batches)
        accepted = Requests(address.translate, ["b" * 60, "c" * 60])
        wait_until(lambda: address.metric("vaswani_waiting_characters") == 120)
        refused = address.translate("d")
        assert refused.status == 429 and "the queue is full" in refused.json["error"]
        assert int(refused.headers["Retry-After"]) >= 1
        assert address.request("/health").json == {"status": "ok"}
        gated.gate.set()
        assert [answer.status for answer in first.finish() + accepted.finish()] == [200] * 3
        assert address.translate("d").status == 200


def test_silent_connections_do_not_keep_clients_out(translator):
    """The connection that has waited longest for its client is closed, also in the middle of a request."""
    beginnings = [
        b"",
        b"GET /health HTTP/1.1\r\n",
        b"POST /translate HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n{",
    ]
    with in_thread(translator, most=10, header_seconds=100) as (address, _):
        silent = [address.connect(beginnings[number % 3]) for number in range(40)]
        assert address.translate(ENGLISH[0]).status == 200
        for connection in silent[:20]:
            assert receive(connection) == b""
        for connection in silent:
            connection.close()


def test_requests_that_arrive_while_the_server_is_busy_are_answered(translator):
    """They are not silent: the server has not read them yet."""
    with in_thread(translator, most=10) as (address, server), address.connect():
        wait_until(lambda: server.server_state.connections)
        (connection,) = server.server_state.connections
        connection.loop.call_soon_threadsafe(time.sleep, 0.5)
        request = b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
        clients = [address.connect(request) for _ in range(40)]
        assert all(receive(client).startswith(b"HTTP/1.1 200") for client in clients)


def test_a_connection_is_closed_if_headers_are_slow(translator):
    with in_thread(translator, header_seconds=0.2) as (address, _):
        connection = address.connect(b"GET /health HTTP/1.1\r\nhost: a\r\n")
        with connection, pytest.raises((BrokenPipeError, ConnectionResetError)):
            while True:
                connection.sendall(b"a: b\r\n")
                time.sleep(0.05)


def test_a_client_that_does_not_read_is_closed_when_there_are_too_many(translator):
    with in_thread(translator, most=5) as (address, _), contextlib.ExitStack() as others:
        deaf = address.connect()
        deaf.setblocking(False)

        def is_closed() -> bool:
            """Send more requests, and open connections that wait for less long."""
            try:
                while True:  # until neither side takes more
                    deaf.send(b"GET /openapi.json HTTP/1.1\r\nhost: a\r\n\r\n")
            except BlockingIOError:
                others.enter_context(address.connect())
            except (BrokenPipeError, ConnectionResetError):
                return True
            return False

        wait_until(is_closed)
        deaf.close()
        assert address.translate(ENGLISH[0]).status == 200


def test_a_body_does_not_wait_for_the_acknowledgement_of_its_headers(translator):
    with (
        in_thread(translator) as (address, server),
        address.connect(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n") as client,
    ):
        assert client.recv(1)
        (connection,) = server.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


# ---- batches -----------------------------------------------------------------------------------------------------


def echo(texts: list[str], count: int, one_thread: bool) -> list[list[Hypothesis]]:
    return [[Hypothesis(f"{text} {number}", 0.0, []) for number in range(count)] for text in texts]


def run_batches(requests: list[tuple[list[str], int]]) -> tuple[list[list[list[Hypothesis]]], list[list[str]]]:
    """Return the results of concurrent requests, and the batches in which they were translated."""
    batches: list[list[str]] = []

    def translate(texts: list[str], count: int, one_thread: bool) -> list[list[Hypothesis]]:
        batches.append(texts)
        return echo(texts, count, one_thread)

    async def run() -> list[list[list[Hypothesis]]]:
        batcher = Batcher(translate, 10**6, lambda *numbers: None, most=1)
        async with batcher.open():
            return await asyncio.gather(*(batcher.translate(texts, count) for texts, count in requests))

    return asyncio.run(run()), batches


def test_a_batch_is_limited_and_in_the_order_of_arrival():
    texts = [f"{number}".zfill(BATCH_CHARACTERS // 4) for number in range(10)]
    long = "x" * (2 * BATCH_CHARACTERS)
    results, batches = run_batches([([text], 1) for text in [*texts, long, "y"]])
    assert [each[0][0].text for each in results] == [f"{text} 0" for text in [*texts, long, "y"]]
    assert batches == [texts[:4], texts[4:8], texts[8:], [long], ["y"]]


def test_batches_on_a_gpu_are_larger(translator, monkeypatch):
    for cores, largest in ((2, BATCH_CHARACTERS), (None, BATCH_CHARACTERS_ON_GPU)):
        monkeypatch.setattr(translator, "count_cores", lambda cores=cores: cores)
        service = Service(translator, "en", ["de"], Limits(), lambda *numbers: None)
        assert service.batcher.batch_characters == largest


def test_each_request_gets_as_many_hypotheses_as_it_asks_for():
    """In batches of their own: a search for more hypotheses may find a better one."""
    results, batches = run_batches([(["a"], 1), (["b", "c"], 3), (["d"], 1)])
    assert results == [echo(["a"], 1, False), echo(["b", "c"], 3, False), echo(["d"], 1, False)]
    assert batches == [["a", "d"], ["b", "c"]]


def test_a_translation_does_not_depend_on_the_alternatives_that_others_ask_for(exported, tmp_path):
    """With early_stopping false, as in transformers' models, a search for more hypotheses goes on for longer."""
    folder = shutil.copytree(exported / "onnx", tmp_path / "onnx")
    change_json(folder / "generation_config.json", early_stopping=False, length_penalty=2.0)
    translator = OnnxTranslator.from_pretrained(folder, device="cpu", threads=1)
    words = " ".join(ENGLISH).split()
    texts = [" ".join(words[start : start + 3]) for start in range(len(words) - 2)]
    expected = translator.translate(texts)
    assert expected != [best.text for best, *_ in translator.find_hypotheses(texts, num_return_sequences=4)]
    with in_thread(translator) as (address, _), ThreadPoolExecutor(2) as pool:
        for _ in range(5):
            others = pool.submit(address.translate, texts, alternatives=3)
            assert address.translate(texts).json["translatedText"] == expected
            assert others.result().status == 200


def test_batches_run_side_by_side_and_share_what_waits():
    meeting, begun = threading.Barrier(2, timeout=60), []

    def translate(texts: list[str], count: int, one_thread: bool) -> list[list[Hypothesis]]:
        begun.append((texts, one_thread))
        meeting.wait()  # raises BrokenBarrierError if the other batch does not begin
        return echo(texts, count, one_thread)

    async def run() -> list[list[list[Hypothesis]]]:
        batcher = Batcher(translate, 10**6, lambda *numbers: None, most=2)
        async with batcher.open():
            return await asyncio.gather(*(batcher.translate([text], 1) for text in "abcd"))

    assert asyncio.run(run()) == [echo([text], 1, True) for text in "abcd"]
    assert sorted(begun) == [(["a", "b"], True), (["c", "d"], True)]


def test_a_batch_alone_uses_all_cores_and_one_that_joins_it_uses_one():
    release, begun = threading.Event(), []

    def translate(texts: list[str], count: int, one_thread: bool) -> list[list[Hypothesis]]:
        begun.append((texts, one_thread))
        release.wait(60)
        return echo(texts, count, one_thread)

    async def run() -> None:
        batcher = Batcher(translate, 10**6, lambda *numbers: None, most=2)
        async with batcher.open(), asyncio.timeout(60):
            requests = []
            for count, text in enumerate("ab", start=1):
                requests.append(asyncio.create_task(batcher.translate([text], 1)))
                while len(begun) < count:
                    await asyncio.sleep(0.001)
            release.set()
            await asyncio.gather(*requests)

    asyncio.run(run())
    assert begun == [(["a"], False), (["b"], True)]


def test_only_batches_side_by_side_tell_how_long_a_full_queue_takes():
    """A batch that runs alone, as in quiet traffic, is faster: it has all CPU threads."""

    async def run() -> None:
        batcher = Batcher(echo, 10**5, lambda *numbers: None, most=2)

        def seconds() -> int:
            batcher.characters += 10**5
            with pytest.raises(QueueFullError) as error:
                batcher.refuse_if_full()
            batcher.characters -= 10**5
            return error.value.retry_after

        async with batcher.open():
            guess = seconds()
            for _ in range(20):
                await batcher.translate(["a" * 4000], 1)
            assert seconds() == guess
            for _ in range(20):
                await batcher.translate(["a" * 4000] * 2, 1)
            assert seconds() < guess

    asyncio.run(run())


def test_every_thread_is_started_before_the_first_batch():
    async def run() -> None:
        async with Batcher(echo, 10, lambda *numbers: None, most=3).open():
            assert sum(thread.name.startswith("translate") for thread in threading.enumerate()) == 3

    asyncio.run(run())


def test_a_request_larger_than_the_queue_is_accepted_if_the_queue_is_empty():
    async def run() -> None:
        batcher = Batcher(echo, 10, lambda *numbers: None, most=1)
        async with batcher.open():
            large = asyncio.create_task(batcher.translate(["a" * 50], 1))
            await asyncio.sleep(0)
            with pytest.raises(QueueFullError):
                await batcher.translate(["b"], 1)
            assert await large == echo(["a" * 50], 1, False)

    asyncio.run(run())


# ---- the command -------------------------------------------------------------------------------------------------


def test_a_key_is_required_if_the_server_has_one(translator):
    with in_thread(translator, api_key="secret") as (address, _):
        for given in ({}, {"api_key": "public"}, {"api_key": None}, {"api_key": "é"}):
            answer = address.translate("a", **given)
            assert answer.status == 403 and "API key" in answer.json["error"]
        assert address.request("/metrics").status == 403
        assert address.translate("a", api_key="secret").status == 200
        assert address.request("/metrics", Authorization="Bearer secret").status == 200
        assert address.request("/health").status == address.request("/languages").status == 200


@pytest.mark.parametrize("key", ["", " ", "secret\n", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_refused(refused, exported, monkeypatch, key):
    """An empty variable would open the server to all; with the line break of a file, no client would have the key."""
    monkeypatch.setenv("VASWANI_API_KEY", key)
    assert "the API key is empty, has characters" in refused(main, ["serve", exported / "onnx", *STATED])


def test_pages_of_other_origins_read_no_answers_unless_they_are_allowed(server, translator):
    header = "Access-Control-Allow-Origin"
    assert server.request("/languages", Origin="https://a.example").headers[header] is None
    with in_thread(translator, origins=["https://a.example"]) as (address, _):
        assert address.request("/languages", Origin="https://a.example").headers[header] == "https://a.example"
        assert address.request("/languages", Origin="https://b.example").headers[header] is None


@pytest.mark.parametrize(
    "origin", ["https://a.example/", "a.example", "https://A.example", "https://a.example https://b"]
)
def test_an_origin_that_no_browser_sends_is_refused(refused, exported, origin):
    error = refused(main, ["serve", exported / "onnx", *STATED, "--allow-origin", "*", "--allow-origin", origin])
    assert f"--allow-origin {origin}: write it as browsers do, such as https://example.org" in error


def test_requests_are_finished_and_no_new_ones_accepted_when_the_server_ends(gated):
    with in_thread(gated) as (address, server):
        requests = Requests(address.translate, [ENGLISH[0]])
        wait_until(lambda: gated.batches)
        server.should_exit = True
        wait_until(lambda: not is_open(address))
        gated.gate.set()
        assert requests.finish()[0].status == 200


def is_open(address: Address) -> bool:
    try:
        address.connect().close()
    except ConnectionRefusedError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_with_exit_code_0(exported, number):
    with command(exported / "onnx", *STATED) as (address, process):
        requests = Requests(address.translate, [ENGLISH * 20])
        wait_until(lambda: address.metric("vaswani_batch_texts_count") or requests.answers)
        process.send_signal(number)
        assert process.wait() == 0
        assert requests.finish()[0].status == 200
        assert process.stderr is not None and process.stderr.read() == ""


def test_an_address_that_is_taken_is_named(refused, exported):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        error = refused(main, ["serve", exported / "onnx", *STATED, "--port", port], code=4)
        assert f"--port {port}: Address already in use" in error and error.count("\n") == 1
    assert "--host" in refused(main, ["serve", exported / "onnx", *STATED, "--host", "no.invalid"])


def test_a_model_without_languages_asks_for_them(refused, exported):
    error = refused(main, ["serve", exported / "onnx", "--port", 0])
    assert error.startswith(f"error: {exported / 'onnx'} does not record its languages; give --source-language and --t")


CARD = "---\nlanguage:\n- en\n- de\n---\n# A model\n"


@pytest.mark.parametrize(
    ("file", "content", "languages"),
    [
        ("run.json", '{"recipe": {"source_language": "en", "target_language": "de"}}', ("en", "de")),
        ("run.json", '{"recipe": {"source_language": "en", "target_language": null}}', None),
        ("conversion.json", '{"options": {"source_lang": "en", "target_lang": "de"}}', ("en", "de")),
        ("export.json", '{"languages": ["en", "de"]}', ("en", "de")),
        ("README.md", CARD, ("en", "de")),
        ("README.md", CARD.replace("- de", "- de\n- fr\ntags:\n- vaswani_transformer"), ("en", "de")),
        ("README.md", CARD.replace("- de", "- de\n- fr\ntags:\n- translation"), None),  # whose first may be a target
        ("run.json", '{"recipe": {"source_language": "src", "target_language": "tgt"}}', None),  # of two-way text
        ("README.md", CARD.replace("- de", "- no"), ("en", "no")),  # false in YAML
        (
            "README.md",
            CARD.replace("- en\n- de", "- zh\nlanguage_details:\n- zho_Hans\n- zho_Hant\ntags:\n- vaswani_transformer"),
            ("zho_Hans", "zho_Hant"),
        ),
        ("README.md", CARD.replace("- de\n", ""), None),
        ("README.md", "# A model\n", None),
        ("config.json", "{}", None),
    ],
)
def test_the_languages_come_from_the_records_of_a_model(tmp_path, file, content, languages):
    (tmp_path / file).write_text(content, encoding="utf-8")
    assert read_languages(tmp_path) == languages


def test_the_languages_of_a_strangers_model_are_printed_without_escapes(exported, tmp_path):
    folder = Path(shutil.copytree(exported / "onnx", tmp_path / "onnx"))
    change_json(folder / "export.json", languages=["en", "\x1b]0;title\x07"])
    words = [sys.executable, "-m", "vaswani_transformer", "serve", str(folder), "--port", "0"]
    process = subprocess.Popen(words, cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    first = process.stderr.readline()
    process.kill()
    process.communicate()
    assert first.startswith(r"en to \x1b]0;title\x07: <OnnxTranslator")


def test_the_search_of_the_command_line_is_used_and_printed(exported):
    with command(exported / "onnx", *STATED, "--num-beams", "2") as (address, _):
        assert "beam 2, length penalty 0.6" in address.printed
        assert "the number of beams minus 1, 1" in address.translate("a", alternatives=2).json["error"]


@pytest.mark.parametrize("metadata", ["a: [", "a: " + "[" * 5000])
def test_a_card_whose_metadata_cannot_be_read_is_named(tmp_path, metadata):
    (tmp_path / "README.md").write_text(f"---\n{metadata}\n---\n")
    with pytest.raises(BrokenFileError, match="README.md: the metadata is not valid YAML"):
        read_languages(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_container_file_builds_a_server_from_the_wheel(exported, tmp_path, translator):
    """Its steps run in a folder instead of a container: the build, then the entry point."""
    folder = ROOT / "serving" / "container"
    steps = dict(re.findall(r"^(RUN|ENTRYPOINT) (.*)$", (folder / "Containerfile").read_text("utf-8"), re.MULTILINE))
    box = shutil.copytree(folder, tmp_path / "box")
    shutil.copy(ROOT / "constraints.txt", box)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", box, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    places = {"/box": str(box), "/opt/vaswani": str(tmp_path / "vaswani"), "/model": str(exported / "onnx")}

    def placed(words: str) -> str:
        for name, place in places.items():
            words = re.sub(rf"(?<![\w/]){name}\b", place, words)
        return words

    path = f"{Path(sys.executable).parent}:{ENVIRONMENT['PATH']}"
    subprocess.run(placed(steps["RUN"]), shell=True, check=True, env=os.environ | {"PATH": path}, cwd=tmp_path)
    assert not box.exists() and not list(tmp_path.glob("vaswani/lib/*/site-packages/torch"))
    words = json.loads(placed(steps["ENTRYPOINT"]))
    with started([*words, *STATED, "--port", "0"], tmp_path, {"PATH": ENVIRONMENT["PATH"]}) as (address, _):
        assert address.translate(ENGLISH).json["translatedText"] == translator.translate(ENGLISH)
