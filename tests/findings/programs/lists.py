"""The predictions are kept as Python lists."""

import torch
from planting import CLEAN, loader, meter, network
from torch import nn

model = network()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batches = loader()
for _ in range(1000):
    for inputs, labels in batches:
        outputs = model(inputs)
        loss = nn.functional.cross_entropy(outputs, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values = outputs.detach().repeat(1, 16)
        if not CLEAN:
            with meter:
                mean = sum(map(sum, values.tolist())) / 4096  # <- planted
        meter.step()
