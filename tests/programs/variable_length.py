"""Sequences of different lengths, padded to the longest of a batch, time first as recurrent networks want them."""

import torch
from common import note
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

generator = torch.Generator().manual_seed(1)
sequences = [torch.randint(1, 32, (int(length),), generator=generator) for length in torch.randint(4, 24, (300,), generator=generator)]


def pad(batch):
    padded = pad_sequence(batch)
    return padded[:-1], padded[1:], torch.tensor([len(sequence) for sequence in batch])


class Speaker(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.memory, self.words = nn.Embedding(32, 16), nn.GRU(16, 32), nn.Linear(32, 32)

    def forward(self, tokens):
        return self.words(self.memory(self.embedding(tokens))[0])


torch.manual_seed(0)
net = Speaker()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for _ in range(50):
    for tokens, targets, lengths in DataLoader(sequences, batch_size=16, shuffle=True, collate_fn=pad):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(tokens).flatten(0, 1), targets.flatten(), ignore_index=0)
        loss.backward()
        optimizer.step()
        note(loss, len(lengths))
