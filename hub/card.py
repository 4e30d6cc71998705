"""Writes the model card and its plots.

`card.template` is the text, and markdown.py writes the values into it. Every number is computed or read from a file, by
provenance.py: scores are the rows of results with the hash of these weights. The card states what is missing.
"""

import io
import re
from importlib.metadata import PackageNotFoundError, metadata, version
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from vaswani_transformer import VaswaniTransformerConfig, __version__
from vaswani_transformer.attention_maps import attention_maps
from vaswani_transformer.languages import name_languages
from vaswani_transformer.languages_vaswani_transformer import find_language, split_code
from vaswani_transformer.model_folder import CODE_FILES, ONNX, SIZES, SWITCHES
from vaswani_transformer.modeling_vaswani_transformer import searches_as_transformers
from vaswani_transformer.onnx_translator import graph_inputs, onnx_file_name
from vaswani_transformer.pictures import attention_figure
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER
from vaswani_transformer.torch_translator import TorchTranslator
from vaswani_transformer.training_run import curve_figure, format_hours

from .contents import Files
from .markdown import FILTERS, Markdown, as_one_line, code, show
from .provenance import Provenance, last_component, public_command, public_recipe

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATE = Path(__file__).with_name("card.template")

MOST_NAMES = 8  # languages that a sentence names; a table of tokens lists more
EXAMPLES = {"en": "Do they come from Germany?", "de": "Kommen sie aus Deutschland?", "fr": "La maison est petite."}

LISTED_SIZES = (*SIZES, "dropout", "learned_positions")
OTHER_SWITCHES = ("attention_dropout", "activation_dropout", "separate_vocabularies",
                  "share_encoder_decoder_embeddings", "tie_word_embeddings")  # fmt: skip


def default_example(provenance: Provenance) -> str | None:
    """Return a sentence in the source language; None if the language is unknown or has no example.

    It is not read from the training text: run.json could then make the card quote any file of the user.
    """
    return EXAMPLES.get(split_code(provenance.source)[0]) if provenance.source else None


def choose_language(translator: TorchTranslator, provenance: Provenance) -> str | None:
    """Return the language of the example, None for a model without language tokens: the recorded one, or the first."""
    names = translator.languages.names
    recorded = find_language(names, provenance.target or "")
    return names[recorded or 0] if names else None


def write_card(
    repo_id: str, translator: TorchTranslator, provenance: Provenance, files: Files, *, example: str | None
) -> str:
    """Return the text of the card of a repository with `files`, including the plots.

    example: a source sentence to show with the model's translation, if any
    """
    import jinja2

    environment = jinja2.Environment(
        trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined, finalize=show
    )
    environment.filters |= FILTERS | {
        "hours": format_hours,
        "last_component": last_component,
        "thousands": "{:,}".format,
    }
    config, translation = translator.model.config, translator.translate([example])[0] if example else None
    recipe = public_recipe(provenance.run.get("fixed_keys", {}))
    losses = list(provenance.curves.get("validation_loss", {}).values())
    text = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        card_data=card_data(repo_id, provenance, files, example, translation).to_yaml(),
        repo_id=repo_id,
        example=example,
        translation=translation,
        config=config,
        parameters=translator.model.num_parameters(),
        dtype=str(translator.model.dtype).removeprefix("torch."),
        search=translator.search,
        of_transformers=searches_as_transformers(translator.model),
        languages=describe_languages(provenance),
        language_tokens=translator.languages.tokens if translator.languages.are_needed else [],
        sizes={name: getattr(config, name) for name in LISTED_SIZES if getattr(config, name) is not None},
        departures=departures(config),
        provenance=provenance,
        command=public_command(provenance.run.get("command") or ""),
        recipe=yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True).strip(),
        losses=losses,
        files=files,
        code_files=CODE_FILES,
        target_tokenizer=TARGET_TOKENIZER if f"{TARGET_TOKENIZER}/tokenizer.json" in files else None,
        onnx_files=sorted(name for name in files if name.endswith(".onnx")),
        onnx_file=f"{ONNX}/{onnx_file_name()}",
        graph_inputs={name: str(value) for name, value in graph_inputs(translator.search, repetition=True).items()},
        version=__version__,
        homepage=homepage(),
        versions={package: version(package) for package in ("torch", "transformers", "huggingface_hub")},
    )
    text = re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"  # the template's conditions leave empty lines
    return str(ModelCard(text))  # raises if it cannot read the metadata


def describe_languages(provenance: Provenance) -> str | None:
    """Return the languages as part of a sentence, "English to German and Dutch"; None if they are unknown."""
    if not provenance.source or not provenance.targets:
        return None
    source, *names = name_languages([provenance.source, *provenance.targets])
    if len(names) > MOST_NAMES:
        return f"{source} to {len(names)} languages"
    *others, last = names
    return f"{source} to {', '.join(others)} and {last}" if others else f"{source} to {last}"


def homepage() -> str | None:
    """Return the address of the clone that the installed package was built from, if hatch_build.py found one."""
    try:
        urls = metadata("vaswani-transformer").get_all("Project-URL") or []
    except PackageNotFoundError:  # used from a source tree
        return None
    return next((url.partition(", ")[2] for url in urls), None)


def card_data(
    repo_id: str, provenance: Provenance, files: Files, example: str | None, translation: str | None
) -> ModelCardData:
    """Return the metadata that the Hub reads."""
    # The Hub takes codes of ISO 639: without the script of eng_Latn or the country of de_DE. Where only these tell
    # languages apart, zho_Hans and zho_Hant, they are in the field that NLLB's cards have for them.
    source, targets = provenance.source, provenance.targets
    details = [as_one_line(code) for code in (source, *targets)] if source and targets else []
    codes = dict.fromkeys(split_code(code)[0] for code in details)
    is_ambiguous = len(codes) < len({*details})
    codes = [code for code in codes if re.fullmatch(r"[a-z]{2,3}", code)]
    dataset, scores = provenance.dataset, provenance.scores
    onnx = ["onnx"] if any(name.endswith(".onnx") for name in files) else []
    results = [result for row in provenance.results for result in eval_results(row, scores)]
    return ModelCardData(
        language=codes or None,
        language_details=details if is_ambiguous else None,
        license=provenance.stated.get("license"),
        base_model=provenance.stated.get("base_model"),
        library_name="transformers",
        pipeline_tag="translation",
        tags=["translation", "vaswani_transformer", "arxiv:1706.03762", *onnx],
        datasets=[dataset] if dataset else None,
        metrics=[name.lower() for name in scores.values()] if results else None,
        # With its translation, since the Hub's widget does not run a repository's code.
        widget=[{"text": as_one_line(example), "output": {"text": as_one_line(translation or "")}}]
        if example
        else None,
        model_name=repo_id.split("/")[1] if results else None,
        eval_results=results or None,
    )


def eval_results(row: dict[str, str], scores: dict[str, str]) -> list[EvalResult]:
    """Return a row of a results file in the Hub's format. The dataset is that of the test set, not of the training."""
    row = {column: as_one_line(value) for column, value in row.items()}
    return [
        EvalResult(
            task_type="translation",
            task_name="Translation",
            dataset_type=row["data"] or row["test"],
            dataset_name=", ".join(filter(None, (row["data"], row["test"]))),
            dataset_split=row["test"],
            metric_type=name.lower(),
            metric_name=name,
            metric_value=float(row[column]),
            metric_args={"signature": row[f"{column}_signature"]},
        )
        for column, name in scores.items()
    ]


def departures(config: VaswaniTransformerConfig) -> Markdown:
    """Return a sentence that compares the architecture with the paper's."""
    paper = VaswaniTransformerConfig()
    different = [name for name in (*SWITCHES, *OTHER_SWITCHES) if getattr(config, name) != getattr(paper, name)]
    if different:
        values = ", ".join(f"{code(name)} {show(getattr(config, name))}" for name in different)
        return Markdown(f"Differences from the paper: {values}.")
    if all(getattr(config, name) == getattr(paper, name) for name in LISTED_SIZES):
        return Markdown("This is the paper's base model.")
    return Markdown("The architecture is the paper's, with the sizes above.")


# ---- plots -------------------------------------------------------------------------------------------------------


def attention_plot(translator: TorchTranslator, example: str) -> bytes:
    """Plot the cross-attention of the last decoder layer, averaged over heads.

    The Hub shows a card 760 pixels wide, where the labels of a panel per head would be illegible.
    """
    maps = attention_maps(translator.model, translator.tokenizer, example, target_tokenizer=translator.target_tokenizer)
    return png(attention_figure(maps, head=0))


def training_curve(curves: dict[str, dict[int, float]]) -> bytes | None:
    """Plot the losses, and BLEU if it was measured, over the steps of a run; None without a log."""
    return png(curve_figure(curves)) if any(curves.values()) else None


def png(figure: "Figure") -> bytes:
    """Return a figure as PNG, without matplotlib's version, so that the same plot has the same bytes."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()
