"""Plain `Seq2SeqTrainer` trains, evaluates and saves the model."""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import tiny_config
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.tokenization import train_tokenizer

# Without a GPU, the DataLoader warns about pinned memory, which Seq2SeqTrainer requests by default.
QUIET: dict[str, Any] = {"dataloader_pin_memory": False, "report_to": "none", "disable_tqdm": True}
QUIET |= {"save_strategy": "no", "per_device_eval_batch_size": 20}
SGD: dict[str, Any] = {"optim": "sgd", "learning_rate": 0.1, "logging_steps": 1}


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    choose = random.Random(0)
    words = ["red", "green", "blue", "one", "two", "three", "cat", "dog", "sun", "moon"]
    return [" ".join(choose.choices(words, k=choose.randint(2, 5))) for _ in range(400)]


@pytest.fixture(scope="module")
def tokenizer(sentences: list[str]) -> PreTrainedTokenizerFast:
    return train_tokenizer(sentences, vocab_size=280)


@pytest.fixture
def make_trainer(tokenizer: PreTrainedTokenizerFast, sentences: list[str], tmp_path: Path) -> Callable[..., Any]:
    """make_trainer(**arguments) -> a trainer for the copy task, where the target is the source."""

    def make(**arguments: Any) -> Any:
        torch.manual_seed(0)
        sizes = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": len(tokenizer)}
        model = VaswaniTransformerForConditionalGeneration(tiny_config(**sizes, dropout=0.0))
        data: Any = [dict(tokenizer(text, text_target=text)) for text in sentences]
        return Seq2SeqTrainer(
            model=model,
            args=Seq2SeqTrainingArguments(output_dir=str(tmp_path / "run"), **QUIET | arguments),
            train_dataset=data[:-20],
            eval_dataset=data[-20:],
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
            processing_class=tokenizer,
        )

    return make


def test_the_trainer_learns_and_saves_the_copy_task(make_trainer, tokenizer, sentences, tmp_path):
    trainer = make_trainer(
        max_steps=250, per_device_train_batch_size=32, learning_rate=5e-3, predict_with_generate=True
    )
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_loss"] < 0.25 * before["eval_loss"]

    prediction = trainer.predict(trainer.eval_dataset)
    sequences = torch.tensor(prediction.predictions)
    assert sequences.shape[0] == 20
    decoded = tokenizer.batch_decode(sequences.masked_fill(sequences == -100, 1), skip_special_tokens=True)
    assert sum(text == source for text, source in zip(decoded, sentences[-20:], strict=True)) >= 10

    trainer.save_model(str(tmp_path / "model"))
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model").generation_config
    assert (loaded.num_beams, loaded.extra_length) == (4, 50)


def test_evaluation_does_not_change_the_search(make_trainer):
    """Seq2SeqTrainer sets max_length 20 in the generation config; later translations must still reach |source| + 50."""
    trainer = make_trainer(predict_with_generate=True)
    model = trainer.model
    source = torch.tensor([[5] * 9 + [2]], device=model.device)
    before = model.eval().generate(source, suppress_tokens=[0, 1, 2])
    assert before.shape[1] == 1 + 10 + 50
    trainer.predict(trainer.eval_dataset)
    assert torch.equal(before, model.eval().generate(source, suppress_tokens=[0, 1, 2]))
    config = copy.deepcopy(model.generation_config)
    assert config.max_length == 20
    config.suppress_tokens = [0, 1, 2]
    assert torch.equal(before, model.generate(source, generation_config=config))
    config.max_length = 30
    assert model.generate(source, generation_config=config).shape[1] == 30


def test_gradient_accumulation_equals_one_batch(make_trainer):
    """One batch of 16 sentences equals four batches of 4; a mean of means would differ."""
    runs = []
    for size, accumulation in ((16, 1), (4, 4)):
        trainer = make_trainer(
            max_steps=5, per_device_train_batch_size=size, gradient_accumulation_steps=accumulation, **SGD
        )
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        runs.append((losses, trainer.model.state_dict()))
    (losses, weights), (accumulated_losses, accumulated_weights) = runs
    assert len(losses) == 5
    assert accumulated_losses == pytest.approx(losses, abs=2e-4)  # the log rounds to four decimals
    for name, weight in weights.items():
        torch.testing.assert_close(accumulated_weights[name], weight, atol=1e-5, rtol=1e-4)


def test_trainer_label_smoothing_equals_the_model(make_trainer):
    """The Trainer removes the labels, needs decoder inputs from the collator, and spreads over all tokens."""
    trainer = make_trainer(label_smoothing_factor=0.1)
    found = trainer.evaluate()["eval_loss"]
    batch = trainer.data_collator([dict(features) for features in trainer.eval_dataset])
    with torch.no_grad():
        expected = trainer.model.eval()(**batch, label_smoothing=0.1, label_smoothing_spread="all").loss
    assert found == pytest.approx(expected.item(), rel=1e-4)
