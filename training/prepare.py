"""From a recipe to everything that the training loop works with: text, batches, model, optimizer."""

import math
import sys
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from accelerate.utils import (
    DistributedDataParallelKwargs,
    DynamoBackend,
    InitProcessGroupKwargs,
    LoggerType,
    TorchDynamoPlugin,
    broadcast_object_list,
)
from torch import distributed

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError
from vaswani_transformer.model_folder import read_json_object

from . import checkpoint_folders, fsdp, machine
from .batches import Order, Plan, plan_batches
from .corpus import Corpus, load_corpus, overlap, tokenizer_sha256
from .loss import TrainingLoss
from .model import load_or_train_tokenizer, load_target_tokenizer, make_model, model_config, sizes_and_ids
from .parallel_text import (
    HELD_OUT_EVERY,
    HELD_OUT_MOST,
    Sentences,
    parallel_texts,
    sentences_of,
    train_and_validation_texts,
)
from .recipe import Recipe
from .report import Reporter
from .schedule import learning_rate

# The first ends a run in which a process hangs in a step. The second is for waits while the main process reads the text
# or measures BLEU.
COLLECTIVE_TIMEOUT, PATIENCE = timedelta(minutes=30), timedelta(hours=12)


class TokenisedText(NamedTuple):
    """The text of a recipe, tokenised."""

    tokenizer: Any
    target_tokenizer: Any  # None if the languages share one
    corpus: Corpus
    validation: Corpus | None
    validation_sentences: Sentences | None  # sources and references, if BLEU is measured during training

    def sha256s(self) -> dict[str, Any]:
        """Return hashes of the training text and the tokenizers, by name."""
        hashes = {"corpus sha256": self.corpus.sha256, "tokenizer sha256": tokenizer_sha256(self.tokenizer)}
        if self.target_tokenizer is not None:
            hashes["target tokenizer sha256"] = tokenizer_sha256(self.target_tokenizer)
        return hashes


@dataclass
class Prepared:
    """A run that is ready for its first step, or for a checkpoint to be loaded."""

    recipe: Recipe
    accelerator: Accelerator
    cpu_group: distributed.ProcessGroup | None  # of all processes, to wait for each other; None for a single one
    reporter: Reporter
    tokenizer: Any
    target_tokenizer: Any  # None if the languages share a tokenizer
    corpus: Corpus
    validation: Corpus | None
    validation_sentences: Sentences | None
    plan: Plan
    order: Order
    total_steps: int
    model: VaswaniTransformerForConditionalGeneration
    module: torch.nn.Module  # the model with its loss, inside DDP or FSDP
    optimizer: AcceleratedOptimizer
    environment: dict[str, Any]  # decides the last bits of the weights
    identity: dict[str, Any]  # must be the same when the run is resumed

    @property
    def config(self) -> Any:
        return self.model.config

    def learning_rate(self, step: int) -> float:
        """Return the rate of a step, counted from 1."""
        return learning_rate(self.recipe, self.config.d_model, step, self.total_steps)


def prepare(
    recipe: Recipe, output: Path, accelerator: Accelerator, reporter: Reporter, shard_weights: bool = False
) -> Prepared:
    """Read the text and build the model. shard_weights: use FSDP instead of DDP if there are several processes."""
    device, processes = accelerator.device, accelerator.num_processes
    shard_weights = shard_weights and processes > 1
    machine.refuse_compiler(recipe, device, shard_weights)
    cpu_group = None
    if processes > 1:
        cpu_group = cast(distributed.ProcessGroup, distributed.new_group(timeout=PATIENCE, backend="gloo"))
    # The main process fills the cache, and the others read it.
    text = read_text(recipe, output, reporter) if accelerator.is_main_process else None
    wait_for_all(cpu_group)
    text = text or read_text(recipe, output, reporter)
    wait_for_all(cpu_group)
    corpus, identity = text.corpus, {**text.sha256s(), "processes": processes}

    config = model_config(recipe, *sizes_and_ids(text.tokenizer, text.target_tokenizer))
    earlier = earlier_choices(recipe, output)
    # The main process chooses: GPUs may differ in memory.
    (micro_batches,) = broadcast_object_list([machine.choose_micro_batches(recipe, config, device, processes, earlier)])
    if micro_batches != recipe.most_micro_batches:
        identity["micro_batches"] = micro_batches
    recipe = recipe.model_copy(update={"micro_batches": micro_batches})
    plan = plan_batches(corpus.source_lengths, corpus.target_lengths, recipe.tokens_per_micro_batch, micro_batches)
    steps = total_steps(recipe, plan)

    model, choices = make_model(recipe, config, device, sum(corpus.mean_lengths) / 2)
    # Translators cut longer sentences. A fine-tuned model keeps the length of its earlier training if that was longer.
    settings: Any = model.generation_config
    before_tuning = getattr(settings, "max_source_length", None) or 0
    settings.max_source_length = max(before_tuning, int(corpus.source_lengths.max()))
    # Set for every run, because a process may train several models. dynamic: compile once for all sentence lengths.
    compiler: Any = machine.choose_compiler(recipe, device, steps, processes, earlier)
    accelerator.state.dynamo_plugin = TorchDynamoPlugin(backend=compiler, dynamic=True)
    module, optimizer = distribute(recipe, accelerator, model, shard_weights)
    return Prepared(
        recipe=recipe, accelerator=accelerator, cpu_group=cpu_group, reporter=reporter, **text._asdict(),
        plan=plan, order=Order(plan, recipe.seed), total_steps=steps, model=model, module=module, optimizer=optimizer,
        environment=describe_environment(accelerator, shard_weights) | choices, identity=identity,
    )  # fmt: skip


def make_accelerator(recipe: Recipe, output: Path) -> Accelerator:
    for name in recipe.trackers:  # Accelerate skips trackers whose packages are missing without a warning
        if name in LOGGER_TYPE_TO_CLASS and LoggerType(name) not in get_available_trackers():
            raise UnavailableError(f"trackers: {name} is not installed; pip install {name}")
    try:
        return Accelerator(
            # Explicit, or Accelerate starts several processes without a GPU as independent runs.
            cpu=not torch.accelerator.is_available(),
            mixed_precision=machine.choose_precision(recipe.mixed_precision, earlier_choices(recipe, output)),
            log_with=[LoggerType(name) for name in recipe.trackers] or None,
            project_dir=output,
            kwargs_handlers=[
                InitProcessGroupKwargs(timeout=COLLECTIVE_TIMEOUT),
                DistributedDataParallelKwargs(gradient_as_bucket_view=True),
            ],
        )
    except ValueError as error:
        raise InputError(f"mixed_precision or trackers: {' '.join(str(error).split())}") from error


def earlier_choices(recipe: Recipe, output: Path) -> dict[str, Any]:
    """Return the choices recorded in the newest checkpoint (precision, ...), or {} for a new run."""
    for folder in [] if recipe.overwrite else checkpoint_folders.checkpoints(output / "checkpoints"):
        try:
            state = read_json_object(folder / checkpoint_folders.STATE, "environment", "identity")
            return state["environment"] | state["identity"]
        except (BrokenFileError, KeyError, TypeError):
            continue  # a damaged checkpoint is reported when the run is resumed
    return {}


def wait_for_all(group: distributed.ProcessGroup | None) -> None:
    """Wait for the other processes of a `cpu_group`, for hours if need be."""
    if group is not None:
        distributed.barrier(group)


def describe_environment(accelerator: Accelerator, shard_weights: bool) -> dict[str, Any]:
    """Return what decides the last bits of the weights, besides the recipe: hardware, libraries, what was chosen."""
    environment: dict[str, Any] = {
        "python": sys.version.split()[0],
        **{name: version(name) for name in ("torch", "numpy", "transformers", "tokenizers")},
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if accelerator.device.type == "cuda" else accelerator.device.type,
        "mixed_precision": str(accelerator.mixed_precision),
    }
    compiler: Any = accelerator.state.dynamo_plugin
    if compiler.backend != DynamoBackend.NO:
        environment["compiler"] = compiler.backend.value.lower()
    if torch.are_deterministic_algorithms_enabled():
        environment["algorithms"] = "deterministic"
    if shard_weights:
        environment["weights"] = "split by FSDP"
    return environment


def read_text(recipe: Recipe, output: Path, reporter: Reporter) -> TokenisedText:
    """Read, tokenise and cache the text; warn about pairs of the validation and test texts that are trained on."""
    texts, validation_texts, held_out = train_and_validation_texts(recipe)
    if held_out:
        reporter.say(
            f"no validation text {' + '.join(recipe.validation)}: every {HELD_OUT_EVERY}th training pair is held out, "
            f"at most {HELD_OUT_MOST:,} (--validation NAME names a text, --validation '[]' does without)"
        )
    try:
        test = parallel_texts(recipe, recipe.test)
    except InputError as error:  # a shipped recipe with the user's own text: training needs no test set
        reporter.say(f"warning: {error}; training continues without looking for test pairs in the training text")
        test = []
    tokenizer = load_or_train_tokenizer(recipe, output, texts, reporter.say)
    target_tokenizer = load_target_tokenizer(recipe, output)
    cache = Path(recipe.cache) if recipe.cache else output / "corpus"
    corpus, validation, in_test = (
        load_corpus(each, tokenizer, recipe, cache, reporter.say, target_tokenizer) if each else None
        for each in (texts, validation_texts, test)
    )
    assert corpus is not None
    for name, other in (("validation", validation), ("test", in_test)):
        if other is not None and (common := overlap(corpus, other)):
            reporter.say(f"warning: {common} of {len(other)} {name} pairs are also in the training text")
    sentences = None if recipe.bleu_every is None else sentences_of(validation_texts)
    return TokenisedText(tokenizer, target_tokenizer, corpus, validation, sentences)


def distribute(
    recipe: Recipe, accelerator: Accelerator, model: VaswaniTransformerForConditionalGeneration, shard_weights: bool
) -> tuple[torch.nn.Module, AcceleratedOptimizer]:
    """Wrap the model and its loss for the processes, and create the optimizer."""
    module = TrainingLoss(model, recipe.label_smoothing, recipe.label_smoothing_spread)
    if shard_weights:
        fsdp.shard(module, accelerator.device, accelerator.num_processes)
    # Section 5.3: Adam with beta1 0.9, beta2 0.98, epsilon 1e-9.
    optimizer = torch.optim.Adam(
        model.parameters(),
        lr=0.0,
        betas=(recipe.adam_beta1, recipe.adam_beta2),
        eps=recipe.adam_epsilon,
        fused=accelerator.device.type in ("cpu", "cuda"),
    )
    # evaluation_mode: Accelerate leaves out DDP but keeps the autocast of mixed precision.
    wrapped = accelerator.prepare_model(module, not shard_weights, evaluation_mode=shard_weights)
    return wrapped, cast(AcceleratedOptimizer, accelerator.prepare_optimizer(optimizer))


def total_steps(recipe: Recipe, plan: Plan) -> int:
    """Return the steps of the run: the smaller of max_steps and max_epochs."""
    limits = [recipe.max_steps]
    if recipe.max_epochs is not None:
        limits.append(max(1, math.ceil(recipe.max_epochs * plan.steps_per_epoch)))
    return min(limit for limit in limits if limit is not None)
