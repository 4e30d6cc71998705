"""Estimate the cost of a recipe: parameters, FLOPs, memory, steps and time."""

import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch

from vaswani_transformer import VaswaniTransformerConfig
from vaswani_transformer.modeling_vaswani_transformer import target_vocab_size

from . import machine
from .batches import plan_batches
from .corpus import Corpus, load_corpus
from .cost import count_parameters, matmul_flop_rate, mfu, seconds_of_calls, training_flops, training_memory
from .loss import TrainingLoss
from .model import check_model_fields, make_model, model_config
from .parallel_text import train_and_validation_texts
from .recipe import Recipe
from .schedule import total_steps
from .tokenizer import load_tokenizers, sizes_and_ids


def measure(recipe: Recipe, config: VaswaniTransformerConfig, seconds: float) -> tuple[float, float]:
    """Return (source + target tokens per second, matrix-product FLOP/s) of this machine.

    Measured on micro-batches of the recipe's size with sentences of 25 random tokens.
    """
    device = machine.this_device()
    precision = machine.choose_precision(recipe.mixed_precision, {})
    machine.check_precision(precision, device)
    model, _ = make_model(recipe, config, device, mean_length=25)
    cast(torch.nn.Module, model).to(device)
    module = TrainingLoss(model, recipe.label_smoothing, recipe.label_smoothing_spread).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, fused=device.type in ("cpu", "cuda"))
    rows = max(1, recipe.tokens_per_micro_batch // 50)
    vocabulary = min(config.vocab_size, target_vocab_size(config))
    ids = torch.randint(4, vocabulary, (rows, 25), device=device)
    positions = torch.arange(rows * 25, device=device)
    dtype = machine.autocast_dtype(precision)

    def step() -> None:
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            loss, _ = module(ids, None, ids, positions, ids.flatten())
        (loss / len(positions)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    took = fmean(seconds_of_calls(step, device, seconds))
    return 2 * rows * 25 / took, matmul_flop_rate(device, dtype or torch.float32, min(seconds / 4, 2))


def read_corpus(recipe: Recipe) -> tuple[Corpus | None, Any]:
    """Return the training corpus, None if it is on the Hub, and the arguments of `model_config` for its tokenizers."""
    if recipe.dataset is not None and not Path(recipe.dataset).is_dir():
        return None, (recipe.vocab_size,)
    with tempfile.TemporaryDirectory() as name:
        folder, texts = Path(name), train_and_validation_texts(recipe).train
        tokenizer, target_tokenizer = load_tokenizers(recipe, folder, texts, lambda _: None)
        corpus = load_corpus(texts, tokenizer, recipe, folder, lambda _: None, target_tokenizer)
    return corpus, sizes_and_ids(tokenizer, target_tokenizer)


def count_steps(recipe: Recipe, corpus: Corpus | None) -> dict[str, Any]:
    """Return the numbers of pairs and steps and the share of padding; None if they are unknown without the text."""
    if corpus is None:
        steps = recipe.max_steps if recipe.max_epochs is None else None
        return {"pairs": None, "steps_per_epoch": None, "padding": None, "steps": steps}
    size, count = recipe.tokens_per_micro_batch, recipe.max_micro_batches
    plan = plan_batches(corpus.source_lengths, corpus.target_lengths, size, count)
    steps = total_steps(recipe, plan)
    return {"pairs": len(corpus), "steps_per_epoch": plan.steps_per_epoch, "padding": plan.padding(), "steps": steps}


def estimate(recipe: Recipe, seconds: float) -> dict[str, Any]:
    """Return the estimates by name. A dataset on the Hub is not downloaded."""
    check_model_fields(recipe)
    corpus, sizes = read_corpus(recipe)
    config = model_config(recipe, *sizes)
    device = machine.this_device()
    micro_batches = machine.choose_micro_batches(recipe, config, device, 1, {})
    recipe = recipe.model_copy(update={"micro_batches": micro_batches})
    result = count_steps(recipe, corpus)
    steps, padding = result["steps"], result["padding"] or 0.0
    source, target = (25.0, 25.0) if corpus is None else corpus.mean_lengths  # 25: the paper's text
    tokens = recipe.tokens_per_step * (1 - padding)
    share = source / (source + target)
    flops = training_flops(config, tokens * share, tokens * (1 - share), source, target)
    result |= {
        "parameters": count_parameters(config).total,
        "vocabulary": sizes[0],
        "flop_per_step": flops,
        "flop": flops * steps if steps else None,
        "memory_bytes": training_memory(config, recipe.tokens_per_micro_batch, device.type),
    }
    if seconds:
        speed, peak = measure(recipe, config, seconds)
        rate = speed / tokens * flops
        result |= {
            "tokens_per_second": speed,
            "flop_per_second": rate,
            "matmul_flop_per_second": peak,
            "mfu": mfu(rate, peak),
            "hours": steps * tokens / speed / 3600 if steps else None,
        }
    return result


def format_estimate(estimate: dict[str, Any]) -> str:
    """Format the estimate as text."""
    rows = {
        "parameters": f"{estimate['parameters']:,} (vocabulary {estimate['vocabulary']:,})",
        "corpus": "on the Hub, not downloaded: steps per epoch unknown",
        "FLOP per step": f"{estimate['flop_per_step']:.3g}",
    }
    if estimate["pairs"] is not None:
        rows["corpus"] = f"{estimate['pairs']:,} pairs, {estimate['steps_per_epoch']:,} steps per epoch"
        rows["corpus"] += f", {estimate['padding']:.1%} padding"
    if estimate["steps"]:
        rows["steps"] = f"{estimate['steps']:,}, {estimate['flop']:.3g} FLOP in total"
    rows["memory"] = f"about {estimate['memory_bytes'] / 2**30:.1f} GiB per process"
    if "tokens_per_second" in estimate:
        speed, rate = estimate["tokens_per_second"], estimate["flop_per_second"] / 1e9
        rows["speed"] = f"{speed:,.0f} source + target tokens/s, {rate:,.0f} GFLOP/s"
        if estimate["mfu"]:
            peak = estimate["matmul_flop_per_second"] / 1e9
            rows["speed"] += f", {estimate['mfu']:.0%} of the matrix products' {peak:,.0f}"
        if estimate["hours"] is not None:
            rows["this recipe"] = f"{estimate['hours']:,.2f} hours on this machine, one process"
    return "\n".join(f"{name:<18}{value}" for name, value in rows.items())
