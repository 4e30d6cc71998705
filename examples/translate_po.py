"""Translate the messages of a .po file, as gettext uses them, and leave out those whose placeholders got lost.

    pip install polib
    python examples/translate_po.py runs/debian_en_de messages.pot de.po

Messages that are translated already stay. New translations are marked "fuzzy": programs do not use them before a person
has looked at them. A message stays untranslated if its translation lacks a placeholder such as %s, or is doubtful for
another reason; the program lists these.
"""

import sys
from pathlib import Path

import polib

from vaswani_transformer import Translator
from vaswani_transformer.doubts import Doubt


def translate_messages(translator: Translator, catalogue: polib.POFile) -> list[tuple[polib.POEntry, str]]:
    """Translate what is untranslated; return the entries that stay so, with the reason.

    An entry has one text, or a singular and a plural. The plural serves all forms but the first of several: "One file"
    is wrong for two, which a language with a single form, such as Japanese, writes alike.
    """
    entries = [entry for entry in catalogue.untranslated_entries() if not entry.obsolete]
    texts = [text for entry in entries for text in (entry.msgid, entry.msgid_plural) if text]
    owners = [entry for entry in entries for text in (entry.msgid, entry.msgid_plural) if text]
    doubts: list[Doubt] = []
    found = translator.find_hypotheses(texts, doubts=doubts)
    refused = {id(owners[doubt.text_index]): (owners[doubt.text_index], doubt.reason) for doubt in doubts}
    translations: dict[int, list[str]] = {}
    for owner, hypotheses in zip(owners, found, strict=True):
        translations.setdefault(id(owner), []).append(hypotheses[0].text)
    for entry in entries:
        if id(entry) in refused:
            continue
        if entry.msgid_plural:
            singular, plural = translations[id(entry)]
            forms = entry.msgstr_plural or {0: "", 1: ""}
            new = {form: plural if form or len(forms) == 1 else singular for form in forms}
            entry.msgstr_plural = {form: text or new[form] for form, text in forms.items()}
        else:
            entry.msgstr = translations[id(entry)][0]
        entry.flags.append("fuzzy")
    return list(refused.values())


def main(model: str, source: str, output: str) -> None:
    if not Path(source).is_file():
        sys.exit(f"{source}: no such file")
    catalogue = polib.pofile(source)
    waiting = len(catalogue.untranslated_entries())
    refused = translate_messages(Translator.from_pretrained(model), catalogue)
    catalogue.save(output)
    for entry, reason in refused:
        print(f"{source}:{entry.linenum}: {reason}: {entry.msgid!r}")
    print(f"{output}: {waiting - len(refused)} of {waiting} messages translated; look at them and remove 'fuzzy'")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit("usage: python examples/translate_po.py MODEL SOURCE OUTPUT")
    main(*sys.argv[1:])
