"""Do a GPU and the CPU compute the same, and does training resume exactly?

    python -m benchmarks.gpu_checks --device cuda --record gpu_checks.csv

Row:  a check: logits, gradients, the training loss, beam search, the ONNX file, and training that is repeated, stopped
      or killed.
Unit: `difference`, relative to the expected norm (for scores, absolute), and its limit.
Peer: the CPU in float64 or float32; for training, an uninterrupted run on the same device.

The exit code is 1 if a limit is exceeded. Six rows have no limit: they state whether repeated, resumed and killed
training is bit-identical, which torch's fused attention does not guarantee on a GPU. With `deterministic` in the
recipe, it must be.
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

from conversion.onnx.export import export_single_folder
from training.loss import linear_cross_entropy
from vaswani_transformer import (
    OnnxTranslator,
    SearchSettings,
    VaswaniTransformerConfig,
    VaswaniTransformerForConditionalGeneration,
)
from vaswani_transformer.beam_search import beam_search
from vaswani_transformer.errors import UnavailableError

from .decode_base_size import save_random_model
from .harness import report, run
from .options import Device, Record

VOCABULARY = 900
SIZES: dict[str, Any] = {
    "d_model": 256,
    "encoder_layers": 3,
    "decoder_layers": 3,
    "encoder_ffn_dim": 512,
    "decoder_ffn_dim": 512,
}
# Options of `python -m training`.
TRAINING = (
    "--config demo --max_steps 40 --save_every 10 --validate_every 40 --log_every 40 --tokens_per_step 1400 "
    "--vocab_size 800 --average_last 1 --bleu_every null --max_epochs null --max_cpu_seconds null"
)
Found = list[tuple[str, float, float | None]]  # check, difference, its limit


def check(device: Device = "cuda", record: Record = None) -> None:
    """Check training and decoding on a device."""
    torch.manual_seed(0)
    config = VaswaniTransformerConfig(vocab_size=VOCABULARY, dropout=0.0, **SIZES)
    model: Any = VaswaniTransformerForConditionalGeneration(config).eval()
    passed = [
        reported(forward_passes(model, device), device, record),
        reported(losses(device), device, record),
        reported(searches(model, device), device, record),
        reported(graphs(device), device, record),
        reported(trainings(), device, record),
    ]
    if not all(passed):
        raise typer.Exit(1)


def reported(found: Found, device: str, record: Path | None) -> bool:
    """Print and record the differences; return whether all are within their limits."""
    if not found:
        return True
    rows = [
        {"device": device, "check": name, "difference": f"{value:.1e}", "limit": "" if limit is None else limit}
        for name, value, limit in found
    ]
    report(rows, record)
    return all(limit is None or value <= limit for _, value, limit in found)


def relative_difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the norm of the difference relative to the norm of the expected tensor."""
    expected = expected.detach().double().cpu()
    return float((found.detach().double().cpu() - expected).norm() / expected.norm())


def random_batch(device: str) -> dict[str, Any]:
    """Return 12 random sources of 3 to 23 tokens, with </s> (2) and padding (1)."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(4, VOCABULARY, (12, 23), generator=generator)
    mask = torch.ones_like(ids)
    for row, length in enumerate(torch.randint(3, 24, (12,), generator=generator).tolist()):
        ids[row, length - 1], ids[row, length:], mask[row, length:] = 2, 1, 0
    return {"input_ids": ids.to(device), "attention_mask": mask.to(device)}


# ---- the model, its loss and its search --------------------------------------------------------------------------


def forward_passes(model: Any, device: str) -> Found:
    """Compare logits and gradients, by attention kernel and dtype, with those of the CPU in float64."""
    labels = torch.randint(4, VOCABULARY, (12, 17))
    exact = copy.deepcopy(model).double().train()
    expected = exact(**random_batch("cpu"), labels=labels)
    expected.loss.backward()
    found: Found = []
    limits = {torch.float32: 1e-5, torch.bfloat16: 5e-2, torch.float16: 5e-3}
    for kernel in ("eager", "sdpa"):
        for dtype, limit in limits.items():
            ours = copy.deepcopy(model).to(device, dtype).train()
            ours.set_attn_implementation(kernel)
            output = ours(**random_batch(device), labels=labels.to(device))
            name = f"{kernel} {str(dtype).removeprefix('torch.')}"
            found.append((f"logits, {name}", relative_difference(output.logits, expected.logits), limit))
            if dtype == torch.float32:
                output.loss.backward()
                pairs = zip(ours.parameters(), exact.parameters(), strict=True)
                # A single ReLU that rounds to the other side of zero changes a matrix's gradient by 4e-3.
                worst = max(relative_difference(a.grad, b.grad) for a, b in pairs)
                found.append((f"gradients, {name}", worst, 1e-2))
    return found


def losses(device: str) -> Found:
    """Compare the training loss and its gradients, by precision, with those of the CPU in float64."""
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
        worst = max(relative_difference(a, b) for a, b in zip(ours, exact, strict=True))
        found.append((f"training loss and gradients, {str(dtype).removeprefix('torch.')}", worst, limit))
    return found


def searches(model: Any, device: str) -> Found:
    """Compare the scores of the best hypotheses: near ties may change the tokens."""
    there = copy.deepcopy(model).to(device)
    found: Found = []
    for beams in (1, 4, 8):
        search = SearchSettings(beams)
        (ours, expected) = (
            beam_search(each, batch["input_ids"], batch["attention_mask"], search)
            for each, batch in ((there, random_batch(device)), (model, random_batch("cpu")))
        )
        gap = float((ours[1][:, 0].cpu() - expected[1][:, 0]).abs().max())
        generated = there.generate(**random_batch(device), num_beams=beams)[:, 1:]
        length = min(generated.shape[1], ours[0].shape[2])
        same = (generated[:, :length] == ours[0][:, 0, :length]).all(1).float().mean()
        found += [(f"scores, beam {beams}", gap, 1e-3), (f"unlike generate(), beam {beams}", 1 - float(same), 0.1)]
    return found


def graphs(device: str) -> Found:
    """Compare the scores that ONNX Runtime finds on the device with those on the CPU, in float32 and float16."""
    found: Found = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        save_random_model(folder / "model", {"vocab_size": VOCABULARY, **SIZES})
        batch = random_batch("cpu")
        sources = [
            ids[mask].tolist() for ids, mask in zip(batch["input_ids"], batch["attention_mask"].bool(), strict=True)
        ]
        export_single_folder(folder / "model", folder / "fp32")
        expected = OnnxTranslator.from_pretrained(folder / "fp32", device="cpu")
        limits = {"fp32": 1e-3} if device == "cpu" else {"fp32": 1e-3, "fp16": 5e-2}
        for precision, limit in limits.items():
            if precision != "fp32":
                export_single_folder(folder / "model", folder / precision, precision)
            try:
                ours = OnnxTranslator.from_pretrained(folder / precision, device=device)
            except UnavailableError as error:
                typer.echo(f"no rows of ONNX Runtime: {error}", err=True)
                return found
            for beams in (1, 4):
                best = []
                for each in (ours, expected):
                    search = each._open_search(each.change_search(num_beams=beams), alignments=False, one_thread=False)
                    best.append([scores[0] for scores in search.run(sources).scores])
                gap = max(abs(a - b) for a, b in zip(*best, strict=True))
                found.append((f"scores of ONNX Runtime, {precision}, beam {beams}", gap, limit))
    return found


# ---- training ----------------------------------------------------------------------------------------------------


def trainings() -> Found:
    """Compare repeated, resumed and killed trainings with an uninterrupted one, on Accelerate's device."""
    found: Found = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for precision, deterministic in (("no", False), ("bf16", False), ("bf16", True)):
            kind = f"{precision}, deterministic" if deterministic else precision
            options = [*TRAINING.split(), "--cache", f"{folder}/cache", "--mixed_precision", precision]
            options += ["--deterministic", str(deterministic).lower()]
            once = trained(options, folder / f"{kind}-once")
            others = {
                "repeated": trained(options, folder / f"{kind}-repeated"),
                "resumed": trained(options, folder / f"{kind}-resumed", stop_after=30_000),
                "killed": trained(options, folder / f"{kind}-killed", killed=True),
            }
            for name, other in others.items():
                worst = max(relative_difference(other[key], tensor) for key, tensor in once.items())
                found.append((f"{name} training, {kind}", worst, 0.05))
                bits = f"{name} training is not bit-identical, {kind}"
                found.append((bits, float(worst > 0), 0 if deterministic else None))
    return found


def trained(
    options: list[str], output: Path, stop_after: int | None = None, killed: bool = False
) -> dict[str, torch.Tensor]:
    """Train and return the weights. stop_after: tokens after which the run ends, to be resumed.

    Each run is a process: Accelerate keeps one precision for the life of a process.
    """
    command = [sys.executable, "-m", "training", *options, "--output_dir", str(output)]
    if stop_after:
        subprocess.run([*command, "--max_tokens", str(stop_after)], check=True)
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
