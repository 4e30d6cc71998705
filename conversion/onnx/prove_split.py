"""Compare the split layout with torch: the same logits, whichever way the files are used."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from vaswani_transformer import VaswaniTransformerForConditionalGeneration as Model

from .prove import cross_attentions
from .running import TOLERANCES, open_session, random_batch
from .split import FILES

ATTENTION = "decoder_model's attention weights"
Arrays = dict[str, np.ndarray]


@torch.no_grad()
def prove_split(folder: Path, model: Model, precision: str = "fp32", steps: int = 6) -> tuple[str, list[str]]:
    """Report the largest difference of a logit from torch's, by the way it was computed; returns what is wrong, too.

    A padded batch is decoded all tokens at once, one at a time by the two decoders in turn, and one at a time by the
    merged decoder. Where decoder_model returns attention weights, they are compared too.
    """
    batch = random_batch(model, 0, sentences=3, longest=9)
    generator = torch.Generator().manual_seed(0)
    start = torch.full((3, 1), model.config.decoder_start_token_id)
    words = torch.randint(model.lm_head.weight.shape[0], (3, steps - 1), generator=generator)
    words[words == model.config.eos_token_id] = start[0]  # see `ended` in split.py
    tokens = torch.cat((start, words), dim=1)
    expected = model(**batch, decoder_input_ids=tokens, use_cache=False).logits.float().numpy()

    encoder, first, after, merged = (open_session(folder / f"{name}.onnx") for name in FILES)
    source = {name: tensor.numpy() for name, tensor in batch.items()}
    (memory,) = encoder.run(None, source)
    source = {"encoder_hidden_states": memory, "encoder_attention_mask": source["attention_mask"]}
    found = {
        "decoder_model, all tokens at once": first.run(["logits"], source | {"input_ids": tokens.numpy()})[0],
        "decoder_model, then decoder_with_past_model": by_two_decoders(first, after, source, tokens.numpy()),
        "decoder_model_merged": by_merged_decoder(merged, source, tokens.numpy()),
    }
    # Logits, unlike log-probabilities, have a scale of their own.
    limit = TOLERANCES[precision] * max(1.0, float(np.abs(expected).max()))
    differences = {way: float(np.abs(logits - expected).max()) for way, logits in found.items()}
    wrong = [
        f"{way}: logits differ by {d:.2g}; the limit is {limit:.2g}" for way, d in differences.items() if not d <= limit
    ]
    names = [value.name for value in first.get_outputs() if value.name.startswith("cross_attentions")]
    if names:
        weights = first.run(names, source | {"input_ids": tokens.numpy()})
        pairs = zip(weights, cross_attentions(model, batch, tokens), strict=True)
        differences[ATTENTION] = largest = max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs)
        if not largest <= TOLERANCES[precision]:
            wrong.append(f"{ATTENTION} differ by {largest:.2g}; the limit is {TOLERANCES[precision]}")
    kinds = {way: "" if way == ATTENTION else "logits " for way in differences}
    report = [f"{way:<48} {kinds[way]}differ by at most {largest:.1e}" for way, largest in differences.items()]
    return "\n".join(report), wrong


def by_two_decoders(first: Any, after: Any, source: Arrays, tokens: np.ndarray) -> np.ndarray:
    """Return the logits of the first token by decoder_model and of the others by decoder_with_past_model."""
    outputs = by_name(first, source | {"input_ids": tokens[:, :1]})
    past, logits = as_past(outputs), [outputs["logits"]]
    mask = {"encoder_attention_mask": source["encoder_attention_mask"]}
    for i in range(1, tokens.shape[1]):
        outputs = by_name(after, past | mask | {"input_ids": tokens[:, i : i + 1]})
        past |= as_past(outputs)
        logits.append(outputs["logits"])
    return np.concatenate(logits, axis=1)


def by_merged_decoder(merged: Any, source: Arrays, tokens: np.ndarray) -> np.ndarray:
    """Return the logits token by token. The first call ignores the past, which may be empty."""
    past = {
        value.name: np.zeros((len(tokens), value.shape[1], 0, value.shape[3]), source["encoder_hidden_states"].dtype)
        for value in merged.get_inputs()
        if value.name.startswith("past")
    }
    logits = []
    for i in range(tokens.shape[1]):
        inputs = {"input_ids": tokens[:, i : i + 1], "use_cache_branch": np.array([i > 0])}
        outputs = by_name(merged, source | past | inputs)
        past = as_past(outputs)
        logits.append(outputs["logits"])
    return np.concatenate(logits, axis=1)


def by_name(session: Any, inputs: Arrays) -> Arrays:
    outputs = [value.name for value in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, inputs), strict=True))


def as_past(outputs: Arrays) -> Arrays:
    present = {name: value for name, value in outputs.items() if name.startswith("present")}
    return {name.replace("present", "past_key_values"): value for name, value in present.items()}
