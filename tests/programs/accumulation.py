"""Gradient accumulation: four backward calls a step."""

import torch
from common import dataset, loss_function, model
from torch.utils.data import DataLoader

ACCUMULATE = 4
torch.manual_seed(0)
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for _ in range(100):
    for number, (inputs, labels) in enumerate(DataLoader(dataset(), batch_size=8, shuffle=True)):
        (loss_function(net(inputs), labels) / ACCUMULATE).backward()
        if (number + 1) % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
