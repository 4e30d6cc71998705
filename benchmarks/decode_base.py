"""How fast is translating with the paper's base model? ONNX Runtime and CTranslate2, with the same random weights.

    python -m benchmarks.decode_base --threads 1

Sources of 25 tokens, outputs of exactly 28 ids, beam 4: a model that nobody has trained does not know when to stop, and
so every system does the same work. Each batch goes through all systems in turn; the best of some rounds counts.
"""

import os
import platform
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from vaswani_transformer.errors import UnavailableError, exit_cleanly

from .record import append, command

app = typer.Typer(add_completion=False, rich_markup_mode=None)
SOURCE_LENGTH, OUTPUT_LENGTH, BEAMS, VOCABULARY = 25, 28, 4, 37000
PAIRS = {"onnx-fp32": "ctranslate2 float32", "onnx-int8": "ctranslate2 int8"}


@app.command(help="Compare the speed of translating at the paper's base size.")
def main_command(
    batch_size: Annotated[list[int] | None, typer.Option(help="Sentences in a batch; may be given again.")] = None,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    record: Annotated[Path | None, typer.Option(help="Append the result to this CSV file.")] = None,
) -> None:
    try:
        import ctranslate2
    except ModuleNotFoundError:
        raise UnavailableError("ctranslate2 is not installed: pip install ctranslate2") from None
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_models(folder)
        systems: dict[str, Any] = {kind: onnx_file(folder / kind / "model.onnx", threads) for kind in PAIRS}
        for kind in ("float32", "int8"):
            translator = ctranslate2.Translator(
                str(folder / "ctranslate2"), device="cpu", compute_type=kind, intra_threads=threads, inter_threads=1
            )
            systems[f"ctranslate2 {kind}"] = ctranslate2_model(translator)
        generator = np.random.default_rng(0)
        typer.echo(f"{threads} thread(s), best of {rounds}")
        typer.echo(f"{'batch':>6}  {'system':<22}{'ids/s':>7}{'times CTranslate2':>19}")
        for size in batch_size or [1, 16, 64]:
            ids = generator.integers(4, VOCABULARY, (size, SOURCE_LENGTH))
            ids[:, -1] = 2  # </s>
            best = dict.fromkeys(systems, float("inf"))
            for number in range(rounds + 1):  # the first is for warming up
                for system, translate in systems.items():
                    begun = time.perf_counter()
                    found = translate(ids)
                    seconds = time.perf_counter() - begun
                    assert found == (size, OUTPUT_LENGTH), (system, found)
                    if number:
                        best[system] = min(best[system], seconds)
            for system, seconds in best.items():
                times = f"{best[PAIRS[system]] / seconds:.2f}" if system in PAIRS else "1.00"
                rate = round(size * OUTPUT_LENGTH / seconds)
                typer.echo(f"{size:>6}  {system:<22}{rate:>7}{times:>19}")
                rows.append({"batch": size, "system": system, "ids_per_second": rate, "times_ctranslate2": times})
    if record is not None:
        write_rows(record, threads, rows)


def write_models(folder: Path) -> None:
    """Random weights of the base model as our folder, two ONNX files and a model of CTranslate2."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    from conversion.onnx.__main__ import export_folder
    from conversion.run import convert_out
    from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
    from vaswani_transformer.tokenization import SPECIAL_TOKENS

    torch.manual_seed(0)
    config = VaswaniTransformerConfig.from_preset("base", vocab_size=VOCABULARY)
    VaswaniTransformerForConditionalGeneration(config).save_pretrained(folder / "model")
    tokens = [*SPECIAL_TOKENS.values(), *(f"token{i}" for i in range(len(SPECIAL_TOKENS), VOCABULARY))]
    words = models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=SPECIAL_TOKENS["unk_token"])
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(words), **SPECIAL_TOKENS)
    tokenizer.save_pretrained(folder / "model")
    convert_out(folder / "model", folder / "ctranslate2", "ctranslate2")
    for kind in PAIRS:
        export_folder(folder / "model", folder / kind, kind.removeprefix("onnx-"))


def onnx_file(path: Path, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    settings = {
        "num_beams": np.array(BEAMS),
        "max_length": np.array(OUTPUT_LENGTH),
        "min_length": np.array(OUTPUT_LENGTH - 1),  # before </s>
        "num_return_sequences": np.array(1),
    }

    def translate(ids: np.ndarray) -> tuple[int, int]:
        inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), **settings}
        sequences: Any = session.run(["sequences"], inputs)[0]
        return len(sequences), sequences.shape[2]

    return translate


def ctranslate2_model(translator: Any) -> Any:
    def translate(ids: np.ndarray) -> tuple[int, int]:
        sources = [[*(f"token{i}" for i in row[:-1]), "</s>"] for row in ids.tolist()]
        limits = {"min_decoding_length": OUTPUT_LENGTH, "max_decoding_length": OUTPUT_LENGTH}
        found = translator.translate_batch(sources, beam_size=BEAMS, length_penalty=0.6, **limits)
        return len(found), len(found[0].hypotheses[0])

    return translate


def write_rows(record: Path, threads: int, rows: list[dict[str, Any]]) -> None:
    from training.evaluate import commit

    about = {
        "date": date.today().isoformat(),
        "commit": commit(),
        "command": command("decode_base"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "threads": threads,
    }
    append(record, [*about, *rows[0]], [about | row for row in rows])


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="decode_base")


if __name__ == "__main__":
    main()
