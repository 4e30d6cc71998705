"""What metrics.jsonl records: the losses and the speed of training, and the loss and BLEU of the validation text."""

import itertools
import math
import re
import time
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator

from vaswani_transformer import VaswaniTransformerConfig
from vaswani_transformer.torch_translator import TorchTranslator

from . import fsdp
from .batches import batch_by_length, own_micro_batches, to_device
from .checkpoints import Progress
from .corpus import Corpora, Corpus
from .cost import training_flops
from .machine import autocast_dtype
from .model import Network

# FLOP/s of dense bfloat16 and float16 products, from NVIDIA's data sheets (A100 80GB, H100, H200, A10, L4, L40S Tensor
# Core GPU). Those of H100, H200, L4 and L40S list twice as much, with sparsity. The first pattern that a device's name
# matches counts.
VENDOR_PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,  # SXM
    "H200": 989e12,
    "A100": 312e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L4": 121e12,
}


def perplexity(negative_log_likelihood: float) -> float:
    """Return e to the power of a loss in nats per token, which is capped because e^710 is too large for a float."""
    return math.exp(min(negative_log_likelihood, 700))


class Window:
    """Sums over the steps since the last log line, validation or checkpoint, whichever was last.

    Losses are summed on the device, without synchronising with a GPU.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.start()

    def start(self) -> None:
        self.loss = torch.zeros((), device=self.device)
        self.negative_log_likelihood = torch.zeros((), device=self.device)
        self.source_tokens = self.target_tokens = 0
        self.started = time.perf_counter()


class Meter:
    """Turns windows into records."""

    def __init__(self, config: VaswaniTransformerConfig, mean_lengths: tuple[float, float], accelerator: Accelerator):
        """mean_lengths: of the training text's sources and targets, in tokens"""
        self.accelerator = accelerator
        dtype = autocast_dtype(accelerator.mixed_precision) or torch.float32
        self.share_name, peak = peak_flop_rate(accelerator.device, dtype, 0.05)
        self.peak = peak * accelerator.num_processes
        self.flop_per_source_token = training_flops(config, 1, 0, *mean_lengths)
        self.flop_per_target_token = training_flops(config, 0, 1, *mean_lengths)

    def read(self, window: Window, progress: Progress) -> dict[str, Any]:
        """Return losses per token and speeds; all processes must call this together."""
        sums: Any = self.accelerator.reduce(torch.stack((window.loss, window.negative_log_likelihood)), "sum")
        loss, negative_log_likelihood = (sums / window.target_tokens).tolist()
        seconds = time.perf_counter() - window.started
        flop = window.source_tokens * self.flop_per_source_token + window.target_tokens * self.flop_per_target_token
        return {
            "loss": loss,
            "perplexity": perplexity(negative_log_likelihood),
            "tokens": progress.tokens,
            "tokens_per_second": (window.source_tokens + window.target_tokens) / seconds,
            self.share_name: flop / seconds / self.peak,
            "seconds": progress.seconds,
            "cpu_seconds": progress.cpu_seconds,
            "skipped_steps": progress.skipped_steps,
        }


# ---- validation --------------------------------------------------------------------------------------------------


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

    translator = TorchTranslator(model, corpora.tokenizer, corpora.target_tokenizer)
    sources, references = corpora.validation_sentences
    # Several workers set torch's threads anew, which may change the last bits of later steps; a resumed run has not.
    translations = translator.translate(sources, split_sentences=False, target_language="", workers=1)
    return {"validation_bleu": corpus_bleu(translations, references, lowercase)}


# ---- speed of the device -----------------------------------------------------------------------------------------


def peak_flop_rate(device: torch.device, dtype: torch.dtype, seconds: float) -> tuple[str, float]:
    """Return a device's peak FLOP/s for products of this type, and the name of a share of it.

    "mfu": the vendor's peak of a known GPU, so that the share is the model FLOPs utilisation of the literature
    "product_share": the rate of large products, measured for this many seconds; a share may exceed 1 if the machine
        was busy then
    """
    if device.type == "cuda" and dtype in (torch.bfloat16, torch.float16):
        name = torch.cuda.get_device_name(device)
        for model, peak in VENDOR_PEAKS.items():
            if re.search(rf"\b{model}\b", name):
                return "mfu", peak
    return "product_share", matmul_flop_rate(device, dtype, seconds)


def matmul_flop_rate(
    device: torch.device, dtype: torch.dtype, seconds: float, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the FLOP/s of the fastest of many large matrix products in this time."""
    size = 1024 if device.type == "cpu" else 8192
    generator = torch.Generator(device).manual_seed(0)  # leaves the global generator alone
    left, right = (torch.randn(size, size, device=device, generator=generator).to(dtype) for _ in range(2))
    return 2 * size**3 / min(time_calls(lambda: left @ right, device, seconds, clock))


def time_calls(
    work: Callable[[], object],
    device: torch.device,
    seconds: float,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Return the time of every call in at least this many seconds and two calls, after a warm-up call."""
    taken: list[float] = []
    while len(taken) < 3 or sum(taken[1:]) < seconds:
        started = clock()
        work()
        if device.type != "cpu":
            torch.accelerator.synchronize()
        taken.append(clock() - started)
    return taken[1:]
