"""What do the checks of a running generate() cost?

    python -m benchmarks.search_checks

Row:  a beam size.
Unit: `ratio`, the CPU time of generate() relative to that without checks: the median, the least and the largest of the
      rounds' ratios.
Peer: the same search without the checks.

The model compares what it relies on in transformers before a search, in each step and at its end (`RunningSearch` in
modeling_vaswani_transformer.py). The share is largest where all else costs least: one short sentence, and a model as
small as the demo's.
"""

import time
from functools import partial
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
from vaswani_transformer import modeling_vaswani_transformer as modeling

from .harness import report, run, take_turns, timed
from .options import Record, Rounds

SIZES: dict[str, Any] = {"vocab_size": 2000, "d_model": 128, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512}
SIZES |= {"encoder_layers": 3, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
TOKENS, CALLS = 10, 10


def nothing(*args: Any, **kwargs: Any) -> None:
    pass


def compare(rounds: Rounds = 100, record: Record = None) -> None:
    """Compare generate() with and without the checks."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: Any = VaswaniTransformerForConditionalGeneration(VaswaniTransformerConfig(**SIZES)).eval()
    source = torch.randint(5, SIZES["vocab_size"], (1, TOKENS))

    def checked(beams: int) -> float:
        def calls() -> None:
            for _ in range(CALLS):
                model.generate(source, num_beams=beams, max_new_tokens=TOKENS, eos_token_id=None)

        return timed(calls, time.process_time)[0]

    def unchecked(beams: int) -> float:
        methods = dict.fromkeys(("record_forward", "check_step", "record_call", "check_end"), nothing)
        functions = dict.fromkeys(("check_hooks", "refuse_unknown_arguments"), nothing)
        with patch.multiple(modeling.RunningSearch, **methods), patch.multiple(modeling, **functions):
            return checked(beams)

    rows = []
    for beams in (1, 4):
        checked(beams)  # warms up
        seconds = take_turns({"checked": partial(checked, beams), "unchecked": partial(unchecked, beams)}, rounds)
        ratios = [ours / peer for ours, peer in zip(seconds["checked"], seconds["unchecked"], strict=True)]
        rows.append({"beams": beams, "ratio": f"{median(ratios):.4f}"})
        rows[-1] |= {"least": f"{min(ratios):.3f}", "largest": f"{max(ratios):.3f}"}
    report(rows, record)


if __name__ == "__main__":
    run(compare)
