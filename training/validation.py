"""Validation: the loss without smoothing, and BLEU."""

import itertools
from typing import Any

import torch

from vaswani_transformer.translator import Translator

from . import fsdp
from .batches import batch_by_length, own_micro_batches, to_device
from .corpus import Corpora, Corpus
from .metrics import perplexity
from .model import Network


@torch.no_grad()
def measure_loss(network: Network, corpus: Corpus, tokens_per_micro_batch: int) -> dict[str, float]:
    """Return the loss of the corpus, the mean of -log p over all its target tokens, and the perplexity.

    All processes must call this together.
    """
    accelerator, module = network.accelerator, network.module
    batching = batch_by_length(corpus.source_lengths, corpus.target_lengths, tokens_per_micro_batch)
    batches = [batching.pairs_by_length[start:end] for start, end in itertools.pairwise(batching.starts)]
    module.eval()
    total = torch.zeros((), device=accelerator.device)
    for each in own_micro_batches(corpus, batches, network.model.config, accelerator):
        total += module(*to_device(each.batch, accelerator.device))[1] * each.weight
    fsdp.reshard(module)
    summed: Any = accelerator.reduce(total, "sum")
    loss = float(summed) / int(corpus.target_lengths.sum(dtype="int64"))
    return {"validation_loss": loss, "validation_perplexity": perplexity(loss)}


@torch.no_grad()
def measure_bleu(network: Network, corpora: Corpora, lowercase: bool) -> dict[str, float]:
    """Return sacreBLEU on the validation text, with the model's search (beam 4); {} except on the main process.

    All processes must call this together.
    """
    model = network.unsharded_model()
    if not network.accelerator.is_main_process:
        return {}
    from .scores import corpus_bleu  # sacrebleu is needed here only

    translator = Translator(model, corpora.tokenizer, corpora.target_tokenizer)
    sources, references = corpora.validation_sentences
    translations = translator.translate(sources, split_sentences=False)
    return {"validation_bleu": corpus_bleu(translations, references, lowercase)}
