"""A loop without DataLoader: random crops from an array in memory, as small language-model scripts have."""

import torch
from torch import nn

torch.manual_seed(0)
text = torch.randint(0, 32, (20_000,))
net = nn.Sequential(nn.Embedding(32, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for _ in range(20_000):
    starts = torch.randint(len(text) - 17, (16,))
    inputs = torch.stack([text[s : s + 16] for s in starts])
    targets = torch.stack([text[s + 1 : s + 17] for s in starts])
    loss = nn.functional.cross_entropy(net(inputs).flatten(0, 1), targets.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
