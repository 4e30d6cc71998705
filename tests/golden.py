"""Tiny checkpoints of other toolkits, with the results of each toolkit (tests/fixtures; more in ../shared)."""

import functools
import io
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from saved_model import change_json
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from conversion.__main__ import main
from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.loading import load_model

FIXTURES = Path(__file__).parent / "fixtures"
VARIANTS = FIXTURES / "variants"
EXPECTED_RESULTS = ("expected.npz", "inputs.txt", "beams.jsonl", "README.md")  # of a checkpoint, in its folder
SHARED = Path(__file__).parents[2] / "shared" / "checkpoints"  # where the project's developers have larger originals
NAMES = sorted(file.parent.name for file in FIXTURES.glob("*/expected.npz"))


def golden(name: str) -> Path:
    """Return the folder of a checkpoint or of a variant."""
    return next(root / name for root in (SHARED, FIXTURES, VARIANTS) if (root / name).is_dir())


@dataclass
class Golden:
    """A checkpoint, the folder it was converted to, and its expected results."""

    checkpoint: Path
    folder: Path

    @property
    def name(self) -> str:
        return self.checkpoint.name

    @functools.cached_property
    def expected(self) -> dict[str, np.ndarray]:
        with np.load(self.checkpoint / "expected.npz") as arrays:
            return dict(arrays)

    @functools.cached_property
    def texts(self) -> tuple[list[str], list[str]]:
        """The sources and the targets."""
        lines = (self.checkpoint / "inputs.txt").read_text(encoding="utf-8").splitlines()
        sources, targets = zip(*(line.split("\t")[:2] for line in lines), strict=True)
        return list(sources), list(targets)

    @functools.cached_property
    def model(self) -> VaswaniTransformerForConditionalGeneration:
        return load_model(self.folder, device="cpu")

    def tokenizer(self, side: str = "source") -> PreTrainedTokenizerFast:
        separate = self.folder / "target_tokenizer"
        is_separate = side == "target" and separate.exists()
        return PreTrainedTokenizerFast.from_pretrained(separate if is_separate else self.folder)

    def source(self) -> dict[str, Tensor]:
        """Return the batch of inputs.txt with our padding id."""
        mask = torch.tensor(self.expected["src_mask"])
        ids = torch.tensor(self.expected["src_ids"])
        pad = self.model.config.pad_token_id
        assert pad is not None
        return {"input_ids": ids.masked_fill(mask == 0, pad), "attention_mask": mask}

    def logits(self, decoder_input_ids: np.ndarray) -> Tensor:
        """decoder_input_ids: the toolkit's; our start token takes the place of a zero vector"""
        ids = torch.tensor(decoder_input_ids)
        ids[:, 0] = self.model.config.decoder_start_token_id
        with torch.inference_mode():
            return self.model(**self.source(), decoder_input_ids=ids).logits

    def log_probabilities(self, rows: list[int], hypotheses: list[list[int]]) -> list[Tensor]:
        """log P of each token of hypotheses, each for the source of its row."""
        longest = max(map(len, hypotheses))
        labels = torch.tensor([hypothesis + [0] * (longest - len(hypothesis)) for hypothesis in hypotheses])
        start = torch.full((len(labels), 1), self.model.config.decoder_start_token_id)
        source = {name: values[rows] for name, values in self.source().items()}
        with torch.inference_mode():
            logits = self.model(**source, decoder_input_ids=torch.cat((start, labels[:, :-1]), dim=1)).logits
        chosen = logits.double().log_softmax(-1).gather(-1, labels[:, :, None])[:, :, 0]
        return [words[: len(hypothesis)] for words, hypothesis in zip(chosen, hypotheses, strict=True)]


CONVERTED = tempfile.TemporaryDirectory()  # removed when the process ends


@functools.cache
def converted(name: str) -> Golden:
    """The converted folder; each process converts once."""
    folder = Path(CONVERTED.name, name)
    main([str(golden(name)), str(folder)])
    return Golden(golden(name), folder)


def train_sentencepiece(texts: list[str], file: Path, **options: Any) -> bytes:
    """Train a SentencePiece model, write it to the file, and return its content."""
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, minloglevel=2, **options
    )
    file.write_bytes(model.getvalue())
    return model.getvalue()


def opus_folder(folder: Path, codes: list[str], two_vocabularies: bool) -> Path:
    """Return a copy of a MarianMTModel that has language codes or separate vocabularies, as models of OPUS-MT have."""
    shutil.copytree(golden("hf-marian"), folder)
    source = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    tensors, shared = load_file(folder / "model.safetensors"), "model.shared.weight"
    source |= {code: len(source) + n for n, code in enumerate(codes)}
    tensors[shared] = torch.cat((tensors[shared], torch.ones(len(codes), tensors[shared].shape[1])))
    bias = tensors["final_logits_bias"]
    tensors["final_logits_bias"] = torch.cat((bias, torch.zeros(1, len(codes))), dim=1)
    changes: dict[str, Any] = {"vocab_size": len(source), "decoder_vocab_size": len(source)}
    if two_vocabularies:
        words = [token for token in source if token not in ("</s>", "<unk>", "<pad>")]
        target = source | {word: source[other] for word, other in zip(words, reversed(words), strict=True)}
        (folder / "target_vocab.json").write_text(json.dumps(target), encoding="utf-8")
        for side in ("encoder", "decoder"):
            tensors[f"model.{side}.embed_tokens.weight"] = tensors[shared].clone()
        tensors["lm_head.weight"] = tensors.pop(shared)
        changes |= {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
        change_json(folder / "tokenizer_config.json", separate_vocabs=True)
    (folder / "vocab.json").write_text(json.dumps(source), encoding="utf-8")
    change_json(folder / "config.json", **changes)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def change_marians_options(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the options inside a model.npz."""
    with np.load(file) as archive:
        arrays: dict[str, Any] = dict(archive)
    options = change(yaml.safe_load(arrays["special:model.yml"].tobytes().split(b"\0")[0]))
    arrays["special:model.yml"] = np.frombuffer(yaml.safe_dump(options).encode(), dtype=np.int8)
    np.savez(file, allow_pickle=False, **arrays)


def refusal(refused: Callable[..., str], *arguments: str | Path, code: int = 2) -> str:
    """Run `conversion` with these arguments; return its one-line error. Nothing must have been written.

    The last argument is the output folder.
    """
    parent = Path(arguments[-1]).parent
    before = sorted(parent.iterdir())
    message = refused(main, arguments, code)
    assert message.count("\n") == 1 and sorted(parent.iterdir()) == before
    return message
