"""The model against "Attention Is All You Need", by hand calculation (sections and equations of v7)."""

import math
import random

import numpy as np
import pytest
import torch
from numpy_transformer import NumpyTransformer
from tiny_models import ModelMaker, padded, tiny_config

from paper.result_files import PAPER
from vaswani_transformer import VaswaniTransformerConfig, VaswaniTransformerForConditionalGeneration
from vaswani_transformer.modeling_vaswani_transformer import (
    VaswaniTransformerModel,
    label_smoothed_cross_entropy,
    scaled_dot_product_attention,
    sinusoidal_positional_encoding,
)

# --- Table 3: sizes ---------------------------------------------------------------------------------------


def parameters_by_hand(
    *, vocabulary: int, layers: int, d_model: int, d_ff: int, heads: int, d_k: int, d_v: int, learned: int = 0
) -> int:
    """Section 3, term by term. One matrix for both embeddings and the output (3.4), no attention biases (3.2.2),
    feed-forward biases (Eq. 2), a gain and a bias for each LayerNorm."""
    attention = 2 * d_model * heads * d_k + d_model * heads * d_v + heads * d_v * d_model
    feed_forward = d_model * d_ff + d_ff + d_ff * d_model + d_model
    norm = 2 * d_model
    encoder_layer = attention + norm + feed_forward + norm
    decoder_layer = attention + norm + attention + norm + feed_forward + norm
    positions = 2 * learned * d_model  # a table for the source, a table for the target
    return vocabulary * d_model + layers * (encoder_layer + decoder_layer) + positions


BASE = {"vocabulary": 37000, "layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8, "d_k": 64, "d_v": 64}
BIG = BASE | {"d_model": 1024, "d_ff": 4096, "heads": 16}
# preset: (sizes, dropout, million parameters at V = 37000)
TABLE_3: dict[str, tuple[dict[str, int], float, float]] = {
    "base": (BASE, 0.1, 63.046),
    "A-h1": (BASE | {"heads": 1, "d_k": 512, "d_v": 512}, 0.1, 63.046),
    "A-h4": (BASE | {"heads": 4, "d_k": 128, "d_v": 128}, 0.1, 63.046),
    "A-h16": (BASE | {"heads": 16, "d_k": 32, "d_v": 32}, 0.1, 63.046),
    "A-h32": (BASE | {"heads": 32, "d_k": 16, "d_v": 16}, 0.1, 63.046),
    "B-dk16": (BASE | {"d_k": 16}, 0.1, 55.968),
    "B-dk32": (BASE | {"d_k": 32}, 0.1, 58.327),
    "C-N2": (BASE | {"layers": 2}, 0.1, 33.645),
    "C-N4": (BASE | {"layers": 4}, 0.1, 48.345),
    "C-N8": (BASE | {"layers": 8}, 0.1, 77.746),
    "C-d256": (BASE | {"d_model": 256, "d_k": 32, "d_v": 32}, 0.1, 26.817),
    "C-d1024": (BASE | {"d_model": 1024, "d_k": 128, "d_v": 128}, 0.1, 163.815),
    "C-ff1024": (BASE | {"d_ff": 1024}, 0.1, 50.450),
    "C-ff4096": (BASE | {"d_ff": 4096}, 0.1, 88.236),
    "D-dropout0.0": (BASE, 0.0, 63.046),
    "D-dropout0.2": (BASE, 0.2, 63.046),
    "E-learned-positions": (BASE | {"learned": 256}, 0.1, 63.308),
    "big": (BIG, 0.3, 214.172),
    "big-en-fr": (BIG | {"vocabulary": 32000}, 0.1, 209.052),
}


@pytest.mark.parametrize("preset", TABLE_3)
def test_table_3_sizes_and_parameter_counts(preset: str) -> None:
    sizes, dropout, millions = TABLE_3[preset]
    config = VaswaniTransformerConfig.from_preset(preset)
    by_hand = parameters_by_hand(**sizes)
    assert round(by_hand / 1e6, 3) == millions
    if quoted := PAPER["table3"].get(preset, {}).get("parameters"):  # these do not follow exactly from the paper's text
        assert abs(by_hand - quoted) <= 0.055 * quoted + 0.5e6
    with torch.device("meta"):
        model = VaswaniTransformerForConditionalGeneration(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == model.num_parameters() == by_hand
    assert config.dropout == dropout
    for side in ("encoder", "decoder"):
        found = [getattr(config, f"{side}_{field}") for field in ("layers", "attention_heads", "ffn_dim")]
        assert found == [sizes["layers"], sizes["heads"], sizes["d_ff"]]
        layer = getattr(model.model, side).layers[0]
        assert layer.self_attn.q_proj.weight.shape == (sizes["heads"] * sizes["d_k"], sizes["d_model"])
        assert layer.self_attn.v_proj.weight.shape == (sizes["heads"] * sizes["d_v"], sizes["d_model"])


def test_presets_start_at_the_base_model_and_take_arguments() -> None:
    assert VaswaniTransformerConfig().to_dict() == VaswaniTransformerConfig.from_preset("base").to_dict()
    config = VaswaniTransformerConfig.from_preset("big", vocab_size=100)
    assert (config.vocab_size, config.d_model, config.dropout) == (100, 1024, 0.3)


# --- 3.5 Positional encoding ------------------------------------------------------------------------------


@pytest.mark.parametrize("d_model", [4, 16, 512])
def test_positional_encoding_equals_its_formula(d_model: int) -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i / d_model)), PE(pos, 2i + 1) = cos of the same: interleaved."""
    encoding = sinusoidal_positional_encoding(50, d_model)
    assert encoding.shape == (50, d_model)
    assert encoding.dtype == torch.float32
    for pos in (0, 1, 2, 7, 49):
        angles = [pos / 10000 ** (2 * i / d_model) for i in range(d_model // 2)]
        expected = [f(angle) for angle in angles for f in (math.sin, math.cos)]
        assert encoding[pos].tolist() == pytest.approx(expected, abs=5e-6)


def test_positions_far_beyond_any_table_are_accurate() -> None:
    """Position 20,000 in float32 against float64; rounding the position alone costs up to 1e-3."""
    encoding = sinusoidal_positional_encoding(20_001, 8)
    angles = [20_000 / 10000 ** (2 * i / 8) for i in range(4)]
    expected = [f(angle) for angle in angles for f in (math.sin, math.cos)]
    assert encoding[20_000].tolist() == pytest.approx(expected, abs=2e-3)


# --- 3.2 Attention ----------------------------------------------------------------------------------------


def test_scores_are_divided_by_sqrt_d_k() -> None:
    """Section 3.2.1: not by the root of the length, of d_v or of d_model."""
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(2, 3, length, 9, generator=generator) for length in (5, 7))
    value = torch.randn(2, 3, 7, 4, generator=generator)
    output, weights = scaled_dot_product_attention(query, key, value, None, 0.0)
    expected = torch.softmax(torch.einsum("bhtd,bhsd->bhts", query, key) / 3.0, dim=-1)
    torch.testing.assert_close(weights, expected)
    torch.testing.assert_close(output, torch.einsum("bhts,bhsd->bhtd", expected, value))
    assert output.shape == (2, 3, 5, 4)


# --- 3.1, 3.3, 3.4 The model against numpy ----------------------------------------------------------------


SWITCHES: dict[str, list] = {
    "d_model": [8, 16, 24],
    "encoder_layers": [1, 2, 3, 4],
    "decoder_layers": [1, 2, 3, 4],
    "encoder_attention_heads": [1, 2, 4],
    "decoder_attention_heads": [1, 2, 4],
    "d_k": [None, 3, 8],
    "d_v": [None, 5, 8],
    "encoder_ffn_dim": [7, 32],
    "decoder_ffn_dim": [9, 32],
    "activation_function": ["relu", "gelu", "swish"],
    "norm_position": ["post", "pre"],
    "encoder_final_norm": [None, True, False],
    "decoder_final_norm": [None, True, False],
    "layer_norm_eps": [1e-6, 1e-5, 1e-2],
    "attention_bias": [True, False],
    "output_bias": [True, False],
    "position_embedding_type": ["sinusoidal", "sinusoidal", "learned"],
    "position_base": [10000.0, 10000.0 ** (8 / 7), 100.0],
    "position_offset": [0, 2],
    "vocab_size": [23],
    "tie_word_embeddings": [True, True, False],
    "share_encoder_decoder_embeddings": [True, True, False],
}


def random_switches(seed: int) -> dict:
    """Return configuration changes with a random value for every switch."""
    choose = random.Random(seed)
    changes = {name: choose.choice(values) for name, values in SWITCHES.items()}
    if changes["position_embedding_type"] == "learned":
        changes["max_position_embeddings"] = 16
    if not changes["share_encoder_decoder_embeddings"]:
        changes["decoder_vocab_size"] = choose.choice([23, 31])
    return changes


@pytest.mark.parametrize("seed", range(60))
def test_the_model_equals_numpy_for_random_switches(tiny_model: ModelMaker, seed: int) -> None:
    """Float32 torch on a padded batch equals float64 numpy on each sentence, within 1e-5 of the logits' size."""
    changes = random_switches(seed)
    model = tiny_model(seed, **changes)
    target_vocabulary = changes.get("decoder_vocab_size") or 23
    choose = random.Random(seed)
    sources = [[choose.randrange(23) for _ in range(length)] for length in (9, 4, 1)]
    target = torch.tensor([[choose.randrange(target_vocabulary) for _ in range(7)] for _ in sources])
    with torch.no_grad():
        logits = model(**padded(sources), decoder_input_ids=target).logits
    assert logits.shape == (3, 7, target_vocabulary)
    reference = NumpyTransformer(model)
    for source, row, target_row in zip(sources, logits, target.tolist(), strict=True):
        expected = reference.logits(reference.encode(source), target_row)
        difference = np.abs(row.double().numpy() - expected).max()
        assert difference <= 1e-5 * max(1.0, np.abs(expected).max()), f"{changes}: {difference}"


# --- 5.4 Regularisation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dropout", "attention_dropout", "activation_dropout"])
def test_each_kind_of_dropout_acts_in_training_only(tiny_model: ModelMaker, kind: str) -> None:
    model = tiny_model(**{"dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0} | {kind: 0.3})
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 2]]), "decoder_input_ids": torch.tensor([[0, 8, 9]])}
    with torch.no_grad():
        without = model(**inputs).logits
        assert torch.equal(without, tiny_model(dropout=0.0)(**inputs).logits)
        model.train()
        assert not torch.equal(model(**inputs).logits, without)


def test_dropout_covers_sublayer_outputs_and_embedding_sums() -> None:
    """Section 5.4: with a rate of 1 every state of a new post-norm stack is a LayerNorm bias, which is zero."""
    model = VaswaniTransformerModel(tiny_config(dropout=0.5)).train()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout) and module.p == 0.5:
            module.p = 1.0
    with torch.no_grad():
        output = model(
            torch.tensor([[5, 6, 7, 2]]), decoder_input_ids=torch.tensor([[0, 8]]), output_hidden_states=True
        )
    for state in (*output.encoder_hidden_states, *output.decoder_hidden_states):
        assert (state == 0).all()


@pytest.mark.parametrize("spread", ["others", "all"])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.4])
def test_label_smoothing_matches_its_formula(spread: str, epsilon: float) -> None:
    """Section 5.4: epsilon spreads over the V - 1 other tokens or over all V; ignored labels (-100) do not count."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, 11, generator=generator)
    labels = torch.randint(0, 11, (3, 5), generator=generator)
    labels[1, 3:] = -100
    labels[2, 1:] = -100
    loss = label_smoothed_cross_entropy(logits, labels, epsilon, spread=spread)

    log_probabilities, expected = logits.double().log_softmax(-1)[labels != -100], []
    for scores, label in zip(log_probabilities, labels[labels != -100], strict=True):
        smoothed = torch.full((11,), epsilon / (10 if spread == "others" else 11), dtype=torch.float64)
        smoothed[label] = 1 - epsilon * (1 if spread == "others" else 10 / 11)
        assert float(smoothed.sum()) == pytest.approx(1)
        expected.append(-float(smoothed @ scores))
    assert loss.item() == pytest.approx(sum(expected) / len(expected), rel=1e-5)
