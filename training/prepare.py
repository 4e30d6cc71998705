"""Build everything the training loop needs from a recipe: text, batches, model, optimizer."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from accelerate.utils import TorchDynamoPlugin, broadcast_object_list
from torch import distributed

from vaswani_transformer import VaswaniTransformerForConditionalGeneration

from . import fsdp, machine
from .batches import BatchPlan, RunBatches, plan_batches
from .loss import TrainingLoss
from .model import make_model, model_config
from .processes import describe_environment, new_cpu_group, saved_choices, wait_for_all
from .recipe import Recipe
from .report import Reporter
from .schedule import learning_rate, total_steps
from .tokenised_text import TokenisedText, read_text
from .tokenizer import sizes_and_ids


@dataclass
class Prepared:
    """A run that is ready for its first step, or for a checkpoint to be loaded."""

    recipe: Recipe
    accelerator: Accelerator
    cpu_group: distributed.ProcessGroup | None  # of all processes, to wait for each other; None for a single one
    reporter: Reporter
    text: TokenisedText
    plan: BatchPlan
    batches: RunBatches
    total_steps: int
    model: VaswaniTransformerForConditionalGeneration
    module: torch.nn.Module  # the model with its loss, inside DDP or FSDP
    optimizer: AcceleratedOptimizer
    environment: dict[str, Any]  # affects bit-exact results
    fingerprint: dict[str, Any]  # must be the same when the run is resumed

    @property
    def config(self) -> Any:
        return self.model.config

    def learning_rate_at(self, step: int) -> float:
        """Return the rate of a step, counted from 1."""
        return learning_rate(self.recipe, self.config.d_model, step, self.total_steps)


def prepare(
    recipe: Recipe, output: Path, accelerator: Accelerator, reporter: Reporter, shard_weights: bool = False
) -> Prepared:
    """Read the text and build the model. shard_weights: use FSDP instead of DDP if there are several processes."""
    device, processes = accelerator.device, accelerator.num_processes
    shard_weights = shard_weights and processes > 1
    machine.check_compiler(recipe, device, shard_weights)
    cpu_group = new_cpu_group(processes)
    # The main process fills the cache, and the others read it.
    text = read_text(recipe, output, reporter) if accelerator.is_main_process else None
    wait_for_all(cpu_group)
    text = text or read_text(recipe, output, reporter)
    wait_for_all(cpu_group)
    corpus, fingerprint = text.training, {**text.sha256s(), "processes": processes}

    config = model_config(recipe, *sizes_and_ids(text.tokenizer, text.target_tokenizer))
    saved = saved_choices(recipe, output)
    # The main process chooses: GPUs may differ in memory.
    (micro_batches,) = broadcast_object_list([machine.choose_micro_batches(recipe, config, device, processes, saved)])
    if micro_batches != recipe.max_micro_batches:
        fingerprint["micro_batches"] = micro_batches
    recipe = recipe.model_copy(update={"micro_batches": micro_batches})
    plan = plan_batches(corpus.source_lengths, corpus.target_lengths, recipe.tokens_per_micro_batch, micro_batches)
    steps = total_steps(recipe, plan)

    model, choices = make_model(recipe, config, device, sum(corpus.mean_lengths) / 2)
    # Translators split longer sentences. A fine-tuned model keeps the length of its earlier training if that is longer.
    settings: Any = model.generation_config
    before_tuning = getattr(settings, "max_source_length", None) or 0
    settings.max_source_length = max(before_tuning, int(corpus.source_lengths.max()))
    # Set for every run, because a process may train several models. dynamic: compile once for all sentence lengths.
    compiler: Any = machine.choose_compiler(recipe, device, steps, processes, saved)
    accelerator.state.dynamo_plugin = TorchDynamoPlugin(backend=compiler, dynamic=True)
    module, optimizer = distribute(recipe, accelerator, model, shard_weights)
    return Prepared(
        recipe=recipe, accelerator=accelerator, cpu_group=cpu_group, reporter=reporter, text=text, plan=plan,
        batches=RunBatches(plan, recipe.seed), total_steps=steps, model=model, module=module, optimizer=optimizer,
        environment=describe_environment(accelerator, shard_weights) | choices, fingerprint=fingerprint,
    )  # fmt: skip


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
        lr=0.0,  # set before every step
        betas=(recipe.adam_beta1, recipe.adam_beta2),
        eps=recipe.adam_epsilon,
        fused=accelerator.device.type in ("cpu", "cuda"),
    )
    # evaluation_mode: Accelerate leaves out DDP but keeps the autocast of mixed precision.
    wrapped = accelerator.prepare_model(module, not shard_weights, evaluation_mode=shard_weights)
    return wrapped, cast(AcceleratedOptimizer, accelerator.prepare_optimizer(optimizer))
