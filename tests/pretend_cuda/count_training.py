"""Train on the pretended GPU: `count_training.py KEYS`, a JSON object of recipe keys. Prints the waits of each step.

The key broken_step is the number of a step whose gradient is not a number.
"""

import json
import sys
from typing import Any

import pretend_cuda

from training import metrics
from training.loss import TrainingLoss
from training.recipe import load_recipe
from training.step import Stepper
from training.train import train

keys = json.loads(sys.argv[1])
broken_step = keys.pop("broken_step", None)
waits: list[dict[str, int]] = []
real_step, real_forward = Stepper.step, TrainingLoss.forward


def counted_step(self: Stepper) -> bool:
    with pretend_cuda.where_it_waits() as found:
        done = real_step(self)
    waits.append(dict(found))
    return done


def broken_forward(self: TrainingLoss, *batch: Any) -> Any:
    loss, negative_log_likelihood = real_forward(self, *batch)
    if len(waits) + 1 == broken_step and loss.requires_grad:
        loss.register_hook(lambda gradient: gradient * float("nan"))
    return loss, negative_log_likelihood


Stepper.step = counted_step
TrainingLoss.forward = broken_forward  # pyright: ignore[reportAttributeAccessIssue]
metrics.matmul_flop_rate = lambda *_: 1e12  # large products on a CPU take seconds
train(load_recipe("demo", {key: json.dumps(value) for key, value in keys.items()}))
print(json.dumps(waits))
