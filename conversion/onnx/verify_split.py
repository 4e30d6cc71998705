"""Compare the split layout with torch: the same logits, whichever way the files are used."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model

from .session import open_session
from .split import FILES
from .verify import TOLERANCES, cross_attentions, raise_if_wrong, random_batch

Arrays = dict[str, np.ndarray]


@torch.no_grad()
def prove_split(folder: Path, model: Model, precision: str = "fp32", steps: int = 6) -> str:
    """Report the largest difference of a logit from torch's, by the way it was computed. Raises ProofError.

    A padded batch is decoded all tokens at once, one at a time by the two decoders in turn, and one at a time by the
    merged decoder. Where decoder_model returns attention weights, they are compared too.
    """
    batch = random_batch(model, 0, sentences=3, longest=9)
    generator = torch.Generator().manual_seed(0)
    start = torch.full((3, 1), model.config.decoder_start_token_id)
    words = torch.randint(model.lm_head.weight.shape[0], (3, steps - 1), generator=generator)
    words[words == model.config.eos_token_id] = start[0]  # a decoder for transformers.js repeats </s>
    tokens = torch.cat((start, words), dim=1)
    expected = model(**batch, decoder_input_ids=tokens, use_cache=False).logits.float().numpy()

    encoder, first, after, merged = (open_session(folder / f"{name}.onnx") for name in FILES)
    (memory,) = encoder.run(None, {name: tensor.numpy() for name, tensor in batch.items()})
    source = {"encoder_hidden_states": memory, "encoder_attention_mask": batch["attention_mask"].numpy()}
    at_once = by_name(first, source | {"input_ids": tokens.numpy()})
    found = {
        "logits of decoder_model, all tokens at once": at_once["logits"],
        "logits of decoder_model, then decoder_with_past_model": by_turns(first, after, source, tokens.numpy()),
        "logits of decoder_model_merged": by_turns(merged, merged, source | empty_past(merged, memory), tokens.numpy()),
    }
    differences = {way: float(np.abs(logits - expected).max()) for way, logits in found.items()}
    # Logits, unlike log-probabilities, have a scale of their own.
    limits = dict.fromkeys(found, TOLERANCES[precision] * max(1.0, float(np.abs(expected).max())))
    weights = [value for name, value in at_once.items() if name.startswith("cross_attentions")]
    if weights:
        way, theirs = "attention weights of decoder_model", cross_attentions(model, batch, tokens)
        differences[way] = max(float(np.abs(a - b).max()) for a, b in zip(weights, theirs, strict=True))
        limits[way] = TOLERANCES[precision]
    raise_if_wrong(
        [
            f"{way} differ by {largest:.2g}; the limit is {limits[way]:.2g}"
            for way, largest in differences.items()
            if not largest <= limits[way]
        ]
    )
    return "\n".join(f"{way:<54}differ by at most {largest:.1e}" for way, largest in differences.items())


def by_turns(first: Any, after: Any, source: Arrays, tokens: np.ndarray) -> np.ndarray:
    """Return the logits token by token, the first by one decoder and the others by another or the same."""
    known, logits = source, []
    for i in range(tokens.shape[1]):
        inputs = known | {"input_ids": tokens[:, i : i + 1], "use_cache_branch": np.array([i > 0])}
        outputs = by_name(after if i else first, inputs)
        logits.append(outputs.pop("logits"))
        known |= {name.replace("present", "past_key_values"): value for name, value in outputs.items()}
    return np.concatenate(logits, axis=1)


def empty_past(merged: Any, memory: np.ndarray) -> Arrays:
    """Return a past of length 0, which the first call of the merged decoder ignores."""
    past = [value for value in merged.get_inputs() if value.name.startswith("past")]
    return {value.name: np.zeros((len(memory), value.shape[1], 0, value.shape[3]), memory.dtype) for value in past}


def by_name(session: Any, inputs: Arrays) -> Arrays:
    """Return the outputs by their names; inputs that the graph does not have are left out."""
    given = {value.name: inputs[value.name] for value in session.get_inputs()}
    outputs = [value.name for value in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, given), strict=True))
