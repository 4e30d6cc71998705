"""What the checks of a running generate() cost: its CPU time with them, relative to without.

    python -m benchmarks.search_checks

The model compares what it relies on in transformers before a search, in each step and at its end (`RunningSearch` in
modeling_vaswani_transformer.py). One short sentence, as in a chat or a form, costs the least otherwise: one thread,
the two searches alternate, and the line has median, minimum and maximum of the pairs' ratios.
"""

import statistics
import time
from collections.abc import Callable
from typing import Annotated
from unittest.mock import patch

import torch
import typer

from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
from vaswani_transformer import modeling_vaswani_transformer as modeling

# The sizes of the demo's model, whose steps are the cheapest of all recipes.
SIZES = {"vocab_size": 2000, "d_model": 128, "encoder_ffn_dim": 512, "decoder_ffn_dim": 512, "encoder_layers": 3}
SIZES |= {"decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
TOKENS = 10


def nothing(*args, **kwargs) -> None:
    pass


def seconds(generate: Callable[[], object], calls: int) -> float:
    began = time.process_time()
    for _ in range(calls):
        generate()
    return time.process_time() - began


def main(
    pairs: Annotated[int, typer.Option(help="How often both are measured.")] = 40,
    calls: Annotated[int, typer.Option(help="Calls of generate() per measurement.")] = 10,
) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = VaswaniTransformerForConditionalGeneration(VaswaniTransformerConfig(**SIZES)).eval()
    source = torch.randint(5, 2000, (1, TOKENS))
    for beams in (1, 4):

        def generate(beams: int = beams) -> object:
            return model.generate(source, num_beams=beams, max_new_tokens=TOKENS, eos_token_id=None)

        def unchecked() -> float:
            names = ("note_forward", "note_step", "note_hook", "check_end")
            with patch.multiple(modeling.RunningSearch, **dict.fromkeys(names, nothing)):
                with patch.multiple(modeling, check_hooks=nothing, refuse_unknown_arguments=nothing):
                    return seconds(generate, calls)

        seconds(generate, calls)
        ratios = [seconds(generate, calls) / unchecked() for _ in range(pairs)]
        print(f"beams {beams}: {statistics.median(ratios):.4f} ({min(ratios):.3f} to {max(ratios):.3f})")


if __name__ == "__main__":
    typer.run(main)
