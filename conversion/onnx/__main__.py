"""`python -m conversion.onnx MODEL OUT`: a model's folder as ONNX, compared with torch before it gets its name."""

import json
import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from vaswani_transformer.errors import InputError, UnavailableError, exit_cleanly
from vaswani_transformer.lines import free_output_folder

app = typer.Typer(add_completion=False, rich_markup_mode=None)

PRECISIONS = ("fp32", "fp16", "int8", "int8-weights")
README = Path(__file__).with_name("README.template")
# The model's own files that the runtime reads, too.
BESIDE = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


@app.command(help="Write a model as one ONNX file that holds its search, and prove that it translates as torch does.")
def export(
    model: Annotated[str, typer.Argument(help="A model's folder.")],
    output: Annotated[str, typer.Argument(help="The new folder.")],
    precision: Annotated[str, typer.Option(help=", ".join(PRECISIONS) + ".")] = "fp32",
) -> None:
    if precision not in PRECISIONS:
        raise InputError(f"--precision {precision!r} is not one of {', '.join(PRECISIONS)}")
    folder = free_output_folder(output)
    if not Path(model).is_dir():
        raise InputError(f"{model}: there is no such folder")
    comparisons = export_folder(Path(model), folder, precision)
    typer.echo(comparisons)
    size = (folder / "model.onnx").stat().st_size
    typer.echo(f"{folder / 'model.onnx'}: {size / 1e6:.1f} MB, {precision}")


def export_folder(source: Path, folder: Path, precision: str = "fp32") -> str:
    """Write the new folder, or nothing; returns the table of what was compared.

    Raises InputError, BrokenFileError or UnavailableError naming what cannot be used, RuntimeError if the graph does
    not do what torch does.
    """
    try:
        import onnx
        import onnxruntime  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise UnavailableError(f'{error.name} is not installed: pip install "vaswani-transformer[onnx]"') from None
    import torch

    from vaswani_transformer.loading import load_model, load_tokenizer

    from .prove import prove, table
    from .quantize import in_precision
    from .single_graph import export_single_graph

    model = load_model(source, device="cpu", dtype=torch.float32)
    has_tokenizer = (source / "tokenizer.json").exists()
    if has_tokenizer:
        load_tokenizer(source, model.config)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = folder.with_name(f".{folder.name}.{os.getpid()}.unfinished")
    try:
        unfinished.mkdir()
        graph = in_precision(export_single_graph(model), precision)
        onnx.save(graph, unfinished / "model.onnx")
        del graph
        comparisons, wrong = prove(unfinished / "model.onnx", model, precision)
        if wrong:
            raise RuntimeError(
                f"the exported graph does not translate as torch does ({'; '.join(wrong)}); nothing was written"
            )
        for name in BESIDE:
            if (source / name).exists():
                shutil.copyfile(source / name, unfinished / name)
        if not (unfinished / "generation_config.json").exists():
            settings = model.generation_config.to_diff_dict()
            (unfinished / "generation_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        if has_tokenizer:
            shutil.copyfile(README, unfinished / "README.md")
        os.replace(unfinished, folder)  # over an empty folder, if there was one
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return table(comparisons)


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="export")


if __name__ == "__main__":
    main()
