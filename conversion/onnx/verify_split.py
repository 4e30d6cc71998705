"""Compare the split layout with torch: the logits must agree for every way to call the decoders."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model
from vaswani_transformer.modeling_vaswani_transformer import target_vocab_size

from .split import FILES
from .verify import ATTENTION_TOLERANCES, TOLERANCES, cross_attentions, open_session, raise_if_wrong, random_batch

TARGET_LENGTH = 6  # tokens
Arrays = dict[str, np.ndarray]


@torch.no_grad()
def verify_split(folder: Path, model: Model, precision: str = "fp32") -> str:
    """Decode a padded batch in three ways, and report the largest difference of a logit. Raises ProofError.

    The ways: all tokens in one call; token by token with both decoders; token by token with the merged decoder. If
    decoder_model returns attention weights, they are compared too.
    """
    batch = random_batch(model, seed=0, sentences=3, longest=9)
    generator, start = torch.Generator().manual_seed(0), model.config.decoder_start_token_id
    tokens = torch.randint(target_vocab_size(model.config), (3, TARGET_LENGTH), generator=generator)
    tokens[tokens == model.config.eos_token_id] = start  # decoders for transformers.js repeat </s>
    tokens[:, 0] = start
    expected = model(**batch, decoder_input_ids=tokens, use_cache=False).logits.float().numpy()

    encoder, decoder, decoder_with_past, merged = (open_session(folder / f"{name}.onnx") for name in FILES)
    (memory,) = encoder.run(None, {name: tensor.numpy() for name, tensor in batch.items()})
    source = {"encoder_hidden_states": memory, "encoder_attention_mask": batch["attention_mask"].numpy()}
    at_once = by_name(decoder, source | {"input_ids": tokens.numpy()})
    in_turn = decode_token_by_token(decoder, decoder_with_past, source, tokens.numpy())
    by_merged = decode_token_by_token(merged, merged, source | empty_past(merged, memory), tokens.numpy())
    found = {
        "logits of decoder_model, all tokens at once": at_once["logits"],
        "logits of decoder_model, then decoder_with_past_model": in_turn,
        "logits of decoder_model_merged": by_merged,
    }
    differences = {way: float(np.abs(logits - expected).max()) for way, logits in found.items()}
    # Relative to the logits, whose scale depends on the model.
    limits = dict.fromkeys(found, TOLERANCES[precision] * max(1.0, float(np.abs(expected).max())))
    weights = [value for name, value in at_once.items() if name.startswith("cross_attentions")]
    if weights:
        way, theirs = "attention weights of decoder_model", cross_attentions(model, batch, tokens)
        differences[way] = max(float(np.abs(a - b).max()) for a, b in zip(weights, theirs, strict=True))
        limits[way] = ATTENTION_TOLERANCES[precision]
    exceeding = {way: largest for way, largest in differences.items() if not largest <= limits[way]}  # NaN, too
    raise_if_wrong([f"{way} differ by {size:.2g}; the limit is {limits[way]:.2g}" for way, size in exceeding.items()])
    return "\n".join(f"{way:<54}differ by at most {largest:.1e}" for way, largest in differences.items())


def decode_token_by_token(decoder: Any, decoder_with_past: Any, source: Arrays, tokens: np.ndarray) -> np.ndarray:
    """Return the logits. The first token passes through `decoder`, later ones through `decoder_with_past`."""
    known, logits = source, []
    for i in range(tokens.shape[1]):
        inputs = known | {"input_ids": tokens[:, i : i + 1], "use_cache_branch": np.array([i > 0])}
        outputs = by_name(decoder_with_past if i else decoder, inputs)
        logits.append(outputs.pop("logits"))
        known |= {name.replace("present", "past_key_values"): value for name, value in outputs.items()}
    return np.concatenate(logits, axis=1)


def empty_past(merged: Any, memory: np.ndarray) -> Arrays:
    """Return a cache of length 0, which the first call of the merged decoder ignores."""
    past = [value for value in merged.get_inputs() if value.name.startswith("past")]
    return {value.name: np.zeros((len(memory), value.shape[1], 0, value.shape[3]), memory.dtype) for value in past}


def by_name(session: Any, inputs: Arrays) -> Arrays:
    """Run a session with those of the inputs that it has, and return the outputs by name."""
    given = {value.name: inputs[value.name] for value in session.get_inputs()}
    outputs = [value.name for value in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, given), strict=True))
