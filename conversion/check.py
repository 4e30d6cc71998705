"""Proof on the user's machine: log-probabilities of the converted model beside those of the toolkit itself.

transformers is always installed, so that its two formats are always compared. Of the others, given texts, the
log-probability of each pair is printed, to be held against what the toolkit's own scorer prints.
"""

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from transformers import FSMTForConditionalGeneration, MarianMTModel, PreTrainedTokenizerFast
from transformers.utils import logging

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.errors import BrokenFileError, InputError, one_line
from vaswani_transformer.lines import read_lines

from .converted import Converted
from .origin import TARGET_TOKENIZER

LARGEST_DIFFERENCE = 1e-3  # float32; a wrong switch shows as 0.2 to 10
LONGEST = 20  # positions compared where there are no texts
PRINTED = 5

Forward = Callable[[Tensor, Tensor, Tensor], Tensor]


def toolkits_forward(name: str, folder: Path) -> Forward | None:
    """(source ids, mask, decoder's input ids) -> the toolkit's own logits; None: it is not installed."""
    kinds = {"hf-marian": MarianMTModel, "hf-fsmt": FSMTForConditionalGeneration}
    if name not in kinds:
        return None
    logging.disable_progress_bar()
    try:
        theirs = kinds[name].from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    except Exception as error:  # of the libraries that transformers reads a folder with
        raise BrokenFileError(f"{folder}: transformers cannot load it: {one_line(str(error))[:200]}") from None
    # With its cache FSMT is not causal for several target tokens.
    return lambda ids, mask, target: (
        theirs(input_ids=ids, attention_mask=mask, decoder_input_ids=target, use_cache=False).logits
    )


@torch.inference_mode()
def check(
    converted: Converted,
    folder: Path,
    model: VaswaniTransformerForConditionalGeneration,
    texts: tuple[Path, Path] | None,
) -> list[str]:
    """What is to be printed. Raises BrokenFileError if the two differ by more than float32's rounding."""
    name, vocabulary = converted.toolkit, converted.vocabulary
    forward = toolkits_forward(name, converted.path.parent)
    if forward is None and texts is None:
        return []
    pairs = encoded(folder, texts) if texts else sample(len(vocabulary.source), len(vocabulary.target))
    if vocabulary.unknown is not None:  # the toolkit's own ids
        sides = (vocabulary.source, vocabulary.target)
        pairs = [
            tuple(
                [id if id < len(side) else vocabulary.unknown for id in ids]
                for ids, side in zip(pair, sides, strict=True)
            )
            for pair in pairs
        ]
    start = model.config.decoder_start_token_id
    largest, totals = 0.0, []
    for source, target in pairs:
        ids, decoder = torch.tensor([source]), torch.tensor([[start, *target[:-1]]])
        ours = model(input_ids=ids, decoder_input_ids=decoder).logits.log_softmax(-1)[0]
        chosen = ours.gather(-1, torch.tensor(target)[:, None])
        totals.append(chosen.sum().item())
        if forward is not None:
            theirs = forward(ids, torch.ones_like(ids), decoder)[0]
            theirs = theirs.log_softmax(-1).gather(-1, torch.tensor(target)[:, None])
            largest = max(largest, (chosen - theirs).abs().max().item())
    lines = []
    if texts is not None:
        lines += [f"log P of pair {n}: {total:.4f}" for n, total in enumerate(totals[:PRINTED], start=1)]
        lines.append(f"log P of all {len(totals)} pairs: {sum(totals):.4f}")
    if forward is None:
        return [*lines, f"check: {name} is not installed here; its own scorer should print these numbers"]
    if not largest <= LARGEST_DIFFERENCE:
        raise BrokenFileError(f"{converted.path}: the converted model differs from {name} by {largest:.1e} in log P")
    return [*lines, f"check: the largest difference from {name} in log P of a token is {largest:.1e}"]


def sample(source_tokens: int, target_tokens: int) -> list[tuple[list[int], list[int]]]:
    """Random ids, the same each time."""
    generator = torch.Generator().manual_seed(0)
    return [
        (
            torch.randint(2, source_tokens, (LONGEST,), generator=generator).tolist(),
            torch.randint(2, target_tokens, (LONGEST,), generator=generator).tolist(),
        )
        for _ in range(2)
    ]


def encoded(folder: Path, texts: tuple[Path, Path]) -> list[tuple[list[int], list[int]]]:
    """The pairs of lines of two files as ids. InputError if they do not fit each other."""
    if not (folder / "tokenizer.json").exists():
        raise InputError("--check needs a tokenizer, and nothing beside the checkpoint says how text becomes ids")
    own = folder / TARGET_TOKENIZER
    tokenizers = [PreTrainedTokenizerFast.from_pretrained(f) for f in (folder, own if own.exists() else folder)]
    sources, targets = (list(read_lines(file)) for file in texts)
    if len(sources) != len(targets) or not sources:
        raise InputError(f"{texts[0]} has {len(sources)} lines, {texts[1]} {len(targets)}; --check needs pairs")
    rows = [
        [tokenizer(text)["input_ids"] for text in lines]
        for tokenizer, lines in zip(tokenizers, (sources, targets), strict=True)
    ]
    return [(source, target) for source, target in zip(*rows, strict=True) if source and target]
