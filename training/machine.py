"""The machine: settings that depend on its hardware, and checks for unsupported combinations.

`saved`: the choices that the newest checkpoint of the run records, or {} for a new run.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import is_initialized
from accelerate.utils import DynamoBackend

from vaswani_transformer import VaswaniTransformerConfig
from vaswani_transformer.errors import InputError, UnavailableError

from .cost import training_memory
from .launch import LAUNCHED
from .recipe import BatchSettings, HardwareSettings

# training_memory estimates 1.2 times what autograd keeps in float32, 1.9 times what it keeps in bfloat16. The rest of a
# GPU's memory is for its libraries and for gaps between tensors.
USABLE_MEMORY = 0.8
SMALL_SHARE = 3_000  # tokens of a step for each GPU: half of the paper's (section 5.2)
WORTH_COMPILING = 20_000  # steps; compiling the base model takes one to three minutes
# On a CPU, torch's fused attention is faster than plain matrix products only for longer sentences (mean length).
SHORT_SENTENCE = 60


def set_up_process(matmul_precision: str, device: torch.device) -> str:
    """Choose the process-wide settings of the C library and torch for a device; return the float32 matmul precision."""
    if device.type == "cpu" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        # glibc returns every large tensor to the system by default. The page faults of a new activation of a few MB
        # then cost more than the product that fills it.
        trim_threshold, mmap_threshold = -1, -3  # malloc.h
        mallopt(trim_threshold, 1 << 30)
        mallopt(mmap_threshold, 1 << 30)
    if device.type == "cuda":
        # torch 2.11 prefers cuDNN's attention on an H100. It builds a plan for every new shape, and nearly all batches
        # have a new shape (modelscope/FunASR#3704 measured 1 s for each).
        torch.backends.cuda.enable_cudnn_sdp(False)
    return set_matmul_precision(matmul_precision, device)


def set_matmul_precision(wanted: str, device: torch.device) -> str:
    """Set and return torch's float32 matmul precision.

    "medium" uses oneDNN, which is twice as fast as MKL on AMD. On CPUs with AMX it may use bfloat16 arithmetic, so
    "auto" chooses it only if a product is as accurate as with float32.
    """
    chosen = wanted
    if wanted == "auto" and device.type == "cpu":
        generator = torch.Generator().manual_seed(0)
        left, right = (torch.randn(512, 512, generator=generator) for _ in range(2))
        exact = left.double() @ right.double()
        torch.set_float32_matmul_precision("medium")
        error = ((left @ right).double() - exact).abs().max() / exact.abs().max()
        chosen = "medium" if error < 2e-5 else "highest"  # float32 gives about 1e-6 here, bfloat16 3e-3
    elif wanted == "auto":
        chosen = "high"  # TensorFloat-32 on NVIDIA: ten bits of mantissa, as in mixed-precision training
    torch.set_float32_matmul_precision(chosen)
    return chosen


def this_device() -> torch.device:
    """Return the GPU or another accelerator, or the CPU if there is none."""
    return torch.device(torch.accelerator.current_accelerator(check_available=True) or "cpu")


def autocast_dtype(precision: str | None) -> torch.dtype | None:
    """Return the type of autocast for a mixed precision, or None for float32."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision or "no")


def choose_precision(wanted: str | None, saved: Mapping[str, Any], say: Callable[[str], None]) -> str | None:
    """Return the mixed precision to ask Accelerate for; None keeps that of `accelerate launch`, or float32.

    The recipe decides first, then `accelerate launch`, then the resumed run; a new run on a GPU uses bf16.
    Float32 replaces bf16 where it would be emulated: with AVX2 alone, torch 2.13 takes 32 times as long for a step.
    """
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION") if LAUNCHED not in os.environ else None
    if wanted is None and launched is None and not is_initialized():
        wanted = saved.get("mixed_precision", "bf16" if this_device().type == "cuda" else None)
    asked = launched if wanted is None else wanted
    if asked == "bf16" and not has_bfloat16():
        faster = "; --mixed_precision fp16 is faster" if this_device().type == "cuda" else ""
        say(f"this hardware would have to emulate bf16, which is slow, so training uses float32{faster}")
        return "no"
    return wanted


def check_precision(precision: str | None, device: torch.device) -> None:
    """Raise an error for a precision that Accelerate would replace by float32 without a warning, as fp16 on a CPU.

    Accelerate takes any word from its environment variable.
    """
    if precision not in (None, "no", "bf16", "fp16"):
        raise InputError(
            f"ACCELERATE_MIXED_PRECISION is {precision!r}; it must be no, bf16 or fp16: Accelerate would ignore others"
        )
    if precision == "fp16" and device.type == "cpu":
        raise UnavailableError("mixed_precision fp16 needs a GPU, and there is none; use bf16 or no")


def has_bfloat16() -> bool:
    """Return whether the GPU, or the CPU if there is none, multiplies bfloat16 in hardware."""
    device = this_device()
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type != "cpu" or torch.cpu._is_avx512_bf16_supported():
        return True
    # On x86, torch calls AVX-512 alone enough.
    is_arm = platform.machine().lower() in ("aarch64", "arm64") and torch.backends.mkldnn.is_available()
    return is_arm and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def choose_attention(wanted: str, device: torch.device, mean_length: float) -> str:
    """Return the transformers attention implementation to train with."""
    if wanted != "auto":
        return wanted
    return "eager" if device.type == "cpu" and mean_length < SHORT_SENTENCE else "sdpa"


def choose_micro_batches(
    settings: BatchSettings,
    config: VaswaniTransformerConfig,
    device: torch.device,
    processes: int,
    saved: Mapping[str, Any],
) -> int:
    """Return the number of micro-batches of a step.

    "auto": on GPUs the smallest multiple of `processes` with which a process fits into its memory, at most 8, because
    starting the kernels of a small micro-batch takes the host longer than computing it takes the GPU; elsewhere 8.
    A resumed run keeps its number, because it determines the pairs of a step, unless the recipe now allows fewer, so
    that a pair might not fit into them.
    """
    if settings.micro_batches == "auto" and saved:
        return min(saved.get("micro_batches", settings.max_micro_batches), settings.max_micro_batches)
    if settings.micro_batches != "auto" or device.type != "cuda":
        return settings.max_micro_batches
    memory = USABLE_MEMORY * torch.cuda.get_device_properties(device).total_memory
    for number in range(processes, settings.max_micro_batches, processes):
        if training_memory(config, settings.tokens_per_step // number, device.type) <= memory:
            return number
    return settings.max_micro_batches


def small_share_warning(tokens_per_step: int, processes: int, device: torch.device) -> str | None:
    """Return a warning if several GPUs divide a step that a single one could compute in about the same time."""
    share = tokens_per_step // processes
    if device.type != "cuda" or processes == 1 or share >= SMALL_SHARE:
        return None
    number = max(1, tokens_per_step // SMALL_SHARE)
    return (
        f"warning: {processes} GPUs share steps of {tokens_per_step:,} tokens, {share:,} each; a GPU needs more tokens "
        f"to be busy, so train with --processes {number}, or with a larger tokens_per_step"
    )


def choose_compiler(
    settings: HardwareSettings, device: torch.device, steps: int, processes: int, saved: Mapping[str, Any]
) -> DynamoBackend | None:
    """Return the compiler of the model, or None to keep that of `accelerate launch`.

    "auto" compiles long runs of one process on a GPU, unless they are deterministic: a resumed run may compile
    differently. A resumed run keeps its choice: compiled dropout draws different masks.
    """
    if settings.compile == "yes":
        return DynamoBackend.INDUCTOR
    if settings.compile == "no":
        return DynamoBackend.NO
    if "ACCELERATE_DYNAMO_BACKEND" in os.environ:
        return None
    new = device.type == "cuda" and processes == 1 and steps >= WORTH_COMPILING and not settings.deterministic
    wanted = saved.get("compiler") == "inductor" if saved else new
    return DynamoBackend.INDUCTOR if wanted and can_compile() else DynamoBackend.NO


def check_compiler(settings: HardwareSettings, device: torch.device, shard_weights: bool) -> None:
    """Raise UnavailableError if the settings ask for a compiler that cannot work here or with FSDP."""
    if settings.compile == "yes" and shard_weights:
        raise UnavailableError("compile yes is not supported with FSDP; use --compile no")
    if settings.compile == "yes" and device.type == "cuda" and not can_compile():
        raise UnavailableError("compile yes needs Triton, a C compiler and the headers of Python; use --compile no")


def can_compile() -> bool:
    """Return whether inductor can compile for a GPU, for which Triton builds a stub in C for each kernel."""
    from torch.utils._triton import has_triton

    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    return has_triton() and compiler is not None and Path(sysconfig.get_path("include"), "Python.h").is_file()


def seed_torch(*numbers: int) -> None:
    """Seed torch from a hash of these numbers, so that there is no generator state to save."""
    digest = hashlib.blake2b(",".join(map(str, numbers)).encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "big") >> 1
    if torch.accelerator.is_available():
        torch.manual_seed(seed)
    else:  # ten times as fast, because it seeds no other devices
        torch.default_generator.manual_seed(seed)


def use_deterministic_algorithms() -> None:
    """Use deterministic kernels, and raise where a GPU has none.

    Call it before the first kernel. It applies to the whole process, until torch.use_deterministic_algorithms(False).
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    # Otherwise torch fills every new tensor with NaN, to expose reads of uninitialised memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that affect the weights."""
    return {name: version(name) for name in ("torch", "numpy", "transformers", "tokenizers")}


def describe_environment(accelerator: Accelerator, shard_weights: bool) -> dict[str, Any]:
    """Return what affects bit-exact results: hardware, libraries, and automatic choices."""
    environment: dict[str, Any] = {
        "python": sys.version.split()[0],
        **package_versions(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if accelerator.device.type == "cuda" else accelerator.device.type,
        "mixed_precision": str(accelerator.mixed_precision),
    }
    compiler: Any = accelerator.state.dynamo_plugin
    if compiler.backend != DynamoBackend.NO:
        environment["compiler"] = compiler.backend.value.lower()
    if torch.are_deterministic_algorithms_enabled():
        environment["algorithms"] = "deterministic"
    if shard_weights:
        environment["weights"] = "split by FSDP"
    return environment
