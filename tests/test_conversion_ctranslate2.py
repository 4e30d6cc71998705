"""CTranslate2 translates a converted model as this package does, if its sources end in `</s>`."""

from pathlib import Path
from typing import Any, cast

import pytest
from saved_model import ENGLISH, GERMAN

from conversion.__main__ import main
from vaswani_transformer import Translator
from vaswani_transformer.loading import load_tokenizer


def test_sources_must_end_in_eos(model_folder: Path, tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    main([str(model_folder), str(tmp_path / "out"), "--to", "ctranslate2"])
    converted = ctranslate2.Translator(str(tmp_path / "out"), device="cpu", intra_threads=1)
    tokenizer, texts = cast(Any, load_tokenizer(model_folder)), [*ENGLISH, *GERMAN]
    sources = [tokenizer.convert_ids_to_tokens(ids) for ids in tokenizer(texts)["input_ids"]]
    assert all(source[-1] == "</s>" for source in sources)

    def translated(sources: list[list[str]]) -> list[str]:
        results = converted.translate_batch(sources, beam_size=1)
        return [tokenizer.decode(tokenizer.convert_tokens_to_ids(result.hypotheses[0])) for result in results]

    expected = Translator.from_pretrained(model_folder, device="cpu").translate(texts, num_beams=1)
    assert translated(sources) == expected
    assert translated([source[:-1] for source in sources]) != expected
