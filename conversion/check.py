"""Proof on the user's machine: log-probabilities of the converted model beside those of the toolkit itself.

transformers and torch are always installed, so that their three formats are always compared, and of the others those
whose toolkit is there. Given texts, the log-probability of each pair is printed as well, to be held against what the
toolkit's own scorer prints.
"""

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.lines import read_lines
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER

from .converted import Converted
from .reference_forward import NotComparable, scored
from .vocabulary import Vocabulary

LARGEST_DIFFERENCE = 1e-3  # float32; a wrong switch shows as 0.2 to 10
RANDOM_PAIRS, LONGEST = 4, 10  # compared where there are no texts; some tables of positions are short
PRINTED = 5
MOST_COMPARED = 100  # pairs that the toolkit itself computes


@torch.inference_mode()
def check(
    converted: Converted,
    folder: Path,
    model: VaswaniTransformerForConditionalGeneration,
    texts: tuple[Path, Path] | None,
) -> list[str]:
    """What is to be printed. Raises BrokenFileError if the two differ by more than float32's rounding."""
    name, vocabulary = converted.toolkit, converted.vocabulary
    pairs = (
        encoded(folder, texts)
        if texts
        else sample(vocabulary, min(LONGEST, model.config.max_position_embeddings or LONGEST))
    )
    pairs = [(known(source, vocabulary, "source"), known(target, vocabulary, "target")) for source, target in pairs]
    lines = []
    if texts is not None:
        totals = [log_probabilities(model, source, target).sum().item() for source, target in pairs]
        lines += [f"log P of pair {n}: {total:.4f}" for n, total in enumerate(totals[:PRINTED], start=1)]
        lines.append(f"log P of all {len(totals)} pairs: {sum(totals):.4f}")
    try:
        theirs = scored(converted, pairs[:MOST_COMPARED])
    except NotComparable as why:
        rest = "its own scorer should print these numbers" if texts else "--check SRC TGT prints log-probabilities"
        return [*lines, f"check: {why}; {rest}"]
    differences = [
        (log_probabilities(model, source, target) - scores).abs().max().item() for source, target, scores in theirs
    ]
    largest = max(differences, default=0.0)
    if not largest <= LARGEST_DIFFERENCE:
        raise BrokenFileError(f"{converted.path}: the converted model differs from {name} by {largest:.1e} in log P")
    tokens = sum(len(target) for _, target, _ in theirs)
    return [*lines, f"check: the largest difference from {name} in log P of {tokens:,} tokens is {largest:.1e}"]


def known(ids: list[int], vocabulary: Vocabulary, side: str) -> list[int]:
    """The toolkit's own ids: a piece that it does not have is `<unk>` to it."""
    own = len(vocabulary.source if side == "source" else vocabulary.target)
    return [id if id < own or vocabulary.unknown is None else vocabulary.unknown for id in ids]


def log_probabilities(
    model: VaswaniTransformerForConditionalGeneration, source: list[int], target: list[int]
) -> Tensor:
    """log P of each token of the target, (target,)"""
    decoder = torch.tensor([[model.config.decoder_start_token_id, *target[:-1]]])
    ours = model(input_ids=torch.tensor([source]), decoder_input_ids=decoder).logits.log_softmax(-1)[0]
    return ours.gather(-1, torch.tensor(target)[:, None])[:, 0]


def sample(vocabulary: Vocabulary, most: int) -> list[tuple[list[int], list[int]]]:
    """Pairs of random ids without symbols, the same each time, of `most` tokens."""
    generator = torch.Generator().manual_seed(0)
    symbols = {vocabulary.pad, vocabulary.eos, vocabulary.bos, vocabulary.start}
    sides = [
        torch.tensor([id for id in range(len(tokens)) if id not in symbols])
        for tokens in (vocabulary.source, vocabulary.target)
    ]
    found = []
    for _ in range(RANDOM_PAIRS if all(map(len, sides)) else 0):
        source, target = (side[torch.randint(len(side), (most,), generator=generator)].tolist() for side in sides)
        found.append((source, target))
    return found


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
