"""How good is a model after some CPU hours, compared with transformers' Seq2SeqTrainer and a Marian of the same size?

    python -m benchmarks.trainer_bleu runs/debian_en_de --data data/debian --cpu-hours 1.5

Row:   a system and the CPU hours that its steps have taken (generation and evaluation are not counted).
Unit:  cased sacreBLEU on the recipe's validation and test text, beam 4.
Peer:  MarianMTModel with the run's sizes, tokenizer, text, label smoothing, dropout, Adam and learning rates, in
       Seq2SeqTrainer with its fastest batches (group_by_length, of as many tokens as the run's on average) and bfloat16
       if the run has it. `--learning-rate` changes its peak rate. The schedule ends when the hours do: the number of
       steps that fit is measured first. The Trainer averages no checkpoints; the row `ours` is of the final model.

The rows of `ours` come from the run's own folder: train it first, with `max_cpu_seconds` or so many steps that it takes
the same CPU time.
"""

import json
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import TrainerCallback

from training.parallel_text import open_texts, read_sentences
from training.recipe import Recipe, load_recipe
from training.schedule import learning_rate
from training.scores import corpus_bleu
from vaswani_transformer import Translator
from vaswani_transformer.loading import load_tokenizer
from vaswani_transformer.model_folder import read_config
from vaswani_transformer.training_run import read_progress, read_run

from .harness import Row, report, run
from .options import Record
from .systems.marian import marian_like

TRIAL_STEPS = 60  # the first third warms up
Measure = Callable[[Any, int, float], None]  # of a model, its step and its CPU seconds


def compare(
    model: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    data: Annotated[str | None, typer.Option(help="The folder of the recipe's text.")] = None,
    cpu_hours: Annotated[
        float | None, typer.Option(min=0.001, help="CPU hours of the Trainer's steps; default: those of the run.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Marian's peak rate; default: the run's.")] = None,
    sentences: Annotated[int, typer.Option(min=1, help="Sentences of each text to translate.")] = 2000,
    evaluations: Annotated[int, typer.Option(min=1, help="How often to measure BLEU on the validation text.")] = 3,
    record: Record = None,
) -> None:
    """Compare BLEU after the same CPU time."""
    keys = read_run(model)["recipe"] | ({} if data is None else {"data": data})
    recipe = load_recipe(None, {key: json.dumps(value) for key, value in keys.items()})
    texts = {
        name: tuple(side[:sentences] for side in read_sentences(open_texts(recipe, names)))
        for name, names in (("validation", recipe.validation), ("test", recipe.test))
    }
    progress = read_progress(model)
    seconds = cpu_hours * 3600 if cpu_hours is not None else progress["cpu_seconds"]
    translator: Translator = Translator.from_pretrained(model)
    ours = {
        f"{name}_bleu": round(corpus_bleu(translator.translate(sources, split_sentences=False), references), 2)
        for name, (sources, references) in texts.items()
    }
    rows: list[Row] = [
        {"system": "ours", "cpu_hours": round(progress["cpu_seconds"] / 3600, 3), "steps": progress["step"], **ours}
    ]
    peer = MarianInTrainer(model, recipe, learning_rate)
    rows += peer.train(seconds, texts, evaluations)
    report(rows, record)


class StepClock(TrainerCallback):
    """Sums the CPU seconds of the Trainer's steps, batches included, and calls `measure` outside of them.

    skip: steps to leave out at the beginning;  every, last: after which steps to measure
    """

    def __init__(
        self, skip: int = 0, every: int = 0, last: int = 0, measure: Callable[[Any, int, float], None] | None = None
    ):
        self.skip, self.every, self.last, self.measure = skip, every, last, measure
        self.seconds, self.begun = 0.0, time.process_time()

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.begun = time.process_time()

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        now = time.process_time()
        if state.global_step > self.skip:
            self.seconds += now - self.begun
        is_due = self.every and (state.global_step % self.every == 0 or state.global_step == self.last)
        if self.measure is not None and is_due:
            self.measure(others["model"], state.global_step, self.seconds)
        self.begun = time.process_time()


class MarianInTrainer:
    """A MarianMTModel with the sizes, text and settings of a run, in a Seq2SeqTrainer."""

    def __init__(self, folder: Path, recipe: Recipe, peak: float | None):
        import datasets

        self.tokenizer = load_tokenizer(folder)
        self.config = read_config(folder / "config.json")
        self.recipe = recipe if peak is None else recipe.model_copy(update={"learning_rate": peak})
        pairs = zip(*read_sentences(open_texts(recipe, recipe.train)), strict=True)
        limit = recipe.max_length
        rows = [dict(self.tokenizer(source, text_target=target)) for source, target in pairs if source and target]
        rows = [row for row in rows if max(len(row["input_ids"]), len(row["labels"])) <= limit]
        tokens = sum(len(row["input_ids"]) + len(row["labels"]) for row in rows) / len(rows)
        self.batch_size = max(1, round(recipe.tokens_per_step / tokens))
        self.rows: Any = datasets.Dataset.from_list([row | {"length": len(row["labels"])} for row in rows])

    def train(self, seconds: float, texts: dict[str, Any], evaluations: int) -> list[Row]:
        """Train for so many CPU seconds; return BLEU on the way (validation) and at the end."""
        trial = StepClock(TRIAL_STEPS // 3)
        self.make_trainer(TRIAL_STEPS, trial).train()
        steps = max(evaluations, round(seconds / (trial.seconds / (TRIAL_STEPS - TRIAL_STEPS // 3))))
        rows: list[Row] = []

        def measure(model: Any, step: int, spent: float) -> None:
            names = texts if step == steps else ["validation"]
            scores: dict[str, Any] = {f"{name}_bleu": "" for name in texts}
            scores |= {f"{name}_bleu": round(self.bleu(model, *texts[name]), 2) for name in names}
            rows.append({"system": "trainer", "cpu_hours": round(spent / 3600, 3), "steps": step, **scores})
            print(rows[-1], flush=True)

        self.make_trainer(steps, StepClock(every=math.ceil(steps / evaluations), last=steps, measure=measure)).train()
        return rows

    def make_trainer(self, steps: int, steps_clock: Any) -> Any:
        from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

        torch.manual_seed(self.recipe.seed)
        model = marian_like(self.config, scale_embedding=True)
        settings = self.recipe.settings().optimizer
        optimizer = torch.optim.AdamW(
            model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9, weight_decay=0, fused=True
        )
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate(settings, self.config["d_model"], steps, step + 1)
        )
        return Seq2SeqTrainer(
            model=model,
            args=Seq2SeqTrainingArguments(
                output_dir=tempfile.mkdtemp(),
                max_steps=steps,
                per_device_train_batch_size=self.batch_size,
                train_sampling_strategy="group_by_length",
                length_column_name="length",
                label_smoothing_factor=self.recipe.label_smoothing,
                bf16=self.recipe.mixed_precision == "bf16",
                use_cpu=True,
                save_strategy="no",
                logging_steps=200,
                report_to="none",
                disable_tqdm=True,
                dataloader_pin_memory=False,
            ),
            train_dataset=self.rows,
            data_collator=DataCollatorForSeq2Seq(self.tokenizer, model=model),
            processing_class=self.tokenizer,
            optimizers=(optimizer, schedule),
            callbacks=[steps_clock],
        )

    def bleu(self, model: Any, sources: list[str], references: list[str]) -> float:
        """Return BLEU of Marian's beam search with its defaults, in batches of sentences of similar length."""
        order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
        translations = [""] * len(sources)
        model.eval()
        for start in range(0, len(order), 64):
            batch = order[start : start + 64]
            inputs = self.tokenizer([sources[i] for i in batch], return_tensors="pt", padding=True)
            outputs = model.generate(**inputs, num_beams=4, max_new_tokens=256)
            for i, text in zip(batch, self.tokenizer.batch_decode(outputs, skip_special_tokens=True), strict=True):
                translations[i] = text
        model.train()
        return corpus_bleu(translations, references)


if __name__ == "__main__":
    run(compare)
