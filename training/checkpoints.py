"""Checkpoints that survive a kill at any instant: each folder is complete or absent.

    output_dir/checkpoints/step-1500/   model.safetensors, config.json, ..., optimizer.safetensors,
                                        trainer_state.json, and manifest.json with every file's size and sha256
    output_dir/checkpoints/latest       the name of the newest one
    output_dir/checkpoints/best         the name of the one with the lowest validation loss

A checkpoint is renamed to its final name when all files are on disk, the manifest last. Older checkpoints are removed
only after that.

Written    every `save_every` steps, at a new best validation loss, at the end of the run, and on a signal (`save`)
Kept       the newest, the best, and the newest `keep` of those at multiples of `save_every` (`prune`)
Averaged   the newest `average_last` of those at multiples of `save_every` and the last one (`select_regular`)
Resumed    the newest that matches its manifest (`newest_intact`); docs/explanation/determinism.md says why the
           run then ends with the same bits
"""

import dataclasses
import errno
import math
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import torch
from accelerate.utils import PrecisionType, broadcast_object_list
from safetensors import SafetensorError

from vaswani_transformer import VaswaniTransformerConfig
from vaswani_transformer.atomic import atomic_file, atomic_folder, remove, temporary_path
from vaswani_transformer.errors import BrokenFileError, InputError, UnavailableError
from vaswani_transformer.files import file_sha256, read_json_object, write_json
from vaswani_transformer.loading import load_config
from vaswani_transformer.model_folder import MANIFEST, OPTIMIZER, WEIGHTS, verify_manifest
from vaswani_transformer.sentences_vaswani_transformer import TARGET_TOKENIZER
from vaswani_transformer.training_run import (
    RECORD,
    STATE,
    check_types,
    list_checkpoints,
    parse_step,
    read_pointer,
    read_run,
)

from . import tensors
from .corpus import VALIDATION_SHA256, Corpora
from .model import Network
from .processes import check_same_on_all_processes
from .recipe import CheckpointSettings, RunSettings, differences
from .report import Reporter
from .run_folder import check_unchanged

RESUMED_FILES = (WEIGHTS, OPTIMIZER, STATE)
MAX_BAD_STEPS = 10  # in a row, whose gradient is not finite


@dataclasses.dataclass
class Progress:
    """Everything a checkpoint holds besides weights and moments."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0  # spent in steps
    cpu_seconds: float = 0.0  # spent in steps, of all processes
    wall_seconds: float = 0.0  # validation, checkpoints and preparation included
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    best_loss: float | None = None
    best_step: int | None = None
    validated_step: int = 0
    validations_since_best: int = 0

    @classmethod
    def read(cls, record: dict[str, Any], path: Path) -> "Progress":
        """Return the progress that a checkpoint records. Raises BrokenFileError naming the field of the file."""
        fields = {field.name: field.type for field in dataclasses.fields(cls)}
        if unknown := record.keys() - fields:
            raise BrokenFileError(f"{path}: progress has an unknown field {min(unknown)}")
        for name, kind in fields.items():
            number = float if isinstance(0.5, cast(type, kind)) else int
            may_be_null = name in record and isinstance(None, cast(type, kind))
            check_types(f"{path}: progress", record, {name: number}, required=not may_be_null)
        return cls(**record)

    def record_gradient(self, finite: bool) -> None:
        """Count a step, and whether its gradient was not finite. Raises InputError after MAX_BAD_STEPS such steps."""
        self.skipped_steps += not finite
        self.skipped_in_a_row = 0 if finite else self.skipped_in_a_row + 1
        if self.skipped_in_a_row >= MAX_BAD_STEPS:
            raise InputError(
                f"{self.skipped_in_a_row} steps in a row had a loss or gradient that is not finite; try a lower "
                "learning rate or a longer warm-up. The last checkpoint is intact"
            )

    def record_validation(self, loss: float) -> None:
        if math.isfinite(loss) and (self.best_loss is None or loss < self.best_loss):
            self.best_loss, self.best_step, self.validations_since_best = loss, self.step, 0
        else:
            self.validations_since_best += 1
        self.validated_step = self.step


class Checkpointer:
    """Saves the state between two steps in the background, and restores the newest one."""

    def __init__(
        self,
        root: Path,
        network: Network,
        corpora: Corpora,
        settings: CheckpointSettings,
        run_settings: RunSettings,
        state: dict[str, Any],
        reporter: Reporter,
    ):
        """corpora: for the tokenizers, which every checkpoint contains

        state: "fingerprint", which must be the same when the run is resumed, and "environment", which may differ but
            affects bit-exact results
        """
        self.root, self.network, self.corpora = root, network, corpora
        self.settings, self.run_settings, self.state, self.reporter = settings, run_settings, state, reporter
        self.executor = ThreadPoolExecutor(max_workers=1)
        self.writing: Future[None] | None = None

    def save(self, progress: Progress) -> None:
        """Copy the state now and write it while training continues; all processes must call this together."""
        model, accelerator = self.network.model, self.network.accelerator
        parameters = dict(model.named_parameters())
        moments = tensors.optimizer_tensors(model, self.network.optimizer.optimizer)
        if not accelerator.is_main_process:
            tensors.cpu_copies(parameters | moments, keep=False)
            return
        started = time.perf_counter()
        self.finish_writing()  # one at a time: a second copy may not fit into memory
        weights, moments = tensors.cpu_copies(parameters), tensors.cpu_copies(moments)
        if (name := tensors.not_finite(weights | moments)) is not None:
            raise InputError(
                f"step {progress.step}: {name} contains NaN or infinity, so it is not saved; try a lower learning rate "
                "or a larger adam_epsilon. Earlier checkpoints are intact"
            )
        scaler = accelerator.scaler
        scaler_state = scaler.state_dict() if scaler else None
        state = {"progress": dataclasses.asdict(progress), "gradient_scaler": scaler_state, **self.state}
        self.writing = self.executor.submit(self._write, weights, moments, state)
        stall = time.perf_counter() - started
        self.reporter.write({"event": "checkpoint", "step": progress.step, "stall_seconds": stall})

    def _write(self, weights: dict[str, torch.Tensor], moments: dict[str, torch.Tensor], state: dict[str, Any]) -> None:
        step = state["progress"]["step"]

        def fill(folder: Path) -> None:
            self.network.model.save_pretrained(folder, state_dict=weights)
            self.corpora.tokenizer.save_pretrained(folder)
            if self.corpora.target_tokenizer is not None:
                self.corpora.target_tokenizer.save_pretrained(folder / TARGET_TOKENIZER)
            tensors.save_tensors(moments, folder / OPTIMIZER)
            write_json(folder / STATE, state)

        size = sum(tensor.nbytes for tensor in (*weights.values(), *moments.values()))
        save_checkpoint(self.root, step, fill, size)
        if state["progress"]["best_step"] == step:
            write_pointer(self.root / "best", f"step-{step}")
        prune(self.root, self.settings.keep, self.settings.save_every)

    def finish_writing(self) -> None:
        """Wait until the last checkpoint is on disk. Raises the error of writing it, unless keep_going is set."""
        writing, self.writing = self.writing, None
        try:
            if writing is not None:
                writing.result()
        except (UnavailableError, OSError) as error:
            if not self.run_settings.keep_going:
                raise
            self.reporter.say(f"{error}; training continues")

    def raise_if_failed(self) -> None:
        """Raise the error of a finished background write, without waiting for a running one."""
        if self.writing is not None and self.writing.done():
            self.finish_writing()

    def mark_best(self, progress: Progress) -> None:
        """Point `best` at the checkpoint of this step if it is the best."""
        if self.network.accelerator.is_main_process and progress.best_step == progress.step:
            write_pointer(self.root / "best", f"step-{progress.step}")

    def restore(self) -> Progress:
        """Load the newest intact checkpoint into the model and the optimizer; return the run's progress."""
        network, folder = self.network, None
        if network.accelerator.is_main_process:
            folder = newest_intact(self.root, self.reporter.say)
        (folder,) = broadcast_object_list([folder])
        if folder is None:
            return Progress()
        if not network.accelerator.is_main_process:
            verify_manifest(folder, RESUMED_FILES)
        manifest = folder / MANIFEST
        name = f"sha256 of {folder.name}/{MANIFEST}"
        check_same_on_all_processes({name: file_sha256(manifest) if manifest.is_file() else "missing"})
        progress = self._restore_state(folder)
        tensors.restore_model(network.model, folder)
        taken = progress.step - progress.skipped_steps
        tensors.restore_optimizer(network.model, network.optimizer.optimizer, folder, taken)
        self.reporter.say(f"resuming from {folder.name}")
        return progress

    def _restore_state(self, folder: Path) -> Progress:
        path = folder / STATE
        state = read_checkpoint_state(folder)
        progress, environment = Progress.read(state["progress"], path), state["environment"]
        if progress.step != parse_step(folder):
            raise BrokenFileError(
                f"{path}: progress: step is {progress.step}; rename the folder to step-{progress.step}"
            )
        # The config of initial_weights may have changed: that of a folder, or of a repository on the Hub.
        before = state["fingerprint"] | {"config": own_fields(load_config(folder))}
        now = self.state["fingerprint"] | {"config": own_fields(self.network.model.config)}
        check_unchanged(before, now, self.run_settings, self.reporter.say)
        if before.get(VALIDATION_SHA256) != now[VALIDATION_SHA256]:  # losses of two texts cannot be compared
            progress = dataclasses.replace(progress, best_loss=None, best_step=None, validations_since_best=0)
        for change in differences(environment, self.state["environment"]):
            self.reporter.say(f"warning: {change}: the last bits of the weights may differ from an uninterrupted run")
        scaler = self.network.accelerator.scaler
        if scaler is not None and environment.get("mixed_precision") == "fp16":
            restore_scaler(scaler, state, path)
        return progress


def own_fields(config: VaswaniTransformerConfig) -> dict[str, Any]:
    """Return the fields that this package has added to those of every configuration."""
    return {name: getattr(config, name) for name in VaswaniTransformerConfig.__annotations__}


# ---- folders -----------------------------------------------------------------------------------------------------


def save_checkpoint(root: Path, step: int, write: Callable[[Path], None], bytes_needed: int = 0) -> None:
    """Create root/step-N from the files that `write(folder)` puts into an empty folder.

    bytes_needed: estimate of the size, compared with the free space beforehand.
    Raises UnavailableError (disk full, read-only); earlier checkpoints are not affected.
    """
    final = root / f"step-{step}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if bytes_needed > shutil.disk_usage(root).free:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        with atomic_folder(final) as folder:
            write(folder)
            write_manifest(folder, [path for path in folder.rglob("*") if path.is_file()], step=step)
        write_pointer(root / "latest", final.name)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UnavailableError(
            f"checkpoint {final} cannot be written: {reason} (about {bytes_needed} bytes needed, "
            f"{shutil.disk_usage(root if root.exists() else root.parent).free} free); the previous one is intact"
        ) from error


def write_manifest(folder: Path, files: Iterable[Path], **about: Any) -> None:
    """Write manifest.json with name, size and sha256 of these files."""
    entries = [
        {"name": path.relative_to(folder).as_posix(), "size": path.stat().st_size, "sha256": file_sha256(path)}
        for path in sorted(files)
    ]
    write_json(folder / MANIFEST, {**about, "files": entries})


def prune(root: Path, keep: int, every: int) -> None:
    """Remove all checkpoints but the newest, the best, and the newest `keep` whose step is a multiple of `every`.

    Checkpoints that a signal made in between do not displace those that are averaged into the final model.
    """
    kept = {folder.name for folder in select_regular(root, every)[:keep]} | {read_pointer(root / "best")}
    for folder in list_checkpoints(root)[1:]:
        if folder.name not in kept:
            try:
                with temporary_path(folder) as temporary:  # never half removed under its final name
                    shutil.move(folder, temporary)  # which copies what lies in another layer of a container's disk
            except PermissionError as error:
                raise UnavailableError(
                    f"{folder} cannot be removed: {error.strerror}; ask its owner to remove it, or raise keep"
                ) from error


def select_regular(root: Path, every: int, last: int | None = None) -> list[Path]:
    """Return the checkpoints whose step is `last` or a multiple of `every`, newest first."""
    return [f for f in list_checkpoints(root) if (step := parse_step(f)) % every == 0 or step == last]


def list_regular_checkpoints(run: Path) -> list[Path]:
    """Return the newest checkpoint of a run and those that its recipe's save_every made, newest first.

    Not the best one if it was saved in between: the run's own average leaves it out, too.
    """
    root = run / "checkpoints"
    recipe = read_run(run).get("recipe", {})
    every = recipe.get("save_every", 1)
    if type(every) is not int or every < 1:
        raise BrokenFileError(f"{run / RECORD}: recipe: save_every is {every!r}; it must be an integer above 0")
    return select_regular(root, every, last=max(map(parse_step, list_checkpoints(root)), default=None))


def recorded_choices(root: Path) -> dict[str, Any]:
    """Return the choices that the newest checkpoint in root records (precision, ...), or {} if there is none."""
    for folder in list_checkpoints(root):
        try:
            state = read_checkpoint_state(folder)
        except BrokenFileError:
            continue  # a damaged checkpoint is reported when the run is resumed
        return state["environment"] | state["fingerprint"]
    return {}


def read_checkpoint_state(folder: Path) -> dict[str, Any]:
    """Read a checkpoint's trainer_state.json. Raises BrokenFileError naming the field that is missing or wrong."""
    path = folder / STATE
    state = read_json_object(path, "progress", "fingerprint", "environment")
    for field in ("progress", "fingerprint", "environment", "gradient_scaler"):
        if field not in state:
            raise BrokenFileError(f"{path}: {field} is missing, so the run cannot be resumed exactly")
    if (number := state["fingerprint"].get("micro_batches")) is not None and (type(number) is not int or number < 1):
        raise BrokenFileError(f"{path}: fingerprint: micro_batches is {number!r}; it must be an integer above 0")
    if (precision := state["environment"].get("mixed_precision", "no")) not in PrecisionType.list():
        raise BrokenFileError(
            f"{path}: environment: mixed_precision is {precision!r}; it must be {', '.join(PrecisionType.list())}"
        )
    return state


def restore_scaler(scaler: torch.amp.GradScaler, state: dict[str, Any], path: Path) -> None:
    """Load the gradient scaler's state. Raises BrokenFileError naming the field that is missing or wrong."""
    saved, fields = state["gradient_scaler"], scaler.state_dict()
    if not isinstance(saved, dict):
        raise BrokenFileError(f"{path}: gradient_scaler is {saved!r}; an fp16 run needs its scale")
    check_types(f"{path}: gradient_scaler", saved, dict.fromkeys(fields, float), required=True)
    scaler.load_state_dict({name: saved[name] for name in fields})


def newest_intact(root: Path, say: Callable[[str], None]) -> Path | None:
    """Return the newest checkpoint that matches its manifest, and point `latest` at it.

    Damaged checkpoints are reported and renamed to *.broken. Raises BrokenFileError if there have been checkpoints and
    all are damaged: training never restarts from step 0 by itself.
    """
    for folder in intact_checkpoints(list_checkpoints(root), say):
        if read_pointer(root / "latest") != folder.name:  # killed before it was written, or its folder is damaged
            write_pointer(root / "latest", folder.name)
        return folder
    if broken := len([*root.glob("step-*.broken")]):
        raise BrokenFileError(f"{root}: all {broken} checkpoints are damaged; start again with --overwrite true")
    if (newest := read_pointer(root / "latest")) is not None:
        raise BrokenFileError(f"{root}: {newest} is missing; restore it, or start again with --overwrite true")
    if (model := root.with_name(WEIGHTS)).exists():
        raise BrokenFileError(
            f"{root} has no checkpoint, but the run has written {model}; restore one, choose another output_dir, or "
            "start again with --overwrite true"
        )
    return None


def intact_checkpoints(folders: list[Path], say: Callable[[str], None]) -> Iterator[Path]:
    """Yield the checkpoints that match their manifests; report the others and rename them to *.broken.

    Raises UnavailableError for one that may not be read, such as that of another user: it may be intact.
    """
    for folder in folders:
        try:
            if not verify_manifest(folder, RESUMED_FILES):
                raise BrokenFileError(f"{folder / MANIFEST} is missing or lists no files")
        except BrokenFileError as error:
            refuse_unreadable(folder / MANIFEST)
            aside = folder.with_name(f"{folder.name}.broken")
            remove(aside)
            shutil.move(folder, aside)
            say(f"{error}; falling back to the previous checkpoint ({folder.name} is now {aside.name})")
        else:
            yield folder


def refuse_unreadable(path: Path) -> None:
    """Raise UnavailableError if this user may not read a file."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except PermissionError as error:
        raise UnavailableError(f"{path}: {error.strerror}; ask its owner, or choose another output_dir") from error
    except OSError:  # damage
        pass


def write_pointer(pointer: Path, name: str) -> None:
    with atomic_file(pointer) as file:
        file.write(f"{name}\n".encode())
