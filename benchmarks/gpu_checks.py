"""Checks model, loss, search and training on a GPU against the CPU.

    python -m benchmarks.gpu_checks --device cuda --record checks.csv

Each row has a measured difference and its limit; the exit code is 1 if a limit is exceeded. Six rows have no limit:
they state whether repeated, resumed and killed training is bit-identical, which torch's fused attention does not
guarantee on a GPU. With `deterministic` in the recipe, it must be.
"""

import copy
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import typer
from safetensors.torch import load_file

from training.loss import linear_cross_entropy
from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
from vaswani_transformer.beam_search import beam_search

from .shared.harness import METADATA, Device, Record, report, run
from .shared.training_setup import recipe_words

VOCABULARY = 900
Found = list[tuple[str, float, float | None]]  # check, difference, its limit


def check(device: Device = "cuda", record: Record = None) -> None:
    """Check training and decoding on a device."""
    torch.manual_seed(0)
    config = VaswaniTransformerConfig(
        vocab_size=VOCABULARY, d_model=256, encoder_layers=3, decoder_layers=3, encoder_ffn_dim=512,
        decoder_ffn_dim=512, dropout=0.0,
    )  # fmt: skip
    model: Any = VaswaniTransformerForConditionalGeneration(config).eval()
    passed = [
        reported(forward_passes(model, device), device, record),
        reported(losses(device), device, record),
        reported(searches(model, device), device, record),
        reported(trainings(), device, record),
    ]
    if not all(passed):
        raise typer.Exit(1)


def reported(found: Found, device: str, record: Path | None) -> bool:
    """Print and record the differences; return whether all are within their limits."""
    rows = [
        {"device": device, "check": name, "difference": f"{value:.1e}", "limit": "" if limit is None else limit}
        for name, value, limit in found
    ]
    report(rows, record, (*METADATA, "torch"))
    return all(limit is None or value <= limit for _, value, limit in found)


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Return the norm of the difference relative to the norm of the other."""
    other = other.detach().double().cpu()
    return float((one.detach().double().cpu() - other).norm() / other.norm())


def batch(device: str) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, VOCABULARY, (12, 23), generator=generator)
    mask = torch.ones_like(ids)
    for row, length in enumerate(torch.randint(3, 24, (12,), generator=generator).tolist()):
        ids[row, length - 1], ids[row, length:], mask[row, length:] = 2, 1, 0
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


def forward_passes(model: Any, device: str) -> Found:
    labels = torch.randint(4, VOCABULARY, (12, 17))
    exact = copy.deepcopy(model).double().train()
    expected = exact(**batch("cpu"), labels=labels)
    expected.loss.backward()
    found: Found = []
    limits = {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 5e-3}
    for kernel in ("eager", "sdpa"):
        for dtype, limit in limits.items():
            ours = copy.deepcopy(model).to(device, dtype).train()
            ours.set_attn_implementation(kernel)
            output = ours(**batch(device), labels=labels.to(device))
            name = f"{kernel} {str(dtype).removeprefix('torch.')}"
            found.append((f"logits, {name}", difference(output.logits, expected.logits), limit))
            if dtype == torch.float32:
                output.loss.backward()
                pairs = zip(ours.parameters(), exact.parameters(), strict=True)
                # A single ReLU that rounds to the other side of zero changes a matrix's gradient by 4e-3.
                found.append((f"gradients, {name}", max(difference(a.grad, b.grad) for a, b in pairs), 1e-2))
    return found


def losses(device: str) -> Found:
    hidden, weight, target = torch.randn(700, 256), torch.randn(5000, 256) / 16, torch.randint(5000, (700,))

    def results(where: str, dtype: torch.dtype, autocast: torch.dtype | None = None) -> list[torch.Tensor]:
        x, y = (tensor.to(where, dtype).requires_grad_() for tensor in (hidden.clone(), weight.clone()))
        with torch.autocast(torch.device(where).type, dtype=autocast, enabled=autocast is not None):
            loss, nll = linear_cross_entropy(x, y, None, target.to(where), 0.1, rows=256)
        loss.backward()
        assert x.grad is not None and y.grad is not None
        return [loss, nll, x.grad, y.grad]

    exact = results("cpu", torch.float64)
    found: Found = []
    for dtype, limit in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
        ours = results(device, torch.float32, None if dtype == torch.float32 else dtype)
        worst = max(difference(a, b) for a, b in zip(ours, exact, strict=True))
        found.append((f"training loss and gradients, {str(dtype).removeprefix('torch.')}", worst, limit))
    return found


def searches(model: Any, device: str) -> Found:
    """Compare the scores of the best hypotheses: near ties may change the tokens."""
    there = copy.deepcopy(model).to(device)
    found: Found = []
    for beams in (1, 4, 8):
        ours = beam_search(there, **batch(device), num_beams=beams)
        expected = beam_search(model, **batch("cpu"), num_beams=beams)
        gap = float((ours[1][:, 0].cpu() - expected[1][:, 0]).abs().max())
        generated = there.generate(**batch(device), num_beams=beams)[:, 1:]
        length = min(generated.shape[1], ours[0].shape[2])
        same = (generated[:, :length] == ours[0][:, 0, :length]).all(1).float().mean()
        found += [(f"scores, beam {beams}", gap, 1e-3), (f"unlike generate(), beam {beams}", 1 - float(same), 0.1)]
    return found


TRAINING = {
    "max_steps": 40, "save_every": 10, "validate_every": 40, "log_every": 40, "tokens_per_step": 1400,
    "vocab_size": 800, "average_last": 1, "bleu_every": None, "max_epochs": None, "max_cpu_seconds": None,
}  # fmt: skip


def trainings() -> Found:
    """Compare repeated, resumed and killed trainings with an uninterrupted one, on Accelerate's device."""
    found: Found = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for precision, deterministic in (("no", False), ("bf16", False), ("bf16", True)):
            kind = f"{precision}, deterministic" if deterministic else precision
            keys = TRAINING | {"mixed_precision": precision, "deterministic": deterministic, "cache": f"{folder}/cache"}
            once = trained(keys, folder / f"{kind}-once")
            others = {
                "repeated": trained(keys, folder / f"{kind}-repeated"),
                "resumed": trained(keys, folder / f"{kind}-resumed", stop_after=30_000),
                "killed": trained(keys, folder / f"{kind}-killed", killed=True),
            }
            for name, other in others.items():
                worst = max(difference(other[key], tensor) for key, tensor in once.items())
                found.append((f"{name} training, {kind}", worst, 0.05))
                bits = f"{name} training is not bit-identical, {kind}"
                found.append((bits, float(worst > 0), 0 if deterministic else None))
    return found


def trained(
    keys: dict[str, Any], output: Path, stop_after: int | None = None, killed: bool = False
) -> dict[str, torch.Tensor]:
    """Train and return the weights. stop_after: tokens after which the run ends, to be resumed.

    Each run is a process: Accelerate keeps one precision for the life of a process.
    """
    words = recipe_words(keys | {"output_dir": str(output)})
    command = [sys.executable, "-m", "training", "--config", "demo", *words]
    if stop_after:
        subprocess.run([*command, f"--max_tokens={stop_after}"], check=True)
    if killed:
        kill_after_a_checkpoint(command, output)
    subprocess.run(command, check=True)
    return load_file(output / "model.safetensors")


def kill_after_a_checkpoint(command: list[str], output: Path) -> None:
    """Run the command and kill it (SIGKILL) after its first checkpoint. Raises RuntimeError if it ends before."""
    process = subprocess.Popen(command)
    while process.poll() is None and not any((output / "checkpoints").glob("step-*")):
        time.sleep(0.002)
    process.kill()
    if process.wait() >= 0:
        raise RuntimeError(f"{output}: the training ended before it was killed, with exit code {process.returncode}")


if __name__ == "__main__":
    run(check)
