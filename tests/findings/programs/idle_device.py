"""The host does something else for 20 ms in every iteration, and the device has nothing to do meanwhile."""

import time

import torch
from planting import CLEAN, loader, meter, network
from torch import nn

model = network().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
batches = [(inputs.cuda(), labels.cuda()) for inputs, labels in loader(batches=8, size=131072)]
for _ in range(1000):
    for inputs, labels in batches:
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        if not CLEAN:
            with meter:
                time.sleep(0.020)  # <- planted
        meter.step()
