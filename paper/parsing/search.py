"""Parse sentences with a trained model: beam 21, alpha 0.3 and up to 300 tokens more than the source (section 6.3)."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from transformers import LogitsProcessorList, PreTrainedTokenizerFast

from vaswani_transformer import TorchTranslator, gnmt_length_penalty

from ..rnn import RnnWithAttention, beam_search
from .constraint import SHARE_FOR_THE_LSTM, WellFormedTrees, pair_brackets

BEAMS, ALPHA, OFFSET = 21, 0.3, 300
LOOKAHEAD = 20  # see `SearchSettings.lookahead`
FEW_BEAMS = 4  # when a wide search takes too long


@dataclass(frozen=True)
class Parse:
    """The words and brackets of a tree, and the mean log-probability of the output tokens.

    The log-probabilities of words are mixed, see `WellFormedTrees`.
    """

    tokens: list[str]
    confidence: float


def parse(
    folder: Path, sentences: Sequence[str], beams: int = BEAMS, batch: int = 8, constrained: bool = True
) -> list[Parse]:
    """Parse sentences with `generate()` and a model of Table 4.

    sentences: words separated by spaces;  batch: number of sentences in a batch
    """
    translator = TorchTranslator.from_pretrained(folder)
    tokenizer, parses = translator.tokenizer, dict[int, Parse]()
    by_length = sorted(range(len(sentences)), key=lambda index: len(sentences[index].split()))
    for start in range(0, len(sentences), batch):
        indices = by_length[start : start + batch]
        texts = [sentences[index] for index in indices]
        source: Any = tokenizer(texts, padding=True, return_tensors="pt").to(translator.model.device)
        words = [tokens[:-1] for tokens in tokenizer(texts)["input_ids"]]
        allowed = WellFormedTrees(tokenizer, words, [len(tokens) + 1 + OFFSET for tokens in words])
        output = translator.model.generate(
            **source,
            num_beams=beams,
            length_penalty=ALPHA,
            extra_length=OFFSET,
            early_stopping=LOOKAHEAD,
            logits_processor=LogitsProcessorList([allowed] if constrained else []),
            return_dict_in_generate=True,
            output_scores=True,
        )
        for index, ids, score in zip(indices, output.sequences.tolist(), output.sequences_scores.tolist(), strict=True):
            length = sum(id != tokenizer.pad_token_id for id in ids) - 1  # without <s>
            parses[index] = Parse(decode_tokens(ids, tokenizer), score * gnmt_length_penalty(length, ALPHA) / length)
    return [parses[index] for index in range(len(sentences))]


def decode_tokens(ids: Sequence[int], tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Return the words and brackets of an output sequence."""
    pairs = pair_brackets(tokenizer.get_vocab())
    bracket_ids = {*pairs, *pairs.values()}
    tokens: list[str] = []
    for are_brackets, run in itertools.groupby(ids, bracket_ids.__contains__):
        part = list(run)
        if are_brackets:
            tokens += cast(list[str], tokenizer.convert_ids_to_tokens(part))
        else:
            tokens += cast(str, tokenizer.decode(part, skip_special_tokens=True)).split()
    return tokens


def parse_with_lstm(
    model: RnnWithAttention, tokenizer: PreTrainedTokenizerFast, sentences: Sequence[str]
) -> list[list[str]]:
    """Return the tokens of each sentence's tree, found by the same search under the same constraint."""
    parsed = []
    for sentence in sentences:
        source = cast(list[int], tokenizer(sentence)["input_ids"])
        limit = len(source) + OFFSET
        ids = beam_search(
            model,
            source,
            beams=BEAMS,
            alpha=ALPHA,
            limit=limit,
            lookahead=LOOKAHEAD,
            start=cast(int, tokenizer.bos_token_id),
            end=cast(int, tokenizer.eos_token_id),
            constraint=WellFormedTrees(tokenizer, [source[:-1]], [limit], SHARE_FOR_THE_LSTM),
        )
        parsed.append(decode_tokens(ids, tokenizer))
    return parsed
