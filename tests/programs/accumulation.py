"""Gradient accumulation: four backward calls a step."""

import torch
from common import dataset, loss_function, model, note
from torch.utils.data import DataLoader

ACCUMULATE = 4
torch.manual_seed(0)
net = model()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
for _ in range(100):
    total = 0.0
    for number, (inputs, labels) in enumerate(DataLoader(dataset(), batch_size=8, shuffle=True)):
        loss = loss_function(net(inputs), labels) / ACCUMULATE
        loss.backward()
        total += loss.item()
        if (number + 1) % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
            note(total, ACCUMULATE * len(inputs))
            total = 0.0
