"""Estimate the cost of a recipe: parameters, FLOPs, memory, steps and time."""

import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch

from vaswani_transformer import VaswaniTransformerConfig
from vaswani_transformer.modeling_vaswani_transformer import target_vocab_size

from . import machine
from .batches import batch_by_length
from .corpus import Corpus, load_corpus
from .cost import count_parameters, training_flops, training_memory
from .loss import TrainingLoss
from .metrics import peak_flop_rate, time_calls
from .model import check_model_fields, make_model, model_config
from .parallel_text import open_training_and_validation
from .recipe import BatchSettings, Recipe, Settings
from .recipe_options import say_once
from .report import SHARES
from .schedule import total_steps
from .tokenizer import load_tokenizers, sizes_and_ids


def measure(
    settings: Settings, batches: BatchSettings, config: VaswaniTransformerConfig, seconds: float
) -> tuple[float, str, float]:
    """Return source + target tokens per second, and the name of the share and the FLOP/s of `peak_flop_rate`.

    Measured on micro-batches of the recipe's size with sentences of 25 random tokens.
    """
    device = machine.this_device()
    precision = machine.choose_precision(settings.hardware.mixed_precision, {}, say_once)
    machine.check_precision(precision, device)
    model, _ = make_model(settings.model, settings.hardware, config, device, settings.run.seed, mean_length=25)
    cast(torch.nn.Module, model).to(device)
    module = TrainingLoss(model, settings.optimizer.label_smoothing).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, fused=device.type in ("cpu", "cuda"))
    rows = max(1, batches.tokens_per_micro_batch // 50)
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

    took = fmean(time_calls(step, device, seconds))
    return 2 * rows * 25 / took, *peak_flop_rate(device, dtype or torch.float32, min(seconds / 4, 2))


def read_corpus(settings: Settings) -> tuple[Corpus | None, VaswaniTransformerConfig]:
    """Return the training corpus, None if it is on the Hub, and the model's config, which is checked first.

    A corpus is kept if the recipe names a `cache`; a run with the same tokenizer then finds it there.
    """
    text, tokenizer_settings, weights = settings.text, settings.tokenizer, settings.model.initial_weights
    on_hub = text.dataset is not None and not Path(text.dataset).is_dir()
    if on_hub and tokenizer_settings.tokenizer is None and weights is None:
        return None, model_config(settings.model, tokenizer_settings.vocab_size)
    with tempfile.TemporaryDirectory() as name:
        folder, texts = Path(name), [] if on_hub else open_training_and_validation(text)[0]
        tokenizer, target_tokenizer = load_tokenizers(tokenizer_settings, weights, folder, texts, lambda _: None)
        config = model_config(settings.model, *sizes_and_ids(tokenizer, target_tokenizer))
        if on_hub:
            return None, config
        cache = Path(text.cache) if text.cache else folder
        return load_corpus(texts, tokenizer, text, cache, lambda _: None, target_tokenizer), config


def count_steps(settings: Settings, batches: BatchSettings, corpus: Corpus | None) -> dict[str, Any]:
    """Return the numbers of pairs and steps and the share of padding; None if they are unknown without the text."""
    limits = settings.limits
    if corpus is None:
        steps = limits.max_steps if limits.max_epochs is None else None
        return {"pairs": None, "steps_per_epoch": None, "padding": None, "steps": steps}
    size, count = batches.tokens_per_micro_batch, batches.max_micro_batches
    batching = batch_by_length(corpus.source_lengths, corpus.target_lengths, size, count)
    return {
        "pairs": len(corpus),
        "steps_per_epoch": batching.steps_per_epoch,
        "padding": batching.padding(),
        "steps": total_steps(limits, batching.steps_per_epoch),
    }


def estimate(recipe: Recipe, seconds: float) -> dict[str, Any]:
    """Return the estimates by name. A dataset on the Hub is not downloaded.

    seconds: how long to measure the speed; 0: not at all
    """
    settings = recipe.settings()
    check_model_fields(settings.model)
    corpus, config = read_corpus(settings)
    device = machine.this_device()
    micro_batches = machine.choose_micro_batches(settings.batches, config, device, 1, {})
    batches = settings.batches.model_copy(update={"micro_batches": micro_batches})
    result = count_steps(settings, batches, corpus)
    steps, padding = result["steps"], result["padding"] or 0.0
    source, target = (25.0, 25.0) if corpus is None else corpus.mean_lengths  # 25: the paper's text
    tokens = batches.tokens_per_step * (1 - padding)
    share = source / (source + target)
    flops = training_flops(config, tokens * share, tokens * (1 - share), source, target)
    others = ("max_hours", "max_cpu_seconds", "max_tokens", "patience")
    result |= {
        "limits": {name: value for name in others if (value := getattr(settings.limits, name)) is not None},
        "parameters": count_parameters(config).total,
        "vocabulary": config.vocab_size,
        "flop_per_step": flops,
        "flop": flops * steps if steps else None,
        "micro_batches": batches.max_micro_batches,
        "gradient_checkpointing": settings.hardware.gradient_checkpointing,
        "memory_bytes": training_memory(config, batches.tokens_per_micro_batch, device.type),
    }
    if seconds:
        speed, share_name, peak = measure(settings, batches, config, seconds)
        rate = speed / tokens * flops
        result |= {
            "tokens_per_second": speed,
            "flop_per_second": rate,
            "peak_flop_per_second": peak,
            share_name: rate / peak,
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
    if estimate["limits"]:
        limits = ", ".join(f"{name} {value:,}" for name, value in estimate["limits"].items())
        rows["limits"] = f"{limits}: not counted here, although the run may end there"
    number = estimate["micro_batches"]
    rows["memory"] = f"about {estimate['memory_bytes'] / 2**30:.1f} GiB per process, with "
    rows["memory"] += f"{number} micro-batch{'es' if number > 1 else ''} per step"
    rows["memory"] += "; gradient_checkpointing needs less" if estimate["gradient_checkpointing"] else ""
    if "tokens_per_second" in estimate:
        speed, rate = estimate["tokens_per_second"], estimate["flop_per_second"] / 1e9
        rows["speed"] = f"{speed:,.0f} source + target tokens/s, {rate:,.0f} GFLOP/s"
        peak = estimate["peak_flop_per_second"] / 1e9
        for name, share in SHARES.items():
            if name in estimate:
                rows["speed"] += f", {estimate[name]:.0%} {share} ({peak:,.0f} GFLOP/s)"
        if estimate["hours"] is not None:
            rows["this recipe"] = f"{estimate['hours']:,.2f} hours on this machine, one process"
    return "\n".join(f"{name:<18}{value}" for name, value in rows.items())
