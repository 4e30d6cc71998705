"""How fast is translating? Torch, ONNX Runtime and CTranslate2 on the same sentences with the same weights.

    python -m benchmarks.decode MODEL --source test.en --reference test.de --onnx ONNX_FOLDER --ctranslate2 CT2_FOLDER

Every system translates the same batches of token ids, sorted by length, in turn; the best of some rounds counts. On a
machine shared with other work compare CPU seconds: --clock cpu --threads 1.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from vaswani_transformer.errors import InputError, UnavailableError, exit_cleanly
from vaswani_transformer.lines import read_lines

app = typer.Typer(add_completion=False, rich_markup_mode=None)
Sources = list[list[int]]


@dataclass
class System:
    """translate: a batch of sources -> their best translations, as token ids without </s>"""

    name: str
    translate: Callable[[Sources, int], Sources]
    megabytes: float
    seconds: list[float] = field(default_factory=list)  # by round
    translations: Sources = field(default_factory=list)  # of the last round, in the order of the batches


@app.command(help="Compare the speed of translating.")
def main_command(
    model: Annotated[str, typer.Argument(help="A model's folder.")],
    source: Annotated[str, typer.Option(help="A UTF-8 text file, one sentence a line.")],
    reference: Annotated[str | None, typer.Option(help="Its translation, for BLEU.")] = None,
    onnx: Annotated[list[str] | None, typer.Option(help="A folder with model.onnx; may be given again.")] = None,
    ctranslate2: Annotated[str | None, typer.Option(help="The same weights as a folder of CTranslate2.")] = None,
    batch_size: Annotated[list[int] | None, typer.Option(help="Sentences in a batch; may be given again.")] = None,
    sentences: Annotated[int, typer.Option(min=1, help="Lines of the source that are used.")] = 200,
    num_beams: int = 4,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
    clock: Annotated[str, typer.Option(help="wall or cpu.")] = "wall",
) -> None:
    if clock not in ("wall", "cpu"):
        raise InputError(f"--clock {clock!r} is neither wall nor cpu")
    import torch

    torch.set_num_threads(threads)
    lines = list(read_lines(source))[:sentences]
    references = list(read_lines(reference))[:sentences] if reference else None
    if references is not None and len(references) != len(lines):
        raise InputError(f"{source} has {len(lines)} lines and {reference} {len(references)}")
    from vaswani_transformer.loading import load_model, load_tokenizer

    loaded = load_model(model, device="cpu")
    tokenizer = load_tokenizer(model, loaded.config)
    encoded: Any = tokenizer(lines, verbose=False)["input_ids"]
    order = sorted(range(len(lines)), key=lambda i: len(encoded[i]))
    systems = torch_systems(loaded, Path(model))
    for folder in onnx or []:
        systems.append(onnx_system(Path(folder), threads))
    if ctranslate2:
        systems += ctranslate2_systems(Path(ctranslate2), tokenizer, threads)
    now = time.process_time if clock == "cpu" else time.perf_counter
    typer.echo(f"{len(lines)} sentences, beam {num_beams}, {threads} thread(s), {clock} seconds, best of {rounds}")
    typer.echo(f"{'batch':>6}  {'system':<28}{'seconds':>9}{'tokens/s':>10}{'ratio':>7}{'BLEU':>7}{'MB':>7}")
    for size in batch_size or [1, 16, 64]:
        batches = [order[i : i + size] for i in range(0, len(order), size)]
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
        slowest = min(systems[0].seconds)
        for system in systems:
            seconds, tokens = min(system.seconds), sum(map(len, system.translations))
            bleu = "-" if references is None else f"{bleu_of(system.translations, references, order, tokenizer):.1f}"
            typer.echo(
                f"{size:>6}  {system.name:<28}{seconds:>9.2f}{tokens / seconds:>10.0f}{slowest / seconds:>7.2f}"
                f"{bleu:>7}{system.megabytes:>7.0f}"
            )


def bleu_of(translations: Sources, references: list[str], order: list[int], tokenizer: Any) -> float:
    import sacrebleu

    texts = {i: tokenizer.decode(ids, skip_special_tokens=True) for i, ids in zip(order, translations, strict=True)}
    return sacrebleu.corpus_bleu([texts[i] for i in range(len(texts))], [references]).score


def torch_systems(model: Any, folder: Path) -> list[System]:
    """`generate()`, to which everything is compared, and the search in tensors."""
    import torch

    from vaswani_transformer.beam_search import beam_search

    def padded(sources: Sources) -> tuple[torch.Tensor, torch.Tensor]:
        ids, mask = padded_arrays(sources, model.config.pad_token_id)
        return torch.from_numpy(ids), torch.from_numpy(mask)

    def generate(sources: Sources, beams: int) -> Sources:
        ids, mask = padded(sources)
        return words(model.generate(ids, attention_mask=mask, num_beams=beams)[:, 1:].tolist(), model.config)

    def search(sources: Sources, beams: int) -> Sources:
        return words(beam_search(model, *padded(sources), beams)[0][:, 0].tolist(), model.config)

    size = sum(path.stat().st_size for path in folder.glob("*.safetensors")) / 1e6
    return [System("torch generate()", generate, size), System("torch search in tensors", search, size)]


def onnx_system(folder: Path, threads: int) -> System:
    from vaswani_transformer.onnx_translator import OnnxTranslator

    translator = OnnxTranslator.from_pretrained(folder, device="cpu", threads=threads)

    def translate(sources: Sources, beams: int) -> Sources:
        sequences, _ = translator.generate(*padded_arrays(sources, translator.pad), num_beams=beams)
        ends = translator.config["eos_token_id"]
        return [[token for token in row if token not in (translator.pad, ends)] for row in sequences[:, 0].tolist()]

    return System(f"onnx {folder.name}", translate, (folder / "model.onnx").stat().st_size / 1e6)


def ctranslate2_systems(folder: Path, tokenizer: Any, threads: int) -> list[System]:
    """float32 and int8, with CTranslate2's own stop and its own length penalty: length^alpha."""
    try:
        import ctranslate2
    except ModuleNotFoundError:
        raise UnavailableError("ctranslate2 is not installed: pip install ctranslate2") from None
    systems = []
    for kind in ("float32", "int8"):
        translator = ctranslate2.Translator(
            str(folder), device="cpu", compute_type=kind, intra_threads=threads, inter_threads=1
        )

        def translate(sources: Sources, beams: int, translator: Any = translator) -> Sources:
            tokens = [tokenizer.convert_ids_to_tokens(source) for source in sources]
            found = translator.translate_batch(tokens, beam_size=beams, length_penalty=0.6, max_decoding_length=256)
            return [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in found]

        systems.append(System(f"ctranslate2 {kind}", translate, (folder / "model.bin").stat().st_size / 1e6))
    return systems


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
