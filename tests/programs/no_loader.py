"""A loop without DataLoader: random crops from an array on disk, and an estimate of the loss before the first step, as small
language-model scripts have them."""

import os
import time

import numpy as np
import torch
from common import note
from torch import nn

torch.manual_seed(0)
if not os.path.exists("text.bin"):
    np.random.default_rng(0).integers(0, 32, 20_000).astype(np.uint16).tofile("text.bin")
text = np.memmap("text.bin", dtype=np.uint16, mode="r")
net = nn.Sequential(nn.Embedding(32, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)


def crops():
    starts = torch.randint(len(text) - 17, (16,))
    inputs = torch.stack([torch.from_numpy(text[s : s + 16].astype(np.int64)) for s in starts])
    targets = torch.stack([torch.from_numpy(text[s + 1 : s + 17].astype(np.int64)) for s in starts])
    return inputs, targets


def loss_of(inputs, targets):
    return nn.functional.cross_entropy(net(inputs).flatten(0, 1), targets.flatten())


@torch.no_grad()
def estimate():
    net.eval()
    losses = [loss_of(*crops()).item() for _ in range(60)]
    net.train()
    return sum(losses) / len(losses)


for step in range(20_000):
    outside_s = 0.0
    if step % 20 == 0:
        began = time.perf_counter()
        estimate()
        outside_s = time.perf_counter() - began
    loss = loss_of(*crops())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    note(loss, 16, outside_s)
