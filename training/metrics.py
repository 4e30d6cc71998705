"""Measure losses, speed and model FLOPs utilisation (MFU) between two lines of metrics.jsonl."""

import math
import time
from typing import Any

import torch

from .cost import matmul_flop_rate, mfu, training_flops
from .machine import autocast_dtype
from .prepare import Prepared
from .progress import Progress


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
    """Turns windows into records. MFU compares the model's FLOPs with the measured speed of matrix products."""

    def __init__(self, prepared: Prepared):
        self.accelerator = prepared.accelerator
        self.peak_flop_per_second = self.measure_peak()
        lengths = prepared.text.training.mean_lengths
        self.flop_per_source_token = training_flops(prepared.config, 1, 0, *lengths)
        self.flop_per_target_token = training_flops(prepared.config, 0, 1, *lengths)

    def measure_peak(self) -> float:
        dtype = autocast_dtype(self.accelerator.mixed_precision) or torch.float32
        return matmul_flop_rate(self.accelerator.device, dtype, 0.05) * self.accelerator.num_processes

    def read(self, window: Window, progress: Progress) -> dict[str, Any]:
        """Return losses per token and speeds; all processes must call this together."""
        sums: Any = self.accelerator.reduce(torch.stack((window.loss, window.negative_log_likelihood)), "sum")
        loss, negative_log_likelihood = (sums / window.target_tokens).tolist()
        seconds = time.perf_counter() - window.started
        flop = window.source_tokens * self.flop_per_source_token + window.target_tokens * self.flop_per_target_token
        if flop / seconds > self.peak_flop_per_second:  # other work slowed the machine when the peak was measured
            self.peak_flop_per_second = max(self.peak_flop_per_second, self.measure_peak())
        return {
            "loss": loss,
            "perplexity": perplexity(negative_log_likelihood),
            "tokens": progress.tokens,
            "tokens_per_second": (window.source_tokens + window.target_tokens) / seconds,
            "mfu": mfu(flop / seconds, self.peak_flop_per_second),
            "seconds": progress.seconds,
            "cpu_seconds": progress.cpu_seconds,
            "skipped_steps": progress.skipped_steps,
        }
