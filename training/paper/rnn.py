"""An RNN with Bahdanau's attention, for the claim on throughput: a bidirectional encoder, additive attention."""

import torch
from torch import Tensor, nn


class AttentiveRnn(nn.Module):
    """One layer each for encoder and decoder; returns the states from which the output layer predicts."""

    def __init__(self, vocabulary: int, width: int, cell: str):
        """cell: "gru" or "lstm"; width: even, of embeddings and states"""
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        encoder, decoder = (nn.GRU, nn.GRUCell) if cell == "gru" else (nn.LSTM, nn.LSTMCell)
        self.encoder = encoder(width, width // 2, batch_first=True, bidirectional=True)
        self.cell = decoder(2 * width, width)
        self.key, self.query = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.score = nn.Linear(width, 1, bias=False)
        self.output = nn.Linear(2 * width, vocabulary, bias=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """source: (batch, source), target: (batch, target) -> logits (batch, target, vocabulary)"""
        memory, _ = self.encoder(self.embedding(source))
        keys, inputs = self.key(memory), self.embedding(target)
        context = memory.new_zeros(len(source), memory.shape[-1])
        state, outputs = None, []
        for step in inputs.unbind(1):
            state = self.cell(torch.cat((step, context), dim=-1), state)
            hidden = state[0] if isinstance(state, tuple) else state
            scores = self.score(torch.tanh(keys + self.query(hidden)[:, None]))  # (batch, source, 1)
            context = (scores.softmax(1) * memory).sum(1)
            outputs.append(torch.cat((hidden, context), dim=-1))
        return self.output(torch.stack(outputs, dim=1))


def rnn_of_size(parameters: int, vocabulary: int, cell: str) -> AttentiveRnn:
    """Return the RNN whose number of parameters is closest to that of the Transformer it is compared with."""

    def distance(width: int) -> int:
        with torch.device("meta"):
            return abs(sum(each.numel() for each in AttentiveRnn(vocabulary, width, cell).parameters()) - parameters)

    return AttentiveRnn(vocabulary, min(range(32, 1025, 16), key=distance), cell)
