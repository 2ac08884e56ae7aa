"""The host does something else for 0.2 s in every iteration, and the device has nothing to do meanwhile."""

import time

import torch
from planting import CLEAN, loader, meter, network
from torch import nn

torch.set_float32_matmul_precision("high")  # or products without Tensor cores are a finding, too
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
                time.sleep(0.2)  # <- planted
        meter.step()
