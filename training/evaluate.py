"""Score a model's translations (section 6.1): BLEU in five variants, chrF, exact matches.

evaluation_text.py -> the translator -> scores.py -> result_row.py. They are imported where they are used, so that
--help is fast.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaswani_transformer.errors import InputError
from vaswani_transformer.exit import exit_cleanly
from vaswani_transformer.lines import open_output, without_line_breaks
from vaswani_transformer.options import Backend, BatchTokens, Device, Dtype, LengthPenalty, NumBeams

if TYPE_CHECKING:
    from .evaluation_text import EvaluationText

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
    test: Annotated[str | None, typer.Option(help="A corpus; default: the recipe's `test`, else `validation`.")] = None,
    num_beams: NumBeams = None,
    length_penalty: LengthPenalty = None,
    device: Device = None,
    batch_tokens: BatchTokens = 8192,
    dtype: Dtype = None,
    backend: Backend = "torch",
    hypotheses: Annotated[Path | None, typer.Option(help="Write the translations to this file.")] = None,
    record_to: Annotated[Path | None, typer.Option("--record", help="Append the result to this CSV file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    if not model.is_dir():
        raise InputError(f"{model}: no such model folder")
    if record_to is not None and (dtype is not None or backend != "torch"):
        raise InputError("--record describes models as they were trained; use it without --dtype and --backend")
    from vaswani_transformer.translator import Translator

    from .result_row import COLUMNS, append_row, check_columns
    from .scores import format_scores, scores

    if record_to is not None:
        check_columns(record_to, COLUMNS)
    text = read_text(model, source, reference, config, data, test)
    if hypotheses is not None and (hypotheses.is_dir() or not hypotheses.parent.is_dir()):
        raise InputError(f"--hypotheses {hypotheses}: give the name of a file in an existing folder")
    translator: Translator = Translator.from_pretrained(model, backend=backend, device=device, dtype=dtype)
    search = translator.change_search(num_beams=num_beams, length_penalty=length_penalty)
    translations = translator.translate(
        text.sources,
        batch_tokens=batch_tokens,
        split_sentences=False,  # as in training
        progress=True,
        **vars(search),
    )
    result = scores(translations, text.references, text.kinds, text.language)
    result |= {"beam": search.num_beams, "alpha": search.length_penalty}
    if as_json:
        typer.echo(json.dumps({"test": text.name, **result}, indent=1))
    else:
        typer.echo(f"{text.name}, beam {result['beam']}, length penalty {result['alpha']}\n{format_scores(result)}")
    if hypotheses is not None:
        with open_output(hypotheses) as out:
            out.write("".join(f"{without_line_breaks(line)}\n" for line in translations).encode())
    if record_to is not None:
        append_row(record_to, model, text, result)


def read_text(
    model: Path, source: Path | None, reference: Path | None, config: str | None, data: str | None, test: str | None
) -> "EvaluationText":
    from .evaluation_text import recipe_of_run, text_of_files, text_of_recipe

    if source is None and reference is None:
        return text_of_recipe(recipe_of_run(model, config, data, test))
    if source is None or reference is None:
        raise InputError("--source and --reference come together")
    if any(option is not None for option in (config, data, test)):
        raise InputError("--source and --reference name the text; use them without --config, --data and --test")
    return text_of_files(source, reference)


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="vaswani-transformer evaluate")


if __name__ == "__main__":
    main()
