"""An RNN with the attention of Bahdanau et al. 2015, the baseline for the Transformer, and its beam search."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from vaswani_transformer import gnmt_length_penalty

State = Tensor | tuple[Tensor, Tensor]  # (batch, width): a GRU's; an LSTM's hidden and cell state


class Encoded(NamedTuple):
    """Encoded sentences."""

    memory: Tensor  # (batch, source, width)
    keys: Tensor  # (batch, source, width)
    padding: Tensor | None  # bool, (batch, source, 1): True where attending is not allowed


class RnnWithAttention(nn.Module):
    """One-layer encoder and decoder; predicts from the decoder state and the context vector."""

    def __init__(self, vocabulary: int, width: int, cell: str, dropout: float = 0.0):
        """cell: "gru" or "lstm";  width: of embeddings and states, even"""
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
        """source, mask: (batch, source); the mask is 0 at padding, None if there is none"""
        inputs = self.dropout(self.embedding(source))
        if mask is None:
            memory, padding = self.encoder(inputs)[0], None
        else:  # packed, so that the backward direction does not start with the padding
            packed = pack_padded_sequence(inputs, mask.sum(1).cpu(), batch_first=True, enforce_sorted=False)
            memory, _ = pad_packed_sequence(self.encoder(packed)[0], batch_first=True, total_length=source.shape[1])
            padding = mask[:, :, None] == 0
        memory = self.dropout(memory)
        return Encoded(memory, self.key(memory), padding)

    def step(
        self, inputs: Tensor, state: State | None, context: Tensor, encoded: Encoded
    ) -> tuple[Tensor, State, Tensor]:
        """Compute one decoder step.

        inputs, context: (batch, width);  encoded: a batch, or one sentence for the whole batch
        Returns the input of the output layer (batch, 2 x width), the new state and the new context.
        """
        state = cast(State, self.cell(torch.cat((inputs, context), dim=-1), state))
        hidden = state[0] if isinstance(state, tuple) else state
        scores = self.score(torch.tanh(encoded.keys + self.query(hidden)[:, None]))  # (batch, source, 1)
        if encoded.padding is not None:
            scores = scores.masked_fill(encoded.padding, -torch.inf)
        context = (scores.softmax(1) * encoded.memory).sum(1)
        return torch.cat((hidden, context), dim=-1), state, context


def make_rnn(parameters: int, vocabulary: int, cell: str, dropout: float = 0.0) -> RnnWithAttention:
    """Return the RNN whose parameter count is closest to `parameters`."""
    make = partial(RnnWithAttention, vocabulary, cell=cell, dropout=dropout)

    def distance(width: int) -> int:
        with torch.device("meta"):
            return abs(sum(weight.numel() for weight in make(width).parameters()) - parameters)

    return make(min(range(32, 1025, 16), key=distance))


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
    """Run the beam search of section 6.1 for one sentence and return the best hypothesis without its </s>.

    limit: maximum number of output tokens, including </s>
    lookahead: stop when no live hypothesis can win by growing this many tokens
    start, end: ids of <s> and </s>
    constraint: a logits processor of `generate()`: (outputs with <s>, log-probabilities) -> log-probabilities
    """
    device = model.embedding.weight.device
    encoded = model.encode(torch.tensor([source], device=device))
    live: list[tuple[float, list[int]]] = [(0.0, [])]  # (log-probability, tokens), the most probable first
    best: tuple[float, list[int]] = (-math.inf, [])  # finished: (log-probability / length penalty, tokens)
    state: State | None = None
    context = encoded.memory.new_zeros(1, encoded.memory.shape[-1])
    for length in range(1, limit + 1):
        last = torch.tensor([tokens[-1] if tokens else start for _, tokens in live], device=device)
        output, state, context = model.step(model.embedding(last), state, context, encoded)
        of_token = model.output(output).log_softmax(-1).cpu()
        if constraint is not None:
            of_token = constraint(torch.tensor([[start, *tokens] for _, tokens in live]), of_token)
        totals = of_token + torch.tensor([total for total, _ in live])[:, None]  # (live, vocabulary)
        # Each hypothesis can end in one way, so twice as many leave enough that go on.
        values, indices = totals.flatten().topk(min(2 * beams, totals.numel()))
        penalty = cast(float, gnmt_length_penalty(length, alpha))
        extended: list[tuple[float, int, int]] = []  # (log-probability, row in live, token)
        for total, index in zip(values.tolist(), indices.tolist(), strict=True):
            row, token = divmod(index, totals.shape[1])
            if token == end:
                best = max(best, (total / penalty, live[row][1]))
            elif total > -math.inf and len(extended) < beams:
                extended.append((total, row, token))
        # Log-probabilities only fall, so a live hypothesis scores best with the largest penalty within its reach.
        largest = cast(float, gnmt_length_penalty(min(limit, length + lookahead), max(alpha, 0)))
        if not extended or best[0] >= extended[0][0] / largest:
            break
        rows = torch.tensor([row for _, row, _ in extended], device=device)
        state = (state[0][rows], state[1][rows]) if isinstance(state, tuple) else state[rows]
        context = context[rows]
        live = [(total, [*live[row][1], token]) for total, row, token in extended]
    return best[1] if best[0] > -math.inf else live[0][1]
