"""Compare the converted model with the toolkit's, at the end of each conversion.

torch and transformers are always installed: the checkpoints of three toolkits are compared with the library's own
model. For any toolkit, the user can give a file of logits that the toolkit computed.
"""

import io
import random
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import torch
from torch import Tensor
from transformers.utils import logging

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.errors import BrokenFileError, InputError, ProofError, UnavailableError, one_line

from .checkpoint_files import read_npz
from .toolkit import Description
from .vocabulary import SIDES, Vocabulary

# In float32, wrong settings give differences of 0.2 to 10. A wrong epsilon of LayerNorm gives 4e-5: not detected.
MAX_DIFFERENCE = 1e-3
RANDOM_PAIRS = 4
RANDOM_LENGTH = 10  # some tables of positions are not much longer
RANDOM_TEXTS = 200
LONGEST_TEXT = 12  # tokens of a random text
MOST_CHARACTERS = 500
# Texts on which tokenizers tend to differ: scripts, quotes, accents, ligatures, combining marks, spaces, symbols.
TEXTS = [
    "", " ", "  two  spaces ", "A dog runs.", "“Quoted” ‘words’ – and… more", "«Déjà vu», naïve café; 50/50",
    "Straße, größer; Ångström; œuvre", "He paid 3.50 € (or $4) for a/b\\c & d|e", "mail@example.org #1 *x* [y] {z}",
    "Привет, мир!", "Γειά σου Κόσμε", "你好，世界。", "こんにちは世界", "안녕하세요", "नमस्ते दुनिया", "مرحبا بالعالم",
    "שלום עולם", "สวัสดีชาวโลก", "xin chào thế giới", "ﬁne ① ½ ™ Ⅷ ｆｕｌｌ", "e\u0301 a\u0308 n\u0303",
    "👍🏽 😀😀 👨\u200d👩\u200d👧", "a\u00a0b\u202fc\u3000d", "tab\tand\nline", "soft\u00adhyphen zero\u200bwidth",
    "<unk", "& < > \" '", "--- ... !!! ???",
]  # fmt: skip
# The arrays in a file of logits.
REQUIRED_ARRAYS = ("src_ids", "tgt_in_ids", "logits")
MASKS = ("src_mask", "tgt_mask")  # may be missing


@torch.inference_mode()
def compare_with_toolkit(
    description: Description, model: Model, toolkit: str, checkpoint: Path, logits: Path | None
) -> str:
    """Return the line to print about the comparison. Raises ProofError if the two models differ.

    toolkit, checkpoint: the name of the toolkit, and the file that was read
    logits: an .npz file of logits that the toolkit computed; None to run the toolkit's own model
    """
    name = str(logits or toolkit)
    if logits:
        arrays = read_arrays(logits, description.vocabulary)
    elif description.reference is None:
        return (
            f"check: not compared: {name} cannot run here; to compare with logits that it computed, convert again "
            "with --logits FILE"
        )
    else:
        try:
            arrays = compute_arrays(description, model, checkpoint)
        except UnavailableError as error:
            return f"check: not compared: {toolkit} could not run this model ({error})"
    differences = compute_differences(model, description.vocabulary, *arrays)
    largest = differences.max().item() if len(differences) else 0.0
    if not largest <= MAX_DIFFERENCE:  # NaN is a difference as well
        remedies = description.assumptions or ["Check that the configuration file belongs to this checkpoint."]
        raise ProofError(
            f"{checkpoint}: the converted model's log-probabilities differ from {name}'s by {largest:.1e}. "
            + " ".join(remedies)
        )
    return f"check: log-probabilities of {len(differences):,} tokens differ from {name}'s by at most {largest:.1e}"


def compute_differences(
    model: Model, vocabulary: Vocabulary, source: Tensor, target: Tensor, logits: Tensor, *masks: Tensor
) -> Tensor:
    """Return the largest difference of a log-probability at each target position, (positions,).

    source, target: the toolkit's ids for the encoder and the decoder, (rows, source) and (rows, target)
    logits: the toolkit's, (rows, target, vocabulary)
    masks: of source and target, 0 at padding
    """
    source_mask, target_mask = (mask > 0 for mask in masks)
    source = source.masked_fill(~source_mask, vocabulary.pad_id)
    target = target.masked_fill(~target_mask, vocabulary.pad_id)
    if vocabulary.start is None:  # the toolkit starts with a zero vector
        target[:, 0] = vocabulary.start_id
    outputs = model(input_ids=source, attention_mask=source_mask.long(), decoder_input_ids=target)
    ours = outputs.logits.log_softmax(-1)[..., : len(vocabulary.target)]
    return (ours - logits.float().log_softmax(-1)).abs().amax(-1)[target_mask]


def read_arrays(file: Path, vocabulary: Vocabulary) -> list[Tensor]:
    """Read a file of logits: the arrays and the masks, for `compute_differences`.

    Raises InputError if an array is missing or does not fit, BrokenFileError if the file is damaged.
    """
    content = read_npz(file)
    try:
        arrays = {name: torch.from_numpy(content[name]) for name in (*REQUIRED_ARRAYS, *MASKS) if name in content}
    except TypeError as error:
        raise BrokenFileError(f"{file} is not an .npz file of numbers ({one_line(str(error))[:200]})") from None
    if missing := [name for name in REQUIRED_ARRAYS if name not in arrays]:
        raise InputError(f"{file} lacks {', '.join(missing)}: --logits needs the arrays {', '.join(REQUIRED_ARRAYS)}")
    source, target, logits = (arrays[name] for name in REQUIRED_ARRAYS)
    size = len(vocabulary.target)
    rows_differ = source.shape[:1] != target.shape[:1]
    if source.dim() != 2 or target.dim() != 2 or rows_differ or logits.shape != (*target.shape, size):
        shapes = ", ".join(f"{name} {tuple(arrays[name].shape)}" for name in REQUIRED_ARRAYS)
        raise InputError(f"{file} has {shapes}; --logits needs (rows, source), (rows, target), (rows, target, {size})")
    for name, mask, limit in zip(REQUIRED_ARRAYS, MASKS, (len(vocabulary.source), size), strict=False):
        ids = arrays[name] = arrays[name].long()
        shape = tuple(arrays.setdefault(mask, torch.ones_like(ids)).shape)
        if shape != ids.shape:
            raise InputError(f"{file}: {mask} has shape {shape}, but the ids have {tuple(ids.shape)}")
        if ids.numel() == 0 or not 0 <= int(ids.min()) <= int(ids.max()) < limit:
            raise InputError(f"{file}: {name} must have ids from 0 to {limit - 1}")
    return [arrays[name] for name in (*REQUIRED_ARRAYS, *MASKS)]


def compute_arrays(description: Description, model: Model, checkpoint: Path) -> list[Tensor]:
    """Run the checkpoint's own model on a few random pairs. Return ids, logits and masks for `compute_differences`.

    Raises UnavailableError if the library cannot run the checkpoint.
    """
    assert description.reference is not None
    vocabulary, chance = description.vocabulary, random.Random(0)
    length = min(RANDOM_LENGTH, model.config.learned_positions or RANDOM_LENGTH)
    special = {vocabulary.pad, vocabulary.eos, vocabulary.bos, vocabulary.start}
    words = [[id for id in range(len(vocabulary.tokens(side))) if id not in special] for side in SIDES]
    if not all(words):
        raise UnavailableError("a vocabulary has only special tokens")
    source, target = (torch.tensor([chance.choices(ids, k=length) for _ in range(RANDOM_PAIRS)]) for ids in words)
    target[:, 0] = vocabulary.start_id
    verbosity = logging.get_verbosity()
    try:
        # The library's output and warnings do not concern the conversion.
        logging.set_verbosity_error()
        with warnings.catch_warnings(action="ignore"), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            logits = description.reference(checkpoint, description, source, target)
    except Exception as error:  # torch and transformers raise many kinds
        raise UnavailableError(f"{type(error).__name__}: {one_line(str(error))[:200]}") from error
    finally:
        logging.set_verbosity(verbosity)
    return [source, target, logits, torch.ones_like(source), torch.ones_like(target)]


# ---- tokenizers ------------------------------------------------------------------------------------------------------


def compare_tokenizers(vocabulary: Vocabulary) -> list[str]:
    """Return the lines to print about the tokenizers: for how many texts the toolkit's own gives other ids."""
    lines = []
    for side in SIDES:
        reference = vocabulary.references.get(side)
        if reference is None:
            continue
        texts = make_texts(vocabulary)
        try:
            with warnings.catch_warnings(action="ignore"), redirect_stdout(io.StringIO()):
                theirs = reference.encode(texts)
        except ImportError:
            lines.append(f"check: {side} tokens not compared: {reference.name} needs `pip install sentencepiece`")
            continue
        except Exception as error:  # the packages raise many kinds
            reason = f"{type(error).__name__}: {one_line(str(error))[:200]}"
            lines.append(f"check: {side} tokens not compared: {reference.name} could not run ({reason})")
            continue
        ours = vocabulary.wrap_tokenizer(side)(texts)["input_ids"]
        different = [
            text
            for text, ids, expected in zip(texts, ours, theirs, strict=True)
            if [vocabulary.without_alias(id, side) for id in ids] != expected
        ]
        found = f"equal {reference.name}'s on {len(texts):,} texts"
        if different:
            found = f"differ from {reference.name}'s on {len(different):,} of {len(texts):,} texts: {different[0]!r}"
        lines.append(f"check: {side} tokens {found}")
    return lines


def make_texts(vocabulary: Vocabulary) -> list[str]:
    """Return texts in which a tokenizer could go wrong.

    TEXTS; each character of the vocabularies alone, twice and in a word; and random tokens of each side in a row.
    """
    chance, words = random.Random(0), []
    special = {token for side in SIDES for token in vocabulary.special_tokens(side).values()}
    special |= {token for side in SIDES for token in vocabulary.language_tokens(side)}
    for side in SIDES:
        tokens = [token for token in vocabulary.tokens(side) if token not in special]
        has_suffix = any(token.endswith("@@") for token in tokens)
        words.append([f"{token} ".replace("@@ ", "") if has_suffix else token.replace("▁", " ") for token in tokens])
    characters = sorted({character for side in words for token in side for character in token})
    characters = chance.sample(characters, min(len(characters), MOST_CHARACTERS))
    texts = [
        *TEXTS,
        *(text for c in characters for text in (c, f"{c}{c} a{c}", f"{c}a {c} {chance.choice(characters)}")),
    ]
    for side in words:
        texts += ["".join(chance.choices(side, k=chance.randint(1, LONGEST_TEXT))) for _ in range(RANDOM_TEXTS) if side]
    return [text for text in texts if not any(token in text for token in (*special, ">>"))]
