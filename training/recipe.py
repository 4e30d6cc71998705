"""A recipe: everything that decides what a training run computes, as the keys of one YAML file."""

import dataclasses
import difflib
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import yaml

from vaswani_transformer.errors import InputError

SHIPPED = Path(__file__).parent / "recipes"
EMBEDDED = "embedded"  # `data: embedded` is the corpus of the demo.


def _key(
    default: Any,
    at_least: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices=(),
    resume="same",
) -> Any:
    """A recipe key with its limits. resume="free": a finished or interrupted run may go on with another value."""
    metadata = {"at_least": at_least, "above": above, "below": below, "choices": tuple(choices), "resume": resume}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class Recipe:
    """The defaults are section 5 of the paper for the base model. A flag `--key value` overrides the file."""

    # The model (section 3): a preset of VaswaniTransformerConfig and fields of the config that differ from it.
    preset: str = _key("base")
    model: dict[str, Any] = _key({})
    # Start from the weights of this model folder instead of random ones (fine-tuning).
    initial_weights: str | None = _key(None)

    # The tokenizer: a folder, or else one of `vocab_size` tokens is trained on the training text (section 5.1).
    tokenizer: str | None = _key(None, resume="free")
    vocab_size: int = _key(37000, at_least=260)
    # Every digit a token: numbers never seen are spelt with tokens that were.
    split_digits: bool = _key(False)
    # Read and write small letters alone; BLEU during training is then that of lower-cased text.
    lowercase: bool = _key(False)

    # The text. `train` etc. name corpora inside the folder `data`: "train" stands for train.en and train.de (or
    # .gz); also "train.{language}.txt", "a.txt,b.txt", "pairs.tsv", "pairs.jsonl"; a list is read in its order.
    # With `dataset` (a `datasets` id or a folder made by save_to_disk) they name its splits.
    data: str | None = _key(None, resume="free")
    dataset: str | None = _key(None, resume="free")
    dataset_config: str | None = _key(None, resume="free")
    # Tokenise the dataset as it comes over the network; no copy of the text is kept on this machine.
    streaming: bool = _key(False, resume="free")
    source_language: str = _key("en")
    target_language: str = _key("de")
    train: list[str] = _key(["train"], resume="free")
    validation: list[str] = _key(["val"], resume="free")
    test: list[str] = _key([], resume="free")
    # Pairs with more tokens than this on one side (</s> included), or one side this many times longer, are dropped.
    max_length: int = _key(256, at_least=2)
    max_length_ratio: float | None = _key(None, at_least=1)
    encoding_errors: str = _key("error", choices=("error", "skip"), resume="free")
    # Where tokenised corpora are kept; default: inside output_dir.
    cache: str | None = _key(None, resume="free")

    # Batches (section 5.1): about 25,000 source and 25,000 target tokens a step, padding counted. A step is cut
    # into `micro_batches` of sentences of like length; processes share them (the paper's eight GPUs had one each).
    tokens_per_step: int = _key(50000, at_least=8)
    micro_batches: int = _key(8, at_least=1)

    # The optimizer (section 5.3). Without `learning_rate` the paper's formula times `learning_rate_factor`;
    # with it, the same shape with this peak. The last `decay_share` of the steps falls linearly to 0.
    learning_rate: float | None = _key(None, at_least=0)
    learning_rate_factor: float = _key(1.0, at_least=0)
    warmup_steps: int = _key(4000, at_least=1)
    decay_share: float = _key(0.0, at_least=0, below=1.000001)
    adam_beta1: float = _key(0.9, at_least=0, below=1)
    adam_beta2: float = _key(0.98, at_least=0, below=1)
    adam_epsilon: float = _key(1e-9, above=0)
    max_gradient_norm: float | None = _key(None, above=0)  # null: no clipping

    # Regularisation (section 5.4); dropout belongs to the model. The paper's code spreads the smoothed mass over
    # the V-1 "others", torch over "all" V.
    label_smoothing: float = _key(0.1, at_least=0, below=1)
    label_smoothing_spread: str = _key("others", choices=("others", "all"))

    # How long: whatever comes first. Only max_steps and max_epochs shape the learning rate. Hours (with all that is
    # done besides steps), CPU seconds (of steps) and tokens (source and target) count over all parts of a run; with a
    # larger limit the same command goes on.
    max_steps: int | None = _key(100_000, at_least=1)
    max_epochs: float | None = _key(None, at_least=0)
    max_hours: float | None = _key(None, at_least=0, resume="free")
    max_cpu_seconds: float | None = _key(None, at_least=0, resume="free")
    max_tokens: int | None = _key(None, at_least=1, resume="free")
    # Stop after this many validations without a lower loss.
    patience: int | None = _key(None, at_least=1)

    # Validation: every so many steps (null: at every checkpoint) and at the end the loss; if asked, BLEU (beam 4).
    # The best so far is always kept as a checkpoint.
    validate_every: int | None = _key(1000, at_least=1)
    bleu_every: int | None = _key(None, at_least=1, resume="free")

    # Checkpoints (section 6.1 averages the last 5, written every 10 minutes) and what is kept of them.
    save_every: int = _key(1500, at_least=1)
    keep: int = _key(5, at_least=1, resume="free")
    average_last: int = _key(5, at_least=1)

    # The run.
    output_dir: str = _key("runs/base", resume="free")
    seed: int = _key(1, at_least=0, below=2**63)
    overwrite: bool = _key(False, resume="free")
    allow_changed: bool = _key(False, resume="free")
    # Go on training when a checkpoint cannot be written (disk full).
    keep_going: bool = _key(False, resume="free")
    max_bad_steps: int = _key(10, at_least=1, resume="free")
    log_every: int = _key(50, at_least=1, resume="free")
    trackers: list[str] = _key([], resume="free")

    # The machine. `processes`: refuse to run with another number. "auto" chooses by what the machine measures.
    processes: int | None = _key(None, at_least=1, resume="free")
    mixed_precision: str | None = _key(None, choices=(None, "no", "bf16", "fp16"))
    attention: str = _key("auto", choices=("auto", "eager", "sdpa", "flash_attention_2"))
    matmul_precision: str = _key("auto", choices=("auto", "highest", "medium"))
    fast_dropout: str = _key("auto", choices=("auto", "no"))
    gradient_checkpointing: bool = _key(False)

    def identity(self) -> dict[str, Any]:
        """The keys that must not change between the parts of one run (the text is compared by its content)."""
        free = {f.name for f in dataclasses.fields(self) if f.metadata["resume"] == "free"}
        if not self.decay_share:
            free |= {"max_steps", "max_epochs"}
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in free}


def recipe_path(name: str) -> Path:
    """The file of a recipe given by its path or by the name of a shipped one."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml") or path.is_file():  # a folder may have the name of a recipe
        if not path.is_file():
            raise InputError(f"{name}: no such recipe file; shipped recipes: {', '.join(shipped_recipes())}")
        return path
    if name in shipped_recipes():
        return SHIPPED / f"{name}.yaml"
    raise InputError(f"recipe {name!r} does not exist{_nearest(name, shipped_recipes())}")


def shipped_recipes() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def load_recipe(name: str | None, flags: dict[str, str] | None = None) -> Recipe:
    """The recipe of a YAML file (or the paper's base model) with flags over it.

    name: a path or the name of a shipped recipe; flags: key -> text as typed, read as YAML; "model.dropout"
    reaches into `model`. Raises InputError for unknown keys, wrong types and values out of their limits.
    """
    values: dict[str, Any] = {}
    where = "the flags"
    if name is not None:
        where = str(path := recipe_path(name))
        try:
            values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise InputError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
        if not isinstance(values, dict):
            raise InputError(f"{path} must hold `key: value` lines, not a {type(values).__name__}")
        _refuse_unknown(values, str(path))
    for flag, text in (flags or {}).items():
        key, _, inner = flag.replace("-", "_").partition(".")
        _refuse_unknown([key], "the flags")
        value = _typed(key, inner, text, flag)
        if inner:
            outer = values.get(key) or {}
            if not isinstance(outer, dict):
                raise InputError(f"--{flag}: {key} is {outer}, which has no keys; --{key} alone sets it")
            values[key] = {**outer, inner: value}
        else:
            values[key] = value
    return _checked(values, where)


def _typed(key: str, inner: str, text: str, flag: str) -> Any:
    """The value of a flag: YAML, but a name where the key takes names, were it `2024_06_01` or `{language}.txt`."""
    hint = typing.get_type_hints(Recipe)[key]
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    takes_names = not inner and (str in kinds or list[str] in kinds)
    if takes_names and text not in ("", "~", "null") and not text.startswith(("[", '"', "'")):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"--{flag} {text}: not a value") from error


def _refuse_unknown(keys, where: str) -> None:
    known = [f.name for f in dataclasses.fields(Recipe)]
    for key in keys:
        if key not in known:
            raise InputError(f"{where}: unknown key {key!r}{_nearest(str(key), known)}")


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"


def _checked(values: dict[str, Any], where: str) -> Recipe:
    hints = typing.get_type_hints(Recipe)
    checked = {}
    for f in dataclasses.fields(Recipe):
        if f.name not in values:
            continue
        value = _as_type(f.name, values[f.name], hints[f.name], where)
        at_least, above, below, choices = (f.metadata[k] for k in ("at_least", "above", "below", "choices"))
        if value == float("inf"):
            raise InputError(f"{where}: {f.name} is {value}, must be a finite number")
        if value is not None and at_least is not None and not value >= at_least:
            raise InputError(f"{where}: {f.name} is {value}, must be at least {at_least}")
        if value is not None and above is not None and not value > above:
            unlimited = ", or null" if f.default is None else ""
            raise InputError(f"{where}: {f.name} is {value}, must be above {above}{unlimited}")
        if value is not None and below is not None and not value < below:
            raise InputError(f"{where}: {f.name} is {value}, must be below {below:g}")
        if choices and value not in choices:
            listed = ", ".join(str(c) for c in choices if c is not None)
            raise InputError(f"{where}: {f.name} is {value!r}, must be one of {listed}")
        checked[f.name] = value
    recipe = Recipe(**checked)
    if recipe.max_steps is None and recipe.max_epochs is None:
        raise InputError(f"{where}: max_steps and max_epochs are both empty; one of them must end the run")
    if recipe.data is not None and recipe.dataset is not None:
        raise InputError(f"{where}: data and dataset are both given; the text comes from one of them")
    if recipe.streaming and recipe.dataset is None:
        raise InputError(f"{where}: streaming is true without a dataset; files are read from where they lie")
    if not recipe.train:
        raise InputError(f"{where}: train is empty; it names the training corpora")
    per_batch = recipe.tokens_per_step // recipe.micro_batches
    if 2 * recipe.max_length > per_batch:
        raise InputError(
            f"{where}: a pair of two sentences of max_length {recipe.max_length} does not fit into a micro-batch of "
            f"{per_batch} tokens (tokens_per_step {recipe.tokens_per_step} / micro_batches {recipe.micro_batches})"
        )
    if not recipe.validation and (recipe.patience is not None or recipe.bleu_every is not None):
        key = "bleu_every" if recipe.patience is None else "patience"
        raise InputError(f"{where}: {key} is {getattr(recipe, key)}, but validation is empty: there is nothing to test")
    every = recipe.validate_every or recipe.save_every
    if recipe.bleu_every is not None and recipe.bleu_every % every:
        raise InputError(
            f"{where}: bleu_every is {recipe.bleu_every}, must be a multiple of {every}, the steps between validations "
            f"({'save_every' if recipe.validate_every is None else 'validate_every'})"
        )
    if recipe.average_last > recipe.keep:
        raise InputError(
            f"{where}: average_last is {recipe.average_last}, more than the {recipe.keep} checkpoints kept (keep)"
        )
    return recipe


def _as_type(name: str, value: Any, hint: Any, where: str) -> Any:
    allowed = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in allowed:
        return None
    wanted = next(kind for kind in allowed if kind is not type(None))
    plain = typing.get_origin(wanted) or wanted
    if plain is list and isinstance(value, str):
        return [value]
    if plain is list and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return value
    if plain is dict and isinstance(value, dict):
        return value
    if plain is float and not isinstance(value, bool):
        # YAML 1.1 reads 1e-9 as text.
        try:
            return float(cast(str, value))
        except (TypeError, ValueError):
            pass
    if plain is int and isinstance(value, float) and value.is_integer():
        return int(value)
    if plain is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if plain is bool and isinstance(value, bool):
        return value
    if plain is str and isinstance(value, bool):
        return "no" if value is False else "yes"  # YAML 1.1 reads a bare `no` as false.
    if plain is str and isinstance(value, str | int | float):
        return str(value)
    words = {list: "a list of names", dict: "a table of config fields", float: "a number", int: "a whole number"}
    raise InputError(f"{where}: {name} is {value!r}, must be {words.get(plain, plain.__name__)}")
