"""transformers' Marian in the sizes of our models, with random weights: the peer of several benchmarks."""

from typing import Any


def marian_like(config: dict[str, Any], **options: Any) -> Any:
    """Return a MarianMTModel with the sizes and token ids of one of our configs. options: fields of MarianConfig"""
    from transformers import MarianConfig, MarianMTModel

    names = ["vocab_size", "d_model", "activation_function", "dropout"]
    names += ["pad_token_id", "eos_token_id", "bos_token_id", "decoder_start_token_id"]
    names += [f"{side}_{name}" for side in ("encoder", "decoder") for name in ("layers", "attention_heads", "ffn_dim")]
    shared = {name: config[name] for name in names if name in config}
    return MarianMTModel(MarianConfig(**shared, forced_eos_token_id=None, **options))
