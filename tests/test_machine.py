"""Settings that depend on the machine: micro-batches by a GPU's memory, precision, and whether a run is compiled."""

import platform
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.utils import DynamoBackend

from training import machine
from training.cost import training_memory
from training.launch import LAUNCHED
from training.loss import TrainingLoss
from training.machine import (
    check_compiler,
    check_precision,
    choose_compiler,
    choose_micro_batches,
    choose_precision,
)
from training.recipe import Recipe, load_recipe
from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
from vaswani_transformer.errors import UnavailableError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BASE = VaswaniTransformerConfig.from_preset("base", vocab_size=37000)
BIG = VaswaniTransformerConfig.from_preset("big", vocab_size=37000)
LARGE_GPU = 139 << 30  # bytes


def recipe_of(**keys: str) -> Recipe:
    return load_recipe("paper_base_en_de", {"micro_batches": "auto", **keys})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch):
    """gpu(memory): pretend that there is a GPU of this size, with bfloat16, for which torch can compile."""

    def pretend(memory: float = LARGE_GPU, can_compile: bool = True, bfloat16: bool = True) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=memory))
        monkeypatch.setattr(machine, "can_compile", lambda: can_compile)
        monkeypatch.setattr(machine, "this_device", lambda: CUDA)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: bfloat16)
        monkeypatch.setattr(machine, "is_initialized", lambda: False)

    for variable in ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_DYNAMO_BACKEND", LAUNCHED):
        monkeypatch.delenv(variable, raising=False)
    return pretend


@pytest.mark.parametrize("config", [BASE, BIG], ids=["base", "big"])
@pytest.mark.parametrize(
    ("processes", "fitting", "expected"),
    [
        (1, 1, 1), (1, 2, 2), (1, 5, 5), (1, 9, 8), (2, 1, 2), (2, 3, 4), (2, 9, 8), (3, 2, 3), (3, 5, 6), (3, 7, 8),
        (8, 1, 8),
    ],
)  # fmt: skip
def test_gpus_get_as_few_micro_batches_as_their_memory_needs(gpu, config, processes, fitting, expected):
    """A GPU into which a step in `fitting` micro-batches just fits, and into which one fewer does not."""
    gpu(training_memory(config, 50000 // fitting, "cuda") / machine.USABLE_MEMORY * 1.0001)
    assert choose_micro_batches(recipe_of(), config, CUDA, processes, {}) == expected


def test_only_gpus_change_the_number_of_micro_batches(gpu):
    gpu()
    assert choose_micro_batches(recipe_of(), BIG, CUDA, 1, {}) == 1
    assert choose_micro_batches(recipe_of(micro_batches="4"), BIG, CUDA, 1, {}) == 4
    assert choose_micro_batches(recipe_of(), BIG, CPU, 1, {}) == 8


def test_a_resumed_run_keeps_what_was_chosen_for_it(gpu, monkeypatch):
    gpu()
    saved = {"mixed_precision": "no", "corpus sha256": "..."}
    assert choose_micro_batches(recipe_of(), BIG, CUDA, 1, saved) == 8
    for device in (CUDA, CPU):  # a run from a GPU may end on a CPU
        assert choose_micro_batches(recipe_of(), BIG, device, 1, saved | {"micro_batches": 2}) == 2
        assert choose_micro_batches(recipe_of(), BIG, device, 1, saved | {"micro_batches": 10**9}) == 8
    assert choose_compiler(recipe_of(), CUDA, 100_000, 1, saved) == DynamoBackend.NO
    assert choose_compiler(recipe_of(), CUDA, 100, 1, saved | {"compiler": "inductor"}) == DynamoBackend.INDUCTOR
    assert choose_precision(None, saved, print) == "no"
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")  # several processes, started by this package
    monkeypatch.setenv(LAUNCHED, "1")
    assert choose_precision(None, saved, print) == "no" and choose_precision(None, {}, print) == "bf16"


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_training_keeps_no_more_memory_than_estimated(precision):
    """What autograd keeps for the backward pass, against the estimate for two micro-batch sizes."""
    config = VaswaniTransformerConfig.from_preset(
        "base", vocab_size=300, d_model=64, encoder_ffn_dim=256, decoder_ffn_dim=256
    )
    config._attn_implementation = "sdpa"  # as on a GPU
    module = TrainingLoss(VaswaniTransformerForConditionalGeneration(config), 0.1).train()
    kept = [kept_bytes(module, rows, precision) for rows in (4, 8)]
    estimated = [training_memory(config, rows * 50, "cpu") for rows in (4, 8)]
    assert kept[1] - kept[0] < estimated[1] - estimated[0] < 3 * (kept[1] - kept[0])


def kept_bytes(module: TrainingLoss, rows: int, precision: torch.dtype) -> int:
    """Return the bytes of the tensors that a forward pass keeps, for sentences of 25 tokens."""
    ids, positions = torch.randint(4, 300, (rows, 25)), torch.arange(rows * 25)
    storages: dict[int, Any] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        loss = module(ids, None, ids, positions, ids.flatten())
    assert loss[0].isfinite()
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize(
    ("wanted", "launched", "has_bfloat16", "expected"),
    [
        (None, None, True, "bf16"),
        (None, None, False, "no"),
        (None, "no", True, None),  # Accelerate reads it itself
        ("no", None, True, "no"),
        ("fp16", "bf16", True, "fp16"),
        ("bf16", None, False, "no"),
        (None, "bf16", False, "no"),
        ("fp16", "bf16", False, "fp16"),
    ],
)
def test_gpus_train_in_bfloat16_unless_told_otherwise(gpu, monkeypatch, wanted, launched, has_bfloat16, expected):
    gpu(bfloat16=has_bfloat16)
    if launched:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launched)
    said: list[str] = []
    assert choose_precision(wanted, {}, said.append) == expected
    assert len(said) == (expected == "no" != wanted) and all("fp16 is faster" in line for line in said)


@pytest.mark.parametrize(
    ("processor", "has_avx512_bf16", "torch_uses_it", "in_hardware"),
    [
        ("x86_64", True, True, True),
        ("x86_64", False, True, False),  # AVX-512 without BF16
        ("x86_64", False, False, False),
        ("aarch64", False, True, True),
        ("aarch64", False, False, False),
    ],
)
def test_a_cpu_that_would_emulate_bfloat16_trains_in_float32(
    monkeypatch, processor, has_avx512_bf16, torch_uses_it, in_hardware
):
    """With AVX2 alone, torch 2.13 took 8.4 s for a step in bfloat16 and 0.26 s in float32."""
    for variable in ("ACCELERATE_MIXED_PRECISION", LAUNCHED):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(machine, "is_initialized", lambda: False)
    monkeypatch.setattr(machine, "this_device", lambda: CPU)
    monkeypatch.setattr(platform, "machine", lambda: processor)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_avx512_bf16)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: torch_uses_it)
    expected = "bf16" if in_hardware else "no"
    assert choose_precision("bf16", {}, print) == expected
    assert choose_precision(None, {"mixed_precision": "bf16"}, print) == expected  # a run from another machine
    assert choose_precision(None, {}, print) is None


@pytest.mark.parametrize(
    ("keys", "device", "steps", "processes", "expected"),
    [
        ({}, CUDA, 100_000, 1, DynamoBackend.INDUCTOR),
        ({}, CUDA, 4_000, 1, DynamoBackend.NO),
        ({}, CUDA, 100_000, 2, DynamoBackend.NO),
        ({}, CPU, 100_000, 1, DynamoBackend.NO),
        ({"deterministic": "true"}, CUDA, 100_000, 1, DynamoBackend.NO),
        ({"compile": "yes"}, CPU, 10, 2, DynamoBackend.INDUCTOR),
        ({"compile": "no"}, CUDA, 100_000, 1, DynamoBackend.NO),
    ],
)
def test_long_runs_on_one_gpu_are_compiled(gpu, monkeypatch, keys, device, steps, processes, expected):
    gpu()
    assert choose_compiler(recipe_of(**keys), device, steps, processes, {}) == expected
    gpu(can_compile=False)
    without = DynamoBackend.INDUCTOR if keys.get("compile") == "yes" else DynamoBackend.NO
    assert choose_compiler(recipe_of(**keys), device, steps, processes, {}) == without
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "EAGER")  # the launcher decides, unless the recipe does
    assert choose_compiler(recipe_of(**keys), device, steps, processes, {}) == (expected if "compile" in keys else None)


def test_fp16_is_refused_on_a_cpu():
    with pytest.raises(UnavailableError, match="mixed_precision fp16 needs a GPU, .*; use bf16 or no"):
        check_precision("fp16", CPU)
    check_precision("fp16", CUDA)
    check_precision("bf16", CPU)


def test_a_compiler_that_cannot_work_is_refused(gpu):
    gpu(can_compile=False)
    with pytest.raises(UnavailableError, match="compile yes needs Triton, a C compiler .* use --compile no"):
        check_compiler(recipe_of(compile="yes"), CUDA, False)
    with pytest.raises(UnavailableError, match="compile yes is not supported with FSDP; use --compile no"):
        check_compiler(recipe_of(compile="yes"), CPU, True)
    check_compiler(recipe_of(compile="yes"), CPU, False)
    check_compiler(recipe_of(), CUDA, True)


@pytest.mark.parametrize(
    ("tokens", "processes", "device", "advised"),
    [(2000, 8, CUDA, 1), (8192, 8, CUDA, 2), (50000, 8, CUDA, None), (2000, 1, CUDA, None), (2000, 8, CPU, None)],
)
def test_gpus_that_share_a_small_step_are_a_warning(tokens, processes, device, advised):
    warning = machine.small_share_warning(tokens, processes, device)
    assert (warning is None) == (advised is None)
    if warning is not None:
        assert f"{processes} GPUs share steps of {tokens:,} tokens, {tokens // processes:,} each" in warning
        assert f"--processes {advised}, or" in warning
