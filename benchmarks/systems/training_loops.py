"""The systems that train_throughput.py compares, each in a process of its own: ours, Marian and Seq2SeqTrainer.

A system is a function of its options and the settings. It returns its model and the function that takes its steps.
"""

import multiprocessing
import resource
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
import transformers  # which imports its Trainer on first use: `peak_megabytes` of the other systems is without it

from training.batches import RunBatches, batch_by_length
from training.corpus import Corpora, read_corpora
from training.machine import has_bfloat16
from training.model import model_config
from training.processes import make_accelerator
from training.recipe import Recipe
from training.report import Reporter
from training.stopping import Signals
from training.train import Run
from vaswani_transformer.errors import InputError

from ..harness import clock
from .marian import marian_like


class Steps(NamedTuple):
    tokens: int  # source + target, without padding
    positions: int  # with padding
    seconds: float


TakeSteps = Callable[[int], Steps]  # takes this number of steps


@dataclass(frozen=True)
class Settings:
    """What all systems of a comparison share."""

    recipe: Recipe
    folder: str  # with text, tokenizer and corpus
    threads: int
    device: str
    clock: str

    def corpora(self) -> Corpora:
        """Return the tokenizer and the tokenised text; the first call makes them, the others read them."""
        settings = self.recipe.settings()
        return read_corpora(settings.text, settings.tokenizer, None, Path(self.folder), lambda _: None)


@dataclass(frozen=True)
class Turn:
    """The steps that a system took in one round."""

    steps: Steps
    peak_megabytes: int  # the most memory that the process has held; on a GPU, the most of the GPU's memory

    @property
    def speed(self) -> float:
        return self.steps.tokens / self.steps.seconds


class TrainingProcess:
    """A system in its own process."""

    def __init__(self, name: str, settings: Settings):
        """Start the system. name: a key of SYSTEMS and options, joined with "+". Raises InputError"""
        self.name = name
        kind, *options = name.split("+")
        if kind not in SYSTEMS:
            raise InputError(f"--system {name!r}: {kind!r} is not one of {', '.join(SYSTEMS)}")
        if unknown := set(options) - OPTIONS[kind]:
            raise InputError(f"--system {name!r}: {kind} has no option {', '.join(sorted(unknown))}")
        if "bf16" in options and not has_bfloat16():
            raise InputError(f"--system {name!r}: this hardware would emulate bf16; leave it out")
        float32 = "medium" if kind == "ours" and "highest" not in options else "highest"
        self.precision = "bf16" if "bf16" in options else float32  # of the matrix products whose rate is its peak
        self.process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self.parameters: int = self.process.submit(build, kind, options, settings).result()

    def run(self, steps: int) -> Turn:
        return self.process.submit(run_steps, steps).result()


# A system stays in its process between two calls: `build` sets this, `run_steps` uses it.
take_steps: TakeSteps


def build(kind: str, options: list[str], settings: Settings) -> int:
    """Build a system in its process; return the number of its parameters."""
    global take_steps
    torch.set_num_threads(settings.threads)
    torch.manual_seed(0)
    model, take_steps = SYSTEMS[kind](options, settings)
    return sum(parameter.numel() for parameter in model.parameters())


def run_steps(number: int) -> Turn:
    steps = take_steps(number)
    if torch.cuda.is_initialized():
        return Turn(steps, torch.cuda.max_memory_allocated() >> 20)
    return Turn(steps, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


# ---- the training program ----------------------------------------------------------------------------------------


def ours(options: list[str], settings: Settings) -> tuple[Any, TakeSteps]:
    """Prepare the training program up to its first step."""
    output, now = Path(tempfile.mkdtemp(dir=settings.folder)), clock(settings.clock, settings.device)
    changes = {
        "output_dir": str(output),
        "mixed_precision": "bf16" if "bf16" in options else "no",
        "matmul_precision": "highest" if "highest" in options else "auto",
        "compile": "no",  # compiled below if requested
    }
    recipe = settings.recipe.model_copy(update=changes)
    accelerator = make_accelerator(recipe.mixed_precision, [], output, {})
    program = Run(recipe.settings(), recipe.fixed_keys(), accelerator, Reporter(False), Signals())
    if "compile" in options:
        program.network.module.compile(dynamic=True)

    def run(steps: int) -> Steps:
        progress, corpus = program.progress, program.corpora.training
        before, positions, begun = progress.tokens, 0, now()
        for _ in range(steps):
            for pairs in program.stepper.input.batches.step(progress.step):
                sides = (corpus.source_lengths[pairs], corpus.target_lengths[pairs])
                positions += sum(int(side.max()) * len(pairs) for side in sides)
            program.stepper.step()
        return Steps(progress.tokens - before, positions, now() - begun)

    return program.network.model, run


# ---- transformers' Marian ----------------------------------------------------------------------------------------


def marian_model(settings: Settings) -> Any:
    """Return transformers' Marian with the sizes of the recipe."""
    config = model_config(settings.recipe, settings.recipe.vocab_size).to_dict()
    model = marian_like(config, scale_embedding=True, max_position_embeddings=1024, use_cache=False)
    model.set_attn_implementation("sdpa")
    return model


def marian(options: list[str], settings: Settings) -> tuple[Any, TakeSteps]:
    """Prepare a plain loop, with torch's cross-entropy and Adam, over the batches of `ours`."""
    corpus = settings.corpora().training
    batching = batch_by_length(corpus.source_lengths, corpus.target_lengths, settings.recipe.tokens_per_step)
    run_batches = RunBatches(batching, settings.recipe.seed)
    device, now = torch.device(settings.device), clock(settings.clock, settings.device)
    model = marian_model(settings).to(device).train()
    pad, start = model.config.pad_token_id, model.config.decoder_start_token_id
    if "compile" in options:
        model.compile(dynamic=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    done = 0

    def run(steps: int) -> Steps:
        nonlocal done
        tokens, positions, begun = 0, 0, now()
        for pairs in (pairs for step in range(done, done + steps) for pairs in run_batches.step(step)):
            source, source_real = corpus.sources(pairs, pad)
            target, target_real = corpus.targets(pairs, pad)
            inputs = np.concatenate((np.full_like(target[:, :1], start), target[:, :-1]), axis=1)
            arrays = (source, source_real.astype(np.int64), inputs, target)
            ids, mask, decoder_ids, labels = (torch.from_numpy(array).to(device) for array in arrays)
            with torch.autocast(device.type, torch.bfloat16) if "bf16" in options else nullcontext():
                logits = model(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids).logits
                logits, labels = logits.flatten(0, 1), labels.flatten()
                loss = F.cross_entropy(logits, labels, ignore_index=pad, label_smoothing=0.1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            tokens += int(source_real.sum() + target_real.sum())
            positions += source.size + target.size
        done += steps
        return Steps(tokens, positions, now() - begun)

    return model, run


def trainer(options: list[str], settings: Settings) -> tuple[Any, TakeSteps]:
    """Prepare Seq2SeqTrainer, which makes its own batches of the same corpus with DataCollatorForSeq2Seq."""
    corpora = settings.corpora()
    corpus = corpora.training
    model, now = marian_model(settings), clock(settings.clock, settings.device)
    started: list[tuple[float, Any]] = []  # the time at the beginning of each step, and its batch

    class TimedTrainer(transformers.Seq2SeqTrainer):
        def training_step(self, model: Any, inputs: Any, *arguments: Any, **keywords: Any) -> Any:
            started.append((now(), dict(inputs)))
            return super().training_step(model, inputs, *arguments, **keywords)

    pad = model.config.pad_token_id
    examples: Any = [
        {"input_ids": corpus.sources(pair, pad)[0][0].tolist(), "labels": corpus.targets(pair, pad)[0][0].tolist()}
        for pair in np.arange(len(corpus))[:, None]
    ]
    arguments = transformers.Seq2SeqTrainingArguments(
        output_dir=tempfile.mkdtemp(dir=settings.folder),
        per_device_train_batch_size=max(1, round(settings.recipe.tokens_per_step / sum(corpus.mean_lengths))),
        label_smoothing_factor=0.1,
        use_cpu=settings.device == "cpu",
        bf16="bf16" in options,
        save_strategy="no",
        report_to=[],
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=settings.device != "cpu",
        train_sampling_strategy="group_by_length" if "group" in options else "random",
    )
    collator = transformers.DataCollatorForSeq2Seq(corpora.tokenizer, model=model)
    peer = TimedTrainer(model=model, args=arguments, train_dataset=examples, data_collator=collator)
    peer.remove_callback(transformers.PrinterCallback)

    def run(steps: int) -> Steps:
        started.clear()
        peer.args.max_steps = steps + 2  # the first step includes what train() does before it, the last what follows
        peer.train()
        batches = [batch for _, batch in started[1 : 1 + steps]]
        tokens = sum(int(batch["attention_mask"].sum() + (batch["labels"] >= 0).sum()) for batch in batches)
        positions = sum(batch["input_ids"].numel() + batch["labels"].numel() for batch in batches)
        return Steps(tokens, positions, started[1 + steps][0] - started[1][0])

    return model, run


# By name: the function that prepares a system, and the options that it knows.
SYSTEMS: dict[str, Callable[[list[str], Settings], tuple[Any, TakeSteps]]] = {
    "ours": ours,
    "marian": marian,
    "trainer": trainer,
}
OPTIONS = {"ours": {"bf16", "highest", "compile"}, "marian": {"bf16", "compile"}, "trainer": {"bf16", "group"}}
