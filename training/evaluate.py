"""Score a model's translations (section 6.1): BLEU in five variants, chrF, exact matches.

The parallel text -> the translator -> scores.py -> result_row.py. They are imported where they are used, so that
--help is fast.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.exit import exit_cleanly
from vaswani_transformer.hub_files import is_repository
from vaswani_transformer.languages import read_languages
from vaswani_transformer.lines import (
    check_file,
    check_output,
    open_output,
    read_lines,
    read_parallel_lines,
    refuse_same_file,
    remove_line_breaks,
)
from vaswani_transformer.options import (
    Backend,
    BatchTokens,
    Device,
    DryRun,
    Dtype,
    LengthPenalty,
    Model,
    NumBeams,
    Revision,
    TargetLanguage,
    Workers,
    find_model_and_backend,
)
from vaswani_transformer.training_run import RECORD, follow_pointer, read_run

from .tables import is_language

if TYPE_CHECKING:
    from .recipe import Recipe

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help="Translate a test set and score it: BLEU in five variants, chrF, exact matches.")
def evaluate(
    context: typer.Context,
    model: Model,
    source: Annotated[Path | None, typer.Option(help="Source sentences, one per line.")] = None,
    reference: Annotated[Path | None, typer.Option(help="Their translations, one per line.")] = None,
    config: Annotated[
        str | None, typer.Option(help="The recipe whose test set to use; default: that of the model's run.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="The folder of the recipe's text.")] = None,
    test: Annotated[str | None, typer.Option(help="A corpus; default: the recipe's `test`, else `validation`.")] = None,
    kinds: Annotated[
        Path | None, typer.Option(help="The kind of each sentence, such as news, one per line: also score each kind.")
    ] = None,
    target_language: TargetLanguage = None,
    num_beams: NumBeams = None,
    length_penalty: LengthPenalty = None,
    device: Device = None,
    batch_tokens: BatchTokens = None,
    workers: Workers = None,
    dtype: Dtype = None,
    backend: Backend = None,
    hypotheses: Annotated[Path | None, typer.Option(help="Write the translations to this file.")] = None,
    record_to: Annotated[Path | None, typer.Option("--record", help="Append the result to this CSV file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    revision: Revision = None,
    dry_run: DryRun = False,
) -> None:
    from vaswani_transformer.model_folder import hash_weights
    from vaswani_transformer.training_run import RESULT_COLUMNS

    from .result_row import append_row, check_columns

    text = None
    if not dry_run:  # before the model is downloaded, or a dataset for one that does not exist
        if not is_repository(model) and not follow_pointer(Path(model)).exists():
            raise InputError(f"{model}: no such folder")
        if kinds is not None and str(kinds) != "-":
            check_file(kinds)
        if hypotheses is not None:
            check_output(hypotheses)
        if record_to is not None:
            check_columns(record_to, RESULT_COLUMNS)
        if not all(option is None for option in (source, reference, config)):
            text = read_text(source, reference, config, data, test)
    folder, backend = find_model_and_backend(context, model, backend, revision, dry_run)
    if record_to is not None and (dtype is not None or backend != "torch"):
        raise InputError("--record describes models as they were trained; use it without --dtype and --backend")
    from vaswani_transformer.loading import as_device
    from vaswani_transformer.translator import Translator

    from .scores import format_scores, scores

    if text is None:
        text = read_recipe_text(load_run_recipe(folder, data, test))
    if kinds is not None:
        text = replace(text, kinds=read_kinds(kinds, len(text.sources)))
    if hypotheses is not None:
        refuse_same_file("--hypotheses", hypotheses, *text.files, kinds, record_to)
    weights = "" if record_to is None else hash_weights(folder)
    translator: Translator = Translator.from_pretrained(folder, backend=backend, device=device, dtype=dtype)
    search = translator.change_search(num_beams=num_beams, length_penalty=length_penalty)
    translations = translator.translate(
        text.sources,
        batch_tokens=batch_tokens,
        workers=workers,
        split_sentences=False,  # as in training
        target_language=target_language,
        progress=True,
        **vars(search),
    )
    if target_language:  # several rows of a model may have the same sources; `de` and German are one language
        languages = translator.languages
        language = languages.names[languages.tokens.index(languages.find(target_language))]
        text = replace(text, name=f"{text.name} to {language}", language=language)
    recorded = (read_languages(folder) or (None, "en"))[1]
    result = scores(*select_complete(text, translations), text.language or recorded)
    result |= {"beam": search.num_beams, "alpha": search.length_penalty}
    if as_json:
        typer.echo(json.dumps({"test": text.name, **result}, indent=1))
    else:
        typer.echo(f"{text.name}, beam {result['beam']}, length penalty {result['alpha']}\n{format_scores(result)}")
    if hypotheses is not None:
        with open_output(hypotheses) as out:
            out.write("".join(f"{remove_line_breaks(line)}\n" for line in translations).encode())
    if record_to is not None:
        append_row(record_to, folder, text, result, as_device(device), weights)


@dataclass(frozen=True)
class EvaluationText:
    """Sources with their references, and the kind of each sentence if it is known.

    language: of the references; None if neither a recipe nor the name of a file tells it
    files: of the text
    """

    name: str
    data: str
    sources: list[str]
    references: list[str]
    kinds: list[str] | None = None
    language: str | None = None
    files: tuple[Path, ...] = ()


def read_text(
    source: Path | None, reference: Path | None, config: str | None, data: str | None, test: str | None
) -> EvaluationText:
    """Return the text of --source and --reference, or of the recipe of --config."""
    if config is not None and source is None and reference is None:
        from .recipe import load_recipe

        return read_recipe_text(load_recipe(config, text_flags(data, test)))
    if source is None or reference is None:
        raise InputError("give both --source and --reference, or neither")
    if any(option is not None for option in (config, data, test)):
        raise InputError("--source and --reference name the text; use them without --config, --data and --test")
    return read_text_files(source, reference)


def read_recipe_text(recipe: "Recipe") -> EvaluationText:
    """Return the sentences of a recipe's `test` corpora, or of its validation text if it names no test corpus.

    The validation text is the text that training validates on, including pairs held out of the training text.
    """
    from . import demo_corpus
    from .parallel_text import holds_out_validation, open_texts, open_training_and_validation, read_sentences
    from .recipe import EMBEDDED

    names = recipe.test or recipe.validation
    if not names:
        raise InputError("the recipe has no test corpus; pass --test NAME, or --source and --reference")
    if not recipe.test and holds_out_validation(recipe):
        names = [f"{name} (held out)" for name in recipe.train]
        texts = open_training_and_validation(recipe)[1]
    else:
        texts = open_texts(recipe, names)
    sources, references = read_sentences(texts)
    if not sources:
        raise InputError(f"{' + '.join(names)}: no pair has a text in both languages; a score needs translations")
    embedded = recipe.data == EMBEDDED
    kinds = [kind for name in names for kind, *_ in demo_corpus.load(name)] if embedded else None
    data = recipe.dataset or recipe.data or "."
    files = tuple(file for text in texts for file in text.files)
    name, place, language = " + ".join(names), Path(data).name, recipe.target_language
    return EvaluationText(name, place, sources, references, kinds, language, files)


def read_text_files(source: Path, reference: Path) -> EvaluationText:
    """Return the text of two parallel files."""
    sources, references = (list(map(str.strip, lines)) for lines in read_parallel_lines(source, reference))
    for path, lines in ((source, sources), (reference, references)):
        if not any(lines):
            raise InputError(f"{path} has no text; a score needs sentences and their translations")
    if not any(map(all, zip(sources, references, strict=True))):
        raise InputError(f"no line has a text in both {source} and {reference}; line n must translate line n")
    suffix = reference.name.removesuffix(".gz").rpartition(".")[2]  # test.de
    language = suffix if is_language(suffix) else None
    name, place = source.stem, source.parent.name
    return EvaluationText(name, place, sources, references, language=language, files=(source, reference))


def select_complete(text: EvaluationText, translations: list[str]) -> tuple[list[str], list[str], list[str] | None]:
    """Return the translations, references and kinds of the pairs with a text in both languages.

    The translation of an empty source is empty, too, and would match an empty reference exactly.
    """
    complete = [n for n, pair in enumerate(zip(text.sources, text.references, strict=True)) if all(pair)]
    kinds = text.kinds and [text.kinds[n] for n in complete]
    return [translations[n] for n in complete], [text.references[n] for n in complete], kinds


def read_kinds(path: Path, sentences: int) -> list[str]:
    """Return the kind of each sentence. Raises InputError if the file has another number of lines."""
    kinds = [line.strip() for line in read_lines(path)]
    if len(kinds) != sentences:
        raise InputError(f"--kinds {path} has {len(kinds)} lines, but the text has {sentences} sentences")
    return kinds


def load_run_recipe(model: Path, data: str | None = None, test: str | None = None) -> "Recipe":
    """Load the recipe of the run in the model's folder. data, test: replace the recipe's."""
    from .recipe import TEXT_KEYS, load_recipe

    if (run := read_run(model)) == {}:
        raise InputError(f"{model} has no run.json; pass --config RECIPE, or --source and --reference")
    recorded = {key: value for key, value in run.get("recipe", {}).items() if key in TEXT_KEYS}
    try:
        load_recipe(None, recorded=recorded)
    except InputError as error:
        raise BrokenFileError(f"{model / RECORD}: recipe: {error}; pass --config RECIPE instead") from None
    return load_recipe(None, text_flags(data, test), recorded)


def text_flags(data: str | None, test: str | None) -> dict[str, str]:
    """Return the keys of a recipe that --data and --test replace."""
    from .recipe import NO_DATASET

    flags = {} if test is None else {"test": test}
    if data is not None:
        flags |= {"data": data, **NO_DATASET}
    return flags


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="vaswani-transformer evaluate")


if __name__ == "__main__":
    main()
