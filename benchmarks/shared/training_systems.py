"""The systems that `train_throughput.py` compares, each in a process of its own."""

import multiprocessing
import resource
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaswani_transformer.errors import InputError

from .harness import clock
from .training_setup import load_recipe, marian_like, stepper_of, tokenised


@dataclass(frozen=True)
class Job:
    """The settings that all systems of a comparison share."""

    keys: dict[str, Any]  # of the recipe
    output: str  # folder with text, tokenizer and corpus
    threads: int
    device: str
    clock: str

    def recipe(self, **keys: Any) -> Any:
        return load_recipe(self.keys | keys)


@dataclass(frozen=True)
class Turn:
    tokens: int  # source + target, without padding
    positions: int  # with padding
    seconds: float
    megabytes: int  # the most that the process has held

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


class TrainingProcess:
    """A system in its own process."""

    def __init__(self, name: str, job: Job):
        self.name = name
        kind, *options = name.split("+")
        if kind not in SYSTEMS:
            raise InputError(f"--system {name!r}: {kind!r} is not one of {', '.join(SYSTEMS)}")
        unknown = {option for option in options if not (kind == "trainer" and option.isdigit())} - SYSTEMS[kind][1]
        if unknown:
            raise InputError(f"--system {name!r}: {kind} has no option {', '.join(sorted(unknown))}")
        float32 = "medium" if kind == "ours" and "highest" not in options else "highest"
        self.precision = "bf16" if "bf16" in options else float32  # of the matrix products whose rate is its peak
        self.process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        self.parameters: int = self.process.submit(build, kind, options, job).result()

    def run(self, steps: int) -> Turn:
        return self.process.submit(run_steps, steps).result()


# In the process of a system: its function that takes steps, as returned by one of the functions in SYSTEMS.
RUN: list[Callable] = []


def build(kind: str, options: list[str], job: Job) -> int:
    """Build a system in its process; return the number of its parameters."""
    import torch

    torch.set_num_threads(job.threads)
    torch.manual_seed(0)
    model, run = SYSTEMS[kind][0](options, job)
    RUN.append(run)
    return sum(parameter.numel() for parameter in model.parameters())


def run_steps(steps: int) -> Turn:
    tokens, positions, seconds = RUN[0](steps)
    return Turn(tokens, positions, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)


def ours(options: list[str], job: Job) -> tuple[Any, Callable]:
    """Prepare the training program up to its first step."""
    output, now = Path(tempfile.mkdtemp(dir=job.output)), clock(job.clock, job.device)
    keys = {"output_dir": str(output), "mixed_precision": "bf16" if "bf16" in options else "no"}
    keys["compile"] = "no"  # compiled below if requested
    keys |= {"matmul_precision": "highest"} if "highest" in options else {}
    if attention := {"sdpa", "eager"} & set(options):
        keys["attention"] = attention.pop()
    stepper = stepper_of(job.recipe(**keys), output)
    prepared, progress = stepper.prepared, stepper.progress
    if "compile" in options:
        prepared.module.compile(dynamic=True)

    def run(steps: int) -> tuple[int, int, float]:
        before, positions, begun = progress.tokens, 0, now()
        for _ in range(steps):
            for pairs in prepared.order.step(progress.step):
                sides = (prepared.corpus.source_lengths[pairs], prepared.corpus.target_lengths[pairs])
                positions += sum(int(side.max()) * len(pairs) for side in sides)
            stepper.step()
        return progress.tokens - before, positions, now() - begun

    return prepared.model, run


def marian_model(job: Job, options: list[str]) -> Any:
    """Return transformers' Marian with the sizes of the recipe."""
    from training.model import model_config

    config = model_config(job.recipe(), job.keys["vocab_size"]).to_dict()
    model = marian_like(config, scale_embedding=True, max_position_embeddings=1024, use_cache=False)
    model.set_attn_implementation("eager" if "eager" in options else "sdpa")
    return model


def marian(options: list[str], job: Job) -> tuple[Any, Callable]:
    """Prepare a plain training loop on our batches, with torch's cross-entropy and Adam."""
    import numpy as np
    import torch
    import torch.nn.functional as F

    from training.batches import Order, plan_batches

    recipe = job.recipe()
    _, corpus = tokenised(recipe, Path(job.output))
    order = Order(plan_batches(corpus.source_lengths, corpus.target_lengths, recipe.tokens_per_step), recipe.seed)
    device, now = torch.device(job.device), clock(job.clock, job.device)
    model = marian_model(job, options).to(device).train()
    if "compile" in options:
        model.compile(dynamic=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    done = 0

    def run(steps: int) -> tuple[int, int, float]:
        nonlocal done
        tokens, positions, begun = 0, 0, now()
        for pairs in (pairs for step in range(done, done + steps) for pairs in order.step(step)):
            source, source_real = corpus.sources(pairs, 1)
            target, target_real = corpus.targets(pairs, 1)
            inputs = np.concatenate((np.zeros_like(target[:, :1]), target[:, :-1]), axis=1)
            arrays = (source, source_real.astype(np.int64), inputs, target)
            ids, mask, decoder_ids, labels = (torch.from_numpy(array).to(device) for array in arrays)
            with torch.autocast(device.type, torch.bfloat16) if "bf16" in options else nullcontext():
                logits = model(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids).logits
                loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=1, label_smoothing=0.1)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            tokens += int(source_real.sum() + target_real.sum())
            positions += source.size + target.size
        done += steps
        return tokens, positions, now() - begun

    return model, run


def trainer(options: list[str], job: Job) -> tuple[Any, Callable]:
    """Prepare Seq2SeqTrainer, which makes its own batches of the same corpus with DataCollatorForSeq2Seq."""
    from transformers import DataCollatorForSeq2Seq, PrinterCallback, Seq2SeqTrainer, TrainerCallback

    tokenizer, corpus = tokenised(job.recipe(), Path(job.output))
    model = marian_model(job, options)
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    now = clock(job.clock, job.device)
    emitted: list[tuple[int, int]] = []  # tokens and positions of each batch
    marks: list[tuple[float, int]] = []  # time and number of emitted batches at the beginning of each step

    def collate(batch: list[dict[str, Any]]) -> Any:
        tensors = collator(batch)
        real = int(tensors["attention_mask"].sum() + (tensors["labels"] >= 0).sum())
        emitted.append((real, tensors["input_ids"].numel() + tensors["labels"].numel()))
        return tensors

    class Clock(TrainerCallback):
        """Mark the beginning of each step: what train() does around its steps does not count."""

        def on_step_begin(self, *arguments: Any, **keywords: Any) -> None:
            marks.append((now(), len(emitted)))

    examples: Any = [
        {"input_ids": corpus.sources([pair], 1)[0][0].tolist(), "labels": corpus.targets([pair], 1)[0][0].tolist()}
        for pair in range(len(corpus))
    ]
    arguments = trainer_arguments(options, job, corpus)
    peer = Seq2SeqTrainer(
        model=model, args=arguments, train_dataset=examples, data_collator=collate, callbacks=[Clock()]
    )
    peer.remove_callback(PrinterCallback)

    def run(steps: int) -> tuple[int, int, float]:
        marks.clear()
        peer.args.max_steps = steps + 2  # the first step includes what train() does before it
        peer.train()
        (begun, first), (ended, last) = marks[1], marks[1 + steps]
        tokens, positions = (sum(column) for column in zip(*emitted[first - 1 : last - 1], strict=True))
        return tokens, positions, ended - begun

    return model, run


def trainer_arguments(options: list[str], job: Job, corpus: Any) -> Any:
    """Return settings with batches of a fixed number of sentences; a number among the options says how many."""
    from transformers import Seq2SeqTrainingArguments

    mean = float(corpus.source_lengths.mean() + corpus.target_lengths.mean())
    numbers = [int(option) for option in options if option.isdigit()]
    return Seq2SeqTrainingArguments(
        output_dir=tempfile.mkdtemp(dir=job.output),
        per_device_train_batch_size=numbers[0] if numbers else max(1, round(job.keys["tokens_per_step"] / mean)),
        label_smoothing_factor=0.1,
        use_cpu=job.device == "cpu",
        bf16="bf16" in options,
        save_strategy="no",
        report_to=[],
        logging_strategy="no",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=job.device != "cpu",
        train_sampling_strategy="group_by_length" if "group" in options else "random",
    )


# By name: the function that prepares a system, and its options. It returns the model and a function that takes a number
# of steps and returns their tokens, positions and seconds.
SYSTEMS: dict[str, tuple[Callable[[list[str], Job], tuple[Any, Callable]], set[str]]] = {
    "ours": (ours, {"bf16", "highest", "compile", "sdpa", "eager"}),
    "marian": (marian, {"bf16", "eager", "sdpa", "compile"}),
    "trainer": (trainer, {"bf16", "eager", "sdpa", "group"}),
}
