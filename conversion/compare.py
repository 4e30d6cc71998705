"""Compare the converted model with the toolkit's, at the end of each conversion.

torch and transformers are always installed: the checkpoints of three toolkits are compared with the library's own
model. For any toolkit, the user can give a file of logits that the toolkit computed.
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

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import BrokenFileError, InputError, ProofError, UnavailableError, one_line

from .toolkit import Description, Forward, wrap_model
from .vocabulary import SIDES, Vocabulary

# In float32, wrong settings give differences of 0.2 to 10. A wrong epsilon of LayerNorm gives 4e-5: not detected.
MAX_DIFFERENCE = 1e-3
RANDOM_PAIRS = 4
RANDOM_LENGTH = 10  # some tables of positions are not much longer
# The arrays in a file of logits.
REQUIRED_ARRAYS = ("src_ids", "tgt_in_ids", "logits")
MASKS = ("src_mask", "tgt_mask")  # may be missing


@torch.inference_mode()
def compare_with_toolkit(
    description: Description, model: Model, toolkit: str, checkpoint: Path, logits: Path | None = None
) -> str:
    """Return the line to print about the comparison. Raises ProofError if the two models differ.

    toolkit, checkpoint: the name of the toolkit, and the file that was read
    logits: an .npz file of logits that the toolkit computed; None to run the toolkit's own model
    """
    name = str(logits or toolkit)
    if logits:
        differences = compare_with_file(model, logits, description.vocabulary)
    elif description.reference is None:
        return (
            f"check: not compared: {name} cannot run here; to compare with logits that it computed, convert again "
            "with --logits FILE"
        )
    else:
        try:
            differences = compare_with_reference(description, model, checkpoint)
        except UnavailableError as error:
            return f"check: not compared: {toolkit} could not run this model ({error})"
    largest = torch.cat([torch.zeros(1), *differences]).max().item()
    if not largest <= MAX_DIFFERENCE:  # NaN is a difference as well
        remedies = description.assumptions or ["Check that the configuration file belongs to this checkpoint."]
        raise ProofError(
            f"{checkpoint}: the converted model's log-probabilities differ from {name}'s by {largest:.1e}. "
            + " ".join(remedies)
        )
    tokens = sum(len(each) for each in differences)
    return f"check: log-probabilities of {tokens:,} tokens differ from {name}'s by at most {largest:.1e}"


def compare_with_file(model: Model, file: Path, vocabulary: Vocabulary) -> list[Tensor]:
    """Return, for each row, the largest difference over the vocabulary at each target position, (target,)."""
    arrays = read_arrays(file)
    source, target, logits = arrays["src_ids"].long(), arrays["tgt_in_ids"].long(), arrays["logits"].float()
    source_mask = arrays.get("src_mask", torch.ones_like(source)) > 0
    target_mask = arrays.get("tgt_mask", torch.ones_like(target)) > 0
    size = len(vocabulary.target)
    rows_differ = source.shape[:1] != target.shape[:1]
    if source.dim() != 2 or target.dim() != 2 or rows_differ or logits.shape != (*target.shape, size):
        shapes = ", ".join(f"{name} {tuple(arrays[name].shape)}" for name in REQUIRED_ARRAYS)
        raise InputError(f"{file} has {shapes}; --logits needs (rows, source), (rows, target), (rows, target, {size})")
    for name, mask, ids in (("src_mask", source_mask, source), ("tgt_mask", target_mask, target)):
        if mask.shape != ids.shape:
            raise InputError(f"{file}: {name} has shape {tuple(mask.shape)}, but the ids have {tuple(ids.shape)}")
    for name, ids, rows in (("src_ids", source, len(vocabulary.source)), ("tgt_in_ids", target, size)):
        if ids.numel() == 0 or not 0 <= int(ids.min()) <= int(ids.max()) < rows:
            raise InputError(f"{file}: {name} must have ids from 0 to {rows - 1}")
    source = source.masked_fill(~source_mask, vocabulary.pad_id)
    target = target.masked_fill(~target_mask, vocabulary.pad_id)
    if vocabulary.start is None:  # the toolkit starts with a zero vector
        target[:, 0] = vocabulary.start_id
    outputs = model(input_ids=source, attention_mask=source_mask.long(), decoder_input_ids=target)
    ours = outputs.logits.log_softmax(-1)[..., :size]
    largest = (ours - logits.log_softmax(-1)).abs().amax(-1)
    return [row[mask] for row, mask in zip(largest, target_mask, strict=True)]


def read_arrays(file: Path) -> dict[str, Tensor]:
    """Read a file of logits. Raises InputError if an array is missing, BrokenFileError if the file is damaged."""
    try:
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            names = [name for name in (*REQUIRED_ARRAYS, *MASKS) if name in archive]
            arrays = {name: torch.from_numpy(archive[name]) for name in names}
    except FileNotFoundError:
        raise InputError(f"{file}: no such file") from None
    except (ValueError, OSError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise BrokenFileError(f"{file} is not an .npz file of numbers ({one_line(str(error))[:200]})") from None
    if missing := [name for name in REQUIRED_ARRAYS if name not in arrays]:
        raise InputError(f"{file} lacks {', '.join(missing)}: --logits needs the arrays {', '.join(REQUIRED_ARRAYS)}")
    return arrays


def compare_with_reference(description: Description, model: Model, checkpoint: Path) -> list[Tensor]:
    """Return, for each of a few random pairs, the difference of each target token's log-probability, (target,).

    Raises UnavailableError if the library cannot run the checkpoint.
    """
    assert description.reference is not None
    start = description.vocabulary.start_id
    length = min(RANDOM_LENGTH, model.config.learned_positions or RANDOM_LENGTH)
    pairs = make_random_pairs(description.vocabulary, length)
    ours = [score_tokens(wrap_model(model), start, *pair) for pair in pairs]
    try:
        # The library's output and warnings do not concern the conversion.
        with (
            warnings.catch_warnings(action="ignore"),
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
        ):
            forward = description.reference(checkpoint, description)
            theirs = [score_tokens(forward, start, *pair) for pair in pairs]
    except Exception as error:  # torch and transformers raise many kinds
        raise UnavailableError(f"{type(error).__name__}: {one_line(str(error))[:200]}") from error
    return [(a - b).abs() for a, b in zip(ours, theirs, strict=True)]


def make_random_pairs(vocabulary: Vocabulary, length: int) -> list[tuple[list[int], list[int]]]:
    """Return source and target ids without special tokens, the same in every run; none if a side has only those."""
    chance = random.Random(0)
    special = {vocabulary.pad, vocabulary.eos, vocabulary.bos, vocabulary.start}
    source, target = ([id for id in range(len(vocabulary.tokens(side))) if id not in special] for side in SIDES)
    if not source or not target:
        return []
    return [(chance.choices(source, k=length), chance.choices(target, k=length)) for _ in range(RANDOM_PAIRS)]


def score_tokens(forward: Forward, start: int, source: list[int], target: list[int]) -> Tensor:
    """Return the log-probability of each target token, (target,). start: the decoder's first token"""
    logits = forward(torch.tensor([source]), torch.tensor([[start, *target[:-1]]]))[0]
    return logits.float().log_softmax(-1).gather(-1, torch.tensor(target)[:, None])[:, 0]
