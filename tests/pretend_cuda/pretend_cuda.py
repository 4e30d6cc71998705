"""A CPU-only torch with a device "cuda" whose memory the CPU may not touch: import this before torch.

The extension (pretend.cpp, built by tests/test_pretend_gpu.py) lies where the environment variable PRETEND_CUDA says.
Mixing devices raises, as on a GPU; `where_it_waits` counts the times that the host waits for the device, by line.
"""

import contextlib
import ctypes
import os
import sys
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Any

assert "torch" not in sys.modules, "import pretend_cuda before torch: torch asks for CUDA's hooks once"
library = os.environ["PRETEND_CUDA"]
sys.path.insert(0, os.path.dirname(library))
ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
import torch  # noqa: E402, I001
from torch import distributed  # noqa: E402
import _pretend  # noqa: E402  # pyright: ignore[reportMissingImports]

PROJECT = ("/vaswani_transformer/", "/training/", "transformers/", "accelerate/", "torch/optim", "torch/amp")


class Properties:
    name, major, minor, total_memory, multi_processor_count = "pretended GPU", 9, 0, 139 << 30, 132
    max_threads_per_multi_processor, warp_size, gcnArchName, uuid, L2_cache_size = 2048, 32, "", "0", 60 << 20


def always(value: Any) -> Any:
    """Return a new function: torch.compile tells functions apart by their identity."""
    return lambda *_, **__: value


cuda: Any = torch.cuda
for name, value in {
    "is_available": True, "is_initialized": True, "_is_compiled": True, "device_count": 1, "_device_count_nvml": 1,
    "current_device": 0, "get_device_name": Properties.name, "get_device_capability": (9, 0),
    "get_device_properties": Properties(), "is_bf16_supported": True, "is_current_stream_capturing": False,
    "memory_allocated": 0, "max_memory_allocated": 0, "memory_reserved": 0,
}.items():  # fmt: skip
    setattr(cuda, name, always(value))
for name in ("set_device", "_lazy_init", "init", "synchronize", "empty_cache", "reset_peak_memory_stats"):
    setattr(cuda, name, always(None))
for module in (cuda, cuda.random):
    for name in ("manual_seed", "manual_seed_all", "set_rng_state", "set_rng_state_all"):
        setattr(module, name, always(None))
    module.get_rng_state = lambda *_: torch.get_rng_state()
    module.get_rng_state_all = lambda: [torch.get_rng_state()]
internal: Any = torch._C
internal._cuda_getDevice = always(0)
internal._cuda_getDeviceCount = always(1)
internal._cuda_getCurrentRawStream = always(0)
torch.backends.cuda.is_built = always(True)
cuda.device = cuda._DeviceGuard = contextlib.nullcontext
assert _pretend.hooks_ok(), "torch asked for CUDA's hooks before"


class Stream:
    """All kernels of the pretended device are finished when they return, so there is nothing to wait for."""

    device_type, device_index, stream_id = 1, 0, 0

    def __init__(self, *_: object, **__: object): ...
    def record_event(self, *_: object) -> "Event":
        return Event()

    def is_capturing(self) -> bool:
        return False

    wait_stream = wait_event = synchronize = lambda *_: None


class Event:
    def __init__(self, *_: object, **__: object): ...
    def record(self, *_: object) -> None: ...

    wait = synchronize = lambda *_: None


cuda.Stream, cuda.Event, cuda.stream = Stream, Event, lambda _: contextlib.nullcontext()
cuda.current_stream = cuda.default_stream = torch.accelerator.current_stream = lambda *_: Stream()


real_resize = torch.UntypedStorage.resize_


def resize_storage(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
    """Stand in for a method of which a CPU-only torch has no half for CUDA; FSDP frees weights with it."""
    if storage.device.type != "cuda":
        return real_resize(storage, size)
    _pretend.resize_storage(torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage), size)
    return storage


setattr(torch.UntypedStorage, "resize_", resize_storage)  # noqa: B010  # its parameters have other names


def exchange(store: Any, rank: int, size: int, timeout: Any) -> Any:
    return _pretend.exchange(distributed.ProcessGroupGloo(store, rank, size, timeout=timeout))


distributed.Backend.register_backend("pretend", exchange, devices=["cuda"])
real_init = distributed.init_process_group


def init_process_group(backend: str | None = None, **keys: Any) -> None:
    """Begin with `pretend` where Accelerate asks for NCCL."""
    real_init("cpu:gloo,cuda:pretend" if backend == "nccl" else backend, **keys)


distributed.init_process_group = init_process_group


@contextlib.contextmanager
def where_it_waits() -> Iterator[Counter[str]]:
    """Count the waits inside by "file:line code" of the innermost frame of the project, transformers or Accelerate."""
    found: Counter[str] = Counter()

    def note() -> None:
        frames = [each for each in traceback.extract_stack() if any(part in each.filename for part in PROJECT)]
        frames = [each for each in frames if "pretend" not in each.filename]
        where = frames[-1] if frames else traceback.extract_stack()[0]
        found[f"{'/'.join(where.filename.split('/')[-2:])}:{where.lineno} {where.line}"] += 1

    _pretend.on_sync(note)
    try:
        yield found
    finally:
        _pretend.on_sync(None)
