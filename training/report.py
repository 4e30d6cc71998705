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

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from vaswani_transformer.errors import UnavailableError
from vaswani_transformer.exit import print_error


class Reporter:
    """Reports for the main process; silent on the others."""

    def __init__(self, is_main_process: bool, keep_going: bool = False):
        """keep_going: report a metrics.jsonl that cannot be written instead of raising"""
        self.is_main_process, self.keep_going = is_main_process, keep_going
        self.console = Console(stderr=True)
        self.bar: ProgressBar | None = None
        self.metrics: Path | None = None
        self.accelerator: Any = None
        self.last_line_at = -math.inf

    def say(self, message: str) -> None:
        if self.is_main_process and self.bar is not None:
            with suppress(OSError):  # a lost terminal
                self.bar.console.print(message, markup=False, highlight=False, soft_wrap=True)
        elif self.is_main_process:
            print_error(message)

    def start(self, output_dir: Path, accelerator: Any, step: int, total_steps: int) -> None:
        """Open or continue metrics.jsonl, and show a bar on a terminal. accelerator: for its trackers, or None"""
        self.metrics = output_dir / "metrics.jsonl"
        self.accelerator = accelerator
        if not self.is_main_process:
            return
        if self.metrics.is_file():  # a power cut may leave half a line
            whole = self.metrics.read_bytes().rfind(b"\n") + 1
            if whole < self.metrics.stat().st_size:
                os.truncate(self.metrics, whole)
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
        """Write a line to metrics.jsonl and to the trackers. Raises UnavailableError if the disk is full."""
        if not self.is_main_process or self.metrics is None:
            return
        # JSON has no NaN.
        record = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in record.items()}
        line = (json.dumps(record) + "\n").encode()
        size = self.metrics.stat().st_size if self.metrics.exists() else 0
        try:
            with self.metrics.open("ab") as file:
                file.write(line)
        except OSError as error:
            if self.metrics.exists():
                os.truncate(self.metrics, size)
            free = shutil.disk_usage(self.metrics.parent).free
            message = f"{self.metrics} cannot be written: {error.strerror} ({len(line)} bytes needed, {free} free)"
            if not self.keep_going:
                raise UnavailableError(f"{message}; the last checkpoint is intact") from error
            self.say(f"{message}; training continues")
        values = {k: v for k, v in record.items() if isinstance(v, int | float) and k != "step"}
        if self.accelerator is not None and self.accelerator.log_with:
            self.accelerator.log(values, step=record["step"])

    def log(self, record: dict[str, Any], seconds_left: float) -> None:
        """Write a record of measurements (see Meter.read), and show its loss and speed."""
        self.write(record)
        summary = f"loss {record['loss']:.3f}  {record['tokens_per_second']:.0f} tokens/s"
        if record["mfu"] is not None:
            summary += f"  MFU {record['mfu']:.0%}"
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
