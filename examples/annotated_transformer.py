# %% [markdown]
# # The annotated Transformer
#
# This notebook follows *Attention Is All You Need* ([arXiv 1706.03762](https://arxiv.org/abs/1706.03762v7)) section by
# section. Each section says in a few words what the paper proposes, then runs the function or module of this package
# that implements it. At the end a small Transformer learns to read English numbers. Everything runs on a CPU in about
# two minutes. The pictures need the extra `viz` of the package.

# %%
import random

import torch

from vaswani_transformer import (
    TorchTranslator,
    VaswaniTransformerConfig,
    VaswaniTransformerForConditionalGeneration,
    gnmt_length_penalty,
    label_smoothed_cross_entropy,
    scaled_dot_product_attention,
    sinusoidal_positional_encoding,
)
from vaswani_transformer.attention_maps import attention_maps
from vaswani_transformer.modeling_vaswani_transformer import EncoderLayer, FeedForward, MultiHeadAttention
from vaswani_transformer.pictures import attention_figure, positional_encoding_figure
from vaswani_transformer.tokenization import train_tokenizer

torch.manual_seed(0)
small = VaswaniTransformerConfig(
    d_model=64,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=128,
    decoder_ffn_dim=128,
    attn_implementation="eager",  # Equation (1) as the paper writes it
)

# %% [markdown]
# ## 3.2.1 Scaled dot-product attention
#
# Attention looks up values by the similarity of a query to keys: a weighted mean of the values, where the weights are
# a softmax over the dot products. Dot products of d_k independent terms have a variance of d_k, so large d_k would
# push the softmax into regions with tiny gradients. Dividing by √d_k keeps the variance at 1.
#
# $$\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{QK^T}{\sqrt{d_k}}\right)V$$

# %%
query, key, value = torch.randn(1, 5, 16), torch.randn(1, 7, 16), torch.randn(1, 7, 16)
output, weights = scaled_dot_product_attention(query, key, value)
print(output.shape, weights.shape)
assert torch.allclose(weights, torch.softmax(query @ key.transpose(1, 2) / 16**0.5, dim=-1), atol=1e-6)
assert torch.allclose(output, weights @ value, atol=1e-6)

# %% [markdown]
# A mask forbids connections: padding in the encoder, and in the decoder the positions to the right, which would
# otherwise reveal the token to be predicted. A forbidden weight is exactly 0.

# %%
causal = torch.ones(5, 5, dtype=torch.bool).tril()
_, weights = scaled_dot_product_attention(query, query, query, mask=causal)
print(weights[0].round(decimals=2))
assert (weights[0].triu(1) == 0).all()

# %% [markdown]
# ## 3.2.2 Multi-head attention
#
# One weighted mean can only look in one direction at a time. h heads attend in parallel, each in a projection of its
# own with d_model / h dimensions, so that the total cost is that of one head with all dimensions. The paper's
# projections have no biases.

# %%
attention = MultiHeadAttention(small, heads=4, is_causal=False)
states = torch.randn(2, 7, 64)  # (batch, length, d_model)
print(attention(states)[0].shape, sum(p.numel() for p in attention.parameters()))
assert sum(p.numel() for p in attention.parameters()) == 4 * 64 * 64

# %% [markdown]
# ## 3.3 Position-wise feed-forward network
#
# Each layer also has two linear maps with a ReLU between them, applied to every position separately.

# %%
feed_forward = FeedForward(small, d_ff=128)
once = feed_forward(states)
assert torch.allclose(once[:, 3], feed_forward(states[:, 3:4])[:, 0], atol=1e-6)  # no position sees another

# %% [markdown]
# ## 3.1 Layers
#
# Around each sub-layer is a residual connection, followed by layer normalisation: LayerNorm(x + Sublayer(x)). Later
# models normalise first ("pre-norm"); the paper normalises last, and so does this package.

# %%
layer = EncoderLayer(small).eval()
attended = layer.self_attn_norm(states + layer.self_attn(states)[0])
expected = layer.feed_forward_norm(attended + layer.feed_forward(attended))
assert torch.allclose(layer(states, None), expected, atol=1e-6)

# %% [markdown]
# ## 3.5 Positional encoding
#
# Attention does not know the order of its inputs. The paper adds sinusoids of different wavelengths to the embeddings:
# each pair of dimensions is a clock hand that turns at its own speed. For a fixed offset k, the encoding of position p
# + k is a rotation of that of p, so relative positions are easy to learn.

# %%
encoding = sinusoidal_positional_encoding(100, 64)
assert torch.allclose(encoding[7, 0], torch.tensor(7.0).sin())
assert torch.allclose(encoding[7, 1], torch.tensor(7.0).cos())
positional_encoding_figure(length=60, d_model=64)

# %% [markdown]
# ## 3.4 The complete model
#
# Encoder, decoder, and one matrix that serves as both embeddings and as the output layer; embeddings are multiplied by
# √d_model. The base model has 63 million parameters (the paper says 65).

# %%
with torch.device("meta"):  # shapes without memory
    base = VaswaniTransformerForConditionalGeneration(VaswaniTransformerConfig.from_preset("base"))
print(f"{base.num_parameters():,}")

# %% [markdown]
# ## 5.1 Data: English numbers
#
# The paper trains on millions of sentence pairs. This notebook needs a task that is learned in a minute: translating
# numbers such as "three hundred and five" into digits. A byte-level BPE, shared by both sides, turns text into token
# ids. Digits stay separate tokens.

# %%
ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()
ONES += "seventeen eighteen nineteen".split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def in_words(number: int) -> str:
    if number < 20:
        return ONES[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return TENS[tens - 2] + (f"-{ONES[ones]}" if ones else "")
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{ONES[hundreds]} hundred" + (f" and {in_words(rest)}" if rest else "")
    thousands, rest = divmod(number, 1000)
    return f"{in_words(thousands)} thousand" + (f" {in_words(rest)}" if rest else "")


numbers = random.Random(0).sample(range(100_000), 6200)
training, test = numbers[:6000], numbers[6000:]
tokenizer = train_tokenizer(
    [in_words(number) for number in training] + [str(number) for number in training], vocab_size=320, split_digits=True
)
print(in_words(test[0]), "->", test[0], tokenizer.tokenize(in_words(test[0])))

# %% [markdown]
# ## 5.3 Learning rate
#
# The rate grows linearly for the warm-up steps, then falls with the inverse square root of the step: lrate =
# d_model^-0.5 · min(step^-0.5, step · warmup^-1.5). Without the warm-up, post-norm Transformers often diverge.


# %%
def rate(step: int, d_model: int = 64, warmup_steps: int = 150) -> float:
    return d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


print([round(rate(step), 4) for step in (1, 75, 150, 300, 600)])

# %% [markdown]
# ## 5.4 Label smoothing
#
# The target distribution gives 0.1 of the probability to the wrong tokens. The model learns to be less certain;
# perplexity suffers, accuracy and BLEU improve. Overconfidence is penalised:

# %%
logits = torch.zeros(1, 10)
for certainty in (0.0, 2.0, 5.0, 20.0):
    logits[0, 3] = certainty
    print(certainty, round(label_smoothed_cross_entropy(logits, torch.tensor([3]), epsilon=0.1).item(), 3))

# %% [markdown]
# ## 5 Training
#
# Adam with β₂ = 0.98. The labels are the target tokens; the model shifts them right itself to get the input of the
# decoder, and ignores labels of -100 (padding).

# %%
config = VaswaniTransformerConfig(
    vocab_size=len(tokenizer), d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
    decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, dropout=0.0,
)  # fmt: skip
model = VaswaniTransformerForConditionalGeneration(config)
optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step + 1))
order = random.Random(1)
for step in range(1, 601):
    chosen = order.sample(training, 96)
    batch = tokenizer(
        [in_words(number) for number in chosen],
        text_target=[str(number) for number in chosen],
        padding=True,
        return_tensors="pt",
    )
    batch["labels"][batch["labels"] == tokenizer.pad_token_id] = -100
    loss = model(**batch, label_smoothing=0.1).loss
    loss.backward()
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    if step % 100 == 0:
        print(f"step {step}: loss {loss.item():.3f}")

# %% [markdown]
# ## 6.1 The search
#
# Beam search keeps the 4 most probable beginnings of a translation. Products of probabilities favour short outputs, so
# the score of a finished hypothesis is its log-probability divided by ((5 + length) / 6)^0.6.

# %%
translator = TorchTranslator(model.eval(), tokenizer)
print([round(float(gnmt_length_penalty(length, 0.6)), 2) for length in (1, 7, 20)])
for hypothesis in translator.find_hypotheses(in_words(test[0]), num_return_sequences=4)[0]:
    print(f"{hypothesis.score:7.3f} {hypothesis.text}")

# %%
translations = translator.translate([in_words(number) for number in test])
correct = sum(text == str(number) for text, number in zip(translations, test, strict=True))
print(f"{correct} of {len(test)} unseen numbers are right")
assert correct > 0.8 * len(test)

# %% [markdown]
# ## What the heads learned
#
# Cross-attention of the last layer: each digit attends to the word that it comes from.

# %%
maps = attention_maps(model, tokenizer, in_words(47_305))
attention_figure(maps, kind="cross")

# %% [markdown]
# The paper's models use the same functions; only sizes and data differ. The guide "Train on your own text" in the
# documentation continues from here.
