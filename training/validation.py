"""Validation: the loss without smoothing, and BLEU."""

import itertools
from typing import Any

import torch

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.torch_translator import TorchTranslator

from . import fsdp, tensors
from .batches import plan_batches
from .corpus import Corpus
from .input_pipeline import on_device, own_micro_batches
from .metrics import perplexity
from .parallel_text import Sentences
from .prepare import Prepared
from .processes import wait_for_all
from .progress import Progress


@torch.no_grad()
def validate(prepared: Prepared, progress: Progress, last: bool) -> None:
    """Log the validation loss, and BLEU if it is due or this is the last step, and record it in `progress`."""
    recipe, text, accelerator, reporter = prepared.recipe, prepared.text, prepared.accelerator, prepared.reporter
    assert text.validation is not None
    loss = validation_loss(prepared, text.validation)
    progress.record_validation(loss)
    record: dict[str, Any] = {
        "event": "validation",
        "step": progress.step,
        "validation_loss": loss,
        "validation_perplexity": perplexity(loss),
        "seconds": progress.seconds,
        "cpu_seconds": progress.cpu_seconds,
    }
    summary = f"step {progress.step}: validation loss {loss:.4f}, perplexity {record['validation_perplexity']:.2f}"
    if recipe.bleu_every is not None and (last or progress.step % recipe.bleu_every == 0):
        model = unsharded_model(prepared)
        if accelerator.is_main_process:
            translator = TorchTranslator(model, text.tokenizer, text.target_tokenizer)
            assert text.validation_sentences is not None
            record["validation_bleu"] = validation_bleu(translator, text.validation_sentences, recipe.lowercase)
            summary += f", BLEU {record['validation_bleu']:.1f}"
        wait_for_all(prepared.cpu_group)
    reporter.write(record)
    reporter.say(summary)


def validation_loss(prepared: Prepared, corpus: Corpus) -> float:
    """Return the mean of -log p over all target tokens of the corpus."""
    accelerator, module = prepared.accelerator, prepared.module
    plan = plan_batches(corpus.source_lengths, corpus.target_lengths, prepared.recipe.tokens_per_micro_batch)
    batches = [plan.pairs_by_length[start:end] for start, end in itertools.pairwise(plan.starts)]
    module.eval()
    total = torch.zeros((), device=accelerator.device)
    for each in own_micro_batches(prepared, corpus, batches):
        total += module(*on_device(each.batch, accelerator.device))[1] * each.weight
    fsdp.reshard(module)
    summed: Any = accelerator.reduce(total, "sum")
    return float(summed) / int(corpus.target_lengths.sum(dtype="int64"))


def unsharded_model(prepared: Prepared) -> VaswaniTransformerForConditionalGeneration:
    """Return a model to translate with; with FSDP, a copy on the main process, gathered from all processes."""
    if not fsdp.is_sharded(prepared.module):
        return prepared.model
    main = prepared.accelerator.is_main_process
    weights = tensors.cpu_copies(dict(prepared.model.named_parameters()), keep=main)
    if not main:
        return prepared.model
    model = VaswaniTransformerForConditionalGeneration(prepared.config)
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])
    model.generation_config = prepared.model.generation_config
    return model.to(prepared.accelerator.device).eval()


def validation_bleu(translator: TorchTranslator, sentences: Sentences, lowercase: bool) -> float:
    """Return sacreBLEU on the validation text, with the model's search (beam 4)."""
    from .scores import corpus_bleu  # sacrebleu is needed here only

    sources, references = sentences
    return corpus_bleu(translator.translate(sources, split_sentences=False), references, lowercase)
