"""The card of a model, README.md of its repository: no number in it is typed by hand.

`card.template` is the text; what it says is read from the configuration, the model itself, the record of its training,
the results files and the environment. Where nothing is known, the card says so.
"""

import itertools
import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import EvalResult, ModelCard, ModelCardData

from vaswani_transformer import VaswaniTransformerConfig, __version__
from vaswani_transformer.errors import InputError, UnavailableError, one_line
from vaswani_transformer.lines import read_lines
from vaswani_transformer.onnx_translator import GRAPH, NO_MAXIMUM
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER
from vaswani_transformer.translator import Translator

from .contents import ONNX, Files
from .record import Record, hours, last_name, public, without_places

TEMPLATE = Path(__file__).with_name("card.template")

NAMES = {"cs": "Czech", "de": "German", "en": "English", "es": "Spanish", "fr": "French", "it": "Italian",
         "ja": "Japanese", "nl": "Dutch", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian",
         "uk": "Ukrainian", "zh": "Chinese"}  # fmt: skip
LEAST_LETTERS, MOST_LETTERS, MOST_LINES = 15, 60, 1000  # of an example, and where it is looked for
EXAMPLES = {"en": "The house is small.", "de": "Das Haus ist klein.", "fr": "La maison est petite."}

SIZES = ("vocab_size", "decoder_vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_attention_heads",
         "decoder_attention_heads", "d_k", "d_v", "encoder_ffn_dim", "decoder_ffn_dim", "dropout",
         "max_position_embeddings")  # fmt: skip
SWITCHES = ("position_embedding_type", "position_base", "position_offset", "norm_position", "encoder_final_norm",
            "decoder_final_norm", "layer_norm_eps", "activation_function", "attention_dropout", "activation_dropout",
            "attention_bias", "output_bias", "share_encoder_decoder_embeddings", "tie_word_embeddings")  # fmt: skip


def default_example(record: Record) -> str | None:
    """The first short sentence of the run's validation text, where that is on this disk: of the kind that the model
    knows, and not seen in training. Else a sentence in the source language, if that is known and one of three."""
    if not record.languages:
        return None
    recipe, source = record.recipe, record.languages[0]
    for name in recipe.get("validation") or ():
        for suffix in ("", ".gz"):
            path = Path(str(recipe.get("data"))) / f"{name}.{source}{suffix}"
            if path.is_file():
                sentences = (line.strip() for line in itertools.islice(read_lines(path), MOST_LINES))
                short = next((line for line in sentences if LEAST_LETTERS <= len(line) <= MOST_LETTERS), None)
                if short is not None:
                    return short
    return EXAMPLES.get(source)


def write_card(
    repo_id: str,
    translator: Translator,
    record: Record,
    files: Files,
    *,
    example: str | None,
    license: str | None = None,
) -> ModelCard:
    """The card of a model whose repository will hold `files`, pictures among them.

    example: a source sentence, which the card shows with the model's translation; None for none
    Raises InputError for results that are no numbers or a licence that is none.
    """
    try:
        import jinja2
    except ModuleNotFoundError:
        raise UnavailableError('jinja2 is not installed: pip install "vaswani-transformer[hub]"') from None
    config = translator.model.config
    languages = record.languages
    data = card_data(repo_id, record, files, license)
    separate = any(name.startswith(f"{TARGET_TOKENIZER}/") for name in files)
    onnx_files = sorted(name for name in files if name.startswith(f"{ONNX}/") and name.endswith(".onnx"))
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["cell"] = lambda text: one_line(text).replace("|", "\\|")
    text = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        card_data=data.to_yaml(),
        repo_id=repo_id,
        name=repo_id.split("/")[1],
        source=language_name(languages[0]) if languages else None,
        target=language_name(languages[1]) if languages else None,
        parameters=f"{parameters(translator):,}",
        search=dict(zip(("num_beams", "length_penalty"), translator.own_search, strict=True)),
        example=example,
        example_translation=translator.translate([example])[0] if example else None,
        quoted_example=json.dumps(example or "...", ensure_ascii=False),
        separate=separate,
        target_tokenizer=TARGET_TOKENIZER,
        onnx_files=onnx_files,
        onnx_file=f"{ONNX}/{GRAPH}" if f"{ONNX}/{GRAPH}" in files else None,
        no_maximum=NO_MAXIMUM,
        sizes=sizes(translator),
        departures=departures(config),
        attention="attention.png" in files,
        trained=bool(record.run),
        training=training_facts(record),
        command=without_places(str(record.run.get("command", ""))),
        recipe=yaml.safe_dump(public(record.run.get("identity", {})), sort_keys=False, allow_unicode=True).strip(),
        curve="training_curve.png" in files,
        toolkit=record.conversion.get("toolkit"),
        converted_file=record.conversion.get("file"),
        notes=record.notes,
        results=record.results,
        scores=record.scores,
        lowercase=bool(record.recipe.get("lowercase")),
        signatures=signatures(record),
        limits=limits(config, record),
        version=__version__,
        license=license,
        **{package: version(package) for package in ("torch", "transformers", "huggingface_hub")},
    )
    # Without the empty lines that the template's conditions leave. ModelCard raises for metadata that it cannot read.
    return ModelCard(re.sub(r"\n{3,}", "\n\n", text).strip() + "\n")


def card_data(repo_id: str, record: Record, files: Files, license: str | None) -> ModelCardData:
    """What the Hub reads of the card. Raises InputError."""
    if license is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.+-]*", license):
        raise InputError(f"--license {license!r} is no name of a licence on the Hub, such as apache-2.0 or other")
    codes = [code for code in dict.fromkeys(record.languages or ()) if re.fullmatch(r"[a-z]{2,3}", code)]
    dataset = record.recipe.get("dataset")
    dataset = dataset if isinstance(dataset, str) and re.fullmatch(r"[\w.-]+(/[\w.-]+)?", dataset) else None
    onnx = ["onnx"] if any(name.endswith(".onnx") for name in files) else []
    evaluated: dict[str, Any] = {}
    if record.results:
        evaluated = {
            "model_name": repo_id.split("/")[1],
            "eval_results": [result for row in record.results for result in eval_results(row, record.scores, dataset)],
        }
    return ModelCardData(
        language=codes or None,
        license=license,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["translation", "vaswani_transformer", "arxiv:1706.03762", *onnx],
        datasets=[dataset] if dataset else None,
        metrics=[name.lower() for name in record.scores.values()] if record.results else None,
        **evaluated,
    )


def eval_results(row: dict[str, str], scores: dict[str, str], dataset: str | None) -> list[EvalResult]:
    """A row of a results file as the Hub's model-index has it. Raises InputError for a score that is none."""
    found = []
    for column, name in scores.items():
        try:
            value = float(row[column])
        except ValueError:
            raise InputError(f"a row of the results has {column} {row[column]!r}; it must be a number") from None
        found.append(
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
    return found


def signatures(record: Record) -> list[str]:
    """Each once, with the metric it belongs to."""
    return list(
        dict.fromkeys(
            f"{name}: `{row[f'{column}_signature']}`"
            for row in record.results
            for column, name in record.scores.items()
        )
    )


def parameters(translator: Translator) -> int:
    return sum(parameter.numel() for parameter in translator.model.parameters())


def sizes(translator: Translator) -> list[tuple[str, Any]]:
    """The rows of the card's table: what makes the model as large as it is."""
    config = translator.model.config
    rows: list[tuple[str, Any]] = [("parameters", f"{parameters(translator):,}")]
    absent = {"decoder_vocab_size"} if config.decoder_vocab_size == config.vocab_size else set()
    known = [name for name in SIZES if getattr(config, name) is not None and name not in absent]
    rows += [(f"`{name}`", getattr(config, name)) for name in known]
    return [*rows, ("stored as", str(translator.model.dtype).removeprefix("torch."))]


def departures(config: VaswaniTransformerConfig) -> str:
    """A sentence on what in the architecture is not the paper's."""
    paper = VaswaniTransformerConfig()
    different = [
        f"`{name}` {getattr(config, name)}" for name in SWITCHES if getattr(config, name) != getattr(paper, name)
    ]
    if different:
        return f"Different from the paper's: {', '.join(different)}."
    if all(getattr(config, name) == getattr(paper, name) for name in SIZES):
        return "This is the paper's base model."
    return "The architecture is the paper's, in the sizes above."


def training_facts(record: Record) -> list[tuple[str, str]]:
    """What the record says of the training, as name and value."""
    recipe, progress = record.recipe, record.progress
    text = recipe.get("dataset") or recipe.get("data")
    facts = [("text", f"{last_name(str(text))}, {listed(recipe.get('train'))}")] if text else []
    if record.languages:
        facts.append(("languages", " to ".join(map(language_name, record.languages))))
    if progress:
        facts.append(("steps", f"{progress['step']:,}, on {progress['tokens']:,} source and target tokens"))
        cpu = progress.get("cpu_seconds")
        duration = f"{hours(progress['seconds'])} hours" + (f", {hours(cpu)} CPU hours" if cpu else "")
        facts.append(("time", f"{duration}; validation not counted, saving only where it works beside the steps"))
    machines = list(dict.fromkeys(row["hardware"] for row in record.results))
    facts.append(("hardware", "; ".join(machines) if machines else "not recorded"))
    losses = [line["validation_loss"] for line in record.metrics if "validation_loss" in line]
    if losses:
        facts.append(("validation loss", f"{losses[-1]:.4f} at the end, {min(losses):.4f} at its lowest"))
    if record.environment:
        names = ("torch", "transformers", "mixed_precision", "device")
        known = [f"{name.replace('_', ' ')} {record.environment[name]}" for name in names if name in record.environment]
        facts.append(("environment", ", ".join(known)))
    return facts


def limits(config: VaswaniTransformerConfig, record: Record) -> list[str]:
    """What a user should not expect."""
    known = []
    if record.languages:
        source, target = map(language_name, record.languages)
        known.append(f"One direction: {source} to {target}. Text in another language gives nonsense.")
    if record.recipe.get("lowercase"):
        known.append("Small letters in and out: capitals are read as small ones, and it writes none.")
    text = record.recipe.get("dataset") or record.recipe.get("data")
    if text:
        known.append(f"It has seen the text of {last_name(str(text))} alone; expect worse translations of other text.")
    if "max_length" in record.recipe:
        known.append(
            f"In training no sentence had more than {record.recipe['max_length']} tokens on one side; "
            "longer ones are best cut, which the pipeline does at 256 tokens (`max_source_length`)."
        )
    if config.max_position_embeddings is not None:
        known.append(f"Its learned positions end at {config.max_position_embeddings} tokens, in and out.")
    if len(record.results) == 1:
        known.append("The scores are one training run's on one test set, with one reference, not a mean over seeds.")
    known.append("Nobody has examined its translations for bias, or for content that the source does not have.")
    return known


def listed(names: Any) -> str:
    return " + ".join(map(str, names)) if isinstance(names, list) else str(names)


def language_name(code: str) -> str:
    return NAMES.get(code, code)
