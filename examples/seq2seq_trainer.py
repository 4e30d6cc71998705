"""Train the model with plain transformers: `Seq2SeqTrainer` instead of this package's training loop.

    python examples/seq2seq_trainer.py train.en train.de runs/trainer
    vaswani-transformer push runs/trainer owner/name --source-language en --target-language de --yes

Model, loss and search are the same. `vaswani-transformer train` needs far less padding and resumes bit for bit.
"""

import sys
from typing import Any

from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
from vaswani_transformer.lines import read_lines
from vaswani_transformer.tokenization import train_tokenizer


def train(source: str, target: str, output: str, max_steps: int = 1000, vocab_size: int = 8000) -> Seq2SeqTrainer:
    """Train on two parallel text files, validate on their last hundredth, and save the model in `output`."""
    pairs = list(zip(read_lines(source), read_lines(target), strict=True))
    tokenizer = train_tokenizer((line for pair in pairs for line in pair), vocab_size)
    rows: Any = [dict(tokenizer(text, text_target=translation)) for text, translation in pairs]
    held_out = max(1, len(rows) // 100)
    config = VaswaniTransformerConfig(
        vocab_size=len(tokenizer),
        d_model=128,
        encoder_layers=4,
        decoder_layers=4,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=256,
        decoder_ffn_dim=256,
    )
    model = VaswaniTransformerForConditionalGeneration(config)
    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            output_dir=output,
            max_steps=max_steps,
            per_device_train_batch_size=64,
            train_sampling_strategy="group_by_length",  # half of the padding of the default
            learning_rate=3e-3,
            lr_scheduler_type="inverse_sqrt",  # section 5.3
            warmup_steps=500,
            adam_beta2=0.98,
            adam_epsilon=1e-9,
            label_smoothing_factor=0.1,  # section 5.4
            predict_with_generate=True,  # beam 4 with the paper's length penalty, from the generation config
            save_total_limit=2,
            report_to="none",
            dataloader_pin_memory=False,
        ),
        train_dataset=rows[:-held_out],
        eval_dataset=rows[-held_out:],
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(output)
    return trainer


if __name__ == "__main__":
    if not 4 <= len(sys.argv) <= 6:
        sys.exit("usage: python examples/seq2seq_trainer.py SOURCE TARGET OUTPUT [STEPS [VOCABULARY]]")
    source, target, output, *sizes = sys.argv[1:]
    print(train(source, target, output, *map(int, sizes)).evaluate())
