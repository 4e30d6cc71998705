"""Models in other people's packages: converted, they give the package's own output, text in and text out.

Each test downloads a package into a temporary folder; its code is run for the expected output, nothing is installed.
"""

import importlib
import random
import subprocess
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from conversion.__main__ import main
from vaswani_transformer import Translator
from vaswani_transformer.languages import read_languages

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.filterwarnings("ignore")]  # their warnings
TEXTS = 50


@contextmanager
def package(name: str, folder: Path, *missing: str) -> Iterator[Path]:
    """Download a package and make it importable. missing: modules that it imports and the test's calls do not use"""
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder), name]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{name} cannot be downloaded: {done.stderr.strip()[-200:]}")
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    sys.modules |= {module: types.ModuleType(module) for module in missing}
    try:
        yield folder / name.partition("==")[0].replace("-", "_")
    finally:
        sys.path.remove(str(folder))
        for module in set(sys.modules) - before:
            del sys.modules[module]


def write_words(tokens: Any, file: Path) -> None:
    file.write_text("".join(f"{token}\n" for token in tokens), encoding="utf-8")


def translate(checkpoint: Path, out: Path, texts: list[str], **settings: Any) -> list[str]:
    main([str(checkpoint), str(out)])
    translator = Translator.from_pretrained(out, device="cpu")
    return translator.translate(texts, num_beams=1, split_sentences=False, **settings)


def test_letters_become_letters_as_in_tg2fa_translit(tmp_path: Path, capsys):
    """Tajik to Persian: torch's tutorial in a .zip, with characters as tokens."""
    with package("tg2fa-translit==1.0", tmp_path / "package") as files:
        decode = importlib.import_module("tg2fa_translit.decode")
        model = importlib.import_module("tg2fa_translit.transformer").transformer
        words = "китоб ман ба хона рафтам дӯст нон шаҳр мактаб зиндагӣ осмон ин аст забони форсӣ сурх-ранг".split()
        chance = random.Random(0)
        texts = [" ".join(chance.choices(words, k=chance.randint(1, 5))) for _ in range(TEXTS)]
        (files / "config.json").write_text('{"nhead": 8}')
        write_words(decode.tg_keys, files / "vocab.src.txt")
        write_words(decode.fa_values, files / "vocab.tgt.txt")
        assert translate(files, tmp_path / "ours", texts) == [decode.decode(model, text) for text in texts]
    assert "trained and used without padding masks" in capsys.readouterr().out


def test_molecules_become_molecules_as_in_annalog(tmp_path: Path):
    """SMILES, whose tokens are atoms and bonds without spaces; Trevett's tutorial with 102 learned positions."""
    with package("annalog==1.0.6", tmp_path / "package", "rdkit", "rdkit.Chem", "partialsmiles") as files:
        parent: Any = types.ModuleType("annalog")  # its __init__ needs RDKit
        parent.__path__ = [str(files)]
        sys.modules["rdkit"].Chem = sys.modules["rdkit.Chem"]  # type: ignore[attr-defined]
        sys.modules["annalog"] = parent
        handler = importlib.import_module("annalog.model_handler").SMILESModelHandler
        search = importlib.import_module("annalog.model_files.multi_gen_final").get_sim_smiles_decoding
        vocabulary, weights = (
            files / "ckpt_and_vocab" / name for name in ("stereo_experiment_vocab_ttf.pkl", "Lev_extended.pt")
        )
        theirs = handler(str(vocabulary), str(vocabulary), str(weights), device="cpu")
        source, target, model, device, _ = theirs.get_model_and_fields()
        groups = "CC(=O)O c1ccccc1 N C(=O)N [nH]1cccc1 Cl C[C@H](N)C OCC S(=O)(=O) F C#N [O-] Br [Se] C1CCNCC1 .Cl %10"
        chance = random.Random(0)
        texts = ["C" + "".join(chance.choices(groups.split(), k=chance.randint(1, 3))) for _ in range(TEXTS)]
        expected = [
            search(text, source, target, model, device, theirs.max_length, 1, 1.0, generation_method="beam")[0][0]
            for text in texts
        ]
        write_words(source.vocab.itos, weights.with_name("vocab.txt"))
        found = translate(weights, tmp_path / "ours", texts, max_new_tokens=theirs.max_length - 1)
        assert found == expected


def test_words_get_their_stress_as_in_ruaccent_predictor(tmp_path: Path):
    """Russian characters with one embedding and a vocab.json; trained on sources padded to 256 without a mask."""
    with package("ruaccent-predictor==1.2.0", tmp_path / "package") as installed:
        files = installed.with_name("ruaccent") / "model"
        accentor = importlib.import_module("ruaccent.accentor").load_accentor(device="cpu")
        words = "мама мыла раму замок ключ город дорога вода большой человек идёт домой хотел цветы всё-таки".split()
        chance = random.Random(0)
        texts = [" ".join(chance.choices(words, k=chance.randint(1, 6))).capitalize() + "!" for _ in range(TEXTS)]
        expected = accentor(texts)
    (files / "config.json").write_text('{"nhead": 8}')
    main([str(files), str(tmp_path / "ours")])
    translator = Translator.from_pretrained(tmp_path / "ours", device="cpu")
    batch = translator.tokenizer(texts, padding="max_length", max_length=256, return_tensors="pt").input_ids
    found = translator.model.generate(
        input_ids=batch, attention_mask=torch.ones_like(batch), num_beams=1, max_new_tokens=100
    )
    assert translator.tokenizer.batch_decode(found, skip_special_tokens=True) == expected


def test_a_checkpoint_of_fairseq_that_names_no_languages_as_in_detransliterator(tmp_path: Path):
    """Bambara to N'Ko, a checkpoint with numpy arrays among its metrics. fairseq cannot run here: compared with the
    transcripts in the package, from which a wrong tokenizer or a swapped pair of dictionaries is far away."""
    chrf: Any = importlib.import_module("sacrebleu.metrics").CHRF()
    with package("detransliterator==0.0.2", tmp_path / "package") as files:
        model, texts = files / "assets/latin2nqo_001.35", files / "assets/test_data/diane_parallel_002"
        for file in (model / "data").iterdir():
            file.rename(model / "checkpoints" / file.name)
        sources, references = (
            texts.with_suffix(f".{kind}").read_text(encoding="utf-8").split("\n")[:TEXTS]
            for kind in ("bam-k-tonal", "nqo")
        )
        found = translate(model / "checkpoints", tmp_path / "ours", [source.lower() for source in sources])
    assert read_languages(tmp_path / "ours") == ("roman", "nqo")
    assert chrf.corpus_score(found, [references]).score > 80
