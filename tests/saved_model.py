"""A tokenizer and a model trained on four sentences, their saved folder, and its export to ONNX.

Random weights repeat one token. After a second of training translations differ and end, and beam search and greedy
search do not always agree. No test depends on the translations themselves.
"""

import copy
import functools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from searches import MANY_AT_ONCE, OFFSET
from tiny_models import make_lively, tiny_config
from transformers import PreTrainedTokenizerFast

from vaswani_transformer import TorchTranslator, VaswaniTransformerForConditionalGeneration
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER
from vaswani_transformer.tokenization import train_tokenizer

GERMAN = [
    "Das Haus ist klein.",
    "Wir möchten für zwölf Euro zwei Äpfel kaufen.",
    "Im Winter ist es in den Bergen sehr kalt, aber die Straße ist frei!",
    "Warum schläft die müde Katze nicht?",
]
ENGLISH = [
    "The house is small.",
    "We would like to buy two apples for twelve euros.",
    "In winter it is very cold in the mountains, but the road is clear!",
    "Why does the tired cat not sleep?",
]
VOCABULARY = 300
SIZES = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "dropout": 0.0,
}


@functools.cache
def trained_tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer(GERMAN + ENGLISH, VOCABULARY)


def untrained_model(**changes) -> VaswaniTransformerForConditionalGeneration:
    torch.manual_seed(0)
    return VaswaniTransformerForConditionalGeneration(tiny_config(**SIZES | changes))


@functools.cache
def trained_model() -> VaswaniTransformerForConditionalGeneration:
    """Return a model for both directions. Tests share it and must not modify it."""
    model = untrained_model()
    batch = trained_tokenizer()(ENGLISH + GERMAN, text_target=GERMAN + ENGLISH, return_tensors="pt", padding=True)
    batch["labels"][batch["labels"] == model.config.pad_token_id] = -100
    adam = torch.optim.Adam(model.parameters(), lr=3e-3, betas=(0.9, 0.98))
    for _ in range(60):
        adam.zero_grad()
        model(**batch).loss.backward()
        adam.step()
    return model.eval()


def saved_model(folder: Path) -> Path:
    """Save the trained model and its tokenizer in the folder; return the folder."""
    trained_model().save_pretrained(folder)
    trained_tokenizer().save_pretrained(folder)
    return folder


def change_json(path: Path, **fields: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | fields))


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the trained model. Tests must not modify it."""
    return saved_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def folder(model_folder: Path, tmp_path: Path) -> Path:
    """A copy of that folder, which the test may change."""
    return Path(shutil.copytree(model_folder, tmp_path / "model"))


@pytest.fixture(scope="session")
def translator() -> TorchTranslator:
    return TorchTranslator(trained_model(), trained_tokenizer())


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that `make` fills, once for all workers. Tests must not modify it."""
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # of every worker's folder
    folder = root / name
    with FileLock(root / f"{name}.lock"):
        if not (folder / "onnx").is_dir():
            make(folder)
    return folder


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained model in the folder `model`, and its export in `onnx`."""
    from conversion.onnx.export import export_single_folder

    return made_once(
        tmp_path_factory,
        "exported",
        lambda folder: export_single_folder(saved_model(folder / "model"), folder / "onnx"),
    )


@pytest.fixture(scope="session")
def exported_with_repetition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trained model in the folder `model`, and its export with the settings against repetitions in `onnx`."""
    from conversion.onnx.__main__ import main

    return made_once(
        tmp_path_factory,
        "exported_with_repetition",
        lambda folder: main([str(saved_model(folder / "model")), str(folder / "onnx"), "--repetition", "--text"]),
    )


@contextmanager
def already_exported(folder: Path, change: Callable[[Any], object] = lambda graph: None) -> Iterator[None]:
    """Let exports begin with the folder's graph, which `change` may modify: torch's exporter takes most of the time."""
    import onnx

    from conversion.onnx import export

    graph = onnx.load(folder / "model.onnx")
    change(graph.graph)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "export_single_graph", lambda model, *options: copy.deepcopy(graph))
        yield


@pytest.fixture(scope="session")
def two_vocabularies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lively model with many switches and two tokenizers in `model`, and its export without defaults in `onnx`."""
    from conversion.onnx.export import export_single_folder

    def make(folder: Path) -> None:
        sizes = {"vocab_size": 275, "decoder_vocab_size": 270, "max_position_embeddings": 120}
        sizes |= {"encoder_layers": 1, "decoder_layers": 1}
        model = make_lively(1, **MANY_AT_ONCE | sizes)
        model.generation_config.update(num_beams=3, length_penalty=1.5, extra_length=OFFSET)
        model.save_pretrained(folder / "model")
        train_tokenizer(ENGLISH, 275).save_pretrained(folder / "model")
        train_tokenizer(GERMAN, 270).save_pretrained(folder / "model" / TARGET_TOKENIZER)
        export_single_folder(folder / "model", folder / "onnx", defaults=False)

    return made_once(tmp_path_factory, "two_vocabularies", make)
