"""The calls of transformers' examples run_translation.py and run_translation_no_trainer.py.

The scripts themselves are in transformers' repository, not in its package.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from saved_model import ENGLISH, GERMAN, trained_tokenizer
from test_hub_loads import trained
from torch.utils.data import DataLoader
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)
from transformers.trainer_utils import get_last_checkpoint

from vaswani_transformer import Translator

pytestmark = pytest.mark.slow
MAX_LENGTH = 128  # the scripts' default for targets; 1024 for sources


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("model")
    trained(trained_tokenizer()).save_pretrained(made)
    trained_tokenizer().save_pretrained(made)
    return made


def loaded(folder: Path) -> tuple[Any, Any]:
    """Load model and tokenizer, and check their sizes, as both scripts do."""
    config = AutoConfig.from_pretrained(folder)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, use_fast=True)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, config=config)
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer))
    if model.config.decoder_start_token_id is None:
        raise ValueError("Make sure that `config.decoder_start_token_id` is correctly defined")
    if hasattr(model.config, "max_position_embeddings") and model.config.max_position_embeddings < 1024:
        raise ValueError("`--max_source_length` is too large")
    return model, tokenizer


def preprocessed(tokenizer: Any) -> Any:
    inputs = tokenizer(ENGLISH, max_length=1024, padding=False, truncation=True)
    labels = tokenizer(text_target=GERMAN, max_length=MAX_LENGTH, padding=False, truncation=True)
    columns = {**inputs, "labels": labels["input_ids"]}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def decoded(tokenizer: Any, predictions: torch.Tensor) -> list[str]:
    tokens = torch.where(predictions == -100, tokenizer.pad_token_id, predictions)
    return [text.strip() for text in tokenizer.batch_decode(tokens, skip_special_tokens=True)]


def test_run_translation(folder: Path, tmp_path: Path) -> None:
    """Fine-tuning, evaluation and prediction with generate(), and a resumed run with the same weights at its end."""
    output = tmp_path / "output"

    def run(steps: int) -> Any:
        model, tokenizer = loaded(folder)
        arguments = Seq2SeqTrainingArguments(
            str(output), max_steps=steps, save_steps=2, per_device_train_batch_size=2, predict_with_generate=True,
            report_to="none", use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False, learning_rate=1e-4,
            lr_scheduler_type="constant",
        )  # fmt: skip
        data = preprocessed(tokenizer)
        collator = DataCollatorForSeq2Seq(tokenizer, model=model, label_pad_token_id=-100)
        trainer = Seq2SeqTrainer(
            model, arguments, train_dataset=data, eval_dataset=data, processing_class=tokenizer, data_collator=collator
        )
        found = output.is_dir() and get_last_checkpoint(str(output))
        trainer.train(resume_from_checkpoint=found or None)
        trainer.save_model()
        return trainer

    uninterrupted = run(4).model.state_dict()
    (output / "checkpoint-4").rename(tmp_path / "later")
    trainer = run(4)
    assert trainer.state.global_step == 4
    for name, weight in trainer.model.state_dict().items():
        torch.testing.assert_close(weight, uninterrupted[name])

    metrics = trainer.evaluate(max_length=MAX_LENGTH, num_beams=None, metric_key_prefix="eval")
    assert metrics["eval_loss"] < 3
    result = trainer.predict(trainer.eval_dataset, metric_key_prefix="predict", max_length=MAX_LENGTH, num_beams=None)
    tokenizer = AutoTokenizer.from_pretrained(output)
    translations = decoded(tokenizer, torch.tensor(result.predictions))
    assert len(set(translations)) > 1
    assert translations == Translator.from_pretrained(output, device="cpu").translate(ENGLISH)


@pytest.mark.parametrize("num_beams", [None, 1, 4])
def test_run_translation_no_trainer(folder: Path, num_beams: int | None) -> None:
    model, tokenizer = loaded(folder)
    accelerator = Accelerator(cpu=True)
    collator = DataCollatorForSeq2Seq(tokenizer, model=model, label_pad_token_id=-100)
    loader = DataLoader(preprocessed(tokenizer), collate_fn=collator, batch_size=2)
    model, loader = accelerator.prepare(model, loader)
    model.eval()
    translations: list[str] = []
    for batch in loader:
        with torch.no_grad():
            tokens = accelerator.unwrap_model(model).generate(
                batch["input_ids"], attention_mask=batch["attention_mask"], max_length=MAX_LENGTH, num_beams=num_beams
            )
            padded: Any = accelerator.pad_across_processes(tokens, dim=1, pad_index=tokenizer.pad_token_id)
            gathered: Any = accelerator.gather_for_metrics(padded)
        translations += decoded(tokenizer, gathered)
    expected = Translator.from_pretrained(folder, device="cpu").translate(ENGLISH, num_beams=num_beams)
    assert translations == expected
