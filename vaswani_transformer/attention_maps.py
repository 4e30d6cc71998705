"""Attention weights of a sentence pair, with a readable label for each token; `pictures` draws them."""

import copy
from dataclasses import dataclass
from typing import cast

import torch
from tokenizers.decoders import ByteLevel
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from .errors import InputError
from .modeling_vaswani_transformer import VaswaniTransformerForConditionalGeneration
from .sentences_vaswani_transformer import choose_cleaning

LONGEST_SENTENCE = 120  # tokens; the labels of a larger heat map are illegible


@dataclass(frozen=True)
class AttentionMaps:
    """The attention weights of one sentence pair; every row sums to 1.

    source: labels of the source tokens, ending in </s>
    target: labels of the decoder's inputs, beginning with <s>
    predicted: labels of the tokens that the decoder predicts at these inputs, ending in </s>
    cross: (decoder_layers, heads, target, source)
    encoder: (encoder_layers, heads, source, source)
    decoder: (decoder_layers, heads, target, target)
    """

    source: list[str]
    target: list[str]
    predicted: list[str]
    cross: Tensor
    encoder: Tensor
    decoder: Tensor


@torch.inference_mode()
def attention_maps(
    model: VaswaniTransformerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerFast,
    source: str,
    target: str | None = None,
    target_tokenizer: PreTrainedTokenizerFast | None = None,
) -> AttentionMaps:
    """Compute the attention weights of a sentence and its translation.

    target: None for the model's translation
    target_tokenizer: tokenizer of the decoder, if the languages have separate vocabularies
    Raises `InputError` if the source is empty or a sentence has more than 120 tokens.
    """
    source = choose_cleaning(tokenizer.backend_tokenizer.normalizer)(source)
    if not source:
        raise InputError("the source is empty; give a sentence")
    target_tokenizer = target_tokenizer or tokenizer
    encoding = tokenizer([source], return_tensors="pt", verbose=False).to(model.device)
    source_ids, source_mask = cast(Tensor, encoding["input_ids"]), cast(Tensor, encoding["attention_mask"])
    check_sentence_length("source", source_ids.shape[1])
    if target is None:
        labels = cast(Tensor, model.generate(input_ids=source_ids, attention_mask=source_mask))[:, 1:]
    else:
        labels = cast(Tensor, target_tokenizer(text_target=[target], return_tensors="pt", verbose=False)["input_ids"])
        labels = labels.to(model.device)
    check_sentence_length("target", labels.shape[1])

    outputs = eager_copy(model)(
        input_ids=source_ids,
        attention_mask=source_mask,
        decoder_input_ids=model.prepare_decoder_input_ids_from_labels(labels),
        output_attentions=True,
        use_cache=False,
    )
    predicted = token_labels(target_tokenizer, labels[0].tolist())
    start = target_tokenizer.convert_ids_to_tokens(model.config.decoder_start_token_id)
    return AttentionMaps(
        source=token_labels(tokenizer, source_ids[0].tolist()),
        target=[str(start), *predicted[:-1]],
        predicted=predicted,
        cross=torch.cat(outputs.cross_attentions).float().cpu(),
        encoder=torch.cat(outputs.encoder_attentions).float().cpu(),
        decoder=torch.cat(outputs.decoder_attentions).float().cpu(),
    )


def check_sentence_length(kind: str, tokens: int) -> None:
    if tokens > LONGEST_SENTENCE:
        raise InputError(
            f"the {kind} has {tokens} tokens; a heat map shows at most {LONGEST_SENTENCE}: choose another sentence"
        )


def token_labels(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[str]:
    """Return a readable label for each token: its text with `▁` for a space; `ü 1/2` is part of a character."""
    tokens = cast(list[str], tokenizer.convert_ids_to_tokens(ids))
    decoder = tokenizer.backend_tokenizer.decoder
    if decoder is None or b"ByteLevel" not in decoder.__getstate__():
        return tokens
    byte_level, labels = ByteLevel(), list[str]()
    while len(labels) < len(tokens):
        rest = tokens[len(labels) : len(labels) + 4]
        # The fewest tokens whose bytes form complete characters, or one token.
        texts = (byte_level.decode(rest[:count]).replace(" ", "▁") for count in range(1, len(rest) + 1))
        count, text = next(((n, text) for n, text in enumerate(texts, start=1) if "�" not in text), (1, "�"))
        labels += [text] if count == 1 else [f"{text} {part}/{count}" for part in range(1, count + 1)]
    return labels


def eager_copy(model: VaswaniTransformerForConditionalGeneration) -> VaswaniTransformerForConditionalGeneration:
    """Return a copy with eager attention, the only implementation that returns weights; it shares the parameters.

    The model itself stays as it is: other threads may be translating with it.
    """
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    copied = copy.deepcopy(model, shared)  # which takes the objects in `shared` for copies that it has made
    copied.set_attn_implementation("eager")
    return copied
