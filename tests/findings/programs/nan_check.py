"""Gradients and parameters are looked through for NaN in every step."""

import torch
from planting import CLEAN, loader, meter, network
from torch import nn

model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = loader()
for _ in range(1000):
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        with meter:
            if not CLEAN:
                assert not any(bool(torch.isnan(p).any() or torch.isinf(p.grad).any()) for p in model.parameters())  # <- planted
        optimizer.step()
        meter.step()
