"""Train models that `train` cannot build (an RNN, a changed Transformer) on the batches of a recipe."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model, save_model
from torch import Tensor, nn

from vaswani_transformer.errors import InputError
from vaswani_transformer.model_folder import read_json_object, write_json
from vaswani_transformer.modeling_vaswani_transformer import label_smoothed_cross_entropy

from ..input_pipeline import InputPipeline, on_device
from ..prepare import Prepared, prepare
from ..processes import make_accelerator
from ..recipe import Recipe
from ..report import Reporter
from ..run_folder import differences, with_defaults
from ..schedule import linear_decay
from .rnn import RnnWithAttention, rnn_of_size

WEIGHTS, LOSSES = "fitted.safetensors", "losses.json"
# For the LSTM: common values at this size.
LEARNING_RATE, LARGEST_GRADIENT = 1e-3, 1.0
Forward = Callable[[Tensor, Tensor, Tensor | None], Tensor]  # (source, target, mask) -> logits
Curve = list[tuple[int, float]]  # (step, loss)


def prepare_recipe(recipe: Recipe) -> Prepared:
    """Return the text, the batches and the model of a recipe."""
    folder = Path(recipe.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    return prepare(recipe, folder, make_accelerator(recipe, folder), Reporter(True))


def fit(
    model: nn.Module,
    forward: Forward,
    prepared: Prepared,
    rate: Callable[[int], float],
    betas: tuple[float, float] = (0.9, 0.999),
    largest_gradient: float = torch.inf,
) -> Curve:
    """Train a model with Adam for the recipe's steps and return (step, loss per target token) at every log line.

    forward: source (batch, source), target (batch, target), mask like source or None
        -> logits (batch, target, vocabulary)
    rate: returns the learning rate of a step; the first step is 1
    Loads the model instead if output_dir holds a finished one; an interrupted training starts over.
    Raises InputError if the finished model was trained with another recipe.
    """
    recipe, folder = prepared.recipe, Path(prepared.recipe.output_dir)
    if (folder / LOSSES).is_file():
        return load_fitted(model, recipe)
    began = time.process_time()
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), betas=betas)
    pipeline = InputPipeline(prepared)
    curve: Curve = []
    total, tokens = 0.0, 0
    for step in range(1, prepared.total_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        batches = pipeline.take(step - 1)
        for part in batches.micro_batches:
            batch: Any = on_device(part.batch, prepared.accelerator.device)
            source, mask, target, positions, labels = batch
            logits = forward(source, target, mask).flatten(0, 1)[positions]
            loss = label_smoothed_cross_entropy(logits, labels, recipe.label_smoothing, num_items_in_batch=1)  # the sum
            (loss / batches.target_tokens).backward()
            total += loss.item()
        tokens += batches.target_tokens
        nn.utils.clip_grad_norm_(model.parameters(), largest_gradient)
        optimizer.step()
        optimizer.zero_grad()
        if step % recipe.log_every == 0 or step == prepared.total_steps:
            curve.append((step, total / tokens))
            prepared.reporter.say(f"{folder.name}: step {step}/{prepared.total_steps}  loss {total / tokens:.3f}")
            total, tokens = 0.0, 0
    pipeline.close()
    save_model(model, str(folder / WEIGHTS))
    cpu_seconds = time.process_time() - began
    write_json(folder / LOSSES, {"losses": curve, "cpu_seconds": cpu_seconds, "recipe": recipe.fixed_keys()})
    model.eval()
    return curve


def load_fitted(model: nn.Module, recipe: Recipe) -> Curve:
    """Load a model that `fit` has saved, and return its losses. Raises InputError if the recipe has changed."""
    folder = Path(recipe.output_dir)
    saved, now = read_json_object(folder / LOSSES, "recipe"), recipe.fixed_keys()
    if changes := differences(with_defaults(saved["recipe"], now), now):
        raise InputError(f"{folder} holds a model of another recipe: {'; '.join(changes)}; remove the folder")
    load_model(model, folder / WEIGHTS)
    model.eval()
    return [(step, loss) for step, loss in saved["losses"]]


def seconds_of_fit(folder: Path) -> float:
    """Return the CPU seconds that the training in this folder took."""
    return read_json_object(folder / LOSSES)["cpu_seconds"]


def train_lstm(recipe: Recipe) -> tuple[RnnWithAttention, Prepared]:
    """Train an LSTM of the same size as the recipe's model, on the recipe's batches and with its dropout.

    Loads the LSTM instead if recipe.output_dir holds a finished one.
    """
    prepared = prepare_recipe(recipe)
    parameters, device = prepared.model.num_parameters(), prepared.accelerator.device
    torch.manual_seed(recipe.seed)
    model = rnn_of_size(parameters, len(prepared.text.tokenizer), "lstm", prepared.config.dropout).to(device)

    def rate(step: int) -> float:  # constant, then linear decay to 0 in the second half
        return LEARNING_RATE * linear_decay(step, prepared.total_steps, 0.5)

    fit(model, model, prepared, rate, largest_gradient=LARGEST_GRADIENT)
    return model, prepared
