"""A running mean over a long list, in plain Python, between the steps."""

import torch
from planting import CLEAN, loader, meter, network
from torch import nn

model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = loader()
recent = [float(n) for n in range(60_000)]
for _ in range(1000):
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not CLEAN:
            with meter:
                spread = sum((value - 1.0) ** 2 for value in recent)  # <- planted
        meter.step()
