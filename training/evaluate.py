"""Score a model's translations (section 6.1): BLEU in five variants, chrF, exact matches.

evaluation_text.py -> the translator -> scores.py -> result_row.py. They are imported where they are used, so that
--help is fast.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaswani_transformer.errors import InputError
from vaswani_transformer.exit import exit_cleanly
from vaswani_transformer.lines import open_output, without_line_breaks

if TYPE_CHECKING:
    from vaswani_transformer.text_translator import TextTranslator

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help="Translate a test set and score it: BLEU in five variants, chrF, exact matches.")
def evaluate(
    model: Annotated[Path, typer.Argument(help="A model folder.")],
    source: Annotated[Path | None, typer.Option(help="Source sentences, one per line.")] = None,
    reference: Annotated[Path | None, typer.Option(help="Their translations, one per line.")] = None,
    config: Annotated[
        str | None, typer.Option(help="The recipe whose test set to use; default: that of the model's run.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="The folder of the recipe's text.")] = None,
    test: Annotated[
        str | None,
        typer.Option(help="A corpus to use instead of the recipe's `test`; default without one: its `validation`."),
    ] = None,
    beam: Annotated[int | None, typer.Option(min=1, help="Beam size; default: the model's.")] = None,
    alpha: Annotated[float | None, typer.Option(help="Length penalty of GNMT; default: the model's.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...; default: a GPU if there is one.")] = None,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Tokens in a batch, times beams.")] = 8192,
    dtype: Annotated[str | None, typer.Option(help="float32, bfloat16, float16 or float64; default: as saved.")] = None,
    backend: Annotated[str, typer.Option(help="torch, or onnx for a folder that `export onnx` wrote.")] = "torch",
    hypotheses: Annotated[Path | None, typer.Option(help="Write the translations to this file.")] = None,
    record_to: Annotated[Path | None, typer.Option("--record", help="Append the result to this CSV file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    if not model.is_dir():
        raise InputError(f"{model}: no such model folder")
    if record_to is not None and (dtype is not None or backend != "torch"):
        raise InputError("--record describes models as they were trained; use it without --dtype and --backend")
    from vaswani_transformer.translator import Translator

    from .evaluation_text import text_of_files, text_of_run
    from .result_row import append_row
    from .scores import format_scores, scores

    if (source is None) != (reference is None):
        raise InputError("--source and --reference come together")
    files = (source, reference) if source and reference else None
    chosen = text_of_files(*files) if files else text_of_run(model, config, data, test)
    if hypotheses is not None and (hypotheses.is_dir() or not hypotheses.parent.is_dir()):
        raise InputError(f"--hypotheses {hypotheses}: give the name of a file in an existing folder")
    from_pretrained: Any = Translator.from_pretrained  # overloaded by backend
    translator: TextTranslator = from_pretrained(model, device=device, dtype=dtype, backend=backend)
    beam, alpha, _ = translator.search_settings(beam, alpha)
    # Translate whole lines, as BLEU and training do.
    translations = translator.translate(
        chosen.sources,
        num_beams=beam,
        length_penalty=alpha,
        batch_tokens=batch_tokens,
        split_sentences=False,
        progress=True,
    )
    result = scores(translations, chosen.references, chosen.kinds, chosen.language)
    if as_json:
        typer.echo(json.dumps({"test": chosen.name, "beam": beam, "alpha": alpha, **result}, indent=1))
    else:
        typer.echo(f"{chosen.name}, beam {beam}, length penalty {alpha}\n{format_scores(result)}")
    if hypotheses is not None:
        with open_output(hypotheses) as out:
            out.write("".join(f"{without_line_breaks(line)}\n" for line in translations).encode())
    if record_to is not None:
        append_row(record_to, model, chosen, result, beam, alpha)


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="vaswani-transformer evaluate")


if __name__ == "__main__":
    main()
