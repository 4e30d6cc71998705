"""One shared byte-level BPE for both languages (section 5.1), as a plain tokenizer.json.

Every text is a string of bytes and every byte is in the vocabulary, so nothing is unknown and decoding gives
back exactly what was encoded. AutoTokenizer loads the saved folder without any code of ours.

Users may type `</s>`. The tokenizers library would match it as the control token, unless told otherwise:
`split_special_tokens`, saved in tokenizer_config.json, does that wherever transformers loads the tokenizer.
tokenizer.json has no field for it, so a program that reads this file alone has to set
`tokenizer.encode_special_tokens = True` (which means: encode them like any other text).
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from vaswani_transformer.errors import InputError
from vaswani_transformer.lines import read_lines

# The ids of DESIGN.md. <pad> is not 0: transformers fills finished beams with </s> where it is.
SPECIAL_TOKENS = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
SMALLEST_VOCABULARY = len(SPECIAL_TOKENS) + 256

# Longer lines are cut for training only: a word of a million letters would make every merge a walk through it.
LONGEST_TRAINING_TEXT = 10_000


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    *,
    split_digits: bool = False,
    lowercase: bool = False,
    min_frequency: int = 2,
    model_max_length: int = 1024,
    show_progress: bool = False,
) -> PreTrainedTokenizerFast:
    """Train a shared byte-level BPE.

    texts: source and target sentences, read once and never held: memory grows with distinct words only.
    vocab_size: all of it: 4 control tokens, 256 bytes, the rest merges.
    split_digits: every digit a token of its own, so that unseen numbers are spelt with seen tokens.
    lowercase: read every text in small letters, and therefore write in small letters: what papers on small corpora
        do. Decoding then gives back the lower-cased text.
    min_frequency: how often a pair must occur to be merged.
    model_max_length: where `tokenizer(..., truncation=True)` cuts; the sinusoidal model itself has no limit.

    Raises InputError if vocab_size is too small to hold the bytes, or larger than the texts give.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise InputError(
            f"vocab_size {vocab_size} is too small: {len(SPECIAL_TOKENS)} control tokens and 256 bytes "
            f"need {SMALLEST_VOCABULARY}"
        )
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = Tokenizer(models.BPE())
    if lowercase:
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
        if split_digits
        else byte_level
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=show_progress,
    )
    tokenizer.train_from_iterator(training_texts(texts), trainer)
    learned = tokenizer.get_vocab_size()
    if learned < vocab_size:
        raise InputError(
            f"vocab_size {vocab_size} is larger than the texts give: they support {learned} entries "
            f"(pairs that occur at least {min_frequency} times); give more text or at most {learned}"
        )
    end_of_sentence = SPECIAL_TOKENS["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end_of_sentence}",
        special_tokens=[(end_of_sentence, tokenizer.token_to_id(end_of_sentence))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **SPECIAL_TOKENS,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        padding_side="right",
        model_max_length=model_max_length,
    )


def training_texts(texts: Iterable[str]) -> Iterator[str]:
    """The texts as the trainer takes them. InputError if one is not Unicode text or there is none."""
    nothing = True
    for number, text in enumerate(texts, start=1):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError(
                f"text {number}: the lone surrogate {ascii(text[error.start])} at character {error.start + 1} "
                "is not Unicode text"
            ) from None
        nothing = nothing and not text
        for start in range(0, len(text), LONGEST_TRAINING_TEXT):
            yield text[start : start + LONGEST_TRAINING_TEXT]
    if nothing:
        raise InputError("there is no text to train a tokenizer on")


def lines_of_files(files: Iterable[str | Path]) -> Iterator[str]:
    """The lines of several UTF-8 text files, one after the other."""
    return chain.from_iterable(read_lines(file) for file in files)
