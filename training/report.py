"""Report the progress of a run: a bar on a terminal or lines in a log, metrics.jsonl, and trackers."""

import json
import math
import os
import shutil
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from vaswani_transformer.atomic import append_whole, atomic_file
from vaswani_transformer.errors import UnavailableError, escape_controls
from vaswani_transformer.exit import print_error
from vaswani_transformer.training_run import METRICS

from .run_folder import open_in_place

# Names of the share of a device's peak in metrics.jsonl (see metrics.peak_flop_rate) and on the screen.
SHARES = {"mfu": "MFU", "product_share": "of the measured matmul speed"}


class MetricsFile:
    """metrics.jsonl, to which every record is appended as one line."""

    def __init__(self, path: Path):
        self.path = path
        if not os.path.lexists(path):
            return
        with open(path, "rb", opener=open_in_place) as file:
            raw, names = file.read(), os.fstat(file.fileno()).st_nlink
        whole = raw[: raw.rfind(b"\n") + 1]  # a power cut may leave half a line
        if whole != raw or names > 1:  # a hard link, such as that of a backup, keeps its content
            with atomic_file(path) as file:
                file.write(whole)

    def write(self, record: dict[str, Any]) -> None:
        """Append a record. Raises UnavailableError if the disk is full; the file then ends with a complete line."""
        # JSON has no NaN.
        record = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
        line = (json.dumps(record) + "\n").encode()
        try:
            with open(self.path, "ab", buffering=0, opener=open_in_place) as file:
                append_whole(file, line)
        except OSError as error:
            free = shutil.disk_usage(self.path.parent).free
            raise UnavailableError(
                f"{self.path} cannot be written: {error.strerror} ({len(line)} bytes needed, {free} free)"
            ) from error


class Reporter:
    """Reports for the main process; silent on the others."""

    def __init__(self, is_main_process: bool, keep_going: bool = False):
        """keep_going: report a metrics.jsonl that cannot be written instead of raising"""
        self.is_main_process, self.keep_going = is_main_process, keep_going
        self.console = Console(stderr=True)
        self.bar: ProgressBar | None = None
        self.metrics: MetricsFile | None = None
        self.trackers: Accelerator | None = None
        self.last_line_at = -math.inf

    def say(self, message: str) -> None:
        if self.is_main_process and self.bar is not None:
            with suppress(OSError):  # a lost terminal
                self.bar.console.print(escape_controls(message), markup=False, highlight=False, soft_wrap=True)
        elif self.is_main_process:
            print_error(message)

    def start(self, output_dir: Path, trackers: Accelerator | None, step: int, total_steps: int) -> None:
        """Open or continue metrics.jsonl, and show a bar on a terminal.

        trackers: the accelerator, if it has trackers
        """
        if not self.is_main_process:
            return
        self.metrics, self.trackers = MetricsFile(output_dir / METRICS), trackers
        if step:
            self.write({"event": "resume", "step": step})
        if self.console.is_terminal:
            self.bar = ProgressBar(
                TextColumn("[bold]step"),
                MofNCompleteColumn(),
                BarColumn(),
                TextColumn("{task.fields[summary]}"),
                TimeRemainingColumn(elapsed_when_finished=True),
                console=self.console,
            )
            self.task = self.bar.add_task("training", total=total_steps, completed=step, summary="")
            self.bar.start()

    def advance(self, step: int, total_steps: int, seconds: float) -> None:
        """Advance the bar; without one, print the step after the first step and once a minute. seconds: per step"""
        if self.bar is not None:
            self.bar.update(self.task, completed=step)
        elif time.monotonic() - self.last_line_at > 60:
            self.say(f"step {step}/{total_steps}  {seconds:.2f} s per step")
            self.last_line_at = time.monotonic()

    def write(self, record: dict[str, Any]) -> None:
        """Write a record to metrics.jsonl and to the trackers. Raises UnavailableError if the disk is full."""
        if self.metrics is None:
            return
        try:
            self.metrics.write(record)
        except UnavailableError as error:
            if not self.keep_going:
                raise UnavailableError(f"{error}; the last checkpoint is intact") from error
            self.say(f"{error}; training continues")
        if self.trackers is not None:
            values = {
                k: v for k, v in record.items() if isinstance(v, int | float) and math.isfinite(v) and k != "step"
            }
            self.trackers.log(values, step=record["step"])

    def log(self, record: dict[str, Any], seconds_left: float) -> None:
        """Write a record of measurements (see Meter.read), and show its loss and speed."""
        self.write(record)
        summary = f"loss {record['loss']:.3f}  {record['tokens_per_second']:.0f} tokens/s"
        for name, share in SHARES.items():
            if name in record:
                summary += f"  {record[name]:.0%} {share}"
        if self.bar is not None:
            self.bar.update(self.task, completed=record["step"], summary=summary)
        else:
            self.say(
                f"step {record['step']}/{record['total_steps']}  epoch {record['epoch']:.2f}  {summary}  "
                f"rate {record['learning_rate']:.2e}  {timedelta(seconds=round(seconds_left))} left"
            )

    def stop(self) -> None:
        if self.bar is not None:
            with suppress(OSError):  # a lost terminal
                self.bar.stop()
            self.bar = None
