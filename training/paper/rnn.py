"""An RNN with Bahdanau's attention, the baseline for the paper's model: bidirectional encoder, additive attention.

It trains on the batches of a recipe (`train_lstm`) and decodes greedily (`greedy`) or as section 6.1 does (`search`).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from vaswani_transformer import gnmt_length_penalty

from ..prepare import Prepared
from ..recipe import Recipe
from ..schedule import linear_decay
from .fit_model import fit, prepare_recipe

# Usual for LSTMs of this size.
LEARNING_RATE, LARGEST_GRADIENT = 1e-3, 1.0
State = Tensor | tuple[Tensor, Tensor]


class Encoded(NamedTuple):
    memory: Tensor  # (batch, source, width)
    keys: Tensor  # (batch, source, width)
    padding: Tensor | None  # bool, (batch, source, 1)


class RnnWithAttention(nn.Module):
    """One layer each for encoder and decoder; predicts from the decoder's state and what it attends to."""

    def __init__(self, vocabulary: int, width: int, cell: str, dropout: float = 0.0):
        """cell: "gru" or "lstm"; width: even, of embeddings and states"""
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        encoder, decoder = (nn.GRU, nn.GRUCell) if cell == "gru" else (nn.LSTM, nn.LSTMCell)
        self.encoder = encoder(width, width // 2, batch_first=True, bidirectional=True)
        self.cell = decoder(2 * width, width)
        self.key, self.query = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)
        self.output = nn.Linear(2 * width, vocabulary, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, source: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """source, mask: (batch, source), target: (batch, target) -> logits (batch, target, vocabulary)"""
        encoded = self.encode(source, mask)
        context = encoded.memory.new_zeros(len(source), encoded.memory.shape[-1])
        state, outputs = None, []
        for inputs in self.dropout(self.embedding(target)).unbind(1):
            output, state, context = self.step(inputs, state, context, encoded)
            outputs.append(output)
        return self.output(self.dropout(torch.stack(outputs, dim=1)))

    def encode(self, source: Tensor, mask: Tensor | None = None) -> Encoded:
        inputs = self.dropout(self.embedding(source))
        if mask is None:
            memory, padding = self.encoder(inputs)[0], None
        else:  # packed, so that the backward direction does not read the padding first
            packed = pack_padded_sequence(inputs, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
            memory, _ = pad_packed_sequence(self.encoder(packed)[0], batch_first=True, total_length=source.shape[1])
            padding = mask[:, :, None] == 0
        memory = self.dropout(memory)
        return Encoded(memory, self.key(memory), padding)

    def step(
        self, inputs: Tensor, state: State | None, context: Tensor, encoded: Encoded
    ) -> tuple[Tensor, State, Tensor]:
        """inputs, context: (batch, width) -> what the output layer reads (batch, 2 x width), new state and context

        encoded: a batch, or one sentence for all of them
        """
        state = cast(State, self.cell(torch.cat((inputs, context), dim=-1), state))
        hidden = state[0] if isinstance(state, tuple) else state
        scores = self.score(torch.tanh(encoded.keys + self.query(hidden)[:, None]))  # (batch, source, 1)
        if encoded.padding is not None:
            scores = scores.masked_fill(encoded.padding, -torch.inf)
        context = (scores.softmax(1) * encoded.memory).sum(1)
        return torch.cat((hidden, context), dim=-1), state, context


def rnn_of_size(parameters: int, vocabulary: int, cell: str, dropout: float = 0.0) -> RnnWithAttention:
    """Return the RNN whose number of parameters is closest to that of the Transformer it is compared with."""

    make = partial(RnnWithAttention, vocabulary, cell=cell, dropout=dropout)

    def distance(width: int) -> int:
        with torch.device("meta"):
            return abs(sum(weight.numel() for weight in make(width).parameters()) - parameters)

    return make(min(range(32, 1025, 16), key=distance))


# ---- training ------------------------------------------------------------------------------------------------------


def train_lstm(recipe: Recipe) -> tuple[RnnWithAttention, Prepared]:
    """Train an LSTM of the size of the recipe's model, on the recipe's batches and with its dropout.

    A finished LSTM in recipe.output_dir is loaded instead.
    """
    prepared = prepare_recipe(recipe)
    parameters, device = prepared.model.num_parameters(), prepared.accelerator.device
    torch.manual_seed(recipe.seed)
    model = rnn_of_size(parameters, len(prepared.tokenizer), "lstm", prepared.config.dropout).to(device)

    def rate(step: int) -> float:  # constant, and from the middle on a line down to 0
        return LEARNING_RATE * linear_decay(step, prepared.total_steps, 0.5)

    fit(model, model, prepared, rate, largest_gradient=LARGEST_GRADIENT)
    return model, prepared


# ---- search --------------------------------------------------------------------------------------------------------


@torch.inference_mode()
def greedy(model: RnnWithAttention, source: Tensor, length: int) -> Tensor:
    """source: (batch, source) -> ids (batch, length)"""
    encoded = model.encode(source)
    state: State | None = None
    context, token, tokens = torch.zeros_like(encoded.memory[:, 0]), source[:, 0], []
    for _ in range(length):
        output, state, context = model.step(model.embedding(token), state, context, encoded)
        token = model.output(output).argmax(-1)
        tokens.append(token)
    return torch.stack(tokens, dim=1)


@torch.inference_mode()
def beam_search(
    model: RnnWithAttention,
    source: Sequence[int],
    *,
    beams: int,
    alpha: float,
    limit: int,
    lookahead: int,
    start: int,
    end: int,
    constraint: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> list[int]:
    """Return the best hypothesis of section 6.1's beam search for one sentence, without its </s>.

    limit: output tokens, counting </s>;  lookahead: assume that no live hypothesis grows by more tokens
    start, end: ids of <s> and </s>
    constraint: as in `generate()`: outputs with their <s>, log-probabilities of the next token -> changed ones
    """
    device = model.embedding.weight.device
    encoded = model.encode(torch.tensor([source], device=device))
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    best: tuple[float, list[int]] = (-math.inf, [])
    state: State | None = None
    context = encoded.memory.new_zeros(1, encoded.memory.shape[-1])
    for length in range(1, limit + 1):
        last = torch.tensor([tokens[-1] if tokens else start for _, tokens in live], device=device)
        output, state, context = model.step(model.embedding(last), state, context, encoded)
        scores = model.output(output).log_softmax(-1).cpu()
        if constraint is not None:
            scores = constraint(torch.tensor([[start, *tokens] for _, tokens in live]), scores)
        scores = scores + torch.tensor([score for score, _ in live])[:, None]
        values, indices = scores.flatten().topk(min(2 * beams, scores.numel()))
        penalty = cast(float, gnmt_length_penalty(length, alpha))
        extended: list[tuple[float, int, int]] = []
        for score, index in zip(values.tolist(), indices.tolist(), strict=True):
            row, token = divmod(index, scores.shape[1])
            if token == end:
                best = max(best, (score / penalty, live[row][1]))
            elif score > -math.inf and len(extended) < beams:
                extended.append((score, row, token))
        # Log-probabilities only fall, so a live hypothesis scores best at the largest penalty that it reaches.
        largest = cast(float, gnmt_length_penalty(min(limit, length + lookahead), max(alpha, 0)))
        if not extended or best[0] >= extended[0][0] / largest:
            break
        rows = torch.tensor([row for _, row, _ in extended], device=device)
        state = (state[0][rows], state[1][rows]) if isinstance(state, tuple) else state[rows]
        context = context[rows]
        live = [(score, [*live[row][1], token]) for score, row, token in extended]
    return best[1] if best[0] > -math.inf else live[0][1]
