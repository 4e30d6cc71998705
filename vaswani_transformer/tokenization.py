"""One shared byte-level BPE for both languages (section 5.1), saved as a plain tokenizer.json.

The vocabulary contains every byte, so no text is unknown and decoding returns exactly the encoded text after its
normalisation: invisible characters are dropped and each run of white space is one space, in training and in
translation, since a model translates text with characters that it has never seen badly. AutoTokenizer loads the saved
folder without code of this package.

A `</s>` typed by a user is encoded as text because `split_special_tokens` is set in tokenizer_config.json.
tokenizer.json has no field for it: programs that read this file alone set `tokenizer.encode_special_tokens = True`,
which encodes special tokens like any other text.

Symbols (placeholders, tags, language codes) are added tokens that are not special: they stay whole in any text.
"""

import re
from collections.abc import Iterable, Iterator, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from .errors import InputError
from .lines import check_unicode
from .sentences_vaswani_transformer import CLEANING

# In the order of their ids, 0 to 3, the defaults of VaswaniTransformerConfig, which says why <pad> is not 0.
SPECIAL_TOKENS = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
SMALLEST_VOCABULARY = len(SPECIAL_TOKENS) + 256

# Longer texts are split for training; otherwise each merge would scan words of up to a million letters.
LONGEST_TRAINING_TEXT = 10_000


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    *,
    split_digits: bool = False,
    lowercase: bool = False,
    symbols: Sequence[str] = (),
    keep_invisible: bool = False,
    min_frequency: int = 2,
) -> PreTrainedTokenizerFast:
    """Train a shared byte-level BPE.

    texts: source and target sentences, read once as a stream; memory grows only with the number of distinct words
    vocab_size: total size: 4 special tokens, 256 bytes, the symbols and the merges
    split_digits: make every digit a token, so that unseen numbers consist of known tokens
    lowercase: lower-case every text, as papers on small corpora do; decoding then returns lower-cased text
    symbols: texts that are one token each, wherever they occur, such as `<2de>`
    keep_invisible: keep invisible characters and all white space, except at the ends of a text. Without it, zero-width
        joiners are kept only after letters of scripts that spell with them, such as Persian and Hindi, and in emoji
    min_frequency: smallest number of occurrences of a pair to be merged

    Raises `InputError` if `vocab_size` is too small for the bytes or larger than the texts support, or for a symbol
    that cannot be decoded.
    """
    symbols = list(dict.fromkeys(symbols))
    if vocab_size < SMALLEST_VOCABULARY + len(symbols):
        counted = f"{len(SPECIAL_TOKENS)} special tokens{f', {len(symbols)} symbols' if symbols else ''} and 256 bytes"
        raise InputError(f"vocab_size {vocab_size} is too small: {counted} need {SMALLEST_VOCABULARY + len(symbols)}")
    tokenizer = make_untrained_bpe(split_digits, lowercase, keep_invisible)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(symbols),
        min_frequency=min_frequency,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(leave_out(symbols, split_training_texts(texts)), trainer)
    add_symbols(tokenizer, symbols)
    learned = tokenizer.get_vocab_size()
    if learned < vocab_size:
        raise InputError(
            f"vocab_size {vocab_size} is larger than the texts support (merges need pairs that occur at least "
            f"{min_frequency} times); give more text or a size of at most {learned}"
        )
    end_of_sentence = SPECIAL_TOKENS["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end_of_sentence}",
        pair=f"$A $B {end_of_sentence}",  # as Marian's
        special_tokens=[(end_of_sentence, tokenizer.token_to_id(end_of_sentence))],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        **SPECIAL_TOKENS,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
        padding_side="right",
        model_max_length=1024,  # for `tokenizer(..., truncation=True)`; the model with sinusoids has no maximum length
    )


def add_symbols(tokenizer: Tokenizer, symbols: Sequence[str]) -> None:
    """Add symbols, which are found in the normalised text. Raises InputError for one that cannot be decoded."""
    for symbol in symbols:
        check_unicode(symbol, f"symbol {symbol!r}")
        normal = tokenizer.normalizer.normalize_str(symbol) if tokenizer.normalizer else symbol
        if not normal.strip() or tokenizer.token_to_id(normal) is not None:
            raise InputError(f"symbol {symbol!r} is blank or already a token; choose another, such as <{symbol}>")
        tokenizer.add_tokens([AddedToken(symbol, normalized=True)])
        ids = tokenizer.encode(symbol).ids
        # The decoder reads the letters U+0021 to U+0143 as bytes.
        if len(ids) != 1 or tokenizer.decode(ids) != normal:
            raise InputError(f"symbol {symbol!r} cannot be encoded and decoded again; use ASCII, such as <2de>")


def leave_out(symbols: Sequence[str], texts: Iterable[str]) -> Iterator[str]:
    """Yield the parts of the texts between symbols, so that no merge is learnt inside a symbol."""
    if not symbols:
        yield from texts
        return
    pattern = re.compile("|".join(map(re.escape, sorted(symbols, key=len, reverse=True))))
    for text in texts:
        yield from filter(None, pattern.split(text))


def make_normalizer(lowercase: bool, keep_invisible: bool) -> normalizers.Normalizer:
    """Return the normalizer of a trained tokenizer; `choose_cleaning` recognises what it keeps."""
    steps: list[normalizers.Normalizer] = []
    if not keep_invisible:
        steps += [normalizers.Replace(Regex(pattern), replacement) for pattern, replacement in CLEANING]
    steps.append(normalizers.Strip())
    if lowercase:
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence(steps)


def make_untrained_bpe(split_digits: bool, lowercase: bool, keep_invisible: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = make_normalizer(lowercase, keep_invisible)
    tokenizer.pre_tokenizer = byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if split_digits:
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def split_training_texts(texts: Iterable[str]) -> Iterator[str]:
    """Yield the texts in pieces for the trainer. Raises `InputError` for invalid Unicode or if all texts are empty."""
    is_empty = True
    for number, text in enumerate(texts, start=1):
        check_unicode(text, f"text {number}")
        is_empty = is_empty and not text
        for start in range(0, len(text), LONGEST_TRAINING_TEXT):
            yield text[start : start + LONGEST_TRAINING_TEXT]
    if is_empty:
        raise InputError("there is no text to train a tokenizer on: all lines are blank")
