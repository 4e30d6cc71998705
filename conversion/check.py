"""Compare log-probabilities of the converted model with those of the toolkit, at the end of each conversion.

torch and transformers are always installed, so that their three formats are always compared, the others if their
toolkit is installed. Given texts, the log-probability of each pair is printed as well, to be compared with the output
of the toolkit's scorer.
"""

from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from vaswani_transformer import VaswaniTransformerForConditionalGeneration
from vaswani_transformer.errors import BrokenFileError, InputError
from vaswani_transformer.lines import read_lines
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER

from .description import Description
from .reference_forward import NotComparable, toolkit_scores
from .vocabulary import SIDES, Vocabulary

MAX_DIFFERENCE = 1e-3  # float32; a wrong switch shows as 0.2 to 10
RANDOM_PAIRS, RANDOM_LENGTH = 4, 10  # without texts; some tables of positions are short
PRINTED_PAIRS = 5
MAX_COMPARED = 100  # pairs that the toolkit computes

Pair = tuple[list[int], list[int]]  # source ids, target ids


@torch.inference_mode()
def check(
    description: Description,
    folder: Path,
    model: VaswaniTransformerForConditionalGeneration,
    texts: tuple[Path, Path] | None,
) -> list[str]:
    """Return the lines to print. Raises BrokenFileError if the two differ by more than float32's rounding."""
    name, vocabulary = description.toolkit, description.vocabulary
    if texts:
        pairs = encoded_pairs(folder, texts)
    else:
        pairs = random_pairs(vocabulary, min(RANDOM_LENGTH, model.config.max_position_embeddings or RANDOM_LENGTH))
    pairs = [
        (toolkit_ids(source, vocabulary, "source"), toolkit_ids(target, vocabulary, "target"))
        for source, target in pairs
    ]
    lines = []
    if texts:
        totals = [log_probabilities(model, source, target).sum().item() for source, target in pairs]
        lines += [f"log P of pair {n}: {total:.4f}" for n, total in enumerate(totals[:PRINTED_PAIRS], start=1)]
        lines.append(f"log P of all {len(totals)} pairs: {sum(totals):.4f}")
    try:
        scored = toolkit_scores(description, pairs[:MAX_COMPARED])
    except NotComparable as why:
        rest = "its scorer should print these numbers" if texts else "--check SRC TGT prints log-probabilities"
        return [*lines, f"check: {why}; {rest}"]
    differences = [
        (log_probabilities(model, source, target) - scores).abs().max().item() for source, target, scores in scored
    ]
    largest = max(differences, default=0.0)
    if not largest <= MAX_DIFFERENCE:  # NaN is a difference as well
        raise BrokenFileError(f"{description.path}: the converted model differs from {name} by {largest:.1e} in log P")
    tokens = sum(len(target) for _, target, _ in scored)
    return [*lines, f"check: the largest difference from {name} in log P of {tokens:,} tokens is {largest:.1e}"]


def toolkit_ids(ids: list[int], vocabulary: Vocabulary, side: str) -> list[int]:
    """Return the toolkit's ids: a piece that its vocabulary lacks is `<unk>` to it."""
    size, unknown = len(vocabulary.tokens(side)), vocabulary.unknown
    return [id if id < size or unknown is None else unknown for id in ids]


def log_probabilities(
    model: VaswaniTransformerForConditionalGeneration, source: list[int], target: list[int]
) -> Tensor:
    """log P of each token of the target, (target,)"""
    decoder = torch.tensor([[model.config.decoder_start_token_id, *target[:-1]]])
    logits = model(input_ids=torch.tensor([source]), decoder_input_ids=decoder).logits
    return logits.log_softmax(-1)[0].gather(-1, torch.tensor(target)[:, None])[:, 0]


def random_pairs(vocabulary: Vocabulary, length: int) -> list[Pair]:
    """Return pairs of random ids without special tokens, the same in every run."""
    generator = torch.Generator().manual_seed(0)
    special = {vocabulary.pad, vocabulary.eos, vocabulary.bos, vocabulary.start}
    words = [
        torch.tensor([id for id in range(len(vocabulary.tokens(side))) if id not in special], dtype=torch.int64)
        for side in SIDES
    ]
    if not all(map(len, words)):
        return []
    rows = [
        [side[torch.randint(len(side), (length,), generator=generator)].tolist() for side in words]
        for _ in range(RANDOM_PAIRS)
    ]
    return [(source, target) for source, target in rows]


def encoded_pairs(folder: Path, texts: tuple[Path, Path]) -> list[Pair]:
    """Return the pairs of lines of two files as ids. Raises InputError if the files differ in length."""
    if not (folder / "tokenizer.json").exists():
        raise InputError("--check needs a tokenizer, but nothing beside the checkpoint says how text becomes ids")
    target_folder = folder / TARGET_TOKENIZER if (folder / TARGET_TOKENIZER).exists() else folder
    sources, targets = (list(read_lines(file)) for file in texts)
    if len(sources) != len(targets) or not sources:
        raise InputError(f"{texts[0]} has {len(sources)} lines, {texts[1]} {len(targets)}; --check needs pairs")
    rows = [
        [tokenizer(text)["input_ids"] for text in lines]
        for place, lines in ((folder, sources), (target_folder, targets))
        for tokenizer in [PreTrainedTokenizerFast.from_pretrained(place)]
    ]
    return [(source, target) for source, target in zip(*rows, strict=True) if source and target]
