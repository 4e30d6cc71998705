"""`python -m conversion.onnx MODEL OUT`: a model's folder as ONNX, compared with torch before it gets its name."""

import copy
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaswani_transformer.errors import InputError, ProofError, UnavailableError, exit_cleanly
from vaswani_transformer.lines import check_new_folder, read_lines
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER

if TYPE_CHECKING:
    import onnx

app = typer.Typer(add_completion=False, rich_markup_mode=None)

PRECISIONS = ("fp32", "fp16", "int8", "int8-weights")
LAYOUTS = ("single", "split")
# Bytes of weights in a file: at 2 GiB, the graph itself included, ONNX's format ends.
LARGEST_FILE = 2_000_000_000
# The model's own files that the runtime reads, too, as they are.
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
BESIDE = ("generation_config.json", *TOKENIZER_FILES, *(f"{TARGET_TOKENIZER}/{file}" for file in TOKENIZER_FILES))


@app.command(help="Write a model as one ONNX file that holds its search, and prove that it translates as torch does.")
def export(
    model: Annotated[str, typer.Argument(help="A model's folder.")],
    output: Annotated[str, typer.Argument(help="The new folder.")],
    precision: Annotated[str, typer.Option(help=", ".join(PRECISIONS) + ".")] = "fp32",
    layout: Annotated[
        str, typer.Option(help="single: the search is in the graph; split: encoder and decoders, Optimum's names.")
    ] = "single",
    attention: Annotated[
        bool,
        typer.Option(
            "--attention",
            help="One more output: what each token of the best translation attends to, for about a tenth more time; "
            "not with --text. Of the split layout: decoder_model says it of the tokens that it is given.",
        ),
    ] = False,
    text: Annotated[
        bool,
        typer.Option(
            "--text", help="Beside model.onnx, model_text.onnx with the tokenizer in it: texts in, texts out."
        ),
    ] = False,
    sentences: Annotated[
        str | None,
        typer.Option(help="A UTF-8 text file (.gz too), a few hundred lines: prove the file on these, and time it."),
    ] = None,
    no_defaults: Annotated[
        bool, typer.Option("--no-defaults", help="Beam size and the like must be given: onnxruntime-web needs it so.")
    ] = False,
) -> None:
    if precision not in PRECISIONS:
        raise InputError(f"--precision {precision!r} is not one of {', '.join(PRECISIONS)}")
    if layout not in LAYOUTS:
        raise InputError(f"--layout {layout!r} is not one of {', '.join(LAYOUTS)}")
    if sentences is not None and layout != "single":
        raise InputError("--sentences needs the search in the graph: --layout single")
    if text and layout != "single":
        raise InputError("--text needs the search in the graph: --layout single")
    if text and attention:
        raise InputError("--attention says where token ids looked, and --text has none to give: export twice")
    folder = check_new_folder(output)
    if not Path(model).is_dir():
        raise InputError(f"{model}: there is no such folder")
    lines = None if sentences is None else list(read_lines(sentences))
    typer.echo(
        export_folder(
            Path(model),
            folder,
            precision,
            layout,
            defaults=not no_defaults,
            attention=attention,
            text=text,
            sentences=lines,
            name=sentences or "",
        )
    )
    for path in sorted(path for kind in ("*.onnx", "*.onnx.data") for path in folder.glob(kind)):
        typer.echo(f"{path}: {path.stat().st_size / 1e6:.1f} MB, {precision}")


def export_folder(
    source: Path,
    folder: Path,
    precision: str = "fp32",
    layout: str = "single",
    defaults: bool = True,
    attention: bool = False,
    text: bool = False,
    sentences: list[str] | None = None,
    name: str = "sentences",
) -> str:
    """Write the new folder, or nothing; returns the table of what was compared.

    defaults: num_beams and the other settings have values of their own, and need not be given. onnxruntime-web, unlike
        ONNX Runtime itself, then takes no others.
    attention: one more output, cross_attentions; of the split layout, decoder_model has cross_attentions.0, ...
    text: beside the single graph, model_text.onnx, which has the tokenizer in it
    sentences: of the single graph, texts that it is proved on, too, and timed with; name: what an error calls them

    Raises InputError, BrokenFileError or UnavailableError naming what cannot be used, ProofError if the graph does not
    do what torch does.
    """
    try:
        import onnx
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise UnavailableError(f'{error.name} is not installed: pip install "vaswani-transformer[onnx]"') from None
    import torch

    from vaswani_transformer.loading import check_search, load_model, load_tokenizer, target_vocabulary

    from ..folder import folder_written_whole
    from .prove import prove, prove_attention, prove_split, split_table, table
    from .quantize import quantized
    from .readme import readme
    from .sentences import encoded_sentences, race
    from .single_graph import SETTINGS, export_single_graph
    from .split import export_split
    from .text import prove_text, readable_tokenizer, with_tokenizer
    from .traced import EXAMPLE_LENGTH

    model = load_model(source, device="cpu", dtype=torch.float32)
    if layout == "single":
        check_search(model, source)
    positions = model.config.max_position_embeddings
    if positions is not None and positions < EXAMPLE_LENGTH:
        raise InputError(
            f"{source / 'config.json'}: max_position_embeddings is {positions}; ONNX is exported with sentences of "
            f"{EXAMPLE_LENGTH} tokens and needs as many"
        )
    has_tokenizer = (source / "tokenizer.json").exists()
    tokenizer = load_tokenizer(source, model.config) if has_tokenizer or sentences is not None else None
    two_tokenizers = (source / TARGET_TOKENIZER).is_dir()
    if two_tokenizers:
        load_tokenizer(source / TARGET_TOKENIZER, model.config, target=True)
    elif has_tokenizer and target_vocabulary(model.config) != model.config.vocab_size:
        raise InputError(
            f"{source}: the model has {model.config.vocab_size} source and {target_vocabulary(model.config)} target "
            f"tokens and one tokenizer; its translations need their own: {TARGET_TOKENIZER}/tokenizer.json"
        )
    real = None if sentences is None else encoded_sentences(sentences, tokenizer, model, name)
    bpe = readable_tokenizer(source, model) if text else None
    with folder_written_whole(folder) as unfinished:
        # In float16 too, attention scores, masks and the search are float32: the model's code says so.
        exported = copy.deepcopy(model).half() if precision == "fp16" else model
        if layout == "single":
            graphs = {"model": export_single_graph(exported, attention)}
        else:
            graphs = export_split(exported, attention)
        settings = {}
        if not defaults and layout == "single":
            for tensor in [tensor for tensor in graphs["model"].graph.initializer if tensor.name in SETTINGS]:
                settings[tensor.name] = onnx.numpy_helper.to_array(tensor)
                graphs["model"].graph.initializer.remove(tensor)
        for part in list(graphs):
            graph = graphs.pop(part)
            if precision.startswith("int8"):
                graph = quantized(graph, activations=precision == "int8")
            save(graph, unfinished, folder, f"{part}.onnx")
            if bpe is not None:
                onnx.load_external_data_for_model(graph, str(unfinished))  # what `save` has taken out of it
                save(with_tokenizer(graph, bpe, model), unfinished, folder, "model_text.onnx")
            del graph
        if layout == "single":
            comparisons, wrong = prove(unfinished / "model.onnx", model, precision)
            report = table(comparisons)
            if attention and not wrong:
                furthest, wrong = prove_attention(unfinished / "model.onnx", model, precision)
                report += f"\nweights of attention differ by at most {furthest:.1e}"
            if real is not None and not wrong:
                raced, wrong = race(unfinished / "model.onnx", model, real, precision)
                report += f"\n{raced.line()}"
            if text and not wrong:
                proof, wrong = prove_text(unfinished, model, tokenizer, sentences or [], precision)
                report += f"\n{proof.line()}"
        else:
            differences, wrong = prove_split(unfinished, model, precision)
            report = split_table(differences)
        if wrong:
            raise ProofError(
                f"the exported graph does not translate as torch does ({'; '.join(wrong)}); nothing was written"
            )
        # Not the model's file, which may leave to torch's code what the runtime has to read.
        model.config.to_json_file(unfinished / "config.json")
        for file in BESIDE:
            if (source / file).exists():
                (unfinished / file).parent.mkdir(exist_ok=True)
                shutil.copyfile(source / file, unfinished / file)
        if not (unfinished / "generation_config.json").exists():
            model.generation_config.save_pretrained(unfinished)
        if has_tokenizer and layout == "single":
            page = readme(model, precision, settings, unfinished, attention, text)
            (unfinished / "README.md").write_text(page, encoding="utf-8")
    return report


def save(graph: "onnx.ModelProto", unfinished: Path, folder: Path, name: str) -> None:
    """As one file; where that would be too large, with the weights in NAME.data beside it, which leave the graph."""
    import onnx
    from onnx.external_data_helper import set_external_data

    from .graph_surgery import graphs_of

    tensors = [tensor for body in graphs_of(graph.graph) for tensor in body.initializer]
    if sum(len(tensor.raw_data) for tensor in tensors) > LARGEST_FILE:
        for tensor in tensors:
            if len(tensor.raw_data) >= 1024:
                set_external_data(tensor, f"{name}.data")
    try:
        onnx.save(graph, unfinished / name)
    except OSError as error:  # onnx does not say which file
        raise OSError(error.errno, error.strerror, str(folder / name)) from None


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="export")


if __name__ == "__main__":
    main()
