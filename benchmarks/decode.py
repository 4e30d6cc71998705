"""How fast is translating? Torch, ONNX Runtime, Marian of transformers and CTranslate2, with the same weights.

    python -m benchmarks.decode MODEL --source test.en --reference test.de --onnx ONNX_FOLDER
        --ctranslate2 CT2_FOLDER --marian MARIAN_FOLDER

Every system translates the same batches of token ids, sorted by length, in turn; the best of some rounds counts. On a
machine shared with other work compare CPU seconds: --clock cpu --threads 1. `convert --to ctranslate2` and `convert
--to hf-marian` write the other systems' folders from MODEL (Marian needs a layer_norm_eps of 1e-5: results/README.md).

The peak of memory is that of a process of its own that loads one system, and not what the others need, and translates
the batch with the longest sentences.
"""

import functools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer

from vaswani_transformer.errors import InputError, UnavailableError, exit_cleanly
from vaswani_transformer.lines import read_lines

from .record import append, command

app = typer.Typer(add_completion=False, rich_markup_mode=None)
COLUMNS = (
    "date",
    "commit",
    "command",
    "hardware",
    "sentences",
    "num_beams",
    "threads",
    "clock",
    "batch",
    "system",
    "seconds",
    "tokens_per_second",
    "times_generate",
    "times_marian",
    "times_ctranslate2",
    "bleu",
    "peak_megabytes",
    "file_megabytes",
)
Sources = list[list[int]]


@dataclass
class System:
    """translate: a batch of sources -> their best translations, as token ids without </s>"""

    name: str
    kind: str  # what SYSTEMS calls it
    folder: Path
    translate: Callable[[Sources, int], Sources]
    megabytes: float  # of its file of weights
    seconds: list[float] = field(default_factory=list)  # by round
    translations: Sources = field(default_factory=list)  # of the last round, in the order of the batches


@app.command(help="Compare the speed of translating.")
def main_command(
    model: Annotated[str, typer.Argument(help="A model's folder.")],
    source: Annotated[str, typer.Option(help="A UTF-8 text file, one sentence a line.")],
    reference: Annotated[str | None, typer.Option(help="Its translation, for BLEU.")] = None,
    onnx: Annotated[list[str] | None, typer.Option(help="A folder with model.onnx; may be given again.")] = None,
    ctranslate2: Annotated[str | None, typer.Option(help="The same weights as a folder of CTranslate2.")] = None,
    marian: Annotated[str | None, typer.Option(help="The same weights as a MarianMTModel of transformers.")] = None,
    batch_size: Annotated[list[int] | None, typer.Option(help="Sentences in a batch; may be given again.")] = None,
    batch_tokens: Annotated[int | None, typer.Option(min=1, help="Source tokens in a batch, after these.")] = None,
    bfloat16: Annotated[bool, typer.Option("--bfloat16", help="Our search in torch in bfloat16, too.")] = False,
    peak: Annotated[bool, typer.Option(help="Measure each system's memory.")] = True,
    sentences: Annotated[int, typer.Option(min=1, help="Lines of the source that are used.")] = 200,
    num_beams: int = 4,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    clock: Annotated[str, typer.Option(help="wall or cpu.")] = "wall",
    record: Annotated[Path | None, typer.Option(help="Append the result to this CSV file.")] = None,
) -> None:
    if clock not in ("wall", "cpu"):
        raise InputError(f"--clock {clock!r} is neither wall nor cpu")
    import torch

    torch.set_num_threads(threads)
    lines = list(read_lines(source))[:sentences]
    references = list(read_lines(reference))[:sentences] if reference else None
    if references is not None and len(references) != len(lines):
        raise InputError(f"{source} has {len(lines)} lines and {reference} {len(references)}")
    from vaswani_transformer.loading import load_tokenizer
    from vaswani_transformer.text_translator import batches_of_equal_length

    tokenizer = load_tokenizer(model)
    encoded: Any = tokenizer(lines, verbose=False)["input_ids"]
    order = sorted(range(len(lines)), key=lambda i: len(encoded[i]))
    wanted = [("generate", model), ("search", model)]
    wanted += [("search-bfloat16", model)] if bfloat16 else []
    wanted += [("marian", marian)] if marian else []
    wanted += [("onnx", folder) for folder in onnx or []]
    wanted += [(kind, ctranslate2) for kind in ("ctranslate2-float32", "ctranslate2-int8") if ctranslate2]
    systems = [SYSTEMS[kind](Path(folder), threads) for kind, folder in wanted]
    batchings = {
        str(size): [order[i : i + size] for i in range(0, len(order), size)] for size in batch_size or [1, 16, 64]
    }
    if batch_tokens is not None:
        by_tokens = batches_of_equal_length([len(ids) for ids in encoded], batch_tokens)
        batchings[f"{batch_tokens} tokens"] = list(by_tokens)[::-1]
    now = time.process_time if clock == "cpu" else time.perf_counter
    typer.echo(f"{len(lines)} sentences, beam {num_beams}, {threads} thread(s), {clock} seconds, best of {rounds}")
    typer.echo(
        f"{'batch':>11}  {'system':<28}{'seconds':>9}{'tokens/s':>10}{'generate':>10}{'Marian':>8}{'CTr.2':>7}"
        f"{'BLEU':>7}{'peak MB':>9}{'file MB':>9}   (how many times as fast as generate, Marian, CTranslate2)"
    )
    rows: list[dict[str, Any]] = []
    for size, batches in batchings.items():
        in_batches = [i for batch in batches for i in batch]
        peaks = {
            id(system): round(peak_megabytes(system, [encoded[i] for i in batches[-1]], num_beams, threads))
            for system in systems
            if peak
        }
        for system in systems:
            system.seconds.clear()
            system.translate([encoded[i] for i in batches[0]], num_beams)  # warm
        for _ in range(rounds):
            for system in systems:
                system.translations = []
                begun = now()
                for batch in batches:
                    system.translations += system.translate([encoded[i] for i in batch], num_beams)
                system.seconds.append(now() - begun)
        best = {system.name: min(system.seconds) for system in systems}
        for system in systems:
            seconds, tokens = best[system.name], sum(map(len, system.translations))
            bleu = (
                "-" if references is None else f"{bleu_of(system.translations, references, in_batches, tokenizer):.1f}"
            )
            # An int8 file is compared with CTranslate2's int8.
            peer = f"ctranslate2 {'int8' if 'int8' in system.name else 'float32'}"
            times = [
                f"{best[name] / seconds:.2f}" if name in best else "-"
                for name in ("torch generate()", "transformers Marian", peer)
            ]
            typer.echo(
                f"{size:>11}  {system.name:<28}{seconds:>9.2f}{tokens / seconds:>10.0f}{times[0]:>10}{times[1]:>8}"
                f"{times[2]:>7}{bleu:>7}{peaks.get(id(system), '-'):>9}{system.megabytes:>9.1f}"
            )
            rows.append(
                {
                    "batch": size,
                    "system": system.name,
                    "seconds": round(seconds, 3),
                    "tokens_per_second": round(tokens / seconds),
                    "times_generate": times[0],
                    "times_marian": times[1],
                    "times_ctranslate2": times[2],
                    "bleu": bleu,
                    "peak_megabytes": peaks.get(id(system), ""),
                    "file_megabytes": round(system.megabytes, 1),
                }
            )
    if record is not None:
        from training.record import commit, hardware

        about = {
            "date": date.today().isoformat(),
            "commit": commit(),
            "command": command("decode"),
            "hardware": hardware(),
            "sentences": len(lines),
            "num_beams": num_beams,
            "threads": threads,
            "clock": clock,
        }
        append(record, COLUMNS, [about | row for row in rows])


def bleu_of(translations: Sources, references: list[str], order: list[int], tokenizer: Any) -> float:
    import sacrebleu

    texts = {i: tokenizer.decode(ids, skip_special_tokens=True) for i, ids in zip(order, translations, strict=True)}
    return sacrebleu.corpus_bleu([texts[i] for i in range(len(texts))], [references]).score


def peak_megabytes(system: System, sources: Sources, beams: int, threads: int) -> float:
    """What a process of its own needs at most to load the system and translate one batch."""
    command = [sys.executable, "-m", "benchmarks.decode_memory", system.kind, str(system.folder), str(threads)]
    done = subprocess.run(
        [*command, str(beams)], input=json.dumps(sources), stdout=subprocess.PIPE, text=True, check=True
    )
    return float(done.stdout.split()[-1]) / 1e6


# ---- the systems -------------------------------------------------------------------------------------------------


@functools.cache
def torch_model(folder: Path, dtype: str) -> Any:
    from vaswani_transformer.loading import load_model

    return load_model(folder, device="cpu", dtype=dtype)


def torch_generate(folder: Path, threads: int) -> System:
    """`generate()`, to which everything is compared."""
    import torch

    torch.set_num_threads(threads)
    model = torch_model(folder, "float32")

    def translate(sources: Sources, beams: int) -> Sources:
        ids, mask = map(torch.from_numpy, padded_arrays(sources, model.config.pad_token_id))
        return words(model.generate(ids, attention_mask=mask, num_beams=beams)[:, 1:].tolist(), model.config)

    return System("torch generate()", "generate", folder, translate, weights_of(folder))


def torch_search(folder: Path, threads: int, dtype: str = "float32") -> System:
    """The search in tensors; its batches of keys and values in the model's dtype, its scores in float32."""
    import torch

    from vaswani_transformer.beam_search import beam_search

    torch.set_num_threads(threads)
    model = torch_model(folder, dtype)

    def translate(sources: Sources, beams: int) -> Sources:
        ids, mask = map(torch.from_numpy, padded_arrays(sources, model.config.pad_token_id))
        found, _ = beam_search(model, ids, mask, beams, num_return_sequences=1)
        return words(found[:, 0].tolist(), model.config)

    if dtype == "float32":
        return System("torch search in tensors", "search", folder, translate, weights_of(folder))
    return System(f"torch search, {dtype}", f"search-{dtype}", folder, translate, weights_of(folder) / 2)


def marian_generate(folder: Path, threads: int) -> System:
    """`generate()` as transformers has it: length^alpha, and it stops when it believes that nothing better comes."""
    import torch
    from transformers import MarianMTModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    model: Any = MarianMTModel.from_pretrained(folder, local_files_only=True).eval()

    def translate(sources: Sources, beams: int) -> Sources:
        ids, mask = map(torch.from_numpy, padded_arrays(sources, model.config.pad_token_id))
        found = model.generate(ids, attention_mask=mask, num_beams=beams, length_penalty=0.6, max_length=256)
        return words(found[:, 1:].tolist(), model.config)

    return System("transformers Marian", "marian", folder, translate, weights_of(folder))


def onnx_file(folder: Path, threads: int) -> System:
    from vaswani_transformer.onnx_translator import OnnxTranslator

    translator = OnnxTranslator.from_pretrained(folder, device="cpu", threads=threads)

    def translate(sources: Sources, beams: int) -> Sources:
        sequences, _ = translator.generate(
            *padded_arrays(sources, translator.pad), num_beams=beams, num_return_sequences=1
        )
        ends = translator.config["eos_token_id"]
        return [[token for token in row if token not in (translator.pad, ends)] for row in sequences[:, 0].tolist()]

    name = folder.resolve().name
    return System(
        name if name.startswith("onnx") else f"onnx {name}",
        "onnx",
        folder,
        translate,
        (folder / "model.onnx").stat().st_size / 1e6,
    )


def ctranslate2_model(folder: Path, threads: int, kind: str) -> System:
    """CTranslate2 with its own stop and its own length penalty: length^alpha."""
    try:
        import ctranslate2
    except ModuleNotFoundError:
        raise UnavailableError("ctranslate2 is not installed: pip install ctranslate2") from None
    translator = ctranslate2.Translator(
        str(folder), device="cpu", compute_type=kind, intra_threads=threads, inter_threads=1
    )
    tokens: list[str] = json.loads((folder / "shared_vocabulary.json").read_text(encoding="utf-8"))
    ids = {token: id for id, token in enumerate(tokens)}

    def translate(sources: Sources, beams: int) -> Sources:
        texts = [[tokens[id] for id in source] for source in sources]
        found = translator.translate_batch(texts, beam_size=beams, length_penalty=0.6, max_decoding_length=256)
        return [[ids[token] for token in result.hypotheses[0]] for result in found]

    size = (folder / "model.bin").stat().st_size / 1e6  # int8 is made of float32 when it is loaded
    return System(f"ctranslate2 {kind}", f"ctranslate2-{kind}", folder, translate, size)


SYSTEMS: dict[str, Callable[[Path, int], System]] = {
    "generate": torch_generate,
    "search": torch_search,
    "search-bfloat16": functools.partial(torch_search, dtype="bfloat16"),
    "marian": marian_generate,
    "onnx": onnx_file,
    "ctranslate2-float32": functools.partial(ctranslate2_model, kind="float32"),
    "ctranslate2-int8": functools.partial(ctranslate2_model, kind="int8"),
}


def weights_of(folder: Path) -> float:
    """MB"""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 1e6


def padded_arrays(sources: Sources, pad: int) -> tuple[Any, Any]:
    """input_ids and attention_mask, (batch, longest), int64"""
    import numpy as np

    longest = max(map(len, sources))
    ids = np.full((len(sources), longest), pad)
    mask = np.zeros_like(ids)
    for row, source in enumerate(sources):
        ids[row, : len(source)], mask[row, : len(source)] = source, 1
    return ids, mask


def words(rows: Sources, config: Any) -> Sources:
    return [[token for token in row if token not in (config.pad_token_id, config.eos_token_id)] for row in rows]


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="decode")


if __name__ == "__main__":
    main()
