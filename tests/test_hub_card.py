"""Text of others in the model card stays text: it adds no tag, image, link or block, and names no local folder."""

import json
import re
import shlex
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import one_fast_in
from hub_server import WRITE_TOKEN
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from test_hub_push import ROW, refusal, rows

from hub.card import default_example, training_curve, write_card
from hub.contents import read_export_record
from hub.markdown import as_one_line, block, code, note, show
from hub.provenance import Provenance, public_command, public_recipe
from training.checkpoints import write_manifest
from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.files import files_sha256
from vaswani_transformer.model_folder import weight_files

# HTML is on, as on the Hub, which sanitises it but shows images and links.
MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
BLANK = re.compile("FILLER|PATTERN BLANK|VARIATION SELECTOR|JOINER")  # in the names of characters that show nothing
ADDRESS = re.compile(r"https?://|www\.|@evil")  # renderers make links of these, except in code

PAYLOADS = [
    "<img src=https://evil.example/p.png>", "<b>bold</b>", "</details>", "<!-- comment", "<?php",
    "<script>alert(1)</script>",
    "![i](https://evil.example/p.png)", "[l](javascript:alert(1))", "[l][r]\n\n[r]: x.html", "<https://evil.example>",
    "https://evil.example", "www.evil.example", "me@evil.example", "a\n\n# Heading\n", "# Heading", "- item", "1. item",
    "> quote", "---", "===", "***", "    code", "```\n\n<b>\n", "\n```\n<b>", "````", "~~~\n<b>", "``", "`", "` <b> `",
    "\n| a | b |\n|---|---|\n", "a|b", "a\\", "\\<b>", "**bold** _it_ ~~no~~", "&lt;b&gt; &copy;", "a  \nb",
    "\x1b[31m", "\u202eb", "a\u3164\u115f\u1160\uffa0\u2800b", "a\ufe0f\ufe00\U000e0100\U000e01ef\U000e0041\u034f",
    "{{ 7 * 7 }}", "{% raw %}", "\n---\nlicense: mit\n---\n", "x: [y", "$$x$$",
]  # fmt: skip

WORST = [
    "a\n\n````\n\n# H\n\n<b>![i](x.png)",
    "<img src=x> ![i](x.png) [l](x) | www.evil.example \x1b[31m \u2028* c\x85* d \u3164\u2800\U000e0101",
]

IN_RUN = {
    "command": (), "source_language": ("recipe",), "target_language": ("recipe",), "data": ("recipe",),
    "dataset": ("recipe",), "initial_weights": ("recipe",), "train": ("recipe",), "preset": ("fixed_keys",),
}  # fmt: skip
FIELDS = [
    *(("run.json", name) for name in IN_RUN),
    ("run.json", "a key"),
    *(("manifest.json", name) for name in ("torch", "transformers", "mixed_precision", "device")),
    *(("conversion.json", name) for name in ("toolkit", "file", "source_lang", "target_lang")),
    ("CONVERSION.md", "a note"),
    ("CONVERSION.md", "a whole line"),
    *(("results", name) for name in ROW if name not in ("bleu", "bleu_lowercase", "chrf", "weights_sha256")),
    ("files", "a graph"),
    ("files", "model.onnx and a graph"),
    ("options", "example"),
]


def write_record(folder: Path, place: str, name: str, text: str) -> None:
    """Write the files of a trained or converted model, with the text in one field."""
    if place in ("conversion.json", "CONVERSION.md"):
        record: dict[str, Any] = {"toolkit": "marian", "file": "a.npz"}
        options = {"source_lang": "en", "target_lang": "de"}
        (options if name in options else record)[name] = text
        (folder / "conversion.json").write_text(json.dumps(record | {"options": options}))
        text = text.replace("\n", " ")  # each line is a note
        line = {"a note": f"* {text}", "a whole line": text}.get(name, "* A note on `<unk>`.")
        (folder / "CONVERSION.md").write_text(f"# Converted\n\n{line}\n", encoding="utf-8")
        return
    recipe = {"source_language": "en", "target_language": "de", "data": "news", "train": ["a"]}
    run: dict[str, Any] = {"command": "train", "recipe": recipe, "fixed_keys": {"preset": "base"}}
    if place == "run.json":
        run["recipe"] |= {"initial_weights": "base"}
        run["fixed_keys"] |= {text: 1} if name == "a key" else {}
        for table in [run[key] for key in IN_RUN.get(name, ())] or [run]:
            table[name] = text
    (folder / "run.json").write_text(json.dumps(run))
    environment = {"torch": "2", "transformers": "5", "mixed_precision": "no", "device": "cpu"}
    environment |= {name: text} if place == "manifest.json" else {}
    progress = {"step": 4, "tokens": 5, "seconds": 6.0, "cpu_seconds": 7.0}
    write_manifest(folder, [folder / "model.safetensors"], progress=progress, environment=environment)


def card_with(folder: Path, translator: Any, place: str, name: str, text: str) -> str:
    write_record(folder, place, name, text)
    results = rows(folder / "results.csv", folder, {name: text} if place == "results" else {})
    provenance = Provenance(folder, files_sha256(*weight_files(folder)), [results], {"license": None})
    names = {"a graph": [text], "model.onnx and a graph": ["model", text]}.get(name, [])
    example = text if name == "example" and text.strip() else None
    return write_card("tester/model", translator, provenance, {f"onnx/{n}.onnx": b"" for n in names}, example=example)


def flatten(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from flatten(token.children or [])


def find_structure(card: str) -> list[tuple[Any, ...]]:
    """Return all elements of a card's body except plain text and code within lines, with addresses and raw HTML."""
    body, found = card.split("\n---\n", 1)[1], []
    for token in flatten(MARKDOWN.parse(body)):
        html = token.content if token.type.startswith("html") else ""
        if token.type == "text":
            assert not ADDRESS.search(token.content), token.content
        elif token.type not in ("code_inline", "text_special", "inline"):
            found.append((token.type, token.tag, token.info, tuple(sorted(token.attrs.items())), html))
    return found


def check_field(folder: Path, translator: Any, place: str, name: str, payloads: list[str]) -> None:
    expected = find_structure(card_with(folder, translator, place, name, "word"))
    for text in payloads:
        card = card_with(folder, translator, place, name, text)
        assert find_structure(card) == expected, text
        assert card.replace("\n", "").isprintable(), text
        assert not [c for c in card if BLANK.search(unicodedata.name(c, ""))], text
        assert "license" not in yaml.safe_load(card.split("---\n")[1]), text


@pytest.mark.parametrize(("place", "name"), one_fast_in(6, FIELDS))
def test_a_field_adds_nothing_but_text(folder, translator, place, name):
    check_field(folder, translator, place, name, WORST)


@pytest.mark.parametrize(
    ("place", "name"), [field for field in FIELDS if field[0] in ("run.json", "manifest.json", "conversion.json")]
)
def test_a_record_names_no_folder(folder, translator, place, name):
    assert "/home" not in card_with(folder, translator, place, name, "/home/ann/en")


def test_regions_of_languages_in_the_metadata_have_no_controls(folder, translator):
    card = card_with(folder, translator, "conversion.json", "target_lang", "en_GB\u202e\u3164")
    details = yaml.safe_load(card.split("---\n")[1])["language_details"]
    assert details == ["en", r"en_GB\u202e\u3164"]


@pytest.mark.slow
@pytest.mark.parametrize(("place", "name"), FIELDS)
def test_no_kind_of_markdown_adds_anything_but_text(folder, translator, place, name):
    check_field(folder, translator, place, name, PAYLOADS)


KEY = "x " * 33 + "-----BEGIN OPENSSH PRIVATE KEY-----"  # YAML breaks the line at one of its spaces


@pytest.mark.parametrize(
    ("place", "name", "secret"),
    [
        ("manifest.json", "device", WRITE_TOKEN),  # Markdown escapes the underscore
        ("run.json", "source_language", WRITE_TOKEN),
        ("run.json", "command", f"train \x1b{WRITE_TOKEN}"),
        ("run.json", "preset", KEY),
        ("conversion.json", "toolkit", WRITE_TOKEN),
        ("CONVERSION.md", "a note", WRITE_TOKEN),
    ],
)
def test_a_secret_in_a_record_is_refused(folder, refused, place, name, secret):
    write_record(folder, place, name, secret)
    assert "README.md contains an access token, a password or" in refusal(refused, folder, "tester/model")


RECORDS = {
    "run.json": {
        "command": "train", "fixed_keys": {"preset": "base"}, "recipe": {
            "source_language": "en", "target_language": "de", "data": "news", "dataset": None, "train": ["a"],
            "initial_weights": None, "lowercase": False, "max_length": 5,
        },
    },
    "manifest.json": {
        "progress": {"step": 4, "tokens": 5, "seconds": 6.0, "cpu_seconds": 7.0},
        "environment": {"torch": "2", "transformers": "5", "mixed_precision": "no", "device": "cpu"},
    },
    "metrics.jsonl": {"step": 4, "tokens": 5, "seconds": 6.0, "loss": 2.0, "validation_loss": 1.0},
    "conversion.json": {"toolkit": "marian", "file": "a", "options": {"source_lang": "en", "target_lang": "de"}},
    "onnx/export.json": {"precision": "fp32", "weights_sha256": "0", "graphs": {"model.onnx": "0"}},
}  # fmt: skip
WRONG = [
    None, True, 5, -1, 1.5, 1e400, float("nan"), 10**400, "", "x", [], [1], [None], {}, {"a": 1}, [[["x"]]],
]  # fmt: skip


def list_places(fields: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path to the file's content and to each of its fields."""
    yield above
    for name, value in fields.items() if isinstance(fields, dict) else ():
        yield from list_places(value, (*above, name))


def replaced(fields: Any, place: tuple[str, ...], value: object) -> Any:
    return {**fields, place[0]: replaced(fields[place[0]], place[1:], value)} if place else value


@pytest.mark.parametrize(
    ("file", "place"),
    one_fast_in(8, ((file, place) for file, fields in RECORDS.items() for place in list_places(fields))),
)
def test_a_wrong_type_in_a_record_is_named_or_does_no_harm(folder, translator, file, place):
    write_record(folder, "run.json", "command", "train")
    (folder / "onnx").mkdir()
    path = folder / file
    if file == "conversion.json":
        (folder / "run.json").unlink()
    hashes = json.loads((folder / "manifest.json").read_text())["files"]
    for value in WRONG:
        content = replaced(RECORDS[file], place, value)
        if file == "manifest.json" and isinstance(content, dict):
            content |= {"files": hashes}
        path.write_text(json.dumps(content) + "\n")
        try:
            if file == "onnx/export.json":
                read_export_record(path, folder, "0")
            else:
                provenance = Provenance(folder, "", [], {"license": None})
                training_curve(provenance.curves)
                write_card("tester/model", translator, provenance, {}, example=default_example(provenance))
        except (InputError, BrokenFileError) as error:
            assert str(path) in str(error) or path.parent.name in str(error), (value, error)


SPECIAL = st.text(st.sampled_from("`*_[]()<>&|~$!#\\/:@w.a1 \n\t-=+\"'{};") | st.characters(codec="utf-8"))


@given(SPECIAL)
@pytest.mark.parametrize("template", ["({})", "| a |\n|---|\n| ({}) |", "* ({})", "*({})*"])
def test_shown_text_is_what_is_read(template, text):
    tokens = list(flatten(MARKDOWN.parse(template.format(show(text)))))
    assert not any(ADDRESS.search(token.content) for token in tokens if token.type == "text")
    read = "".join(token.content for token in tokens if token.type in ("text", "code_inline"))
    if not re.search(r"://|www\.|@", text, re.IGNORECASE):  # those are shown as code
        assert read.removeprefix("a") == f"({as_one_line(text)})"


@given(SPECIAL)
def test_code_stays_code(text):
    inline = [token.type for token in flatten(MARKDOWN.parse(f"x {code(text)} y"))]
    assert set(inline) <= {"paragraph_open", "inline", "text", "code_inline", "paragraph_close"}
    assert [token.type for token in MARKDOWN.parse(f"x\n\n{block(text, 'yaml')}\n\ny")][3:4] == ["fence"]
    assert len(MARKDOWN.parse(f"x\n\n{block(text, 'yaml')}\n\ny")) == 7


@given(SPECIAL)
def test_a_note_is_a_line_of_text_and_code(text):
    line = text.replace("\n", " ")
    kinds = {token.type for token in flatten(MARKDOWN.parse(f"{note(line)}\n"))}
    lists = {"bullet_list_open", "list_item_open", "list_item_close", "bullet_list_close"}
    assert kinds <= {"paragraph_open", "inline", "text", "code_inline", "text_special", "paragraph_close", *lists}


@pytest.mark.parametrize(
    "path", ["/home/ann/news", "~/ann/news", "../ann/news", "ann/x/news", r"C:\ann\news", "./news/"]
)
def test_local_folders_are_not_published(path):
    words = ["--data", path, f"--data={path}", f"--train={json.dumps([path])}", f'{{"tokenizer": {json.dumps(path)}}}']
    for word in words:
        command = public_command(shlex.join(["train", word]))
        assert "ann" not in command and ("news" in command) == (word != "--data")
    recipe = {"data": path, "train": [path], "model": {"x": path}, path: 1}
    assert public_recipe(recipe) == {"data": "news", "train": ["news"], "model": {"x": "news"}, "news": 1}


def test_repositories_and_addresses_keep_their_names():
    assert public_recipe({"dataset": "owner/name", "learning_rate": 0.1}) == {
        "dataset": "owner/name",
        "learning_rate": 0.1,
    }
    assert (
        public_command("train --dataset owner/name --dataset=owner/name")
        == "train --dataset owner/name --dataset=owner/name"
    )
    assert public_recipe("https://me:secret@host/data") == "https://host/data"
