"""How many translations are equal with a cache, without one and by TorchTranslator, with the installed transformers?

    python -m benchmarks.cache_equality MODEL TEXT            with the package
    python -m benchmarks.cache_equality MODEL TEXT --remote   with the code in the model's folder alone

Row:  a beam size.
Unit: translations by generate() that equal those of each peer.
Peer: generate() without a cache, and TorchTranslator with the stopping rule of generate().

`hash` is that of all translations, to compare versions of transformers: `make test-versions` leaves environments in
.venv-versions whose Python runs this, too.
"""

import hashlib
import importlib
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from .options import Record

BATCH = 50


def compare(
    model_folder: Annotated[Path, typer.Argument(help="Model folder.")],
    text: Annotated[Path, typer.Argument(help="Text to translate, a sentence per line.")],
    lines: int = 400,
    remote: Annotated[bool, typer.Option(help="Use the code in the model's folder instead of the package.")] = False,
    record: Record = None,
) -> None:
    """Compare translations with and without a cache."""
    if not remote:
        importlib.import_module("vaswani_transformer")  # registers the model
    torch.set_num_threads(1)
    sentences = text.read_text(encoding="utf-8").splitlines()[:lines]
    model: Any = AutoModelForSeq2SeqLM.from_pretrained(model_folder, trust_remote_code=remote).eval()
    if remote != type(model).__module__.startswith("transformers_modules."):
        raise RuntimeError(f"the code of the model is {type(model).__module__}")
    tokenizer: Any = AutoTokenizer.from_pretrained(model_folder)

    def generated(**settings: Any) -> list[str]:
        found = []
        for i in range(0, len(sentences), BATCH):
            batch = tokenizer(sentences[i : i + BATCH], return_tensors="pt", padding=True)
            found += tokenizer.batch_decode(model.generate(**batch, **settings), skip_special_tokens=True)
        return found

    rows = []
    for beams in (1, 4):
        cached = generated(num_beams=beams)
        peers = {"uncached": generated(num_beams=beams, use_cache=False)}
        if not remote:
            from vaswani_transformer import TorchTranslator

            translator: Any = TorchTranslator(model, tokenizer)
            settings: dict[str, Any] = {"num_beams": beams, "early_stopping": "never", "split_sentences": False}
            peers["translator"] = translator.translate(sentences, **settings)
        equal = {name: sum(map(str.__eq__, cached, found)) for name, found in peers.items()}
        digest = hashlib.sha256("\n".join(cached).encode()).hexdigest()[:12]
        rows.append({"transformers": transformers.__version__, "beams": beams, "sentences": len(sentences)})
        rows[-1] |= equal | {"hash": digest}
    from .harness import report  # imports the package

    report(rows, record)


if __name__ == "__main__":
    typer.run(compare)
