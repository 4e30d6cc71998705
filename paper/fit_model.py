"""Train an LSTM, which `train` cannot build, on the batches of a recipe."""

import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import nn

from training.batches import to_device
from training.processes import make_accelerator
from training.recipe import Recipe, differences
from training.report import Reporter
from training.schedule import linear_decay
from training.stopping import Signals
from training.train import Run
from vaswani_transformer.errors import InputError
from vaswani_transformer.files import read_json_object, write_json
from vaswani_transformer.modeling_vaswani_transformer import label_smoothed_cross_entropy

from .rnn import RnnWithAttention, make_rnn

WEIGHTS, LOSSES = "fitted.safetensors", "losses.json"
# The LSTM's own settings of Adam, common at this size, instead of the recipe's, which are for a Transformer; the other
# settings are torch's defaults.
LEARNING_RATE, LARGEST_GRADIENT = 1e-3, 1.0


def train_lstm(recipe: Recipe) -> tuple[RnnWithAttention, Run]:
    """Train an LSTM of the same size as the recipe's model, on its batches, with its dropout and its label smoothing.

    The learning rate and Adam's settings are the LSTM's own, whatever the recipe says; it computes in float32, takes
    all steps and is not averaged.
    Loads the LSTM instead if recipe.output_dir holds a finished one; an interrupted training starts over.
    Raises InputError if the finished one was trained with another recipe.
    """
    folder = Path(recipe.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    accelerator = make_accelerator(recipe.mixed_precision, [], folder, {})
    run = Run(recipe.settings(), recipe.fixed_keys(), accelerator, Reporter(True), Signals())
    transformer: Any = run.network.model
    torch.manual_seed(recipe.seed)
    vocabulary, dropout = len(run.corpora.tokenizer), transformer.config.dropout
    model = make_rnn(transformer.num_parameters(), vocabulary, "lstm", dropout)
    model.to(accelerator.device)
    if (folder / LOSSES).is_file():
        recorded = read_json_object(folder / LOSSES, "recipe")["recipe"]
        if changes := differences(recorded, select_fixed_keys(recipe)):
            raise InputError(f"{folder} holds a model of another recipe: {'; '.join(changes)}; remove the folder")
        load_model(model, folder / WEIGHTS)
    else:
        fit(model, run, recipe)
    model.eval()
    return model, run


def select_fixed_keys(recipe: Recipe) -> dict[str, Any]:
    """Return the keys that a finished LSTM depends on; unlike a run of `train`, it cannot be trained for more steps."""
    return recipe.fixed_keys() | {"max_steps": recipe.max_steps, "max_epochs": recipe.max_epochs}


def fit(model: RnnWithAttention, run: Run, recipe: Recipe) -> None:
    """Train the LSTM for the recipe's steps, and save it with its losses per target token."""
    folder, steps = run.output, run.total_steps
    began = time.process_time()
    model.train()
    optimizer = torch.optim.Adam(model.parameters())
    losses: list[tuple[int, float]] = []  # (step, loss) at every log line
    total, tokens = 0.0, 0
    for step in range(1, steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * linear_decay(step, steps, 0.5)  # constant in the first half
        batches = run.stepper.input.take(step - 1)
        for part in batches.micro_batches:
            batch: Any = to_device(part.batch, run.network.accelerator.device)
            source, mask, target, positions, labels = batch
            logits = model(source, target, mask).flatten(0, 1)[positions]
            smoothing = recipe.label_smoothing
            loss = label_smoothed_cross_entropy(logits, labels, smoothing, num_items_in_batch=1)  # the sum
            (loss / batches.target_tokens).backward()
            total += loss.item()
        tokens += batches.target_tokens
        nn.utils.clip_grad_norm_(model.parameters(), LARGEST_GRADIENT)
        optimizer.step()
        optimizer.zero_grad()
        if step % recipe.log_every == 0 or step == steps:
            losses.append((step, total / tokens))
            run.reporter.say(f"{folder.name}: step {step}/{steps}  loss {total / tokens:.3f}")
            total, tokens = 0.0, 0
    run.stepper.input.close()
    save_model(model, str(folder / WEIGHTS))
    cpu_seconds = time.process_time() - began
    write_json(folder / LOSSES, {"losses": losses, "cpu_seconds": cpu_seconds, "recipe": select_fixed_keys(recipe)})


def read_cpu_seconds(folder: Path) -> float:
    """Return the CPU seconds that the training in this folder took."""
    return read_json_object(folder / LOSSES)["cpu_seconds"]
