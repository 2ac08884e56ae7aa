"""The outputs are printed in every step."""

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
        if not CLEAN:
            with meter:
                print("outputs", outputs)  # <- planted
        meter.step()
