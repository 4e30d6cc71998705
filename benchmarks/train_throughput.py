"""How fast is training? Our loop against the Marian of transformers, in a plain loop and in Seq2SeqTrainer.

    python -m benchmarks.train_throughput data/multi30k --size tiny --system ours --system marian --system trainer

Every system is a process of its own and they take turns, so that whatever else the machine does falls on all of them;
a ratio is taken within a round. `ours` is a step of the training program, from the order of the batches to Adam;
`marian` gets the very same batches; `trainer` makes its own from the same corpus, as its users get them.
"products" is the share of this machine's rate of large products, in the system's precision, that its useful operations
reach: the ratio divided by it is the most that this precision can give here.
Options are joined with "+": bf16 (autocast), highest (our float32 products as torch multiplies by default), compile,
sdpa or eager (the attention), group (the Trainer's group_by_length), N (the Trainer's sentences in a batch; default: as
many as have the same number of tokens). On a machine shared with other work compare CPU seconds: --clock cpu.
"""

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import typer

from vaswani_transformer.errors import InputError, exit_cleanly
from vaswani_transformer.lines import read_lines

from .record import append, command

app = typer.Typer(add_completion=False, rich_markup_mode=None)

# (layers of each stack, d_model, d_ff, heads, entries of the output layer, tokens of the tokenizer, pairs joined into
# one, source + target tokens a step): the sizes of PEERS, whose base model gets sentences of the paper's length.
SIZES = {
    "tiny": (4, 128, 256, 4, 8000, 8000, 1, 8192),
    "base": (6, 512, 2048, 8, 37000, 8000, 2, 3000),
}
COLUMNS = (
    "date", "commit", "command", "hardware", "torch", "transformers", "size", "tokens_per_step", "threads", "clock",
    "system", "parameters", "tokens_per_second", "ratio", "ratio_min", "ratio_max", "share", "padding", "megabytes",
    "gflops_highest", "gflops_medium", "gflops_bf16",
)  # fmt: skip
DEFAULT = ["marian", "ours", "ours+highest", "marian+bf16", "ours+bf16", "trainer", "trainer+group"]


@dataclass(frozen=True)
class Job:
    """What all systems of a comparison share."""

    flags: dict[str, str]  # of the recipe
    output: str
    threads: int
    device: str
    dropout: float


@dataclass
class Turn:
    """What a system has done in its turn. tokens: source + target, real ones; positions: with padding."""

    tokens: int
    positions: int
    cpu_seconds: float
    wall_seconds: float
    megabytes: int


@dataclass
class System:
    name: str
    process: Any
    pipe: Connection
    parameters: int = 0
    turns: list[Turn] = field(default_factory=list)

    def ask(self, steps: int) -> Turn:
        self.pipe.send(steps)
        answer = self.pipe.recv()
        if isinstance(answer, str):
            raise InputError(f"--system {self.name} failed: {answer}")
        return answer


@app.command(help="Compare the speed of training.")
def main_command(
    data: Annotated[Path, typer.Argument(help="A folder with train.en and train.de (.gz too), such as Multi30k's.")],
    size: Annotated[str, typer.Option(help="tiny or base.")] = "tiny",
    system: Annotated[list[str] | None, typer.Option(help="The first is the baseline; may be given again.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Source + target tokens a step, padded.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Tokens of the tokenizer, and of the output layer.")] = None,
    dropout: float = 0.1,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Steps of a turn.")] = 4,
    warmup: Annotated[int, typer.Option(min=1)] = 3,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    clock: Annotated[str, typer.Option(help="cpu (process time) or wall; wall on a GPU.")] = "cpu",
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    record: Annotated[Path | None, typer.Option(help="Append the result to this CSV file.")] = None,
) -> None:
    if size not in SIZES:
        raise InputError(f"--size {size!r} is none of {', '.join(SIZES)}")
    if clock not in ("cpu", "wall") or (clock == "cpu" and device != "cpu"):
        raise InputError(f"--clock {clock!r}: must be cpu or wall, and wall on a GPU")
    os.environ |= {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    # All systems on the same device: none finds a GPU that was not asked for, or more than one.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0") if device != "cpu" else ""
    with tempfile.TemporaryDirectory() as folder:
        flags = recipe_flags(size, data, Path(folder), tokens, vocab_size, dropout)
        job = Job(flags, folder, threads, device, dropout)
        systems = []
        try:
            for name in system or DEFAULT:
                systems.append(start(name, job))
                systems[-1].ask(warmup)
                typer.echo(f"{name}: {systems[-1].parameters:,} parameters", err=True)
            products: list[dict[str, float]] = []
            for number in range(rounds):
                products.append(product_rates(device, clock))
                for each in systems if number % 2 == 0 else systems[::-1]:
                    each.turns.append(each.ask(steps))
        finally:
            for each in systems:
                each.process.kill()
        operations = operations_per_token(job)
    rates = {name: round(statistics.median(turn[name] for turn in products)) for name in products[0]}
    rows = table(systems, clock)
    for row in rows:
        row["share"] = round(row["tokens_per_second"] * operations / 1e9 / rates[products_of(row["system"])], 3)
    typer.echo(f"{size}, {flags['tokens_per_step']} tokens a step, {threads} thread(s), {clock} clock, {rounds} rounds")
    typer.echo(f"{'system':<24}{'tokens/s':>10}{'ratio':>7}  (min-max)   {'products':>8}{'padding':>8}{'MB':>7}")
    for row in rows:
        typer.echo(
            f"{row['system']:<24}{row['tokens_per_second']:>10}{row['ratio']:>7.2f}  "
            f"({row['ratio_min']:.2f}-{row['ratio_max']:.2f}) {row['share']:>8.0%}{row['padding']:>8.1%}"
            f"{row['megabytes']:>7}"
        )
    typer.echo(
        "products of this machine between the turns, GFLOP/s: " + ", ".join(f"{k} {v}" for k, v in rates.items())
    )
    if record is not None:
        rates = {f"gflops_{name}": rate for name, rate in rates.items()}
        about = rates | {"size": size, "tokens_per_step": flags["tokens_per_step"], "threads": threads, "clock": clock}
        write_rows(record, [about | row for row in rows])


def table(systems: list[System], clock: str) -> list[dict[str, Any]]:
    """A row a system; ratios are those of each round to the first system."""

    def speed(turn: Turn) -> float:
        return turn.tokens / (turn.cpu_seconds if clock == "cpu" else turn.wall_seconds)

    rows = []
    for each in systems:
        ratios = [speed(a) / speed(b) for a, b in zip(each.turns, systems[0].turns, strict=True)]
        real, positions = sum(t.tokens for t in each.turns), sum(t.positions for t in each.turns)
        rows.append(
            {
                "system": each.name,
                "parameters": each.parameters,
                "tokens_per_second": round(statistics.median(map(speed, each.turns))),
                "ratio": round(statistics.median(ratios), 3),
                "ratio_min": round(min(ratios), 3),
                "ratio_max": round(max(ratios), 3),
                "padding": round(1 - real / positions, 4),
                "megabytes": max(turn.megabytes for turn in each.turns),
            }
        )
    return rows


def operations_per_token(job: Job) -> float:
    """Floating-point operations of a step for each source or target token, the same for all systems."""
    from training.cost import training_flops
    from training.model import model_config
    from training.recipe import load_recipe

    corpus, _ = corpus_and_order(job)
    sources, targets = corpus.source_lengths, corpus.target_lengths
    config = model_config(load_recipe(None, job.flags), int(job.flags["vocab_size"]))
    total = training_flops(config, int(sources.sum()), int(targets.sum()), sources.mean(), targets.mean())
    return total / int(sources.sum() + targets.sum())


def products_of(system: str) -> str:
    """Which of the product rates is the ceiling of a system."""
    kind, *options = system.split("+")
    if "bf16" in options:
        return "bf16"
    return "medium" if kind == "ours" and "highest" not in options else "highest"


def product_rates(device: str, clock: str) -> dict[str, float]:
    """GFLOP/s of a product of two large matrices: what no training step can exceed.

    float32 as torch multiplies by default and with "medium", and bfloat16. "medium" is what our float32 steps use: the
    ratio of the first two is the most that float32 training can gain on this machine, at this moment, by its products.
    """
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    now = time.process_time if clock == "cpu" else time.perf_counter
    rates, size = {}, 1024 if device == "cpu" else 8192
    for name, precision, dtype in (
        ("highest", "highest", torch.float32),
        ("medium", "medium", torch.float32),
        ("bf16", "highest", torch.bfloat16),
    ):
        torch.set_float32_matmul_precision(precision)
        left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
        _ = left @ right
        if device != "cpu":
            torch.accelerator.synchronize()
        begun = now()
        for _ in range(4):
            left = left @ right
        if device != "cpu":
            torch.accelerator.synchronize()
        rates[name] = 4 * 2 * size**3 / (now() - begun) / 1e9
    return rates


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows at the end of a results file, each with where and how it came about."""
    import torch
    import transformers

    from training.record import commit, hardware

    about = {
        "date": date.today().isoformat(),
        "commit": commit(),
        "command": command("train_throughput"),
        "hardware": hardware(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    append(path, COLUMNS, [about | row for row in rows])


# ---- the corpus and the recipe -----------------------------------------------------------------------------------


def recipe_flags(
    size: str, data: Path, folder: Path, tokens: int | None, vocab_size: int | None, dropout: float
) -> dict[str, str]:
    """The recipe of a size as flags; its text and tokenizer are made in `folder`, once for all systems."""
    from training.corpus import load_corpus, parallel_texts
    from training.model import load_or_train_tokenizer
    from training.recipe import load_recipe

    layers, d_model, d_ff, heads, outputs, entries, joined, budget = SIZES[size]
    for language in ("en", "de"):
        name = f"train.{language}"
        lines = list(read_lines(data / name if (data / name).is_file() else data / f"{name}.gz"))
        together = [" ".join(lines[i : i + joined]) for i in range(0, len(lines) - joined + 1, joined)]
        (folder / name).write_text("".join(f"{line}\n" for line in together), encoding="utf-8")
    flags = {
        "data": str(folder),
        "validation": "[]",
        "cache": str(folder / "cache"),
        "tokenizer": str(folder / "tokenizer"),
        "vocab_size": str(vocab_size or entries),
        "model.vocab_size": str(vocab_size or outputs),
        "model.d_model": str(d_model),
        "model.dropout": str(dropout),
        "tokens_per_step": str(tokens or budget),
        "micro_batches": "1",
        "max_length": "256",
    }
    for stack in ("encoder", "decoder"):
        flags |= {f"model.{stack}_layers": str(layers), f"model.{stack}_attention_heads": str(heads)}
        flags |= {f"model.{stack}_ffn_dim": str(d_ff)}
    recipe = load_recipe(None, {key: value for key, value in flags.items() if key != "tokenizer"})
    texts = parallel_texts(recipe, recipe.train)
    (folder / "tokenizer").mkdir()
    tokenizer = load_or_train_tokenizer(recipe, folder / "tokenizer", texts, lambda _: None)
    load_corpus(texts, tokenizer, recipe, folder / "cache", lambda _: None)
    return flags


# ---- one process a system ----------------------------------------------------------------------------------------


def start(name: str, job: Job) -> System:
    kind, *options = name.split("+")
    if kind not in KINDS:
        raise InputError(f"--system {name!r}: {kind!r} is none of {', '.join(KINDS)}")
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(kind, options, job, theirs), daemon=True)
    process.start()
    theirs.close()
    system = System(name, process, ours)
    answer = ours.recv()
    if isinstance(answer, str):
        raise InputError(f"--system {name} cannot start: {answer}")
    system.parameters = answer
    return system


def serve(kind: str, options: list[str], job: Job, pipe: Connection) -> None:
    """Build a system, then work as many steps as asked for, until killed."""
    import resource

    try:
        import torch

        torch.set_num_threads(job.threads)
        torch.manual_seed(0)
        parameters, run = KINDS[kind](options, job)
        pipe.send(parameters)
        while True:
            steps = pipe.recv()
            cpu, wall = time.process_time(), time.perf_counter()
            tokens, positions, *times = run(steps)
            if job.device != "cpu":
                torch.accelerator.synchronize()
            cpu, wall = times or (time.process_time() - cpu, time.perf_counter() - wall)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            pipe.send(Turn(tokens, positions, cpu, wall, memory))
    except EOFError:
        return
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
        raise


def corpus_and_order(job: Job) -> tuple[Any, Any]:
    """The corpus, and the batches that our loop makes of it."""
    from transformers import AutoTokenizer

    from training.batches import Order, plan_batches
    from training.corpus import load_corpus, parallel_texts
    from training.recipe import load_recipe

    recipe = load_recipe(None, job.flags)
    tokenizer = AutoTokenizer.from_pretrained(job.flags["tokenizer"])
    texts = parallel_texts(recipe, recipe.train)
    corpus = load_corpus(texts, tokenizer, recipe, Path(job.flags["cache"]), lambda _: None)
    plan = plan_batches(corpus.source_lengths, corpus.target_lengths, recipe.tokens_per_step)
    return corpus, Order(plan, recipe.seed)


def our_run(options: list[str], job: Job) -> Any:
    """The training program, set up and ready for its first step."""
    from training.recipe import load_recipe
    from training.report import Reporter
    from training.train import Run, Signals, make_accelerator

    unknown = set(options) - {"bf16", "highest", "compile", "sdpa", "eager"}
    if unknown:
        raise InputError(f"ours has no option {', '.join(sorted(unknown))}")
    output = Path(tempfile.mkdtemp(dir=job.output))
    flags = job.flags | {"output_dir": str(output), "mixed_precision": "bf16" if "bf16" in options else "no"}
    flags |= {"matmul_precision": "highest"} if "highest" in options else {}
    for attention in {"sdpa", "eager"} & set(options):
        flags["attention"] = attention
    recipe = load_recipe(None, flags)
    return Run(recipe, output, make_accelerator(recipe, output), Reporter(False), Signals())


def ours(options: list[str], job: Job) -> tuple[int, Callable]:
    import numpy as np
    import torch

    run = our_run(options, job)
    run.start_window()
    if "compile" in options:
        run.module.compile(dynamic=True)

    def work(steps: int) -> tuple[int, int]:
        before, positions = run.progress.tokens, 0
        for _ in range(steps):
            for pairs in run.order.step(run.progress.step):
                sides = (run.corpus.source_lengths[pairs], run.corpus.target_lengths[pairs])
                positions += sum(int(np.max(side)) * len(pairs) for side in sides)
            run.step()
        return run.progress.tokens - before, positions

    return sum(p.numel() for p in torch.nn.Module.parameters(run.model)), work


def marian_model(job: Job, attention: str) -> Any:
    """transformers' Marian in the sizes of the recipe."""
    from transformers import MarianConfig, MarianMTModel

    names = ("d_model", "vocab_size", "encoder_layers", "decoder_layers", "encoder_ffn_dim", "decoder_ffn_dim")
    names += ("encoder_attention_heads", "decoder_attention_heads")
    sizes: dict[str, Any] = {name: int(job.flags[f"model.{name}"]) for name in names}
    config = MarianConfig(
        **sizes,
        dropout=job.dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        bos_token_id=0,
        pad_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=0,
        forced_eos_token_id=None,
        max_position_embeddings=1024,
        use_cache=False,
    )
    config._attn_implementation = attention
    return MarianMTModel(config)


def marian(options: list[str], job: Job) -> tuple[int, Callable]:
    """A plain loop as one would write it: autocast if asked, cross-entropy of torch, Adam of torch."""
    import numpy as np
    import torch
    import torch.nn.functional as F

    unknown = set(options) - {"bf16", "eager", "sdpa", "compile"}
    if unknown:
        raise InputError(f"marian has no option {', '.join(sorted(unknown))}")
    corpus, order = corpus_and_order(job)
    device = torch.device(job.device)
    model = marian_model(job, "eager" if "eager" in options else "sdpa").to(device).train()
    if "compile" in options:
        model.compile(dynamic=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9)
    done = 0

    def work(steps: int) -> tuple[int, int]:
        nonlocal done
        tokens = positions = 0
        for _ in range(steps):
            for pairs in order.step(done):
                source, source_real = corpus.sources(pairs, 1)
                target, target_real = corpus.targets(pairs, 1)
                inputs = np.concatenate((np.zeros_like(target[:, :1]), target[:, :-1]), axis=1)
                arrays = (source, source_real.astype(np.int64), inputs, target)
                ids, mask, decoder_ids, labels = (torch.from_numpy(a).to(device) for a in arrays)
                bf16 = torch.autocast(device.type, torch.bfloat16) if "bf16" in options else nullcontext()
                with bf16:
                    output = model(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids, use_cache=False)
                    loss = F.cross_entropy(
                        output.logits.flatten(0, 1), labels.flatten(), ignore_index=1, label_smoothing=0.1
                    )
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
                optimizer.step()
                tokens += int(source_real.sum() + target_real.sum())
                positions += source.size + target.size
            done += 1
        return tokens, positions

    return sum(p.numel() for p in model.parameters()), work


def trainer(options: list[str], job: Job) -> tuple[int, Callable]:
    """Seq2SeqTrainer over the same corpus, making its own batches with DataCollatorForSeq2Seq."""
    import datasets
    import numpy as np
    from transformers import (
        AutoTokenizer,
        DataCollatorForSeq2Seq,
        PrinterCallback,
        Seq2SeqTrainer,
        Seq2SeqTrainingArguments,
        TrainerCallback,
    )

    numbers = [int(option) for option in options if option.isdigit()]
    unknown = {option for option in options if not option.isdigit()} - {"bf16", "eager", "sdpa", "group"}
    if unknown:
        raise InputError(f"trainer has no option {', '.join(sorted(unknown))}")
    corpus, _ = corpus_and_order(job)
    ends = [np.cumsum(lengths, dtype=np.int64) for lengths in (corpus.source_lengths, corpus.target_lengths)]
    rows = [
        {
            "input_ids": corpus.source_ids[ends[0][i] - corpus.source_lengths[i] : ends[0][i]].tolist(),
            "labels": corpus.target_ids[ends[1][i] - corpus.target_lengths[i] : ends[1][i]].tolist(),
            "length": int(corpus.source_lengths[i]),
        }
        for i in range(len(corpus))
    ]
    mean = float(corpus.source_lengths.mean() + corpus.target_lengths.mean())
    sentences = numbers[0] if numbers else max(1, round(int(job.flags["tokens_per_step"]) / mean))
    model = marian_model(job, "eager" if "eager" in options else "sdpa")
    collator = DataCollatorForSeq2Seq(AutoTokenizer.from_pretrained(job.flags["tokenizer"]), model=model)
    emitted: list[tuple[int, int]] = []
    marks: list[tuple[float, float, int]] = []
    left = 0

    def collate(batch: list[dict[str, Any]]) -> Any:
        tensors = collator([{key: row[key] for key in ("input_ids", "labels")} for row in batch])
        real = int(tensors["attention_mask"].sum() + (tensors["labels"] >= 0).sum())
        emitted.append((real, tensors["input_ids"].numel() + tensors["labels"].numel()))
        return tensors

    class Clock(TrainerCallback):
        """Marks the beginning of each step and ends the turn; what train() does around its steps is not counted."""

        def on_step_begin(self, *arguments: Any, **keywords: Any) -> None:
            marks.append((time.process_time(), time.perf_counter(), len(emitted)))

        def on_step_end(self, args: Any, state: Any, control: Any, **keywords: Any) -> None:
            nonlocal left
            left -= 1
            control.should_training_stop = left <= 0

    arguments = Seq2SeqTrainingArguments(
        output_dir=tempfile.mkdtemp(dir=job.output),
        per_device_train_batch_size=sentences,
        max_steps=10**6,
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
        length_column_name="length",
    )
    data: Any = datasets.Dataset.from_list(rows) if "group" in options else rows
    peer = Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=data,
        data_collator=collate,
        callbacks=[Clock()],
    )
    peer.remove_callback(PrinterCallback)

    def work(steps: int) -> tuple[int, int, float, float]:
        nonlocal left
        marks.clear()
        left = steps + 2  # the first step takes what train() begins with
        peer.train()
        begin, end = marks[1], marks[1 + steps]
        used = emitted[begin[2] - 1 : end[2] - 1]
        tokens, positions = (sum(column) for column in zip(*used, strict=True))
        return tokens, positions, end[0] - begin[0], end[1] - begin[1]

    return sum(p.numel() for p in model.parameters()), work


KINDS: dict[str, Callable[[list[str], Job], tuple[int, Callable]]] = {
    "ours": ours,
    "marian": marian,
    "trainer": trainer,
}


def main(arguments: list[str] | None = None) -> None:
    exit_cleanly(app, arguments, name="train_throughput")


if __name__ == "__main__":
    main()
