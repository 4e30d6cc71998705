"""A recipe: all settings of a training run, as the keys of a YAML file."""

import dataclasses
import difflib
import re
import reprlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from vaswani_transformer.errors import InputError, name_in_errors

SHIPPED = Path(__file__).parent / "recipes"
LARGEST_VOCABULARY = 1_000_000
EMBEDDED = "embedded"  # `data: embedded` is the demo's corpus
MICRO_BATCHES = 8  # of a step, one for each GPU of the paper
BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}  # in YAML 1.1


def _yes_or_no(value: Any) -> Any:
    """Return "yes" or "no" for a word of BOOLEANS, else the value."""
    found = BOOLEANS.get(str(value).lower())
    return value if found is None else ("no", "yes")[found]


def _model_value(value: Any) -> Any:
    """Return the boolean or the number that a text is, else the value; the config checks the types of its fields."""
    if not isinstance(value, str):
        return value
    if value.lower() in BOOLEANS:
        return BOOLEANS[value.lower()]
    for kind in (int, float):
        with suppress(ValueError):
            return kind(value)
    return value


TextList = Annotated[list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)]

# Keys that locate the text. Resumed runs and processes compare its content instead.
TEXT_LOCATION = {"data", "dataset", "dataset_config", "dataset_revision", "streaming", "train", "validation", "test"}
# The values, as on a command line, with which `data` replaces a dataset.
NO_DATASET = {"dataset": "null", "dataset_config": "null", "dataset_revision": "null", "streaming": "false"}
TEXT_KEYS = TEXT_LOCATION | {"source_language", "target_language"}
# Keys that may change when a run is resumed.
MAY_CHANGE = TEXT_LOCATION | {
    "tokenizer", "cache", "max_hours", "max_cpu_seconds", "max_tokens", "bleu_every", "keep", "output_dir", "overwrite",
    "allow_changed", "keep_going", "log_every", "trackers", "processes", "deterministic", "compile",
}  # fmt: skip
# Keys that may differ between the processes of a run. The hashes of the tokenizer and the weights are compared instead.
OF_ONE_PROCESS = TEXT_LOCATION | {
    "tokenizer", "cache", "output_dir", "initial_weights", "overwrite", "keep_going", "trackers", "processes",
}  # fmt: skip


# Options of transformers' TrainingArguments and of other toolkits, and the keys that take their place.
NAMES_ELSEWHERE = {
    "batch_size": "tokens_per_step", "per_device_train_batch_size": "tokens_per_step", "lr": "learning_rate",
    "gradient_accumulation_steps": "micro_batches", "fp16": "mixed_precision", "bf16": "mixed_precision",
    "eval_steps": "validate_every", "save_steps": "save_every", "logging_steps": "log_every",
    "save_total_limit": "keep", "early_stopping": "patience", "report_to": "trackers", "num_gpus": "processes",
    "model_name_or_path": "initial_weights", "resume": "output_dir", "resume_from_checkpoint": "output_dir",
}  # fmt: skip


class ModelSettings(BaseModel):
    """Model (section 3)."""

    preset: str = Field(
        "base",
        description="Preset of VaswaniTransformerConfig: base, big, base-en-fr, big-en-fr, parsing-wsj, "
        "parsing-semi-supervised, or a row of Table 3 such as C-N2; initial_weights have their own.",
    )
    model: dict[str, Annotated[Any, BeforeValidator(_model_value)]] = Field(
        {}, description="Config fields that differ from the preset or from initial_weights."
    )
    initial_weights: str | None = Field(
        None, description="Model folder, or repository on the Hub, to start from (fine-tuning)."
    )
    length_penalty: float | None = Field(
        None,
        ge=-1,
        le=5,
        description="Length penalty (alpha) stored in the final model; null: that of initial_weights, or 0.6.",
    )


class TokenizerSettings(BaseModel):
    """Tokenizer (section 5.1)."""

    tokenizer: str | None = Field(
        None, description="Tokenizer folder; null: that of initial_weights, or train one on the text."
    )
    vocab_size: int = Field(37000, ge=260, le=LARGEST_VOCABULARY, description="Size of a newly trained tokenizer.")
    lowercase: bool = Field(False, description="Lower-case all text; BLEU during training ignores case.")


class TextSettings(BaseModel):
    """Text."""

    data: str | None = Field(None, description=f"Folder of the text files, or {EMBEDDED!r} for the demo's corpus.")
    dataset: str | None = Field(None, description="`datasets` id, or a folder made by save_to_disk, instead of data.")
    dataset_config: str | None = Field(None, description="Configuration of the dataset.")
    dataset_revision: str | None = Field(
        None, description="Branch, tag or commit of a dataset on the Hub, whose text may change; default: the newest."
    )
    streaming: bool = Field(False, description="Tokenise the dataset while it downloads; keep no copy of its text.")
    source_language: str = Field("en", description="Source language code.")
    target_language: str = Field("de", description="Target language code.")
    train: TextList = Field(
        ["train"],
        description="Training corpora in `data` (or splits of `dataset`), read in order: 'train' is train.en and "
        "train.de (or .gz); also 'train.{language}.txt', 'a.txt,b.txt', 'pairs.tsv', 'pairs.csv', 'pairs.jsonl', "
        "'memory.tmx'.",
    )
    validation: TextList = Field(
        ["val"],
        description="Validation corpora, named like `train`; if the default val.en and val.de do not exist, every 50th "
        "training pair is held out.",
    )
    test: TextList = Field([], description="Test corpora, named like `train`.")
    max_length: int = Field(256, ge=2, description="Drop pairs with more tokens on one side, </s> included.")
    max_length_ratio: float | None = Field(
        None, ge=1, description="Drop pairs if one side is more than this many times as long as the other."
    )
    keep_codes: bool = Field(False, description="Keep the formatting codes inside segments of TMX files.")
    capitals: float = Field(
        0,
        ge=0,
        le=1,
        description="Share of the training pairs to add again in capitals, and as many more in title case.",
    )
    cache: str | None = Field(None, description="Folder for tokenised corpora; null: output_dir/corpus.")

    @property
    def languages(self) -> tuple[str, str]:
        return self.source_language, self.target_language


class BatchSettings(BaseModel):
    """Batches (section 5.1)."""

    tokens_per_step: int = Field(
        50000, ge=8, description="Source and target tokens per step, padding included (the paper: 25,000 + 25,000)."
    )
    micro_batches: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        "auto",
        description="Micro-batches per step, split between the processes; auto: 8, like the paper's GPUs, but on GPUs "
        "as few as their memory allows.",
    )

    @property
    def max_micro_batches(self) -> int:
        """`micro_batches`, or the most that "auto" chooses."""
        return MICRO_BATCHES if self.micro_batches == "auto" else self.micro_batches

    @property
    def tokens_per_micro_batch(self) -> int:
        return self.tokens_per_step // self.max_micro_batches


class OptimizerSettings(BaseModel):
    """Optimizer and loss (sections 5.3 and 5.4); dropout is a field of `model`."""

    learning_rate: float | None = Field(None, ge=0, description="Peak of the schedule; null: the paper's formula.")
    learning_rate_factor: float = Field(1.0, ge=0, description="Factor of the paper's formula.")
    warmup_steps: int = Field(4000, ge=1, description="Steps until the peak.")
    decay_share: float = Field(
        0.0, ge=0, le=1, description="Fraction of the steps, at the end, over which the rate decays linearly to 0."
    )
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="Adam's beta1.")
    adam_beta2: float = Field(0.98, ge=0, lt=1, description="Adam's beta2.")
    adam_epsilon: float = Field(1e-9, gt=0, description="Adam's epsilon.")
    max_gradient_norm: float | None = Field(None, gt=0, description="Clip gradients to this norm; null: no clipping.")
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="Label smoothing.")


class LimitSettings(BaseModel):
    """Length of the run: the first limit that is reached ends it."""

    max_steps: int | None = Field(
        100_000, ge=1, description="Maximum number of steps; like max_epochs, it shapes the learning rate."
    )
    max_epochs: float | None = Field(None, gt=0, description="Passes over the training text.")
    max_hours: float | None = Field(None, ge=0, description="Wall-clock hours, over all parts of a resumed run.")
    max_cpu_seconds: float | None = Field(None, ge=0, description="CPU seconds spent in steps.")
    max_tokens: int | None = Field(None, ge=1, description="Source and target tokens.")
    patience: int | None = Field(None, ge=1, description="Stop after this many validations without a lower loss.")


class CheckpointSettings(BaseModel):
    """Validation and checkpoints (section 6.1 averages the last 5, written every 10 minutes)."""

    validate_every: int | None = Field(1000, ge=1, description="Steps between validations; null: save_every.")
    bleu_every: int | None = Field(None, ge=1, description="Steps between BLEU scores (beam 4); null: none.")
    save_every: int = Field(1500, ge=1, description="Steps between checkpoints.")
    keep: int = Field(
        5,
        ge=1,
        description="Checkpoints to keep, at multiples of save_every; the newest and the best are always kept.",
    )
    average_last: int = Field(
        5,
        ge=1,
        description="Checkpoints averaged into the final model; `train` warns if they span more than 40% of the steps.",
    )

    @property
    def validation_interval(self) -> int:
        return self.validate_every or self.save_every


class RunSettings(BaseModel):
    """Run."""

    output_dir: str = Field("runs/base", description="Folder of the run; the same command resumes it.")
    seed: int = Field(1, ge=0, lt=2**63, description="Seed of the initial weights, the data order and dropout.")
    overwrite: bool = Field(False, description="Remove the run in output_dir and start again.")
    allow_changed: bool = Field(False, description="Resume although the recipe, the text or the processes changed.")
    keep_going: bool = Field(False, description="Continue when a checkpoint or a log cannot be written (disk full).")
    log_every: int = Field(50, ge=1, description="Steps between lines of metrics.jsonl.")
    trackers: TextList = Field([], description="Accelerate's trackers, such as tensorboard.")


class HardwareSettings(BaseModel):
    """Hardware ("auto" chooses for this machine)."""

    processes: int | None = Field(
        None,
        ge=1,
        description="Number of processes. `vaswani-transformer train` starts this many (null: as many as Accelerate's "
        "configuration says or, without one, one per GPU); under `accelerate launch` it must match.",
    )
    mixed_precision: Annotated[Literal["no", "bf16", "fp16"], BeforeValidator(_yes_or_no)] | None = Field(
        None,
        description="Mixed precision; null: that of `accelerate launch`, or bf16 on a GPU. Hardware that would emulate "
        "bfloat16 trains in float32 instead.",
    )
    attention: Literal["auto", "eager", "sdpa", "flash_attention_2"] = Field(
        "auto",
        description="Attention implementation: eager, sdpa or flash_attention_2; auto: eager for short sentences on a "
        "CPU, else sdpa.",
    )
    matmul_precision: Literal["auto", "highest", "high", "medium"] = Field(
        "auto",
        description="torch.set_float32_matmul_precision; auto: high (TF32) on a GPU, medium (oneDNN) on a CPU if it is "
        "as accurate as float32.",
    )
    compile: Annotated[Literal["auto", "yes", "no"], BeforeValidator(_yes_or_no)] = Field(
        "auto",
        description="Compile the model with torch's inductor; auto: for runs of at least 20,000 steps on a single GPU.",
    )
    deterministic: bool = Field(
        False,
        description="Use deterministic GPU kernels, so that resumed runs are bit-identical (slower). CPU runs always "
        "are.",
    )
    gradient_checkpointing: bool = Field(False, description="Recompute activations: less memory, more time.")


class Settings(NamedTuple):
    """A recipe in parts, so that each part of the program gets the keys that it needs and no others."""

    model: ModelSettings
    tokenizer: TokenizerSettings
    text: TextSettings
    batches: BatchSettings
    optimizer: OptimizerSettings
    limits: LimitSettings
    checkpoints: CheckpointSettings
    run: RunSettings
    hardware: HardwareSettings


class Recipe(
    HardwareSettings,
    RunSettings,
    CheckpointSettings,
    LimitSettings,
    OptimizerSettings,
    BatchSettings,
    TextSettings,
    TokenizerSettings,
    ModelSettings,
):
    """The defaults are section 5 of the paper for the base model. An option `--key value` overrides the file.

    To add a key, write a `Field` in the settings that it belongs to; the documentation and --help follow. List it in
    MAY_CHANGE if it may change when a run resumes.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, str_min_length=1)

    def settings(self) -> Settings:
        """Divide the recipe into the settings of each part."""
        kinds = Settings.__annotations__.values()
        return Settings(
            *(kind.model_construct(**{key: getattr(self, key) for key in kind.model_fields}) for kind in kinds)
        )

    @model_validator(mode="after")
    def _check_combinations(self) -> "Recipe":
        if self.max_steps is None and self.max_epochs is None:
            raise ValueError("max_steps and max_epochs are both null; set one of them to end the run")
        if self.data is not None and self.dataset is not None:
            raise ValueError("data and dataset are both given; set one of them to null")
        if self.streaming and self.dataset is None:
            raise ValueError("streaming is true without a dataset; set dataset, or leave streaming out")
        for name in ("dataset_config", "dataset_revision"):
            if (value := getattr(self, name)) is not None and self.dataset is None:
                raise ValueError(f"{name} is {value!r} without a dataset; set it to null")
        if self.learning_rate is not None and self.learning_rate_factor != 1:
            raise ValueError(
                f"learning_rate_factor is {self.learning_rate_factor}, but learning_rate {self.learning_rate} replaces "
                "the paper's formula; set learning_rate to null, or change it alone"
            )
        if self.capitals and self.lowercase:
            raise ValueError(f"capitals is {self.capitals}, but lowercase is true, which undoes them; set one of them")
        if not self.train:
            raise ValueError("train is empty; give at least one training corpus")
        if self.source_language == self.target_language:
            raise ValueError(
                f"source_language and target_language are both {self.source_language!r}, so the model would learn to "
                "copy; set one of them to the other language"
            )
        per_batch = self.tokens_per_micro_batch
        if 2 * self.max_length > per_batch:
            raise ValueError(
                f"a pair of two sentences of max_length {self.max_length} does not fit into a micro-batch of "
                f"{per_batch} tokens (tokens_per_step {self.tokens_per_step} / micro_batches {self.max_micro_batches})"
                "; raise tokens_per_step, or lower one of the others"
            )
        for key in ("patience", "bleu_every"):
            if not self.validation and getattr(self, key) is not None:
                raise ValueError(f"{key} is {getattr(self, key)}, but validation is empty; give a validation corpus")
        every = self.validation_interval
        if self.bleu_every is not None and self.bleu_every % every:
            key = "save_every" if self.validate_every is None else "validate_every"
            raise ValueError(f"bleu_every is {self.bleu_every}; it must be a multiple of {every} ({key})")
        if self.average_last > self.keep:
            raise ValueError(f"average_last is {self.average_last}; it must be at most {self.keep} (keep)")
        return self

    def shared_keys(self) -> dict[str, Any]:
        """Return the keys that must be the same in all processes of a run."""
        return self.model_dump(exclude=OF_ONE_PROCESS)

    def fixed_keys(self) -> dict[str, Any]:
        """Return the keys that must stay the same when a run is resumed."""
        length = set() if self.decay_share else {"max_steps", "max_epochs"}
        return self.model_dump(exclude=MAY_CHANGE | length)


def load_recipe(
    name: str | None, options: Mapping[str, str | None] | None = None, recorded: dict[str, Any] | None = None
) -> Recipe:
    """Load a recipe (default: the paper's base model) and override its keys.

    name: path of a YAML file, or the name of a shipped recipe.  recorded: keys of a run's recipe, instead of a name
    options: key -> text as typed on the command line, None for an option without a value; "model.dropout" sets one
    key of `model`. Raises InputError for unknown keys, wrong types and values outside their limits.
    """
    path = None if name is None else recipe_path(name)
    values = dict(recorded or {}) if path is None else _read_yaml(path)
    source = {key: key if path is None else f"{path}: {key}" for key in values}
    for option, text in (options or {}).items():
        key, _, inner = option.replace("-", "_").partition(".")
        source[key] = f"--{option}"
        value = _option_value(option, key, inner, text)
        if inner:
            outer = values.get(key) or {}
            if not isinstance(outer, dict):
                raise InputError(f"--{option}: {key} is {outer}, not a table; use --{key}")
            value = {**outer, inner: value}
        values[key] = value
    try:
        return Recipe(**values)
    except ValidationError as error:
        raise InputError(_first_problem(error, source, str(path or "recipe"))) from None


def _read_yaml(path: Path) -> dict[str, Any]:
    with name_in_errors(path):
        text = path.read_bytes()
    values = _parse_yaml(text, str(path)) or {}
    if not isinstance(values, dict):
        raise InputError(f"{path} must hold `key: value` lines, not a {type(values).__name__}")
    return {str(key): value for key, value in values.items()}


def _option_value(option: str, key: str, inner: str, text: str | None) -> Any:
    """Parse null, lists, quoted text and everything inside `model` as YAML; plain text is kept as written."""
    if text is None:
        if key in Recipe.model_fields and Recipe.model_fields[key].annotation is not bool:
            raise InputError(f"--{option} needs a value")
        return True
    if not text.strip():  # an unset variable of the shell; YAML reads it as null
        field = Recipe.model_fields.get(key)
        null = ", or null for none" if field is not None and type(None) in get_args(field.annotation) else ""
        raise InputError(f"--{option} is empty; give a value{null}")
    if not (inner or key == "model" or text in ("~", "null") or text.startswith(("[", '"', "'"))):
        return text
    return _parse_yaml(text, f"--{option} {reprlib.repr(text)}")


class _Loader(yaml.SafeLoader):
    """Reads null and the merge key <<; leaves other values as text, as on a command line.

    Pydantic converts them to the type of a key. YAML 1.1 would read 010 as 8, 1:30 as 90, yes as 1 and the tag
    1.10 as 1.1. A key that a table has twice is refused; PyYAML keeps the last value without a warning.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012
        first: [(tag, pattern) for tag, pattern in resolvers if tag.endswith((":null", ":merge"))]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.YAMLError(f"line {key.start_mark.line + 1} gives {key.value} a second time; give it once")
            seen.add(key.value)
        return node


def _parse_yaml(text: str | bytes, where: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise InputError(f"{where} is not YAML: {' '.join(str(error).split())}") from error


def _first_problem(error: ValidationError, source: dict[str, str], default_source: str) -> str:
    """Describe the first problem in one line: the file or option, the value and the limit."""
    problem = error.errors(include_url=False)[0]
    message = problem["msg"].removeprefix("Value error, ")
    message = re.sub("^(Input|String) should ", "it must ", message)
    message = message.partition(", unable to ")[0]  # what pydantic tried
    if not problem["loc"]:  # a combination: options of the command line that it names are to blame
        named = set(re.findall(r"\w+", message))
        options = [place for key, place in source.items() if key in named and place.startswith("--")]
        return f"{', '.join(options) or default_source}: {message}"
    key = str(problem["loc"][0])
    place = source.get(key, key)
    if problem["type"] == "extra_forbidden":
        return f"{place}: unknown key; {_suggest_key(key)}"
    if problem["type"] == "dict_type":
        message = "it must be a table, such as {dropout: 0.3}"
    return f"{place} is {reprlib.repr(problem['input'])}; {message}"


def _suggest_key(name: str) -> str:
    """Return the end of an error message: the most similar key of a recipe or of its table `model`, such as dropout."""
    from vaswani_transformer.configuration_vaswani_transformer import VaswaniTransformerConfig

    keys = {field.name: f"model.{field.name}" for field in dataclasses.fields(VaswaniTransformerConfig)}
    keys |= {key: key for key in Recipe.model_fields} | NAMES_ELSEWHERE
    near = difflib.get_close_matches(name, keys, n=1, cutoff=0.65)
    if not near:
        return "`vaswani-transformer train --help` lists the keys"
    meaning = f" {Recipe.model_fields[keys[near[0]]].description}" if near[0] in NAMES_ELSEWHERE else ""
    return f"did you mean {keys[near[0]]!r}?{meaning}"


def recipe_path(name: str) -> Path:
    """Return the file of a recipe given by path or by the name of a shipped recipe."""
    path = Path(name)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise InputError(f"{name} is a pipe or a device, which cannot be read twice; write it to a file")
    if path.suffix in (".yaml", ".yml") or path.is_file():  # a folder may have the name of a recipe
        if not path.is_file():
            raise InputError(f"{name}: no such recipe file; recipes of the package: {', '.join(shipped_recipes())}")
        return path
    if name in shipped_recipes():
        return SHIPPED / f"{name}.yaml"
    raise InputError(f"recipe {name!r} does not exist{nearest(name, shipped_recipes())}")


def shipped_recipes() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def describe_recipe(name: str) -> tuple[str, str]:
    """Return the first sentence of a recipe's comments, and the sentence that says whether it was run to completion."""
    lines = recipe_path(name).read_text(encoding="utf-8").splitlines()
    comments = " ".join(line.removeprefix("#").strip() for line in takewhile(lambda line: line.startswith("#"), lines))
    sentences = re.split(r"(?<=\.) (?=[A-Z])", comments)
    never = "Never run to completion"
    run = (each for each in sentences if each.startswith(("Run to completion", never)))
    return sentences[0], next(run, f"{never}.")


def describe_keys() -> str:
    """Return one paragraph for `--help` that lists every key with its default and description."""
    lines = []
    for name, field in Recipe.model_fields.items():
        default = yaml.safe_dump(field.get_default(), default_flow_style=True).split("\n")[0]
        lines += [f"--{name} ({default})", f"    {field.description}"]
    return "\b\n" + "\n".join(lines)  # \b: keep the line breaks


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message: the most similar known name, or all known names."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


def differences(
    before: dict[str, Any], now: dict[str, Any], form: str = "{} was {}, is {}", table: str = ""
) -> list[str]:
    """Describe every key whose value has changed. table: the start of each name, for the keys of a table

    form: for the name, the old value and the new one
    """
    found = []
    absent = "unset" if table else None  # a null in `model` overrides the preset
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key, absent), now.get(key, absent)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differences(old, new, form, f"{table}{key}.")
        elif old != new:
            found.append(form.format(f"{table}{key}", old, new))
    return found
