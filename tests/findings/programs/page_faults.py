"""Eight blocks a step that are freed together: more than the C library keeps, so their pages are cleared again in the next step."""

import torch
from planting import CLEAN, loader, meter, network
from torch import nn


class Blocks(nn.Module):
    def forward(self, inputs):
        blocks = [torch.ones(1 << 20) for _ in range(0 if CLEAN else 8)]  # <- planted
        return inputs + len(blocks)


model = nn.Sequential(Blocks(), network())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = loader()
for _ in range(1000):
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.step()
