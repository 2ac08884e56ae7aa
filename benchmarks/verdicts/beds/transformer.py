"""Bed: a small causal transformer on sentences of a random grammar. AdamW with warm-up, gradient
clipping, dropout.

The loader has its own generator, so another dropout stream does not change the order of the
batches.
"""

import planting
import torch
from torch import nn
from torch.utils.data import TensorDataset

plant = planting.from_arguments()
torch.manual_seed(0)

VOCABULARY, LENGTH, SAMPLES, WIDTH, HEADS = 24, 12, 2048, 32, 2


def sentences():
    """The next word depends on the last one and, less strongly, on the one before."""
    fixed = torch.Generator().manual_seed(3)  # every run has the same data
    last, before = torch.randn(2, VOCABULARY, VOCABULARY, generator=fixed)
    words = torch.randint(0, VOCABULARY, (SAMPLES, 2), generator=fixed)
    for _ in range(LENGTH - 1):
        chances = (2 * last[words[:, -1]] + before[words[:, -2]]).softmax(1)
        words = torch.cat([words, torch.multinomial(chances, 1, generator=fixed)], 1)
    return words[:, 1:]


class Layer(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.qkv(self.before_attention(x)).chunk(3, -1)
        )
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(heads.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.mlp(self.before_mlp(x)))


class Transformer(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.words, self.places = (
            nn.Embedding(VOCABULARY, WIDTH),
            nn.Parameter(torch.randn(LENGTH - 1, WIDTH) * 0.1),
        )
        self.layers = nn.Sequential(Layer(dropout), Layer(dropout))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, words):
        return self.head(self.norm(self.layers(self.words(words) + self.places)))


data = sentences()
order = torch.Generator().manual_seed(torch.initial_seed())
loader = plant.loader(TensorDataset(data), keys=data[:, 0], batch_size=16, generator=order)
net = plant.model(Transformer(plant.dropout(0.1)), head="head")
optimizer = plant.optimizer(torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.01))
warm_up = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=20)

for _epoch in range(1000):
    for (words,) in loader:
        optimizer.zero_grad()
        with plant.forward():
            logits = net(words[:, :-1]).float()
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
        plant.loss(loss).backward()
        plant.before_step()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        warm_up.step()
