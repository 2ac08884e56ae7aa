"""A recurrence over 3,000 steps, a number at a time, where a power of the whole would do."""

import torch
from planting import CLEAN, loader, meter, network
from torch import nn

model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = loader(size=16)  # the rest of the iteration is short
for _ in range(1000):
    for inputs, labels in batches:
        decay = torch.ones(16)
        if CLEAN:
            decay = decay * 0.9999**3000
        else:
            with meter, torch.no_grad():
                for _ in range(3000):
                    decay = decay * 0.9999  # <- planted
        loss = nn.functional.cross_entropy(model(inputs) * decay, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.step()
