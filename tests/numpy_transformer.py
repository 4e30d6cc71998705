"""Reference implementation of the Transformer in float64 numpy, for one unpadded sentence.

It follows the paper (Sections 3.1 to 3.5) and the switches of the configuration, and shares only the names of the
weights with the model.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

Array = np.ndarray
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "swish": lambda x: x / (1 + np.exp(-x)),
}


def softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


class NumpyTransformer:
    def __init__(self, model: Any) -> None:
        self.config = model.config
        self.weights = {name: weight.detach().double().numpy() for name, weight in model.state_dict().items()}

    def linear(self, name: str, x: Array) -> Array:
        return x @ self.weights[f"{name}.weight"].T + self.weights.get(f"{name}.bias", 0.0)

    def layer_norm(self, name: str, x: Array) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred**2).mean(-1, keepdims=True)
        normed = centred / np.sqrt(variance + self.config.layer_norm_eps)
        return normed * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]

    def attention(self, name: str, heads: int, causal: bool, memory: Array | None, x: Array) -> Array:
        """Return softmax(Q K^T / sqrt(d_k)) V of all heads, concatenated (Sections 3.2.1, 3.2.2)."""
        memory = x if memory is None else memory
        query, key, value = (
            self.linear(f"{name}.{which}_proj", of).reshape(len(of), heads, -1).transpose(1, 0, 2)
            for which, of in (("q", x), ("k", memory), ("v", memory))
        )
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])  # (heads, target, source)
        if causal:
            scores = np.where(np.tril(np.ones(scores.shape[1:], dtype=bool)), scores, -np.inf)
        heads_output = softmax(scores) @ value
        return self.linear(f"{name}.out_proj", heads_output.transpose(1, 0, 2).reshape(len(x), -1))

    def feed_forward(self, name: str, x: Array) -> Array:
        activation = ACTIVATIONS[self.config.activation_function]
        return self.linear(f"{name}.fc2", activation(self.linear(f"{name}.fc1", x)))

    def residual(self, norm: str, x: Array, sublayer: Callable[[Array], Array]) -> Array:
        if self.config.norm_position == "post":
            return self.layer_norm(norm, x + sublayer(x))
        return x + sublayer(self.layer_norm(norm, x))

    def embed(self, side: str, tokens: Sequence[int]) -> Array:
        d_model = self.config.d_model
        embedded = self.weights[f"model.{side}.embed_tokens.weight"][list(tokens)] * math.sqrt(d_model)
        positions = np.arange(len(tokens)) + self.config.position_offset
        if self.config.position_embedding_type == "learned":
            return embedded + self.weights[f"model.{side}.positional_encoding.table.weight"][positions]
        for column in range(0, d_model, 2):
            angle = positions / self.config.position_base ** (column / d_model)
            embedded[:, column] += np.sin(angle)
            embedded[:, column + 1] += np.cos(angle)
        return embedded

    def stack(self, side: str, x: Array, memory: Array | None) -> Array:
        heads = getattr(self.config, f"{side}_attention_heads")

        def attend(name: str, causal: bool, memory: Array | None, x: Array) -> Array:
            return self.residual(f"{name}_norm", x, partial(self.attention, name, heads, causal, memory))

        for index in range(getattr(self.config, f"{side}_layers")):
            layer = f"model.{side}.layers.{index}"
            x = attend(f"{layer}.self_attn", side == "decoder", None, x)
            if memory is not None:
                x = attend(f"{layer}.cross_attn", False, memory, x)
            x = self.residual(f"{layer}.feed_forward_norm", x, partial(self.feed_forward, f"{layer}.feed_forward"))
        final_norm = getattr(self.config, f"{side}_final_norm")
        if self.config.norm_position == "pre" if final_norm is None else final_norm:
            x = self.layer_norm(f"model.{side}.final_norm", x)
        return x

    def encode(self, source: Sequence[int]) -> Array:
        """Return (source, d_model)."""
        return self.stack("encoder", self.embed("encoder", source), None)

    def logits(self, memory: Array, target: Sequence[int]) -> Array:
        """Return (target, vocabulary)."""
        return self.linear("lm_head", self.stack("decoder", self.embed("decoder", target), memory))
