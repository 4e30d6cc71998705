"""Compare the converted model with the toolkit's, at the end of each conversion.

torch and transformers are always installed: their three formats are compared with the library's own model. Any other
toolkit needs a file of logits that it computed. Given texts, the log-probability of each pair is printed as well, to
be compared with the output of the toolkit's scorer.
"""

import io
import random
import warnings
import zipfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import BrokenFileError, InputError, one_line
from vaswani_transformer.lines import read_lines
from vaswani_transformer.text_vaswani_transformer import TARGET_TOKENIZER

from .description import Description, Forward
from .toolkits.hugging_face import forward_of
from .vocabulary import SIDES, Vocabulary

MAX_DIFFERENCE = 1e-3  # float32; a wrong switch shows as 0.2 to 10
RANDOM_PAIRS, RANDOM_LENGTH = 4, 10  # without texts; some tables of positions are short
PRINTED_PAIRS = 5
MAX_COMPARED = 100  # pairs that the toolkit computes
# The arrays in a file of logits; the masks may be missing.
ARRAYS = ("src_ids", "tgt_in_ids", "logits", "src_mask", "tgt_mask")

Pair = tuple[list[int], list[int]]  # source ids, target ids


@torch.inference_mode()
def check(
    description: Description,
    folder: Path,
    model: Model,
    texts: tuple[Path, Path] | None = None,
    logits: Path | None = None,
) -> list[str]:
    """Return the lines to print. Raises BrokenFileError if the two differ by more than float32's rounding.

    texts: files of sources and targets;  logits: an .npz file with the toolkit's
    """
    name, vocabulary = description.toolkit, description.vocabulary
    if texts:
        pairs = encoded_pairs(folder, texts, vocabulary)
    else:
        pairs = random_pairs(vocabulary, min(RANDOM_LENGTH, model.config.max_position_embeddings or RANDOM_LENGTH))
    ours = [log_probabilities(forward_of(model), vocabulary.start_id, *pair) for pair in pairs]
    lines = []
    if texts:
        totals = [scores.sum().item() for scores in ours]
        lines += [f"log P of pair {n}: {total:.4f}" for n, total in enumerate(totals[:PRINTED_PAIRS], start=1)]
        lines.append(f"log P of all {len(totals)} pairs: {sum(totals):.4f}")
    if logits:
        name, differences = str(logits), differences_from_file(model, logits, vocabulary)
    elif description.reference is None:
        rest = "its scorer should print these numbers" if texts else "--check SRC TGT prints log-probabilities"
        return [*lines, f"check: {name} cannot be run from here; {rest}; --logits FILE compares with its logits"]
    else:
        try:
            # The library's output and warnings do not concern the conversion.
            with (
                warnings.catch_warnings(action="ignore"),
                redirect_stdout(io.StringIO()),
                redirect_stderr(io.StringIO()),
            ):
                forward = description.reference(description)
                theirs = [log_probabilities(forward, vocabulary.start_id, *pair) for pair in pairs[:MAX_COMPARED]]
        except Exception as error:  # torch and transformers raise many kinds
            found = f"{type(error).__name__}: {one_line(str(error))[:200]}"
            return [*lines, f"check: {name} could not run this model ({found})"]
        differences = [(a - b).abs() for a, b in zip(ours, theirs, strict=False)]
    largest = torch.cat([torch.zeros(1), *differences]).max().item()
    if not largest <= MAX_DIFFERENCE:  # NaN is a difference as well
        remedies = description.assumed or ["Check that the options beside the checkpoint are its own."]
        found = f"the converted model differs from {name} by {largest:.1e} in log P"
        raise BrokenFileError(f"{description.path}: {found}. {' '.join(remedies)}")
    tokens = sum(len(each) for each in differences)
    return [*lines, f"check: the largest difference from {name} in log P of {tokens:,} tokens is {largest:.1e}"]


def log_probabilities(forward: Forward, start: int, source: list[int], target: list[int]) -> Tensor:
    """log P of each token of the target, (target,). start: the decoder's first token"""
    logits = forward(torch.tensor([source]), torch.tensor([[start, *target[:-1]]]))[0]
    return logits.float().log_softmax(-1).gather(-1, torch.tensor(target)[:, None])[:, 0]


def differences_from_file(model: Model, file: Path, vocabulary: Vocabulary) -> list[Tensor]:
    """Return how far the log P of any word is, at most, from that of the file's logits, for each row (target,)."""
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            arrays = {name: torch.from_numpy(archive[name]) for name in ARRAYS if name in archive}
    except FileNotFoundError:
        raise InputError(f"{file}: no such file") from None
    except (ValueError, OSError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise BrokenFileError(f"{file} is not an .npz file of numbers ({one_line(str(error))[:200]})") from None
    if missing := [name for name in ARRAYS[:3] if name not in arrays]:
        raise InputError(f"{file} lacks {', '.join(missing)}: --logits needs the arrays {', '.join(ARRAYS[:3])}")
    source, target, logits = arrays["src_ids"].long(), arrays["tgt_in_ids"].long(), arrays["logits"].float()
    source_mask, target_mask = (arrays.get(f"{side}_mask", torch.ones(1)) > 0 for side in ("src", "tgt"))
    size = len(vocabulary.target)
    if source.dim() != 2 or target.dim() != 2 or logits.shape != (*target.shape, size):
        shapes = ", ".join(f"{name} {tuple(arrays[name].shape)}" for name in ARRAYS[:3])
        raise InputError(f"{file} has {shapes}; --logits needs (rows, source), (rows, target), (rows, target, {size})")
    for name, ids, rows in (("src_ids", source, len(vocabulary.source)), ("tgt_in_ids", target, size)):
        if ids.numel() == 0 or not 0 <= int(ids.min()) <= int(ids.max()) < rows:
            raise InputError(f"{file}: {name} must have ids from 0 to {rows - 1}")
    source = source.masked_fill(~source_mask, vocabulary.pad_id)
    target = target.masked_fill(~target_mask, vocabulary.pad_id)
    if vocabulary.start is None:  # the toolkit starts with a zero vector
        target[:, 0] = vocabulary.start_id
    found = model(input_ids=source, attention_mask=source_mask.expand_as(source).long(), decoder_input_ids=target)
    ours = found.logits.log_softmax(-1)[..., : logits.shape[-1]]
    largest = (ours - logits.log_softmax(-1)).abs().amax(-1)
    return [row[mask] for row, mask in zip(largest, target_mask.expand_as(target), strict=True)]


# ---- pairs of sentences ------------------------------------------------------------------------------------------


def random_pairs(vocabulary: Vocabulary, length: int) -> list[Pair]:
    """Return pairs of random ids without special tokens, the same in every run."""
    chance, special = random.Random(0), {vocabulary.pad, vocabulary.eos, vocabulary.bos, vocabulary.start}
    source, target = ([id for id in range(len(vocabulary.tokens(side))) if id not in special] for side in SIDES)
    count = RANDOM_PAIRS if source and target else 0
    return [(chance.choices(source, k=length), chance.choices(target, k=length)) for _ in range(count)]


def encoded_pairs(folder: Path, texts: tuple[Path, Path], vocabulary: Vocabulary) -> list[Pair]:
    """Return the pairs of lines of two files as the toolkit's ids. Raises InputError if the files differ in length."""
    if not (folder / "tokenizer.json").exists():
        raise InputError("--check needs a tokenizer, but nothing beside the checkpoint says how text becomes ids")
    sources, targets = (list(read_lines(file)) for file in texts)
    if len(sources) != len(targets) or not sources:
        raise InputError(f"{texts[0]} has {len(sources)} lines, {texts[1]} {len(targets)}; --check needs pairs")
    separate, unknown = folder / TARGET_TOKENIZER, vocabulary.unknown

    def encoded(lines: list[str], place: Path, size: int) -> list[list[int]]:
        rows = PreTrainedTokenizerFast.from_pretrained(place)(lines)["input_ids"]
        # A piece that the toolkit's vocabulary lacks is `<unk>` to it.
        return [[id if id < size or unknown is None else unknown for id in row] for row in rows]

    rows = encoded(sources, folder, len(vocabulary.source))
    labels = encoded(targets, separate if separate.exists() else folder, len(vocabulary.target))
    return [(source, target) for source, target in zip(rows, labels, strict=True) if source and target]
