"""`examples/translate_po.py`: messages with their plurals are translated, and none loses a placeholder."""

import importlib.util
from pathlib import Path

import polib
import pytest
from saved_model import ENGLISH, saved_model

from vaswani_transformer import Translator

MESSAGES = f'''msgid ""
msgstr "Content-Type: text/plain; charset=UTF-8\\nPlural-Forms: nplurals=2; plural=(n != 1);"

msgid "{ENGLISH[0]}"
msgstr ""

msgid "{ENGLISH[1]}"
msgstr "Schon übersetzt."

msgid "{ENGLISH[2]}"
msgid_plural "{ENGLISH[3]}"
msgstr[0] ""
msgstr[1] ""

msgid "The house is %s."
msgstr ""

#~ msgid "{ENGLISH[3]}"
#~ msgstr ""
'''


@pytest.fixture(scope="module")
def program():
    path = Path(__file__).parents[1] / "examples" / "translate_po.py"
    spec = importlib.util.spec_from_file_location("translate_po", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_messages_are_translated_and_lost_placeholders_named(program, tmp_path, capsys):
    saved_model(tmp_path / "model")
    (tmp_path / "source.po").write_text(MESSAGES, encoding="utf-8")
    program.main(str(tmp_path / "model"), str(tmp_path / "source.po"), str(tmp_path / "de.po"))
    singular, _, plural, lost, obsolete = polib.pofile(str(tmp_path / "de.po"))
    before = polib.pofile(str(tmp_path / "source.po"))
    translator = Translator.from_pretrained(tmp_path / "model")
    assert singular.msgstr == translator.translate([ENGLISH[0]])[0] and singular.fuzzy
    first, second = translator.translate(ENGLISH[2:])
    assert plural.msgstr_plural == {0: first, 1: second} and plural.fuzzy
    assert (lost.msgstr, lost.fuzzy, obsolete.msgstr) == ("", False, "")
    assert before[1].msgstr == "Schon übersetzt." == polib.pofile(str(tmp_path / "de.po"))[1].msgstr
    *problems, summary = capsys.readouterr().out.splitlines()
    assert any(
        line.startswith(f"{tmp_path / 'source.po'}:{before[3].linenum}: the translation lacks %s") for line in problems
    )
    assert "2 of 3 messages translated" in summary


@pytest.mark.parametrize(
    ("forms", "expected"),
    [([""], [3]), (["", ""], [2, 3]), (["", "", ""], [2, 3, 3]), (["Von Hand.", ""], ["Von Hand.", 3])],
)
def test_each_form_of_a_plural_has_its_translation_or_keeps_it(program, tmp_path, forms, expected):
    """Some languages have one form for all numbers, so that it cannot be the one for a single thing."""
    catalogue = polib.POFile()
    plural = dict(enumerate(forms))
    catalogue.append(polib.POEntry(msgid=ENGLISH[2], msgid_plural=ENGLISH[3], msgstr_plural=plural))
    translator = Translator.from_pretrained(saved_model(tmp_path / "model"))
    assert program.translate_messages(translator, catalogue) == []
    translations = translator.translate(ENGLISH)
    wanted = [translations[text] if isinstance(text, int) else text for text in expected]
    assert catalogue[0].msgstr_plural == dict(enumerate(wanted))
