"""The model card, README.md of the repository. No number in it is typed by hand.

`card.template` is the text; its values come from the configuration, the model, the provenance of the model and the
environment. The card says so if something is not known.
"""

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from vaswani_transformer import VaswaniTransformerConfig, __version__
from vaswani_transformer.errors import InputError, UnavailableError, one_line
from vaswani_transformer.onnx_translator import GRAPH, NO_MAXIMUM
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER
from vaswani_transformer.translator import Translator

from .contents import CODE, ONNX, Files
from .provenance import Provenance, public_command, public_recipe
from .results import hours

TEMPLATE = Path(__file__).with_name("card.template")

LANGUAGES = {"cs": "Czech", "de": "German", "en": "English", "es": "Spanish", "fr": "French", "it": "Italian",
             "ja": "Japanese", "nl": "Dutch", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian",
             "uk": "Ukrainian", "zh": "Chinese"}  # fmt: skip
EXAMPLES = {"en": "Do they come from Germany?", "de": "Kommen sie aus Deutschland?", "fr": "La maison est petite."}

SIZES = ("vocab_size", "decoder_vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads",
         "decoder_attention_heads", "d_k", "d_v", "encoder_ffn_dim", "decoder_ffn_dim", "dropout",
         "max_position_embeddings")  # fmt: skip
SWITCHES = ("position_embedding_type", "position_base", "position_offset", "norm_position", "encoder_final_norm",
            "decoder_final_norm", "layer_norm_eps", "activation_function", "attention_dropout", "activation_dropout",
            "attention_bias", "output_bias", "share_encoder_decoder_embeddings", "tie_word_embeddings")  # fmt: skip


def default_example(provenance: Provenance) -> str | None:
    """Return a sentence in the source language; None if the language is unknown or has no example.

    Not a sentence of the training text: run.json would then decide which of the user's files the card quotes.
    """
    return EXAMPLES.get(provenance.languages[0]) if provenance.languages else None


def write_card(
    repo_id: str,
    translator: Translator,
    provenance: Provenance,
    files: Files,
    *,
    example: str | None,
    license: str | None = None,
) -> ModelCard:
    """Write the card of a repository that will hold `files`, including the pictures.

    example: a source sentence to show with the model's translation, if any
    Raises InputError for a score that is not a number and for an invalid license; UnavailableError without jinja2.
    """
    try:
        import jinja2
    except ModuleNotFoundError:
        raise UnavailableError('jinja2 is not installed: pip install "vaswani-transformer[hub]"') from None
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["cell"] = lambda text: one_line(text).replace("|", "\\|")
    translation = translator.translate([example])[0] if example else None
    text = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        card_data=card_data(repo_id, provenance, files, license, example, translation).to_yaml(),
        repo_id=repo_id,
        name=repo_id.split("/")[1],
        example=example,
        example_translation=translation,
        quoted_example=json.dumps(example or "...", ensure_ascii=False),
        license=license,
        **values_of_model(translator, files),
        **values_of_provenance(provenance),
        version=__version__,
        **{package: version(package) for package in ("torch", "transformers", "huggingface_hub")},
        limits=limits(translator.model.config, provenance),
    )
    # The template's conditions leave empty lines. ModelCard raises if it cannot read the metadata.
    return ModelCard(re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")


def values_of_model(translator: Translator, files: Files) -> dict[str, Any]:
    """Return the template's values that come from the model and its files."""
    return {
        "parameters": f"{parameter_count(translator):,}",
        "search": dict(zip(("num_beams", "length_penalty"), translator.default_search, strict=True)),
        "separate": any(name.startswith(f"{TARGET_TOKENIZER}/") for name in files),
        "target_tokenizer": TARGET_TOKENIZER,
        "code": CODE,
        "onnx_files": sorted(name for name in files if name.startswith(f"{ONNX}/") and name.endswith(".onnx")),
        "onnx_file": f"{ONNX}/{GRAPH}" if f"{ONNX}/{GRAPH}" in files else None,
        "no_maximum": NO_MAXIMUM,
        "sizes": sizes(translator),
        "departures": departures(translator.model.config),
        "attention": "attention.png" in files,
        "curve": "training_curve.png" in files,
    }


def values_of_provenance(provenance: Provenance) -> dict[str, Any]:
    """Return the template's values that say how the model was made and how well it scores."""
    source, target = map(language_name, provenance.languages or (None, None))
    recipe = yaml.safe_dump(public_recipe(provenance.run.get("identity", {})), sort_keys=False, allow_unicode=True)
    columns = provenance.scores.items()
    signatures = [f"{name}: `{row[f'{column}_signature']}`" for row in provenance.results for column, name in columns]
    return {
        "source": source,
        "target": target,
        "trained": bool(provenance.run),
        "training": training_facts(provenance),
        "command": public_command(str(provenance.run.get("command", ""))),
        "recipe": recipe.strip(),
        "toolkit": provenance.conversion.get("toolkit"),
        "converted_file": provenance.conversion.get("file"),
        "notes": provenance.notes,
        "results": provenance.results,
        "scores": provenance.scores,
        "signatures": list(dict.fromkeys(signatures)),
        "lowercase": bool(provenance.recipe.get("lowercase")),
        "toy": provenance.corpus == "embedded",
    }


def card_data(
    repo_id: str,
    provenance: Provenance,
    files: Files,
    license: str | None,
    example: str | None,
    translation: str | None,
) -> ModelCardData:
    """Return the metadata that the Hub reads. Raises InputError."""
    if license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", license):
        raise InputError(f"--license {license!r} is not a license name of the Hub, such as apache-2.0 or other")
    codes = [code for code in dict.fromkeys(provenance.languages or ()) if re.fullmatch(r"[a-z]{2,3}", code)]
    dataset = provenance.recipe.get("dataset")
    dataset = dataset if isinstance(dataset, str) and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", dataset) else None
    onnx = ["onnx"] if any(name.endswith(".onnx") for name in files) else []
    optional: dict[str, Any] = {}
    if example:  # with its translation, since the Hub's widget does not run a repository's code
        optional["widget"] = [{"text": example, "output": {"text": translation}}]
    if provenance.results:
        results = [result for row in provenance.results for result in eval_results(row, provenance.scores, dataset)]
        optional |= {"model_name": repo_id.split("/")[1], "eval_results": results}
    return ModelCardData(
        language=codes or None,
        license=license,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["translation", "vaswani_transformer", "arxiv:1706.03762", *onnx],
        datasets=[dataset] if dataset else None,
        metrics=[name.lower() for name in provenance.scores.values()] if provenance.results else None,
        **optional,
    )


def eval_results(row: dict[str, str], scores: dict[str, str], dataset: str | None) -> list[EvalResult]:
    """Return a row of a results file in the Hub's format. Raises InputError for a score that is not a number."""
    results = []
    for column, name in scores.items():
        try:
            value = float(row[column])
        except ValueError:
            raise InputError(f"a row of the results has {column} {row[column]!r}; it must be a number") from None
        results.append(
            EvalResult(
                task_type="translation",
                task_name="Translation",
                dataset_type=dataset or row["data"],
                dataset_name=f"{row['data']}, {row['test']}",
                dataset_split=row["test"],
                metric_type=name.lower(),
                metric_name=name,
                metric_value=value,
                metric_args={"signature": row[f"{column}_signature"]},
            )
        )
    return results


def parameter_count(translator: Translator) -> int:
    return sum(parameter.numel() for parameter in translator.model.parameters())


def sizes(translator: Translator) -> list[tuple[str, Any]]:
    """Return the rows of the card's table: what determines the model's size."""
    config = translator.model.config
    shown = [name for name in SIZES if getattr(config, name) is not None]
    if config.decoder_vocab_size == config.vocab_size:
        shown.remove("decoder_vocab_size")
    rows: list[tuple[str, Any]] = [("parameters", f"{parameter_count(translator):,}")]
    rows += [(f"`{name}`", getattr(config, name)) for name in shown]
    return [*rows, ("stored as", str(translator.model.dtype).removeprefix("torch."))]


def departures(config: VaswaniTransformerConfig) -> str:
    """Return a sentence on how the architecture differs from the paper's."""
    paper = VaswaniTransformerConfig()
    different = [name for name in SWITCHES if getattr(config, name) != getattr(paper, name)]
    if different:
        return f"Different from the paper: {', '.join(f'`{name}` {getattr(config, name)}' for name in different)}."
    if all(getattr(config, name) == getattr(paper, name) for name in SIZES):
        return "This is the paper's base model."
    return "The architecture is the paper's, with the sizes above."


def training_facts(provenance: Provenance) -> list[tuple[str, str]]:
    """Return what is known about the training, as name and value."""
    facts, progress, environment = [], provenance.progress, provenance.environment
    if provenance.corpus:
        splits = provenance.recipe.get("train")
        facts.append(("text", f"{provenance.corpus}, {' + '.join(splits) if isinstance(splits, list) else splits}"))
    if provenance.languages:
        facts.append(("languages", " to ".join(str(language_name(code)) for code in provenance.languages)))
    if progress:
        facts.append(("steps", f"{progress['step']:,}, on {progress['tokens']:,} source and target tokens"))
        cpu = progress.get("cpu_seconds")
        duration = f"{hours(progress['seconds'])} hours" + (f", {hours(cpu)} CPU hours" if cpu else "")
        facts.append(("time", f"{duration}; without validation, and with saving only if it does not run in parallel"))
    machines = list(dict.fromkeys(row["hardware"] for row in provenance.results))
    facts.append(("hardware", "; ".join(machines) if machines else "not recorded"))
    losses = [line["validation_loss"] for line in provenance.metrics if "validation_loss" in line]
    if losses:
        facts.append(("validation loss", f"{losses[-1]:.4f} at the end, {min(losses):.4f} at its lowest"))
    if environment:
        names = [name for name in ("torch", "transformers", "mixed_precision", "device") if name in environment]
        facts.append(("environment", ", ".join(f"{name.replace('_', ' ')} {environment[name]}" for name in names)))
    return facts


def limits(config: VaswaniTransformerConfig, provenance: Provenance) -> list[str]:
    """Return what a user should not expect of the model."""
    lines = []
    if provenance.languages:
        source, target = map(language_name, provenance.languages)
        lines.append(f"It translates only from {source} to {target}. Text in another language gives nonsense.")
    if provenance.recipe.get("lowercase"):
        lines.append("It reads capitals as small letters and writes only small letters.")
    if provenance.corpus:
        lines.append(f"It was trained only on the text of {provenance.corpus}; expect worse translations elsewhere.")
    if "max_length" in provenance.recipe:
        lines.append(
            f"No training sentence had more than {provenance.recipe['max_length']} tokens on either side. Split longer "
            "texts; the pipeline does so at 256 tokens (`max_source_length`)."
        )
    if config.max_position_embeddings is not None:
        lines.append(f"Its learned positions end at {config.max_position_embeddings} tokens, for source and target.")
    if len(provenance.results) == 1:
        lines.append("The scores are those of one training run on one test set, not a mean over several seeds.")
    lines.append("Its translations have not been examined for bias, or for content that is not in the source.")
    return lines


def language_name(code: str | None) -> str | None:
    return LANGUAGES.get(code, code) if code else None
