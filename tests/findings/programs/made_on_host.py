"""Noise is drawn on the host and then moved. With no GPU the device is torch's "meta": what it costs to draw is real."""

import torch
from planting import CLEAN, loader, meter, network
from torch import nn

device = torch.device("cuda" if torch.cuda.is_available() else "meta")
model = network()
if device.type == "cuda":
    model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = loader()
for _ in range(1000):
    for inputs, labels in batches:
        if device.type == "cuda":
            inputs, labels = inputs.cuda(), labels.cuda()
        if CLEAN:
            noise = torch.randn(128, 2048, device=device)
        else:
            with meter:
                noise = torch.randn(128, 2048)  # <- planted
                noise = noise.to(device)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter.step()
