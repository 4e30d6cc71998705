"""Does a converted model of OPUS-MT translate as MarianMTModel does?

    python -m benchmarks.conversion_opus opus-mt-en-de --texts text.en --lines 400

Row:  a folder with a MarianMTModel, converted for the comparison.
Unit: texts. `same_ids` counts those for which both tokenizers give the same ids, `same` those with the same tokens and
      text of the translation.
Peer: MarianMTModel and its tokenizer of transformers, with the same settings: the folder's own unless options say
      otherwise.
"""

import tempfile
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import AutoTokenizer, MarianMTModel

from conversion.convert import import_checkpoint
from vaswani_transformer import TorchTranslator
from vaswani_transformer.lines import read_lines

from .harness import Row, report, run
from .options import Record

BATCH = 40


def compare(
    folders: Annotated[list[Path], typer.Argument(help="Folders with a MarianMTModel.")],
    texts: Annotated[Path, typer.Option(help="A text file, a sentence per line.")],
    lines: Annotated[int, typer.Option(min=1, help="Lines of it to translate.")] = 400,
    num_beams: Annotated[int | None, typer.Option(min=1, help="Beam size.")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Exponent of the length.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens of a translation.")] = 100,
    target_language: Annotated[
        str | None, typer.Option(help="Of models with language tokens, such as >>deu<<.")
    ] = None,
    record: Record = None,
) -> None:
    """Compare converted models with MarianMTModel."""
    sources = list(islice(read_lines(texts), lines))
    given = {"num_beams": num_beams, "length_penalty": length_penalty, "max_new_tokens": max_new_tokens}
    search = {name: value for name, value in given.items() if value is not None}
    report([compare_folder(folder, sources, search, target_language) for folder in folders], record)


@torch.inference_mode()
def compare_folder(folder: Path, sources: list[str], search: dict[str, Any], language: str | None) -> Row:
    marian: Any = MarianMTModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()
    marian.generation_config.forced_eos_token_id = None  # an end that the model does not predict
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    with tempfile.TemporaryDirectory() as parent:
        import_checkpoint(folder, Path(parent, "converted"))
        ours = TorchTranslator.from_pretrained(Path(parent, "converted"), device="cpu")
    tagged = ours.add_language(sources, language if ours.languages.tokens else None)
    ids = [tokenizer(text)["input_ids"] for text in tagged]
    found = ours.find_hypotheses(tagged, **search, split_sentences=False)
    expected = translate(marian, ids, search)
    settings = ours.change_search(**search)
    return {
        "checkpoint": folder.name,
        "num_beams": settings.num_beams,
        "length_penalty": settings.length_penalty,
        "texts": len(sources),
        "same_ids": sum(ours.tokenizer(text)["input_ids"] == row for text, row in zip(tagged, ids, strict=True)),
        "same": sum(
            best.tokens == tokens and best.text == tokenizer.decode(tokens, skip_special_tokens=True)
            for tokens, (best, *_) in zip(expected, found, strict=True)
        ),
        "mean_tokens": f"{sum(map(len, expected)) / len(expected):.1f}",
    }


def translate(marian: Any, ids: list[list[int]], search: dict[str, Any]) -> list[list[int]]:
    """Return the tokens of MarianMTModel's translations, </s> included."""
    pad, translations = marian.config.pad_token_id, dict[int, list[int]]()
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    for start in range(0, len(order), BATCH):
        batch = order[start : start + BATCH]
        rows = [torch.tensor(ids[i]) for i in batch]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        sequences = marian.generate(input_ids=padded, attention_mask=mask, **search)[:, 1:].tolist()
        translations |= {i: [token for token in row if token != pad] for i, row in zip(batch, sequences, strict=True)}
    return [translations[i] for i in range(len(ids))]


if __name__ == "__main__":
    run(compare)
