"""Estimate what a recipe costs: parameters, FLOPs, memory, steps and time."""

import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import numpy as np
import torch

from vaswani_transformer import VaswaniTransformerConfig
from vaswani_transformer.modeling_vaswani_transformer import target_vocab_size

from . import machine
from .batches import plan_batches
from .corpus import load_corpus
from .cost import count_parameters, product_rate, seconds_of_calls, share_of_peak, training_flops, training_memory
from .loss import TrainingLoss
from .model import (
    check_model_fields,
    load_or_train_tokenizer,
    load_target_tokenizer,
    make_model,
    model_config,
    sizes_and_ids,
)
from .parallel_text import train_and_validation_texts
from .prepare import total_steps
from .recipe import Recipe


def this_device() -> torch.device:
    return torch.device(torch.accelerator.current_accelerator(check_available=True) or "cpu")


def measure(recipe: Recipe, config: VaswaniTransformerConfig, seconds: float) -> tuple[float, float]:
    """Return (source + target tokens per second, matrix-product FLOP/s) of this machine.

    Measured on micro-batches of the recipe's size with sentences of 25 random tokens.
    """
    device = this_device()
    if device.type == "cpu":
        machine.keep_memory()
    machine.choose_matmul_precision(recipe.matmul_precision, device)
    model = make_model(recipe, config, machine.choose_attention(recipe.attention, device, 25))
    cast(torch.nn.Module, model).to(device)
    machine.use_byte_dropout(recipe, model, device)
    module = TrainingLoss(model, recipe.label_smoothing, recipe.label_smoothing_spread).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, fused=device.type in ("cpu", "cuda"))
    rows = max(1, recipe.tokens_per_micro_batch // 50)
    vocabulary = min(config.vocab_size, target_vocab_size(config))
    ids = torch.randint(4, vocabulary, (rows, 25), device=device)
    positions = torch.arange(rows * 25, device=device)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(
        machine.choose_precision(recipe.mixed_precision, {}) or "no"
    )

    def step() -> None:
        with torch.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            loss, _ = module(ids, None, ids, positions, ids.flatten())
        (loss / len(positions)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    took = fmean(seconds_of_calls(step, device, seconds))
    return 2 * rows * 25 / took, product_rate(device, dtype or torch.float32, min(seconds / 4, 2))


def estimate(recipe: Recipe, seconds: float) -> dict[str, Any]:
    """Return the results of a dry run by name. A dataset on the Hub is not downloaded."""
    check_model_fields(recipe)
    corpus, sizes = None, (recipe.vocab_size, None, None)
    if recipe.dataset is None or Path(recipe.dataset).is_dir():
        with tempfile.TemporaryDirectory() as name:
            folder, texts = Path(name), train_and_validation_texts(recipe)[0]
            tokenizer = load_or_train_tokenizer(recipe, folder, texts, lambda _: None)
            target_tokenizer = load_target_tokenizer(recipe, folder)
            corpus = load_corpus(texts, tokenizer, recipe, folder, lambda _: None, target_tokenizer)
            sizes = sizes_and_ids(tokenizer, target_tokenizer)
    config = model_config(recipe, *sizes)
    micro_batches = machine.choose_micro_batches(recipe, config, this_device(), 1, {})
    recipe = recipe.model_copy(update={"micro_batches": micro_batches})
    result: dict[str, Any] = dict.fromkeys(("pairs", "steps_per_epoch", "padding", "steps"))
    source = target = 25.0  # the mean lengths of the paper's text
    if corpus is not None:
        lengths = (corpus.source_lengths, corpus.target_lengths)
        plan = plan_batches(*lengths, recipe.tokens_per_micro_batch, micro_batches)
        source, target = (float(np.mean(side)) for side in lengths)
        result = {
            "pairs": len(corpus),
            "steps_per_epoch": plan.steps_per_epoch,
            "padding": plan.padding(),
            "steps": total_steps(recipe, plan),
        }
    elif recipe.max_epochs is None:
        result["steps"] = recipe.max_steps
    share = source / (source + target)
    tokens = recipe.tokens_per_step * (1 - (result["padding"] or 0.0))
    flops = training_flops(config, tokens * share, tokens * (1 - share), source, target)
    memory = training_memory(config, recipe.tokens_per_micro_batch, "cuda" if torch.cuda.is_available() else "cpu")
    result |= {
        "parameters": count_parameters(config).total,
        "vocabulary": sizes[0],
        "flop_per_step": flops,
        "flop": flops * result["steps"] if result["steps"] else None,
        "memory_bytes": memory,
    }
    if seconds:
        speed, peak = measure(recipe, config, seconds)
        rate = speed / tokens * flops
        result |= {
            "tokens_per_second": speed,
            "flop_per_second": rate,
            "matmul_flop_per_second": peak,
            "mfu": share_of_peak(rate, peak),
            "hours": result["steps"] * tokens / speed / 3600 if result["steps"] else None,
        }
    return result


def format_estimate(plan: dict[str, Any]) -> str:
    """Format the plan as text."""
    rows = {
        "parameters": f"{plan['parameters']:,} (vocabulary {plan['vocabulary']:,})",
        "corpus": "on the Hub, not fetched: steps per epoch unknown",
        "FLOP per step": f"{plan['flop_per_step']:.3g}",
    }
    if plan["pairs"] is not None:
        rows["corpus"] = (
            f"{plan['pairs']:,} pairs, {plan['steps_per_epoch']:,} steps per epoch, {plan['padding']:.1%} padding"
        )
    if plan["steps"]:
        rows["steps"] = f"{plan['steps']:,}, {plan['flop']:.3g} FLOP in all"
    rows["memory"] = f"about {plan['memory_bytes'] / 2**30:.1f} GiB per process"
    if "tokens_per_second" in plan:
        speed, rate = plan["tokens_per_second"], plan["flop_per_second"] / 1e9
        rows["speed"] = f"{speed:,.0f} source + target tokens/s, {rate:,.0f} GFLOP/s"
        if plan["mfu"]:
            rows["speed"] += f", {plan['mfu']:.0%} of the matrix products' {plan['matmul_flop_per_second'] / 1e9:,.0f}"
        if plan["hours"] is not None:
            rows["this recipe"] = f"{plan['hours']:,.2f} hours on this machine, one process"
    return "\n".join(f"{name:<18}{value}" for name, value in rows.items())
