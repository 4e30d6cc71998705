"""The attention weights of a sentence and its translation, the Q, K and V behind them, and a label for each token.

A Space has transformers and the model's own code, but not this package. So the weights and labels of
vaswani_transformer/attention_maps.py and the values of paper/walk.py are computed here and in equation.py again.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tokenizers.decoders import ByteLevel

# For each kind of attention, its name in the code and what a row of its heat map shows.
KINDS = {
    "Cross-attention": ("cross", "each word of the translation (rows) attends to the sentence (columns)"),
    "Encoder self-attention": ("encoder", "each word of the sentence (rows) attends to the sentence (columns)"),
    "Decoder self-attention": ("decoder", "each word of the translation (rows) attends to those before it (columns)"),
}

# Values of Q, K and V by the kind of attention: for each layer a dictionary of (heads, positions, d_k or d_v).
Projections = dict[str, list[dict[str, np.ndarray]]]


@dataclass(frozen=True)
class Attention:
    """The attention of a sentence pair; every field is a dictionary by kind.

    weights: (layers, heads, rows, columns);  rows, columns: the labels of their tokens
    """

    weights: dict[str, np.ndarray]
    projections: Projections
    rows: dict[str, list[str]]
    columns: dict[str, list[str]]


@torch.inference_mode()
def compute_attention(translator: Any, source_ids: torch.Tensor, target_ids: list[int]) -> Attention:
    """Return the attention of a translation, from one pass over all its tokens.

    translator: the model's pipeline.  source_ids: (1, source).  target_ids: the tokens of the translation, with </s>
    """
    model = translator.model
    input_ids = [model.config.decoder_start_token_id, *target_ids[:-1]]
    with recorded_projections(model) as projections:
        outputs = model(
            source_ids, decoder_input_ids=torch.tensor([input_ids]), output_attentions=True, use_cache=False
        )
    source = labels(translator.tokenizer, source_ids[0].tolist())
    predicted, read = (labels(translator.target_tokenizer, ids) for ids in (target_ids, input_ids))
    return Attention(
        {
            "cross": torch.cat(outputs.cross_attentions).float().numpy(),
            "encoder": torch.cat(outputs.encoder_attentions).float().numpy(),
            "decoder": torch.cat(outputs.decoder_attentions).float().numpy(),
        },
        projections,
        # A row of the decoder is labelled with the token that it predicts.
        rows={"cross": predicted, "encoder": source, "decoder": predicted},
        columns={"cross": source, "encoder": source, "decoder": read},
    )


@contextmanager
def recorded_projections(model: Any) -> Iterator[Projections]:
    """Record what the projections of every attention return in a pass over one sentence."""
    encoder, decoder = model.model.encoder.layers, model.model.decoder.layers
    modules = {
        "encoder": [layer.self_attn for layer in encoder],
        "decoder": [layer.self_attn for layer in decoder],
        "cross": [layer.cross_attn for layer in decoder],
    }
    found: Projections = {kind: [{} for _ in attentions] for kind, attentions in modules.items()}
    with ExitStack() as hooks:
        for kind, attentions in modules.items():
            for attention, values in zip(attentions, found[kind], strict=True):
                for name, size in (("q", attention.d_k), ("k", attention.d_k), ("v", attention.d_v)):

                    def record(_module: Any, _inputs: Any, output: torch.Tensor, values=values, name=name, size=size):
                        values[name.upper()] = output[0].unflatten(-1, (-1, size)).transpose(0, 1).float().numpy()

                    hooks.enter_context(getattr(attention, f"{name}_proj").register_forward_hook(record))
        yield found


def labels(tokenizer: Any, ids: list[int]) -> list[str]:
    """Return a readable label per token: `▁` for only a space, `ü 1/2` for a token that is part of a character."""
    tokens = tokenizer.convert_ids_to_tokens(ids)
    if not isinstance(tokenizer.backend_tokenizer.decoder, ByteLevel):
        return [token.replace("▁", " ").removesuffix("@@").strip() or "▁" for token in tokens]
    byte_level, result = ByteLevel(), []
    while len(result) < len(tokens):
        start = len(result)
        # The fewest tokens that form complete characters; a single token if four do not.
        for count in range(1, min(4, len(tokens) - start) + 1):
            text = byte_level.decode(tokens[start : start + count])
            if "\ufffd" not in text:
                break
        else:
            count, text = 1, "\ufffd"
        text = text.strip() or "▁"
        result += [text] if count == 1 else [f"{text} {part}/{count}" for part in range(1, count + 1)]
    return result
