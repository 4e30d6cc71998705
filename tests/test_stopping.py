"""What stops a run: limits, signals, and steps without a finite gradient (training/stopping.py, checkpoints.py)."""

import signal

import pytest

from training.checkpoints import MAX_BAD_STEPS, Progress
from training.recipe import load_recipe
from training.stopping import Signals, StopReason, limit_reached
from vaswani_transformer.errors import InputError


@pytest.mark.parametrize(
    ("options", "progress", "reached"),
    [
        ({}, Progress(step=8), False),
        ({}, Progress(step=9), True),
        ({"max_hours": "1"}, Progress(wall_seconds=3590), False),
        ({"max_hours": "1"}, Progress(wall_seconds=3601), True),
        ({"max_cpu_seconds": "5"}, Progress(cpu_seconds=5), True),
        ({"max_tokens": "10"}, Progress(tokens=10), True),
        ({"patience": "2"}, Progress(validations_since_best=2), True),
    ],
)
def test_the_first_limit_ends_the_run(options, progress, reached):
    assert limit_reached(load_recipe(None, options), 9, progress) == reached


def test_only_consecutive_bad_gradients_end_the_run():
    progress = Progress()
    for finite in (False, True, False, True, False):
        progress.record_gradient(finite)
    assert progress.skipped_steps == 3
    with pytest.raises(InputError, match=f"{MAX_BAD_STEPS} steps in a row"):
        for _ in range(MAX_BAD_STEPS - 1):
            progress.record_gradient(False)


def test_a_nan_loss_is_never_the_best():
    progress = Progress(step=3)
    for loss, best, since in ((2.0, 2.0, 0), (float("nan"), 2.0, 1), (1.5, 1.5, 0), (1.5, 1.5, 1)):
        progress.record_validation(loss)
        assert (progress.best_loss, progress.validations_since_best) == (best, since)


@pytest.fixture
def set_handler():
    """signal.signal, undone at the end."""
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    yield signal.signal
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT, signal.SIGTERM])
def test_a_signal_takes_precedence_over_a_limit(set_handler, number):
    set_handler(number, signal.SIG_DFL)
    signals = Signals()
    with signals.handle():
        signal.raise_signal(number)
    assert signals.received.is_signal and signals.received.exit_code == 128 + number
    assert max(StopReason.LIMIT, signals.received) == signals.received and not StopReason.LIMIT.is_signal
    assert signal.getsignal(number) == signal.SIG_DFL


def test_nohup_survives_a_lost_terminal(set_handler):
    set_handler(signal.SIGHUP, signal.SIG_IGN)
    signals = Signals()
    with signals.handle():
        signal.raise_signal(signal.SIGHUP)
    assert not signals.received
