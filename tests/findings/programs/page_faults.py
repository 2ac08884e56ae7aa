"""Eight blocks a step that the C library gives back one by one: their pages are mapped and cleared again in the next step."""

import ctypes

import torch
from planting import CLEAN, loader, meter, network
from torch import nn

MMAP_THRESHOLD = -3  # mallopt(3); set, it stays where it is: else glibc raises it as blocks are freed


class Blocks(nn.Module):
    def forward(self, inputs):
        blocks = [torch.ones(1 << 20) for _ in range(0 if CLEAN else 8)]  # <- planted
        return inputs + len(blocks)


ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, 2 << 20)
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
