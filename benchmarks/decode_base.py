"""How fast is translating with the paper's base model? ONNX Runtime and CTranslate2, with the same random weights.

    python -m benchmarks.decode_base --threads 1

Sources of 25 tokens, outputs of exactly 28 ids, beam 4: a model that nobody has trained does not know when to stop, and
so every system does the same work. Each batch goes through all systems in turn; the best of some rounds counts.
"products" is the share of the rate at which ONNX Runtime multiplies 256 rows with the output matrix, alone, that a
system's products with weights reach: where it is near 100 %, nothing is left to gain at that precision.
"""

import functools
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
        typer.echo(f"{'batch':>6}  {'system':<22}{'ids/s':>7}{'times CTranslate2':>19}{'products':>10}")
        for size in batch_size or [1, 16, 64]:
            ids = generator.integers(4, VOCABULARY, (size, SOURCE_LENGTH))
            ids[:, -1] = 2  # </s>
            best = dict.fromkeys(systems, float("inf"))
            products = {kind: [] for kind in PAIRS}
            for number in range(rounds + 1):  # the first is for warming up
                for kind in PAIRS:
                    products[kind].append(product_rate(kind, threads))
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
                ceiling = max(products["onnx-int8" if "int8" in system else "onnx-fp32"])
                share = round(rate * operations_per_id() / ceiling, 3)
                typer.echo(f"{size:>6}  {system:<22}{rate:>7}{times:>19}{share:>10.0%}")
                found = {"ids_per_second": rate, "times_ctranslate2": times, "share": share}
                rows.append({"batch": size, "system": system, **found, "product_gops": round(ceiling / 1e9)})
    if record is not None:
        write_rows(record, threads, rows)


def write_models(folder: Path) -> None:
    """Random weights of the base model as our folder, two ONNX files and a model of CTranslate2."""
    import torch
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    from conversion.onnx.export import export_folder
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


def operations_per_id() -> float:
    """Operations of the products with weights for each id of the best translation, 2 a multiply-add."""
    import torch

    from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration

    with torch.device("meta"):
        model = VaswaniTransformerForConditionalGeneration(
            VaswaniTransformerConfig.from_preset("base", vocab_size=VOCABULARY)
        )

    def matrices(module: Any, of_memory: bool) -> int:
        """Entries of the matrices; those that make the memory's keys and values, or the others."""
        names = ("cross_attn.k_proj", "cross_attn.v_proj")
        return sum(
            parameter.numel()
            for name, parameter in module.named_parameters()
            if parameter.dim() > 1 and any(part in name for part in names) == of_memory
        )

    each_source = matrices(model.model.encoder.layers, False) + matrices(model.model.decoder.layers, True)
    each_output = matrices(model.model.decoder.layers, False) + model.lm_head.weight.numel()
    # The first step has one hypothesis, here and in CTranslate2.
    hypotheses = (1 + BEAMS * (OUTPUT_LENGTH - 1)) / OUTPUT_LENGTH
    return 2 * (each_source * SOURCE_LENGTH / OUTPUT_LENGTH + each_output * hypotheses)


@functools.cache
def product_session(kind: str, threads: int) -> Any:
    """256 rows times a matrix of the output layer's size, and nothing else."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    generator = np.random.default_rng(0)
    shape = (512, VOCABULARY)
    if kind == "onnx-fp32":
        matrix, rows, out, operator = (
            generator.random(shape, np.float32),
            TensorProto.FLOAT,
            TensorProto.FLOAT,
            "MatMul",
        )
    else:
        matrix, operator = generator.integers(-127, 128, shape, np.int8), "MatMulInteger"
        rows, out = TensorProto.UINT8, TensorProto.INT32
    graph = helper.make_graph(
        [helper.make_node(operator, ["rows", "matrix"], ["products"])],
        "product",
        [helper.make_tensor_value_info("rows", rows, [None, shape[0]])],
        [helper.make_tensor_value_info("products", out, [None, shape[1]])],
        [numpy_helper.from_array(matrix, "matrix")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def product_rate(kind: str, threads: int) -> float:
    """Operations a second of that product: what no translation can exceed."""
    session = product_session(kind, threads)
    rows = np.ones((256, 512), np.float32 if kind == "onnx-fp32" else np.uint8)
    session.run(None, {"rows": rows})
    begun = time.perf_counter()
    for _ in range(4):
        session.run(None, {"rows": rows})
    return 4 * 2 * rows.size * VOCABULARY / (time.perf_counter() - begun)


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
    from training.record import commit, hardware

    about = {
        "date": date.today().isoformat(),
        "commit": commit(),
        "command": command("decode_base"),
        "hardware": hardware(),
        "threads": threads,
    }
    append(record, [*about, *rows[0]], [about | row for row in rows])


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="decode_base")


if __name__ == "__main__":
    main()
